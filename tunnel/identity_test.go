package tunnel

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// selfSigned is a certificate of nobody's, with the URIs that a test wants.
func selfSigned(t *testing.T, uris ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, u := range uris {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		c.URIs = append(c.URIs, parsed)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// No registration frame is ever read of a node whose certificate is not one of this fleet's nodes: TLS itself ends the connection, with these codes
// (RFC 9001 section 4.8).
func TestNoFrameIsReadWithoutAnIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := identity(t, r.ca, pki.RoleNode, "n1")
	elsewhere, err := pki.NewSelfSigned("other.local", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := elsewhere.Authority().NewIdentity(pki.ID{TrustDomain: "other.local", Role: pki.RoleNode, Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	conf := func(cert *tls.Certificate, alpn string) *tls.Config {
		c := nodeTLS(good)
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		c.NextProtos = []string{alpn}
		return c
	}
	self := selfSigned(t, "spiffe://test.local/node/n1")
	malformed := selfSigned(t, "spiffe://test.local/node/N1/x")
	none := tls.Certificate{}
	gateway := identity(t, r.ca, pki.RoleGateway, "gw2").Certificate
	for _, tt := range []struct {
		name string
		conf *tls.Config
		code quic.TransportErrorCode
	}{
		{"no certificate", conf(&none, wire.ALPN), alertRequired},
		{"self-signed", conf(&self, wire.ALPN), alertBadCertificate},
		{"malformed id", conf(&malformed, wire.ALPN), alertBadCertificate},
		{"another trust domain", conf(&foreign.Certificate, wire.ALPN), alertBadCertificate},
		{"a gateway's role", conf(&gateway, wire.ALPN), alertBadCertificate},
		{"another protocol", conf(&good.Certificate, "h3"), alertNoProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			err := tryRegister(ctx, r.ln.Addr().(*net.UDPAddr), tt.conf)
			var te *quic.TransportError
			if !errors.As(err, &te) || te.ErrorCode != tt.code || !te.Remote {
				t.Errorf("%v, want a remote 0x%x", err, uint64(tt.code))
			}
		})
	}
	if r.reg.generations() != 0 {
		t.Error("something was registered")
	}
}

// tryRegister dials as it is told and sends a Register all the same; it returns why the connection ended.
func tryRegister(ctx context.Context, addr *net.UDPAddr, conf *tls.Config) error {
	pc, err := newSocket(addr)
	if err != nil {
		return err
	}
	tr := &quic.Transport{Conn: pc}
	defer func() { _ = tr.Close(); _ = pc.Close() }()
	c, err := tr.Dial(ctx, addr, conf, quicConfig(nodeStreams))
	if err != nil {
		return err
	}
	if stream, err := c.OpenStreamSync(ctx); err == nil {
		_ = newControl(stream).send(wire.TypeRegister, &Register{Version: wire.Version, Node: "n1", Instance: newInstance()})
	}
	select {
	case <-c.Context().Done():
		return context.Cause(c.Context())
	case <-ctx.Done():
		return ctx.Err()
	}
}
