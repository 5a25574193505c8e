package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/testutils/simnet"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// others is a Peers that admits everyone and remembers what it is told.
type others struct {
	mu     sync.Mutex
	refuse error            // guarded by mu; of whoever joins
	fault  error            // guarded by mu; of what is told
	nodes  []*PeerNode      // guarded by mu
	calls  int              // guarded by mu; of Nodes
	left   map[*Session]int // guarded by mu; how often

	joined  chan *Session
	gone    chan *Session
	changed chan State
}

func newOthers() *others {
	return &others{left: map[*Session]int{}, joined: make(chan *Session, 64), gone: make(chan *Session, 64), changed: make(chan State, 64)}
}

func (o *others) Joined(s *Session) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refuse != nil {
		return o.refuse
	}
	o.left[s] = 0
	o.joined <- s
	return nil
}

func (o *others) Nodes(_ *Session, nodes []*PeerNode) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	o.nodes = append(o.nodes, nodes...)
	return o.fault
}

func (o *others) Changed(s *Session) { o.changed <- s.State() }

func (o *others) Left(s *Session) {
	o.mu.Lock()
	o.left[s]++
	o.mu.Unlock()
	o.gone <- s
}

// checkLeft fails unless each session that was admitted has ended once.
func (o *others) checkLeft(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for s, n := range o.left {
		if n != 1 {
			t.Errorf("Left was called %d times for a session with %s", n, s.Node())
		}
	}
}

// peerRig is gateway gw1, which others may dial.
type peerRig struct {
	*rig
	peers *others
}

func newPeerRig(t *testing.T) *peerRig {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeerRigOn(t, pc)
	t.Cleanup(func() {
		_ = r.ln.Close(CloseNone, "test over")
		r.peers.checkLeft(t)
	})
	return r
}

func newPeerRigOn(t *testing.T, pc net.PacketConn) *peerRig {
	t.Helper()
	ca, err := pki.NewSelfSigned("test.local", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	r := &peerRig{&rig{t: t, ca: ca, gw: identity(t, ca, pki.RoleGateway, "gw1"), reg: &admitAll{
		sessions: map[string]*Session{}, targets: map[string][]*Target{}, fenced: map[string]int{},
		gone: make(chan *Session, 64), ready: make(chan *Session, 64), changed: make(chan State, 64),
	}}, newOthers()}
	st := &Settings{
		Gateway: "gw1", Epoch: 11, Software: "one", Identity: func() (*pki.Identity, error) { return r.gw, nil }, Registrar: r.reg, Peers: r.peers, Log: zap.NewNop(),
	}
	r.ln, err = Listen(pc, ListenConfig{Settings: func() *Settings { return st }})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// config is what a gateway brings that dials gw1.
func (r *peerRig) config(name string, h handlerFunc) PeerConfig {
	return PeerConfig{
		Identity: identity(r.t, r.ca, pki.RoleGateway, name), Addr: r.ln.Addr().(*net.UDPAddr), Name: "gw1", Settings: &Settings{Gateway: name, Epoch: 22, Software: "two"}, Handler: h,
	}
}

func (r *peerRig) dialPeer(cfg PeerConfig) (*NodeSession, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ns, err := DialPeer(ctx, cfg)
	if err == nil {
		r.t.Cleanup(func() { ns.Close(CloseNone, ""); <-ns.Done() })
	}
	return ns, err
}

// peer dials in as another gateway and returns both ends.
func (r *peerRig) peer(name string, h handlerFunc) (*NodeSession, *Session) {
	r.t.Helper()
	ns, err := r.dialPeer(r.config(name, h))
	if err != nil {
		r.t.Fatal(err)
	}
	return ns, r.waitReady()
}

func (r *peerRig) waitReady() *Session {
	r.t.Helper()
	s := wait(r.t, "joined", r.peers.joined)
	eventually(r.t, "ready", func() bool { return s.State() == StateReady })
	return s
}

func wait[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(15 * time.Second):
		t.Fatal("not within 15 s: " + what)
	}
	panic("unreachable")
}

// raw is a connection with a certificate of any role that sends what it likes.
func (r *peerRig) raw(role pki.Role, name string) (*quic.Conn, *control) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, done, err := dialQUIC(ctx, r.ln.Addr().(*net.UDPAddr), nodeTLS(identity(r.t, r.ca, role, name)), peerStreams, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.CloseWithError(0, ""); done() })
	stream, err := c.OpenStreamSync(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return c, newControl(stream)
}

