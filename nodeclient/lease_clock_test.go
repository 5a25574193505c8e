package nodeclient

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/lease"
)

// watchmaker is a node's boot clock and a gateway's clock, side by side.
type watchmaker struct {
	g       gatewayTime
	boot    time.Duration
	gateway time.Time
}

func newWatchmaker() *watchmaker {
	w := &watchmaker{boot: 1000 * time.Hour, gateway: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)}
	w.g.now = func() time.Duration { return w.boot }
	return w
}

func (w *watchmaker) pass(d time.Duration) { w.boot, w.gateway = w.boot+d, w.gateway.Add(d) }

// beat is one that answers what was sent before "out and back", and was late on its way here.
func (w *watchmaker) beat(out, late time.Duration) {
	w.g.sample(w.gateway.Add(-late).UnixNano(), w.boot, out+late)
}

// off is how far the node's idea of the gateway's time is ahead of it.
func (w *watchmaker) off(t *testing.T) time.Duration {
	t.Helper()
	now, ok := w.g.Now()
	if !ok {
		t.Fatal("the time is not known")
	}
	return now.Sub(w.gateway)
}

func TestGatewayTime(t *testing.T) {
	t.Parallel()
	w := newWatchmaker()
	if _, ok := w.g.Now(); ok {
		t.Error("a time out of nowhere")
	}
	w.beat(time.Millisecond, 0)
	if off := w.off(t); off != 0 {
		t.Errorf("off by %s", off)
	}
	for range 100 { // late beats change nothing
		w.pass(time.Second)
		w.beat(time.Second, 900*time.Millisecond)
		if off := w.off(t); off != 0 {
			t.Fatalf("off by %s after a late beat", off)
		}
	}
	w.pass(maxUnsynced)
	if off := w.off(t); off != 0 {
		t.Errorf("off by %s", off)
	}
	w.pass(1)
	if _, ok := w.g.Now(); ok {
		t.Error("a time that was not heard of for more than 90 s")
	}
	w.beat(time.Second, time.Second+1)
	if _, ok := w.g.Now(); ok {
		t.Error("a beat that took too long brought it back")
	}
	w.beat(0, time.Second)
	if off := w.off(t); off != 0 && off != -time.Second {
		t.Errorf("off by %s", off)
	}
}

// A gateway's clock that was set is believed with the next beat: before the gateway lends again.
func TestGatewayTimeIsSet(t *testing.T) {
	t.Parallel()
	// A gateway counts its clock as set from 2 s on.
	for _, by := range []time.Duration{time.Hour, -time.Hour, 2*time.Second + 1, -2*time.Second - 1, -20 * 365 * 24 * time.Hour} {
		for _, late := range []time.Duration{0, time.Millisecond, time.Second, 2 * time.Second} {
			w := newWatchmaker()
			for range 20 {
				w.pass(time.Second)
				w.beat(maxDoubt-late, late)
			}
			w.gateway = w.gateway.Add(by)
			w.pass(time.Second)
			w.beat(maxDoubt-late, late)
			if off := w.off(t); off > 0 || off < -maxDoubt {
				t.Errorf("set by %s, beats %s late: off by %s", by, late, off)
			}
		}
	}
}

// Whoever holds up the packets, from the first one or more and more, cannot make a lease live longer: the node's idea of the time lags by no more than maxDoubt,
// or there is none.
func TestGatewayTimeCannotBeHeldUp(t *testing.T) {
	t.Parallel()
	for name, lateness := range map[string]func(beat int) time.Duration{
		"from the first":      func(int) time.Duration { return 30 * time.Second },
		"more and more":       func(n int) time.Duration { return time.Duration(n) * 200 * time.Millisecond },
		"a little more":       func(n int) time.Duration { return time.Duration(n) * 10 * time.Millisecond },
		"all at once, later":  func(n int) time.Duration { return time.Duration(n/20) * 9 * time.Second },
		"never in time again": func(n int) time.Duration { return time.Duration(min(n, 10)) * 400 * time.Millisecond },
	} {
		w := newWatchmaker()
		known := 0
		for n := range 300 {
			w.pass(time.Second)
			w.beat(500*time.Millisecond, lateness(n))
			now, ok := w.g.Now()
			if !ok {
				continue
			}
			known++
			if off := now.Sub(w.gateway); off > 0 || off < -maxDoubt {
				t.Fatalf("%s, beat %d: off by %s", name, n, off)
			}
		}
		if name == "a little more" && known < 200 {
			t.Errorf("%s: known only %d times", name, known)
		}
	}
}

// still is a boot clock that a test moves.
type still struct{ by atomic.Int64 }

func (s *still) now() time.Duration { return bootTime() + time.Duration(s.by.Load()) }

// A lease that expires while its provider is being connected is not opened.
func TestExpiredWhileConnecting(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	var clock still
	b := l.borrow(p, func(v *vault) { v.clock.now = clock.now })
	k := l.keep(b)
	p.change(func(p *purse) {
		p.dial = func(context.Context) error {
			b.deaf.Store(true)
			clock.by.Add(int64(lease.TTL + maxDoubt))
			return nil
		}
	})
	refused(t, "expired meanwhile", p, collect(k.open()), lease.CodeExpired)
	p.change(func(p *purse) { p.dial = nil })
	refused(t, "expired", p, collect(k.open()), lease.CodeExpired)
	l.ahead.Store(int64(lease.TTL + maxDoubt)) // the gateway's time is what the node takes it for
	paid(t, "a fresh one", p, collect(l.lend(b.s, lent{})), 1)
}

// A node that has not heard its gateway's time for 90 s opens nothing, and does again with the next beat.
func TestClockUnavailable(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	var clock still
	b := l.borrow(p, func(v *vault) { v.clock.now = clock.now })
	k := l.keep(b)
	b.deaf.Store(true)
	clock.by.Store(int64(maxUnsynced + time.Minute))
	l.ahead.Store(int64(maxUnsynced + time.Minute)) // so that it is not for its age that the lease is refused
	refused(t, "unheard of", p, collect(k.open()), lease.CodeClockUnavailable)
	b.v.clock.sample(l.now().UnixNano(), clock.now(), 0)
	paid(t, "heard again", p, collect(k.open()), 1)
}
