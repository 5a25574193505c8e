package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"net/url"
	"testing"
	"time"
)

const testDomain = "fleet.test"

// epoch is the tests' "now" where nothing reads the real clock.
var epoch = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func newCA(t testing.TB, now time.Time) *SelfSigned {
	t.Helper()
	ca, err := NewSelfSigned(testDomain, at(now))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func nodeID(name string) ID    { return ID{testDomain, RoleNode, name} }
func gatewayID(name string) ID { return ID{testDomain, RoleGateway, name} }

func mustIdentity(t testing.TB, ca *SelfSigned, id ID) *Identity {
	t.Helper()
	i, err := ca.Authority().NewIdentity(id)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func poolOf(certs ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

func chainOf(t testing.TB, i *Identity) []*x509.Certificate {
	t.Helper()
	certs, err := parseAll(i.Certificate.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	return certs
}

// oddLeaf signs what an authority would never issue.
func oddLeaf(t testing.TB, ca *SelfSigned, change func(*x509.Certificate)) []*x509.Certificate {
	t.Helper()
	chain, _ := ca.Chain()
	leaf, _ := signOdd(t, chain, change)
	return append([]*x509.Certificate{leaf}, chain.Intermediate...)
}

func signOdd(t testing.TB, chain Chain, change func(*x509.Certificate)) (*x509.Certificate, crypto.Signer) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	serial, err := newSerial()
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber:          serial,
		URIs:                  []*url.URL{nodeID("n1").URI()},
		NotBefore:             epoch.Add(-time.Minute),
		NotAfter:              epoch.Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	change(leaf)
	parent, signer := leaf, key
	if len(chain.Intermediate) > 0 {
		parent, signer = chain.Intermediate[0], chain.Key
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c, key
}
