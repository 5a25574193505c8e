package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// stages are the moments of a run at which something may be killed.
var stages = []struct {
	name  string
	body  string
	after time.Duration // the client has waited so long
	head  bool          // the client has the head by then
}{
	{"before the first byte", chat("t-slowload", `,"t_s":30`), 300 * time.Millisecond, false},
	{"in the middle of a stream", chat("t-tick", `,"t_n":200,"t_ms":100`), 500 * time.Millisecond, true},
}

func TestKilledNode(t *testing.T) {
	t.Parallel()
	for _, st := range stages {
		t.Run(st.name, func(t *testing.T) {
			t.Parallel()
			g, n, fake := fleet(t, rig.Options{})
			other := fakeollama.Start(t, fakeollama.Options{Models: []string{"other"}})
			g.NodeOf("n2", other.URL())
			time.AfterFunc(st.after, n.Kill)
			start := time.Now()
			r, body := g.Do("POST", "/api/chat", st.body)
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("the client was told after %v; the idle time-out is 15 s", d)
			}
			if st.head {
				if r.StatusCode != 200 || !strings.Contains(body, `{"error":`) || !strings.Contains(body, "[cut:") || strings.Contains(body, `"done":true`) {
					t.Errorf("a cut answer looks complete: %d %q", r.StatusCode, body)
				}
			} else if r.StatusCode != 502 || r.Header.Get("X-Fairway-Error") != "node_lost" {
				t.Errorf("%d %q %s", r.StatusCode, r.Header.Get("X-Fairway-Error"), body)
			}
			if e := fake.Stats().Exec + other.Stats().Exec; e != 1 {
				t.Errorf("ran %d times", e)
			}
			// C10: back at once, although the old session may still look alive.
			n.Restart()
			rig.Eventually(t, 6*time.Second, "served again after a restart", func() bool {
				r, _ := g.Do("POST", "/api/chat", chat("t-echo", ""))
				return r.StatusCode == 200
			})
			idle(t, g, fake)
		})
	}
}

func TestKilledGateway(t *testing.T) {
	t.Parallel()
	for _, st := range stages {
		t.Run(st.name, func(t *testing.T) {
			t.Parallel()
			g, _, fake := fleet(t, rig.Options{})
			gen := g.WaitNode("n1", "ready").Sessions[0].Generation
			errs := make(chan error, 1)
			c := plain(t, g)
			go func() {
				r, err := c.post(context.Background(), "/api/chat", st.body)
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
				errs <- err
			}()
			time.Sleep(st.after)
			g.Kill()
			if err := <-errs; err == nil {
				t.Error("the client saw a complete answer")
			}
			g.Start()
			bound := time.Now()
			g.WaitNode("n1", "ready")
			if d := time.Since(bound); d > 3*time.Second {
				t.Errorf("ready %v after the gateway was back", d)
			}
			if next := g.Node("n1").Sessions[0].Generation; next <= gen {
				t.Errorf("generation %d after %d", next, gen)
			}
			rig.Eventually(t, 2*time.Second, "the provider was stopped", func() bool { return fake.Stats().Inflight == 0 })
			if r, body := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
				t.Errorf("%d %s", r.StatusCode, body)
			}
		})
	}
}

func TestFrozenNodeGetsNoNewRun(t *testing.T) {
	t.Parallel()
	g, n, fake := fleet(t, rig.Options{})
	n.Signal(syscall.SIGSTOP)
	time.Sleep(3600 * time.Millisecond) // three beats and the jitter
	if s := g.Node("n1").State; s != "suspect" {
		t.Fatalf("state %s", s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if r, err := plain(t, g).post(ctx, "/api/chat", chat("t-echo", "")); err == nil {
		r.Body.Close()
		t.Fatalf("a frozen node was asked: %d", r.StatusCode)
	}
	n.Signal(syscall.SIGCONT)
	thawed := time.Now()
	rig.Eventually(t, 5*time.Second, "serves after the thaw", func() bool {
		r, _ := g.Do("POST", "/api/chat", chat("t-echo", ""))
		return r.StatusCode == 200
	})
	t.Logf("back %v after the thaw", time.Since(thawed))
	if e := fake.Execs("t-echo"); e != 1 {
		t.Errorf("ran %d times; the request that left before must not run", e)
	}
}

func TestDuplicateNode(t *testing.T) {
	t.Parallel()
	g, n, _ := fleet(t, rig.Options{})
	twin := g.Clone(n)
	if code := twin.Exit(15 * time.Second); code != 3 || !strings.Contains(twin.Log(), "duplicate_node") {
		t.Fatalf("exit %d: %s", code, twin.Log())
	}
	for range 20 {
		if r, body := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
			t.Fatalf("the incumbent was disturbed: %d %s", r.StatusCode, body)
		}
	}
}

func TestNodeDrainsOnSIGTERM(t *testing.T) {
	t.Parallel()
	g, n, fake := fleet(t, rig.Options{})
	other := fakeollama.Start(t, fakeollama.Options{})
	c := plain(t, g)
	r, err := c.post(context.Background(), "/api/chat", chat("t-tick", `,"t_n":20,"t_ms":100`))
	if err != nil {
		t.Fatal(err)
	}
	g.NodeOf("n2", other.URL())
	before := fake.Stats().Exec
	n.Signal(syscall.SIGTERM)
	rig.Eventually(t, 2*time.Second, "draining or gone", func() bool { s := g.Node("n1").State; return s == "draining" || s == "gone" })
	for range 10 {
		if r, body := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
			t.Errorf("%d %s", r.StatusCode, body)
		}
	}
	if body := readAll(t, r); !strings.Contains(body, `"done":true`) {
		t.Errorf("the stream was cut: %q", body)
	}
	if code := n.Exit(3 * time.Second); code != 0 {
		t.Errorf("exit %d", code)
	}
	if e := fake.Stats().Exec; e != before {
		t.Error("a draining node got new work")
	}
}

