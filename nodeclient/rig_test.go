package nodeclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tunnel"
)

// gateway is a tunnel.Listener on loopback with a Registrar that admits everyone and remembers what it was told.
type gateway struct {
	t       testing.TB
	ca      *pki.SelfSigned
	name    string
	addr    string
	id      *pki.Identity
	joinKey ed25519.PrivateKey
	spent   map[string]bool // guarded by mu

	ready chan *tunnel.Session
	gone  chan *tunnel.Session

	mu       sync.Mutex
	socket   *socket                                // guarded by mu
	ln       *tunnel.Listener                       // guarded by mu
	gen      uint64                                 // guarded by mu
	session  *tunnel.Session                        // guarded by mu; the newest ready one
	register []*tunnel.Register                     // guarded by mu
	models   map[string]map[string]bool             // guarded by mu: by target
	targets  map[string]*tunnel.Target              // guarded by mu: the last message of each
	updates  []int                                  // guarded by mu: sizes of Ready and Status, in targets
	refuse   func(*tunnel.Register) error           // guarded by mu
	limits   *tunnel.Limits                         // guarded by mu
	issue    func(pki.ID, []byte) ([][]byte, error) // guarded by mu
	proved   int                                    // guarded by mu: renewals of expired leaves
	ahead    atomic.Int64                           // by how many nanoseconds its clock is fast
}

func newGateway(t testing.TB) *gateway {
	t.Helper()
	ca, err := pki.NewSelfSigned("test.local", nil)
	if err != nil {
		t.Fatal(err)
	}
	return newGatewayOf(t, ca)
}

func newGatewayOf(t testing.TB, ca *pki.SelfSigned) *gateway {
	t.Helper()
	return newGatewayAt(t, ca, "gw1", freeport.Addr(t))
}

// newGatewayAt starts a gateway of a name of its own at an address.
func newGatewayAt(t testing.TB, ca *pki.SelfSigned, name, addr string) *gateway {
	t.Helper()
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	g := &gateway{
		t: t, ca: ca, name: name, joinKey: key, spent: map[string]bool{}, ready: make(chan *tunnel.Session, 64), gone: make(chan *tunnel.Session, 64),
		models: map[string]map[string]bool{}, targets: map[string]*tunnel.Target{}, issue: ca.Authority().IssueCSR,
	}
	var err error
	if g.id, err = ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleGateway, Name: name}); err != nil {
		t.Fatal(err)
	}
	g.start(addr)
	t.Cleanup(func() { _ = g.listener().Close(tunnel.CloseNone, "test over") })
	return g
}

// now is the gateway's clock.
func (g *gateway) now() time.Time { return time.Now().Add(time.Duration(g.ahead.Load())) }

// socket can fall silent.
type socket struct {
	net.PacketConn
	mute atomic.Bool
}

func (s *socket) WriteTo(p []byte, addr net.Addr) (int, error) {
	if s.mute.Load() {
		return len(p), nil
	}
	return s.PacketConn.WriteTo(p, addr)
}

func (g *gateway) listener() *tunnel.Listener {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ln
}

// start listens at addr; a second time after the first listener was closed or killed.
func (g *gateway) start(addr string) {
	g.t.Helper()
	ln, sock := g.listen(addr)
	g.mu.Lock()
	g.ln, g.socket, g.addr = ln, sock, ln.Addr().String()
	g.mu.Unlock()
}

// listen opens a listener at one more address.
func (g *gateway) listen(addr string) (*tunnel.Listener, *socket) {
	g.t.Helper()
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		g.t.Fatal(err)
	}
	st := &tunnel.Settings{
		Gateway: g.name, Epoch: 9, Identity: func() (*pki.Identity, error) { return g.id, nil }, Registrar: g, Enroller: g, Log: zap.NewNop(), Now: g.now,
	}
	sock := &socket{PacketConn: pc}
	ln, err := tunnel.Listen(sock, tunnel.ListenConfig{StatelessResetKey: [32]byte{1}, TokenKey: [32]byte{2}, Settings: func() *tunnel.Settings { return st }})
	if err != nil {
		g.t.Fatal(err)
	}
	return ln, sock
}

func (g *gateway) Register(_ context.Context, s *tunnel.Session, r *tunnel.Register) (*tunnel.Registered, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refuse != nil {
		if err := g.refuse(r); err != nil {
			return nil, err
		}
	}
	g.register = append(g.register, r)
	g.gen = max(g.gen, r.Watermark) + 1
	return &tunnel.Registered{Generation: g.gen, Limits: g.limits}, nil
}

func (g *gateway) Ready(_ context.Context, s *tunnel.Session, ts []*tunnel.Target) error {
	g.take(ts)
	g.mu.Lock()
	g.session = s
	g.mu.Unlock()
	g.ready <- s
	return nil
}

func (g *gateway) Status(_ *tunnel.Session, ts []*tunnel.Target) error {
	g.take(ts)
	return nil
}

