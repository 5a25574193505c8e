package nodeclient

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tunnel"
)

func TestServesAndLeavesNothing(t *testing.T) {
	g := newGateway(t)
	before := runtime.NumGoroutine()
	p := newProvider("tiny:latest")
	c, s, stop := g.node(g.config(p))
	res := ask(t, s, nil)
	if !res.accepted || res.head.GetStatus() != 200 || res.body != `{"done":true}` || res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("run: %+v", res)
	}
	if tm := res.terminal.GetTimings(); tm.GetTotalUs() == 0 || tm.GetFirstByteUs() < tm.GetConnectUs() {
		t.Errorf("timings: %v", tm)
	}
	eventually(t, 5*time.Second, "ready", func() bool { return c.Status().Ready() })
	if st := c.Status(); st.Node != "n1" || st.Gateways[0].Gateway != "gw1" || len(st.Targets[0].Models) != 1 {
		t.Errorf("status: %+v", st)
	}
	start := time.Now()
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("an idle node took %s to stop", d)
	}
	<-g.gone
	eventually(t, 5*time.Second, "goroutines back to base", func() bool { return runtime.NumGoroutine() <= before })
}

func TestRedialsARestartedGateway(t *testing.T) {
	g := newGateway(t)
	_, _, _ = g.node(g.config(newProvider("tiny:latest")))
	for range 3 {
		// The next process knows nothing of the connection: a stateless reset, drawn by a heartbeat, says so.
		kill(t, g)
		start := time.Now()
		g.start(g.addr)
		g.nextReady(5 * time.Second)
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("back only after %s", d)
		}
	}
	if r := g.registers(); r[len(r)-1].Watermark == 0 {
		t.Error("the watermark was not sent")
	}
}

// kill ends the gateway as kill -9 does: not a byte of it reaches the node.
func kill(t *testing.T, g *gateway) {
	t.Helper()
	g.mu.Lock()
	g.socket.mute.Store(true)
	g.mu.Unlock()
	_ = g.listener().Close(tunnel.CloseInternal, "crash")
}

func TestDuplicate(t *testing.T) {
	g := newGateway(t)
	g.mu.Lock()
	duplicate := func(*tunnel.Register) error {
		return &tunnel.CloseError{Code: tunnel.CloseDuplicateNode, Reason: "another one"}
	}
	g.refuse = duplicate
	g.mu.Unlock()
	c, err := New(g.config(newProvider()))
	if err != nil {
		t.Fatal(err)
	}
	var final *FinalError
	if err := c.Run(t.Context()); !errors.As(err, &final) {
		t.Fatalf("at first start: %v", err)
	}

	g.set(func(g *gateway) { g.refuse = nil })
	_, s, _ := g.node(g.config(newProvider()))
	g.set(func(g *gateway) { g.refuse = duplicate })
	s.Close(tunnel.CloseReplaced, "another one")
	time.Sleep(500 * time.Millisecond)
	g.set(func(g *gateway) { g.refuse = nil })
	g.nextReady(5 * time.Second)
}