func TestGatewaySIGTERM(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, knobs string
		complete    bool
	}{
		{"a stream that ends in time", `,"t_n":20,"t_ms":100`, true},
		{"an endless one", `,"t_n":100000,"t_ms":100`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g, _, fake := fleet(t, rig.Options{Grace: "4s"})
			c := plain(t, g)
			r, err := c.post(context.Background(), "/api/chat", chat("t-tick", tt.knobs))
			if err != nil {
				t.Fatal(err)
			}
			g.Signal(syscall.SIGTERM)
			b, err := io.ReadAll(r.Body)
			r.Body.Close()
			if tt.complete != (err == nil && strings.Contains(string(b), `"done":true`)) {
				t.Errorf("complete: %v, %v %q", tt.complete, err, b)
			}
			if !tt.complete && !strings.Contains(string(b), `{"error":`) {
				t.Errorf("no error line: %q", b)
			}
			if code := g.Exit(8 * time.Second); code != 0 {
				t.Errorf("exit %d", code)
			}
			rig.Eventually(t, 2*time.Second, "the provider is idle", func() bool { return fake.Stats().Inflight == 0 })
		})
	}
}

// Invariant 4, and D06: a provider that refuses the connection costs nobody an answer while another node has the model.
func TestRefusedConnectGoesElsewhere(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{})
	other := fakeollama.Start(t, fakeollama.Options{})
	g.NodeOf("n2", other.URL(), "--credits", credits)
	fake.Down()
	parallel(50, func(int) {
		if r, body := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
			t.Errorf("%d %s", r.StatusCode, body)
		}
	})
	if e := other.Stats().Exec; e != 50 {
		t.Errorf("%d runs for 50 requests", e)
	}
	other.Down()
	rig.Eventually(t, 10*time.Second, "503 in JSON", func() bool {
		r, body := g.Do("POST", "/api/chat", chat("t-echo", ""))
		return (r.StatusCode == 503 || r.StatusCode == 502) && strings.HasPrefix(body, `{"error":`)
	})
	if err := fake.Up(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 5*time.Second, "serves again", func() bool {
		r, _ := g.Do("POST", "/api/chat", chat("t-echo", ""))
		return r.StatusCode == 200
	})
}

// D05: one busy provider is passed over; two give the client their own word, with Retry-After.
func TestBusyProviders(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{})
	other := fakeollama.Start(t, fakeollama.Options{})
	g.NodeOf("n2", other.URL(), "--credits", credits)
	fake.SetBusy(true)
	for range 50 {
		if r, body := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
			t.Fatalf("%d %s", r.StatusCode, body)
		}
	}
	other.SetBusy(true)
	asked := func() (n int) {
		for _, rec := range append(fake.Log(), other.Log()...) {
			if rec.Path == "/api/chat" {
				n++
			}
		}
		return n
	}
	before := asked()
	start := time.Now()
	r, body := g.Do("POST", "/api/chat", chat("t-echo", ""))
	if r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || !strings.Contains(body, "server busy") || time.Since(start) > time.Second {
		t.Fatalf("%d %v %s", r.StatusCode, r.Header, body)
	}
	if n := asked() - before; n > 2 {
		t.Errorf("each node is tried at most once; %d tries", n)
	}
}

func TestProviderFaults(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{})
	for _, tt := range []struct {
		model  string
		stream bool
		check  func(r *http.Response, body string) error
	}{
		{"t-die", true, func(_ *http.Response, body string) error {
			if strings.Contains(body, `"done":true`) || !strings.Contains(body, "[cut:") || !strings.Contains(body, `{"error":`) {
				return errors.New("a cut answer looks complete")
			}
			return nil
		}},
		{"t-errmid", true, func(_ *http.Response, body string) error {
			if strings.Contains(body, "[cut:") || !strings.Contains(body, `"error"`) {
				return errors.New("the provider's own error line is to arrive as the last one, and the stream to end")
			}
			return nil
		}},
	} {
		failed := outcomes(g, "failed")
		r, body := g.Do("POST", "/api/chat", chat(tt.model, ""))
		if err := tt.check(r, body); err != nil {
			t.Errorf("%s: %v: %d %q", tt.model, err, r.StatusCode, body)
		}
		rig.Eventually(t, 2*time.Second, tt.model+" is counted as failed", func() bool { return outcomes(g, "failed") == failed+1 })
	}
	idle(t, g, fake)
}
