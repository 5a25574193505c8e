package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

func (f *fixture) publish(digest string) uint64 {
	f.T.Helper()
	p, err := f.Store.Publish(f.ctx(), map[string]string{"all": digest})
	f.want(nil, err)
	return p.PGN
}

func revisions(f *fixture) {
	try := func(objects map[string]string, want func(pgn uint64) map[string]uint64) uint64 {
		f.Helper()
		p, err := f.Store.Publish(f.ctx(), objects)
		f.want(nil, err)
		if w := want(p.PGN); !maps.Equal(p.Revisions, w) {
			f.Fatalf("revisions %v, want %v", p.Revisions, w)
		}
		return p.PGN
	}
	a := try(map[string]string{"slot:x": "1", "slot:y": "1"}, func(p uint64) map[string]uint64 { return map[string]uint64{"slot:x": p, "slot:y": p} })
	f.clock.Advance(time.Minute)
	b := try(map[string]string{"slot:x": "1", "slot:y": "2"}, func(p uint64) map[string]uint64 { return map[string]uint64{"slot:x": a, "slot:y": p} })
	try(map[string]string{"slot:x": "1", "slot:y": "2"}, func(uint64) map[string]uint64 { return map[string]uint64{"slot:x": a, "slot:y": b} })
	_, err := f.Revoke(f.ctx(), nil, b+1)
	f.want(nil, err)
	// A new number for the same objects changes no revision; what is gone and comes back is another.
	try(map[string]string{"slot:x": "1", "slot:y": "2"}, func(uint64) map[string]uint64 { return map[string]uint64{"slot:x": a, "slot:y": b} })
	try(map[string]string{"slot:y": "2"}, func(uint64) map[string]uint64 { return map[string]uint64{"slot:y": b} })
	try(map[string]string{"slot:x": "1", "slot:y": "2"}, func(p uint64) map[string]uint64 { return map[string]uint64{"slot:x": p, "slot:y": b} })
	try(nil, func(uint64) map[string]uint64 { return map[string]uint64{} })
	for _, bad := range []map[string]string{{"": "1"}, {"x": ""}, {strings.Repeat("x", 257): "1"}} {
		_, err := f.Store.Publish(f.ctx(), bad)
		f.want(store.ErrInvalid, err)
	}
}

func publish(f *fixture) {
	a := f.publish("a")
	if a < f.clock.Millis() || f.publish("a") != a {
		f.Fatal("publish is not idempotent")
	}
	f.clock.Advance(time.Minute)
	if f.publish("a") != a {
		f.Fatal("time alone made a new projection")
	}
	b := f.publish("b")
	if b <= a {
		f.Fatalf("pgn %d after %d", b, a)
	}
	// Going back to an old configuration is a new publication.
	if again := f.publish("a"); again <= b {
		f.Fatalf("pgn %d after %d", again, b)
	}
	if least, err := f.MinPGN(f.ctx()); err != nil || least != 0 {
		f.Fatalf("publishing raised min_pgn to %d, %v", least, err)
	}
}

func publishAboveMinPGN(f *fixture) {
	a := f.publish("a")
	far := a + uint64(48*time.Hour/time.Millisecond)
	_, err := f.Revoke(f.ctx(), nil, far)
	f.want(nil, err)
	next := f.publish("a")
	if next < far || f.publish("a") != next {
		f.Fatalf("pgn %d under min_pgn %d", next, far)
	}
}

func publishConcurrently(f *fixture) {
	var wg sync.WaitGroup
	got := make([]uint64, goroutines)
	for i := range goroutines {
		wg.Go(func() {
			p, _ := f.Publish(f.ctx(), map[string]string{"all": "a"})
			got[i] = p.PGN
		})
	}
	wg.Wait()
	if slices.Min(got) != slices.Max(got) || got[0] == 0 {
		f.Fatalf("one digest, numbers %v", got)
	}
}

