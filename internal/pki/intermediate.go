package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"
)

// RenewIntermediate makes an intermediate under root, with a new key. It lives
// for lifetime, or until root ends; it is back-dated by five minutes, though
// never to before root. It may sign leaves and nothing else. The caller stores
// both and answers with them from the function it gave to [NewAuthority]; leaves
// of the old one stay good, because they carry it.
func RenewIntermediate(root *x509.Certificate, rootKey crypto.Signer, lifetime time.Duration, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	if root == nil || rootKey == nil || !sameKey(root.PublicKey, rootKey.Public()) {
		return nil, nil, errors.New("renew intermediate: the root's key does not belong to its certificate")
	}
	notBefore, notAfter := now.Add(-backdate), now.Add(lifetime)
	if notBefore.Before(root.NotBefore) {
		notBefore = root.NotBefore
	}
	if notAfter.After(root.NotAfter) {
		notAfter = root.NotAfter
	}
	if !notAfter.After(now) {
		return nil, nil, fmt.Errorf("renew intermediate: it would end at %s, which is past", notAfter.UTC().Format(time.RFC3339))
	}
	key, err := NewKey()
	if err != nil {
		return nil, nil, fmt.Errorf("renew intermediate: %w", err)
	}
	cert, err := signAuthority("Fairway Intermediate CA", 0, notBefore, notAfter, root, key.Public(), rootKey)
	if err != nil {
		return nil, nil, fmt.Errorf("renew intermediate: %w", err)
	}
	return cert, key, nil
}

// signAuthority makes a CA certificate with at most below further CAs under it.
// Without a parent it signs itself.
func signAuthority(name string, below int, notBefore, notAfter time.Time, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            below,
		MaxPathLenZero:        below == 0,
	}
	if parent == nil {
		parent = cert
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
