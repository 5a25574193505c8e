package cases

import (
	"context"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// through is a fleet whose node dials by a relay.
func through(t *testing.T, o rig.Options) (*fleet, *rig.Relay) {
	t.Helper()
	f := &fleet{Gateway: newGateway(t, o), fake: fakeollama.Start(t, fakeollama.Options{})}
	r := rig.NewRelay(t, f.Addr())
	f.node = f.By(r).NodeOf("n1", f.fake.URL(), "--credits", credits)
	waitModel(t, f.Gateway, "t-echo")
	return f, r
}

// serves waits until a request succeeds and returns how long that took.
func serves(t *testing.T, g *rig.Gateway, within time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	c := plain(t, g)
	rig.Eventually(t, within, "a request succeeds", func() bool {
		s, _ := c.ask("POST", "/api/chat", chat("t-echo", ""))
		return s == 200
	})
	return time.Since(start)
}

// A firewall that drops UDP is a relay that loses every packet.
func TestC02_BlockedUDP(t *testing.T) {
	t.Parallel()
	for name, joined := range map[string]bool{"before it has joined": false, "once it has joined": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, rig.Options{})
			fake := fakeollama.Start(t, fakeollama.Options{})
			r := rig.NewRelay(t, g.Addr())
			var n *rig.Node
			if joined {
				n = g.By(r).NodeOf("n1", fake.URL())
				n.Kill()
				g.WaitNode("n1", "gone")
			}
			r.Set(func(w *rig.Ways) { w.Drop = true })
			start, before := time.Now(), r.Sources()
			if joined {
				n.Restart()
			} else {
				n = g.By(r).TryNode("n1", "--token", g.JoinToken("n1"), "--ollama", fake.URL())
			}
			rig.Eventually(t, 30*time.Second, "one line says what it is", func() bool {
				return strings.Contains(n.Log(), "UDP to "+g.By(r).Addr()+" looks blocked")
			})
			time.Sleep(time.Until(start.Add(long(40*time.Second, 3*time.Minute))))
			if said := strings.Count(n.Log(), "looks blocked"); said != 1 {
				t.Errorf("said %d times", said)
			}
			if dials, most := r.Sources()-before, int(time.Since(start).Seconds()); dials < 3 || dials > most {
				t.Errorf("%d dials in %v", dials, time.Since(start))
			}
			r.Set(func(w *rig.Ways) { w.Drop = false })
			g.WaitNode("n1", "ready") // within 20 s, by itself
			serves(t, g, 5*time.Second)
		})
	}
}

func TestC03_LostPath(t *testing.T) {
	t.Parallel()
	f, r := through(t, rig.Options{})
	other := fakeollama.Start(t, fakeollama.Options{Models: []string{"only-n2"}})
	f.NodeOf("n2", other.URL())
	waitModel(t, f.Gateway, "only-n2")
	before := r.Sources()
	r.Set(func(w *rig.Ways) { w.Drop = true })
	cut := time.Now()
	rig.Eventually(t, 20*time.Second, "the node leaves the rotation", func() bool { s := f.Node("n1").State; return s == "suspect" || s == "gone" })
	if d := time.Since(cut); d > 16*time.Second {
		t.Errorf("out after %v", d)
	}
	for off := cut.Add(long(35*time.Second, 90*time.Second)); time.Now().Before(off); time.Sleep(time.Second) {
		c := plain(t, f.Gateway)
		if s, body := c.ask("POST", "/api/chat", chat("only-n2", "")); s != 200 {
			t.Errorf("the other node: %d %s", s, body)
		}
	}
	start := time.Now()
	if s, body := plain(t, f.Gateway).ask("POST", "/api/show", `{"model":"t-echo"}`); s != 503 {
		t.Errorf("%d %s after %v", s, body, time.Since(start))
	}
	r.Set(func(w *rig.Ways) { w.Drop = false })
	t.Logf("back after %v", serves(t, f.Gateway, 30*time.Second))
	if now := r.Sources(); now <= before {
		t.Errorf("no new UDP socket: %d then %d", before, now)
	}
}

func TestC04_SmallMTU(t *testing.T) {
	t.Parallel()
	g := newGateway(t, rig.Options{})
	fake := fakeollama.Start(t, fakeollama.Options{})
	r := rig.NewRelay(t, g.Addr())
	r.Set(func(w *rig.Ways) { w.MaxLen = 1232 })
	start := time.Now()
	g.By(r).NodeOf("n1", fake.URL())
	if d := time.Since(start); d > within(5*time.Second) {
		t.Errorf("connected after %v", d)
	}
	waitModel(t, g, "t-echo")
	c := plain(t, g)
	big := strings.Repeat("x", 10_000_000)
	if s, body := c.ask("POST", "/api/chat", `{"model":"t-echo","stream":false,"messages":[{"role":"user","content":"`+big+`"}]}`); s != 200 {
		t.Errorf("a body of 10 MB: %d %s", s, body)
	}
	if s, body := c.ask("POST", "/api/chat", chat("t-longline", `,"stream":false,"t_bytes":10000000`)); s != 200 || len(body) < 10_000_000 {
		t.Errorf("an answer of 10 MB: %d, %d bytes", s, len(body))
	}
}

