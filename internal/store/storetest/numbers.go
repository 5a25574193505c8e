package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

const goroutines = 16

func epoch(f *fixture) {
	var last uint64
	for i := range 10 {
		if i == 5 {
			f.clock.Advance(-time.Hour)
		}
		e, err := f.Epoch(f.ctx(), "gw1")
		f.want(nil, err)
		if e <= last || i == 0 && e < f.clock.Millis() {
			f.Fatalf("epoch %d after %d", e, last)
		}
		last = e
	}
	_, err := f.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: last - 1})
	f.want(store.ErrStaleEpoch, err)
	_, err = f.Beat(f.ctx(), "gw1", last-1, nil)
	f.want(store.ErrStaleEpoch, err)
	_, err = f.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: last})
	f.want(nil, err)
	if _, err := f.Epoch(f.ctx(), "gw2"); err != nil {
		f.Fatal(err)
	}
	_, err = f.Beat(f.ctx(), "gw1", last, nil) // another gateway's epoch is its own
	f.want(nil, err)
}

func epochEndsSessions(f *fixture) {
	old := f.ready("n1", "gw1", "i")
	other := f.ready("n1", "gw2", "i")
	e, err := f.Epoch(f.ctx(), "gw1")
	f.want(nil, err)
	f.fence(store.ErrStale, "n1", "gw1", old)
	f.fence(nil, "n1", "gw2", other)
	if s := f.node("n1").Sessions; len(s) != 1 || s[0].Gateway != "gw2" {
		f.Fatalf("sessions %+v", s)
	}
	f.clock.Advance(time.Second)
	g, err := f.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: e})
	f.want(nil, err)
	if g <= other {
		f.Fatalf("generation %d after %d", g, other)
	}
}

func generationsRise(f *fixture) {
	var last uint64
	for i := range 50 {
		g := f.register("n1", fmt.Sprint("gw", i%3), fmt.Sprint("i", i%7))
		if g <= last || g < f.clock.Millis() || g >= 1<<53 {
			f.Fatalf("generation %d after %d at %d", g, last, f.clock.Millis())
		}
		last = g
	}
	if r := f.node("n1"); r.Generation != last {
		f.Fatalf("record says %d, last was %d", r.Generation, last)
	}
}

func clockBackwards(f *fixture) {
	first := f.register("n1", "gw1", "i")
	pgn := f.publish("a")
	f.clock.Advance(-48 * time.Hour)
	if next := f.publish("b"); next <= pgn {
		f.Fatalf("pgn %d after %d", next, pgn)
	}
	if g := f.register("n1", "gw1", "i"); g != first+1 {
		f.Fatalf("generation %d after %d", g, first)
	}
	// The node's watermark is two days ahead now, but we gave it ourselves.
	f.clock.Advance(time.Second)
	g, err := f.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Watermark: first + 1})
	f.want(nil, err)
	if g != first+2 {
		f.Fatalf("generation %d after %d", g, first+1)
	}
}

func watermark(f *fixture) {
	day := uint64(24 * time.Hour / time.Millisecond)
	now := f.clock.Millis()
	for i, tt := range []struct {
		watermark uint64
		want      uint64
		err       error
	}{
		{0, now, nil},
		{now - 1, now, nil},
		{now + 1000, now + 1001, nil},
		{now + day, now + day + 1, nil},
		{now + day + 1, 0, store.ErrWatermarkImplausible},
		{1 << 53, 0, store.ErrWatermarkImplausible},
		{1<<64 - 1, 0, store.ErrWatermarkImplausible},
	} {
		node := fmt.Sprint("n", i)
		g, err := f.Register(f.ctx(), store.Registration{Node: node, Gateway: "gw1", Instance: "i", Watermark: tt.watermark})
		f.want(tt.err, err)
		if g != tt.want {
			f.Fatalf("watermark now%+d: generation %d, want %d", int64(tt.watermark-now), g, tt.want)
		}
		if r := f.node(node); (len(r.Sessions) == 0) != (tt.err != nil) || r.Generation != tt.want {
			f.Fatalf("record %+v", r)
		}
	}
}

