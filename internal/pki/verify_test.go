package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net/url"
	"testing"
	"time"
)

func reasonOf(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var v *VerifyError
	if !errors.As(err, &v) {
		t.Fatalf("error %v is no *VerifyError", err)
	}
	if v.Error() == "" {
		t.Fatal("empty error text")
	}
	return v.Reason
}

func TestVerifyPeerAccepts(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	for _, id := range []ID{nodeID("n1"), gatewayID("gw1")} {
		i := mustIdentity(t, ca, id)
		for _, now := range []time.Time{epoch, epoch.Add(-backdate), epoch.Add(-15 * time.Minute), epoch.Add(15 * time.Minute), i.NotAfter()} {
			got, err := VerifyPeer(chainOf(t, i), i.Roots, testDomain, id.Role, now)
			if err != nil || got != id {
				t.Errorf("%s at %s: %v, %v", id, now, got, err)
			}
		}
	}
}

// Threat T01, T02: who is refused, and what for.
func TestVerifyPeerRefuses(t *testing.T) {
	t.Parallel()
	ca, other := newCA(t, epoch), newCA(t, epoch)
	uri := func(u ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.URIs = nil; c.ExtraExtensions = []pkix.Extension{sanOf(t, u...)} }
	}
	validity := func(from, to time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = epoch.Add(from), epoch.Add(to) }
	}
	selfSigned := func(change func(*x509.Certificate)) []*x509.Certificate {
		c, _ := signOdd(t, Chain{}, change)
		return []*x509.Certificate{c}
	}
	same := func(*x509.Certificate) {}
	tests := map[string]struct {
		certs []*x509.Certificate
		want  string
	}{
		"good":                  {oddLeaf(t, ca, same), ""},
		"good with a DNS name":  {oddLeaf(t, ca, func(c *x509.Certificate) { c.DNSNames = []string{"n1.example"} }), ""},
		"none":                  {nil, ReasonNoCertificate},
		"self-signed":           {selfSigned(same), ReasonUntrusted},
		"self-signed, expired":  {selfSigned(validity(-2*time.Hour, -time.Hour)), ReasonUntrusted},
		"other CA":              {oddLeaf(t, other, same), ReasonUntrusted},
		"other CA, expired":     {oddLeaf(t, other, validity(-2*time.Minute, -time.Minute)), ReasonUntrusted},
		"without intermediate":  {oddLeaf(t, ca, same)[:1], ReasonUntrusted},
		"expired":               {oddLeaf(t, ca, validity(-2*time.Minute, -time.Second)), ReasonExpired},
		"not yet valid":         {oddLeaf(t, ca, validity(ClockSlack+time.Second, 48*time.Hour)), ReasonExpired},
		"CA:TRUE leaf":          {oddLeaf(t, ca, func(c *x509.Certificate) { c.IsCA = true }), ReasonUntrusted},
		"may sign certificates": {oddLeaf(t, ca, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), ReasonUntrusted},
		"no EKU":                {oddLeaf(t, ca, func(c *x509.Certificate) { c.ExtKeyUsage = nil }), ReasonUntrusted},
		"EKU of a server only":  {oddLeaf(t, ca, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }), ReasonUntrusted},
		"EKU any":               {oddLeaf(t, ca, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }), ReasonUntrusted},
		"wrong role":            {oddLeaf(t, ca, uri(gatewayID("n1").String())), ReasonWrongRole},
		"other trust domain":    {oddLeaf(t, ca, uri("spiffe://other.test/node/n1")), ReasonWrongTrustDomain},
		"no URI":                {oddLeaf(t, ca, func(c *x509.Certificate) { c.URIs = nil; c.DNSNames = []string{"n1"} }), ReasonMalformedID},
		"no SAN, only a CN":     {oddLeaf(t, ca, func(c *x509.Certificate) { c.URIs = nil; c.Subject.CommonName = "n1" }), ReasonMalformedID},
		"two URIs":              {oddLeaf(t, ca, uri(nodeID("n1").String(), nodeID("n2").String())), ReasonMalformedID},
		"upper-case name":       {oddLeaf(t, ca, uri("spiffe://fleet.test/node/N1")), ReasonMalformedID},
		"upper-case scheme":     {oddLeaf(t, ca, uri("SPIFFE://fleet.test/node/n1")), ReasonMalformedID},
		"further segment":       {oddLeaf(t, ca, uri("spiffe://fleet.test/node/n1/x")), ReasonMalformedID},
		"missing segment":       {oddLeaf(t, ca, uri("spiffe://fleet.test/node")), ReasonMalformedID},
		"query":                 {oddLeaf(t, ca, uri("spiffe://fleet.test/node/n1?x=1")), ReasonMalformedID},
		"empty fragment":        {oddLeaf(t, ca, uri("spiffe://fleet.test/node/n1#")), ReasonMalformedID},
		"port":                  {oddLeaf(t, ca, uri("spiffe://fleet.test:443/node/n1")), ReasonMalformedID},
		"userinfo":              {oddLeaf(t, ca, uri("spiffe://x@fleet.test/node/n1")), ReasonMalformedID},
		"percent-encoding":      {oddLeaf(t, ca, uri("spiffe://fleet.test/node/%6e1")), ReasonMalformedID},
		"unknown role":          {oddLeaf(t, ca, uri("spiffe://fleet.test/agent/n1")), ReasonMalformedID},
		"https":                 {oddLeaf(t, ca, uri("https://fleet.test/node/n1")), ReasonMalformedID},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, err := VerifyPeer(tt.certs, poolOf(ca.Root()), testDomain, RoleNode, epoch)
			if got := reasonOf(t, err); got != tt.want {
				t.Fatalf("reason %q, want %q (%v)", got, tt.want, err)
			}
			if (err == nil) != (id == nodeID("n1")) || err != nil && id != (ID{}) {
				t.Fatalf("id %v with error %v", id, err)
			}
		})
	}
}

