package pki

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var (
	tokenKey    = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	tokenPublic = tokenKey.Public().(ed25519.PublicKey)
	testPin     = base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32))
)

func mint(t testing.TB, node string, ttl time.Duration, uses int) (string, JoinToken) {
	t.Helper()
	s, tok, err := MintJoinToken(tokenKey, gatewayID("gw1"), node, ttl, uses, testPin, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return s, tok
}

func TestJoinToken(t *testing.T) {
	t.Parallel()
	s, minted := mint(t, "n1", time.Hour, 3)
	got, err := VerifyJoinToken(s, tokenPublic, epoch)
	if err != nil || got != minted {
		t.Fatalf("verified %+v, %v; minted %+v", got, err, minted)
	}
	read, err := ReadJoinToken(s)
	if err != nil || read != minted {
		t.Fatalf("read %+v, %v", read, err)
	}
	if minted.Node != "n1" || minted.Uses != 3 || minted.CA != testPin || minted.Issuer != gatewayID("gw1") || !minted.Expires.Equal(epoch.Add(time.Hour)) {
		t.Fatalf("minted %+v", minted)
	}
	_, again := mint(t, "n1", time.Hour, 3)
	if again.ID == minted.ID {
		t.Fatal("two tokens with one jti")
	}
	header, _ := base64.RawURLEncoding.DecodeString(s[:strings.IndexByte(s, '.')])
	if string(header) != `{"alg":"EdDSA","typ":"fairway-join+jwt"}` {
		t.Fatalf("header %s", header)
	}
}

func TestJoinTokenExpiry(t *testing.T) {
	t.Parallel()
	s, _ := mint(t, "n1", time.Hour, 1)
	for _, tt := range []struct {
		now     time.Time
		expired bool
	}{{epoch.Add(-time.Hour), false}, {epoch.Add(time.Hour - time.Nanosecond), false}, {epoch.Add(time.Hour), true}, {epoch.Add(1e6 * time.Hour), true}} {
		_, err := VerifyJoinToken(s, tokenPublic, tt.now)
		if (err != nil) != tt.expired || err != nil && (!errors.Is(err, ErrTokenExpired) || errors.Is(err, ErrTokenInvalid)) {
			t.Errorf("at %s: %v", tt.now, err)
		}
	}
	// The node does not judge time.
	if _, err := ReadJoinToken(s); err != nil {
		t.Error(err)
	}
	// Expired and forged is invalid, never "expired".
	if _, err := VerifyJoinToken(s, newEd25519(t).Public().(ed25519.PublicKey), epoch.Add(2*time.Hour)); !errors.Is(err, ErrTokenInvalid) || errors.Is(err, ErrTokenExpired) {
		t.Errorf("forged: %v", err)
	}
}

func TestMintRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		key    ed25519.PrivateKey
		issuer ID
		node   string
		ttl    time.Duration
		uses   int
		pin    string
	}{
		"no key":          {nil, gatewayID("gw1"), "n1", time.Hour, 1, testPin},
		"issuer a node":   {tokenKey, nodeID("n2"), "n1", time.Hour, 1, testPin},
		"no issuer":       {tokenKey, ID{}, "n1", time.Hour, 1, testPin},
		"bad node":        {tokenKey, gatewayID("gw1"), "N1", time.Hour, 1, testPin},
		"ttl too short":   {tokenKey, gatewayID("gw1"), "n1", time.Second - 1, 1, testPin},
		"ttl too long":    {tokenKey, gatewayID("gw1"), "n1", 30*24*time.Hour + 1, 1, testPin},
		"no uses":         {tokenKey, gatewayID("gw1"), "n1", time.Hour, 0, testPin},
		"too many uses":   {tokenKey, gatewayID("gw1"), "n1", time.Hour, 1001, testPin},
		"no pin":          {tokenKey, gatewayID("gw1"), "n1", time.Hour, 1, ""},
		"pin of 16 bytes": {tokenKey, gatewayID("gw1"), "n1", time.Hour, 1, testPin[:22]},
	} {
		if s, _, err := MintJoinToken(tt.key, tt.issuer, tt.node, tt.ttl, tt.uses, tt.pin, epoch); err == nil || s != "" {
			t.Errorf("%s: minted", name)
		}
	}
	for _, ttl := range []time.Duration{time.Second, 30 * 24 * time.Hour} {
		mint(t, "n1", ttl, 1000)
	}
}

