package nodeclient

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

// names is a resolver whose answers the test changes.
type names struct {
	mu sync.Mutex
	of map[string][]netip.Addr // guarded by mu
}

func (n *names) set(host string, ips ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = make(map[string][]netip.Addr)
	}
	n.of[host] = nil
	for _, ip := range ips {
		n.of[host] = append(n.of[host], netip.MustParseAddr(ip))
	}
}

func (n *names) lookup(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.of[host]) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return slices.Clone(n.of[host]), nil
}

// quick makes a client ask n, and often.
func (n *names) quick(c *Client) { c.lookup, c.resolveEvery = n.lookup, 20*time.Millisecond }

// fleet is gateways of one CA at one port of several loopback addresses, 127.0.0.1 and on.
func fleet(t *testing.T, count int) (gs []*gateway, port string) {
	t.Helper()
	if pc, err := net.ListenPacket("udp", "127.0.0.2:0"); err != nil {
		t.Skip("one loopback address only: ", err)
	} else {
		_ = pc.Close()
	}
	gs = []*gateway{newGateway(t)}
	_, port, _ = net.SplitHostPort(gs[0].addr)
	for i := 2; i <= count; i++ {
		n := string(rune('0' + i))
		gs = append(gs, newGatewayAt(t, gs[0].ca, "gw"+n, "127.0.0."+n+":"+port))
	}
	return gs, port
}

// rows returns the states of the sessions by gateway; those without one stand under the empty name.
func rows(c *Client) map[string]string {
	out := make(map[string]string)
	for _, g := range c.Status().Gateways {
		out[g.Gateway] = g.State
	}
	return out
}

func works(t *testing.T, s *tunnel.Session) {
	t.Helper()
	if res := ask(t, s, nil); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("%s: refused %v, terminal %v", s.Lane().Session().Node(), res.refused, res.terminal)
	}
}

func TestGatewaysBehindOneName(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 3)
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	cfg := gs[0].config(newProvider("tiny"))
	cfg.Gateways = []string{"gw.test:" + port}
	c, _ := launch(t, cfg, dns.quick)
	one, two := gs[0].nextReady(10*time.Second), gs[1].nextReady(10*time.Second)
	works(t, one)
	works(t, two)
	eventually(t, 5*time.Second, "two ready sessions", func() bool {
		st := c.Status().Gateways
		return len(st) == 2 && rows(c)["gw1"] == stateReady && rows(c)["gw2"] == stateReady && st[0].Addr == st[1].Addr && st[0].Remote != st[1].Remote
	})
	if n := len(gs[0].registers()) + len(gs[1].registers()); n != 2 {
		t.Errorf("registered %d times", n)
	}

	// One dies; the other serves. It comes back at its address.
	_ = gs[0].listener().Close(tunnel.CloseInternal, "crash")
	eventually(t, 5*time.Second, "the loss", func() bool { return rows(c)["gw1"] == "" })
	works(t, two)
	if !c.Status().Ready() {
		t.Error("not ready with the other one")
	}
	gs[0].start(gs[0].addr)
	works(t, gs[0].nextReady(10*time.Second))

	// One joins.
	dns.set("gw.test", "127.0.0.1", "127.0.0.2", "127.0.0.3")
	works(t, gs[2].nextReady(10*time.Second))

	// One is taken out of the name: its session lives, and is not dialled again.
	dns.set("gw.test", "127.0.0.1", "127.0.0.3")
	time.Sleep(100 * time.Millisecond) // five resolutions
	works(t, two)
	before := len(gs[1].registers())
	two.Close(tunnel.CloseNone, "over")
	eventually(t, 5*time.Second, "two rows", func() bool {
		r := rows(c)
		return len(c.Status().Gateways) == 2 && r["gw1"] == stateReady && r["gw3"] == stateReady
	})
	time.Sleep(300 * time.Millisecond)
	if n := len(gs[1].registers()); n != before {
		t.Errorf("dialled again: registered %d times, before %d", n, before)
	}
}

