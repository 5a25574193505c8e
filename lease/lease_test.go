package lease

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var start = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// pair is a gateway's issuer and a node's opener on one lane.
type pair struct {
	t         testing.TB
	now       time.Time
	issuer    *Issuer
	recipient *Recipient
	opener    *Opener
	scope     Scope
}

const value = "Bearer sk-canary-0123456789"

func newPair(t testing.TB) *pair {
	t.Helper()
	p := &pair{t: t, now: start}
	var err error
	if p.issuer, err = NewIssuer(func() time.Time { return p.now }); err != nil {
		t.Fatal(err)
	}
	if p.recipient, err = NewRecipient(); err != nil {
		t.Fatal(err)
	}
	keys := NewIssuers(nil)
	if err := keys.Announce(p.issuer.Keys()); err != nil {
		t.Fatal(err)
	}
	p.opener = &Opener{
		Issuers: keys, Recipients: func() []*Recipient { return []*Recipient{p.recipient} }, Now: func() (time.Time, bool) { return p.now, true }, View: &View{},
	}
	p.scope = Scope{
		Issuer: "spiffe://td/gateway/gw1", Audience: "spiffe://td/node/n1", Principal: "alice", Run: "run-1", Attempt: 1, Kind: "tunnel",
		Route: Ref{"default", 3}, Slot: Ref{"openai", 5}, Profile: Ref{"vllm", 4}, Version: 2, Target: TargetRef{"openai", "vllm", "http://127.0.0.1:8000"},
		Request: sha256.Sum256([]byte("RunOpen")), Header: "Authorization", PGN: 100, CGN: 7, Epoch: 9,
		Exporter: bytes.Repeat([]byte{1}, 32), Leaf: sha256.Sum256([]byte("leaf")),
	}
	return p
}

func (p *pair) issue() []byte {
	p.t.Helper()
	l, err := p.issuer.Issue(&p.scope, p.recipient.Public(), []byte(value))
	if err != nil {
		p.t.Fatal(err)
	}
	return l.Token
}

// open checks and opens a token as the node of this pair.
func (p *pair) open(token []byte, want Scope) (string, error) {
	k, err := p.opener.Check(token, want)
	if err != nil {
		if k != nil {
			p.t.Fatal("a refused lease came through")
		}
		return "", err
	}
	return p.finish(k)
}

func (p *pair) finish(k *Checked) (string, error) {
	s, err := NewSecret()
	if err != nil {
		p.t.Fatal(err)
	}
	defer s.Clear()
	if err := p.opener.Open(k, func() bool { return true }, s); err != nil {
		return "", err
	}
	b, err := s.Append(make([]byte, 0, MaxValue))
	return string(b), err
}

