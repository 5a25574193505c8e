package nodeclient

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tunnel"
)

// A right lease, whatever the gateway's clock says next to the node's wall clock.
func TestLeasedRunOnANode(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]int64{"": 0, "ten years ahead": 10 * 365 * 24 * 3600 * 1e9, "thirty years behind": -30 * 365 * 24 * 3600 * 1e9} {
		l := newLender(t)
		l.ahead.Store(ahead)
		p := newPurse()
		b := l.borrow(p, nil)
		var token []byte
		paid(t, "clock "+name, p, collect(l.lend(b.s, lent{token: func(t []byte) []byte { token = t; return t }})), 1)
		for _, seg := range append(bytes.Split(token, []byte(".")), payload(t, token)) {
			if i := canary.Find(seg, credential); i >= 0 {
				t.Errorf("the token shows the credential at %d", i)
			}
		}
	}
}

// The mutation table, end to end: each field that a lease is bound to is changed alone by a gateway that signs and seals what it should not. A second try has the
// same answer: a refusal burns nothing.
func TestAttack53OnANode(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	for name, tt := range map[string]struct {
		scope func(*lease.Scope)
		code  lease.Code
	}{
		"issuer":            {func(s *lease.Scope) { s.Issuer += "x" }, lease.CodeWrongRecipient},
		"audience":          {func(s *lease.Scope) { s.Audience = strings.Replace(s.Audience, "n1", "n2", 1) }, lease.CodeWrongRecipient},
		"run":               {func(s *lease.Scope) { s.Run += "x" }, lease.CodeMismatch},
		"attempt":           {func(s *lease.Scope) { s.Attempt++ }, lease.CodeMismatch},
		"kind":              {func(s *lease.Scope) { s.Kind = "edge" }, lease.CodeMismatch},
		"route":             {func(s *lease.Scope) { s.Route.ID = "team" }, lease.CodeMismatch},
		"route revision":    {func(s *lease.Scope) { s.Route.Rev++ }, lease.CodeStaleProjection},
		"slot":              {func(s *lease.Scope) { s.Slot.ID = "other" }, lease.CodeMismatch},
		"slot revision":     {func(s *lease.Scope) { s.Slot.Rev++ }, lease.CodeStaleProjection},
		"profile":           {func(s *lease.Scope) { s.Profile.ID = "q" }, lease.CodeMismatch},
		"profile revision":  {func(s *lease.Scope) { s.Profile.Rev-- }, lease.CodeStaleProjection},
		"version":           {func(s *lease.Scope) { s.Version-- }, lease.CodeStaleProjection},
		"adapter":           {func(s *lease.Scope) { s.Target.Adapter = "openai" }, lease.CodeMismatch},
		"target":            {func(s *lease.Scope) { s.Target.ID = "gpu2" }, lease.CodeMismatch},
		"origin":            {func(s *lease.Scope) { s.Target.Origin = "https://provider.test:1" }, lease.CodeMismatch},
		"request":           {func(s *lease.Scope) { s.Request[31] ^= 1 }, lease.CodeMismatch},
		"header":            {func(s *lease.Scope) { s.Header = "X-Api-Key" }, lease.CodeMismatch},
		"projection":        {func(s *lease.Scope) { s.PGN++ }, lease.CodeMismatch},
		"generation after":  {func(s *lease.Scope) { s.CGN++ }, lease.CodeStaleGeneration},
		"generation before": {func(s *lease.Scope) { s.CGN-- }, lease.CodeStaleGeneration},
		"epoch":             {func(s *lease.Scope) { s.Epoch-- }, lease.CodeStaleGeneration},
		"lane":              {func(s *lease.Scope) { s.Exporter = bytes.Repeat([]byte{7}, 32) }, lease.CodeWrongConnection},
		"leaf":              {func(s *lease.Scope) { s.Leaf[0] ^= 1 }, lease.CodeWrongConnection},
	} {
		var id string
		var token []byte
		first := collect(l.lend(b.s, lent{scope: tt.scope, open: func(o *tunnel.RunOpen) { id = o.Run }, token: func(t []byte) []byte { token = t; return t }}))
		refused(t, name, p, first, tt.code)
		b.quiet()
		again := collect(l.lend(b.s, lent{open: func(o *tunnel.RunOpen) { o.Run = id }, token: func([]byte) []byte { return token }}))
		refused(t, name+", again", p, again, tt.code)
		b.quiet()
	}
	paid(t, "the right one", p, collect(l.lend(b.s, lent{})), 1)
}