func (g *gateway) take(ts []*tunnel.Target) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.updates = append(g.updates, len(ts))
	for _, t := range ts {
		g.targets[t.Name] = t
		if t.Reset_ || t.Gone || g.models[t.Name] == nil {
			g.models[t.Name] = map[string]bool{}
		}
		for _, name := range t.Removed {
			delete(g.models[t.Name], name)
		}
		for _, m := range t.Models {
			g.models[t.Name][m.Name] = true
		}
	}
}

func (g *gateway) target(name string) (*tunnel.Target, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.targets[name], len(g.models[name])
}

func (g *gateway) holds(target, model string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.models[target][model]
}

func (g *gateway) said() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.updates)
}

// set changes what the gateway does.
func (g *gateway) set(change func(*gateway)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

func (g *gateway) registers() []*tunnel.Register {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]*tunnel.Register(nil), g.register...)
}

func (g *gateway) Changed(*tunnel.Session)    {}
func (g *gateway) Registered(*tunnel.Session) {}
func (g *gateway) Recipient(_ *tunnel.Session, k *tunnel.RecipientKey) error {
	return lease.CheckRecipient(k.Kem, k.PublicKey)
}

func (g *gateway) Gone(s *tunnel.Session) { g.gone <- s }
func (g *gateway) Fenced(string)          {}
func (g *gateway) Renew(_ context.Context, id pki.ID, csr []byte) ([][]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.issue(id, csr)
}

func (g *gateway) Offer() ([][]byte, error) { return g.id.CertificateWithRoot().Certificate, nil }

func (g *gateway) Enroll(_ context.Context, r *tunnel.EnrollRequest, exporter []byte) ([][]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(r.ExpiredLeaf) > 0 {
		certs, err := x509.ParseCertificates(r.ExpiredLeaf)
		if err != nil {
			return nil, err
		}
		id, err := pki.VerifyRenewal(certs, g.id.Roots, "test.local", pki.RoleNode, time.Now())
		if err != nil {
			return nil, &tunnel.EnrollError{Code: "not_renewable", Reason: err.Error()}
		}
		sum := sha256.Sum256(append([]byte("fairway-renew/v1\x00"), exporter...))
		if !ecdsa.VerifyASN1(certs[0].PublicKey.(*ecdsa.PublicKey), sum[:], r.Proof) {
			return nil, &tunnel.EnrollError{Code: "not_renewable", Reason: "bad proof"}
		}
		g.proved++
		return g.ca.Authority().IssueCSR(id, r.Csr)
	}
	t, err := pki.VerifyJoinToken(r.Token, g.joinKey.Public().(ed25519.PublicKey), time.Now())
	if err != nil {
		return nil, &tunnel.EnrollError{Code: "token_invalid", Reason: err.Error()}
	}
	if g.spent[t.ID] {
		return nil, &tunnel.EnrollError{Code: "token_spent"}
	}
	g.spent[t.ID] = true
	return g.issue(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: t.Node}, r.Csr)
}

func (g *gateway) token(node string) string {
	g.t.Helper()
	token, _, err := pki.MintJoinToken(g.joinKey, g.id.ID, node, time.Hour, 1, pki.RootPin(g.ca.Root()), time.Now())
	if err != nil {
		g.t.Fatal(err)
	}
	return token
}

// memory is the identity of an embedded node.
type memory struct{ id atomic.Pointer[pki.Identity] }

func (m *memory) Current(context.Context) (*pki.Identity, error) { return m.id.Load(), nil }
func (m *memory) Renewed(id *pki.Identity) error                 { m.id.Store(id); return nil }

func (g *gateway) identity(node string) *memory {
	g.t.Helper()
	id, err := g.ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: node})
	if err != nil {
		g.t.Fatal(err)
	}
	m := new(memory)
	m.id.Store(id)
	return m
}

// node runs a client against g and returns it when its session is ready. stop ends it and returns Run's error.
func (g *gateway) node(cfg Config) (c *Client, s *tunnel.Session, stop func() error) {
	g.t.Helper()
	c, stop = launch(g.t, cfg)
	return c, g.nextReady(10 * time.Second), stop
}

func (g *gateway) nextReady(within time.Duration) *tunnel.Session {
	g.t.Helper()
	select {
	case s := <-g.ready:
		return s
	case <-time.After(within):
		g.t.Fatalf("no node was ready within %s", within)
		return nil
	}
}

// launch starts a client.
func launch(t testing.TB, cfg Config, change ...func(*Client)) (*Client, func() error) {
	t.Helper()
	if cfg.Log == nil && testing.Verbose() {
		cfg.Log = zaptest.NewLogger(t)
	}
	if cfg.Grace == 0 {
		cfg.Grace = 5 * time.Second
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	var result error
	stop := func() error {
		once.Do(func() {
			cancel()
			select {
			case result = <-done:
			case <-time.After(20 * time.Second):
				buf := make([]byte, 1<<20)
				t.Errorf("Run did not return\n%s", buf[:runtime.Stack(buf, true)])
			}
		})
		return result
	}
	t.Cleanup(func() { c.Close(); _ = stop() })
	return c, stop
}

// config is a node with one provider.
func (g *gateway) config(p *provider) Config {
	return Config{Identity: g.identity("n1"), Gateways: []string{g.addr}, Targets: []Target{{Adapter: p}}}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %s: %s", within, what)
}
