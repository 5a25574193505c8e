package lease

import (
	"crypto/hpke"
	"strings"
	"testing"
)

// sealing makes a token whose box holds plain, whatever that is: a gateway that seals what it should not.
func (p *pair) sealing(plain []byte) []byte {
	p.t.Helper()
	kem, err := hpke.NewKEM(kemID)
	if err != nil {
		p.t.Fatal(err)
	}
	public, err := kem.NewPublicKey(p.recipient.Public())
	if err != nil {
		p.t.Fatal(err)
	}
	return p.resign(p.issue(), func(c *claims) {
		enc, sender, err := hpke.NewSender(public, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), p.scope.info(p.recipient.Public()))
		if err != nil {
			p.t.Fatal(err)
		}
		ct, err := sender.Seal(p.scope.transcript(new(scratch), c.Jti, c.Iat, c.Exp, c.Box.RK), plain)
		if err != nil {
			p.t.Fatal(err)
		}
		c.Box.EK, c.Box.CT = b64.EncodeToString(enc), b64.EncodeToString(ct)
	})
}

// Every value that may stand in a slot can be lent, whatever else the lease says at its bound, and what is sealed shows only its size.
func TestLongestValues(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	most := strings.Repeat("n", 512)
	p.scope.Issuer, p.scope.Audience, p.scope.Principal, p.scope.Run, p.scope.Header = most, most, most, most, most
	p.scope.Route.ID, p.scope.Slot.ID, p.scope.Profile.ID, p.scope.Target = most, most, most, TargetRef{most, most, most}
	p.scope.Route.Rev, p.scope.PGN, p.scope.CGN, p.scope.Epoch, p.scope.Version = maxInteger-1, maxInteger-1, maxInteger-1, maxInteger-1, maxInteger-1
	sizes := map[int]bool{}
	for _, n := range []int{1, 253, 254, 509, 510, 1021, 1022, 2045, 2046, 4093, 4094, MaxValue} {
		value := strings.Repeat("v", n)
		issued, err := p.issuer.Issue(&p.scope, p.recipient.Public(), []byte(value))
		if err != nil {
			t.Errorf("%d bytes: %v", n, err)
			continue
		}
		sizes[len(issued.Token)] = true
		if got, err := p.open(issued.Token, p.scope); err != nil || got != value {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if len(sizes) != 6 {
		t.Errorf("leases of %d sizes, want 6: %v", len(sizes), sizes)
	}
}

// Attack 58, to its end: what opens and is no header value is refused, burned, and nowhere.
func TestAttack58SealedAllTheSame(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	with := func(value string) []byte { return pad([]byte(value)) }
	if got, err := p.open(p.sealing(with(value)), p.scope); err != nil || got != value {
		t.Fatalf("the right one: %v", err)
	}
	long := with(strings.Repeat("x", MaxValue))
	long[1], long[2] = (MaxValue+1)>>8, (MaxValue+1)&0xff
	copy(long[3:], strings.Repeat("x", MaxValue+1))
	over := with("x")
	over[1] = 1 // 257 bytes of 253
	for name, plain := range map[string][]byte{
		"CR": with("a\rb"), "LF": with("a\nb"), "CR LF and a header": with("a\r\nX-Evil: 1"), "NUL": with("a\x00b"), "DEL": with("a\x7fb"), "leading space": with(" a"),
		"trailing space": with("a "), "not ASCII": with("é"), "empty": with(""), "4,097 bytes": long, "a length over the data": over,
		"another size": append(with("x"), make([]byte, 256*2)...), "larger": append(with("x"), make([]byte, 8192-256)...), "nothing": {}, "short": {1, 0, 1, 'x'}, "another version": append([]byte{2}, with("x")[1:]...),
	} {
		token := p.sealing(plain)
		k, err := p.opener.Check(token, p.scope)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s, err := NewSecret()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.opener.Open(k, func() bool { return true }, s); code(err) != CodePayloadInvalid {
			t.Errorf("%s: %v", name, err)
		}
		for i, b := range s.page {
			if b != 0 {
				t.Errorf("%s: byte %d of the page is %#x", name, i, b)
				break
			}
		}
		if _, err := s.Line("X"); s.Len() != 0 || err == nil {
			t.Errorf("%s: a value of %d bytes", name, s.Len())
		}
		s.Clear()
		if _, err := p.open(token, p.scope); code(err) != CodeReplayed {
			t.Errorf("%s: not burned: %v", name, err)
		}
	}
}
