package tunnel

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// enrollTimeout bounds an enrolment on either side.
const enrollTimeout = 10 * time.Second

// enrollLinger is how long an answered enrolment may stay.
const enrollLinger = 2 * time.Second

// exporterLabel is the channel binding of RFC 9266.
const exporterLabel = "EXPORTER-Channel-Binding"

// Enroller answers enrolments at the gateway. What it is asked and answers is opaque to this package.
type Enroller interface {
	// Offer returns the gateway's chain in DER, its root last.
	Offer() (chain [][]byte, err error)
	// Enroll checks the request and issues a leaf: its chain in DER without the root. exporter is the connection's
	// channel binding. An *EnrollError is told to the node, anything else only as "internal".
	Enroll(ctx context.Context, r *EnrollRequest, exporter []byte) (chain [][]byte, err error)
}

// EnrollError is a refusal that the node is told.
type EnrollError struct {
	Code   string // token_invalid, token_expired, token_spent, revoked, bad_csr, store_unavailable, internal
	Reason string
}

// Error implements error.
func (e *EnrollError) Error() string { return "enrolment refused: " + e.Code + ": " + e.Reason }

// serveEnroll answers one enrolment. The gateway speaks first, so that the node can check it before it shows its token.
func serveEnroll(c *quic.Conn, st *Settings) {
	ctx, cancel := context.WithTimeout(c.Context(), enrollTimeout)
	defer cancel()
	err := answerEnroll(ctx, c, st)
	if err != nil {
		st.Log.Info("enrolment failed", zap.Stringer("remote", c.RemoteAddr()), zap.Error(err))
	}
	// The node closes once it has read the answer; closing here first could overtake it.
	select {
	case <-c.Context().Done():
	case <-time.After(enrollLinger):
	}
	_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseNone), "")
}

func answerEnroll(ctx context.Context, c *quic.Conn, st *Settings) error {
	chain, err := st.Enroller.Offer()
	if err != nil {
		return err
	}
	stream, err := c.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	_ = stream.SetReadDeadline(time.Now().Add(enrollTimeout))
	ctl := newControl(stream)
	offer := &wire.EnrollOffer{Chain: chain, GatewayTimeNs: st.now()}
	if err := ctl.send(wire.TypeEnrollOffer, offer); err != nil {
		return err
	}
	req := new(EnrollRequest)
	if err := ctl.expect(wire.TypeEnrollRequest, req); err != nil {
		return err
	}
	cs := c.ConnectionState().TLS
	exporter, err := cs.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return err
	}
	answer := new(wire.EnrollResult)
	answer.Chain, err = st.Enroller.Enroll(ctx, req, exporter)
	if err != nil {
		refusal := &EnrollError{Code: "internal"}
		errors.As(err, &refusal)
		answer = &wire.EnrollResult{Error: refusal.Code, Reason: refusal.Reason}
	}
	return errors.Join(err, ctl.send(wire.TypeEnrollResult, answer), stream.Close())
}

// Offer is what a gateway shows of itself before a node asks for anything.
type Offer struct {
	// Leaf is the certificate of the TLS connection.
	Leaf *x509.Certificate
	// Chain is the gateway's chain in DER, its root last.
	Chain [][]byte
	// GatewayTime is the gateway's clock.
	GatewayTime time.Time
	// Exporter is the connection's channel binding.
	Exporter []byte
}

// Enroll asks the gateway at addr for a leaf. request sees the offer first, must check it, and returns what to ask. The answer is a chain in DER
// without the root. Errors are *EnrollError where the gateway refused.
func Enroll(ctx context.Context, addr *net.UDPAddr, request func(Offer) (*EnrollRequest, error)) (chain [][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, enrollTimeout)
	defer cancel()
	c, done, err := dialQUIC(ctx, addr, enrollTLS(), 1, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseNone), "")
		done()
	}()
	chain, err = askEnroll(ctx, c, request)
	if err != nil && c.Context().Err() != nil {
		err = context.Cause(c.Context())
	}
	return chain, classify(err)
}

func askEnroll(ctx context.Context, c *quic.Conn, request func(Offer) (*EnrollRequest, error)) ([][]byte, error) {
	stream, err := c.AcceptStream(ctx)
	if err != nil {
		return nil, err
	}
	_ = stream.SetReadDeadline(time.Now().Add(enrollTimeout))
	ctl := newControl(stream)
	var offer wire.EnrollOffer
	if err := ctl.expect(wire.TypeEnrollOffer, &offer); err != nil {
		return nil, err
	}
	cs := c.ConnectionState().TLS
	exporter, err := cs.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return nil, err
	}
	req, err := request(Offer{
		Leaf: cs.PeerCertificates[0], Chain: offer.Chain, GatewayTime: time.Unix(0, offer.GatewayTimeNs), Exporter: exporter,
	})
	if err != nil {
		return nil, fmt.Errorf("checking the gateway: %w", err)
	}
	if err := ctl.send(wire.TypeEnrollRequest, req); err != nil {
		return nil, err
	}
	var answer wire.EnrollResult
	if err := ctl.expect(wire.TypeEnrollResult, &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, &EnrollError{Code: answer.Error, Reason: answer.Reason}
	}
	return answer.Chain, nil
}