func TestVerifyJoinTokenRefuses(t *testing.T) {
	t.Parallel()
	good, _ := mint(t, "n1", time.Hour, 1)
	parts := strings.Split(good, ".")
	const headerJSON = `{"alg":"EdDSA","typ":"fairway-join+jwt"}`
	payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
	// sign makes a token of any text with the right key: what a gateway with
	// another notion of tokens, or another use of the key, would have signed.
	sign := func(header, payload string) string {
		in := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
		return in + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(tokenKey, []byte(in)))
	}
	if sign(headerJSON, string(payload)) != good {
		t.Fatal("the helper does not sign as minting does")
	}
	swap := func(old, new string) string {
		p := strings.Replace(string(payload), old, new, 1)
		if p == string(payload) {
			t.Fatalf("nothing to replace in %s", payload)
		}
		return sign(headerJSON, p)
	}
	hs, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "n1"}).SignedString([]byte(tokenPublic))
	if err != nil {
		t.Fatal(err)
	}
	last := good[len(good)-1]
	flip := map[bool]string{true: "B", false: "A"}[last == 'A']
	tests := map[string]string{
		"empty": "", "one part": parts[0], "two parts": parts[0] + "." + parts[1], "four parts": good + ".x",
		"a million dots": strings.Repeat(".", 1e6), "5 KiB": good + strings.Repeat("A", 5<<10), "padded": good + "=", "space": good + " ",
		"other signature":   good[:len(good)-1] + flip,
		"no signature":      parts[0] + "." + parts[1] + ".",
		"alg none":          base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"fairway-join+jwt"}`)) + "." + parts[1] + ".",
		"HS256":             hs,
		"alg eddsa":         sign(`{"alg":"eddsa","typ":"fairway-join+jwt"}`, string(payload)),
		"other typ":         sign(`{"alg":"EdDSA","typ":"JWT"}`, string(payload)),
		"no typ":            sign(`{"alg":"EdDSA"}`, string(payload)),
		"kid":               sign(`{"alg":"EdDSA","kid":"../x","typ":"fairway-join+jwt"}`, string(payload)),
		"no exp":            sign(headerJSON, `{"iss":"spiffe://fleet.test/gateway/gw1","sub":"n1","jti":"AAAAAAAAAAAAAAAAAAAAAA","uses":1,"ca":"`+testPin+`"}`),
		"doubled claim":     swap(`"uses":1`, `"uses":9,"uses":1`),
		"claim in capitals": swap(`"uses":1`, `"USES":9,"uses":1`),
		"extra claim":       swap(`"uses":1`, `"uses":1,"admin":true`),
		"fractional exp":    swap(`,"jti"`, `.5,"jti"`),
		"uses 0":            swap(`"uses":1`, `"uses":0`),
		"uses 1001":         swap(`"uses":1`, `"uses":1001`),
		"uses negative":     swap(`"uses":1`, `"uses":-1`),
		"node with a slash": swap(`"sub":"n1"`, `"sub":"n1/x"`),
		"issuer a node":     swap(`/gateway/`, `/node/`),
		"pin cut":           swap(testPin, testPin[1:]),
		"spaces":            sign(headerJSON, strings.ReplaceAll(string(payload), ",", ", ")),
		"null":              sign(headerJSON, "null"),
		"array":             sign(headerJSON, "[]"),
	}
	for name, s := range tests {
		if _, err := VerifyJoinToken(s, tokenPublic, epoch); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ReadJoinToken(s); err == nil && name != "other signature" {
			t.Errorf("%s: read", name)
		}
	}
	for name, key := range map[string]ed25519.PublicKey{"nil": nil, "other": newEd25519(t).Public().(ed25519.PublicKey)} {
		if _, err := VerifyJoinToken(good, key, epoch); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("%s key: %v", name, err)
		}
	}
}

// What is accepted is byte for byte what minting makes of its content (Ed25519
// signatures are deterministic); and what a node reads would sign to the same.
func FuzzJoinToken(f *testing.F) {
	for _, node := range []string{"n1", "gpu.box-7", strings.Repeat("z", 63)} {
		s, _ := mint(f, node, time.Hour, len(node))
		f.Add(s)
		f.Add(s + "=")
		f.Add(s[:len(s)-1] + "w")
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := VerifyJoinToken(s, tokenPublic, epoch)
		if err == nil {
			if minted, err := got.unsigned().SignedString(tokenKey); err != nil || minted != s {
				t.Fatalf("accepted %q, which is minted as %q", s, minted)
			}
		}
		if err != nil && got != (JoinToken{}) {
			t.Fatal("a token beside an error")
		}
		if read, err := ReadJoinToken(s); err == nil {
			in, err := read.unsigned().SigningString()
			if err != nil || in != s[:strings.LastIndexByte(s, '.')] {
				t.Fatalf("read %q as another token", s)
			}
		}
	})
}
