package tunnel

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// This file alone may set InsecureSkipVerify (a lint rule holds it): a SPIFFE id is a URI, which crypto/tls cannot
// check as a server name, so both sides check the whole chain, role and id in VerifyConnection instead.
// VerifyConnection, and not VerifyPeerCertificate, because only it would run on a resumed connection; tickets are off all the same.

// errNoSettings refuses handshakes while no configuration is loaded.
var errNoSettings = errors.New("no settings are current")

// gatewayTLS returns the listener's configuration. settings is asked at each handshake, so that certificates and trust change
// without a new socket. refused is told why a certificate was turned away.
func gatewayTLS(settings func() *Settings, refused func(error)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{wire.ALPN, wire.ALPNEnroll},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			st := settings()
			if st == nil {
				return nil, errNoSettings
			}
			id, err := st.Identity()
			if err != nil {
				return nil, fmt.Errorf("gateway identity: %w", err)
			}
			cfg := &tls.Config{
				MinVersion:             tls.VersionTLS13,
				Certificates:           []tls.Certificate{id.Certificate},
				SessionTicketsDisabled: true,
			}
			switch {
			case slices.Contains(hello.SupportedProtos, wire.ALPN):
				cfg.NextProtos = []string{wire.ALPN}
				cfg.ClientAuth = tls.RequireAnyClientCert
				cfg.VerifyConnection = func(cs tls.ConnectionState) error {
					role := pki.RoleNode
					if st.Peers != nil && isGateway(cs) {
						role = pki.RoleGateway
					}
					if _, err := verify(cs, id.Roots, id.ID.TrustDomain, role); err != nil {
						refused(err)
						return err
					}
					return nil
				}
			case slices.Contains(hello.SupportedProtos, wire.ALPNEnroll) && st.Enroller != nil:
				cfg.NextProtos = []string{wire.ALPNEnroll}
			default:
				// A configuration without the peer's protocol: TLS itself then says no_application_protocol.
				cfg.NextProtos = []string{wire.ALPN}
			}
			return cfg, nil
		},
	}
}

// isGateway reports whether the peer's leaf says that it is a gateway's; whether that is true is for verify to say.
func isGateway(cs tls.ConnectionState) bool {
	if len(cs.PeerCertificates) == 0 {
		return false
	}
	id, err := pki.IDFromCertificate(cs.PeerCertificates[0])
	return err == nil && id.Role == pki.RoleGateway
}

// nodeTLS returns a dialler's configuration for fairway/1: it presents id, a node's or another gateway's, and accepts any gateway of its trust domain.
func nodeTLS(id *pki.Identity) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{wire.ALPN},
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &id.Certificate, nil },
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, //nolint:gosec // see the head of this file
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := verify(cs, id.Roots, id.ID.TrustDomain, pki.RoleGateway)
			return err
		},
	}
}

// enrollTLS returns a node's configuration for fairway-enroll/1. The certificate is checked against the offer that comes first on
// the stream, before anything is sent (enroll.go): only then is the root known.
func enrollTLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{wire.ALPNEnroll},
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, //nolint:gosec // see the head of this file
	}
}

func verify(cs tls.ConnectionState, roots *x509.CertPool, trustDomain string, role pki.Role) (pki.ID, error) {
	return pki.VerifyPeer(cs.PeerCertificates, roots, trustDomain, role, time.Now())
}