func TestC05_NATRebinds(t *testing.T) {
	t.Parallel()
	f, r := through(t, rig.Options{})
	c := plain(t, f.Gateway)
	time.AfterFunc(3*time.Second, r.Rebind)
	s, body := c.ask("POST", "/api/chat", chat("t-tick", `,"t_n":40,"t_ms":250`))
	if s != 200 || !strings.Contains(body, `"done":true`) {
		if !strings.Contains(body, `{"error":`) {
			t.Errorf("neither whole nor visibly broken: %d %q", s, body)
		}
		t.Log("the stream broke")
	}
	serves(t, f.Gateway, 10*time.Second)
	time.Sleep(long(70*time.Second, 5*time.Minute))
	start := time.Now()
	if s, body := c.ask("POST", "/api/chat", chat("t-echo", "")); s != 200 || time.Since(start) > within(time.Second) {
		t.Errorf("after idling: %d %s in %v", s, body, time.Since(start))
	}
}

func TestC18_GatewayRestarts(t *testing.T) {
	t.Parallel()
	f, r := through(t, rig.Options{})
	for i := range 10 {
		before := r.Sources()
		f.Kill()
		f.Start()
		far := time.Now()
		f.WaitNode("n1", "ready")
		serves(t, f.Gateway, 10*time.Second)
		if d := time.Since(far); d > 30*time.Second {
			t.Errorf("restart %d: back after %v", i, d)
		}
		if now := r.Sources(); now <= before {
			t.Errorf("restart %d: dialled from the same port", i)
		}
	}
}

// Not parallel: the variable is for every process that starts meanwhile.
func TestC21_NoGSO(t *testing.T) {
	t.Setenv("QUIC_GO_DISABLE_GSO", "true")
	f := newFleet(t, rig.Options{})
	c := plain(t, f.Gateway)
	if s, body := c.ask("POST", "/api/chat", chat("t-longline", `,"stream":false,"t_bytes":10000000`)); s != 200 || len(body) < 10_000_000 {
		t.Errorf("%d, %d bytes", s, len(body))
	}
	for _, pid := range []int{f.Pid(), f.node.Pid()} {
		if env, err := os.ReadFile("/proc/" + itoa(pid) + "/environ"); err != nil || !strings.Contains(string(env), "QUIC_GO_DISABLE_GSO=true") {
			t.Errorf("the variable has not arrived: %v", err)
		}
	}
	if page, err := os.ReadFile("../../docs/operate.md"); err != nil || !strings.Contains(string(page), "QUIC_GO_DISABLE_GSO") {
		t.Errorf("the page for troubleshooting does not name it: %v", err)
	}
}

func TestC08_StreamLimit(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	c := plain(t, f.Gateway)
	wait := long(10*time.Second, 20*time.Second)
	got := burst(400, 400, func(i int) int {
		ctx := context.Background()
		if i%2 == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
		}
		r, err := c.do(ctx, "POST", "/api/chat", strings.NewReader(chat("t-slowload", `,"t_s":`+itoa(int(wait.Seconds())))))
		if err != nil {
			return 0
		}
		defer r.Body.Close()
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return -1
		}
		return r.StatusCode
	})
	if got[0] != 200 || got[200]+got[503] != 200 || got[200] < 64 {
		t.Errorf("aborted 0, others by status: %v", got)
	}
	start := time.Now()
	if s, body := c.ask("POST", "/api/chat", chat("t-echo", "")); s != 200 || time.Since(start) > within(time.Second) {
		t.Errorf("afterwards: %d %s in %v", s, body, time.Since(start))
	}
	settled(t, f.Gateway)
}

// A restart at once, at two stages of a run: tests/e2e, TestKilledNode.
func TestC10_CrashedNode(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	old := f.Node("n1").Sessions[0].Generation
	f.node.Kill()
	time.Sleep(time.Second)
	f.node.Restart()
	if d := serves(t, f.Gateway, 10*time.Second); d > within(5*time.Second) {
		t.Errorf("served after %v", d)
	}
	if now := f.Node("n1").Sessions; len(now) != 1 || now[0].Generation <= old {
		t.Errorf("sessions %+v after generation %d", now, old)
	}
	if log := f.Log(); !strings.Contains(log, "evicting a node's dead session") {
		t.Error("no line in the log says that the old session was evicted")
	}
}

// The provider of the node is down; nothing is invented in its place.
func TestC17_OllamaStops(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	c := plain(t, f.Gateway)
	f.fake.Down()
	for end := time.Now().Add(long(10*time.Second, 20*time.Second)); time.Now().Before(end); time.Sleep(time.Second) {
		r, err := c.do(t.Context(), "POST", "/api/chat", strings.NewReader(chat("t-echo", "")))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if (r.StatusCode != 502 && r.StatusCode != 503) || errorText("/api/", string(b)) == "" {
			t.Errorf("%d %s", r.StatusCode, b)
		}
	}
	f.fake.SetModels("t-echo:latest", "t-new:latest")
	if err := f.fake.Up(); err != nil {
		t.Fatal(err)
	}
	if d := serves(t, f.Gateway, 10*time.Second); d > within(5*time.Second) {
		t.Errorf("served after %v", d)
	}
	rig.Eventually(t, 10*time.Second, "the models are read again", func() bool {
		_, tags := c.ask("GET", "/api/tags", "")
		return strings.Contains(tags, "t-new:latest") && !strings.Contains(tags, "t-tick")
	})
}

func TestC16_IdleClose(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{IdleClose: 50 * time.Millisecond})
	g := newGateway(t, rig.Options{})
	n := g.NodeOf("n1", fake.URL())
	waitModel(t, g, "t-echo")
	c := plain(t, g)
	for i := range 500 {
		if s, body := c.ask("POST", "/api/chat", chat("t-echo", `,"stream":false`)); s != 200 {
			t.Fatalf("request %d: %d %s", i, s, body)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if e := fake.Execs("t-echo"); e != 500 {
		t.Errorf("%d runs for 500 requests", e)
	}
	n.Signal(syscall.SIGTERM)
}
