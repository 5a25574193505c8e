package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// stream counts the lines of an answer and the largest gap between two.
func stream(r *http.Response) (lines int, gap time.Duration, done bool, err error) {
	defer r.Body.Close()
	last := time.Now()
	br := bufio.NewReader(r.Body)
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			lines++
			gap = max(gap, time.Since(last))
			last = time.Now()
			done = strings.Contains(line, `"done":true`)
		}
		if err == io.EOF {
			return lines, gap, done, nil
		}
		if err != nil {
			return lines, gap, done, err
		}
	}
}

// R1: a reload in the middle of streams on every protocol leaves them, the node's session and its generation alone.
func TestReloadLeavesStreamsAlone(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{TLS: true})
	gen := g.Node("n1").Sessions[0].Generation
	var wg sync.WaitGroup
	for name, c := range clients(t, g) {
		wg.Go(func() {
			r, err := c.post(context.Background(), "/api/chat", chat("t-tick", `,"t_n":40,"t_ms":100`))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			lines, gap, done, err := stream(r)
			if lines != 41 || !done || err != nil || gap > time.Second {
				t.Errorf("%s: %d lines, done %v, largest gap %v, %v", name, lines, done, gap, err)
			}
		})
	}
	time.Sleep(time.Second)
	g.Write(strings.Replace(g.Caddyfile(), "http://:", "http://127.0.0.1:1"+fmt.Sprint(g.HTTP%10000+20000)+" {\n\trespond new\n}\nhttp://:", 1))
	if err := g.Reload(); err == nil {
		t.Error("the altered file should be refused") // a port out of range: a reload that fails first
	}
	g.Write(g.Caddyfile() + fmt.Sprintf("http://127.0.0.1:%d {\n\trespond \"new site\"\n}\n", freeport.Get(t)))
	start := time.Now()
	if err := g.Reload(); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("the reload waited %v", d)
	}
	if r, body := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	wg.Wait()
	if now := g.Node("n1").Sessions[0].Generation; now != gen {
		t.Errorf("generation %d, was %d", now, gen)
	}
	idle(t, g, fake)
}

// R2 and R13: a reload that fails in another app's Start changes nothing.
func TestFailedReloadChangesNothing(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := plain(t, g)
	r, err := c.post(context.Background(), "/api/chat", chat("t-tick", `,"t_n":40,"t_ms":100`))
	if err != nil {
		t.Fatal(err)
	}
	fds := rig.Use(t, g.Pid()).FDs
	for range 5 {
		g.Write(g.Caddyfile() + fmt.Sprintf("http://%s {\n\tbind 127.0.0.1\n\trespond never\n}\n", taken.Addr()))
		if err := g.Reload(); err == nil {
			t.Fatal("a taken port loads")
		}
	}
	// The next node is admitted under the old settings, and metrics and admin go on.
	other := fakeollama.Start(t, fakeollama.Options{Models: []string{"other"}})
	g.NodeOf("n2", other.URL())
	waitModel(t, g, "other")
	if lines, _, done, err := stream(r); lines != 41 || !done || err != nil {
		t.Errorf("%d lines, %v, %v", lines, done, err)
	}
	if now := rig.Use(t, g.Pid()).FDs; now > fds+6 {
		t.Errorf("%d descriptors, were %d", now, fds)
	}
	idle(t, g, fake)
}

// R3, R4, R11: reloads under load fail nobody on kept connections, leak nothing, and counters only rise.
func TestReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{TLS: true})
	var stop atomic.Bool
	var sent, failed, lost atomic.Int64
	var wg sync.WaitGroup
	for name, c := range clients(t, g) {
		for range 2 {
			wg.Go(func() {
				for !stop.Load() {
					// HTTP/1.1 has no way to say that a connection is about to close: at each reload Caddy's old server closes its idle ones, and
					// a request may cross that. The header lets net/http send such a request again; what was answered never is.
					fresh := false
					ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { fresh = !i.Reused }})
					r, err := c.post(ctx, "/api/chat", chat("t-echo", `,"stream":false`), "Idempotency-Key", "1")
					sent.Add(1)
					var op *net.OpError
					if errors.As(err, &op) && op.Op == "dial" || fresh && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)) {
						// A fresh connection that met the old listener as it closed, or stood in its queue: each config of Caddy's has a socket of its
						// own on the port (SO_REUSEPORT), and nobody has read of it.
						lost.Add(1)
						continue
					}
					if err != nil || r.StatusCode != 200 {
						failed.Add(1)
						t.Errorf("%s: %v %v (fresh: %v)", name, r, err, fresh)
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
			})
		}
	}
	long, err := plain(t, g).post(context.Background(), "/api/chat", chat("t-tick", `,"t_n":60,"t_ms":100`))
	if err != nil {
		t.Fatal(err)
	}
	base, before := goroutines(g), 0.0
	for i := range 20 {
		if err := g.Reload(); err != nil {
			t.Error(err)
		}
		if now := g.Metric("fairway_runs_total"); now < before {
			t.Errorf("reload %d: the counter fell from %v to %v", i, before, now)
		} else {
			before = now
		}
	}
	if lines, _, done, err := stream(long); lines != 61 || !done || err != nil {
		t.Errorf("the long stream: %d lines, %v, %v", lines, done, err)
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d requests, %d failed, %d lost with the old listener", sent.Load(), failed.Load(), lost.Load())
	if lost.Load() > 20 { // one a reload
		t.Errorf("%d fresh connections were lost", lost.Load())
	}
	idle(t, g, fake)
	rig.Eventually(t, 10*time.Second, "goroutines are back", func() bool { return goroutines(g) < base+100 })
	if n := udpSockets(t, g.UDP); n != 1 {
		t.Errorf("%d UDP sockets on the node port", n)
	}
}

