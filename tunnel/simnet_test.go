package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/fairway-edge/fairway/internal/pki"
)

// The tests of this file run on a network in memory and on virtual time: seconds of silence cost nothing.

var (
	gatewayAddr = &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4433}
	nodeAddr    = &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 9000}
)

// faultyRouter drops or readdresses packets. Its fields may be set at any time.
type faultyRouter struct {
	simnet.PerfectRouter
	mu   sync.Mutex
	drop func(simnet.Packet) bool // guarded by mu
	nat  *net.UDPAddr             // guarded by mu; what the node's address looks like from outside
}

func (r *faultyRouter) set(drop func(simnet.Packet) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop = drop
}

func (r *faultyRouter) rebind(port int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nat = &net.UDPAddr{IP: nodeAddr.IP, Port: port}
}

func (r *faultyRouter) SendPacket(p simnet.Packet) error {
	r.mu.Lock()
	drop, nat := r.drop, r.nat
	r.mu.Unlock()
	if drop != nil && drop(p) {
		return nil
	}
	if nat != nil {
		switch {
		case p.From.String() == nodeAddr.String():
			p.From = nat
		case p.To.String() == nat.String():
			p.To = nodeAddr
		case p.To.String() == nodeAddr.String():
			return nil // the old binding is gone
		}
	}
	return r.PerfectRouter.SendPacket(p)
}

func fromNode(p simnet.Packet) bool { return p.To.String() == gatewayAddr.String() }
func all(simnet.Packet) bool        { return true }

// virtual runs a test with a gateway and one node on a faulty network. latency is one way.
func virtual(t *testing.T, latency func(simnet.Packet) time.Duration, mtu int, h handlerFunc, test func(t *testing.T, r *rig, net *faultyRouter, ns *NodeSession, s *Session)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		router := &faultyRouter{}
		n := &simnet.Simnet{Router: router}
		settings := simnet.NodeBiDiLinkSettings{LatencyFunc: latency, Uplink: simnet.LinkSettings{MTU: mtu}, Downlink: simnet.LinkSettings{MTU: mtu}}
		gw := n.NewEndpoint(gatewayAddr, settings)
		node := n.NewEndpoint(nodeAddr, settings)
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		r := newRigOn(t, gw)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		ns, err := Dial(ctx, DialConfig{
			Identity: identity(t, r.ca, pki.RoleNode, "n1"), Addr: gatewayAddr, Register: &Register{Node: "n1", Instance: newInstance()}, Handler: h,
			Socket: func() (net.PacketConn, error) { return node, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Ready(ctx, nil); err != nil {
			t.Fatal(err)
		}
		test(t, r, router, ns, <-r.reg.ready)
		router.set(nil)
		ns.Close(CloseNone, "")
		<-ns.Done()
		_ = r.ln.Close(CloseNone, "")
		_ = n.Close()
		synctest.Wait()
	})
}

func fixed(d time.Duration) func(simnet.Packet) time.Duration {
	return func(simnet.Packet) time.Duration { return d }
}

// ledger counts how runs ended at the node.
type ledger struct{ began, ended atomic.Int64 }

// ticker sends n lines, one each 100 ms, and keeps the ledger.
func (l *ledger) ticker(n int) handlerFunc {
	return func(ctx context.Context, nr *NodeRun) {
		l.began.Add(1)
		defer l.ended.Add(1)
		_ = nr.Accept()
		_ = nr.SendHead(&Head{Status: 200}, true)
		for i := range n {
			if err := nr.SendData(fmt.Appendf(nil, "%d\n", i), true); err != nil {
				_ = nr.Finish(&Terminal{Outcome: Canceled, Code: CodeCanceled})
				return
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				_ = nr.Finish(&Terminal{Outcome: Canceled, Code: CodeCanceled})
				return
			}
		}
		_ = nr.Finish(&Terminal{Outcome: Completed})
	}
}

func lines(n int) []byte {
	var b []byte
	for i := range n {
		b = fmt.Appendf(b, "%d\n", i)
	}
	return b
}

// run is one run in the background.
func background(t *testing.T, s *Session, id string) <-chan result {
	out := make(chan result, 1)
	r := open(t, s, id, []byte("x"))
	go func() { out <- collect(r) }()
	return out
}

// Faults 7 and 8: loss and reordering change only the time that it takes.
func TestLossAndReordering(t *testing.T) {
	t.Parallel()
	for _, loss := range []float64{0.01, 0.05, 0.2} {
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			t.Parallel()
			l := &ledger{}
			rnd := rand.New(rand.NewPCG(1, uint64(loss*100))) //nolint:gosec // a fault, repeatable
			var mu sync.Mutex
			chance := func() float64 {
				mu.Lock()
				defer mu.Unlock()
				return rnd.Float64()
			}
			jitter := func(simnet.Packet) time.Duration {
				return 5*time.Millisecond + time.Duration(chance()*20)*time.Millisecond
			}
			virtual(t, jitter, 0, l.ticker(20), func(t *testing.T, _ *rig, n *faultyRouter, _ *NodeSession, s *Session) {
				n.set(func(simnet.Packet) bool { return chance() < loss })
				var runs []<-chan result
				for i := range 20 {
					runs = append(runs, background(t, s, fmt.Sprint("r", i)))
				}
				for i, c := range runs {
					res := <-c
					if res.terminal.Outcome != Completed || !bytes.Equal(res.body, lines(20)) {
						t.Errorf("run %d: %v after %d bytes", i, res.terminal, len(res.body))
					}
				}
				if b, e := l.began.Load(), l.ended.Load(); b != 20 || e != 20 {
					t.Errorf("the node began %d and ended %d runs", b, e)
				}
			})
		})
	}
}