func hello2() *PeerHello {
	return &PeerHello{Version: wire.Version, Gateway: "gw2", Epoch: 22, Software: "two"}
}

// Each gateway knows of the other what it has said and its certificate proves; when one leaves, the other hears of it once.
func TestPeerHello(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	ns, s := r.peer("gw2", echo)
	if s.Node() != "gw2" || s.Generation() != 22 || s.Software() != "two" || s.RemoteAddr() == nil || s.Since().IsZero() {
		t.Errorf("the dialled gateway knows %s %d %s", s.Node(), s.Generation(), s.Software())
	}
	if id, err := ns.GatewayID(); err != nil || id.Name != "gw1" || ns.Gateway() != "gw1" || ns.Epoch() != 11 || ns.Generation() != 0 {
		t.Errorf("the dialling gateway knows %v %v %s %d", id, err, ns.Gateway(), ns.Epoch())
	}
	if err := s.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	ns.Close(CloseNone, "")
	if got := wait(t, "left", r.peers.gone); got != s || s.State() != StateGone {
		t.Errorf("%s", s.State())
	}
	<-s.Done()
	if len(r.reg.sessions) != 0 || len(r.reg.gone) != 0 || r.reg.generations() != 0 {
		t.Error("the registrar has heard of it")
	}
}

// What is wrong with a first word closes that connection, and nothing has joined.
func TestPeerHelloRefused(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	_, bystander := r.peer("gw5", echo)
	say := func(change func(*PeerHello)) func(*control) {
		return func(c *control) { m := hello2(); change(m); _ = c.send(wire.TypePeerHello, m) }
	}
	for _, tt := range []struct {
		name string
		role pki.Role
		by   string
		send func(*control)
		code CloseCode
	}{
		{"an old version", pki.RoleGateway, "gw2", say(func(m *PeerHello) { m.Version = 0 }), CloseVersion},
		{"a later version", pki.RoleGateway, "gw2", say(func(m *PeerHello) { m.Version++ }), CloseVersion},
		{"another gateway's name", pki.RoleGateway, "gw2", say(func(m *PeerHello) { m.Gateway = "gw3" }), CloseIdentityMismatch},
		{"no name", pki.RoleGateway, "gw2", say(func(m *PeerHello) { m.Gateway = "" }), CloseIdentityMismatch},
		{"a certificate of another's", pki.RoleGateway, "gw3", say(func(*PeerHello) {}), CloseIdentityMismatch},
		{"this gateway's name", pki.RoleGateway, "gw1", say(func(m *PeerHello) { m.Gateway = "gw1" }), CloseDuplicateNode},
		{"much software", pki.RoleGateway, "gw2", say(func(m *PeerHello) { m.Software = strings.Repeat("x", maxSoftware+1) }), CloseProtocol},
		{"a node's certificate", pki.RoleNode, "gw2", say(func(*PeerHello) {}), CloseProtocol},
		{"a gateway that registers", pki.RoleGateway, "gw2", func(c *control) {
			_ = c.send(wire.TypeRegister, &Register{Version: wire.Version, Node: "gw2", Instance: newInstance()})
		}, CloseProtocol},
		{"nodes before hello", pki.RoleGateway, "gw2", func(c *control) { _ = c.send(wire.TypePeerNodes, &wire.PeerNodes{Seq: 1}) }, CloseProtocol},
		{"a beat before hello", pki.RoleGateway, "gw2", func(c *control) { _ = c.send(wire.TypeHeartbeat, &wire.Heartbeat{Seq: 1, Padding: padding[:]}) }, CloseProtocol},
		{"garbage", pki.RoleGateway, "gw2", func(c *control) { _, _ = c.stream.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }, CloseProtocol},
		{"a length of 2^32-1", pki.RoleGateway, "gw2", func(c *control) {
			_, _ = c.stream.Write(append(wire.AppendHeader(nil, wire.TypePeerHello, 0)[:1], 0xff, 0xff, 0xff, 0xff, 0x0f))
		}, CloseProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, ctl := r.raw(tt.role, tt.by)
			tt.send(ctl)
			if code := closedWith(t, c); code != tt.code {
				t.Errorf("closed with %s, want %s", code, tt.code)
			}
		})
	}
	r.peers.mu.Lock()
	if len(r.peers.left) != 1 {
		t.Errorf("%d have joined", len(r.peers.left))
	}
	r.peers.refuse = refuse(CloseReplaced, "a later one is here")
	r.peers.mu.Unlock()
	c, ctl := r.raw(pki.RoleGateway, "gw2")
	_ = ctl.send(wire.TypePeerHello, hello2())
	if code := closedWith(t, c); code != CloseReplaced {
		t.Errorf("one that Joined refuses was closed with %s", code)
	}
	if bystander.State() != StateReady || r.reg.generations() != 0 {
		t.Errorf("another session is %s; %d registrations", bystander.State(), r.reg.generations())
	}
	eventually(t, "their places are free", func() bool { return len(r.ln.registering) == 0 })
}

