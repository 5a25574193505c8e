package tunnel

import (
	"context"
	"fmt"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// Bounds on Register, checked before the Registrar sees it.
const (
	maxLabels     = 32
	maxLabelBytes = 256
	maxTargets    = 64
	instanceBytes = 16
	maxSoftware   = 64
)

// serveNode runs one connection of a node from its first stream to its end.
func serveNode(c *quic.Conn, st *Settings, registered func()) error {
	cs := c.ConnectionState().TLS
	if len(cs.PeerCertificates) == 0 {
		return refuse(wire.CloseIdentity, "no certificate")
	}
	id, err := pki.IDFromCertificate(cs.PeerCertificates[0])
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
		st: st, ctx: c.Context(), id: id, remote: c.RemoteAddr(), since: time.Now(), expires: cs.PeerCertificates[0].NotAfter, ctl: newControl(stream), register: new(Register),
		beats: beats{born: time.Now()}, probed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.lane = &Lane{session: s, conn: c}
	_ = stream.SetReadDeadline(time.Now().Add(registerTimeout))
	if err := s.ctl.expect(wire.TypeRegister, s.register); err != nil {
		return err
	}
	if err := s.checkRegister(); err != nil {
		return err
	}
	if k := s.register.RecipientKey; k != nil {
		if err := s.takeRecipient(k); err != nil {
			return err
		}
	}
	answer, err := st.Registrar.Register(ctx, s, s.register)
	if err != nil {
		return err
	}
	s.generation.Store(answer.Generation)
	registered()
	_ = stream.SetReadDeadline(time.Time{})
	return s.serve(answer)
}

func (s *Session) checkRegister() error {
	r := s.register
	switch {
	case r.Version != wire.Version:
		return refuse(wire.CloseVersion, "protocol version %d; this gateway speaks %d", r.Version, wire.Version)
	case !pki.ValidName(r.Node):
		return refuse(wire.CloseBadNodeID, "a node's name is [a-z0-9][a-z0-9._-]{0,62}")
	case r.Node != s.id.Name:
		return refuse(wire.CloseIdentityMismatch, "registered as %s with the certificate of %s", r.Node, s.id.Name)
	case len(r.Instance) != instanceBytes:
		return fmt.Errorf("%w: instance of %d bytes", wire.ErrFrame, len(r.Instance))
	case len(r.Adapters) > maxTargets:
		return fmt.Errorf("%w: more adapters than a node may have", wire.ErrFrame)
	}
	return checkLabels(r.Labels, r.Software)
}

func checkLabels(labels map[string]string, software string) error {
	if len(labels) > maxLabels || len(software) > maxSoftware {
		return fmt.Errorf("%w: more labels or text than a node may have", wire.ErrFrame)
	}
	for k, v := range labels {
		if len(k)+len(v) > maxLabelBytes {
			return fmt.Errorf("%w: label of %d bytes", wire.ErrFrame, len(k)+len(v))
		}
	}
	return nil
}