func revocations(f *fixture) {
	check := func(least uint64, subjects ...string) store.Revocations {
		f.Helper()
		r, err := f.Revocations(f.ctx())
		f.want(nil, err)
		m, err := f.MinPGN(f.ctx())
		f.want(nil, err)
		if !slices.Equal(r.Subjects, subjects) || r.MinPGN != least || m != least {
			f.Fatalf("%v, min_pgn %d and %d, want %v, %d", r.Subjects, r.MinPGN, m, subjects, least)
		}
		return r
	}
	revoke := func(want, pgn uint64, subjects ...string) {
		f.Helper()
		got, err := f.Revoke(f.ctx(), subjects, pgn)
		f.want(nil, err)
		if got != want {
			f.Fatalf("min_pgn %d, want %d", got, want)
		}
	}
	check(0)
	revoke(10, 10, "slot:b", "slot:a", "slot:a")
	first := check(10, "slot:a", "slot:b")
	revoke(10, 5, "principal:c") // a maximum never falls, the set only grows
	revoke(10, 0, "slot:a")
	second := check(10, "principal:c", "slot:a", "slot:b")
	revoke(12, 12)
	third := check(12, "principal:c", "slot:a", "slot:b")
	if first.Version >= second.Version || second.Version >= third.Version {
		f.Fatalf("versions %d, %d, %d", first.Version, second.Version, third.Version)
	}
	revoke(12, 12, "slot:b")
	if same := check(12, "principal:c", "slot:a", "slot:b"); same.Version != third.Version {
		f.Fatal("a repeated revocation is a change")
	}
	third.Subjects[0] = "changed" // the caller's own
	check(12, "principal:c", "slot:a", "slot:b")
	f.want(nil, f.Unrevoke(f.ctx(), []string{"slot:a", "slot:unknown"}))
	check(12, "principal:c", "slot:b")
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprint("lease:", i)
	}
	_, err := f.Revoke(f.ctx(), many, 0)
	f.want(store.ErrInvalid, err)
	check(12, "principal:c", "slot:b")
}

func issue(f *fixture) {
	pgn := f.publish("a")
	g := f.ready("n1", "gw1", "i")
	try := func(want error, change func(*store.Issue)) {
		f.Helper()
		i := store.Issue{Node: "n1", Gateway: "gw1", Generation: g, PGN: pgn, Subjects: []string{"slot:s", "profile:p", "principal:alice"}}
		if change != nil {
			change(&i)
		}
		f.want(want, f.Issue(f.ctx(), i))
	}
	try(nil, nil)
	try(nil, nil) // it remembers nothing
	try(nil, func(i *store.Issue) { i.Subjects = nil })
	try(store.ErrStale, func(i *store.Issue) { i.Generation-- })
	try(store.ErrStale, func(i *store.Issue) { i.Gateway = "gw2" })
	try(store.ErrStale, func(i *store.Issue) { i.Node = "n2" })
	for _, s := range []string{"slot:s", "profile:p", "principal:alice"} {
		_, err := f.Revoke(f.ctx(), []string{s}, 0)
		f.want(nil, err)
		try(store.ErrRevoked, nil)
		try(store.ErrStale, func(i *store.Issue) { i.Generation-- })
		f.want(nil, f.Unrevoke(f.ctx(), []string{s}))
		try(nil, nil)
	}
	_, err := f.Revoke(f.ctx(), []string{"slot:other", "slot:s2", "principal:ali"}, 0)
	f.want(nil, err)
	try(nil, nil)
	_, err = f.Revoke(f.ctx(), nil, pgn+1)
	f.want(nil, err)
	try(store.ErrStaleProjection, nil)
	next := f.publish("a")
	try(nil, func(i *store.Issue) { i.PGN = next })
	f.want(nil, f.Suspect(f.ctx(), "n1", "gw1", g))
	try(store.ErrNotReady, func(i *store.Issue) { i.PGN = next })
	_, err = f.Revoke(f.ctx(), []string{"node:n1"}, 0)
	f.want(nil, err)
	try(store.ErrDisabled, func(i *store.Issue) { i.PGN = next })
}

// full: both records have a bound, and what is refused at it changes nothing.
func full(f *fixture) {
	view := store.Revocations{Version: 1}
	for i := range 10_000 {
		view.Subjects = append(view.Subjects, fmt.Sprint("lease:", i))
		view.Drained = append(view.Drained, fmt.Sprint("n", i))
	}
	_, err := f.Reassert(f.ctx(), store.Assertion{Gateway: "gw1", Revocations: view})
	f.want(nil, err)
	before, err := f.Revocations(f.ctx())
	f.want(nil, err)
	_, err = f.Revoke(f.ctx(), []string{"slot:a"}, 5)
	f.want(store.ErrFull, err)
	f.want(store.ErrFull, f.Drain(f.ctx(), "another", true))
	after, err := f.Revocations(f.ctx())
	f.want(nil, err)
	if len(after.Subjects) != 10_000 || len(after.Drained) != 10_000 || after.MinPGN != 0 || after.Version != before.Version {
		f.Fatalf("%d subjects, %d drained, min_pgn %d", len(after.Subjects), len(after.Drained), after.MinPGN)
	}
	_, err = f.Revoke(f.ctx(), []string{"lease:7"}, 5) // is in it
	f.want(nil, err)
	f.want(nil, f.Drain(f.ctx(), "n7", true))
	f.want(nil, f.Unrevoke(f.ctx(), []string{"lease:7"}))
	_, err = f.Revoke(f.ctx(), []string{"slot:a"}, 0)
	f.want(nil, err)
	f.want(nil, f.Drain(f.ctx(), "n7", false))
	f.want(nil, f.Drain(f.ctx(), "another", true))
}

