package storetest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// claim is a ready session.
func claim(node, instance string, generation uint64) store.SessionClaim {
	return store.SessionClaim{Node: node, Instance: instance, Generation: generation, State: store.StateReady}
}

// reassert expects that all claims are taken over.
func (f *fixture) reassert(gateway string, epoch uint64, claims ...store.SessionClaim) store.BeatResult {
	f.T.Helper()
	b, err := f.Reassert(f.ctx(), store.Assertion{Gateway: gateway, Epoch: epoch, Sessions: claims})
	f.want(nil, err)
	if len(b.Verdicts) != len(claims) || slices.ContainsFunc(b.Verdicts, func(v store.Verdict) bool { return v != store.VerdictOK }) {
		f.T.Fatalf("verdicts %v", b.Verdicts)
	}
	return b
}

// superseded expects that a claim is refused, and changes nothing.
func (f *fixture) superseded(gateway string, c store.SessionClaim) {
	f.T.Helper()
	before := f.node(c.Node)
	b, err := f.Reassert(f.ctx(), store.Assertion{Gateway: gateway, Sessions: []store.SessionClaim{c}})
	f.want(nil, err)
	if !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictSuperseded}) {
		f.T.Fatalf("verdicts %v", b.Verdicts)
	}
	if after := f.node(c.Node); !reflect.DeepEqual(after, before) {
		f.T.Fatalf("was %+v, is %+v", before, after)
	}
}

// beatEndsStrays: a session whose Gone was lost ends when its gateway's beats do not name it.
func beatEndsStrays(f *fixture) {
	kept, lost, other := f.ready("n1", "gw1", "i"), f.ready("n2", "gw1", "i"), f.ready("n2", "gw2", "i")
	held := []store.Held{{Node: "n1", Generation: kept}}
	beat := func() {
		f.Helper()
		b, err := f.Beat(f.ctx(), "gw1", 0, held)
		f.want(nil, err)
		if !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictOK}) {
			f.Fatalf("verdicts %v", b.Verdicts)
		}
	}
	beat() // it may have been registered while the beat was under way
	f.fence(nil, "n2", "gw1", lost)
	f.clock.Advance(store.OwnerTTL)
	young := f.ready("n3", "gw1", "i")
	beat()
	f.fence(nil, "n1", "gw1", kept)
	f.fence(store.ErrStale, "n2", "gw1", lost)
	f.fence(nil, "n3", "gw1", young)
	if s := f.node("n2").Sessions; len(s) != 1 || s[0].Gateway != "gw2" || s[0].Generation != other {
		f.Fatalf("sessions %+v", s)
	}
}

// laterProcess: whatever call names a later process first ends the sessions of the one before.
func laterProcess(f *fixture) {
	for i, enter := range []func(epoch uint64) error{
		func(e uint64) error {
			_, err := f.Beat(f.ctx(), "gw1", e, nil)
			return err
		},
		func(e uint64) error {
			_, err := f.Store.Register(f.ctx(), store.Registration{Node: "n2", Gateway: "gw1", Instance: "i", Epoch: e})
			return err
		},
		func(e uint64) error {
			_, err := f.Reassert(f.ctx(), store.Assertion{Gateway: "gw1", Epoch: e})
			return err
		},
	} {
		f.clock.Advance(time.Second)
		epoch := uint64(i * 10)
		g, err := f.Store.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: epoch})
		f.want(nil, err)
		f.want(nil, f.Ready(f.ctx(), "n1", "gw1", g))
		f.want(nil, enter(epoch+5))
		f.fence(store.ErrStale, "n1", "gw1", g)
		f.want(store.ErrStaleEpoch, enter(epoch))
	}
}