// One that says nothing is closed, and gives its place back.
func TestSilentPeerIsClosed(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	c, _ := r.raw(pki.RoleGateway, "gw2")
	if code := closedWith(t, c); code != CloseProtocol {
		t.Errorf("closed with %s", code)
	}
	eventually(t, "its place is free", func() bool { return len(r.ln.registering) == 0 })
}

// What another gateway may not send after its hello closes the connection, which has left once then.
func TestPeerOutOfState(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	nodes := func(seq uint64, n ...*PeerNode) func(*control) {
		return func(c *control) { _ = c.send(wire.TypePeerNodes, &wire.PeerNodes{Seq: seq, Nodes: n}) }
	}
	frame := func(ty wire.Type, m proto.Message) func(*control) { return func(c *control) { _ = c.send(ty, m) } }
	labels := map[string]string{}
	for i := range maxLabels + 1 {
		labels[fmt.Sprint(i)] = ""
	}
	for name, send := range map[string]func(*control){
		"hello again":               frame(wire.TypePeerHello, hello2()),
		"Register":                  frame(wire.TypeRegister, &Register{Version: wire.Version, Node: "gw2", Instance: newInstance()}),
		"Ready":                     frame(wire.TypeReady, &Ready{}),
		"Status":                    frame(wire.TypeStatus, &Status{Seq: 1}),
		"Renew":                     frame(wire.TypeRenew, &wire.Renew{}),
		"RecipientKey":              frame(wire.TypeRecipientKey, &RecipientKey{}),
		"ProjectionAck":             frame(wire.TypeProjectionAck, &wire.ProjectionAck{}),
		"RevokeAck":                 frame(wire.TypeRevokeAck, &wire.RevokeAck{}),
		"CommandResult":             frame(wire.TypeCommandResult, &wire.CommandResult{}),
		"Drain":                     frame(wire.TypeDrain, &wire.Drain{}),
		"Cancel":                    frame(wire.TypeCancel, &wire.Cancel{}),
		"a frame of runs":           func(c *control) { _, _ = c.stream.Write([]byte{0x4b, 0}) },
		"an unknown critical frame": func(c *control) { _, _ = c.stream.Write([]byte{0x7f, 0}) },
		"nodes that begin with 2":   nodes(2),
		"nodes that begin with 0":   nodes(0),
		"nodes twice":               func(c *control) { nodes(1)(c); nodes(1)(c) },
		"a gap":                     func(c *control) { nodes(1)(c); nodes(3)(c) },
		"a node without a name":     nodes(1, &PeerNode{State: PeerReady}),
		"a name with an @":          nodes(1, &PeerNode{Name: "n1@gw3", State: PeerReady}),
		"a long name":               nodes(1, &PeerNode{Name: strings.Repeat("n", 64), State: PeerGone}),
		"labels":                    nodes(1, &PeerNode{Name: "n1", State: PeerReady, Labels: labels}),
		"a long label":              nodes(1, &PeerNode{Name: "n1", State: PeerReady, Labels: map[string]string{"a": strings.Repeat("x", maxLabelBytes)}}),
		"much software":             nodes(1, &PeerNode{Name: "n1", State: PeerReady, Software: strings.Repeat("x", maxSoftware+1)}),
		"the last of many nodes":    nodes(1, &PeerNode{Name: "n1", State: PeerReady}, &PeerNode{Name: "N2", State: PeerReady}),
		"nodes that are no protobuf": func(c *control) {
			_, _ = c.stream.Write(append(wire.AppendHeader(nil, wire.TypePeerNodes, 2), 0xff, 0xff))
		},
		"text that is not UTF-8": func(c *control) {
			_, _ = c.stream.Write(append(wire.AppendHeader(nil, wire.TypePeerNodes, 5), 0x12, 3, 0x0a, 1, 0xff))
		},
		"draining that is no message": func(c *control) {
			_, _ = c.stream.Write(append(wire.AppendHeader(nil, wire.TypeDraining, 2), 0xff, 0xff))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, ctl := r.raw(pki.RoleGateway, "gw2")
			_ = ctl.send(wire.TypePeerHello, hello2())
			s := wait(t, "joined", r.peers.joined)
			send(ctl)
			if code := closedWith(t, c); code != CloseProtocol {
				t.Errorf("closed with %s", code)
			}
			if wait(t, "left", r.peers.gone) != s {
				t.Error("another one left")
			}
		})
	}
	r.peers.mu.Lock()
	if len(r.peers.nodes) != 0 {
		t.Errorf("taken in: %v", r.peers.nodes)
	}
	r.peers.fault = refuse(CloseRateLimited, "too much")
	r.peers.mu.Unlock()
	c, ctl := r.raw(pki.RoleGateway, "gw2")
	_ = ctl.send(wire.TypePeerHello, hello2())
	nodes(1)(ctl)
	if code := closedWith(t, c); code != CloseRateLimited {
		t.Errorf("what Nodes refuses closed the connection with %s", code)
	}
	wait(t, "left", r.peers.gone)
}

