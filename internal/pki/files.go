package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// LoadFiles reads a gateway's identity from an existing PKI: certFile holds the
// leaf and then its intermediates, keyFile its key (PKCS #8, SEC 1 or PKCS #1),
// caFile the roots that nodes and gateways are checked against. All are PEM.
//
// It fails closed: an unreadable or empty CA file, anything in it that is not a
// CA certificate, a key of another leaf, a leaf that is not a gateway's, does not
// chain to those roots, or is not valid now are errors that name the file. (An
// unreadable CA that is skipped would leave an empty pool, and with it an open
// door: CVE-2026-27586.)
func LoadFiles(certFile, keyFile, caFile string) (*Identity, error) {
	certPEM, err := readPEM(certFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	keyPEM, err := readPEM(keyFile)
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with key %s: %w", certFile, keyFile, err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("load key %s: it cannot sign", keyFile)
	}
	roots, err := loadRoots(caFile)
	if err != nil {
		return nil, err
	}
	i, certs, err := parseIdentity(pair.Certificate, signer, roots)
	if err == nil {
		// Judged today, and not at the leaf's end as NewIdentity does: a foreign
		// PKI's intermediate may end before its leaf.
		_, err = VerifyPeer(certs, i.Roots, i.ID.TrustDomain, RoleGateway, time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with CA %s: %w", certFile, caFile, err)
	}
	return i, nil
}

func loadRoots(caFile string) ([][]byte, error) {
	data, err := readPEM(caFile)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	var roots [][]byte
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != pemCertificate {
			return nil, fmt.Errorf("load CA %s: it holds %q, want certificates only", caFile, clip(block.Type))
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("load CA %s: %w", caFile, err)
		}
		roots = append(roots, block.Bytes)
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("load CA %s: no certificate in it", caFile)
	}
	return roots, nil
}
