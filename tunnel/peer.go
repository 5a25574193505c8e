package tunnel

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// Between two gateways of a fleet the one that dials executes: it tells the other what its nodes are, and gets runs for them, as a node would. Each
// dials each, so there are two connections between any two (docs/adr/0008-peer-forwarding.md).

const (
	// peerStreams is how many forwarded runs one gateway may have open at another.
	peerStreams = 4096
	// Control messages and bytes a second that a gateway may send, and at once: it speaks for all of its nodes.
	peerRate       = 1000
	peerBurst      = 10000
	peerBytes      = 32 << 20
	peerBytesBurst = 256 << 20
	// peerNodesBytes is how much of nodes one message holds: a frame is 256 KiB.
	peerNodesBytes = 200 << 10
)

// Peers takes in the other gateways of a fleet, for which a listener opens runs. Calls for one session come one at a time.
type Peers interface {
	// Joined admits a gateway that has dialled in; Session.Node is its name, Session.Generation its process's epoch.
	Joined(s *Session) error
	// Nodes takes in what its nodes are. An error closes the session.
	Nodes(s *Session, nodes []*PeerNode) error
	// Changed tells that the session turned suspect, came back, or drains.
	Changed(s *Session)
	// Left ends s; it comes exactly once for each s that was admitted.
	Left(s *Session)
}

// servePeer runs one connection of another gateway from its first stream to its end.
func servePeer(c *quic.Conn, st *Settings, joined func()) (err error) {
	if st.Peers == nil { // the settings of the handshake had them
		return refuse(wire.CloseIdentity, "this gateway has no others")
	}
	leaf := c.ConnectionState().TLS.PeerCertificates[0]
	id, err := pki.IDFromCertificate(leaf)
	if err != nil {
		return refuse(wire.CloseIdentity, "%v", err)
	}
	ctx, cancel := context.WithTimeout(c.Context(), registerTimeout)
	defer cancel()
	stream, err := c.AcceptStream(ctx)
	if err != nil {
		return err
	}
	s := &Session{
		st: st, ctx: c.Context(), id: id, peer: true, remote: c.RemoteAddr(), since: time.Now(), expires: leaf.NotAfter, ctl: newControl(stream), register: new(Register),
		beats: beats{born: time.Now()}, probed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.lane = &Lane{session: s, conn: c}
	_ = stream.SetReadDeadline(time.Now().Add(registerTimeout))
	var hello PeerHello
	if err := s.ctl.expect(wire.TypePeerHello, &hello); err != nil {
		return err
	}
	switch {
	case hello.Version != wire.Version:
		return refuse(wire.CloseVersion, "protocol version %d; this gateway speaks %d", hello.Version, wire.Version)
	case hello.Gateway != id.Name:
		return refuse(wire.CloseIdentityMismatch, "said hello as %q with the certificate of %s", hello.Gateway, id.Name)
	case hello.Gateway == st.Gateway:
		return refuse(wire.CloseDuplicateNode, "this gateway is %s, too", st.Gateway)
	case len(hello.Software) > maxSoftware:
		return fmt.Errorf("%w: software of %d bytes", wire.ErrFrame, len(hello.Software))
	}
	s.register.Software = hello.Software
	s.generation.Store(hello.Epoch)
	if err := s.ctl.send(wire.TypePeerHello, st.hello()); err != nil {
		return err
	}
	if err := st.Peers.Joined(s); err != nil {
		return err
	}
	joined()
	_ = stream.SetReadDeadline(time.Time{})
	s.beats.lastSeen.Store(int64(time.Since(s.beats.born))) // saying hello took its time; silence counts from here
	s.advance(StateReady)
	log := st.Log.With(zap.String("peer", id.Name), zap.Uint64("epoch", hello.Epoch), zap.Stringer("remote", s.remote))
	log.Info("another gateway is connected", zap.String("software", hello.Software))
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		s.beat()
	}()
	defer func() {
		code, reason := closeFor(err)
		if err != nil && s.ctx.Err() != nil {
			err = classify(context.Cause(s.ctx))
		}
		s.Close(code, reason)
		s.state.Store(int32(StateGone))
		close(s.done)
		<-beating
		st.Peers.Left(s)
		log.Info("another gateway has gone", zap.Error(err))
	}()
	return s.read()
}

func (st *Settings) hello() *PeerHello {
	return &PeerHello{Version: wire.Version, Gateway: st.Gateway, Epoch: st.Epoch, Software: st.Software}
}

// changed tells whoever has admitted s that its state moved.
func (s *Session) changed() {
	if s.peer {
		s.st.Peers.Changed(s)
		return
	}
	s.st.Registrar.Changed(s)
}