// A gateway without others refuses their certificates, in the handshake where it can be.
func TestNoPeers(t *testing.T) {
	t.Parallel()
	r := &peerRig{newRig(t), newOthers()}
	_, err := r.dialPeer(r.config("gw2", echo))
	if ce := (*CloseError)(nil); !errors.As(err, &ce) || ce.Code != CloseIdentity || !ce.Remote {
		t.Errorf("%v", err)
	}
	// Settings that change between the handshake and the hello.
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var current atomic.Pointer[Settings]
	without := &Settings{Gateway: "gw1", Identity: func() (*pki.Identity, error) { return r.gw, nil }, Registrar: r.reg, Log: zap.NewNop()}
	with := *without
	with.Peers = r.peers
	with.Identity = func() (*pki.Identity, error) { current.Store(without); return r.gw, nil }
	current.Store(&with)
	r.ln, err = Listen(pc, ListenConfig{Settings: current.Load})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.ln.Close(CloseNone, "") }()
	_, err = r.dialPeer(r.config("gw2", echo))
	if ce := (*CloseError)(nil); !errors.As(err, &ce) || ce.Code != CloseIdentity || !ce.Remote {
		t.Errorf("%v", err)
	}
	if len(r.peers.joined) != 0 {
		t.Error("it has joined")
	}
}

