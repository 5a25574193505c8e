package pki

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Role is what an identity may be in a session: who is dialled, or who dials in.
type Role string

const (
	RoleGateway Role = "gateway"
	RoleNode    Role = "node"
)

const (
	// maxName bounds the name in an id; it also fits a DNS label and a metric label.
	maxName = 63
	// maxTrustDomain is SPIFFE-ID section 2.1's bound.
	maxTrustDomain = 255
	scheme         = "spiffe://"
)

// ID is a SPIFFE id, spiffe://TrustDomain/Role/Name. The zero value is not a
// valid one; [ParseID] and [ID.Valid] say what is. IDs compare with ==.
type ID struct {
	TrustDomain string
	Role        Role
	Name        string
}

// ParseID reads the one spelling of an id. Everything that a URI could carry
// besides is refused: upper case, percent-encoding, port, user, query, fragment,
// an empty, missing or further path segment. So ParseID(s) succeeding means that
// the result's String is s.
func ParseID(uri string) (ID, error) {
	rest, ok := strings.CutPrefix(uri, scheme)
	if !ok {
		return ID{}, fmt.Errorf("identity %q does not begin with %s", clip(uri), scheme)
	}
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) != 3 {
		return ID{}, fmt.Errorf("identity %q is not %sTRUST-DOMAIN/ROLE/NAME", clip(uri), scheme)
	}
	id := ID{TrustDomain: parts[0], Role: Role(parts[1]), Name: parts[2]}
	if err := id.Valid(); err != nil {
		return ID{}, err
	}
	return id, nil
}

// Valid says what is wrong with an id, or returns nil.
func (id ID) Valid() error {
	switch {
	case !ValidTrustDomain(id.TrustDomain):
		return fmt.Errorf("trust domain %q: want lower-case letters, digits and . _ -, beginning with a letter or digit, at most %d", clip(id.TrustDomain), maxTrustDomain)
	case id.Role != RoleGateway && id.Role != RoleNode:
		return fmt.Errorf("role %q: want %s or %s", clip(string(id.Role)), RoleGateway, RoleNode)
	case !ValidName(id.Name):
		return fmt.Errorf("name %q: want lower-case letters, digits and . _ -, beginning with a letter or digit, at most %d", clip(id.Name), maxName)
	}
	return nil
}

// String is the id as it stands in certificates and tokens.
func (id ID) String() string {
	return scheme + id.TrustDomain + "/" + string(id.Role) + "/" + id.Name
}

// URI is the id as crypto/x509 takes it.
func (id ID) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: id.TrustDomain, Path: "/" + string(id.Role) + "/" + id.Name}
}

// ValidName tells whether s can name a gateway or a node:
// [a-z0-9][a-z0-9._-]{0,62}.
func ValidName(s string) bool { return validLabel(s, maxName) }

// ValidTrustDomain tells whether s can be a trust domain:
// [a-z0-9][a-z0-9._-]{0,254}.
func ValidTrustDomain(s string) bool { return validLabel(s, maxTrustDomain) }

func validLabel(s string, longest int) bool {
	if s == "" || len(s) > longest {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// IDFromCertificate returns the id that a leaf carries. It is an error if the
// certificate may sign others, or does not hold exactly one URI SAN, or that is
// not an id. It says nothing about who signed the certificate: see [VerifyPeer].
func IDFromCertificate(leaf *x509.Certificate) (ID, error) {
	if leaf == nil {
		return ID{}, errors.New("no certificate")
	}
	if isAuthority(leaf) {
		return ID{}, errAuthorityLeaf
	}
	uris, err := uriNames(leaf)
	if err != nil {
		return ID{}, err
	}
	if len(uris) != 1 {
		return ID{}, fmt.Errorf("certificate has %d URI names, want exactly one", len(uris))
	}
	return ParseID(uris[0])
}

var errAuthorityLeaf = errors.New("certificate may sign others, so it is no leaf")

// isAuthority follows SPIFFE X509-SVID section 4: neither CA:TRUE nor the usages
// of a CA may stand in a leaf.
func isAuthority(c *x509.Certificate) bool {
	return c.IsCA || c.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0
}

var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// uriNames reads the URI SANs as they were signed. Certificate.URIs is parsed by
// net/url, which forgives (it lowers the scheme and drops an empty fragment).
func uriNames(c *x509.Certificate) ([]string, error) {
	const tagURI = 6 // RFC 5280, GeneralName.uniformResourceIdentifier
	var uris []string
	for _, ext := range c.Extensions {
		if !ext.Id.Equal(oidSubjectAltName) {
			continue
		}
		var names []asn1.RawValue
		if rest, err := asn1.Unmarshal(ext.Value, &names); err != nil || len(rest) > 0 {
			return nil, errors.New("certificate has a malformed subject alternative name")
		}
		for _, n := range names {
			if n.Class == asn1.ClassContextSpecific && n.Tag == tagURI {
				uris = append(uris, string(n.Bytes))
			}
		}
	}
	return uris, nil
}

// clip keeps what a peer sent from filling a log line.
func clip(s string) string {
	const most = 128
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
