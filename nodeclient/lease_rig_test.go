package nodeclient

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// credential is what the leases of these tests carry.
const credential = "Bearer sk-canary-5a8e2f07c4d1"

// lender is a gateway that lends. What it announces and seals is right, unless a test changes it.
type lender struct {
	*gateway
	issuer *lease.Issuer
	forger ed25519.PrivateKey // announced, too: signs what the issuer would not
	value  string             // of the leases; credential
	origin string             // of the target
}

func newLender(t testing.TB) *lender { return newLenderOf(newGateway(t)) }

func newLenderOf(g *gateway) *lender {
	l := &lender{gateway: g, value: credential, origin: "http://provider.test:1"}
	var err error
	if l.issuer, err = lease.NewIssuer(g.now); err != nil {
		g.t.Fatal(err)
	}
	if _, l.forger, err = ed25519.GenerateKey(rand.Reader); err != nil {
		g.t.Fatal(err)
	}
	return l
}

// published is the projection of these tests under a number.
func published(pgn uint64) *tunnel.Projection {
	return &tunnel.Projection{
		Pgn: pgn, Routes: []*tunnel.Route{{Id: "default", Revision: 3}},
		Profiles: []*tunnel.Profile{{Id: "p", Revision: 4, Adapter: "ollama", Target: "ollama", Header: "Authorization", Slot: "s", SlotRevision: 5, SlotVersion: 2}},
	}
}

const pgn = 100 // of the projection that announce announces

// announced are the issuer's keys and the forger's.
func (l *lender) announced() []*tunnel.IssuerKey {
	pub := l.forger.Public().(ed25519.PublicKey)
	out := []*tunnel.IssuerKey{{Thumbprint: lease.Thumbprint(pub), PublicKey: pub}}
	for _, k := range l.issuer.Keys() {
		out = append(out, &tunnel.IssuerKey{Thumbprint: k.Thumbprint, PublicKey: k.Public})
	}
	return out
}

// announce tells a session what leases depend on, and waits until its node has taken it in.
func (l *lender) announce(s *tunnel.Session) {
	l.t.Helper()
	if err := s.AnnounceKeys(l.announced()); err != nil {
		l.t.Fatal(err)
	}
	if err := s.AnnounceProjection(published(pgn)); err != nil {
		l.t.Fatal(err)
	}
	settle(l.t, s)
}

func settle(t testing.TB, s *tunnel.Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.Settle(ctx); err != nil {
		t.Fatal(err)
	}
}

// revoke announces a revocation, and waits until the node has taken it in.
func revoke(t testing.TB, s *tunnel.Session, min uint64, subjects ...string) {
	t.Helper()
	if err := s.AnnounceRevoked(subjects, min, false); err != nil {
		t.Fatal(err)
	}
	settle(t, s)
}

// lent is a leased run as the lender would send it.
type lent struct {
	open  func(*tunnel.RunOpen)     // changes what is asked, before it is sealed
	after func(*tunnel.RunOpen)     // and afterwards
	scope func(*lease.Scope)        // changes what the lease is bound to
	token func(token []byte) []byte // replaces the lease
	body  string
}

// head is the hash of a RunOpen message as it is sent.
func head(t testing.TB, o *tunnel.RunOpen) [sha256.Size]byte {
	t.Helper()
	b, err := wire.AppendMessage(nil, wire.TypeRunOpen, o)
	if err != nil {
		t.Fatal(err)
	}
	_, _, n, err := wire.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b[n:])
}

// scope is what a lease of o on s is bound to.
func (l *lender) scope(s *tunnel.Session, o *tunnel.RunOpen) lease.Scope {
	l.t.Helper()
	b, err := s.Lane().Binding()
	if err != nil {
		l.t.Fatal(err)
	}
	return lease.Scope{
		Issuer: l.id.ID.String(), Audience: pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: s.Node()}.String(), Principal: "alice",
		Run: o.Run, Attempt: o.Attempt, Kind: "tunnel", Route: lease.Ref{ID: "default", Rev: 3}, Slot: lease.Ref{ID: "s", Rev: 5},
		Profile: lease.Ref{ID: "p", Rev: 4}, Version: 2, Target: lease.TargetRef{Adapter: o.Adapter, ID: o.Target, Origin: l.origin},
		Header: "Authorization", PGN: o.Projection, CGN: s.Generation(), Epoch: 9, Exporter: b.Exporter, Leaf: b.Node,
	}
}