// Fault 9: five seconds of nothing pause a stream; the session is suspect meanwhile, takes no new run, and goes on.
func TestBlackHoleOfFiveSeconds(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	virtual(t, fixed(10*time.Millisecond), 0, l.ticker(50), func(t *testing.T, _ *rig, n *faultyRouter, _ *NodeSession, s *Session) {
		run := background(t, s, "r1")
		time.Sleep(time.Second)
		n.set(all)
		time.Sleep(4500 * time.Millisecond)
		if s.State() != StateSuspect {
			t.Errorf("the session is %s", s.State())
		}
		if _, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "r2", Generation: s.Generation()}, nil, nil, nil); !errors.Is(err, ErrGone) {
			t.Errorf("a suspect session took a run: %v", err)
		}
		n.set(nil)
		if res := <-run; res.terminal.Outcome != Completed || !bytes.Equal(res.body, lines(50)) {
			t.Errorf("%v after %d bytes", res.terminal, len(res.body))
		}
		time.Sleep(2 * time.Second) // the next beat is through by then
		if s.State() != StateReady {
			t.Errorf("the session is %s", s.State())
		}
	})
}

// Faults 10 and 11: silence beyond the idle time-out, both ways or one, is one terminal on each side.
func TestBlackHoleBeyondTheIdleTimeout(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]func(simnet.Packet) bool{
		"both ways": all, "node to gateway": fromNode, "gateway to node": func(p simnet.Packet) bool { return !fromNode(p) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{}
			virtual(t, fixed(10*time.Millisecond), 0, l.ticker(10000), func(t *testing.T, r *rig, n *faultyRouter, ns *NodeSession, s *Session) {
				run := background(t, s, "r1")
				time.Sleep(time.Second)
				n.set(drop)
				start := time.Now()
				<-ns.Done()
				if d := time.Since(start); d > RedialAfter+2*time.Second {
					t.Errorf("the node gave up after %v", d)
				}
				res := <-run
				if d := time.Since(start); res.terminal.Outcome != Failed || res.terminal.Code != CodeNodeLost || d > IdleTimeout+2*time.Second {
					t.Errorf("%v after %v", res.terminal, d)
				}
				if !bytes.HasPrefix(lines(10000), res.body) {
					t.Error("the client's bytes are no prefix of the provider's")
				}
				<-r.reg.gone
				if b, e := l.began.Load(), l.ended.Load(); b != 1 || e != 1 {
					t.Errorf("the node began %d and ended %d runs", b, e)
				}
			})
		})
	}
}

// Fault 12, C04: a path that drops what is longer than 1252 bytes carries everything all the same.
func TestNarrowPath(t *testing.T) {
	t.Parallel()
	virtual(t, fixed(5*time.Millisecond), 0, echo, func(t *testing.T, _ *rig, n *faultyRouter, _ *NodeSession, s *Session) {
		n.set(func(p simnet.Packet) bool { return len(p.Data) > 1252 })
		body := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
		run, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "r1", Generation: s.Generation(), Body: BodyStream}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if run.WriteBody(body) == nil {
				_ = run.EndBody()
			}
		}()
		if res := collect(run); res.terminal.Outcome != Completed || !bytes.Equal(res.body, body) {
			t.Errorf("%v after %d bytes", res.terminal, len(res.body))
		}
	})
}

// Fault 13, C05: a NAT that gives the node a new port in the middle of a stream interrupts nothing; the generation and the lane's binding stay.
func TestNATRebinding(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	virtual(t, fixed(10*time.Millisecond), 0, l.ticker(100), func(t *testing.T, r *rig, n *faultyRouter, ns *NodeSession, s *Session) {
		before, err := s.Lane().Binding()
		if err != nil {
			t.Fatal(err)
		}
		run := background(t, s, "r1")
		time.Sleep(time.Second)
		for port := 9001; port < 9004; port++ {
			n.rebind(port)
			// The new port reaches the router when the node next sends; its address must be known there.
			time.Sleep(2 * time.Second)
		}
		if res := <-run; res.terminal.Outcome != Completed || !bytes.Equal(res.body, lines(100)) {
			t.Errorf("%v after %d bytes", res.terminal, len(res.body))
		}
		after, err := s.Lane().Binding()
		if err != nil || !bytes.Equal(before.Exporter, after.Exporter) {
			t.Errorf("the binding changed: %v", err)
		}
		own, err := ns.Binding()
		if err != nil || !bytes.Equal(own.Exporter, after.Exporter) || own.Node != after.Node || own.Gateway != after.Gateway {
			t.Errorf("the two ends disagree on the binding: %v", err)
		}
		if s.State() != StateReady || len(r.reg.gone) != 0 {
			t.Errorf("the session is %s", s.State())
		}
	})
}