// What the run says was changed after its lease was sealed, or names what was not announced.
func TestRunOpenOtherThanSealed(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	for name, tt := range map[string]struct {
		after func(*tunnel.RunOpen)
		code  lease.Code
	}{
		"path":        {func(o *tunnel.RunOpen) { o.Path = []byte("/api/generate") }, lease.CodeMismatch},
		"query":       {func(o *tunnel.RunOpen) { o.Path = []byte("/api/chat?x=1") }, lease.CodeMismatch},
		"method":      {func(o *tunnel.RunOpen) { o.Method, o.Path = "GET", []byte("/api/tags") }, lease.CodeMismatch},
		"a header":    {func(o *tunnel.RunOpen) { o.Headers = []*tunnel.Header{{Name: "X-A", Value: []byte("1")}} }, lease.CodeMismatch},
		"body length": {func(o *tunnel.RunOpen) { o.BodyLength = 1 }, lease.CodeMismatch},
		"body mode":   {func(o *tunnel.RunOpen) { o.Body = tunnel.BodyStream }, lease.CodeMismatch},
		"model":       {func(o *tunnel.RunOpen) { o.Model = "other" }, lease.CodeMismatch},
		"session id":  {func(o *tunnel.RunOpen) { o.SessionId = "other" }, lease.CodeMismatch},
		"deadline":    {func(o *tunnel.RunOpen) { o.DeadlineMs = 1000 }, lease.CodeMismatch},
		"credit":      {func(o *tunnel.RunOpen) { o.Credit = false }, lease.CodeMismatch},
		"attempt":     {func(o *tunnel.RunOpen) { o.Attempt = 2 }, lease.CodeMismatch},
		"route":       {func(o *tunnel.RunOpen) { o.Route = "team" }, lease.CodeMismatch},
		"profile":     {func(o *tunnel.RunOpen) { o.Profile = "q" }, lease.CodeStaleProjection}, // no such profile was announced
		"projection":  {func(o *tunnel.RunOpen) { o.Projection = pgn + 1 }, lease.CodeStaleProjection},
	} {
		refused(t, name, p, collect(l.lend(b.s, lent{after: tt.after})), tt.code)
	}
	paid(t, "unchanged", p, collect(l.lend(b.s, lent{after: func(*tunnel.RunOpen) {}})), 1)
}

// T05, T06, attack 51: a box that was sealed for something else, under a signature that the node believes.
func TestBoxTransplantOnANode(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	for name, change := range map[string]func(*lease.Scope){
		"only the id":     func(*lease.Scope) {},
		"principal":       func(s *lease.Scope) { s.Principal = "bob" },
		"run":             func(s *lease.Scope) { s.Run += "x" },
		"slot":            func(s *lease.Scope) { s.Slot.ID = "other" },
		"header":          func(s *lease.Scope) { s.Header = "X-Api-Key" },
		"origin":          func(s *lease.Scope) { s.Target.Origin = "http://evil.test:1" },
		"lane":            func(s *lease.Scope) { s.Exporter = bytes.Repeat([]byte{7}, 32) },
		"leaf":            func(s *lease.Scope) { s.Leaf[0] ^= 1 },
		"request":         func(s *lease.Scope) { s.Request[0] ^= 1 },
		"version":         func(s *lease.Scope) { s.Version++ },
		"the generation":  func(s *lease.Scope) { s.CGN++ },
		"the process":     func(s *lease.Scope) { s.Epoch++ },
		"the projection":  func(s *lease.Scope) { s.PGN++ },
		"another gateway": func(s *lease.Scope) { s.Issuer += "2" },
	} {
		var scope lease.Scope
		var id string
		var forged []byte
		how := lent{
			open:  func(o *tunnel.RunOpen) { id = o.Run },
			scope: func(s *lease.Scope) { scope = *s },
			token: func(token []byte) []byte {
				change(&scope)
				forged = l.forge(swapBox(t, payload(t, token), payload(t, l.seal(b.s, &scope))))
				return forged
			},
		}
		refused(t, name, p, collect(l.lend(b.s, how)), lease.CodeOpenFailed)
		b.quiet()
		again := collect(l.lend(b.s, lent{open: func(o *tunnel.RunOpen) { o.Run = id }, token: func([]byte) []byte { return forged }}))
		refused(t, name+", again", p, again, lease.CodeReplayed)
		b.quiet()
	}
	for name, tt := range map[string]struct {
		token func(token, other []byte) []byte
		code  lease.Code
	}{
		// Not signed again: the signature covers the box.
		"without a new signature": {func(token, other []byte) []byte {
			parts := bytes.Split(token, []byte("."))
			parts[1] = bytes.Split(l.forge(swapBox(t, payload(t, token), payload(t, other))), []byte("."))[1]
			return bytes.Join(parts, []byte("."))
		}, lease.CodeBadSignature},
		"a claim changed, the box left": {func(token, _ []byte) []byte {
			return l.forge(bytes.Replace(payload(t, token), []byte(`"sub":"alice"`), []byte(`"sub":"mallo"`), 1))
		}, lease.CodeOpenFailed},
		"a life of 61 s": {func(token, _ []byte) []byte { return l.forge(stretch(t, payload(t, token))) }, lease.CodeTTLExcessive},
		"garbage":        {func([]byte, []byte) []byte { return []byte("YQ.YQ.YQ") }, lease.CodeUnknownKey},
		"nothing":        {func([]byte, []byte) []byte { return []byte{} }, lease.CodeMalformed},
	} {
		var scope lease.Scope
		res := collect(l.lend(b.s, lent{scope: func(s *lease.Scope) { scope = *s }, token: func(token []byte) []byte { return tt.token(token, l.seal(b.s, &scope)) }}))
		refused(t, name, p, res, tt.code)
	}
	paid(t, "the forger's own signature under a right lease", p, collect(l.lend(b.s, lent{token: func(token []byte) []byte { return l.forge(payload(t, token)) }})), 1)
}

// swapBox puts the box of one payload into another.
func swapBox(t *testing.T, into, from []byte) []byte {
	t.Helper()
	box := []byte(`,"box":`)
	own, _, ok1 := bytes.Cut(into, box)
	_, other, ok2 := bytes.Cut(from, box)
	if !ok1 || !ok2 {
		t.Fatal("no box")
	}
	return bytes.Join([][]byte{own, other}, box)
}

// stretch gives a payload a life of 61 s.
func stretch(t *testing.T, payload []byte) []byte {
	t.Helper()
	m := regexp.MustCompile(`"exp":(\d+)`).FindSubmatch(payload)
	exp, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Replace(payload, m[0], fmt.Appendf(nil, `"exp":%d`, exp+61-int64(lease.TTL.Seconds())), 1)
}