func drainedNodes(f *fixture) {
	read := func(want ...string) uint64 {
		f.Helper()
		r, err := f.Revocations(f.ctx())
		f.want(nil, err)
		if !slices.Equal(r.Drained, want) {
			f.Fatalf("drained %v, want %v", r.Drained, want)
		}
		b, err := f.Beat(f.ctx(), "gw1", 0, nil)
		f.want(nil, err)
		if b.Revocations != r.Version {
			f.Fatalf("version %d by the beat, %d by Revocations", b.Revocations, r.Version)
		}
		return r.Version
	}
	versions := []uint64{read()}
	step := func(change func() error, want ...string) {
		f.Helper()
		f.want(nil, change())
		v := read(want...)
		if last := versions[len(versions)-1]; v <= last {
			f.Fatalf("version %d after %d", v, last)
		}
		versions = append(versions, v)
	}
	step(func() error { return f.Drain(f.ctx(), "n2", true) }, "n2")
	step(func() error { return f.Drain(f.ctx(), "n1", true) }, "n1", "n2")
	step(func() error { _, err := f.Revoke(f.ctx(), []string{"slot:s"}, 0); return err }, "n1", "n2")
	step(func() error { return f.Drain(f.ctx(), "n2", false) }, "n1")
	step(func() error { return f.Unrevoke(f.ctx(), []string{"slot:s"}) }, "n1")
	f.want(nil, f.Drain(f.ctx(), "n1", true))
	if v := read("n1"); v != versions[len(versions)-1] {
		f.Fatal("a repeated drain is a change")
	}
}

func watch(f *fixture) {
	a, b := f.Watch(f.ctx()), f.Watch(f.ctx())
	for i, change := range []func() error{
		func() error { _, err := f.Revoke(f.ctx(), []string{"slot:s"}, 0); return err },
		func() error { _, err := f.Revoke(f.ctx(), nil, 7); return err },
		func() error { return f.Drain(f.ctx(), "n1", true) },
		func() error { return f.Unrevoke(f.ctx(), []string{"slot:s"}) },
		func() error { return f.Drain(f.ctx(), "n1", false) },
	} {
		before, err := f.Revocations(f.ctx())
		f.want(nil, err)
		f.want(nil, change())
		after, err := f.Revocations(f.ctx())
		f.want(nil, err)
		if after.Version <= before.Version {
			f.Fatalf("change %d: version %d after %d", i, after.Version, before.Version)
		}
		for _, w := range []<-chan struct{}{a, b} {
			select {
			case <-w:
			case <-time.After(10 * time.Second):
				f.Fatalf("change %d: nothing seen", i)
			}
		}
	}
	f.want(nil, f.Store.Close())
	for _, w := range []<-chan struct{}{a, b, f.Watch(f.ctx())} {
		for open := true; open; {
			select {
			case _, open = <-w:
			case <-time.After(10 * time.Second):
				f.Fatal("a watch outlives the store")
			}
		}
	}
}