func code(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestIssueAndOpen(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	token := p.issue()
	if bytes.Contains(token, []byte("canary")) || len(token) > 2048 {
		t.Errorf("a token of %d bytes", len(token))
	}
	got, err := p.open(token, p.scope)
	if err != nil || got != value {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := p.open(token, p.scope); code(err) != CodeReplayed {
		t.Errorf("twice: %v", err)
	}
}

// The mutation table: each bound field changed alone, on the node's side.
func TestAttack53EachFieldAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Scope)
		code   Code
	}{
		"issuer":            {func(s *Scope) { s.Issuer += "x" }, CodeWrongRecipient},
		"audience":          {func(s *Scope) { s.Audience += "x" }, CodeWrongRecipient},
		"run":               {func(s *Scope) { s.Run = "run-2" }, CodeMismatch},
		"attempt":           {func(s *Scope) { s.Attempt = 2 }, CodeMismatch},
		"kind":              {func(s *Scope) { s.Kind = "edge" }, CodeMismatch},
		"route":             {func(s *Scope) { s.Route.ID = "x" }, CodeMismatch},
		"route revision":    {func(s *Scope) { s.Route.Rev++ }, CodeStaleProjection},
		"slot":              {func(s *Scope) { s.Slot.ID = "x" }, CodeMismatch},
		"slot revision":     {func(s *Scope) { s.Slot.Rev++ }, CodeStaleProjection},
		"profile":           {func(s *Scope) { s.Profile.ID = "x" }, CodeMismatch},
		"profile revision":  {func(s *Scope) { s.Profile.Rev++ }, CodeStaleProjection},
		"version":           {func(s *Scope) { s.Version++ }, CodeStaleProjection},
		"adapter":           {func(s *Scope) { s.Target.Adapter = "ollama" }, CodeMismatch},
		"target":            {func(s *Scope) { s.Target.ID = "x" }, CodeMismatch},
		"origin":            {func(s *Scope) { s.Target.Origin = "http://evil" }, CodeMismatch},
		"request":           {func(s *Scope) { s.Request[0] ^= 1 }, CodeMismatch},
		"header":            {func(s *Scope) { s.Header = "X-Api-Key" }, CodeMismatch},
		"projection":        {func(s *Scope) { s.PGN++ }, CodeMismatch},
		"generation":        {func(s *Scope) { s.CGN++ }, CodeStaleGeneration},
		"generation before": {func(s *Scope) { s.CGN-- }, CodeStaleGeneration},
		"epoch":             {func(s *Scope) { s.Epoch++ }, CodeStaleGeneration},
		"exporter":          {func(s *Scope) { s.Exporter = bytes.Repeat([]byte{2}, 32) }, CodeWrongConnection},
		"leaf":              {func(s *Scope) { s.Leaf[0] ^= 1 }, CodeWrongConnection},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			want := p.scope
			tt.change(&want)
			token := p.issue()
			if _, err := p.open(token, want); code(err) != tt.code {
				t.Errorf("%v, want %s", err, tt.code)
			}
			if got, err := p.open(token, p.scope); err != nil || got != value {
				t.Errorf("a refusal burned the lease: %v", err)
			}
		})
	}
}

// resign signs changed claims with the issuer's own key: what a bug or a relay inside the gateway could do.
func (p *pair) resign(token []byte, change func(*claims)) []byte {
	p.t.Helper()
	c := p.claims(token)
	change(c)
	payload, err := c.encode(newScratch())
	if err != nil {
		p.t.Fatal(err)
	}
	return p.signed(payload)
}