func TestOneGatewayTwoAddresses(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 1)
	g := gs[0]
	other, _ := g.listen("127.0.0.2:" + port)
	t.Cleanup(func() { _ = other.Close(tunnel.CloseNone, "test over") })
	for name, gateways := range map[string][]string{"one name": {"gw.test:" + port}, "two names": {"a.test:" + port, "b.test:" + port}} {
		t.Run(name, func(t *testing.T) {
			var dns names
			dns.set("gw.test", "127.0.0.1", "127.0.0.2")
			dns.set("a.test", "127.0.0.1")
			dns.set("b.test", "127.0.0.2")
			core, logs := observer.New(zapcore.InfoLevel)
			cfg := g.config(newProvider("tiny"))
			cfg.Gateways, cfg.Log = gateways, zap.New(core)
			before := len(g.registers())
			c, stop := launch(t, cfg, dns.quick)
			s := g.nextReady(10 * time.Second)
			ready := func() (n int, remote string) {
				for _, g := range c.Status().Gateways {
					if g.State == stateReady {
						n, remote = n+1, g.Remote
					}
				}
				return n, remote
			}
			settled := func() bool {
				n, _ := ready()
				spare := 0
				for _, g := range c.Status().Gateways {
					if g.State == stateSpare {
						spare++
					}
				}
				return n == 1 && spare == len(gateways)-1 && n+spare == len(c.Status().Gateways)
			}
			eventually(t, 5*time.Second, "one session", settled)
			time.Sleep(400 * time.Millisecond) // twenty resolutions
			if n := len(g.registers()) - before; n != 1 || !settled() {
				t.Errorf("registered %d times; %+v", n, c.Status().Gateways)
			}
			works(t, s)
			if w := logs.Filter(func(e observer.LoggedEntry) bool { return e.Level >= zapcore.WarnLevel }); w.Len() != 0 {
				t.Errorf("warned: %v", w.All())
			}
			// The session ends, and there is one again, whichever way.
			s.Close(tunnel.CloseInternal, "crash")
			works(t, g.nextReady(5*time.Second))
			eventually(t, 5*time.Second, "one session again", settled)
			if n := len(g.registers()) - before; n != 2 {
				t.Errorf("registered %d times", n)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSpareAddressTakesOver(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 1)
	g := gs[0]
	other, _ := g.listen("127.0.0.2:" + port)
	t.Cleanup(func() { _ = other.Close(tunnel.CloseNone, "test over") })
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	cfg := g.config(newProvider("tiny"))
	cfg.Gateways = []string{"gw.test:" + port}
	c, _ := launch(t, cfg, dns.quick)
	g.nextReady(10 * time.Second)
	eventually(t, 5*time.Second, "its address", func() bool { return c.Status().Gateways[0].Remote == "127.0.0.1:"+port })
	_ = g.listener().Close(tunnel.CloseInternal, "this address is gone")
	works(t, g.nextReady(10*time.Second))
	eventually(t, 5*time.Second, "the other address", func() bool {
		return slices.ContainsFunc(c.Status().Gateways, func(g GatewayStatus) bool { return g.State == stateReady && g.Remote == "127.0.0.2:"+port })
	})
}

func TestDrainOfOneOfTwo(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 2)
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	p := newProvider("tiny", "other")
	gate := make(chan struct{})
	p.do = gated(gate)
	cfg := gs[0].config(p)
	cfg.Gateways, cfg.Grace = []string{"gw.test:" + port}, time.Minute
	c, _ := launch(t, cfg, dns.quick)
	one, two := gs[0].nextReady(10*time.Second), gs[1].nextReady(10*time.Second)
	long := open(t, one, nil)
	_ = long.EndBody()
	eventually(t, 5*time.Second, "the run", func() bool { return c.Status().Runs == 1 })

	// As a gateway does that stops: it takes no registration, asks its nodes to leave, and waits for their runs.
	gs[0].set(func(g *gateway) {
		g.refuse = func(*tunnel.Register) error {
			return &tunnel.CloseError{Code: tunnel.CloseDraining, Reason: "stopping"}
		}
	})
	if err := one.Drain("stopping", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "draining", func() bool { return one.State() == tunnel.StateDraining && rows(c)["gw1"] == stateDraining })
	p.set(func(p *provider) { p.do = nil })
	if res := ask(t, two, func(o *tunnel.RunOpen) { o.Model = "other" }); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("the other gateway's run: %v %v", res.refused, res.terminal)
	}

	// The next process answers at the address while the old one still has its run.
	gs[0].set(func(g *gateway) { g.refuse = nil })
	next := gs[0].nextReady(10 * time.Second)
	if c.Status().Runs != 1 || one.State() != tunnel.StateDraining {
		t.Fatal("the old session's run is gone")
	}
	if res := ask(t, next, func(o *tunnel.RunOpen) { o.Model = "other" }); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("the next process's run: %v %v", res.refused, res.terminal)
	}
	var states []string
	for _, g := range c.Status().Gateways {
		states = append(states, g.Gateway+" "+g.State)
	}
	slices.Sort(states)
	if !slices.Equal(states, []string{"gw1 draining", "gw1 ready", "gw2 ready"}) {
		t.Error(states)
	}
	close(gate)
	if res := collect(long); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("the long run: %v", res.terminal)
	}
	eventually(t, 5*time.Second, "the end of the old session", func() bool { return one.State() == tunnel.StateGone && len(c.Status().Gateways) == 2 })
	if next.State() != tunnel.StateReady || two.State() != tunnel.StateReady {
		t.Error("another session ended with it")
	}
}