func rate(f *fixture) {
	try := func(node string) error {
		_, err := f.Register(f.ctx(), store.Registration{Node: node, Gateway: "gw1", Instance: "i"})
		return err
	}
	for range 5 {
		f.want(nil, try("n1"))
	}
	before := f.node("n1")
	f.want(store.ErrRateLimited, try("n1"))
	if after := f.node("n1"); after.Generation != before.Generation {
		f.Fatal("a refused registration took a generation")
	}
	f.want(nil, try("n2")) // per node
	f.clock.Advance(time.Second)
	f.want(nil, try("n1"))
	f.want(store.ErrRateLimited, try("n1"))
	f.clock.Advance(time.Hour)
	for range 5 {
		f.want(nil, try("n1"))
	}
	f.want(store.ErrRateLimited, try("n1"))
}

// A clock that is set back must not lock nodes out until it has caught up.
func rateClockBackwards(f *fixture) {
	try := func() error {
		_, err := f.Register(f.ctx(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i"})
		return err
	}
	for range 5 {
		f.want(nil, try())
	}
	f.clock.Advance(-time.Hour)
	f.want(store.ErrRateLimited, try())
	f.clock.Advance(time.Second)
	f.want(nil, try())
}

func registerOneConcurrently(f *fixture) {
	concurrently(f, func(int) string { return "n1" })
}

func registerManyConcurrently(f *fixture) {
	concurrently(f, func(g int) string { return fmt.Sprint("n", g) })
}

// concurrently registers from many goroutines. Each must see its own numbers
// rise, and no number of one node may be given twice.
func concurrently(f *fixture, nodeOf func(goroutine int) string) {
	type key struct {
		node       string
		generation uint64
	}
	var mu sync.Mutex
	seen := map[key]bool{}
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			r := store.Registration{Node: nodeOf(i), Gateway: fmt.Sprint("gw", i), Instance: "i"}
			var last uint64
			for done := 0; done < f.rounds(); {
				f.clock.Advance(time.Second)
				g, err := f.Register(f.ctx(), r)
				if errors.Is(err, store.ErrRateLimited) {
					continue
				}
				if err != nil || g <= last {
					f.Errorf("generation %d after %d: %v", g, last, err)
					return
				}
				last = g
				done++
				mu.Lock()
				if seen[key{r.Node, g}] {
					f.Errorf("generation %d of %s twice", g, r.Node)
				}
				seen[key{r.Node, g}] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != goroutines*f.rounds() {
		f.Fatalf("%d different generations, want %d", len(seen), goroutines*f.rounds())
	}
}

func invalid(f *fixture) {
	long := strings.Repeat("x", 257)
	for _, bad := range []string{"", long} {
		for _, r := range []store.Registration{
			{Node: bad, Gateway: "gw1", Instance: "i"}, {Node: "n1", Gateway: bad, Instance: "i"}, {Node: "n1", Gateway: "gw1", Instance: bad},
		} {
			_, err := f.Register(f.ctx(), r)
			f.want(store.ErrInvalid, err)
		}
		_, err := f.Epoch(f.ctx(), bad)
		f.want(store.ErrInvalid, err)
		_, err = f.Beat(f.ctx(), bad, 1, nil)
		f.want(store.ErrInvalid, err)
		_, err = f.Node(f.ctx(), bad)
		f.want(store.ErrInvalid, err)
		_, err = f.Revoke(f.ctx(), []string{"slot:ok", bad}, 1)
		f.want(store.ErrInvalid, err)
		f.want(store.ErrInvalid, f.Unrevoke(f.ctx(), []string{bad}))
		f.want(store.ErrInvalid, f.Drain(f.ctx(), bad, true))
		f.want(store.ErrInvalid, f.RedeemToken(f.ctx(), bad, 1, f.clock.Now().Add(time.Hour)))
	}
	_, err := f.Revoke(f.ctx(), nil, 1<<53)
	f.want(store.ErrInvalid, err)
	for _, uses := range []int{-1, 0, 1001} {
		f.want(store.ErrInvalid, f.RedeemToken(f.ctx(), "t", uses, f.clock.Now().Add(time.Hour)))
	}
	if r, err := f.Revocations(f.ctx()); err != nil || len(r.Subjects) != 0 || r.MinPGN != 0 {
		f.Fatalf("a refused call left %+v, %v", r, err)
	}
}