// A node accepts gateways only, and a gateway's leaf must be usable as a server's.
func TestVerifyPeerGatewayUsage(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	clientOnly := oddLeaf(t, ca, func(c *x509.Certificate) {
		c.URIs = []*url.URL{gatewayID("gw1").URI()}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	})
	_, err := VerifyPeer(clientOnly, poolOf(ca.Root()), testDomain, RoleGateway, epoch)
	if got := reasonOf(t, err); got != ReasonUntrusted {
		t.Fatalf("client-only gateway leaf: %v", err)
	}
	_, err = VerifyPeer(oddLeaf(t, ca, func(*x509.Certificate) {}), poolOf(ca.Root()), testDomain, RoleGateway, epoch)
	if got := reasonOf(t, err); got != ReasonWrongRole {
		t.Fatalf("a node where a gateway is wanted: %v", err)
	}
	_, err = VerifyPeer(oddLeaf(t, ca, func(*x509.Certificate) {}), poolOf(ca.Root()), testDomain, "", epoch)
	if reasonOf(t, err) == "" {
		t.Fatal("no role wanted, yet accepted")
	}
}

func TestVerifyPeerWithoutRoots(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	certs := oddLeaf(t, ca, func(*x509.Certificate) {})
	for name, pool := range map[string]*x509.CertPool{"nil": nil, "empty": x509.NewCertPool()} {
		if _, err := VerifyPeer(certs, pool, testDomain, RoleNode, epoch); reasonOf(t, err) != ReasonUntrusted {
			t.Errorf("%s pool: %v", name, err)
		}
	}
}