// A gateway that leaves again and again costs one draining session at a time.
func TestGatewayThatKeepsLeaving(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("tiny")
	p.do = hangs
	cfg := g.config(p)
	cfg.Targets[0].PerModel = 9
	c, first, _ := g.node(cfg)
	for s, i := first, 0; i < 2; i++ {
		r := open(t, s, nil)
		_ = r.EndBody()
		eventually(t, 5*time.Second, "the run", func() bool { return c.Status().Runs == i+1 })
		if err := s.Drain("again", true); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			s = g.nextReady(5 * time.Second)
		}
	}
	time.Sleep(500 * time.Millisecond)
	if n := len(g.registers()); n != 2 {
		t.Errorf("%d sessions while two of them drain", n)
	}
}

func TestRefusedByOneOfTwo(t *testing.T) {
	t.Parallel()
	t.Run("then by the other", func(t *testing.T) {
		t.Parallel()
		testRefusedByOneOfTwo(t, 2, func(g *gateway, s *tunnel.Session, _ *names) {
			g.set(func(g *gateway) { g.refuse = revoked })
			s.Close(tunnel.CloseRevoked, "not here either")
		})
	})
	t.Run("then the other is taken out of the name", func(t *testing.T) {
		t.Parallel()
		testRefusedByOneOfTwo(t, 1, func(_ *gateway, s *tunnel.Session, dns *names) {
			dns.set("gw.test", "127.0.0.1")
			s.Close(tunnel.CloseNone, "over")
		})
	})
}

func revoked(*tunnel.Register) error {
	return &tunnel.CloseError{Code: tunnel.CloseRevoked, Reason: "not here"}
}

