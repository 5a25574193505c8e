package nodeclient

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// sealedFor makes a lease for a run on s, to be used elsewhere.
func (l *lender) sealedFor(s *tunnel.Session, run string) []byte {
	l.t.Helper()
	o := &tunnel.RunOpen{Run: run, Attempt: 1, Adapter: "ollama", Target: "ollama", Projection: pgn}
	scope := l.scope(s, o)
	return l.seal(s, &scope)
}

// T07, T08: a lease is of no use on another node, another session, or a later one of the same node.
func TestLeaseOnAnotherSession(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewSelfSigned("test.local", nil)
	if err != nil {
		t.Fatal(err)
	}
	// Two processes of one gateway: the same name, the same keys announced.
	one, two := newLenderOf(newGatewayOf(t, ca)), newLenderOf(newGatewayOf(t, ca))
	two.issuer, two.forger = one.issuer, one.forger
	p := newPurse()
	a, b := one.borrow(p, nil), two.borrow(p, nil)
	stolen := one.sealedFor(a.s, "run-stolen")
	use := func(s *tunnel.Session) result {
		return collect(one.lend(s, lent{open: func(o *tunnel.RunOpen) { o.Run = "run-stolen" }, token: func([]byte) []byte { return stolen }}))
	}
	refused(t, "on the node's session with another gateway", p, use(b.s), lease.CodeWrongRecipient)

	cfg := one.purseConfig(p)
	cfg.Identity = one.identity("n2")
	_, other, _ := one.node(cfg)
	one.announce(other)
	refused(t, "on another node", p, use(other), lease.CodeWrongRecipient)

	a.end()
	again := one.borrow(p, nil)
	if again.s.Generation() == a.s.Generation() {
		t.Error("the generation did not rise")
	}
	refused(t, "after a reconnect", p, use(again.s), lease.CodeWrongRecipient)
	// The same with the later session's generation, leaf and lane, all forged but for the key, which nobody has any more.
	late := lent{
		open:  func(o *tunnel.RunOpen) { o.Run = "run-stolen" },
		token: func(token []byte) []byte { return one.forge(swapBox(t, payload(t, token), payload(t, stolen))) },
	}
	refused(t, "after a reconnect, forged", p, collect(one.lend(again.s, late)), lease.CodeWrongRecipient)
	paid(t, "its own lease", p, collect(one.lend(again.s, lent{})), 1)
}

// A lease under a key that the gateway has not announced on the session is nobody's.
func TestLeaseOfAnUnknownIssuer(t *testing.T) {
	t.Parallel()
	l, stranger := newLender(t), newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	known := l.issuer
	l.issuer = stranger.issuer
	refused(t, "a stranger's", p, collect(l.lend(b.s, lent{})), lease.CodeUnknownKey)
	l.issuer = known
	if err := b.s.AnnounceKeys(nil); err != nil {
		t.Fatal(err)
	}
	settle(t, b.s)
	refused(t, "after the key was taken back", p, collect(l.lend(b.s, lent{})), lease.CodeUnknownKey)
	if err := b.s.AnnounceKeys(l.announced()); err != nil {
		t.Fatal(err)
	}
	settle(t, b.s)
	paid(t, "announced again", p, collect(l.lend(b.s, lent{})), 1)
}

// A node whose owner has pinned lease issuers leaves a gateway that announces another, at once or later, and says why.
func TestPinnedIssuers(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	node := func(pins ...string) (*tunnel.Session, *observer.ObservedLogs) {
		cfg := l.purseConfig(p)
		core, logs := observer.New(zap.ErrorLevel)
		cfg.LeaseIssuers, cfg.Log = pins, zap.New(core)
		_, s, _ := l.node(cfg)
		return s, logs
	}
	own := l.issuer.Keys()[0].Thumbprint
	left := func(what string, s *tunnel.Session, logs *observer.ObservedLogs) {
		t.Helper()
		select {
		case <-s.Done():
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: the session goes on", what)
		}
		said := logs.FilterMessageSnippet("lease issuer").All()
		if len(said) == 0 || said[0].ContextMap()["error"] == nil {
			t.Errorf("%s: the log says %v", what, logs.All())
		}
		if n := p.asked.Load(); n != 0 {
			t.Errorf("%s: the provider was asked %d times", what, n)
		}
	}
	s, logs := node("another")
	if err := s.AnnounceKeys(l.announced()[1:]); err != nil {
		t.Fatal(err)
	}
	left("another key", s, logs)

	s, logs = node(own)
	if err := s.AnnounceKeys(l.announced()); err != nil { // the forger's is not pinned
		t.Fatal(err)
	}
	left("one of two keys", s, logs)

	s, logs = node(own)
	if err := s.AnnounceKeys(l.announced()[1:]); err != nil {
		t.Fatal(err)
	}
	if err := s.AnnounceProjection(published(pgn)); err != nil {
		t.Fatal(err)
	}
	settle(t, s)
	paid(t, "the pinned key", p, collect(l.lend(s, lent{})), 1)
	p.asked.Store(0)
	if err := l.issuer.Rotate(); err != nil {
		t.Fatal(err)
	}
	if err := s.AnnounceKeys(l.announced()[1:]); err != nil {
		t.Fatal(err)
	}
	left("a rotation to a key that is not pinned", s, logs)
}