func (p *pair) signed(payload []byte) []byte {
	p.t.Helper()
	b, err := sign(p.issuer.signing(), payload)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

func (p *pair) claims(token []byte) *claims {
	p.t.Helper()
	payload, err := b64.DecodeString(strings.Split(string(token), ".")[1])
	if err != nil {
		p.t.Fatal(err)
	}
	c := new(claims)
	if err := json.Unmarshal(payload, c); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// T05, T06: a box that was sealed for another scope, or by somebody else, does not open although the signature is right.
func TestBoxSwappedBetweenLeases(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	other := *p
	for name, change := range map[string]func(*Scope){
		"run": func(s *Scope) { s.Run = "run-2" }, "slot": func(s *Scope) { s.Slot.ID = "other" }, "principal": func(s *Scope) { s.Principal = "bob" },
		"lane": func(s *Scope) { s.Exporter = bytes.Repeat([]byte{9}, 32) }, "header": func(s *Scope) { s.Header = "X-Api-Key" }, "projection": func(s *Scope) { s.PGN++ },
		"target": func(s *Scope) { s.Target.ID = "x" }, "attempt": func(s *Scope) { s.Attempt++ }, "nothing but the id": func(*Scope) {},
	} {
		other.scope = p.scope
		change(&other.scope)
		box := p.claims(other.issue()).Box
		token := p.resign(p.issue(), func(c *claims) { c.Box = box })
		if _, err := p.open(token, p.scope); code(err) != CodeOpenFailed {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.open(token, p.scope); code(err) != CodeReplayed {
			t.Errorf("%s: a failed open must stay burned: %v", name, err)
		}
	}
}

func TestAttacks41to49Tokens(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	good := string(p.issue())
	seg := strings.Split(good, ".")
	reheader := func(h string) string { return b64.EncodeToString([]byte(h)) + "." + seg[1] + "." + seg[2] }
	kid := p.issuer.Keys()[0].Thumbprint
	pub := p.issuer.Keys()[0].Public
	hs, _ := jwt.SigningMethodHS256.Sign(b64.EncodeToString([]byte(`{"alg":"HS256","kid":"`+kid+`","typ":"fairway-lease+jwt"}`))+"."+seg[1], []byte(pub))
	payload, _ := b64.DecodeString(seg[1])
	js := string(payload)
	sub := func(old, repl string) string {
		if !strings.Contains(js, old) {
			t.Fatalf("no %s in %s", old, js)
		}
		return string(p.signed([]byte(strings.Replace(js, old, repl, 1))))
	}
	flip := func(i int) string {
		s, _ := b64.DecodeString(seg[2])
		s[i/8] ^= 1 << (i % 8)
		return seg[0] + "." + seg[1] + "." + b64.EncodeToString(s)
	}
	type row struct {
		name, token string
		code        Code
	}
	rows := []row{
		{"41 empty", "", CodeMalformed}, {"41 too long", strings.Repeat("a", MaxToken+1), CodeMalformed}, {"41 two segments", seg[0] + "." + seg[1], CodeMalformed},
		{"41 four segments", good + ".x", CodeMalformed}, {"41 dots", strings.Repeat(".", 8000), CodeMalformed},
		{"42 padding", good + "=", CodeMalformed}, {"42 another alphabet", seg[0] + "." + seg[1] + "." + strings.Repeat("+", 86), CodeMalformed},
		{"42 a line break", seg[0] + "." + seg[1] + "\n." + seg[2], CodeMalformed},
		{"43 none", reheader(`{"alg":"none","kid":"` + kid + `","typ":"fairway-lease+jwt"}`), CodeUnknownKey},
		{"43 HS256", b64.EncodeToString([]byte(`{"alg":"HS256","kid":"`+kid+`","typ":"fairway-lease+jwt"}`)) + "." + seg[1] + "." + b64.EncodeToString(hs), CodeUnknownKey},
		{"43 another case", reheader(`{"alg":"eddsa","kid":"` + kid + `","typ":"fairway-lease+jwt"}`), CodeUnknownKey},
		{"44 jwk", reheader(`{"alg":"EdDSA","kid":"` + kid + `","typ":"fairway-lease+jwt","jwk":{}}`), CodeUnknownKey},
		{"44 another order", reheader(`{"kid":"` + kid + `","alg":"EdDSA","typ":"fairway-lease+jwt"}`), CodeUnknownKey},
		{"45 another type", reheader(`{"alg":"EdDSA","kid":"` + kid + `","typ":"JWT"}`), CodeUnknownKey},
		{"46 no signature", seg[0] + "." + seg[1] + "." + b64.EncodeToString(make([]byte, 64)), CodeBadSignature},
		{"46 a short one", seg[0] + "." + seg[1] + "." + b64.EncodeToString(make([]byte, 63)), CodeBadSignature},
		{"47 a duplicate", sub(`"run":"run-1"`, `"run":"run-1","run":"run-1"`), CodeMalformed},
		{"47 another case", sub(`"run":`, `"RUN":`), CodeMalformed},
		{"47 an unknown claim", sub(`"v":1`, `"v":1,"w":2`), CodeMalformed},
		{"47 another order", sub(`"v":1,"iss":"spiffe://td/gateway/gw1"`, `"iss":"spiffe://td/gateway/gw1","v":1`), CodeMalformed},
		{"47 white space", sub(`"v":1`, `"v": 1`), CodeMalformed},
		{"47 null", sub(`"run":"run-1"`, `"run":null`), CodeMalformed},
		{"47 a float", sub(`"att":1`, `"att":1.0`), CodeMalformed},
		{"47 an exponent", sub(`"att":1`, `"att":1e0`), CodeMalformed},
		{"47 a number as text", sub(`"att":1`, `"att":"1"`), CodeMalformed},
		{"47 2^53", sub(`"cgn":7`, `"cgn":9007199254740993`), CodeMalformed},
		{"47 negative", sub(`"cgn":7`, `"cgn":-7`), CodeMalformed},
		{"47 an escape", sub(`"run":"run-1"`, `"run":"\u0072un-1"`), CodeMalformed},
		{"47 trailing", string(p.signed([]byte(js + " "))), CodeMalformed},
		{"48 aud an array", sub(`"aud":"spiffe://td/node/n1"`, `"aud":["spiffe://td/node/n1"]`), CodeMalformed},
		{"48 another node", sub(`"aud":"spiffe://td/node/n1"`, `"aud":"spiffe://td/node/n2"`), CodeWrongRecipient},
		{"48 a prefix", sub(`"aud":"spiffe://td/node/n1"`, `"aud":"spiffe://td/node/n"`), CodeWrongRecipient},
		{"49 another gateway", sub(`"iss":"spiffe://td/gateway/gw1"`, `"iss":"spiffe://td/gateway/gw2"`), CodeWrongRecipient},
		{"52 a life of 61 s", string(p.resign([]byte(good), func(c *claims) { c.Exp = c.Iat + 61 })), CodeTTLExcessive},
		{"52 not yet", string(p.resign([]byte(good), func(c *claims) { c.Iat += 3; c.Nbf += 3; c.Exp += 3 })), CodeNotYetValid},
		{"52 over", string(p.resign([]byte(good), func(c *claims) { c.Iat -= 16; c.Nbf -= 16; c.Exp = c.Iat + 15 })), CodeExpired},
		{"52 2^62", sub(fmt.Sprintf(`"exp":%d`, start.Unix()+15), `"exp":4611686018427387904`), CodeMalformed},
	}
	for i := range 512 {
		rows = append(rows, row{fmt.Sprint("46 bit ", i), flip(i), CodeBadSignature})
	}
	for _, tt := range rows {
		if _, err := p.open([]byte(tt.token), p.scope); code(err) != tt.code {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
		}
	}
	other := newPair(t)
	if _, err := p.open(other.issue(), p.scope); code(err) != CodeUnknownKey {
		t.Errorf("49 another gateway's key: %v", err)
	}
	if got, err := p.open([]byte(good), p.scope); err != nil || got != value {
		t.Fatalf("the good one afterwards: %v", err)
	}
}

func TestAttack56ManyAtOnce(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	token := p.issue()
	var mu sync.Mutex
	count := map[Code]int{}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			_, err := p.open(token, p.scope)
			mu.Lock()
			defer mu.Unlock()
			count[code(err)]++
		})
	}
	wg.Wait()
	if count[""] != 1 || count[CodeReplayed] != 99 {
		t.Fatalf("%v", count)
	}
}