// The dialling gateway goes by the certificate and the hello of the other one; both must be of whom it dials.
func TestPeerAnswer(t *testing.T) {
	t.Parallel()
	t.Run("another gateway's certificate", func(t *testing.T) {
		t.Parallel()
		r := newPeerRig(t)
		cfg := r.config("gw2", echo)
		cfg.Name = "gw9"
		if _, err := r.dialPeer(cfg); err == nil || !strings.Contains(err.Error(), "gw1") {
			t.Errorf("%v", err)
		}
		eventually(t, "its place is free", func() bool { return len(r.ln.registering) == 0 })
		if len(r.peers.joined) != 0 {
			t.Error("it has joined")
		}
	})
	for name, answer := range map[string]func(*control){
		"another name":    func(c *control) { _ = c.send(wire.TypePeerHello, &PeerHello{Version: wire.Version, Gateway: "gw9"}) },
		"another version": func(c *control) { _ = c.send(wire.TypePeerHello, &PeerHello{Version: 2, Gateway: "gw1"}) },
		"a Registered":    func(c *control) { _ = c.send(wire.TypeRegistered, &Registered{Generation: 1, Gateway: "gw1"}) },
		"a beat":          func(c *control) { _ = c.send(wire.TypeHeartbeat, &wire.Heartbeat{Seq: 1, Padding: padding[:]}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := answering(t, answer, nil)
			if err == nil || !errors.Is(err, errOrder) {
				t.Errorf("%v", err)
			}
		})
	}
	// After its hello a gateway beats, drains and cancels; all else is a node's to hear.
	for name, m := range map[wire.Type]proto.Message{
		wire.TypeProjection: &Projection{Pgn: 1}, wire.TypeRevoke: &Revoke{Seq: 1}, wire.TypeIssuerKeys: &wire.IssuerKeys{Seq: 1}, wire.TypeReadyAck: &wire.ReadyAck{},
		wire.TypeRenewed: &wire.Renewed{}, wire.TypeCommand: &wire.Command{}, wire.TypeOpenLane: &wire.OpenLane{}, wire.TypePeerHello: hello2(), wire.TypePeerNodes: &wire.PeerNodes{Seq: 1},
	} {
		t.Run(fmt.Sprintf("frame 0x%x", uint64(name)), func(t *testing.T) {
			t.Parallel()
			ns, err := answering(t, func(c *control) {
				_ = c.send(wire.TypePeerHello, &PeerHello{Version: wire.Version, Gateway: "gw1"})
				_ = c.send(name, m)
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			<-ns.Done()
			if ce := (*CloseError)(nil); !errors.As(ns.Err(), &ce) || ce.Code != CloseProtocol || ce.Remote {
				t.Errorf("%v", ns.Err())
			}
		})
	}
}

// answering dials a gw1 that answers a hello as the test likes.
func answering(t *testing.T, answer func(*control), h handlerFunc) (*NodeSession, error) {
	t.Helper()
	ca, err := pki.NewSelfSigned("test.local", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	gw := identity(t, ca, pki.RoleGateway, "gw1")
	st := &Settings{Gateway: "gw1", Identity: func() (*pki.Identity, error) { return gw, nil }, Peers: newOthers()}
	ln, err := quic.ListenAddr("127.0.0.1:0", gatewayTLS(func() *Settings { return st }, func(error) {}), quicConfig(gatewayStreams))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := ln.Accept(context.Background())
		if err != nil {
			return
		}
		stream, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		ctl := newControl(stream)
		if ctl.expect(wire.TypePeerHello, new(PeerHello)) == nil {
			answer(ctl)
		}
		<-c.Context().Done()
	}()
	t.Cleanup(func() { _ = ln.Close(); <-served })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ns, err := DialPeer(ctx, PeerConfig{Identity: identity(t, ca, pki.RoleGateway, "gw2"), Addr: ln.Addr().(*net.UDPAddr), Name: "gw1", Settings: &Settings{Gateway: "gw2"}, Handler: h})
	if err == nil {
		t.Cleanup(func() { ns.Close(CloseNone, ""); <-ns.Done() })
	}
	return ns, err
}

// However much there is to be told, it goes in messages that fit a frame, and arrives whole and in order.
func TestPeerNodesSplit(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	ns, _ := r.peer("gw2", echo)
	var all []*PeerNode
	add := func(n, size int) {
		for range n {
			m := &PeerNode{Name: fmt.Sprint("n", len(all)), Generation: uint64(len(all)), State: PeerReady, Labels: map[string]string{"a": "b"}, Taken: []*Taken{{Target: "t", Model: "m", Credits: 1}}}
			m.Targets = []*Target{{Name: "t", Models: []*Model{{Name: "m", Json: bytes.Repeat([]byte{byte(len(all))}, size)}}}}
			all = append(all, m)
		}
	}
	add(4000, 0)
	add(20, 90<<10)
	add(3, peerNodesBytes-64)
	add(3000, 700)
	for _, some := range [][]*PeerNode{nil, all[:1], all[1:5], all[5:]} {
		if err := ns.Nodes(some); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all is told", func() bool {
		r.peers.mu.Lock()
		defer r.peers.mu.Unlock()
		return len(r.peers.nodes) == len(all)
	})
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	for i, n := range r.peers.nodes {
		if !proto.Equal(n, all[i]) {
			t.Fatalf("node %d came as %v", i, n.Name)
		}
	}
	if r.peers.calls < 15 || r.peers.calls > 60 {
		t.Errorf("%d messages", r.peers.calls)
	}
	if err := ns.Nodes([]*PeerNode{{Name: "n", Software: strings.Repeat("x", wire.MaxControl)}}); err == nil {
		t.Error("a node that fits no frame was sent")
	}
}

// The dialled gateway opens runs at the dialling one, for whatever session they are; two attempts of one may be open, and are canceled together.
func TestPeerRuns(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	type seen struct {
		run     string
		attempt uint32
		gen     uint64
		forward string
	}
	began, ended := make(chan seen, 8), make(chan seen, 8)
	ns, s := r.peer("gw2", func(ctx context.Context, nr *NodeRun) {
		v := seen{nr.Open.Run, nr.Open.Attempt, nr.Open.Generation, nr.Open.Forward.GetNode()}
		if v.run == "echo" {
			echo(ctx, nr)
			return
		}
		_ = nr.Accept()
		began <- v
		<-ctx.Done()
		_ = nr.Finish(&Terminal{Outcome: Canceled, Code: CodeCanceled})
		ended <- v
	})
	at := func(id string, attempt uint32, gen uint64) *Run {
		t.Helper()
		run, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: id, Attempt: attempt, Generation: gen, Kind: KindTunnel, Forward: &Forward{Node: "n1"}}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	first, second, other := at("r1", 1, 7), at("r1", 2, 1<<50), at("r2", 1, 0)
	got := []seen{wait(t, "run", began), wait(t, "run", began), wait(t, "run", began)}
	slices.SortFunc(got, func(a, b seen) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	if !slices.Equal(got, []seen{{"r1", 1, 7, "n1"}, {"r1", 2, 1 << 50, "n1"}, {"r2", 1, 0, "n1"}}) {
		t.Errorf("%v", got)
	}
	if res := collect(at("r1", 2, 7)); res.refused.GetCode() != CodeBadRun || res.refused.GetRetry() != RetryNever {
		t.Errorf("one attempt twice: %+v", res)
	}
	if n := ns.Runs(); n != 3 || s.Lane().Runs() != 3 {
		t.Errorf("%d runs, %d", n, s.Lane().Runs())
	}
	if err := s.CancelRun("r1"); err != nil {
		t.Fatal(err)
	}
	for _, run := range []*Run{first, second} {
		if res := collect(run); res.terminal.GetCode() != CodeCanceled {
			t.Errorf("%+v", res)
		}
	}
	for range 2 {
		if v := wait(t, "end", ended); v.run != "r1" {
			t.Errorf("%v was canceled", v)
		}
	}
	if err := s.Probe(t.Context()); err != nil || len(ended) != 0 {
		t.Errorf("%v; %d more were canceled", err, len(ended))
	}
	other.Cancel(CodeCanceled)
	if v := wait(t, "end", ended); v.run != "r2" {
		t.Errorf("%v", v)
	}
	other.Close()
	body := bytes.Repeat([]byte("0123456789"), 50000)
	run, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: "echo", Attempt: 1, Generation: 9, Body: BodyStream}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = run.WriteBody(body); _ = run.EndBody() }()
	if res := collect(run); res.terminal.GetOutcome() != Completed || !bytes.Equal(res.body, body) {
		t.Errorf("%v after %d bytes", res.terminal, len(res.body))
	}
	eventually(t, "no runs", func() bool { return ns.Runs() == 0 && s.Lane().Runs() == 0 })
}

