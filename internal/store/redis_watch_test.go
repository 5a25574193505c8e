package store_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// heard waits for a message, and for the change that it is about.
func heard(t *testing.T, w <-chan struct{}, r *store.Redis, subject string, within time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	for end := time.After(within); ; {
		select {
		case _, open := <-w:
			if !open {
				t.Fatal("the watch has ended")
			}
		case <-end:
			t.Fatalf("nothing heard of %s in %v", subject, within)
		}
		if v, err := r.Revocations(t.Context()); err == nil {
			for _, s := range v.Subjects {
				if s == subject {
					return time.Since(begin)
				}
			}
		}
	}
}

// What one gateway revokes another hears of at once, or, if it was cut off, when it is back.
func TestRedisWatch(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := startProxy(t, s.addr)
	here, there := open(t, p.url(), "fw", "gw1"), open(t, s.url(), "fw", "gw2").start()
	w := here.r.Watch(t.Context())
	revoke := func(subject string) {
		t.Helper()
		there.insist(func(ctx context.Context) error { _, err := there.r.Revoke(ctx, []string{subject}, 0); return err })
	}
	revoke("slot:first")
	heard(t, w, here.r, "slot:first", 10*time.Second)
	fastest := time.Hour
	for i := range 10 {
		subject := fmt.Sprint("slot:", i)
		revoke(subject)
		fastest = min(fastest, heard(t, w, here.r, subject, 10*time.Second))
	}
	if fastest > time.Second {
		t.Errorf("heard after %v", fastest)
	}
	t.Logf("heard after %v", fastest)
	for i, m := range []mode{refuse, swallow, silence} {
		before := p.accepted()
		p.set(m)
		subject := fmt.Sprint("slot:cut-off-", i)
		revoke(subject)
		eventually(t, 20*time.Second, "the subscription is found dead", func() bool { return p.accepted() > before })
		p.set(pass)
		heard(t, w, here.r, subject, 10*time.Second)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends := here.r.Watch(ctx)
	cancel()
	for open := true; open; {
		select {
		case _, open = <-ends:
		case <-time.After(10 * time.Second):
			t.Fatal("the watch does not end")
		}
	}
}

// Close ends every goroutine and connection, in whatever state the store is. Not parallel: it counts.
func TestRedisClosesEverything(t *testing.T) {
	s := startRedis(t)
	for _, broken := range []bool{false, true} {
		p := startProxy(t, s.addr)
		before := runtime.NumGoroutine()
		r, err := store.NewRedis(store.RedisOptions{URL: p.url(), Prefix: namespace()})
		must(t, err)
		w := r.Watch(t.Context())
		eventually(t, 10*time.Second, "the store is used", func() bool { _, err := r.Node(t.Context(), "n1"); return err == nil })
		<-w // subscribed
		if broken {
			p.set(swallow)
			for range 4 {
				if _, err := r.Node(t.Context(), "n1"); err == nil {
					t.Error("answered through a black hole")
				}
			}
		}
		begin := time.Now()
		must(t, r.Close())
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("closing took %v", took)
		}
		must(t, r.Close())
		for range w {
		}
		if _, err := r.Node(t.Context(), "n1"); err == nil {
			t.Error("answered after Close")
		}
		eventually(t, 10*time.Second, "everything has ended", func() bool { return p.open() == 0 && runtime.NumGoroutine() <= before })
	}
}