// reassertAll: two gateways tell an empty store what the one before knew.
func reassertAll(f *fixture) {
	objects := map[string]string{"slot:x": "1", "slot:y": "1"}
	e1, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	register := func(node, gateway string, epoch uint64, state store.State) store.SessionClaim {
		f.clock.Advance(time.Second)
		g, err := f.Store.Register(f.ctx(), store.Registration{Node: node, Gateway: gateway, Instance: "i-" + node, Epoch: epoch})
		f.want(nil, err)
		if state != store.StateRegistered {
			f.want(nil, f.Ready(f.ctx(), node, gateway, g))
		}
		if state == store.StateSuspect {
			f.want(nil, f.Suspect(f.ctx(), node, gateway, g))
		}
		return store.SessionClaim{Node: node, Instance: "i-" + node, Generation: g, State: state}
	}
	gw1 := []store.SessionClaim{
		register("n1", "gw1", e1, store.StateReady), register("n2", "gw1", e1, store.StateRegistered), register("n3", "gw1", e1, store.StateSuspect),
	}
	gw2 := []store.SessionClaim{register("n1", "gw2", 0, store.StateReady)}
	_, err = f.Revoke(f.ctx(), []string{"slot:bad", "node:n9", "principal:p"}, 0)
	f.want(nil, err)
	f.want(nil, f.Drain(f.ctx(), "n3", true))
	_, err = f.Publish(f.ctx(), objects)
	f.want(nil, err)
	f.clock.Advance(time.Second)
	objects["slot:y"] = "2"
	p, err := f.Publish(f.ctx(), objects)
	f.want(nil, err)
	_, err = f.Revoke(f.ctx(), nil, p.PGN)
	f.want(nil, err)
	view, err := f.Revocations(f.ctx())
	f.want(nil, err)
	was := map[string]store.NodeRecord{}
	for _, n := range []string{"n1", "n2", "n3", "n9"} {
		was[n] = f.node(n)
	}

	f.Store = f.open(f.T, f.clock)
	fresh, err := f.Beat(f.ctx(), "gw1", e1, []store.Held{{Node: "n1", Generation: gw1[0].Generation}})
	f.want(nil, err)
	if !slices.Equal(fresh.Verdicts, []store.Verdict{store.VerdictMissing}) {
		f.Fatalf("verdicts %v", fresh.Verdicts)
	}
	a1 := store.Assertion{Gateway: "gw1", Epoch: e1, Sessions: gw1, Revocations: view, Objects: objects, Publication: p}
	a2 := store.Assertion{Gateway: "gw2", Sessions: gw2, Revocations: view, Objects: objects, Publication: p}
	for range 2 { // again does nothing
		for _, a := range []store.Assertion{a1, a2} {
			b, err := f.Reassert(f.ctx(), a)
			f.want(nil, err)
			if b.Incarnation != fresh.Incarnation || len(b.Verdicts) != len(a.Sessions) || slices.Contains(b.Verdicts, store.VerdictSuperseded) {
				f.Fatalf("answer %+v", b)
			}
		}
	}
	for n, before := range was {
		after := f.node(n)
		if len(after.Sessions) != len(before.Sessions) || after.Instance != before.Instance || after.Generation != before.Generation ||
			after.Disabled != before.Disabled || after.Draining != before.Draining {
			f.Fatalf("was %+v, is %+v", before, after)
		}
		for i, s := range after.Sessions {
			if w := before.Sessions[i]; s.Gateway != w.Gateway || s.Generation != w.Generation || s.State != w.State || !s.Owned() {
				f.Fatalf("was %+v, is %+v", before, after)
			}
		}
	}
	got, err := f.Revocations(f.ctx())
	f.want(nil, err)
	if !slices.Equal(got.Subjects, view.Subjects) || got.MinPGN != view.MinPGN || !slices.Equal(got.Drained, view.Drained) {
		f.Fatalf("was %+v, is %+v", view, got)
	}
	again, err := f.Publish(f.ctx(), objects)
	f.want(nil, err)
	if again.PGN != p.PGN || !maps.Equal(again.Revisions, p.Revisions) {
		f.Fatalf("was %+v, is %+v", p, again)
	}
	f.want(nil, f.Issue(f.ctx(), store.Issue{Node: "n1", Gateway: "gw1", Generation: gw1[0].Generation, PGN: p.PGN}))
	_, err = f.Beat(f.ctx(), "gw1", e1-1, nil)
	f.want(store.ErrStaleEpoch, err)
	if next := f.register("n1", "gw2", "i-n1"); next <= gw2[0].Generation {
		f.Fatalf("generation %d after %d", next, gw2[0].Generation)
	}
}