// A gateway that goes away says so, whichever side it is on; open runs finish.
func TestPeerDrains(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	cfg := r.config("gw2", func(ctx context.Context, nr *NodeRun) { echo(ctx, nr) })
	leaving := make(chan string, 4)
	cfg.Drain = func(reason string) { leaving <- reason }
	ns, err := r.dialPeer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := r.waitReady()
	if err := errors.Join(s.Drain("a while", false), s.Drain("stopping", true)); err != nil {
		t.Fatal(err)
	}
	if why := wait(t, "drain", leaving); why != "stopping" || len(leaving) != 0 {
		t.Errorf("%q", why)
	}
	run, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: "r1", Attempt: 1, Body: BodyStream}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.WriteBody([]byte("x")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run is open", func() bool { return ns.Runs() == 1 })
	if err := ns.Drain("stopping", time.Second); err != nil {
		t.Fatal(err)
	}
	if st := wait(t, "changed", r.peers.changed); st != StateDraining || s.State() != StateDraining {
		t.Errorf("%s", st)
	}
	if _, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: "r2"}, nil, nil, nil); !errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
	if err := run.EndBody(); err != nil {
		t.Fatal(err)
	}
	if res := collect(run); res.terminal.GetOutcome() != Completed || string(res.body) != "x" {
		t.Errorf("%+v", res)
	}
	if err := ns.Drain("again", time.Second); err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(t.Context()); err != nil || len(r.peers.changed) != 0 {
		t.Errorf("%v; told %d times more", err, len(r.peers.changed))
	}
}

