package gateway

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// EmbeddedPrefix begins the names that only nodes inside a gateway's process have.
const EmbeddedPrefix = "embedded-"

// Token mints a join token for a node.
func (h *Hub) Token(st *Settings, node string, ttl time.Duration, uses int) (token string, expires time.Time, err error) {
	if st.Authority == nil {
		return "", time.Time{}, errors.New("this gateway does not issue identities (identity files): give the node a certificate of your PKI")
	}
	if strings.HasPrefix(node, EmbeddedPrefix) {
		return "", time.Time{}, fmt.Errorf("names that begin with %s are the gateway's own", EmbeddedPrefix)
	}
	root, err := st.Authority.Root()
	if err != nil {
		return "", time.Time{}, err
	}
	issuer := pki.ID{TrustDomain: st.TrustDomain, Role: pki.RoleGateway, Name: st.Gateway}
	token, t, err := pki.MintJoinToken(st.JoinKey, issuer, node, ttl, uses, pki.RootPin(root), time.Now())
	return token, t.Expires, err
}

// enroller answers enrolments: a leaf for a join token, or for an expired leaf whose key the node still has.
type enroller struct {
	hub      *Hub
	settings *Settings
}

// Offer returns the gateway's chain with the root.
func (e *enroller) Offer() ([][]byte, error) {
	id, err := e.settings.Identity()
	if err != nil {
		return nil, err
	}
	return id.CertificateWithRoot().Certificate, nil
}

// Enroll checks the request and issues a leaf.
func (e *enroller) Enroll(ctx context.Context, r *tunnel.EnrollRequest, exporter []byte) ([][]byte, error) {
	if len(r.ExpiredLeaf) > 0 {
		return e.renew(ctx, r, exporter)
	}
	pub, ok := e.settings.JoinKey.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("no join key")
	}
	t, err := pki.VerifyJoinToken(r.Token, pub, time.Now())
	if errors.Is(err, pki.ErrTokenExpired) {
		return nil, &tunnel.EnrollError{Code: "token_expired", Reason: "the join token has expired; ask for a new one"}
	}
	if err != nil || strings.HasPrefix(t.Node, EmbeddedPrefix) {
		return nil, &tunnel.EnrollError{Code: "token_invalid", Reason: "the join token was not issued by this gateway"}
	}
	if err := e.hub.mayEnroll(ctx, t.Node); err != nil {
		return nil, err
	}
	id := pki.ID{TrustDomain: e.settings.TrustDomain, Role: pki.RoleNode, Name: t.Node}
	// Issued before the use is counted: a request that is no good must not spend the token.
	chain, err := e.settings.Authority.IssueCSR(id, r.Csr)
	if err != nil {
		return nil, &tunnel.EnrollError{Code: "bad_csr", Reason: err.Error()}
	}
	switch err := e.hub.cfg.Store.RedeemToken(ctx, t.ID, t.Uses, t.Expires); {
	case errors.Is(err, store.ErrTokenSpent):
		return nil, &tunnel.EnrollError{Code: "token_spent", Reason: "the join token was used up; ask for a new one"}
	case errors.Is(err, store.ErrTokenExpired):
		return nil, &tunnel.EnrollError{Code: "token_expired", Reason: "the join token has expired; ask for a new one"}
	case err != nil:
		return nil, &tunnel.EnrollError{Code: "store_unavailable", Reason: "the gateway cannot record the token's use now"}
	}
	e.settings.Log.Info("enrolled a node", zap.String("node", t.Node), zap.Time("node_time", time.Unix(0, r.NodeTimeNs)))
	return chain, nil
}

// mayEnroll refuses nodes that are revoked.
func (h *Hub) mayEnroll(ctx context.Context, node string) error {
	rec, err := h.cfg.Store.Node(ctx, node)
	if err != nil {
		return &tunnel.EnrollError{Code: "store_unavailable", Reason: "the gateway's store is unavailable"}
	}
	if rec.Disabled {
		return &tunnel.EnrollError{Code: "revoked", Reason: "the node is revoked"}
	}
	return nil
}

// renewalContext separates the signature of a renewal from everything else that a leaf's key signs.
const renewalContext = "fairway-renew/v1\x00"

// renew gives a new leaf for one that expired at most 90 days ago. The proof is a signature over this connection's exporter value.
func (e *enroller) renew(ctx context.Context, r *tunnel.EnrollRequest, exporter []byte) ([][]byte, error) {
	bad := func(reason string) error { return &tunnel.EnrollError{Code: "not_renewable", Reason: reason} }
	gw, err := e.settings.Identity()
	if err != nil {
		return nil, err
	}
	certs, err := x509.ParseCertificates(r.ExpiredLeaf)
	if err != nil || len(certs) == 0 {
		return nil, bad("the expired certificate could not be read")
	}
	id, err := pki.VerifyRenewal(certs, gw.Roots, e.settings.TrustDomain, pki.RoleNode, time.Now())
	if err != nil {
		return nil, bad(err.Error())
	}
	if !verifySignature(certs[0].PublicKey, append([]byte(renewalContext), exporter...), r.Proof) {
		return nil, bad("the proof does not match the certificate")
	}
	if err := e.hub.mayEnroll(ctx, id.Name); err != nil {
		return nil, err
	}
	chain, err := e.settings.Authority.IssueCSR(id, r.Csr)
	if err != nil {
		return nil, &tunnel.EnrollError{Code: "bad_csr", Reason: err.Error()}
	}
	e.settings.Log.Info("renewed a node's expired certificate", zap.String("node", id.Name))
	return chain, nil
}

func verifySignature(pub crypto.PublicKey, message, sig []byte) bool {
	sum := sha256.Sum256(message)
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(k, sum[:], sig)
	case ed25519.PublicKey:
		return ed25519.Verify(k, message, sig)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], sig) == nil
	}
	return false
}