// reassertInstances: generations tell which of two processes of a node has won, whoever tells of it first.
func reassertInstances(f *fixture) {
	old, old2 := claim("n1", "i1", 1000), claim("n1", "i1", 1001)
	late, late2 := claim("n1", "i2", 1002), claim("n1", "i2", 1003)
	tell := func(order ...store.SessionClaim) {
		f.Helper()
		f.Store = f.open(f.T, f.clock)
		gateways := map[store.SessionClaim]string{old: "gw1", old2: "gw2", late: "gw2", late2: "gw3"}
		for _, c := range order {
			_, err := f.Reassert(f.ctx(), store.Assertion{Gateway: gateways[c], Sessions: []store.SessionClaim{c}})
			f.want(nil, err)
		}
		f.fence(nil, "n1", "gw2", late.Generation)
		f.fence(nil, "n1", "gw3", late2.Generation)
		f.fence(store.ErrStale, "n1", "gw1", old.Generation)
		if r := f.node("n1"); r.Instance != "i2" || r.Generation != late2.Generation || len(r.Sessions) != 2 {
			f.Fatalf("record %+v", r)
		}
		f.superseded("gw1", old)
		f.superseded("gw2", old2)
	}
	tell(old, old2, late, late2)
	tell(late, late2, old, old2)
	tell(late2, old2, late, old)
	tell(old, late2, old2, late)
	// A process that has lost its node in between and won it again: its session from before is over.
	f.Store = f.open(f.T, f.clock)
	f.reassert("gw2", 0, claim("n1", "i2", 1011))
	f.reassert("gw3", 0, claim("n1", "i1", 1012))
	f.superseded("gw1", claim("n1", "i1", 1010))
}

func reassertNewer(f *fixture) {
	a := f.ready("n1", "gw1", "i1")
	b := f.ready("n1", "gw1", "i1")
	f.superseded("gw1", claim("n1", "i1", a))
	f.want(nil, f.Suspect(f.ctx(), "n1", "gw1", b))
	f.reassert("gw1", 0, claim("n1", "i1", b)) // the gateway knows its sessions' state
	f.fence(nil, "n1", "gw1", b)
	f.want(nil, f.Gone(f.ctx(), "n1", "gw1", b))
	f.reassert("gw1", 0, claim("n1", "i1", b)) // and whether there is one
	f.fence(nil, "n1", "gw1", b)
	c := f.ready("n1", "gw2", "i2")
	f.superseded("gw1", claim("n1", "i1", b))
	f.superseded("gw1", claim("n1", "i3", c)) // the first that the store has heard of keeps a number
	f.want(nil, f.Gone(f.ctx(), "n1", "gw2", c))
	f.superseded("gw1", claim("n1", "i1", b)) // still not its node
	f.reassert("gw2", 0, claim("n1", "i2", c))
}

func reassertTakenBack(f *fixture) {
	_, err := f.Revoke(f.ctx(), []string{"slot:a", "slot:b"}, 5)
	f.want(nil, err)
	f.want(nil, f.Drain(f.ctx(), "n1", true))
	f.want(nil, f.Drain(f.ctx(), "n2", true))
	old, err := f.Revocations(f.ctx())
	f.want(nil, err)
	check := func(view store.Revocations, subjects, drained []string) {
		f.Helper()
		_, err := f.Reassert(f.ctx(), store.Assertion{Gateway: "gw1", Revocations: view})
		f.want(nil, err)
		got, err := f.Revocations(f.ctx())
		f.want(nil, err)
		if !slices.Equal(got.Subjects, subjects) || !slices.Equal(got.Drained, drained) || got.MinPGN != 9 {
			f.Fatalf("%+v, want %v, %v", got, subjects, drained)
		}
	}
	f.want(nil, f.Unrevoke(f.ctx(), []string{"slot:a"}))
	f.want(nil, f.Drain(f.ctx(), "n1", false))
	_, err = f.Revoke(f.ctx(), nil, 9)
	f.want(nil, err)
	check(old, []string{"slot:b"}, []string{"n2"})
	// Revoked once more: a view from then counts.
	_, err = f.Revoke(f.ctx(), []string{"slot:a"}, 0)
	f.want(nil, err)
	check(old, []string{"slot:a", "slot:b"}, []string{"n2"})
	view, err := f.Revocations(f.ctx())
	f.want(nil, err)
	f.Store = f.open(f.T, f.clock)
	check(view, []string{"slot:a", "slot:b"}, []string{"n2"})
	// What the store did not have when it was taken back is still taken back.
	f.Store = f.open(f.T, f.clock)
	f.clock.Advance(time.Second)
	f.want(nil, f.Unrevoke(f.ctx(), []string{"slot:a"}))
	f.want(nil, f.Drain(f.ctx(), "n2", false))
	check(view, []string{"slot:b"}, nil)
	// Also by a clock that is behind the one of the view.
	f.Store = f.open(f.T, f.clock)
	f.clock.Advance(-time.Hour)
	check(view, []string{"slot:a", "slot:b"}, []string{"n2"})
	f.want(nil, f.Unrevoke(f.ctx(), []string{"slot:a"}))
	f.want(nil, f.Drain(f.ctx(), "n2", false))
	check(view, []string{"slot:b"}, nil)
}

