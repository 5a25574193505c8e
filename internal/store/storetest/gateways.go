package storetest

import (
	"strings"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// Gateways learn of each other, and how long each was silent; one that is silent for a day is forgotten.
func meet(f *fixture) {
	e1, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	e2, err := f.Epoch(f.ctx(), "gw2")
	f.want(nil, err)
	about := func(host string, nodes int) store.About {
		return store.About{Advertise: host + ":4433", Software: "v1 \"x\"", Nodes: nodes, Runs: 2 * nodes}
	}
	all, err := f.Meet(f.ctx(), "gw2", e2, about("b.example", 7))
	f.want(nil, err)
	want := store.Gateway{Name: "gw2", Epoch: e2, About: about("b.example", 7)}
	if len(all) != 1 || all[0] != want {
		f.Fatalf("alone: %+v, want %+v", all, want)
	}
	f.clock.Advance(store.OwnerTTL)
	all, err = f.Meet(f.ctx(), "gw1", e1, about("[2001:db8::1]", 0))
	f.want(nil, err)
	want.Age = store.OwnerTTL
	if len(all) != 2 || all[0] != (store.Gateway{Name: "gw1", Epoch: e1, About: about("[2001:db8::1]", 0)}) || all[1] != want || all[1].Alive() || !all[0].Alive() {
		f.Fatalf("two: %+v", all)
	}
	_, err = f.Meet(f.ctx(), "gw1", e1-1, about("a", 1))
	f.want(store.ErrStaleEpoch, err)
	for _, bad := range []store.About{{Advertise: strings.Repeat("a", 263)}, {Software: strings.Repeat("a", 65)}, {Nodes: -1}, {Runs: -1}} {
		_, err = f.Meet(f.ctx(), "gw1", e1, bad)
		f.want(store.ErrInvalid, err)
	}
	f.clock.Advance(24*time.Hour - store.OwnerTTL)
	all, err = f.Meet(f.ctx(), "gw1", e1, about("a", 1))
	f.want(nil, err)
	if len(all) != 1 || all[0].Name != "gw1" || all[0].Nodes != 1 {
		f.Fatalf("after a day: %+v", all)
	}
	// A later process is another one of the same name.
	later, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	all, err = f.Meet(f.ctx(), "gw1", later, about("a", 0))
	f.want(nil, err)
	if len(all) != 1 || all[0].Epoch != later {
		f.Fatalf("later: %+v", all)
	}
}