// seal makes the lease of a scope for the key that s has announced.
func (l *lender) seal(s *tunnel.Session, scope *lease.Scope) []byte {
	l.t.Helper()
	issued, err := l.issuer.Issue(scope, s.Recipient().PublicKey, []byte(l.value))
	if err != nil {
		l.t.Fatal(err)
	}
	return issued.Token
}

// lend opens a leased run on s, and sends its body.
func (l *lender) lend(s *tunnel.Session, how lent) *tunnel.Run {
	l.t.Helper()
	o := &tunnel.RunOpen{
		Run: fmt.Sprint("run-", runSeq.Add(1)), Attempt: 1, Generation: s.Generation(), Kind: tunnel.KindTunnel, Adapter: "ollama", Target: "ollama",
		Method: "POST", Path: []byte("/api/chat"), Model: "tiny", Credit: true, Route: "default", Profile: "p", Projection: pgn, Body: tunnel.BodyLength, BodyLength: uint64(len(how.body)),
	}
	if how.open != nil {
		how.open(o)
	}
	scope := l.scope(s, o)
	if how.after != nil {
		o.Leased = true
		scope.Request = head(l.t, o)
		how.after(o)
	}
	r, err := s.Lane().OpenRun(context.Background(), o, []byte(how.body), func(sent [sha256.Size]byte) ([]byte, error) {
		if how.after == nil {
			scope.Request = sent
		}
		if how.scope != nil {
			how.scope(&scope)
		}
		token := l.seal(s, &scope)
		if how.token != nil {
			token = how.token(token)
		}
		return token, nil
	}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	if !r.Whole() && r.WriteBody([]byte(how.body)) == nil {
		_ = r.EndBody()
	}
	return r
}

// forge signs a payload with a key that the gateway has announced: what a bug or a stranger inside the gateway could do.
func (l *lender) forge(payload []byte) []byte {
	b64 := base64.RawURLEncoding
	header := `{"alg":"EdDSA","kid":"` + lease.Thumbprint(l.forger.Public().(ed25519.PublicKey)) + `","typ":"fairway-lease+jwt"}`
	input := b64.EncodeToString([]byte(header)) + "." + b64.EncodeToString(payload)
	return []byte(input + "." + b64.EncodeToString(ed25519.Sign(l.forger, []byte(input))))
}

// payload is the signed part of a token.
func payload(t testing.TB, token []byte) []byte {
	t.Helper()
	parts := bytes.Split(token, []byte("."))
	if len(parts) != 3 {
		t.Fatalf("a token of %d parts", len(parts))
	}
	out, err := base64.RawURLEncoding.DecodeString(string(parts[1]))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// purse is a provider that asks for the credential, and remembers how it was asked.
type purse struct {
	*provider
	paid  atomic.Int32 // requests that came with the credential
	mu    sync.Mutex
	lines []adapter.Credential                                                       // guarded by mu: what Do was given
	dial  func(context.Context) error                                                // guarded by mu: instead of connecting
	do    func(context.Context, *adapter.Request, string) (*adapter.Response, error) // guarded by mu: with the line
}

func newPurse() *purse { return &purse{provider: newProvider("tiny")} }

func (p *purse) change(f func(*purse)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

func (p *purse) Connect(ctx context.Context, own bool) (adapter.Conn, error) {
	p.mu.Lock()
	dial := p.dial
	p.mu.Unlock()
	if dial != nil {
		if err := dial(ctx); err != nil {
			return nil, err
		}
	}
	if _, err := p.provider.Connect(ctx, own); err != nil {
		return nil, err
	}
	return &purseConn{p, own}, nil
}

type purseConn struct {
	p   *purse
	own bool
}

func (c *purseConn) Close() {}
func (c *purseConn) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	c.p.asked.Add(1)
	c.p.mu.Lock()
	do := c.p.do
	c.p.lines = append(c.p.lines, r.Credential)
	c.p.mu.Unlock()
	line := ""
	if r.Credential != nil {
		b, err := r.Credential.Line()
		if err != nil {
			return nil, err
		}
		line = string(b)
		if c.own && line == "Authorization: "+credential+"\r\n" {
			c.p.paid.Add(1)
		}
	}
	if do != nil {
		return do(ctx, r, line)
	}
	if r.Credential != nil {
		r.Credential.Clear()
	}
	return reply(200, `{"done":true}`), nil
}

// purseConfig is a node with that provider and room for a few runs.
func (l *lender) purseConfig(p *purse) Config {
	return Config{Identity: l.identity("n1"), Gateways: []string{l.addr}, Targets: []Target{{Adapter: p, PerModel: 16}}}
}

// borrower is a node with one session, whose vault the test holds. Its link does what link.once does.
type borrower struct {
	*Client
	v    *vault
	node *tunnel.NodeSession
	s    *tunnel.Session // the gateway's end
	deaf atomic.Bool     // hears the gateway's time no more
}

// borrow starts one. change may alter the vault before it is used.
func (l *lender) borrow(p *purse, change func(*vault)) *borrower {
	l.t.Helper()
	return l.borrowAs(l.purseConfig(p), change)
}

// borrowAs starts a node of any configuration.
func (l *lender) borrowAs(cfg Config, change func(*vault)) *borrower {
	l.t.Helper()
	c, err := New(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	c.log = zap.NewNop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	link := c.entries[0].links[0]
	id, err := c.cfg.Identity.Current(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	b := &borrower{Client: c}
	if b.v, err = c.newVault(id.ID); err != nil {
		l.t.Fatal(err)
	}
	if change != nil {
		change(b.v)
	}
	events := b.v.events(tunnel.Events{})
	heard := events.GatewayTime
	events.GatewayTime = func(ns int64, asked time.Time) {
		if !b.deaf.Load() {
			heard(ns, asked)
		}
	}
	if b.node, err = link.dial(ctx, id, b.v, events); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(b.end)
	if err := b.v.attach(b.node); err != nil {
		l.t.Fatal(err)
	}
	known := make(told, len(c.targets))
	if err := link.makeReady(ctx, b.node, known); err != nil {
		l.t.Fatal(err)
	}
	b.s = l.nextReady(5 * time.Second)
	l.announce(b.s)
	return b
}

// end closes the session and waits for all of its runs.
func (b *borrower) end() {
	b.node.Close(tunnel.CloseNone, "")
	<-b.node.Done()
}

// quiet waits until the node has no run open: one of the same id may follow.
func (b *borrower) quiet() {
	for end := time.Now().Add(5 * time.Second); b.node.Runs() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// refused checks that a run was refused with a code, for good, and that no provider heard of it.
func refused(t testing.TB, what string, p *purse, res result, code lease.Code) {
	t.Helper()
	if res.refused.GetCode() != string(code) || res.refused.GetRetry() != tunnel.RetryNever || res.accepted || res.terminal != nil {
		t.Errorf("%s: %v, terminal %v, accepted %v; want %s", what, res.refused, res.terminal, res.accepted, code)
	}
	if n := p.asked.Load(); n != 0 {
		t.Errorf("%s: the provider was asked %d times", what, n)
	}
}

// paid checks that a run was served, with its credential.
func paid(t testing.TB, what string, p *purse, res result, times int32) {
	t.Helper()
	if res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("%s: refused %v, terminal %v", what, res.refused, res.terminal)
	}
	if a, n := p.asked.Load(), p.paid.Load(); a != times || n != times {
		t.Errorf("%s: the provider was asked %d times, %d of these with the credential; want %d", what, a, n, times)
	}
}
