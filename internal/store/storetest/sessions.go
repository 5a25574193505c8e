package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

func life(f *fixture) {
	g := f.register("n1", "gw1", "i")
	state := func(want store.State) {
		f.Helper()
		if s := f.node("n1").Sessions; len(s) != 1 || s[0].State != want || s[0].Generation != g || s[0].Gateway != "gw1" {
			f.Fatalf("sessions %+v, want one %s", s, want)
		}
	}
	state(store.StateRegistered)
	f.fence(store.ErrNotReady, "n1", "gw1", g)
	f.want(nil, f.Suspect(f.ctx(), "n1", "gw1", g)) // not ready yet: no change
	state(store.StateRegistered)
	for range 2 {
		f.want(nil, f.Ready(f.ctx(), "n1", "gw1", g))
		state(store.StateReady)
		f.fence(nil, "n1", "gw1", g)
	}
	for range 2 {
		f.want(nil, f.Suspect(f.ctx(), "n1", "gw1", g))
		state(store.StateSuspect)
		f.fence(store.ErrNotReady, "n1", "gw1", g)
	}
	f.want(nil, f.Ready(f.ctx(), "n1", "gw1", g))
	f.fence(nil, "n1", "gw1", g)
	f.want(nil, f.Gone(f.ctx(), "n1", "gw1", g))
	f.fence(store.ErrStale, "n1", "gw1", g)
	f.want(store.ErrStale, f.Gone(f.ctx(), "n1", "gw1", g))
	f.want(store.ErrStale, f.Ready(f.ctx(), "n1", "gw1", g))
	r := f.node("n1")
	if len(r.Sessions) != 0 || r.Instance != "i" || r.Generation != g {
		f.Fatalf("record %+v", r)
	}
}

// Whatever names another generation, gateway or node changes nothing.
func staleChangesNothing(f *fixture) {
	old := f.ready("n1", "gw1", "i")
	g := f.ready("n1", "gw1", "i")
	before := f.node("n1")
	for _, at := range []struct {
		node, gateway string
		generation    uint64
	}{{"n1", "gw1", old}, {"n1", "gw1", g - 1}, {"n1", "gw1", g + 1}, {"n1", "gw1", 0}, {"n1", "gw2", g}, {"n2", "gw1", g}, {"", "", 0}} {
		f.fence(store.ErrStale, at.node, at.gateway, at.generation)
		f.want(store.ErrStale, f.Ready(f.ctx(), at.node, at.gateway, at.generation))
		f.want(store.ErrStale, f.Suspect(f.ctx(), at.node, at.gateway, at.generation))
		f.want(store.ErrStale, f.Gone(f.ctx(), at.node, at.gateway, at.generation))
	}
	if after := f.node("n1"); !reflect.DeepEqual(after, before) {
		f.Fatalf("was %+v, is %+v", before, after)
	}
	f.fence(nil, "n1", "gw1", g)
}

func twoGateways(f *fixture) {
	a, b := f.ready("n1", "gw1", "i"), f.ready("n1", "gw2", "i")
	if b <= a {
		f.Fatalf("generations %d, %d: the counter is the node's", a, b)
	}
	f.fence(nil, "n1", "gw1", a)
	f.fence(nil, "n1", "gw2", b)
	f.want(nil, f.Suspect(f.ctx(), "n1", "gw1", a)) // state is per gateway
	f.fence(nil, "n1", "gw2", b)
	f.want(nil, f.Gone(f.ctx(), "n1", "gw1", a))
	f.fence(nil, "n1", "gw2", b)
	if r := f.node("n1"); len(r.Sessions) != 1 || r.Floor > a {
		f.Fatalf("record %+v", r)
	}
}

func sameInstanceAgain(f *fixture) {
	a, b := f.ready("n1", "gw1", "i"), f.ready("n1", "gw2", "i")
	c := f.register("n1", "gw1", "i")
	f.fence(store.ErrStale, "n1", "gw1", a)
	f.fence(store.ErrNotReady, "n1", "gw1", c)
	f.fence(nil, "n1", "gw2", b)
}

func anotherInstance(f *fixture) {
	a, b := f.ready("n1", "gw1", "i1"), f.ready("n1", "gw2", "i1")
	other := f.ready("n2", "gw1", "i1")
	c := f.ready("n1", "gw3", "i2")
	f.fence(store.ErrStale, "n1", "gw1", a)
	f.fence(store.ErrStale, "n1", "gw2", b)
	f.want(store.ErrStale, f.Ready(f.ctx(), "n1", "gw1", a))
	f.fence(nil, "n1", "gw3", c)
	f.fence(nil, "n2", "gw1", other)
	r := f.node("n1")
	if r.Instance != "i2" || r.Floor != c || len(r.Sessions) != 1 || r.Sessions[0].Gateway != "gw3" {
		f.Fatalf("record %+v", r)
	}
	got, err := f.Beat(f.ctx(), "gw1", 0, []store.Held{{Node: "n1", Generation: a}, {Node: "n2", Generation: other}})
	f.want(nil, err)
	if want := []store.Verdict{store.VerdictSuperseded, store.VerdictOK}; !slices.Equal(got.Verdicts, want) {
		f.Fatalf("verdicts %v, want %v", got.Verdicts, want)
	}
}

