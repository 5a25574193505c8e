package nodeclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tunnel"
)

// kept is a lease that a test uses more than once: for one run id.
type kept struct {
	l     *lender
	b     *borrower
	run   string
	token []byte
}

func (l *lender) keep(b *borrower) *kept {
	return &kept{l: l, b: b, run: fmt.Sprint("run-", runSeq.Add(1))}
}

// open sends the run, with the same lease as before.
func (k *kept) open() *tunnel.Run {
	k.b.quiet()
	return k.l.lend(k.b.s, lent{
		open: func(o *tunnel.RunOpen) { o.Run = k.run },
		token: func(token []byte) []byte {
			if k.token == nil {
				k.token = token
			}
			return k.token
		},
	})
}

// id is the lease's.
func (k *kept) id() string {
	k.l.t.Helper()
	var c struct{ Jti string }
	if err := json.Unmarshal(payload(k.l.t, k.token), &c); err != nil {
		k.l.t.Fatal(err)
	}
	return c.Jti
}

// DECISIONS 9: admit, connect, open, write, in that order; a bad lease takes no credit, and nothing is opened before the provider is there.
func TestOrderOfALeasedRun(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	var mu sync.Mutex
	var steps []string
	var c *credits
	step := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if s := fmt.Sprintf("%s with %d credits taken", name, c.inUse()); len(steps) == 0 || steps[len(steps)-1] != s {
			steps = append(steps, s)
		}
	}
	b := l.borrow(p, func(v *vault) {
		c = v.c.targets[0].credits
		v.opener.Recipients = func() []*lease.Recipient { step("check"); return v.live() }
		v.opener.Now = func() (time.Time, bool) { step("judge the time"); return v.clock.Now() }
	})
	p.change(func(p *purse) {
		p.dial = func(context.Context) error { step("connect"); return nil }
		p.do = func(_ context.Context, r *adapter.Request, line string) (*adapter.Response, error) {
			step("write")
			if line != "Authorization: "+credential+"\r\n" {
				t.Errorf("the adapter was given %q", line)
			}
			return reply(200, "{}"), nil
		}
	})
	paid(t, "a run", p, collect(l.lend(b.s, lent{})), 1)
	want := []string{
		"check with 0 credits taken", "judge the time with 0 credits taken", "connect with 1 credits taken", "judge the time with 1 credits taken",
		"write with 1 credits taken",
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(steps, want) {
		t.Errorf("%q", steps)
	}
}

// Attack 59: without a credit the run goes elsewhere, and its lease is as good as before.
func TestAttack59NoCredit(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, func(v *vault) { v.c.targets[0].credits.perModel = 1 })
	gate := make(chan struct{})
	p.change(func(p *purse) {
		p.do = func(ctx context.Context, _ *adapter.Request, _ string) (*adapter.Response, error) {
			return gated(gate)(ctx, nil)
		}
	})
	first := l.lend(b.s, lent{})
	eventually(t, 5*time.Second, "the first run", func() bool { return p.asked.Load() == 1 })
	k := &kept{l: l, b: b, run: "run-59"}
	second := func() *tunnel.Run { // quiet would wait for the first
		return l.lend(b.s, lent{open: func(o *tunnel.RunOpen) { o.Run = k.run }, token: func(token []byte) []byte {
			if k.token == nil {
				k.token = token
			}
			return k.token
		}})
	}
	for range 3 {
		res := collect(second())
		if f := res.refused; f.GetCode() != tunnel.CodeNodeBusy || f.GetRetry() != tunnel.RetryElsewhere || !f.GetNoCredit() {
			t.Fatalf("%v %v", res.refused, res.terminal)
		}
		eventually(t, 5*time.Second, "the refused run is over", func() bool { return b.node.Runs() == 1 })
	}
	close(gate)
	if res := collect(first); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("the first: %v", res.terminal)
	}
	paid(t, "the second, with the same lease", p, collect(k.open()), 2)
}