func reassertDisabled(f *fixture) {
	g := f.ready("n1", "gw1", "i")
	view, err := f.Revocations(f.ctx())
	f.want(nil, err)
	_, err = f.Revoke(f.ctx(), []string{"node:n1"}, 0)
	f.want(nil, err)
	f.superseded("gw1", claim("n1", "i", g))
	f.want(nil, f.Unrevoke(f.ctx(), []string{"node:n1"}))
	f.superseded("gw1", claim("n1", "i", g)) // it has to register again
	b, err := f.Beat(f.ctx(), "gw1", 0, []store.Held{{Node: "n1", Generation: g}})
	f.want(nil, err)
	if !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictSuperseded}) {
		f.Fatalf("verdicts %v", b.Verdicts)
	}
	// One that the store has never seen a session of.
	f.Store = f.open(f.T, f.clock)
	_, err = f.Revoke(f.ctx(), []string{"node:n1"}, 0)
	f.want(nil, err)
	b, err = f.Beat(f.ctx(), "gw1", 0, []store.Held{{Node: "n1", Generation: g}})
	f.want(nil, err)
	if !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictSuperseded}) {
		f.Fatalf("verdicts %v", b.Verdicts)
	}
	// In one call: no session of a node that is revoked in the same view.
	f.Store = f.open(f.T, f.clock)
	view.Subjects = []string{"node:n1"}
	b, err = f.Reassert(f.ctx(), store.Assertion{Gateway: "gw1", Revocations: view, Sessions: []store.SessionClaim{claim("n1", "i", g), claim("n2", "i", g)}})
	f.want(nil, err)
	if !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictSuperseded, store.VerdictOK}) {
		f.Fatalf("verdicts %v", b.Verdicts)
	}
	// And a session that was there already ends.
	_, err = f.Reassert(f.ctx(), store.Assertion{Gateway: "gw1", Revocations: store.Revocations{Subjects: []string{"node:n2"}, Version: view.Version}})
	f.want(nil, err)
	f.fence(store.ErrDisabled, "n2", "gw1", g)
	if r := f.node("n2"); len(r.Sessions) != 0 {
		f.Fatalf("record %+v", r)
	}
}

func reassertProjection(f *fixture) {
	objects := map[string]string{"slot:x": "1"}
	old, err := f.Publish(f.ctx(), objects)
	f.want(nil, err)
	tell := func(objects map[string]string, p store.Publication) {
		f.Helper()
		_, err := f.Reassert(f.ctx(), store.Assertion{Gateway: "gw1", Objects: objects, Publication: p})
		f.want(nil, err)
	}
	f.clock.Advance(time.Second)
	newer := map[string]string{"slot:x": "1", "slot:y": "2"}
	next, err := f.Publish(f.ctx(), newer)
	f.want(nil, err)
	tell(objects, old)
	if p, err := f.Publish(f.ctx(), newer); err != nil || p.PGN != next.PGN {
		f.Fatalf("%+v, %v: an older projection replaced %+v", p, err, next)
	}
	ahead := store.Publication{PGN: next.PGN + 1000, Revisions: map[string]uint64{"slot:x": old.PGN}}
	tell(objects, ahead)
	if p, err := f.Publish(f.ctx(), objects); err != nil || p.PGN != ahead.PGN || p.Revisions["slot:x"] != old.PGN {
		f.Fatalf("%+v, %v: want %+v", p, err, ahead)
	}
	if p, err := f.Publish(f.ctx(), newer); err != nil || p.PGN != ahead.PGN+1 || p.Revisions["slot:x"] != old.PGN || p.Revisions["slot:y"] != p.PGN {
		f.Fatalf("%+v, %v: after %+v", p, err, ahead)
	}
}