func revokeConcurrently(f *fixture) {
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for n := range 20 {
				pgn := uint64(i*20 + n)
				least, err := f.Revoke(f.ctx(), []string{fmt.Sprintf("lease:%d-%d", i, n)}, pgn)
				if err != nil || least < pgn {
					f.Errorf("min_pgn %d under %d: %v", least, pgn, err)
				}
			}
		})
	}
	wg.Wait()
	r, err := f.Revocations(f.ctx())
	f.want(nil, err)
	if len(r.Subjects) != goroutines*20 || r.MinPGN != goroutines*20-1 {
		f.Fatalf("%d subjects, min_pgn %d", len(r.Subjects), r.MinPGN)
	}
}

func disabledNode(f *fixture) {
	g, other := f.ready("n1", "gw1", "i"), f.ready("n2", "gw1", "i")
	subjects := []string{store.Subject(store.SubjectNode, "n1")}
	_, err := f.Revoke(f.ctx(), subjects, 0)
	f.want(nil, err)
	f.fence(store.ErrDisabled, "n1", "gw1", g)
	f.want(store.ErrDisabled, f.Ready(f.ctx(), "n1", "gw1", g))
	_, err = f.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i"})
	f.want(store.ErrDisabled, err)
	if r := f.node("n1"); !r.Disabled || len(r.Sessions) != 0 {
		f.Fatalf("record %+v", r)
	}
	b, err := f.Beat(f.ctx(), "gw1", 0, []store.Held{{Node: "n1", Generation: g}})
	f.want(nil, err)
	if b.Verdicts[0] != store.VerdictSuperseded {
		f.Fatalf("verdict %s", b.Verdicts[0])
	}
	f.fence(nil, "n2", "gw1", other)
	f.want(nil, f.Unrevoke(f.ctx(), subjects))
	f.fence(store.ErrStale, "n1", "gw1", g) // it has to come back by itself
	if next := f.ready("n1", "gw1", "i"); next <= g {
		f.Fatalf("generation %d after %d", next, g)
	}
}

func drain(f *fixture) {
	check := func(want bool) {
		f.Helper()
		got, err := f.Draining(f.ctx(), "n1")
		if err != nil || got != want || f.node("n1").Draining != want {
			f.Fatalf("draining %v, %v, want %v", got, err, want)
		}
	}
	check(false)
	for range 2 {
		f.want(nil, f.Drain(f.ctx(), "n1", true)) // before it was ever seen
		check(true)
	}
	g := f.ready("n1", "gw1", "i1")
	check(true)
	f.want(nil, f.Gone(f.ctx(), "n1", "gw1", g))
	f.ready("n1", "gw1", "i2")
	check(true) // the re-dial did not bring it back
	for range 2 {
		f.want(nil, f.Drain(f.ctx(), "n1", false))
		check(false)
	}
}

func token(f *fixture) {
	end := f.clock.Now().Add(time.Hour)
	redeem := func(jti string, uses int) error { return f.RedeemToken(f.ctx(), jti, uses, end) }
	f.want(nil, redeem("a", 1))
	f.want(store.ErrTokenSpent, redeem("a", 1))
	for range 3 {
		f.want(nil, redeem("b", 3))
	}
	f.want(store.ErrTokenSpent, redeem("b", 3))
	f.clock.Advance(time.Hour - time.Millisecond)
	f.want(store.ErrTokenSpent, redeem("a", 1))
	f.want(nil, redeem("c", 2))
	f.clock.Advance(time.Millisecond)
	f.want(store.ErrTokenExpired, redeem("c", 2))
	f.want(store.ErrTokenExpired, redeem("d", 1))
}

// A clock set back a little must not make a spent token good again, although
// the store may have forgotten those that had ended.
func tokenClockBackwards(f *fixture) {
	end := f.clock.Now().Add(time.Minute)
	f.want(nil, f.RedeemToken(f.ctx(), "a", 1, end))
	f.clock.Advance(30 * time.Minute)
	f.want(nil, f.RedeemToken(f.ctx(), "b", 1, f.clock.Now().Add(time.Hour)))
	f.clock.Advance(-30 * time.Minute)
	f.want(store.ErrTokenSpent, f.RedeemToken(f.ctx(), "a", 1, end))
}

func tokenConcurrently(f *fixture) {
	end := f.clock.Now().Add(time.Hour)
	for _, uses := range []int{1, 7} {
		var given atomic.Int64
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				switch err := f.RedeemToken(f.ctx(), fmt.Sprint("t", uses), uses, end); {
				case err == nil:
					given.Add(1)
				case !errors.Is(err, store.ErrTokenSpent):
					f.Error(err)
				}
			})
		}
		wg.Wait()
		if int(given.Load()) != uses {
			f.Fatalf("%d uses given, want %d", given.Load(), uses)
		}
	}
}