func TestAttack57Boxes(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*claims){
		"enc zero": func(c *claims) { c.Box.EK = b64.EncodeToString(make([]byte, 32)) }, "enc short": func(c *claims) { c.Box.EK = b64.EncodeToString(make([]byte, 31)) },
		"enc of another KEM": func(c *claims) { c.Box.EK = b64.EncodeToString(make([]byte, 65)) }, "ct cut": func(c *claims) { c.Box.CT = c.Box.CT[:len(c.Box.CT)-4] },
		"ct longer": func(c *claims) { c.Box.CT += "AAAA" }, "ct empty": func(c *claims) { c.Box.CT = "" },
		"tag flipped": func(c *claims) {
			b, _ := b64.DecodeString(c.Box.CT)
			b[len(b)-1] ^= 1
			c.Box.CT = b64.EncodeToString(b)
		},
	} {
		p := newPair(t)
		token := p.resign(p.issue(), change)
		if _, err := p.open(token, p.scope); code(err) != CodeOpenFailed {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.open(token, p.scope); code(err) != CodeReplayed {
			t.Errorf("%s: not burned: %v", name, err)
		}
	}
	p := newPair(t)
	token := p.resign(p.issue(), func(c *claims) { c.Box.AEAD = 1 })
	if _, err := p.open(token, p.scope); code(err) != CodeMismatch {
		t.Errorf("another suite: %v", err)
	}
}

func TestAttack58Values(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for _, v := range []string{"", " x", "x ", "a\rb", "a\nb", "a\x00b", "a\x7fb", "é", strings.Repeat("x", MaxValue+1)} {
		if _, err := p.issuer.Issue(&p.scope, p.recipient.Public(), []byte(v)); !errors.Is(err, ErrValue) {
			t.Errorf("%.20q was sealed: %v", v, err)
		}
	}
	for name, b := range map[string][]byte{
		"short": make([]byte, 255), "no power of two": append([]byte{1, 0, 1, 'x'}, make([]byte, 300)...), "another version": append([]byte{2, 0, 1, 'x'}, make([]byte, 252)...),
		"length over": append([]byte{1, 1, 0, 'x'}, make([]byte, 252)...), "empty": append([]byte{1, 0, 0}, make([]byte, 253)...),
		"dirt behind": append([]byte{1, 0, 1, 'x', 'y'}, make([]byte, 251)...), "a line break": append([]byte{1, 0, 1, '\n'}, make([]byte, 252)...),
	} {
		if _, ok := unpad(b); ok {
			t.Errorf("%s: taken", name)
		}
	}
	for _, n := range []int{1, 252, 253, 254, 509, 4096} {
		if v, ok := unpad(pad(bytes.Repeat([]byte("x"), n))); !ok || len(v) != n {
			t.Errorf("%d bytes: %v", n, ok)
		}
	}
}