func reassertRefused(f *fixture) {
	e, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	good := func() store.Assertion {
		return store.Assertion{
			Gateway: "gw1", Epoch: e, Sessions: []store.SessionClaim{claim("n1", "i", 7)},
			Revocations: store.Revocations{Subjects: []string{"slot:a"}, Drained: []string{"n2"}, MinPGN: 3},
			Objects:     map[string]string{"slot:x": "1"}, Publication: store.Publication{PGN: 5, Revisions: map[string]uint64{"slot:x": 5}},
		}
	}
	long := strings.Repeat("x", 257)
	for i, tt := range []struct {
		want   error
		change func(a *store.Assertion)
	}{
		{store.ErrStaleEpoch, func(a *store.Assertion) { a.Epoch-- }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Epoch = 1 << 53 }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Gateway = "" }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Sessions[0].Node = long }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Sessions[0].Instance = "" }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Sessions[0].Generation = 0 }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Sessions[0].Generation = 1 << 53 }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Sessions[0].State = "gone" }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Revocations.Subjects[0] = "" }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Revocations.Subjects = make([]string, 10_001) }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Revocations.Drained[0] = long }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Revocations.MinPGN = 1 << 53 }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Publication.PGN = 1 << 53 }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Publication.Revisions["slot:x"] = 6 }},
		{store.ErrInvalid, func(a *store.Assertion) { delete(a.Publication.Revisions, "slot:x") }},
		{store.ErrInvalid, func(a *store.Assertion) { a.Objects["slot:x"] = "" }},
	} {
		a := good()
		tt.change(&a)
		if _, err := f.Reassert(f.ctx(), a); err == nil {
			f.Errorf("case %d was taken", i)
		} else {
			f.want(tt.want, err)
		}
	}
	if r := f.node("n1"); len(r.Sessions) != 0 || r.Generation != 0 {
		f.Fatalf("record %+v", r)
	}
	if r, err := f.Revocations(f.ctx()); err != nil || len(r.Subjects)+len(r.Drained) != 0 || r.MinPGN != 0 {
		f.Fatalf("%+v, %v", r, err)
	}
	if p := f.publish("a"); p < f.clock.Millis() {
		f.Fatalf("pgn %d", p)
	}
	_, err = f.Reassert(f.ctx(), good())
	f.want(nil, err)
}

// reassertConcurrently: all gateways of a fleet tell at once, of the same nodes, in pieces and all together.
func reassertConcurrently(f *fixture) {
	const nodes = 600
	var wg sync.WaitGroup
	view := store.Revocations{MinPGN: 3, Version: 1}
	for i := range 1500 {
		view.Subjects = append(view.Subjects, fmt.Sprint("lease:", i))
	}
	for i := range 4 {
		wg.Go(func() {
			a := store.Assertion{Gateway: fmt.Sprint("gw", i), Revocations: view}
			for n := range nodes {
				a.Sessions = append(a.Sessions, claim(fmt.Sprint("n", n), fmt.Sprint("i", i/2), uint64(1000+i)))
			}
			if _, err := f.Reassert(f.ctx(), a); err != nil {
				f.Error(err)
			}
		})
	}
	wg.Wait()
	r, err := f.Revocations(f.ctx())
	f.want(nil, err)
	if len(r.Subjects) != len(view.Subjects) || r.MinPGN != 3 {
		f.Fatalf("%d subjects, min_pgn %d", len(r.Subjects), r.MinPGN)
	}
	for n := range nodes {
		r := f.node(fmt.Sprint("n", n))
		if r.Instance != "i1" || r.Generation != 1003 || len(r.Sessions) != 2 || r.Sessions[0].Generation != 1002 || r.Sessions[1].Generation != 1003 {
			f.Fatalf("record %+v", r)
		}
	}
}
