package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// rawNode is a node that sends what it likes.
func (r *rig) rawNode(name string) (*quic.Conn, *control) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, done, err := dialQUIC(ctx, r.ln.Addr().(*net.UDPAddr), nodeTLS(identity(r.t, r.ca, pki.RoleNode, name)), nodeStreams, nil)
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

// closedWith waits for the gateway to close c.
func closedWith(t *testing.T, c *quic.Conn) CloseCode {
	t.Helper()
	select {
	case <-c.Context().Done():
	case <-time.After(15 * time.Second):
		t.Fatal("the connection was not closed")
	}
	var ce *CloseError
	if !errors.As(classify(context.Cause(c.Context())), &ce) {
		t.Fatalf("closed with %v", context.Cause(c.Context()))
	}
	return ce.Code
}

// Attacks 21, 22, 26, 27, 28, 39 of the control stream: each ends that connection and nothing else.
func TestAttacks21to28Control(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, bystander := r.node("bystander", echo)
	hello := func() *Register { return &Register{Version: wire.Version, Node: "n1", Instance: newInstance()} }
	for _, tt := range []struct {
		name string
		send func(c *control)
		code CloseCode
	}{
		{"21 garbage", func(c *control) { _, _ = c.stream.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }, CloseProtocol},
		{"21 an old version", func(c *control) { m := hello(); m.Version = 0; _ = c.send(wire.TypeRegister, m) }, CloseVersion},
		{"26 Ready without Register", func(c *control) { _ = c.send(wire.TypeReady, &Ready{}) }, CloseProtocol},
		{"22 Register twice", func(c *control) { _ = c.send(wire.TypeRegister, hello()); _ = c.send(wire.TypeRegister, hello()) }, CloseProtocol},
		{"22 Status before Ready", func(c *control) { _ = c.send(wire.TypeRegister, hello()); _ = c.send(wire.TypeStatus, &Status{Seq: 1}) }, CloseProtocol},
		{"26 Ready of another generation", func(c *control) {
			_ = c.send(wire.TypeRegister, hello())
			_ = c.send(wire.TypeReady, &Ready{Generation: 1 << 50})
		}, CloseProtocol},
		{"27 a length of 2^32-1", func(c *control) { _, _ = c.stream.Write([]byte{0x01, 0xff, 0xff, 0xff, 0xff, 0x0f}) }, CloseProtocol},
		{"28 an unknown critical frame", func(c *control) { _ = c.send(wire.TypeRegister, hello()); _, _ = c.stream.Write([]byte{0x7f, 0}) }, CloseProtocol},
		{"39 a run frame on the control stream", func(c *control) { _ = c.send(wire.TypeRegister, hello()); _, _ = c.stream.Write([]byte{0x4b, 0}) }, CloseProtocol},
		{"23 another node's name", func(c *control) { m := hello(); m.Node = "n2"; _ = c.send(wire.TypeRegister, m) }, CloseIdentityMismatch},
		{"24 a name with a slash", func(c *control) { m := hello(); m.Node = "n1/../n2"; _ = c.send(wire.TypeRegister, m) }, CloseBadNodeID},
		{"24 a name of 1 KiB", func(c *control) { m := hello(); m.Node = strings.Repeat("n", 1024); _ = c.send(wire.TypeRegister, m) }, CloseBadNodeID},
		{"24 a name that looks like another", func(c *control) { m := hello(); m.Node = "n\u0131"; _ = c.send(wire.TypeRegister, m) }, CloseBadNodeID},
		{"40 text that is not UTF-8", func(c *control) { _, _ = c.stream.Write([]byte{0x01, 4, 0x2a, 2, 0xff, 0xfe}) }, CloseProtocol},
		{"27 a message that is no protobuf", func(c *control) { _, _ = c.stream.Write([]byte{0x01, 2, 0xff, 0xff}) }, CloseProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, ctl := r.rawNode("n1")
			tt.send(ctl)
			if code := closedWith(t, c); code != tt.code {
				t.Errorf("closed with %s, want %s", code, tt.code)
			}
		})
	}
	if bystander.State() != StateReady {
		t.Errorf("another session is %s", bystander.State())
	}
	if res := collect(open(t, bystander, "after", []byte("x"))); res.terminal.GetOutcome() != Completed {
		t.Errorf("another session's run: %+v", res)
	}
}

