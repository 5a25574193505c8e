package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Reasons of a [VerifyError]. They are codes: on the wire, in logs and metrics.
const (
	ReasonNoCertificate    = "no_certificate"
	ReasonUntrusted        = "untrusted"
	ReasonExpired          = "expired" // also: not yet valid
	ReasonWrongRole        = "wrong_role"
	ReasonWrongTrustDomain = "wrong_trust_domain"
	ReasonMalformedID      = "malformed_id"
)

// VerifyError says why a peer's certificate was refused.
type VerifyError struct {
	Reason string // one of the Reason constants
	Err    error  // the detail, for logs on this side
}

func (e *VerifyError) Error() string {
	if e.Err == nil {
		return "peer certificate refused: " + e.Reason
	}
	return "peer certificate refused: " + e.Reason + ": " + e.Err.Error()
}

func (e *VerifyError) Unwrap() error { return e.Err }

func refuse(reason, format string, args ...any) *VerifyError {
	return &VerifyError{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// VerifyPeer checks the certificates that a peer presented, leaf first, and
// returns who it is. The leaf must
//
//   - chain to roots by the certificates that came with it,
//   - be valid at now, as all above it must be ([ClockSlack] forgives a slow clock),
//   - be no CA, and carry the extended key usage of its role: clientAuth for a
//     node, serverAuth for a gateway (a leaf without any usage is refused,
//     although crypto/x509 takes it for all of them),
//   - hold exactly one URI SAN, an id of trustDomain and role.
//
// Every error is a *VerifyError. "expired" is said only of certificates that
// would be trusted at another time. A nil pool is refused: crypto/x509 would
// take the system's roots for it.
func VerifyPeer(certs []*x509.Certificate, roots *x509.CertPool, trustDomain string, role Role, now time.Time) (ID, error) {
	if len(certs) == 0 {
		return ID{}, &VerifyError{Reason: ReasonNoCertificate}
	}
	if err := verifyChain(certs, roots, usageOf(role), now); err != nil {
		return ID{}, err
	}
	id, err := IDFromCertificate(certs[0])
	switch {
	case err != nil:
		return ID{}, &VerifyError{Reason: ReasonMalformedID, Err: err}
	case id.TrustDomain != trustDomain:
		return ID{}, refuse(ReasonWrongTrustDomain, "%s is not of trust domain %q", id, trustDomain)
	case id.Role != role:
		return ID{}, refuse(ReasonWrongRole, "%s is not a %s", id, role)
	}
	return id, nil
}

// VerifyRenewal is [VerifyPeer] for a peer that asks for a new leaf: one whose
// leaf has expired passes until [RenewableUntil]. It proves a name, no more: the
// caller still asks whether that name is revoked.
func VerifyRenewal(certs []*x509.Certificate, roots *x509.CertPool, trustDomain string, role Role, now time.Time) (ID, error) {
	if len(certs) > 0 {
		if leaf := certs[0]; now.After(leaf.NotAfter) && !now.After(RenewableUntil(leaf)) {
			now = leaf.NotAfter
		}
	}
	return VerifyPeer(certs, roots, trustDomain, role, now)
}

// usageOf does not ask who dialled: our own leaves carry both usages, because a
// gateway also dials other gateways.
func usageOf(role Role) x509.ExtKeyUsage {
	if role == RoleNode {
		return x509.ExtKeyUsageClientAuth
	}
	return x509.ExtKeyUsageServerAuth
}

func verifyChain(certs []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, now time.Time) error {
	leaf := certs[0]
	switch {
	case roots == nil:
		return refuse(ReasonUntrusted, "no roots to check it against")
	case isAuthority(leaf):
		return &VerifyError{Reason: ReasonUntrusted, Err: errAuthorityLeaf}
	case !slices.Contains(leaf.ExtKeyUsage, usage):
		return refuse(ReasonUntrusted, "certificate lacks the extended key usage of its role")
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	at := func(t time.Time) error {
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: t, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		return err
	}
	err := at(now)
	if err == nil {
		return nil
	}
	if !isValidity(err) {
		return &VerifyError{Reason: ReasonUntrusted, Err: err}
	}
	// All valid a little later means: our clock is slow, or it was issued just
	// now by a fast one. Nothing that has expired passes here.
	if at(now.Add(ClockSlack)) == nil {
		return nil
	}
	then := now
	if then.After(leaf.NotAfter) {
		then = leaf.NotAfter
	} else if then.Before(leaf.NotBefore) {
		then = leaf.NotBefore
	}
	if other := at(then); other != nil && !isValidity(other) {
		return &VerifyError{Reason: ReasonUntrusted, Err: other}
	}
	return &VerifyError{Reason: ReasonExpired, Err: err}
}

func isValidity(err error) bool {
	var invalid x509.CertificateInvalidError
	return errors.As(err, &invalid) && invalid.Reason == x509.Expired
}