// testRefusedByOneOfTwo has the first of two gateways refuse the node while the other serves, until end ends that; refusals is how often one is logged.
func testRefusedByOneOfTwo(t *testing.T, refusals int, end func(*gateway, *tunnel.Session, *names)) {
	t.Helper()
	gs, port := fleet(t, 2)
	gs[0].set(func(g *gateway) { g.refuse = revoked })
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	core, logs := observer.New(zapcore.InfoLevel)
	cfg := gs[0].config(newProvider("tiny"))
	cfg.Gateways, cfg.Log = []string{"gw.test:" + port}, zap.New(core)
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dns.quick(c)
	done := make(chan error, 1)
	go func() { done <- c.Run(t.Context()) }()
	s := gs[1].nextReady(10 * time.Second)
	works(t, s)
	time.Sleep(300 * time.Millisecond)
	said := func() int { return logs.FilterMessage("the gateway refuses this node for good").Len() }
	if said() != 1 {
		t.Errorf("said %d times", said())
	}
	var refused []string
	for _, g := range c.Status().Gateways {
		if g.State == stateRefused && strings.Contains(g.LastError, "not here") {
			refused = append(refused, g.Remote)
		}
	}
	if !slices.Equal(refused, []string{"127.0.0.1:" + port}) || !c.Status().Ready() {
		t.Errorf("%+v", c.Status().Gateways)
	}
	select {
	case err := <-done:
		t.Fatalf("ended while one gateway serves: %v", err)
	default:
	}
	end(gs[1], s, &dns)
	var final *FinalError
	select {
	case err := <-done:
		if !errors.As(err, &final) || said() != refusals {
			t.Errorf("%v; said %d times", err, said())
		}
	case <-time.After(10 * time.Second):
		t.Errorf("tries on: %+v", c.Status().Gateways)
		c.Close()
		<-done
	}
}

// A second process of a node must not try which gateway of the fleet has no session with the first.
func TestDuplicateLooksNoFurther(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 2)
	gs[0].set(func(g *gateway) {
		g.refuse = func(*tunnel.Register) error { return &tunnel.CloseError{Code: tunnel.CloseDuplicateNode} }
	})
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	cfg := gs[0].config(newProvider("tiny"))
	cfg.Gateways = []string{"gw.test:" + port}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dns.quick(c)
	time.AfterFunc(10*time.Second, c.Close)
	var final *FinalError
	if err := c.Run(t.Context()); !errors.As(err, &final) || len(gs[1].registers()) != 0 {
		t.Errorf("%v; registered at the other one %d times", err, len(gs[1].registers()))
	}
}

// The gateway refuses the node, and its other address swallows everything, as of a family that is not routed.
func TestRefusedWithASilentAddress(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 1)
	hole, err := net.ListenPacket("udp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	cfg := gs[0].config(newProvider("tiny"))
	cfg.Gateways = []string{"gw.test:" + port}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dns.quick(c)
	done := make(chan error, 1)
	go func() { done <- c.Run(t.Context()) }()
	gs[0].nextReady(10 * time.Second)
	gs[0].set(func(g *gateway) {
		g.refuse = func(*tunnel.Register) error { return &tunnel.CloseError{Code: tunnel.CloseRevoked} }
		g.session.Close(tunnel.CloseRevoked, "")
	})
	var final *FinalError
	select {
	case err := <-done:
		if !errors.As(err, &final) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("tries on: %+v", c.Status().Gateways)
		c.Close()
		<-done
	}
}

// An address that does not work here, beside one that does, is no reason to warn, and is said once.
func TestSilentAddressIsSaidOnce(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 1)
	hole, err := net.ListenPacket("udp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	core, logs := observer.New(zapcore.InfoLevel)
	cfg := gs[0].config(newProvider("tiny"))
	cfg.Gateways, cfg.Log = []string{"gw.test:" + port}, zap.New(core)
	c, _ := launch(t, cfg, dns.quick)
	gs[0].nextReady(10 * time.Second)
	said := func() int { return logs.FilterMessageSnippet("does not answer at all of its addresses").Len() }
	eventually(t, 12*time.Second, "that it is said", func() bool { return said() > 0 })
	time.Sleep(6 * time.Second) // one more dial
	if said() != 1 {
		t.Errorf("said %d times", said())
	}
	if w := logs.Filter(func(e observer.LoggedEntry) bool { return e.Level >= zapcore.WarnLevel }); w.Len() != 0 {
		t.Errorf("warned: %v", w.All())
	}
	st := c.Status()
	if !st.Ready() || len(st.Gateways) != 2 || !strings.Contains(st.Gateways[1].LastError, "127.0.0.2:"+port) {
		t.Errorf("%+v", st.Gateways)
	}
}

func TestSpareIsNotBelievedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Identity: new(memory), Gateways: []string{"gw.test:1"}})
		if err != nil {
			t.Fatal(err)
		}
		e, a, b := c.entries[0], netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:1")
		all := []netip.AddrPort{a, b}
		gw := pki.ID{TrustDomain: "test.local", Role: pki.RoleGateway, Name: "gw1"}
		mine, other := e.links[0], newLink(e)
		if err := c.seats.take(gw, mine); err != nil {
			t.Fatal(err)
		}
		e.met(a, gw)
		e.met(b, gw)
		e.settle(mine, a, gw)
		if got := e.open(mine, all); len(got) != 2 {
			t.Errorf("its own gateway's link may dial %v", got)
		}
		if got := e.open(other, all); len(got) != 0 {
			t.Errorf("another link may dial %v", got)
		}
		time.Sleep(spareFor + time.Second)
		if got := e.open(other, all); !slices.Equal(got, []netip.AddrPort{b}) {
			t.Errorf("after a while another link may dial %v", got)
		}
		if err := c.seats.take(gw, other); !errors.Is(err, errTaken) {
			t.Errorf("the seat: %v", err)
		}
		// An address that is silent goes last, and the link's own first.
		e.missed(a)
		c.seats.release(gw, mine)
		if got := e.open(mine, all); !slices.Equal(got, []netip.AddrPort{b, a}) {
			t.Errorf("order %v", got)
		}
		mine.good = a
		if got := e.open(mine, all); !slices.Equal(got, all) {
			t.Errorf("order %v", got)
		}
	})
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	gs, port := fleet(t, 2)
	var dns names
	dns.set("gw.test", "127.0.0.1", "127.0.0.2")
	core, logs := observer.New(zapcore.InfoLevel)
	cfg := gs[0].config(newProvider("tiny"))
	cfg.Gateways, cfg.Log = []string{"gw.test:" + port}, zap.New(core)
	c, _ := launch(t, cfg, dns.quick, func(c *Client) { c.linked.Store(maxLinks - 1) }) // as if there were others
	gs[0].nextReady(10 * time.Second)
	said := func() int { return logs.FilterMessageSnippet("more gateways than").Len() }
	eventually(t, 5*time.Second, "a warning", func() bool { return said() > 0 })
	time.Sleep(200 * time.Millisecond)
	if said() != 1 || len(gs[1].registers()) != 0 || len(c.Status().Gateways) != 1 {
		t.Errorf("said %d times; %+v", said(), c.Status().Gateways)
	}
}

func TestJoinsPastAGatewayOfAnotherFleet(t *testing.T) {
	t.Parallel()
	other, g := newGateway(t), newGateway(t)
	id, err := NewStateIdentity(t.TempDir(), g.token("n1"), []string{other.addr, g.addr}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	got, err := id.Current(t.Context())
	if err != nil || got.ID.Name != "n1" {
		t.Fatalf("%v %v", got, err)
	}
	if got, err = id.Current(t.Context()); err != nil || got.ID.Name != "n1" { // the token is spent by now
		t.Errorf("%v %v", got, err)
	}
	id, err = NewStateIdentity(t.TempDir(), g.token("n2"), []string{other.addr}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	var final *FinalError
	if _, err := id.Current(t.Context()); !errors.As(err, &final) {
		t.Errorf("no gateway of the token's fleet: %v", err)
	}
}