// A connection that never registers is closed, and gives its place back.
func TestSilentNewcomerIsClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, _ := r.rawNode("n1")
	if code := closedWith(t, c); code != CloseProtocol {
		t.Errorf("closed with %s", code)
	}
	eventually(t, "its place is free", func() bool { return len(r.ln.registering) == 0 })
}

// Attack 34: a node cannot open unidirectional streams, nor more than 16 bidirectional ones beside the control stream.
func TestAttack34Streams(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, _ := r.rawNode("n1")
	if _, err := c.OpenUniStream(); err == nil {
		t.Error("a unidirectional stream was allowed")
	}
	n := 1
	for ; n < 100; n++ {
		if _, err := c.OpenStream(); err != nil {
			break
		}
	}
	if n != gatewayStreams {
		t.Errorf("%d streams were allowed, want %d", n, gatewayStreams)
	}
}

// Attacks 29, 30, 31, 32 and 40 of run streams: wrong order is the end of that run alone.
func TestAttacks29to32Runs(t *testing.T) {
	t.Parallel()
	accepted := wire.AppendHeader(nil, wire.TypeAccepted, 0)
	head := must(wire.AppendMessage(nil, wire.TypeHead, &Head{Status: 200}))
	data := wire.AppendData(nil, []byte("x"))
	done := must(wire.AppendMessage(nil, wire.TypeTerminal, &Terminal{Outcome: Completed, Bytes: 1}))
	refused := must(wire.AppendMessage(nil, wire.TypeRefused, &Refused{Code: CodeNodeBusy}))
	join := func(bs ...[]byte) []byte { return bytes.Join(bs, nil) }
	for _, tt := range []struct {
		name string
		send []byte
		code string // of the end; "" is completed
		late int
	}{
		{"all in order", join(accepted, head, data, done), "", 0},
		{"30 data before a head", join(accepted, data), CodeProtocolOrder, 0},
		{"30 two heads", join(accepted, head, head), CodeProtocolOrder, 0},
		{"30 a head before Accepted", head, CodeProtocolOrder, 0},
		{"30 Accepted twice", join(accepted, accepted), CodeProtocolOrder, 0},
		{"30 Refused after a head", join(accepted, head, refused), CodeProtocolOrder, 0},
		{"32 a status of 99", join(accepted, must(wire.AppendMessage(nil, wire.TypeHead, &Head{Status: 99}))), CodeProtocolOrder, 0},
		{"32 a status of 101", join(accepted, must(wire.AppendMessage(nil, wire.TypeHead, &Head{Status: 101}))), CodeProtocolOrder, 0},
		{"32 completed without a head", join(accepted, must(wire.AppendMessage(nil, wire.TypeTerminal, &Terminal{Outcome: Completed}))), CodeProtocolOrder, 0},
		{"32 completed with another count of bytes", join(accepted, head, data, must(wire.AppendMessage(nil, wire.TypeTerminal, &Terminal{Outcome: Completed, Bytes: 7}))), CodeProtocolOrder, 0},
		{"32 an outcome that does not exist", join(accepted, must(wire.AppendMessage(nil, wire.TypeTerminal, &Terminal{Outcome: 9}))), CodeProtocolOrder, 0},
		{"29 a control frame", join(accepted, wire.AppendHeader(nil, wire.TypeReadyAck, 0)), CodeProtocolOrder, 0},
		{"28 an unknown critical frame", []byte{0x7f, 0}, CodeProtocolOrder, 0},
		{"31 an end without a terminal", join(accepted, head, data), CodeNodeLost, 0},
		{"31 two terminals and data after", join(accepted, head, data, done, done, data), "", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			_, s := r.node("n1", func(_ context.Context, nr *NodeRun) {
				_, _ = nr.stream.Write(tt.send)
				nr.ended.Store(true)
				_ = nr.stream.Close()
				_, _ = io.Copy(io.Discard, nr)
			})
			res := collect(open(t, s, "r1", nil))
			if res.terminal == nil || res.terminal.Code != tt.code || (tt.code == "") != (res.terminal.Outcome == Completed) {
				t.Fatalf("%+v", res.terminal)
			}
			eventually(t, "late frames are counted", func() bool { return r.reg.fencedCount("late_frame") == tt.late })
			if s.State() != StateReady {
				t.Errorf("the session is %s", s.State())
			}
		})
	}
}

