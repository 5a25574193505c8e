package tunnel

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// DialConfig is what a node brings to one session.
type DialConfig struct {
	// Identity is the node's leaf.
	Identity *pki.Identity
	// Addr is the gateway's address; names are resolved by the caller, anew for each dial.
	Addr *net.UDPAddr
	// Accept, if not nil, is asked about the gateway that the certificate proves, before Register is sent. Its error ends the dial: the gateway has
	// then heard of no node.
	Accept func(gateway pki.ID) error
	// Register is the node's first message. Version is filled in.
	Register *Register
	// Handler gets the runs.
	Handler Handler
	// Events gets what the gateway says on the control stream; nil fields are skipped.
	Events Events
	// Socket opens the socket to dial from, which the session then owns; nil opens a new UDP socket.
	Socket func() (net.PacketConn, error)
}

// Events are called from the goroutine that reads the control stream and must not block.
type Events struct {
	// Drain: the gateway asks for no new runs; with leave it goes away.
	Drain func(reason string, leave bool)
	// GatewayTime is the gateway's clock, in Unix nanoseconds, as each beat brings it. The gateway has read it since asked, when the beat was sent that it
	// echoes; a beat that echoes none that is remembered says nothing.
	GatewayTime func(ns int64, asked time.Time)
	// Keys, Projection and Revoke are what leases depend on; once they return nil the node acknowledges. An error ends the session.
	Keys       func(keys []*IssuerKey) error
	Projection func(*Projection) error
	Revoke     func(*Revoke) error
}

// Dial opens a connection to the gateway from a new UDP socket and registers. The session is not ready yet: call Ready when the
// providers have been probed. Errors are *CloseError where the gateway said why, and wrap ErrUDPBlocked or ErrNotFairway where that is it.
//
// A new socket, hence a new port, for each dial: a stale entry in a NAT or conntrack table then cannot swallow the packets.
func Dial(ctx context.Context, cfg DialConfig) (*NodeSession, error) {
	c, done, err := dialQUIC(ctx, cfg.Addr, nodeTLS(cfg.Identity), nodeStreams, cfg.Socket)
	if err != nil {
		return nil, err
	}
	if err := accepted(c, cfg.Accept); err != nil {
		_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseNone), "")
		done()
		return nil, err
	}
	s, err := register(ctx, c, cfg)
	return begun(c, done, s, err)
}

// begun gives the session that the first words on c have come to, or closes c and says why there is none. done is called when c is no longer needed.
func begun(c *quic.Conn, done func(), s *NodeSession, err error) (*NodeSession, error) {
	if err != nil {
		if c.Context().Err() != nil {
			err = context.Cause(c.Context())
		}
		err = classify(err)
		code, reason := closeFor(err)
		_ = c.CloseWithError(quic.ApplicationErrorCode(code), reason)
		done()
		return nil, err
	}
	go func() {
		<-s.done
		done()
	}()
	return s, nil
}

// dialQUIC connects from a new socket. done closes the socket, once the connection has been closed.
func dialQUIC(ctx context.Context, addr *net.UDPAddr, conf *tls.Config, streams int64, socket func() (net.PacketConn, error)) (*quic.Conn, func(), error) {
	if socket == nil {
		socket = func() (net.PacketConn, error) { return newSocket(addr) }
	}
	pc, err := socket()
	if err != nil {
		return nil, nil, fmt.Errorf("opening a UDP socket: %w", err)
	}
	tr := &quic.Transport{Conn: steady(pc)}
	done := func() {
		_ = tr.Close()
		_ = pc.Close()
	}
	c, err := tr.Dial(ctx, addr, conf, quicConfig(streams))
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("dialling %s: %w", addr, classify(err))
	}
	return c, done, nil
}

// newSocket opens a UDP socket of addr's family: a dual-stack one cannot set the DF bit everywhere.
func newSocket(addr *net.UDPAddr) (net.PacketConn, error) {
	if addr.IP.To4() != nil {
		return net.ListenUDP("udp4", nil)
	}
	return net.ListenUDP("udp6", nil)
}

// accepted asks the dialler whether it wants a session with the gateway that c leads to.
func accepted(c *quic.Conn, accept func(pki.ID) error) error {
	if accept == nil {
		return nil
	}
	id, err := pki.IDFromCertificate(c.ConnectionState().TLS.PeerCertificates[0])
	if err != nil {
		return err
	}
	return accept(id)
}

func register(ctx context.Context, c *quic.Conn, cfg DialConfig) (*NodeSession, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		// Frees the reads and writes below; the session that they lead to is given up.
		_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseNone), "registration took too long")
	})
	defer stop()
	stream, err := c.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	ctl := newControl(stream)
	cfg.Register.Version = wire.Version
	if err := ctl.send(wire.TypeRegister, cfg.Register); err != nil {
		return nil, err
	}
	answer := new(Registered)
	for {
		t, p, err := ctl.read()
		if err != nil {
			return nil, err
		}
		if t == wire.TypeHeartbeat {
			continue // the gateway may beat as soon as it has registered us
		}
		if t != wire.TypeRegistered {
			return nil, fmt.Errorf("%w: frame 0x%x where Registered is due", errOrder, uint64(t))
		}
		if err := wire.Unmarshal(p, answer); err != nil {
			return nil, err
		}
		break
	}
	if answer.Generation <= cfg.Register.Watermark {
		return nil, fmt.Errorf("%w: generation %d is not above this node's watermark %d", errOrder, answer.Generation, cfg.Register.Watermark)
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	return newNodeSession(c, ctl, answer, cfg), nil
}
