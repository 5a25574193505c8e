package storetest

import (
	"slices"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// The sessions of a gateway that is silent are its own again when it beats, under the same generations.
func silentGateway(f *fixture) {
	e, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	g, err := f.Store.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: e})
	f.want(nil, err)
	f.want(nil, f.Ready(f.ctx(), "n1", "gw1", g))
	pgn := f.publish("a")
	check := func(want error) {
		f.Helper()
		f.fence(want, "n1", "gw1", g)
		if got := f.Issue(f.ctx(), store.Issue{Node: "n1", Gateway: "gw1", Generation: g, PGN: pgn}); got != want {
			f.Fatalf("issue: %v, want %v", got, want)
		}
		if r := f.node("n1"); r.Owned() != (want == nil) {
			f.Fatalf("record %+v", r)
		}
	}
	f.clock.Advance(store.OwnerTTL - time.Millisecond)
	check(nil)
	f.clock.Advance(time.Millisecond)
	check(store.ErrNotReady)
	_, err = f.Beat(f.ctx(), "gw2", 0, nil) // another's
	f.want(nil, err)
	f.want(nil, f.Ready(f.ctx(), "n1", "gw1", g)) // no beat
	check(store.ErrNotReady)
	b, err := f.Beat(f.ctx(), "gw1", e, []store.Held{{Node: "n1", Generation: g}})
	f.want(nil, err)
	if !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictOK}) {
		f.Fatalf("verdicts %v", b.Verdicts)
	}
	check(nil)
}

// One that is silent for long is forgotten, and still comes back with its sessions.
func forgottenGateway(f *fixture) {
	e, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	g, err := f.Store.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: e})
	f.want(nil, err)
	f.want(nil, f.Ready(f.ctx(), "n1", "gw1", g))
	f.clock.Advance(25 * time.Hour)
	_, err = f.Beat(f.ctx(), "gw2", 0, nil)
	f.want(nil, err)
	if r := f.node("n1"); len(r.Sessions) != 0 || r.Generation != g || r.Instance != "i" {
		f.Fatalf("record %+v", r)
	}
	f.fence(store.ErrStale, "n1", "gw1", g)
	b, err := f.Beat(f.ctx(), "gw1", e, []store.Held{{Node: "n1", Generation: g}})
	f.want(nil, err)
	if !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictMissing}) {
		f.Fatalf("verdicts %v", b.Verdicts)
	}
	f.reassert("gw1", e, claim("n1", "i", g))
	f.fence(nil, "n1", "gw1", g)
}