// Attacks 54, 55: what is revoked, also between the check and the opening, is not opened and not burned.
func TestAttack55Revocation(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		subjects []string
		min      uint64
		code     Code
	}{
		"slot": {[]string{SlotSubject("openai")}, 0, CodeRevoked}, "principal": {[]string{PrincipalSubject("alice")}, 0, CodeRevoked},
		"profile": {[]string{ProfileSubject("vllm")}, 0, CodeRevoked}, "projection": {nil, 101, CodeStaleProjection},
	} {
		p := newPair(t)
		k, err := p.opener.Check(p.issue(), p.scope)
		if err != nil {
			t.Fatal(err)
		}
		p.opener.View.Add(tt.subjects, tt.min)
		if _, err := p.finish(k); code(err) != tt.code {
			t.Errorf("%s, while waiting: %v", name, err)
		}
		if _, err := p.opener.Check(p.issue(), p.scope); code(err) != tt.code {
			t.Errorf("%s, before: %v", name, err)
		}
		p.opener.View.Replace(nil, 0)
		if tt.min == 0 {
			if got, err := p.finish(k); err != nil || got != value {
				t.Errorf("%s, undone: %v", name, err)
			}
		}
	}
	p := newPair(t)
	k, err := p.opener.Check(p.issue(), p.scope)
	if err != nil {
		t.Fatal(err)
	}
	p.opener.View.Add([]string{LeaseSubject(k.ID())}, 0)
	if _, err := p.finish(k); code(err) != CodeRevoked {
		t.Errorf("lease: %v", err)
	}
}