// R6 and R7: a reload to a configuration without the module lets the stream complete; the module back while it drains finds the
// socket bound and the node connected.
func TestReloadWithoutTheModuleAndBack(t *testing.T) {
	t.Parallel()
	g, n, _ := fleet(t, rig.Options{Grace: "20s"})
	gen := g.Node("n1").Sessions[0].Generation
	without := func() {
		g.Write(fmt.Sprintf("{\n\tadmin 127.0.0.1:%d\n\tskip_install_trust\n\tstorage file_system %s/storage\n}\nhttp://:%d {\n\tbind 127.0.0.1\n\trespond none\n}\n", g.Admin, g.Dir, g.HTTP))
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := plain(t, g).post(context.Background(), "/api/chat", chat("t-tick", `,"t_n":30,"t_ms":100`))
	if err != nil {
		t.Fatal(err)
	}
	without()
	g.Write(g.Caddyfile())
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if now := g.Node("n1"); now == nil || now.Sessions[0].Generation != gen {
		t.Errorf("the session did not survive: %+v", now)
	}
	if lines, _, done, err := stream(r); lines != 31 || !done || err != nil {
		t.Errorf("%d lines, %v, %v", lines, done, err)
	}
	without()
	rig.Eventually(t, 5*time.Second, "the node is told", func() bool { return strings.Contains(n.Log(), "draining") })
	if n := udpSockets(t, g.UDP); n != 0 {
		t.Errorf("%d UDP sockets are left", n)
	}
	g.Write(g.Caddyfile())
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	g.WaitNode("n1", "ready")
}

// R9: validate beside the running gateway binds nothing and writes nothing.
func TestValidateWhileLive(t *testing.T) {
	t.Parallel()
	g, _, _ := fleet(t, rig.Options{})
	out, err := g.Run("validate", "--config", g.File())
	if err != nil || !strings.Contains(out, "Valid configuration") {
		t.Fatalf("%v %s", err, out)
	}
	if r, _ := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
		t.Fatal(r.StatusCode)
	}
}

// endings are all the ways in which a run ends, for the matrix that loses terminals if anything does.
var endings = []struct {
	name string
	run  func(t *testing.T, c client, stopRead <-chan struct{})
}{
	{"refused early", func(t *testing.T, c client, _ <-chan struct{}) {
		finish(c.post(context.Background(), "/api/chat", chat("t-busy-nowhere", "")))
	}},
	{"client gone", func(t *testing.T, c client, _ <-chan struct{}) {
		ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
		defer cancel()
		finish(c.post(ctx, "/api/chat", chat("t-tick", `,"t_n":1000,"t_ms":50`)))
	}},
	{"provider cut", func(t *testing.T, c client, _ <-chan struct{}) {
		finish(c.post(context.Background(), "/api/chat", chat("t-die", "")))
	}},
	{"slow reader", func(t *testing.T, c client, stopRead <-chan struct{}) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r, err := c.post(ctx, "/api/chat", chat("t-flood", `,"t_mb":50`))
		if err == nil {
			<-stopRead
			cancel()
			r.Body.Close()
		}
	}},
	{"completes", func(t *testing.T, c client, _ <-chan struct{}) {
		finish(c.post(context.Background(), "/api/chat", chat("t-tick", `,"t_n":20,"t_ms":50`)))
	}},
}

func finish(r *http.Response, err error) {
	if err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
}

func TestEveryEndingDuringEveryReload(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{})
	bad := fmt.Sprintf("http://127.0.0.1:%d {\n\tfairway {\n\t\tno_such_option\n\t}\n}\n", freeport.Get(t))
	for _, how := range []string{"reload", "failed reload"} {
		started := g.Metric("fairway_runs_total")
		stopRead := make(chan struct{})
		var wg sync.WaitGroup
		for _, e := range endings {
			for range 5 {
				wg.Go(func() { e.run(t, plain(t, g), stopRead) })
			}
		}
		time.Sleep(300 * time.Millisecond)
		for range 3 {
			file := g.Caddyfile()
			if how == "failed reload" {
				file += bad
			}
			g.Write(file)
			if err := g.Reload(); (err == nil) != (how == "reload") {
				t.Errorf("%s: %v", how, err)
			}
		}
		time.Sleep(time.Second)
		close(stopRead)
		wg.Wait()
		idle(t, g, fake)
		rig.Eventually(t, 3*time.Second, "every run has one end", func() bool {
			return g.Metric("fairway_runs_total")-started == float64(5*len(endings))
		})
		if n := g.Metric("fairway_fenced_frames_total", "late_terminal"); n != 0 {
			t.Errorf("%v second terminals", n)
		}
	}
}

// The same endings while the process is asked to stop: it comes to its end within the grace, and no provider is left running.
func TestEveryEndingDuringSIGTERM(t *testing.T) {
	t.Parallel()
	g, n, fake := fleet(t, rig.Options{Grace: "3s"})
	stopRead := make(chan struct{})
	var wg sync.WaitGroup
	for _, e := range endings {
		for range 3 {
			wg.Go(func() { e.run(t, plain(t, g), stopRead) })
		}
	}
	time.Sleep(300 * time.Millisecond)
	g.Signal(syscall.SIGTERM)
	if code := g.Exit(10 * time.Second); code != 0 {
		t.Errorf("exit %d", code)
	}
	close(stopRead)
	wg.Wait()
	rig.Eventually(t, 3*time.Second, "the provider is idle", func() bool { return fake.Stats().Inflight == 0 })
	g.Start()
	g.WaitNode("n1", "ready")
	if r, body := g.Do("POST", "/api/chat", chat("t-echo", "")); r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	idle(t, g, fake)
	_ = n
}