func TestFinalCodes(t *testing.T) {
	for _, code := range []tunnel.CloseCode{tunnel.CloseRevoked, tunnel.CloseVersion, tunnel.CloseWatermark, tunnel.CloseBadNodeID} {
		g := newGateway(t)
		g.set(func(g *gateway) { g.refuse = func(*tunnel.Register) error { return &tunnel.CloseError{Code: code} } })
		c, err := New(g.config(newProvider()))
		if err != nil {
			t.Fatal(err)
		}
		var final *FinalError
		if err := c.Run(t.Context()); !errors.As(err, &final) {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestRefusedForNowTriesOn(t *testing.T) {
	g := newGateway(t)
	g.set(func(g *gateway) {
		g.refuse = func(*tunnel.Register) error { return &tunnel.CloseError{Code: tunnel.CloseStoreUnavailable} }
	})
	c, _ := launch(t, g.config(newProvider()))
	eventually(t, 5*time.Second, "an error in the status", func() bool { return c.Status().Gateways[0].LastError != "" })
	g.set(func(g *gateway) { g.refuse = nil })
	g.nextReady(5 * time.Second)
	eventually(t, time.Second, "ready", func() bool { st := c.Status(); return st.Ready() && st.Gateways[0].LastError == "" })
}

func TestWatermarkLockAndStatus(t *testing.T) {
	g := newGateway(t)
	g.set(func(g *gateway) { g.gen = 41 })
	dir := filepath.Join(t.TempDir(), "state")
	cfg := g.config(newProvider("a", "b"))
	cfg.StateDir = dir
	_, _, stop := g.node(cfg)
	eventually(t, 5*time.Second, "a ready status", func() bool {
		st, err := ReadStatus(context.Background(), dir)
		return err == nil && st.Ready() && st.Gateways[0].Generation == 42
	})
	second, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var state *StateError
	if err := second.Run(t.Context()); !errors.As(err, &state) || !errors.Is(err, errLocked) {
		t.Errorf("a second node on the directory: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := ReadStatus(context.Background(), dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("status of a stopped node: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, watermarkFile))
	if err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
		t.Errorf("%v %v", info, err)
	}
	_, _, _ = g.node(cfg)
	if r := g.registers(); r[len(r)-1].Watermark != 42 {
		t.Errorf("watermark %d after a restart", r[len(r)-1].Watermark)
	}
}

func TestStatusWithoutUnixSockets(t *testing.T) {
	g := newGateway(t)
	cfg := g.config(newProvider())
	// Longer than a socket's path may be.
	cfg.StateDir = filepath.Join(t.TempDir(), "a-directory-with-a-name-that-is-longer-than-the-path-of-a-unix-socket-may-be-which-is-about-a-hundred-bytes")
	_, _, _ = g.node(cfg)
	eventually(t, 5*time.Second, "a ready status", func() bool {
		st, err := ReadStatus(context.Background(), cfg.StateDir)
		return err == nil && st.Ready()
	})
}

func TestTwoGateways(t *testing.T) {
	a := newGateway(t)
	b := newGatewayAt(t, a.ca, "gw2", "127.0.0.1:0")
	cfg := a.config(newProvider())
	cfg.Gateways = append(cfg.Gateways, b.addr)
	c, _, _ := a.node(cfg)
	b.nextReady(5 * time.Second)
	b.mu.Lock()
	b.refuse = func(*tunnel.Register) error { return &tunnel.CloseError{Code: tunnel.CloseRevoked} }
	s := b.session
	b.mu.Unlock()
	s.Close(tunnel.CloseRevoked, "")
	eventually(t, 5*time.Second, "refused by one", func() bool { return c.Status().Gateways[1].State == stateRefused })
	if !c.Status().Ready() {
		t.Error("one gateway's refusal ended the session with the other")
	}
}

func TestConfigIsChecked(t *testing.T) {
	g := newGateway(t)
	for name, change := range map[string]func(*Config){
		"no gateway":      func(c *Config) { c.Gateways = nil },
		"twice":           func(c *Config) { c.Gateways = append(c.Gateways, c.Gateways[0]) },
		"no port":         func(c *Config) { c.Gateways = []string{"gw"} },
		"no identity":     func(c *Config) { c.Identity = nil },
		"demo":            func(c *Config) { c.Demo = "sure" },
		"allow":           func(c *Config) { c.Allow = []string{"POST:/api/signout"} },
		"same target":     func(c *Config) { c.Targets = append(c.Targets, c.Targets[0]) },
		"label too long":  func(c *Config) { c.Labels = map[string]string{"k": string(make([]byte, 256))} },
		"nameless target": func(c *Config) { c.Targets = []Target{{Adapter: &provider{}}} },
	} {
		cfg := g.config(newProvider())
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
