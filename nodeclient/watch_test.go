package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

func TestInventoryFollowsTheProvider(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("a", "b")
	_, _, _ = g.node(g.config(p))
	if tg, n := g.target("ollama"); n != 2 || !tg.Reachable || tg.Version != "0.32.15" {
		t.Fatalf("%d models, %v", n, tg)
	}
	time.Sleep(300 * time.Millisecond)
	said := g.said()
	time.Sleep(2500 * time.Millisecond)
	if g.said() != said {
		t.Error("said something though nothing changed")
	}
	p.setModels("b", "c")
	eventually(t, 3*time.Second, "the change", func() bool {
		return g.holds("ollama", "c") && !g.holds("ollama", "a")
	})
	tg, _ := g.target("ollama")
	if tg.Reset_ || len(tg.Models) != 1 || len(tg.Removed) != 1 || tg.Loaded != nil {
		t.Errorf("not a delta: %v", tg)
	}
}

func TestReachability(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("a")
	_, s, _ := g.node(g.config(p))
	reachable := func() bool { tg, _ := g.target("ollama"); return tg.GetReachable() }

	// The provider stops: a run notices at once.
	p.set(func(p *provider) {
		p.connect = fmt.Errorf("dial: %w: %w", adapter.ErrNotSent, syscall.ECONNREFUSED)
		p.probe = func(context.Context) error { return p.connect }
	})
	if res := ask(t, s, nil); res.refused.GetCode() != tunnel.CodeProviderUnreached {
		t.Fatalf("%v", res.refused)
	}
	eventually(t, time.Second, "unreachable", func() bool { return !reachable() })
	p.set(func(p *provider) { p.connect, p.probe = nil, nil })
	eventually(t, 2*time.Second, "reachable again", reachable)
	if !g.holds("ollama", "a") {
		t.Error("its models are lost")
	}

	// It stops while nobody asks.
	p.set(func(p *provider) {
		p.probe = func(context.Context) error { return fmt.Errorf("%w: refused", adapter.ErrNotSent) }
	})
	eventually(t, 3*time.Second, "unreachable by a probe", func() bool { return !reachable() })
}

func TestSlowProbeOfABusyProvider(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("a")
	gate := make(chan struct{})
	p.do = gated(gate)
	c, s, _ := g.node(g.config(p))
	r := open(t, s, nil)
	_ = r.EndBody()
	eventually(t, 5*time.Second, "the run", func() bool { return c.Status().Runs == 1 })
	target := c.targets[0]
	slow := fmt.Errorf("tags: %w", context.DeadlineExceeded)
	for range 5 {
		target.probing.Lock()
		target.probeFailed(slow)
		target.probing.Unlock()
	}
	if !target.view().reachable {
		t.Error("a busy provider is taken for a dead one")
	}
	// While a run goes on it may fail as often as it likes; while all are silent it is given up.
	target.probing.Lock()
	for i := range 3 * hungFailures {
		target.heard.Store(time.Now().UnixNano())
		target.probeFailed(slow)
		if !target.view().reachable {
			t.Errorf("a provider that answers a run is given up after %d", i)
		}
	}
	target.heard.Store(time.Now().Add(-2 * probeTimeout).UnixNano())
	for target.failures < hungFailures-1 {
		target.probeFailed(slow)
	}
	if !target.view().reachable {
		t.Error("a provider that loads a model is given up")
	}
	target.probeFailed(slow)
	if target.view().reachable {
		t.Error("a hung provider with runs is kept")
	}
	target.probing.Unlock()
	target.probe(t.Context(), 0)
	if !target.view().reachable {
		t.Error("a provider that answers again is not taken back")
	}
	close(gate)
	collect(r)
	eventually(t, 5*time.Second, "idle", func() bool { return target.runs.Load() == 0 })
	target.probing.Lock()
	defer target.probing.Unlock()
	target.failures = 0
	for i := range probeFailures {
		if !target.view().reachable {
			t.Errorf("given up after %d", i)
		}
		target.probeFailed(slow)
	}
	if target.view().reachable {
		t.Error("an idle provider that does not answer stays")
	}
}