// A provider that cannot be connected costs no lease.
func TestFailedConnectBurnsNothing(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	k := l.keep(b)
	p.change(func(p *purse) {
		p.dial = func(context.Context) error { return fmt.Errorf("refused: %w", adapter.ErrNotSent) }
	})
	for range 3 {
		if f := collect(k.open()).refused; f.GetCode() != tunnel.CodeProviderUnreached || f.GetRetry() != tunnel.RetryElsewhere {
			t.Fatalf("%v", f)
		}
	}
	// Nor does a caller that leaves meanwhile.
	dialling := make(chan struct{})
	p.change(func(p *purse) {
		p.dial = func(ctx context.Context) error { close(dialling); <-ctx.Done(); return ctx.Err() }
	})
	r := k.open()
	<-dialling
	r.Cancel(tunnel.CodeCanceled)
	if res := collect(r); res.terminal.GetOutcome() != tunnel.Canceled {
		t.Errorf("%v %v", res.refused, res.terminal)
	}
	p.change(func(p *purse) { p.dial = nil })
	paid(t, "the provider is back", p, collect(k.open()), 1)
}

// Attack 55: what is revoked while the provider is being connected is not opened, and not burned either.
func TestRevokedWhileConnecting(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		least   uint64
		subject func(*kept) string
		code    lease.Code
	}{
		"slot":       {0, func(*kept) string { return lease.SlotSubject("s") }, lease.CodeRevoked},
		"profile":    {0, func(*kept) string { return lease.ProfileSubject("p") }, lease.CodeRevoked},
		"principal":  {0, func(*kept) string { return lease.PrincipalSubject("alice") }, lease.CodeRevoked},
		"lease":      {0, func(k *kept) string { return lease.LeaseSubject(k.id()) }, lease.CodeRevoked},
		"projection": {pgn + 1, nil, lease.CodeStaleProjection},
	} {
		l := newLender(t)
		p := newPurse()
		b := l.borrow(p, nil)
		k := l.keep(b)
		dialling, connected := make(chan struct{}), make(chan struct{})
		p.change(func(p *purse) { p.dial = func(context.Context) error { close(dialling); <-connected; return nil } })
		r := k.open()
		<-dialling
		if tt.subject == nil {
			revoke(t, b.s, tt.least)
		} else {
			revoke(t, b.s, tt.least, tt.subject(k))
		}
		close(connected)
		refused(t, name, p, collect(r), tt.code)
		p.change(func(p *purse) { p.dial = nil })
		if tt.least > 0 {
			continue
		}
		refused(t, name+", still", p, collect(k.open()), tt.code)
		if err := b.s.AnnounceRevoked(nil, 0, true); err != nil {
			t.Fatal(err)
		}
		settle(t, b.s)
		paid(t, name+", undone", p, collect(k.open()), 1)
	}
}

// A session that ends while the provider is being connected opens nothing.
func TestSessionEndsWhileConnecting(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	dialling, connected := make(chan struct{}), make(chan struct{})
	p.change(func(p *purse) { p.dial = func(context.Context) error { close(dialling); <-connected; return nil } })
	r := l.lend(b.s, lent{})
	<-dialling
	b.s.Close(tunnel.CloseReplaced, "another one")
	eventually(t, 5*time.Second, "the node knows", func() bool { return !b.node.Current() })
	close(connected)
	_ = collect(r)
	<-b.node.Done()
	if n := p.asked.Load(); n != 0 {
		t.Errorf("the provider was asked %d times", n)
	}
}

