package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"testing"
	"time"
)

func TestIssue(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	i := mustIdentity(t, ca, nodeID("n1"))
	leaf := i.Certificate.Leaf
	if got, want := leaf.NotBefore, epoch.Add(-5*time.Minute); !got.Equal(want) {
		t.Errorf("NotBefore %s, want %s", got, want)
	}
	if got, want := leaf.NotAfter, epoch.Add(30*24*time.Hour); !got.Equal(want) {
		t.Errorf("NotAfter %s, want %s", got, want)
	}
	if len(leaf.URIs) != 1 || len(leaf.DNSNames)+len(leaf.EmailAddresses)+len(leaf.IPAddresses) != 0 || leaf.Subject.String() != "" {
		t.Errorf("names: %v %v %q", leaf.URIs, leaf.DNSNames, leaf.Subject)
	}
	if leaf.IsCA || len(leaf.ExtKeyUsage) != 2 || leaf.SerialNumber.BitLen() < 64 || leaf.SerialNumber.BitLen() > 128 {
		t.Errorf("CA %v, usages %v, serial of %d bits", leaf.IsCA, leaf.ExtKeyUsage, leaf.SerialNumber.BitLen())
	}
	if len(i.Certificate.Certificate) != 2 || len(i.RootDER) != 1 {
		t.Errorf("chain of %d, %d roots", len(i.Certificate.Certificate), len(i.RootDER))
	}
	want := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 3 * 2)
	if !i.RenewAt().Equal(want) || !i.RenewAt().Before(i.NotAfter().Add(-9*24*time.Hour)) {
		t.Errorf("RenewAt %s", i.RenewAt())
	}
}

func TestIssueCappedByIntermediate(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	if err := ca.RenewIntermediate(24 * time.Hour); err != nil {
		t.Fatal(err)
	}
	i := mustIdentity(t, ca, nodeID("n1"))
	if want := epoch.Add(24 * time.Hour); !i.NotAfter().Equal(want) {
		t.Fatalf("NotAfter %s, want %s", i.NotAfter(), want)
	}
	late := NewAuthority(testDomain, ca.Chain, at(epoch.Add(25*time.Hour)))
	if _, err := late.NewIdentity(nodeID("n1")); err == nil {
		t.Fatal("issued under an intermediate that has ended")
	}
}

func TestIssueRefuses(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	chain, _ := ca.Chain()
	key, _ := NewKey()
	pub := key.Public()
	weak := map[string]crypto.PublicKey{"nil": nil, "P-224": ecKey(t, elliptic.P224()), "RSA-1024": rsaKey(t, 1024), "a string": "key", "empty Ed25519": ed25519.PublicKey{}, "empty RSA": &rsa.PublicKey{}}
	for name, k := range weak {
		if _, err := ca.Authority().Issue(nodeID("n1"), k); err == nil {
			t.Errorf("%s key was accepted", name)
		}
	}
	for _, k := range []crypto.PublicKey{pub, ecKey(t, elliptic.P384()), rsaKey(t, 2048), newEd25519(t).Public()} {
		if _, err := ca.Authority().Issue(nodeID("n1"), k); err != nil {
			t.Errorf("%T: %v", k, err)
		}
	}
	for _, id := range []ID{{}, {"other.test", RoleNode, "n1"}, {testDomain, "agent", "n1"}, {testDomain, RoleNode, "N1"}, {testDomain, RoleNode, "a/b"}} {
		if _, err := ca.Authority().Issue(id, pub); err == nil {
			t.Errorf("issued for %v", id)
		}
	}
	failed := errors.New("storage is away")
	for name, current := range map[string]func() (Chain, error){
		"failing":         func() (Chain, error) { return Chain{}, failed },
		"no root":         func() (Chain, error) { return Chain{Intermediate: chain.Intermediate, Key: chain.Key}, nil },
		"no intermediate": func() (Chain, error) { return Chain{Root: chain.Root, Key: chain.Key}, nil },
		"other key":       func() (Chain, error) { return Chain{Root: chain.Root, Intermediate: chain.Intermediate, Key: key}, nil },
	} {
		a := NewAuthority(testDomain, current, nil)
		_, err1 := a.NewIdentity(nodeID("n1"))
		_, err2 := a.Root()
		if err1 == nil || err2 == nil || name == "failing" && !errors.Is(err1, failed) {
			t.Errorf("%s CA: %v, %v", name, err1, err2)
		}
	}
}