func TestUnreachableProviderIsOffered(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("a")
	p.probe = func(context.Context) error { return adapter.ErrNotSent }
	_, _, _ = g.node(g.config(p))
	if tg, n := g.target("ollama"); tg == nil || tg.Reachable || n != 0 {
		t.Fatalf("%v", tg)
	}
	p.set(func(p *provider) { p.probe = nil })
	eventually(t, 3*time.Second, "its models", func() bool { tg, n := g.target("ollama"); return tg.Reachable && n == 1 })
}

func TestLoadedIsFreshAfterARun(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("a")
	_, s, _ := g.node(g.config(p))
	time.Sleep(100 * time.Millisecond)
	p.set(func(p *provider) { p.inv.Loaded = []adapter.Loaded{{Name: "a", JSON: []byte(`{"name":"a"}`)}} })
	ask(t, s, nil)
	eventually(t, time.Second, "the loaded model", func() bool { tg, _ := g.target("ollama"); return len(tg.GetLoaded().GetModels()) == 1 })
}

func TestNotFoundLooksAgain(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("a", "gone")
	p.do = answers(404, `{"error":"model 'gone' not found"}`)
	_, s, _ := g.node(g.config(p))
	time.Sleep(100 * time.Millisecond)
	p.setModels("a")
	ask(t, s, nil)
	eventually(t, 500*time.Millisecond, "the correction", func() bool { return !g.holds("ollama", "gone") })
}

func TestDemo(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("a")
	p.probe = func(context.Context) error { return adapter.ErrNotSent }
	cfg := g.config(p)
	cfg.Demo = DemoAuto
	c, s, _ := g.node(cfg)
	if _, n := g.target("demo"); n != 1 {
		t.Fatalf("the demo holds %d models", n)
	}
	demo := func(o *tunnel.RunOpen) {
		o.Target, o.Model = "demo", "demo"
		o.Body, o.BodyLength = tunnel.BodyLength, uint64(len(demoBody))
	}
	say := func() result {
		r := open(t, s, demo)
		_ = r.WriteBody([]byte(demoBody))
		_ = r.EndBody()
		return collect(r)
	}
	if res := say(); res.terminal.GetOutcome() != tunnel.Completed || !strings.Contains(res.body, "done") {
		t.Errorf("%+v", res)
	}
	p.set(func(p *provider) { p.probe = nil })
	eventually(t, 3*time.Second, "the demo withdrawn", func() bool { tg, _ := g.target("demo"); return tg.GetGone() })
	if res := say(); res.refused.GetCode() != tunnel.CodeUnknownTarget {
		t.Errorf("%+v", res)
	}
	p.set(func(p *provider) { p.probe = func(context.Context) error { return adapter.ErrNotSent } })
	time.Sleep(1500 * time.Millisecond)
	if len(c.Status().Targets) != 1 {
		t.Error("the demo came back")
	}
}

const demoBody = `{"model":"demo","messages":[{"role":"user","content":"hi"}]}`

func TestRefusedConnectIsNotATimeout(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{syscall.ECONNREFUSED, true}, {syscall.ECONNRESET, true}, {fmt.Errorf("x: %w", adapter.ErrNotSent), true},
		{context.DeadlineExceeded, false}, {fmt.Errorf("%w: %w", adapter.ErrNotSent, context.DeadlineExceeded), false}, {errors.New("status 500"), false},
	} {
		if refusedConnect(tc.err) != tc.want {
			t.Errorf("%v", tc.err)
		}
	}
}