func TestClocks(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	token := p.issue()
	k, err := p.opener.Check(token, p.scope)
	if err != nil {
		t.Fatal(err)
	}
	p.now = start.Add(TTL)
	if _, err := p.finish(k); code(err) != CodeExpired {
		t.Errorf("expired while waiting: %v", err)
	}
	p.opener.Now = func() (time.Time, bool) { return start, false }
	if _, err := p.open(token, p.scope); code(err) != CodeClockUnavailable || CodeClockUnavailable.Class() != Unavailable {
		t.Errorf("no gateway time: %v", err)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	before := p.issue()
	if err := p.issuer.Rotate(); err != nil {
		t.Fatal(err)
	}
	early := p.issue() // before the nodes know the new key
	if _, err := p.open(early, p.scope); err != nil {
		t.Errorf("just after a rotation: %v", err)
	}
	if err := p.opener.Issuers.Announce(p.issuer.Keys()); err != nil {
		t.Fatal(err)
	}
	p.now = start.Add(Adoption)
	after := p.issue()
	if bytes.Equal(before[:100], after[:100]) {
		t.Error("the new key does not sign")
	}
	for _, token := range [][]byte{before, after} {
		if _, err := p.open(token, p.scope); err != nil {
			t.Error(err)
		}
	}
	p.now = start.Add(Adoption + TTL + leeway)
	p.issuer.Retire()
	if n := len(p.issuer.Keys()); n != 1 {
		t.Errorf("%d keys after the retirement", n)
	}
	if err := p.opener.Issuers.Announce(p.issuer.Keys()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.open(before, p.scope); code(err) != CodeUnknownKey {
		t.Errorf("the retired key: %v", err)
	}
}

func TestPins(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	keys := p.issuer.Keys()
	if err := NewIssuers([]string{"other"}).Announce(keys); err == nil {
		t.Error("a key that is not pinned was taken")
	}
	if err := NewIssuers([]string{keys[0].Thumbprint}).Announce(keys); err != nil {
		t.Error(err)
	}
	keys[0].Public = append(ed25519.PublicKey{}, keys[0].Public...)
	keys[0].Public[0] ^= 1
	if err := NewIssuers(nil).Announce(keys); err == nil {
		t.Error("a key under another's thumbprint was taken")
	}
}

func TestAttack37RecipientKeys(t *testing.T) {
	t.Parallel()
	r, err := NewRecipient()
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckRecipient(uint32(KEM), r.Public()); err != nil {
		t.Error(err)
	}
	one := make([]byte, 32)
	one[0] = 1
	for name, tt := range map[string]struct {
		kem uint32
		pub []byte
	}{"another suite": {0x647a, r.Public()}, "short": {uint32(KEM), r.Public()[:31]}, "zero": {uint32(KEM), make([]byte, 32)}, "one": {uint32(KEM), one}, "none": {uint32(KEM), nil}} {
		if CheckRecipient(tt.kem, tt.pub) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestReplayMemoryIsBounded(t *testing.T) {
	t.Parallel()
	var r replay
	for i := range maxReplay {
		if err := r.burn(fmt.Sprint(i), start.Add(TTL), start); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.burn("one more", start.Add(TTL), start); code(err) != CodeReplayCacheFull {
		t.Errorf("%v", err)
	}
	if err := r.burn("later", start.Add(2*TTL), start.Add(TTL+time.Second)); err != nil {
		t.Errorf("after they have expired: %v", err)
	}
}

func TestSecretCannotBeShown(t *testing.T) {
	t.Parallel()
	s, err := NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.set([]byte(value)); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s)
	j, _ := json.Marshal(struct{ S *Secret }{s})
	shown := fmt.Sprintf("%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s) + string(j) + log.String()
	if strings.Contains(shown, "canary") || strings.Contains(shown, fmt.Sprintf("%x", "canary")) || strings.Contains(shown, base64.StdEncoding.EncodeToString([]byte(value))) {
		t.Errorf("%s", shown)
	}
	if err := s.set([]byte("again")); err == nil {
		t.Error("set twice")
	}
	if _, err := s.Append(make([]byte, 0, 3)); err == nil {
		t.Error("it grew a buffer")
	}
	s.Clear()
	s.Clear()
}

// FuzzLeaseOpen: what is accepted is byte for byte a token that was issued; anything else gives no value.
func FuzzLeaseOpen(f *testing.F) {
	p := newPair(f)
	good := p.issue()
	f.Add(good)
	f.Add(p.resign(good, func(c *claims) { c.Run = "x" }))
	f.Add([]byte("a.b.c"))
	f.Fuzz(func(t *testing.T, token []byte) {
		if len(token) > 2*MaxToken {
			return
		}
		k, err := p.opener.Check(token, p.scope)
		if (err == nil) != (k != nil) {
			t.Fatal("neither refused nor taken")
		}
		if err == nil && !bytes.Equal(token, good) {
			t.Fatalf("accepted %q", token)
		}
	})
}

// FuzzLeaseCanonical: a payload that decodes is the only encoding of what it says.
func FuzzLeaseCanonical(f *testing.F) {
	p := newPair(f)
	payload, _ := b64.DecodeString(strings.Split(string(p.issue()), ".")[1])
	f.Add(payload)
	f.Add(bytes.Replace(payload, []byte(`"att":1`), []byte(`"att":1.0`), 1))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decode(b)
		if err != nil {
			return
		}
		again, err := c.encode(newScratch())
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%s\n%s", b, again)
		}
	})
}

func BenchmarkIssue(b *testing.B) {
	p := newPair(b)
	pub := p.recipient.Public()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.issuer.Issue(&p.scope, pub, []byte(value)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckAndOpen(b *testing.B) {
	p := newPair(b)
	s, err := NewSecret()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Clear()
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		token := p.issue()
		s.n = 0
		p.opener.replay = replay{}
		b.StartTimer()
		k, err := p.opener.Check(token, p.scope)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.opener.Open(k, func() bool { return true }, s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBadSignature(b *testing.B) {
	p := newPair(b)
	token := p.issue()
	at := bytes.IndexByte(token, '.') + 40 // in the payload: the signature is a point and a number as it should be
	if token[at]++; !isToken68(token[at]) {
		token[at] = 'A'
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.opener.Check(token, p.scope); err == nil {
			b.Fatal("accepted")
		}
	}
}

func newScratch() *scratch { return scratches.New().(*scratch) }
