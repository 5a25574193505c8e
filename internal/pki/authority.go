package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

const (
	// leafLifetime is short enough that a forgotten node's identity ends by
	// itself, long enough that a gateway may be away for days.
	leafLifetime = 30 * 24 * time.Hour
	// backdate lets a peer whose clock is a little slow use what was just issued.
	backdate = 5 * time.Minute
)

// Chain is what signs now.
type Chain struct {
	Root         *x509.Certificate
	Intermediate []*x509.Certificate // the signing one first; at least one
	Key          crypto.Signer       // of Intermediate[0]
}

// Authority issues leaves of one trust domain. It keeps no state and is safe for
// concurrent use as far as the functions given to it are.
type Authority struct {
	trustDomain string
	current     func() (Chain, error)
	now         func() time.Time
}

// NewAuthority makes an authority for trustDomain. current is asked for every
// leaf, so that an intermediate that was renewed signs the next one; now is the
// clock, time.Now if nil.
func NewAuthority(trustDomain string, current func() (Chain, error), now func() time.Time) *Authority {
	if now == nil {
		now = time.Now
	}
	return &Authority{trustDomain: trustDomain, current: current, now: now}
}

// Issue signs a leaf for id with pub and returns the chain in DER, leaf first,
// without the root. The leaf has the id as its only name, clientAuth and
// serverAuth, a random 128-bit serial, and 30 days, or less where the CA above
// it ends earlier; it is back-dated by five minutes. It is an error if id is not
// well formed or of another trust domain, if pub is weak, or if the CA is not
// valid now.
func (a *Authority) Issue(id ID, pub crypto.PublicKey) (chainDER [][]byte, err error) {
	chain, err := a.chain()
	if err != nil {
		return nil, err
	}
	return a.issue(chain, id, pub)
}

// IssueCSR is [Authority.Issue] for the key of a PKCS #10 request. The request
// must be signed by its own key; names, usages and everything else in it are
// ignored.
func (a *Authority) IssueCSR(id ID, csrDER []byte) ([][]byte, error) {
	pub, err := keyFromCSR(csrDER)
	if err != nil {
		return nil, err
	}
	return a.Issue(id, pub)
}

// NewIdentity makes a key and issues for it, for gateways and for the node that
// lives in a gateway's process: the key never leaves memory.
func (a *Authority) NewIdentity(id ID) (*Identity, error) {
	chain, err := a.chain()
	if err != nil {
		return nil, err
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("make key for %s: %w", id, err)
	}
	ders, err := a.issue(chain, id, key.Public())
	if err != nil {
		return nil, err
	}
	return NewIdentity(ders, key, [][]byte{chain.Root.Raw})
}

// Root is the certificate that peers pin and trust.
func (a *Authority) Root() (*x509.Certificate, error) {
	chain, err := a.chain()
	if err != nil {
		return nil, err
	}
	return chain.Root, nil
}

// TrustDomain is the one that the authority issues for.
func (a *Authority) TrustDomain() string { return a.trustDomain }

func (a *Authority) chain() (Chain, error) {
	chain, err := a.current()
	if err != nil {
		return Chain{}, fmt.Errorf("get the CA's current chain: %w", err)
	}
	switch {
	case chain.Root == nil:
		return Chain{}, errors.New("the CA has no root certificate")
	case len(chain.Intermediate) == 0:
		return Chain{}, errors.New("the CA has no intermediate certificate")
	case chain.Key == nil || !sameKey(chain.Intermediate[0].PublicKey, chain.Key.Public()):
		return Chain{}, errors.New("the CA's key does not belong to its intermediate certificate")
	}
	return chain, nil
}

func (a *Authority) issue(chain Chain, id ID, pub crypto.PublicKey) ([][]byte, error) {
	if err := id.Valid(); err != nil {
		return nil, err
	}
	if id.TrustDomain != a.trustDomain {
		return nil, fmt.Errorf("%s is not of trust domain %s", id, a.trustDomain)
	}
	if err := checkKey(pub); err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := a.now()
	notAfter := now.Add(leafLifetime)
	for _, c := range append([]*x509.Certificate{chain.Root}, chain.Intermediate...) {
		if c.NotAfter.Before(notAfter) {
			notAfter = c.NotAfter
		}
	}
	if !notAfter.After(now) {
		return nil, fmt.Errorf("the CA ended at %s", notAfter.UTC().Format(time.RFC3339))
	}
	leaf := &x509.Certificate{
		SerialNumber:          serial,
		URIs:                  []*url.URL{id.URI()},
		NotBefore:             now.Add(-backdate),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, chain.Intermediate[0], pub, chain.Key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %s: %w", id, err)
	}
	ders := [][]byte{der}
	for _, c := range chain.Intermediate {
		ders = append(ders, c.Raw)
	}
	return ders, nil
}

// newSerial is 128 random bits: unique without a counter to keep, and more than
// the 64 that the CA/Browser Forum asks for.
func newSerial() (*big.Int, error) {
	b := make([]byte, 16)
	for {
		if _, err := rand.Read(b); err != nil {
			return nil, fmt.Errorf("make serial number: %w", err)
		}
		if n := new(big.Int).SetBytes(b); n.Sign() > 0 { // RFC 5280: positive
			return n, nil
		}
	}
}
