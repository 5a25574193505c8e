package nodeclient

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

func TestJoinsWithAToken(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	dir := t.TempDir()
	token := g.token("n7")
	id, err := NewStateIdentity(dir, token, []string{g.addr}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	cfg := g.config(newProvider("tiny"))
	cfg.Identity, cfg.StateDir = id, dir
	core, logs := observer.New(zapcore.DebugLevel)
	cfg.Log = zap.New(core)
	c, _, stop := g.node(cfg)
	if c.Status().Node != "n7" {
		t.Errorf("%+v", c.Status())
	}
	_ = stop()
	for _, e := range logs.All() {
		if strings.Contains(e.Message, token) || strings.Contains(e.Entry.Message, "PRIVATE") {
			t.Error("a secret in the log")
		}
	}
	// The token again, for the same node and for another.
	if _, err := NewStateIdentity(dir, token, []string{g.addr}, zap.NewNop()); err != nil {
		t.Error(err)
	}
	if _, err := NewStateIdentity(dir, g.token("n8"), []string{g.addr}, zap.NewNop()); !errors.Is(err, ErrOtherNode) {
		t.Error(err)
	}
	if node, err := Join(t.Context(), dir, token, []string{g.addr}, zap.NewNop()); node != "n7" || !errors.Is(err, ErrJoined) {
		t.Errorf("%s %v", node, err)
	}
	if _, err := NewStateIdentity(t.TempDir(), "", nil, zap.NewNop()); !errors.Is(err, ErrNoIdentity) {
		t.Error(err)
	}
	// Spent.
	var final *FinalError
	if _, err := Join(t.Context(), t.TempDir(), token, []string{g.addr}, zap.NewNop()); !errors.As(err, &final) {
		t.Errorf("a spent token: %v", err)
	}
}

func TestEnrolmentChecksTheRoot(t *testing.T) {
	t.Parallel()
	a, b := newGateway(t), newGateway(t)
	_, err := Enroll(t.Context(), b.addr, a.token("n1"), zap.NewNop())
	var ve *pki.VerifyError
	var final *FinalError
	if !errors.As(err, &ve) || !errors.As(err, &final) {
		t.Fatalf("%v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.spent) != 0 {
		t.Error("the token was shown to a gateway of another root")
	}
}

// A token is not shown to anyone when what it gives could not be kept.
func TestTokenIsKeptForAWritableDirectory(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	dir := filepath.Join(t.TempDir(), "state")
	id, err := NewStateIdentity(dir, g.token("n1"), []string{g.addr}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("the probe is left: %v", left)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	var state *StateError
	var final *FinalError
	if _, err := id.Current(t.Context()); !errors.As(err, &state) || !errors.As(err, &final) {
		t.Errorf("%v", err)
	}
	g.set(func(g *gateway) {
		if len(g.spent) != 0 {
			t.Error("the token is spent")
		}
	})
	if os.Getuid() == 0 {
		return // may write everywhere
	}
	if err := os.Mkdir(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := NewStateIdentity(dir, g.token("n1"), []string{g.addr}, zap.NewNop()); !errors.As(err, &state) {
		t.Errorf("%v", err)
	}
}

// A node whose identity could not be saved ends.
func TestJoinedButNotSaved(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	dir := filepath.Join(t.TempDir(), "state")
	id, err := NewStateIdentity(dir, g.token("n1"), []string{g.addr}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	issue := g.issue
	g.set(func(g *gateway) {
		g.issue = func(id pki.ID, csr []byte) ([][]byte, error) { // the directory goes after the token is shown
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Error(err)
			}
			return issue(id, csr)
		}
	})
	cfg := g.config(newProvider())
	cfg.Identity = id
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var state *StateError
	if err := c.Run(t.Context()); !errors.As(err, &state) {
		t.Errorf("%v", err)
	}
}

// The gateway's storage is new: same names, another CA.
func TestGatewayWithAnotherCA(t *testing.T) {
	t.Parallel()
	a, b := newGateway(t), newGateway(t)
	dir := t.TempDir()
	if _, err := Join(t.Context(), dir, a.token("n1"), []string{a.addr}, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(t.Context(), dir, b.token("n1"), []string{b.addr}, zap.NewNop()); !errors.Is(err, ErrOtherFleet) {
		t.Errorf("%v", err)
	}
	core, logs := observer.New(zapcore.DebugLevel)
	id, err := NewStateIdentity(dir, b.token("n1"), []string{b.addr}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	if said := logs.FilterLevelExact(zapcore.WarnLevel).All(); len(said) != 1 || !strings.Contains(said[0].Message, "move the state directory away") {
		t.Errorf("%v", said)
	}
	cfg := b.config(newProvider())
	cfg.Identity, cfg.StateDir = id, dir
	c, stop := launch(t, cfg)
	eventually(t, 10*time.Second, "the cause", func() bool {
		e := c.Status().Gateways[0].LastError
		return strings.Contains(e, "not of this node's fleet") && strings.Contains(e, dir) && strings.Contains(e, "--node n1")
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestExpiredTooLongAgo(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	id := new(memory)
	past := func() time.Time { return time.Now().Add(-122 * 24 * time.Hour) }
	ca, err := pki.NewSelfSigned("test.local", past)
	if err != nil {
		t.Fatal(err)
	}
	old, err := ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	id.id.Store(old)
	cfg := g.config(newProvider())
	cfg.Identity = id
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var final *FinalError
	if err := c.Run(t.Context()); !errors.As(err, &final) || !strings.Contains(err.Error(), "caddy fairway token") {
		t.Errorf("%v", err)
	}
}

func TestRejectedLeafIsRenewedOnce(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.set(func(g *gateway) {
		g.refuse = func(*tunnel.Register) error {
			if g.proved == 0 {
				return &tunnel.CloseError{Code: tunnel.CloseIdentity, Reason: "expired by this clock"}
			}
			return nil
		}
	})
	_, _, _ = g.node(g.config(newProvider()))

	g.set(func(g *gateway) {
		g.refuse = func(*tunnel.Register) error { return &tunnel.CloseError{Code: tunnel.CloseIdentity} }
	})
	for name, cfg := range map[string]Config{"always": g.config(newProvider()), "another fleet": newGateway(t).config(newProvider())} {
		cfg.Gateways = []string{g.addr}
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- c.Run(t.Context()) }()
		var final *FinalError
		var ce *tunnel.CloseError
		select {
		case err := <-done:
			if name == "always" && (!errors.As(err, &final) || !errors.As(err, &ce)) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(3 * time.Second):
			if name == "always" {
				t.Error("tries on")
			}
			c.Close() // a gateway that is not of our fleet: our own check fails, and somebody may mend that
			<-done
		}
	}
}

func TestDamagedStateIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, pki.IdentityFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var state *StateError
	if _, err := NewStateIdentity(dir, "", nil, zap.NewNop()); !errors.As(err, &state) {
		t.Errorf("%v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(filepath.Join(file, "below")); !errors.As(err, &state) {
		t.Errorf("%v", err)
	}
}

func TestBackoffBounds(t *testing.T) {
	t.Parallel()
	for range 200 {
		var b backoff
		want := backoffFirst
		for range 10 {
			d, _ := b.next()
			if d < want/2 || d > want*3/2 {
				t.Fatalf("%s at step %s", d, want)
			}
			want = min(2*want, backoffLast)
		}
		b.reset()
		if d, rose := b.next(); d > backoffFirst*3/2 || !rose {
			t.Fatalf("%s after a reset", d)
		}
	}
}

func TestAddressesAlternate(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr
	got := alternate([]netip.Addr{a("::1"), a("::2"), a("::ffff:10.0.0.1"), a("10.0.0.2"), a("10.0.0.3")})
	if !slices.Equal(got, []netip.Addr{a("::1"), a("10.0.0.1"), a("::2"), a("10.0.0.2"), a("10.0.0.3")}) {
		t.Error(got)
	}
}

// The first address of a name swallows everything; the second answers.
func TestBlackHoledAddress(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	_, port, _ := net.SplitHostPort(g.addr)
	hole, err := net.ListenPacket("udp", "127.0.0.2:"+port)
	if err != nil {
		t.Skip("one loopback address only: ", err)
	}
	defer hole.Close()
	cfg := g.config(newProvider())
	cfg.Gateways = []string{"gw.test:" + port}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	c.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		asked.Add(1)
		return []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	g.nextReady(6*time.Second).Close(tunnel.CloseNone, "again")
	g.nextReady(2 * time.Second) // the address that answered goes first now
	cancel()
	if err := <-done; err != nil || asked.Load() < 2 {
		t.Errorf("%v, resolved %d times", err, asked.Load())
	}
}

func TestSilenceIsCalledByItsName(t *testing.T) {
	t.Parallel()
	// A socket that swallows everything.
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	g := newGateway(t)
	core, logs := observer.New(zapcore.DebugLevel)
	cfg := g.config(newProvider())
	cfg.Gateways, cfg.Log = []string{pc.LocalAddr().String()}, zap.New(core)
	c, _ := launch(t, cfg)
	blocked := func() int {
		return logs.Filter(func(e observer.LoggedEntry) bool {
			return strings.HasPrefix(e.Message, "UDP to "+cfg.Gateways[0]+" looks blocked")
		}).Len()
	}
	eventually(t, 20*time.Second, "the line", func() bool { return blocked() > 0 })
	time.Sleep(6 * time.Second)
	if blocked() != 1 {
		t.Errorf("said %d times", blocked())
	}
	if st := c.Status(); st.Ready() || st.Gateways[0].LastError == "" {
		t.Errorf("%+v", st)
	}
}

func TestUnresolvableNameIsNotFatal(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	cfg := g.config(newProvider())
	cfg.Gateways = []string{"no-such-host.invalid:4433"}
	c, stop := launch(t, cfg)
	eventually(t, 10*time.Second, "the cause", func() bool { return strings.Contains(c.Status().Gateways[0].LastError, "no-such-host") })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestSkewedClockIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	c := &Client{log: zap.New(core)}
	c.checkClock(time.Now().Add(time.Minute))
	c.checkClock(time.Now().Add(time.Hour))
	c.checkClock(time.Now().Add(-time.Hour))
	if logs.Len() != 1 {
		t.Errorf("%d lines", logs.Len())
	}
}
