package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// cloud is a provider of adapter openai.
type cloud struct{ *provider }

func (cloud) Kind() string   { return "openai" }
func (cloud) Origin() string { return "https://cloud.test:443" }

func TestLockedTarget(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := cloud{newProvider("a", "b")}
	p.name = "cloud"
	locked := func(context.Context) error { return fmt.Errorf("status 401: %w", adapter.ErrUnauthorized) }
	p.probe = locked
	cfg := g.config(p.provider)
	core, logs := observer.New(zap.InfoLevel)
	cfg.Targets[0].Adapter, cfg.Log, cfg.Demo = p, zap.New(core), DemoAuto
	c, _, _ := g.node(cfg)
	tg, n := g.target("cloud")
	if !tg.GetReachable() || !tg.GetLocked() || n != 0 || tg.Origin != "https://cloud.test:443" || tg.Adapter != "openai" {
		t.Fatalf("%d models, %v", n, tg)
	}
	if s := c.Status().Targets[0]; !s.Reachable || !s.Locked || len(s.Models) != 0 {
		t.Errorf("status %+v", s)
	}
	if tg, _ := g.target("demo"); tg != nil && !tg.Gone {
		t.Errorf("the demo stands in for a provider that is there: %v", tg)
	}
	// Another key-less probe says nothing new; then the lock goes, and comes back.
	again := func() { c.targets[0].probe(t.Context(), 0) }
	again()
	if n := logs.FilterMessage("target asks for a credential").Len(); n != 1 {
		t.Errorf("said %d times that it asks for a credential", n)
	}
	p.set(func(p *provider) { p.probe = nil })
	again()
	eventually(t, 5*time.Second, "its models", func() bool { tg, n := g.target("cloud"); return n == 2 && tg.Reachable && !tg.Locked })
	p.set(func(p *provider) { p.probe = locked })
	again()
	eventually(t, 5*time.Second, "the lock", func() bool { tg, n := g.target("cloud"); return n == 0 && tg.Reachable && tg.Locked })
	// A provider that is down has not said that it would list its models.
	p.set(func(p *provider) { p.probe = func(context.Context) error { return adapter.ErrNotSent } })
	again()
	eventually(t, 5*time.Second, "that it is down", func() bool { tg, _ := g.target("cloud"); return !tg.Reachable && tg.Locked })
}

// watched runs the watch of one target and notes when it probes.
type watched struct {
	*target
	p     *provider
	start time.Time
	mu    sync.Mutex
	at    []time.Duration // guarded by mu
	err   error           // guarded by mu; of the next probes
}

func watchOne(t *testing.T, kind func(*provider) adapter.Adapter) *watched {
	t.Helper()
	w := &watched{p: newProvider("a"), start: time.Now()}
	w.p.probe = func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.at = append(w.at, time.Since(w.start))
		return w.err
	}
	c := &Client{log: zap.NewNop()}
	if err := c.addTarget(Target{Adapter: kind(w.p)}, false); err != nil {
		t.Fatal(err)
	}
	w.target = c.targets[0]
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.watch(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

func (w *watched) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// probes lets d pass and returns the seconds at which there were probes, since the watch began.
func (w *watched) probes(d time.Duration) (seconds []float64) {
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.at {
		seconds = append(seconds, at.Seconds())
	}
	w.at = nil
	return seconds
}

func asCloud(p *provider) adapter.Adapter  { return cloud{p} }
func asOllama(p *provider) adapter.Adapter { return p }

func TestACloudIsAskedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watchOne(t, asCloud)
		expect := func(what string, d time.Duration, want ...float64) {
			t.Helper()
			if got := w.probes(d); !slices.Equal(got, want) {
				t.Errorf("%s: probes at %v s, want %v", what, got, want)
			}
		}
		expect("idle", 100*time.Second, 1, 31, 61, 91)
		poke(w.soon) // a run has ended
		expect("after a run", 20*time.Second)
		for range 15 { // callers ask for a model that is not there, once a second
			poke(w.target.at)
			time.Sleep(time.Second)
		}
		expect("not found", 0, 120, 130)
		w.fail(errors.New("status 500"))
		expect("trouble", 35*time.Second, 164, 165, 167)
		if w.view().reachable {
			t.Error("three failures, and still reachable")
		}
		expect("down", 100*time.Second, 171, 179, 195, 225, 255)
		w.fail(nil)
		expect("back", 60*time.Second, 285, 315)
		w.down(adapter.ErrNotSent) // a run found nobody
		expect("down by a run", 10*time.Second, 331)
	})
}

func TestAnOllamaIsAskedOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watchOne(t, asOllama)
		if got := w.probes(6 * time.Second); !slices.Equal(got, []float64{1, 3, 5}) {
			t.Errorf("idle: probes at %v s", got)
		}
		w.fail(adapter.ErrNotSent)
		if got := w.probes(4500 * time.Millisecond); !slices.Equal(got, []float64{7, 8, 9, 10}) {
			t.Errorf("down: probes at %v s", got)
		}
		w.fail(nil)
		w.probes(time.Second)
		poke(w.soon)
		if got := w.probes(2 * time.Second); len(got) < 5 {
			t.Errorf("after a run: probes at %v s", got)
		}
	})
}

func TestUnknownAdapter(t *testing.T) {
	t.Parallel()
	if err := (&Client{}).addTarget(Target{Adapter: strange{newProvider()}}, false); err == nil {
		t.Error("a target of adapter strange is taken")
	}
}

type strange struct{ *provider }

func (strange) Kind() string { return "strange" }