func TestVerifyRenewal(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	i := mustIdentity(t, ca, nodeID("n1"))
	if err := ca.RenewIntermediate(intermediateLifetime); err != nil {
		t.Fatal(err)
	}
	until := RenewableUntil(i.Certificate.Leaf)
	if got := until.Sub(i.NotAfter()); got != 90*24*time.Hour {
		t.Fatalf("renewable for %s", got)
	}
	for _, tt := range []struct {
		now  time.Time
		want string
	}{
		{epoch, ""}, {i.NotAfter().Add(time.Second), ""}, {until, ""},
		{until.Add(time.Second), ReasonExpired}, {epoch.Add(-48 * time.Hour), ReasonExpired},
	} {
		if _, err := VerifyRenewal(chainOf(t, i), i.Roots, testDomain, RoleNode, tt.now); reasonOf(t, err) != tt.want {
			t.Errorf("at %s: %v, want %q", tt.now, err, tt.want)
		}
	}
	if _, err := VerifyRenewal(nil, i.Roots, testDomain, RoleNode, epoch); reasonOf(t, err) != ReasonNoCertificate {
		t.Error("no certificate renews")
	}
}

func TestVerifyPinned(t *testing.T) {
	t.Parallel()
	ca, other := newCA(t, epoch), newCA(t, epoch)
	pin := RootPin(ca.Root())
	presented := func(i *Identity) []*x509.Certificate {
		certs, err := parseAll(i.CertificateWithRoot().Certificate)
		if err != nil {
			t.Fatal(err)
		}
		return certs
	}
	gw, foreign := mustIdentity(t, ca, gatewayID("gw1")), mustIdentity(t, other, gatewayID("gw1"))
	id, root, err := VerifyPinned(presented(gw), pin, testDomain, epoch)
	if err != nil || id != gw.ID || !root.Equal(ca.Root()) {
		t.Fatalf("%v, %v", id, err)
	}
	// Made by somebody else around the pinned key: not signed by it.
	forged := append(presented(foreign), forgedRoot(t, ca.Root(), other))
	tests := map[string]struct {
		certs  []*x509.Certificate
		domain string
		want   string
	}{
		"nothing":              {nil, testDomain, ReasonNoCertificate},
		"root not sent":        {chainOf(t, gw), testDomain, ReasonUntrusted},
		"other root":           {presented(foreign), testDomain, ReasonUntrusted},
		"other, pinned beside": {append(presented(foreign), ca.Root()), testDomain, ReasonUntrusted},
		"forged root":          {forged, testDomain, ReasonUntrusted},
		"a node":               {presented(mustIdentity(t, ca, nodeID("n1"))), testDomain, ReasonWrongRole},
		"other trust domain":   {presented(gw), "other.test", ReasonWrongTrustDomain},
	}
	for name, tt := range tests {
		if _, _, err := VerifyPinned(tt.certs, pin, tt.domain, epoch); reasonOf(t, err) != tt.want {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

// forgedRoot carries the pinned key, and a signature by another.
func forgedRoot(t *testing.T, pinned *x509.Certificate, by *SelfSigned) *x509.Certificate {
	t.Helper()
	c, err := signAuthority("Fairway Root CA", 1, epoch.Add(-time.Hour), epoch.Add(time.Hour), by.Root(), pinned.PublicKey, by.RootKey())
	if err != nil {
		t.Fatal(err)
	}
	if RootPin(c) != RootPin(pinned) {
		t.Fatal("the forgery does not have the pin")
	}
	return c
}

func TestCheckClock(t *testing.T) {
	t.Parallel()
	for skew, warn := range map[time.Duration]bool{
		0: false, 90 * time.Second: false, -90 * time.Second: false, 5 * time.Minute: false, -5 * time.Minute: false,
		5*time.Minute + 1: true, -15 * time.Minute: true, 24 * time.Hour: true,
	} {
		got, w := CheckClock(epoch.Add(skew), epoch)
		if got != skew || w != warn {
			t.Errorf("skew %s: %s, %v", skew, got, w)
		}
	}
}

// sanOf writes names that net/url would not give back.
func sanOf(t *testing.T, uris ...string) pkix.Extension {
	t.Helper()
	var names []asn1.RawValue
	for _, u := range uris {
		names = append(names, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(u)})
	}
	der, err := asn1.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: oidSubjectAltName, Critical: true, Value: der}
}