// However a connection between gateways ends, it has left once, its runs have ended, and both ends know.
func TestPeerEndings(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *peerRig, ns *NodeSession, s *Session){
		"the dialling one closes": func(_ *peerRig, ns *NodeSession, _ *Session) { ns.Close(CloseNone, "") },
		"the dialled one closes":  func(_ *peerRig, _ *NodeSession, s *Session) { s.Close(CloseReplaced, "") },
		"both close":              func(_ *peerRig, ns *NodeSession, s *Session) { go ns.Close(CloseNone, ""); s.Close(CloseNone, "") },
		"its listener closes":     func(r *peerRig, _ *NodeSession, _ *Session) { _ = r.ln.Close(CloseDraining, "") },
		"a message out of sequence": func(_ *peerRig, ns *NodeSession, _ *Session) {
			_ = ns.ctl.send(wire.TypePeerNodes, &wire.PeerNodes{Seq: 9})
		},
		"the control stream ends": func(_ *peerRig, ns *NodeSession, _ *Session) { _ = ns.ctl.stream.(*quic.Stream).Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newPeerRig(t)
			ns, s := r.peer("gw2", func(ctx context.Context, nr *NodeRun) { _ = nr.Accept(); <-ctx.Done() })
			run := open(t, s, "r1", nil)
			if ev := run.Next(); ev.Kind != EventAccepted {
				t.Fatalf("%+v", ev)
			}
			end(r, ns, s)
			if res := collect(run); res.terminal.GetOutcome() != Failed {
				t.Errorf("%+v", res)
			}
			if wait(t, "left", r.peers.gone) != s {
				t.Error("another left")
			}
			wait(t, "the dialling end", ns.Done())
			wait(t, "the dialled end", s.Done())
			if _, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: "late"}, nil, nil, nil); !errors.Is(err, ErrGone) {
				t.Errorf("%v", err)
			}
			if err := ns.Nodes([]*PeerNode{{Name: "n1", State: PeerGone}}); err == nil {
				t.Error("something was told on a connection that has ended")
			}
		})
	}
}

// Two connections of one gateway are two sessions; the end of one says nothing of the other.
func TestTwoConnectionsOfOnePeer(t *testing.T) {
	t.Parallel()
	r := newPeerRig(t)
	first, s1 := r.peer("gw2", echo)
	_, s2 := r.peer("gw2", echo)
	if s1 == s2 || s1.State() != StateReady {
		t.Fatal("one session")
	}
	s1.Close(CloseReplaced, "a newer connection took over")
	wait(t, "the first ends", first.Done())
	if ce := (*CloseError)(nil); !errors.As(first.Err(), &ce) || ce.Code != CloseReplaced {
		t.Errorf("%v", first.Err())
	}
	if wait(t, "left", r.peers.gone) != s1 || s2.State() != StateReady {
		t.Errorf("the second is %s", s2.State())
	}
	if res := collect(open(t, s2, "r1", []byte("x"))); res.terminal.GetOutcome() != Completed {
		t.Errorf("%+v", res)
	}
}