// handlePeer takes in one control message of another gateway.
func (s *Session) handlePeer(t wire.Type, p []byte, seq *uint64) error {
	switch t {
	case wire.TypeHeartbeat:
		return s.heartbeat(p)
	case wire.TypePeerNodes:
		var m wire.PeerNodes
		if err := wire.Unmarshal(p, &m); err != nil {
			return err
		}
		if m.Seq != *seq+1 {
			return fmt.Errorf("%w: PeerNodes %d after %d", errOrder, m.Seq, *seq)
		}
		*seq = m.Seq
		for _, n := range m.Nodes {
			if err := checkPeerNode(n); err != nil {
				return err
			}
		}
		return s.st.Peers.Nodes(s, m.Nodes)
	case wire.TypeDraining:
		return s.draining(p)
	}
	return fmt.Errorf("%w: frame 0x%x from a gateway", errOrder, uint64(t))
}

// checkPeerNode bounds what is said of a node itself, as Register is bounded.
func checkPeerNode(n *PeerNode) error {
	if !pki.ValidName(n.Name) {
		return fmt.Errorf("%w: a node's name", wire.ErrFrame)
	}
	return checkLabels(n.Labels, n.Software)
}

// PeerConfig is what a gateway brings to a connection with another one.
type PeerConfig struct {
	// Identity is the dialling gateway's leaf.
	Identity *pki.Identity
	// Addr is where the other one listens, Name what it is called: another one that answers there is refused.
	Addr *net.UDPAddr
	Name string
	// Settings are the dialling gateway's.
	Settings *Settings
	// Handler gets the runs that the other one forwards.
	Handler Handler
	// Drain is told that the other one goes away.
	Drain func(reason string)
	// Socket opens the socket to dial from, which the session then owns; nil opens a new UDP socket.
	Socket func() (net.PacketConn, error)
}

// DialPeer connects to another gateway of the fleet and offers to execute for it. Runs may come from then on; they carry the generation of the node's
// session that they are for, which the Handler checks. Errors are as Dial's.
func DialPeer(ctx context.Context, cfg PeerConfig) (*NodeSession, error) {
	c, done, err := dialQUIC(ctx, cfg.Addr, nodeTLS(cfg.Identity), peerStreams, cfg.Socket)
	if err != nil {
		return nil, err
	}
	s, err := hello(ctx, c, cfg)
	return begun(c, done, s, err)
}

func hello(ctx context.Context, c *quic.Conn, cfg PeerConfig) (*NodeSession, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		// Frees the reads and writes below.
		_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseNone), "the other gateway took too long")
	})
	defer stop()
	id, err := pki.IDFromCertificate(c.ConnectionState().TLS.PeerCertificates[0])
	if err != nil {
		return nil, err
	}
	if id.Name != cfg.Name {
		return nil, refuse(wire.CloseIdentityMismatch, "gateway %s answers at the address of %s", id.Name, cfg.Name)
	}
	stream, err := c.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	ctl := newControl(stream)
	if err := ctl.send(wire.TypePeerHello, cfg.Settings.hello()); err != nil {
		return nil, err
	}
	answer := new(PeerHello)
	if err := ctl.expect(wire.TypePeerHello, answer); err != nil {
		return nil, err
	}
	if answer.Gateway != cfg.Name || answer.Version != wire.Version {
		return nil, fmt.Errorf("%w: gateway %q, version %d, answers as %s", errOrder, answer.Gateway, answer.Version, cfg.Name)
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	events := Events{}
	if cfg.Drain != nil {
		events.Drain = func(reason string, leave bool) {
			if leave {
				cfg.Drain(reason)
			}
		}
	}
	s := newNodeSession(c, ctl, &Registered{Gateway: answer.Gateway, Epoch: answer.Epoch, Software: answer.Software}, DialConfig{Identity: cfg.Identity, Handler: cfg.Handler, Events: events})
	s.ready.Store(true)
	return s, nil
}

// Nodes tells the other gateway what has changed of the nodes here, in as many messages as it takes. Each of nodes must be at most 200 KiB when it is
// encoded; one that is more stands in several.
func (s *NodeSession) Nodes(nodes []*PeerNode) error {
	s.seqMu.Lock()
	defer s.seqMu.Unlock()
	for len(nodes) > 0 {
		n, size := 0, 0
		for n < len(nodes) {
			if size += proto.Size(nodes[n]) + 8; n > 0 && size > peerNodesBytes {
				break
			}
			n++
		}
		s.seq++
		if err := s.ctl.send(wire.TypePeerNodes, &wire.PeerNodes{Seq: s.seq, Nodes: nodes[:n]}); err != nil {
			return err
		}
		nodes = nodes[n:]
	}
	return nil
}