// The old connection's end arrives after the new one is there.
func goneOfOldGeneration(f *fixture) {
	old := f.ready("n1", "gw1", "i")
	g := f.ready("n1", "gw1", "i")
	f.want(store.ErrStale, f.Gone(f.ctx(), "n1", "gw1", old))
	f.fence(nil, "n1", "gw1", g)
}

func beat(f *fixture) {
	e, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	register := func(node string) uint64 {
		f.clock.Advance(time.Second)
		g, err := f.Register(f.ctx(), store.Registration{Node: node, Gateway: "gw1", Instance: "i", Epoch: e})
		f.want(nil, err)
		return g
	}
	old := register("n1")
	g := register("n1")
	ended := register("n2")
	f.want(nil, f.Gone(f.ctx(), "n2", "gw1", ended))
	first, err := f.Beat(f.ctx(), "gw1", e, []store.Held{{Node: "n1", Generation: g}, {Node: "n1", Generation: old}, {Node: "n2", Generation: ended}, {Node: "n3", Generation: 1}})
	f.want(nil, err)
	want := []store.Verdict{store.VerdictOK, store.VerdictSuperseded, store.VerdictMissing, store.VerdictMissing}
	if !slices.Equal(first.Verdicts, want) {
		f.Fatalf("verdicts %v, want %v", first.Verdicts, want)
	}
	_, err = f.Revoke(f.ctx(), []string{store.Subject(store.SubjectSlot, "s")}, 0)
	f.want(nil, err)
	second, err := f.Beat(f.ctx(), "gw1", e, nil)
	f.want(nil, err)
	if first.Incarnation == "" || first.Incarnation != second.Incarnation || len(second.Verdicts) != 0 {
		f.Fatalf("beats %+v, %+v", first, second)
	}
	if second.Revocations <= first.Revocations {
		f.Fatalf("revocations version %d after %d", second.Revocations, first.Revocations)
	}
}

func beatAge(f *fixture) {
	e, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	f.clock.Advance(time.Minute)
	_, err = f.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: e})
	f.want(nil, err)
	age := func(want time.Duration, owned bool) {
		f.Helper()
		r := f.node("n1")
		if s := r.Sessions[0]; s.BeatAge != want || s.Owned() != owned || r.Owned() != owned {
			f.Fatalf("age %s, owned %v, want %s, %v", s.BeatAge, s.Owned(), want, owned)
		}
	}
	age(0, true)
	f.clock.Advance(store.OwnerTTL - time.Millisecond)
	age(store.OwnerTTL-time.Millisecond, true)
	f.clock.Advance(time.Millisecond)
	age(store.OwnerTTL, false)
	_, err = f.Beat(f.ctx(), "gw1", e, []store.Held{{Node: "n1", Generation: f.node("n1").Generation}})
	f.want(nil, err)
	age(0, true)
	f.clock.Advance(-time.Hour)
	age(0, true)
}

func unknownNode(f *fixture) {
	if r := f.node("n1"); !reflect.DeepEqual(r, store.NodeRecord{Node: "n1"}) || r.Owned() {
		f.Fatalf("record %+v", r)
	}
	f.fence(store.ErrStale, "n1", "gw1", 1)
}

// Sessions come and go on all gateways at once; at the end the store's picture
// is one that the last calls explain.
func readyConcurrently(f *fixture) {
	var wg sync.WaitGroup
	last := make([]uint64, goroutines)
	for i := range goroutines {
		wg.Go(func() {
			gateway, node := fmt.Sprint("gw", i), fmt.Sprint("n", i%4)
			for n := range min(f.rounds(), 50) {
				g, err := f.Register(f.ctx(), store.Registration{Node: node, Gateway: gateway, Instance: "i"})
				if err != nil {
					f.clock.Advance(time.Second)
					continue
				}
				if err := f.Ready(f.ctx(), node, gateway, g); err != nil {
					f.Errorf("ready: %v", err)
				}
				// The others move the clock, by more than a gateway may be silent.
				if err := f.Fence(f.ctx(), node, gateway, g); err != nil && !(f.shared && errors.Is(err, store.ErrNotReady)) {
					f.Errorf("fence: %v", err)
				}
				last[i] = g
				if n%3 == 0 {
					if err := f.Gone(f.ctx(), node, gateway, g); err != nil {
						f.Errorf("gone: %v", err)
					}
					last[i] = 0
				}
			}
		})
	}
	wg.Wait()
	for i, g := range last {
		want, gateway, node := error(nil), fmt.Sprint("gw", i), fmt.Sprint("n", i%4)
		if g == 0 {
			want = store.ErrStale
		}
		_, err := f.Beat(f.ctx(), gateway, 0, []store.Held{{Node: node, Generation: g}})
		f.want(nil, err)
		f.fence(want, node, gateway, g)
	}
}