// Attack 56: one lease, one request, in sequence and at once.
func TestAttack56OnANode(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	once := func(run string, token []byte) result {
		return collect(l.lend(b.s, lent{open: func(o *tunnel.RunOpen) { o.Run = run }, token: func(own []byte) []byte {
			if token == nil {
				return own
			}
			return token
		}}))
	}
	var token []byte
	paid(t, "the first", p, collect(l.lend(b.s, lent{open: func(o *tunnel.RunOpen) { o.Run = "run-56" }, token: func(t []byte) []byte { token = t; return t }})), 1)
	b.quiet()
	for range 3 {
		if res := once("run-56", token); res.refused.GetCode() != string(lease.CodeReplayed) || res.refused.GetRetry() != tunnel.RetryNever {
			t.Errorf("a replay: %v %v", res.refused, res.terminal)
		}
		b.quiet()
	}
	// At once. A run of an id that is open is refused as such, one that comes later by its lease; none is served.
	o := &tunnel.RunOpen{
		Run: "run-56b", Attempt: 1, Generation: b.s.Generation(), Kind: tunnel.KindTunnel, Adapter: "ollama", Target: "ollama",
		Method: "POST", Path: []byte("/api/chat"), Model: "tiny", Credit: true, Route: "default", Profile: "p", Projection: pgn, Body: tunnel.BodyLength, Leased: true,
	}
	scope := l.scope(b.s, o)
	scope.Request = head(t, o)
	token = l.seal(b.s, &scope)
	var mu sync.Mutex
	count := map[string]int{}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			res := once("run-56b", token)
			mu.Lock()
			defer mu.Unlock()
			if res.refused != nil && res.refused.Retry == tunnel.RetryNever {
				count[res.refused.Code]++
			} else {
				count[res.terminal.GetOutcome().String()]++
			}
		})
	}
	wg.Wait()
	if served, kept := count[tunnel.Completed.String()], count[string(lease.CodeReplayed)]+count[tunnel.CodeBadRun]; served != 1 || kept != 99 {
		t.Errorf("%v", count)
	}
	if n := p.asked.Load(); n != 2 {
		t.Errorf("the provider was asked %d times by two leases", n)
	}
}

// Attack 54: what the projection says has changed, or was never said.
func TestAttack54OnANode(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	under := func(n uint64) result {
		return collect(l.lend(b.s, lent{open: func(o *tunnel.RunOpen) { o.Projection = n }}))
	}
	refused(t, "a projection to come", p, under(pgn+1), lease.CodeStaleProjection)
	next := published(pgn + 1)
	next.Profiles[0].SlotVersion++
	if err := b.s.AnnounceProjection(next); err != nil {
		t.Fatal(err)
	}
	settle(t, b.s)
	refused(t, "the next one, with what was before", p, under(pgn+1), lease.CodeStaleProjection)
	paid(t, "the one before, on its way when the next came", p, under(pgn), 1)
	p.asked.Store(0)
	revoke(t, b.s, pgn+1)
	refused(t, "below the least", p, under(pgn), lease.CodeStaleProjection)
	revoke(t, b.s, pgn-1) // the least never falls
	refused(t, "below the least that was", p, under(pgn), lease.CodeStaleProjection)
	for n := uint64(pgn + 2); n < pgn+2+maxProjections; n++ {
		if err := b.s.AnnounceProjection(published(n)); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, b.s)
	refused(t, "a projection that was forgotten", p, under(pgn+1), lease.CodeStaleProjection)
	p.paid.Store(0)
	paid(t, "the newest", p, under(pgn+1+maxProjections), 1)
}