// Attack 60, and every other way out of a run: its credential's memory is cleared although the adapter has not done it, the run has one end, the node
// goes on and says nothing of the credential.
func TestAttack60EveryExitClears(t *testing.T) {
	t.Parallel()
	type do = func(context.Context, *adapter.Request, string) (*adapter.Response, error)
	key := strings.TrimPrefix(credential, "Bearer ")
	head := func(name, value string) do {
		return func(context.Context, *adapter.Request, string) (*adapter.Response, error) {
			resp := reply(200, "{}")
			resp.Headers = append(resp.Headers, adapter.Header{Name: name, Value: value})
			return resp, nil
		}
	}
	for name, tt := range map[string]struct {
		do      do
		outcome tunnel.Outcome
		code    string
	}{
		"a panic before the write": {func(context.Context, *adapter.Request, string) (*adapter.Response, error) { panic("injected") }, tunnel.Failed, tunnel.CodeInternal},
		"a panic with the line in it": {func(_ context.Context, _ *adapter.Request, line string) (*adapter.Response, error) {
			panic(errors.New("injected: " + line))
		}, tunnel.Failed, tunnel.CodeInternal},
		"a panic in the answer": {func(context.Context, *adapter.Request, string) (*adapter.Response, error) {
			resp := reply(200, "")
			resp.Headers, resp.Body = nil, panicBody{}
			return resp, nil
		}, tunnel.Failed, tunnel.CodeInternal},
		"an error": {func(context.Context, *adapter.Request, string) (*adapter.Response, error) {
			return nil, errors.New("broke")
		}, tunnel.Failed, tunnel.CodeProviderUnreached},
		"a bad answer": {func(context.Context, *adapter.Request, string) (*adapter.Response, error) {
			return nil, adapter.ErrBadResponse
		}, tunnel.Failed, tunnel.CodeBadProvider},
		"success":              {head("X-A", "1"), tunnel.Completed, ""},
		"an echo in a header":  {head("X-Debug", "auth="+key), tunnel.Failed, tunnel.CodeBadProvider},
		"an echo in a name":    {head(key, "1"), tunnel.Failed, tunnel.CodeBadProvider},
		"an echo of the whole": {head("WWW-Authenticate", credential), tunnel.Failed, tunnel.CodeBadProvider},
	} {
		l := newLender(t)
		p := newPurse()
		core, logs := observer.New(zap.DebugLevel)
		b := l.borrow(p, func(v *vault) { v.c.log = zap.New(core) })
		p.change(func(p *purse) { p.do = tt.do })
		res := collect(l.lend(b.s, lent{}))
		if res.terminal.GetOutcome() != tt.outcome || res.terminal.GetCode() != tt.code || !res.accepted {
			t.Errorf("%s: %v, refused %v", name, res.terminal, res.refused)
		}
		if tt.outcome != tunnel.Completed && strings.HasPrefix(name, "an echo") && res.head != nil {
			t.Errorf("%s: the head passed", name)
		}
		if canary.Find([]byte(fmt.Sprint(res.head, res.body, res.terminal)), key) >= 0 {
			t.Errorf("%s: the gateway is told the credential: %v", name, res.terminal)
		}
		p.change(func(p *purse) { p.do = nil })
		p.asked.Store(0)
		p.paid.Store(0)
		paid(t, name+", and then", p, collect(l.lend(b.s, lent{})), 1)
		b.quiet()
		if n := b.targets[0].credits.inUse(); n != 0 {
			t.Errorf("%s: %d credits are lost", name, n)
		}
		b.end() // all runs are over: what they left may be looked at
		for _, c := range p.lines {
			if line, err := c.Line(); err == nil {
				t.Errorf("%s: the memory still holds %d bytes", name, len(line))
			}
		}
		for _, e := range logs.All() {
			if text := fmt.Sprint(e.Message, e.ContextMap()); canary.Find([]byte(text), key) >= 0 {
				t.Errorf("%s: the log says %s", name, text)
			}
		}
		if strings.HasPrefix(name, "a panic") && logs.FilterMessage("a fault in a run").Len() != 1 {
			t.Errorf("%s: the log says %v", name, logs.All())
		}
	}
}

type panicBody struct{}

func (panicBody) Read([]byte) (int, error) { panic("injected") }
func (panicBody) Close() error             { return nil }

var _ io.ReadCloser = panicBody{}
