package nodeclient

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

// renewalContext separates the signature of a renewal from everything else that a leaf's key signs.
const renewalContext = "fairway-renew/v1\x00"

// Enroll joins the fleet that token names: the gateway's root must be the one whose hash the token holds; then the gateway signs a new key.
// A refusal for good is a *FinalError.
func Enroll(ctx context.Context, gateway, token string, log *zap.Logger) (*pki.Identity, error) {
	return enroll(ctx, gateway, token, log, new(atomic.Bool))
}

// enroll is Enroll; clock says whether the warning about clocks was given.
func enroll(ctx context.Context, gateway, token string, log *zap.Logger, clock *atomic.Bool) (*pki.Identity, error) {
	t, err := pki.ReadJoinToken(token)
	if err != nil {
		return nil, &FinalError{Err: err}
	}
	e := enrolment{gateway: gateway, log: log, clock: clock}
	e.check = func(certs []*x509.Certificate, now time.Time) (roots [][]byte, err error) {
		_, root, err := pki.VerifyPinned(certs, t.CA, t.Issuer.TrustDomain, now)
		var ve *pki.VerifyError
		if errors.As(err, &ve) && ve.Reason == pki.ReasonUntrusted {
			// The token names one root; a gateway of another is the wrong one, however often it is asked. A clock that is
			// still to be set is another matter.
			return nil, &FinalError{Err: err}
		}
		if err != nil {
			return nil, err
		}
		return [][]byte{root.Raw}, nil
	}
	e.prove = func(r *tunnel.EnrollRequest, _ []byte) error {
		r.Token = token
		return nil
	}
	id, err := e.run(ctx)
	if err == nil && (id.ID.Name != t.Node || id.ID.Role != pki.RoleNode) {
		return nil, fmt.Errorf("the gateway issued %s; the token is for node %s", id.ID, t.Node)
	}
	return id, err
}

// renewExpired gets a new leaf for one that has expired: its key proves who asks.
func renewExpired(ctx context.Context, gateway string, old *pki.Identity, log *zap.Logger) (*pki.Identity, error) {
	e := enrolment{gateway: gateway, log: log, clock: new(atomic.Bool)}
	e.check = func(certs []*x509.Certificate, now time.Time) ([][]byte, error) {
		_, err := pki.VerifyPeer(certs, old.Roots, old.ID.TrustDomain, pki.RoleGateway, now)
		return old.RootDER, err
	}
	e.prove = func(r *tunnel.EnrollRequest, exporter []byte) (err error) {
		r.ExpiredLeaf = bytes.Join(old.Certificate.Certificate, nil)
		r.Proof, err = renewalProof(old.Certificate.PrivateKey, exporter)
		return err
	}
	id, err := e.run(ctx)
	if err == nil && id.ID != old.ID {
		return nil, fmt.Errorf("the gateway issued %s in place of %s", id.ID, old.ID)
	}
	return id, err
}

// renewalProof signs the connection's exporter value with a leaf's key.
func renewalProof(key crypto.PrivateKey, exporter []byte) ([]byte, error) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the key of the expired certificate cannot sign (%T)", key)
	}
	message := append([]byte(renewalContext), exporter...)
	if _, ok := signer.Public().(ed25519.PublicKey); ok {
		return signer.Sign(rand.Reader, message, crypto.Hash(0))
	}
	sum := sha256.Sum256(message)
	return signer.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// enrolment is one exchange for a leaf.
type enrolment struct {
	gateway string
	log     *zap.Logger
	clock   *atomic.Bool // the warning about clocks was given
	// check verifies the gateway's chain, leaf first, and returns the roots to trust.
	check func(certs []*x509.Certificate, now time.Time) (roots [][]byte, err error)
	// prove adds what entitles the node to a leaf.
	prove func(r *tunnel.EnrollRequest, exporter []byte) error
}

func (e *enrolment) run(ctx context.Context) (id *pki.Identity, err error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		return nil, err
	}
	err = lookup(net.DefaultResolver.LookupNetIP).eachAddress(ctx, e.gateway, func(ctx context.Context, addr netip.AddrPort) error {
		var roots [][]byte
		chain, err := tunnel.Enroll(ctx, net.UDPAddrFromAddrPort(addr), func(o tunnel.Offer) (*tunnel.EnrollRequest, error) {
			if roots, err = e.verify(o); err != nil {
				return nil, err
			}
			r := &tunnel.EnrollRequest{Csr: csr, NodeTimeNs: time.Now().UnixNano()}
			return r, e.prove(r, o.Exporter)
		})
		if err != nil {
			return fmt.Errorf("enrolling at %s: %w", addr, err)
		}
		id, err = pki.NewIdentity(chain, key, roots)
		return err
	})
	return id, err
}

// verify checks what the gateway shows before anything is sent: the certificate of the connection must begin the chain that is offered.
func (e *enrolment) verify(o tunnel.Offer) ([][]byte, error) {
	certs := make([]*x509.Certificate, 0, len(o.Chain))
	for _, der := range o.Chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("the gateway's chain: %w", err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 || !certs[0].Equal(o.Leaf) {
		return nil, errors.New("the gateway offers a chain that is not its connection's")
	}
	now := time.Now()
	clocks := []zap.Field{zap.Time("here", now.UTC()), zap.Time("gateway", o.GatewayTime.UTC())}
	if _, warn := pki.CheckClock(o.GatewayTime, now); warn && e.clock.CompareAndSwap(false, true) {
		e.log.Warn("the clocks of this machine and the gateway differ; certificates depend on them", clocks...)
	}
	roots, err := e.check(certs, now)
	var ve *pki.VerifyError
	if errors.As(err, &ve) && ve.Reason == pki.ReasonExpired {
		return nil, fmt.Errorf("%w (it is %s here and %s at the gateway: are both clocks right?)", err,
			now.UTC().Format(time.RFC3339), o.GatewayTime.UTC().Format(time.RFC3339))
	}
	return roots, err
}