// Only the public key of a request counts.
func TestIssueCSR(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	key, _ := NewKey()
	greedy, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		URIs: []*url.URL{gatewayID("gw1").URI()}, DNSNames: []string{"gw1"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, csr := range [][]byte{plain, greedy} {
		ders, err := ca.Authority().IssueCSR(nodeID("n1"), csr)
		if err != nil {
			t.Fatal(err)
		}
		i, err := NewIdentity(ders, key, [][]byte{ca.Root().Raw})
		if err != nil {
			t.Fatal(err)
		}
		if i.ID != nodeID("n1") || len(i.Certificate.Leaf.DNSNames) != 0 {
			t.Fatalf("got %v with %v", i.ID, i.Certificate.Leaf.DNSNames)
		}
	}
	broken := append([]byte(nil), plain...)
	broken[len(broken)-1] ^= 1
	small, err := NewCSR(rsaSigner(t, 1024))
	if err != nil {
		t.Fatal(err)
	}
	for name, csr := range map[string][]byte{
		"empty": nil, "noise": []byte("hello"), "bad signature": broken, "trailing": append(append([]byte(nil), plain...), 0),
		"weak": small, "huge": make([]byte, maxCSR+1),
	} {
		if _, err := ca.Authority().IssueCSR(nodeID("n1"), csr); err == nil {
			t.Errorf("%s request was accepted", name)
		}
	}
}

func TestRenewed(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	i := mustIdentity(t, ca, nodeID("n1"))
	if err := ca.RenewIntermediate(intermediateLifetime); err != nil {
		t.Fatal(err)
	}
	key, _ := NewKey()
	next := func(id ID) [][]byte {
		ders, err := ca.Authority().Issue(id, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		return ders
	}
	r, err := i.Renewed(next(nodeID("n1")), key)
	if err != nil || r.ID != i.ID || r.Certificate.Leaf.Equal(i.Certificate.Leaf) {
		t.Fatalf("%v", err)
	}
	// Leaves of the old and the new intermediate are good side by side.
	for _, x := range []*Identity{i, r} {
		if _, err := VerifyPeer(chainOf(t, x), r.Roots, testDomain, RoleNode, epoch); err != nil {
			t.Error(err)
		}
	}
	if _, err := i.Renewed(next(nodeID("n2")), key); err == nil {
		t.Error("renewed into another name")
	}
	if _, err := i.Renewed(next(nodeID("n1")), newEd25519(t)); err == nil {
		t.Error("renewed with another key")
	}
	if _, err := i.Renewed(chainOfDER(mustIdentity(t, newCA(t, epoch), nodeID("n1"))), key); err == nil {
		t.Error("renewed by another CA")
	}
}

func TestRenewIntermediate(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	cert, key, err := RenewIntermediate(ca.Root(), ca.RootKey(), 20*rootLifetime, epoch)
	if err != nil || !cert.NotAfter.Equal(ca.Root().NotAfter) || cert.NotBefore.Before(ca.Root().NotBefore) {
		t.Fatalf("%v", err)
	}
	if cert.CheckSignatureFrom(ca.Root()) != nil || !cert.IsCA || !cert.MaxPathLenZero || !sameKey(cert.PublicKey, key.Public()) {
		t.Fatal("not an intermediate of the root")
	}
	if _, _, err := RenewIntermediate(ca.Root(), key, time.Hour, epoch); err == nil {
		t.Error("signed with a key that is not the root's")
	}
	if _, _, err := RenewIntermediate(ca.Root(), ca.RootKey(), time.Hour, ca.Root().NotAfter); err == nil {
		t.Error("made an intermediate that has ended")
	}
	if _, err := NewSelfSigned("Not A Domain", nil); err == nil {
		t.Error("CA for a bad trust domain")
	}
}

// The certificates work in a real TLS 1.3 handshake, checked as tunnel does it.
func TestHandshake(t *testing.T) {
	t.Parallel()
	ca := newCA(t, time.Now())
	gw, node := mustIdentity(t, ca, gatewayID("gw1")), mustIdentity(t, ca, nodeID("n1"))
	check := func(me *Identity, role Role) func(tls.ConnectionState) error {
		return func(cs tls.ConnectionState) error {
			_, err := VerifyPeer(cs.PeerCertificates, me.Roots, me.ID.TrustDomain, role, time.Now())
			return err
		}
	}
	c, s := net.Pipe()
	defer c.Close()
	defer s.Close()
	server := tls.Server(s, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{gw.CertificateWithRoot()}, SessionTicketsDisabled: true,
		ClientAuth: tls.RequireAnyClientCert, VerifyConnection: check(gw, RoleNode),
	})
	client := tls.Client(c, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{node.Certificate},
		InsecureSkipVerify: true, VerifyConnection: check(node, RoleGateway),
	})
	done := make(chan error, 1)
	go func() { done <- server.HandshakeContext(t.Context()) }()
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func chainOfDER(i *Identity) [][]byte { return i.Certificate.Certificate }

func ecKey(t *testing.T, c elliptic.Curve) crypto.PublicKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &k.PublicKey
}

func rsaSigner(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func rsaKey(t *testing.T, bits int) crypto.PublicKey { return &rsaSigner(t, bits).PublicKey }

func newEd25519(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