// Attack 36: a node that cuts its answer into single bytes costs what its client takes, no more, and loses nothing.
func TestAttack36OneByteFrames(t *testing.T) {
	t.Parallel()
	const n = 100_000
	r := newRig(t)
	_, s := r.node("n1", func(_ context.Context, nr *NodeRun) {
		_ = nr.Accept()
		_ = nr.SendHead(&Head{Status: 200}, true)
		for range n {
			if nr.SendData([]byte("x"), true) != nil {
				break
			}
		}
		_ = nr.Finish(&Terminal{Outcome: Completed})
	})
	if res := collect(open(t, s, "r1", nil)); res.terminal.Outcome != Completed || len(res.body) != n || res.frames != n {
		t.Fatalf("%v: %d bytes in %d frames", res.terminal, len(res.body), res.frames)
	}
}

// Attack 38: a Cancel that names no run, another's or one that has ended does nothing to others.
func TestAttack38Cancel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	goOn := make(chan struct{})
	_, s := r.node("n1", func(ctx context.Context, nr *NodeRun) {
		_ = nr.Accept()
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		_ = nr.SendHead(&Head{Status: 200}, false)
		_ = nr.Finish(&Terminal{Outcome: Completed})
	})
	run := open(t, s, "r1", nil)
	run.Next()
	for _, id := range []string{"", "r2", "r1 ", "R1"} {
		if err := s.CancelRun(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Probe(context.Background()); err != nil { // the node has read them all
		t.Fatal(err)
	}
	close(goOn)
	if res := collect(run); res.terminal.Outcome != Completed {
		t.Fatalf("%v", res.terminal)
	}
	if err := s.CancelRun("r1"); err != nil || s.State() != StateReady {
		t.Fatalf("%v, %s", err, s.State())
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// pipeStream is a control stream without a network.
type pipeStream struct {
	io.Reader
	out bytes.Buffer
}

func (p *pipeStream) Write(b []byte) (int, error)      { return p.out.Write(b) }
func (p *pipeStream) SetWriteDeadline(time.Time) error { return nil }

// FuzzControlSequence: whatever a registered node sends, the session ends or goes on, its state only moves forward, Ready is told at most once and
// never after draining, and nothing panics.
func FuzzControlSequence(f *testing.F) {
	beat := must(wire.AppendMessage(nil, wire.TypeHeartbeat, &wire.Heartbeat{Seq: 1, Echo: 1}))
	ready := must(wire.AppendMessage(nil, wire.TypeReady, &Ready{Generation: 7, Targets: []*Target{{Name: "t", Adapter: "ollama"}}}))
	status := must(wire.AppendMessage(nil, wire.TypeStatus, &Status{Seq: 1}))
	draining := must(wire.AppendMessage(nil, wire.TypeDraining, &wire.Draining{}))
	renew := must(wire.AppendMessage(nil, wire.TypeRenew, &wire.Renew{Csr: []byte("x")}))
	f.Add(bytes.Join([][]byte{beat, ready, status, draining}, nil))
	f.Add(bytes.Join([][]byte{ready, ready}, nil))
	f.Add(bytes.Join([][]byte{draining, ready, renew}, nil))
	f.Add([]byte{0x7e, 0, 0x0a, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		reg := &admitAll{
			sessions: map[string]*Session{}, targets: map[string][]*Target{}, fenced: map[string]int{},
			gone: make(chan *Session, 1), ready: make(chan *Session, 8), changed: make(chan State, 8),
		}
		s := &Session{
			st: &Settings{Registrar: reg, Log: zap.NewNop()}, ctx: context.Background(), register: &Register{Node: "n1"}, id: pki.ID{Name: "n1"},
			ctl: newControl(&pipeStream{Reader: bytes.NewReader(in)}), beats: beats{born: time.Now()}, probed: make(chan struct{}, 1), done: make(chan struct{}),
		}
		s.generation.Store(7)
		s.advance(StateRegistered)
		last := StateRegistered
		var seq uint64
		for {
			ty, p, err := s.ctl.read()
			if err != nil {
				break
			}
			before := State(s.state.Load())
			err = s.handle(ty, p, &seq)
			now := State(s.state.Load())
			if now < last {
				t.Fatalf("state went from %s to %s", last, now)
			}
			if now == StateReady && before != StateReady && ty != wire.TypeReady {
				t.Fatalf("ready by frame %#x", uint64(ty))
			}
			last = now
			if err != nil {
				break
			}
		}
		if len(reg.ready) > 1 {
			t.Fatal("ready twice")
		}
	})
}