func TestDeltas(t *testing.T) {
	t.Parallel()
	c := &Client{}
	tg := &target{client: c, name: "ollama", kind: "ollama", adapter: newProvider(), credits: newCredits(1, 3)}
	models := func(n, size int) (out []adapter.Model) {
		for i := range n {
			name := fmt.Sprintf("m%04d", i)
			out = append(out, adapter.Model{Name: name, JSON: fmt.Appendf(nil, `{"name":%q,"x":%q}`, name, strings.Repeat("x", size))})
		}
		return out
	}
	put := func(s snapshot) { tg.now.Store(&s) }
	known := told{}
	next := func(limits *tunnel.Limits) (out []*tunnel.Target, frames int) {
		for _, f := range known.next([]*target{tg}, limits, nil) {
			frames++
			size := 0
			for _, m := range f {
				for _, e := range m.Models {
					size += len(e.Name) + len(e.Json) + 8
				}
				for _, n := range m.Removed {
					size += len(n) + 4
				}
				out = append(out, m)
			}
			if size > 220<<10 {
				t.Errorf("a frame of %d bytes", size)
			}
		}
		return out, frames
	}
	put(snapshot{reachable: true, Inventory: adapter.Inventory{Models: models(1000, 600), Version: "1"}})
	ms, frames := next(nil)
	total := 0
	for i, m := range ms {
		total += len(m.Models)
		if m.Reset_ != (i == 0) || !m.Reachable || m.Locked || m.Credits == nil || m.Origin != "http://provider.test:1" {
			t.Errorf("message %d: %v", i, &tunnel.Target{Reset_: m.Reset_, Reachable: m.Reachable, Locked: m.Locked, Origin: m.Origin})
		}
	}
	if total != 1000 || frames < 3 {
		t.Errorf("%d models in %d frames", total, frames)
	}
	if ms, _ := next(nil); len(ms) != 0 {
		t.Error("told twice")
	}
	put(snapshot{reachable: true, Inventory: adapter.Inventory{Version: "1"}})
	if ms, _ := next(nil); len(ms[0].Removed) != 1000 {
		t.Errorf("removed %d", len(ms[0].Removed))
	}
	put(snapshot{reachable: true, Inventory: adapter.Inventory{Version: strings.Repeat("x", 511) + "é"}})
	if ms, _ := next(nil); ms[0].Version != strings.Repeat("x", 511) {
		t.Errorf("a cut version: %q", ms[0].Version)
	}
	put(snapshot{reachable: true, locked: true})
	if ms, _ := next(nil); len(ms) != 1 || !ms[0].Locked || !ms[0].Reachable {
		t.Errorf("locked: %v", ms)
	}
	put(snapshot{locked: true})
	if ms, _ := next(nil); len(ms) != 1 || !ms[0].Locked || ms[0].Reachable {
		t.Errorf("down: %v", ms)
	}
	put(snapshot{reachable: true, Inventory: adapter.Inventory{Models: models(2, 1)}})
	if ms, _ := next(nil); len(ms) != 1 || ms[0].Locked || !ms[0].Reset_ || len(ms[0].Models) != 2 {
		t.Errorf("open again: %v", ms)
	}
	put(snapshot{withdrawn: true})
	if ms, _ := next(nil); len(ms) != 1 || !ms[0].Gone || ms[0].Origin == "" {
		t.Errorf("%v", ms)
	}
	put(snapshot{reachable: true, Inventory: adapter.Inventory{Models: models(50, 60<<10)}})
	ms, frames = next(&tunnel.Limits{Models: 30})
	total = 0
	for _, m := range ms {
		total += len(m.Models)
	}
	if total != 30 || frames < 10 || !ms[0].Reset_ {
		t.Errorf("%d models in %d frames", total, frames)
	}
	known = told{}
	ms, _ = next(&tunnel.Limits{InventoryBytes: 130 << 10})
	if len(ms[0].Models)+len(ms[len(ms)-1].Models) != 2 && len(ms[0].Models) != 2 {
		t.Errorf("by bytes: %d", len(ms[0].Models))
	}
}
