package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// renewableFor is how long after its end a leaf still proves who asks for a new
// one over enrolment. A machine that was off for a season comes back by itself.
const renewableFor = 90 * 24 * time.Hour

// Identity is one leaf with its key, and what is needed to check a peer. It is
// immutable: a renewal makes another one. Its methods are safe for concurrent use.
type Identity struct {
	ID          ID
	Certificate tls.Certificate // leaf first, then intermediates, no root; Leaf is set
	Roots       *x509.CertPool  // never nil, never empty
	RootDER     [][]byte        // the certificates in Roots
}

// NewIdentity puts an identity together from the chain that an authority
// returned (leaf first, no root), the key, and the trusted roots. The leaf must
// be the key's, carry an id, and chain to the roots. Whether it is valid now is
// not asked: an expired identity is still one that can be renewed.
func NewIdentity(chainDER [][]byte, key crypto.Signer, rootDER [][]byte) (*Identity, error) {
	i, certs, err := parseIdentity(chainDER, key, rootDER)
	if err != nil {
		return nil, err
	}
	// An authority caps a leaf by what signed it, so all are valid at its end.
	if _, err := VerifyPeer(certs, i.Roots, i.ID.TrustDomain, i.ID.Role, certs[0].NotAfter); err != nil {
		return nil, err
	}
	return i, nil
}

// parseIdentity checks everything but the chain, which depends on a time.
func parseIdentity(chainDER [][]byte, key crypto.Signer, rootDER [][]byte) (*Identity, []*x509.Certificate, error) {
	switch {
	case len(chainDER) == 0:
		return nil, nil, errors.New("identity has no certificate")
	case key == nil:
		return nil, nil, errors.New("identity has no private key")
	case len(rootDER) == 0:
		return nil, nil, errors.New("identity has no roots")
	}
	certs, err := parseAll(chainDER)
	if err != nil {
		return nil, nil, fmt.Errorf("parse certificate chain: %w", err)
	}
	leaf := certs[0]
	if !sameKey(leaf.PublicKey, key.Public()) {
		return nil, nil, errors.New("private key does not belong to the certificate")
	}
	id, err := IDFromCertificate(leaf)
	if err != nil {
		return nil, nil, err
	}
	rootCerts, err := parseAll(rootDER)
	if err != nil {
		return nil, nil, fmt.Errorf("parse root: %w", err)
	}
	roots := x509.NewCertPool()
	for _, c := range rootCerts {
		if !c.IsCA {
			return nil, nil, fmt.Errorf("root %q is not a CA certificate", clip(c.Subject.String()))
		}
		roots.AddCert(c)
	}
	return &Identity{
		ID:          id,
		Certificate: tls.Certificate{Certificate: chainDER, PrivateKey: key, Leaf: leaf},
		Roots:       roots,
		RootDER:     rootDER,
	}, certs, nil
}

// Renewed is the identity with a new leaf, for key, under the same roots. It is
// an error if the new leaf names somebody else.
func (i *Identity) Renewed(chainDER [][]byte, key crypto.Signer) (*Identity, error) {
	next, err := NewIdentity(chainDER, key, i.RootDER)
	if err != nil {
		return nil, err
	}
	if next.ID != i.ID {
		return nil, fmt.Errorf("renewed certificate is for %s, want %s", next.ID, i.ID)
	}
	return next, nil
}

// NotAfter is when the leaf ends.
func (i *Identity) NotAfter() time.Time { return i.Certificate.Leaf.NotAfter }

// RenewAt is when to ask for a new leaf: two thirds of its lifetime in, which
// for 30 days leaves ten to try.
func (i *Identity) RenewAt() time.Time {
	leaf := i.Certificate.Leaf
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 3 * 2)
}

// RenewableUntil is how long leaf proves who asks for a new one: 90 days beyond
// its end. After that the machine joins with a new token.
func RenewableUntil(leaf *x509.Certificate) time.Time {
	return leaf.NotAfter.Add(renewableFor)
}

// CertificateWithRoot is the certificate to present when enrolling: the chain
// and the roots. A node that joins knows only the root's hash.
func (i *Identity) CertificateWithRoot() tls.Certificate {
	c := i.Certificate
	c.Certificate = append(append(make([][]byte, 0, len(c.Certificate)+len(i.RootDER)), c.Certificate...), i.RootDER...)
	return c
}

func parseAll(ders [][]byte) ([]*x509.Certificate, error) {
	certs := make([]*x509.Certificate, 0, len(ders))
	for _, der := range ders {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	return certs, nil
}

func sameKey(a, b crypto.PublicKey) bool {
	eq, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && eq.Equal(b)
}
