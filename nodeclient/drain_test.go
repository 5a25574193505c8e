package nodeclient

import (
	"context"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

func TestDrainFinishesOpenRuns(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("tiny")
	gate := make(chan struct{})
	p.do = gated(gate)
	c, s, stop := g.node(g.config(p))
	r := open(t, s, nil)
	_ = r.EndBody()
	eventually(t, 5*time.Second, "the run", func() bool { return c.Status().Runs == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	eventually(t, 5*time.Second, "draining", func() bool { return s.State() == tunnel.StateDraining })
	if late, err := s.Lane().OpenRun(context.Background(), &tunnel.RunOpen{Run: "late", Attempt: 1, Generation: s.Generation(), Kind: tunnel.KindTunnel}, nil, nil, nil); err == nil {
		if res := collect(late); res.refused.GetCode() != tunnel.CodeDraining {
			t.Errorf("a run after the drain: %+v", res)
		}
	}
	select {
	case <-stopped:
		t.Fatal("stopped with an open run")
	case <-time.After(800 * time.Millisecond):
	}
	close(gate)
	if res := collect(r); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("%v", res.terminal)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestGraceEnds(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"the grace period": false, "a second signal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			p := newProvider("tiny")
			p.do = hangs
			cfg := g.config(p)
			if cfg.Grace = 300 * time.Millisecond; cut {
				cfg.Grace = time.Minute
			}
			c, s, stop := g.node(cfg)
			r := open(t, s, nil)
			_ = r.EndBody()
			eventually(t, 5*time.Second, "the run", func() bool { return c.Status().Runs == 1 })
			start := time.Now()
			if cut {
				time.AfterFunc(200*time.Millisecond, c.Close)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("took %s", d)
			}
			if res := collect(r); res.terminal.GetOutcome() == tunnel.Completed {
				t.Errorf("%v", res.terminal)
			}
		})
	}
}

func TestGatewayLeaves(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("tiny")
	gate := make(chan struct{})
	p.do = gated(gate)
	c, s, _ := g.node(g.config(p))
	if err := s.Drain("the operator", false); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if c.Status().Gateways[0].State != stateReady {
		t.Error("an operator's drain ended the session")
	}
	r := open(t, s, nil)
	_ = r.EndBody()
	eventually(t, 5*time.Second, "the run", func() bool { return c.Status().Runs == 1 })
	if err := s.Drain("restart", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "draining", func() bool { return s.State() == tunnel.StateDraining })
	close(gate)
	if res := collect(r); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("%v", res.terminal)
	}
	if next := g.nextReady(5 * time.Second); next.Generation() <= s.Generation() {
		t.Error("not a new session")
	}
}

// shortLived issues leaves whose time is nearly over.
func shortLived(t *testing.T, g *gateway, node string, left time.Duration) *pki.Identity {
	t.Helper()
	past := time.Now().Add(left - 30*24*time.Hour)
	a := pki.NewAuthority("test.local", g.ca.Chain, func() time.Time { return past })
	id, err := a.NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: node})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestRenewsAndRedialsWhenIdle(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	cfg := g.config(newProvider("tiny"))
	id := new(memory)
	old := shortLived(t, g, "n1", time.Hour)
	id.id.Store(old)
	cfg.Identity = id
	_, first, _ := g.node(cfg)
	second := g.nextReady(10 * time.Second)
	now, _ := id.Current(t.Context())
	if !now.NotAfter().After(old.NotAfter()) || second.Generation() <= first.Generation() {
		t.Errorf("until %s, was %s", now.NotAfter(), old.NotAfter())
	}
	if res := ask(t, second, nil); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("%+v", res)
	}
}

func TestSessionEndsWithItsLeaf(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.set(func(g *gateway) {
		g.issue = func(pki.ID, []byte) ([][]byte, error) { return nil, &tunnel.EnrollError{Code: "internal"} }
	})
	cfg := g.config(newProvider("tiny"))
	id := new(memory)
	id.id.Store(shortLived(t, g, "n1", 4*time.Second))
	cfg.Identity = id
	p := cfg.Targets[0].Adapter.(*provider)
	p.do = func(ctx context.Context, r *adapter.Request) (*adapter.Response, error) { return hangs(ctx, r) }
	_, first, _ := g.node(cfg)
	r := open(t, first, nil)
	_ = r.EndBody()
	start := time.Now()
	if res := collect(r); res.terminal.GetOutcome() == tunnel.Completed || time.Since(start) > 6*time.Second {
		t.Errorf("%v after %s", res.terminal, time.Since(start))
	}
	// The expired leaf is renewed over enrolment, by proof of its key.
	g.nextReady(10 * time.Second)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.proved != 1 {
		t.Errorf("renewed %d times", g.proved)
	}
}
