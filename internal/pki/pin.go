package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"time"
)

// RootPin is what a join token says of the root: base64url (unpadded) of the
// SHA-256 of its SubjectPublicKeyInfo. The key is hashed and not the
// certificate, so that a root may be issued anew with its key.
func RootPin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// validPin tells whether s has the form of a [RootPin].
func validPin(s string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

// VerifyPinned checks the chain of a gateway that a node sees for the first
// time: one of certs must be a root whose key is the pinned one, and the rest
// must pass [VerifyPeer] against it alone. It returns that root for the node to
// keep. certs is what the gateway presents when enrolling, see
// [Identity.CertificateWithRoot]. Every error is a *VerifyError.
func VerifyPinned(certs []*x509.Certificate, pin, trustDomain string, now time.Time) (ID, *x509.Certificate, error) {
	if len(certs) == 0 {
		return ID{}, nil, &VerifyError{Reason: ReasonNoCertificate}
	}
	for _, c := range certs {
		if RootPin(c) != pin {
			continue
		}
		// A certificate that anyone made around the pinned key is no root: only
		// who holds the key can have signed it with it.
		if !c.IsCA || c.CheckSignatureFrom(c) != nil {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(c)
		id, err := VerifyPeer(certs, roots, trustDomain, RoleGateway, now)
		if err != nil {
			return ID{}, nil, err
		}
		return id, c, nil
	}
	return ID{}, nil, &VerifyError{Reason: ReasonUntrusted, Err: errors.New("the gateway's root is not the one that the token names")}
}