// On a network that loses everything a peer is suspect after three beats, comes back if it does in time, and ends at both ends if not. On virtual time; what
// is left running would fail it.
func TestPeerSilence(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			router := &faultyRouter{}
			n := &simnet.Simnet{Router: router}
			settings := simnet.NodeBiDiLinkSettings{LatencyFunc: fixed(10 * time.Millisecond)}
			gw, other := n.NewEndpoint(gatewayAddr, settings), n.NewEndpoint(nodeAddr, settings)
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
			r := newPeerRigOn(t, gw)
			cfg := r.config("gw2", echo)
			cfg.Addr, cfg.Socket = gatewayAddr, func() (net.PacketConn, error) { return other, nil }
			ns, err := DialPeer(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			s := r.waitReady()
			time.Sleep(30 * time.Second)
			if s.State() != StateReady || len(r.peers.changed) != 0 {
				t.Errorf("after half a minute of beats it is %s", s.State())
			}
			router.set(all)
			time.Sleep(5 * time.Second)
			if st := <-r.peers.changed; st != StateSuspect {
				t.Errorf("%s", st)
			}
			if _, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: "r1"}, nil, nil, nil); !errors.Is(err, ErrGone) {
				t.Errorf("%v", err)
			}
			if back {
				router.set(nil)
				if st := <-r.peers.changed; st != StateReady {
					t.Errorf("%s", st)
				}
				if res := collect(open(t, s, "r2", []byte("x"))); res.terminal.GetOutcome() != Completed {
					t.Errorf("%+v", res)
				}
			} else {
				began := time.Now()
				if got := <-r.peers.gone; got != s {
					t.Error("another left")
				}
				if d := time.Since(began); d > PeerIdleTimeout-5*time.Second+2*HeartbeatInterval {
					t.Errorf("runs waited at it for %v more", d)
				}
				<-ns.Done()
				if d := time.Since(began); d > 2*IdleTimeout {
					t.Errorf("both ends knew after %v", d)
				}
			}
			router.set(nil)
			ns.Close(CloseNone, "")
			<-ns.Done()
			_ = r.ln.Close(CloseNone, "")
			_ = n.Close()
			synctest.Wait()
			r.peers.checkLeft(t)
		})
	}
}

// FuzzPeerControl: whatever another gateway sends after its hello, its state only moves forward, its nodes come in sequence and within bounds, and nothing panics.
func FuzzPeerControl(f *testing.F) {
	nodes := func(seq uint64, n ...*PeerNode) []byte {
		return must(wire.AppendMessage(nil, wire.TypePeerNodes, &wire.PeerNodes{Seq: seq, Nodes: n}))
	}
	beat := must(wire.AppendMessage(nil, wire.TypeHeartbeat, &wire.Heartbeat{Seq: 1, Echo: 1, Padding: padding[:]}))
	draining := must(wire.AppendMessage(nil, wire.TypeDraining, &wire.Draining{}))
	f.Add(bytes.Join([][]byte{beat, nodes(1, &PeerNode{Name: "n1", State: PeerReady, Labels: map[string]string{"a": "b"}}), draining, nodes(2), draining}, nil))
	f.Add(bytes.Join([][]byte{nodes(1), nodes(1)}, nil))
	f.Add(nodes(1, &PeerNode{Name: "N"}))
	f.Fuzz(func(t *testing.T, in []byte) {
		o := newOthers()
		s := &Session{
			st: &Settings{Peers: o, Log: zap.NewNop()}, ctx: context.Background(), register: &Register{}, id: pki.ID{Name: "gw2"}, peer: true,
			ctl: newControl(&pipeStream{Reader: bytes.NewReader(in)}), beats: beats{born: time.Now()}, probed: make(chan struct{}, 1), done: make(chan struct{}),
		}
		s.advance(StateReady)
		var seq uint64
		for {
			ty, p, err := s.ctl.read()
			if err != nil {
				break
			}
			before, calls, heard := State(s.state.Load()), o.calls, seq
			err = s.handle(ty, p, &seq)
			if now := State(s.state.Load()); now < before || now == StateDraining && before == StateReady && ty != wire.TypeDraining {
				t.Fatalf("state went from %s to %s by frame %#x", before, now, uint64(ty))
			}
			if o.calls != calls && (seq != heard+1 || ty != wire.TypePeerNodes) {
				t.Fatal("nodes out of sequence")
			}
			if err != nil {
				break
			}
		}
		if len(o.changed) > 1 {
			t.Fatal("it drained twice")
		}
		for _, n := range o.nodes {
			if !pki.ValidName(n.Name) || len(n.Labels) > maxLabels || len(n.Software) > maxSoftware {
				t.Fatalf("taken in: %v", n)
			}
		}
	})
}