// Fault 5, after the thaw: what froze for 30 s finds its session over, cancels its runs once, and may register again with a greater generation.
func TestThawAfterAFreeze(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	virtual(t, fixed(10*time.Millisecond), 0, l.ticker(10000), func(t *testing.T, r *rig, n *faultyRouter, ns *NodeSession, s *Session) {
		run := background(t, s, "r1")
		time.Sleep(time.Second)
		n.set(all)
		time.Sleep(30 * time.Second)
		n.set(nil)
		<-ns.Done()
		if res := <-run; res.terminal.Code != CodeNodeLost {
			t.Errorf("%v", res.terminal)
		}
		if _, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "r2", Generation: s.Generation()}, nil, nil, nil); !errors.Is(err, ErrGone) {
			t.Errorf("the old session took a run: %v", err)
		}
		if l.ended.Load() != 1 {
			t.Errorf("%d runs ended at the node", l.ended.Load())
		}
	})
}

// Fault 14: a network that lets no UDP through is named as that, within the handshake's time-out.
func TestUDPBlocked(t *testing.T) {
	t.Parallel()
	virtual(t, fixed(time.Millisecond), 0, echo, func(t *testing.T, r *rig, n *faultyRouter, ns *NodeSession, _ *Session) {
		n.set(all)
		ns.Close(CloseNone, "")
		<-ns.Done()
		other := simnet.NewSimConn(&net.UDPAddr{IP: net.IPv4(10, 0, 0, 3), Port: 1}, n)
		start := time.Now()
		_, err := Dial(context.Background(), DialConfig{
			Identity: identity(t, r.ca, pki.RoleNode, "n2"), Addr: gatewayAddr, Register: &Register{Node: "n2", Instance: newInstance()}, Handler: handlerFunc(echo),
			Socket: func() (net.PacketConn, error) { return other, nil },
		})
		if !errors.Is(err, ErrUDPBlocked) || time.Since(start) > 6*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// Attack 35: a node that never reads a body is given up after the stall time, and costs no more than its windows.
func TestAttack35NodeNeverReads(t *testing.T) {
	t.Parallel()
	stuck := func(ctx context.Context, nr *NodeRun) {
		_ = nr.Accept()
		<-ctx.Done()
	}
	virtual(t, fixed(time.Millisecond), 0, stuck, func(t *testing.T, _ *rig, _ *faultyRouter, _ *NodeSession, s *Session) {
		run, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "r1", Generation: s.Generation(), Body: BodyStream}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		wrote := make(chan error, 1)
		go func() { wrote <- run.WriteBody(make([]byte, 16<<20)) }()
		res := collect(run)
		if d := time.Since(start); res.terminal.Outcome != Failed || res.terminal.Code != CodeNodeStalled || d > StallTimeout+2*time.Second {
			t.Errorf("%v after %v", res.terminal, d)
		}
		if err := <-wrote; err == nil {
			t.Error("16 MiB went into a node that reads nothing")
		}
		if s.State() != StateReady {
			t.Errorf("the session is %s", s.State())
		}
	})
}

// A pause in the middle of a run, longer than any stall time, is no stall: on either side.
func TestPausesAreNoStalls(t *testing.T) {
	t.Parallel()
	slow := func(_ context.Context, nr *NodeRun) {
		got, err := io.Copy(io.Discard, nr)
		_ = nr.Accept()
		_ = nr.SendHead(&Head{Status: 200}, true)
		if err != nil || got != 10_004 {
			_ = nr.Finish(&Terminal{Outcome: Failed, Code: CodeClientBody})
			return
		}
		_ = nr.SendData(make([]byte, 5000), true)
		time.Sleep(11 * StallTimeout)
		_ = nr.SendData([]byte("end"), true)
		_ = nr.Finish(&Terminal{Outcome: Completed})
	}
	virtual(t, fixed(time.Millisecond), 0, slow, func(t *testing.T, _ *rig, _ *faultyRouter, _ *NodeSession, s *Session) {
		run, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "r1", Generation: s.Generation(), Body: BodyStream}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = run.WriteBody(make([]byte, 10_000))
			time.Sleep(2 * StallTimeout)
			if err := run.WriteBody(make([]byte, 4)); err != nil {
				t.Error(err)
			}
			_ = run.EndBody()
		}()
		if res := collect(run); res.terminal.Outcome != Completed || len(res.body) != 5003 {
			t.Errorf("%v after %d bytes", res.terminal, len(res.body))
		}
	})
}
