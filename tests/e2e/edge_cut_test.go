package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// front stands before a provider on TCP. It passes everything on but chats, with whose connections it does what the test says. Safe for concurrent use.
type front struct {
	ln net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	chat  func(net.Conn)        // guarded by mu; nil: passed on as well
	conns map[net.Conn]struct{} // guarded by mu
}

func newFront(t *testing.T, to string) *front {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{ln: ln, to: to, conns: map[net.Conn]struct{}{}}
	f.wg.Go(f.accept)
	t.Cleanup(func() { f.refuse(); f.wg.Wait() })
	return f
}

func (f *front) url() string { return "http://" + f.ln.Addr().String() }

func (f *front) set(chat func(net.Conn)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chat = chat
}

// refuse cuts what is open and takes no more connections.
func (f *front) refuse() {
	f.ln.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.Close()
	}
	f.conns = nil
}

func (f *front) accept() {
	for {
		c, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		if f.conns == nil {
			c.Close()
		} else {
			f.conns[c] = struct{}{}
			f.wg.Go(func() { f.serve(c) })
		}
		f.mu.Unlock()
	}
}

func (f *front) serve(c net.Conn) {
	defer func() {
		c.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, c)
	}()
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		f.mu.Lock()
		chat := f.chat
		f.mu.Unlock()
		if chat != nil && r.URL.Path == "/api/chat" {
			_, _ = io.Copy(io.Discard, r.Body)
			chat(c)
			return
		}
		r.URL.Scheme, r.URL.Host, r.RequestURI = "http", f.to, ""
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return
		}
		err = resp.Write(c)
		resp.Body.Close()
		if err != nil {
			return
		}
	}
}

// What a provider's end of a connection may do.

func write(c net.Conn, s string) { _, _ = io.WriteString(c, s) }

// silence holds the connection open until the other side has gone.
func silence(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// reset ends it so that the other side sees a reset.
func reset(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() }

const (
	chatHead = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
	chatLine = `{"model":"t-say","message":{"role":"assistant","content":"{\"city\""},"done":false}` + "\n"
)

func chatBegins(c net.Conn) { write(c, chatHead+fmt.Sprintf("%x\r\n%s\r\n", len(chatLine), chatLine)) }

// cuts are ways to lose a provider after it has taken the request.
var cuts = []struct {
	name string
	chat func(net.Conn)
	want string // the result; %d is the deadline
}{
	{"black hole", silence, "unavailable deadline_exceeded deadline_ms=%d elapsed"},
	{"closed before the head", func(c net.Conn) {}, "unavailable server_unreachable unreachable: provider_unreachable"},
	{"reset before the head", reset, "unavailable server_unreachable unreachable: provider_unreachable"},
	{"half a head", func(c net.Conn) { write(c, "HTTP/1.1 200 OK\r\nContent-Ty"); silence(c) }, "unavailable deadline_exceeded deadline_ms=%d elapsed"},
	{"closed in the head", func(c net.Conn) { write(c, "HTTP/1.1 200 OK\r\nContent-Ty") }, "unavailable server_unreachable unreachable: provider_unreachable"},
	{"nothing after the head", func(c net.Conn) { write(c, chatHead); silence(c) }, "unavailable deadline_exceeded deadline_ms=%d elapsed"},
	{"half open in the answer", func(c net.Conn) { chatBegins(c); silence(c) }, "unavailable deadline_exceeded deadline_ms=%d elapsed"},
	{"reset in the answer", func(c net.Conn) { chatBegins(c); reset(c) }, "unavailable server_unreachable unreachable: provider_unreachable"},
	{"closed in the answer", chatBegins, "unavailable server_unreachable unreachable: provider_unreachable"},
	{"an end too soon", func(c net.Conn) { chatBegins(c); write(c, "0\r\n\r\n") }, "unavailable error bad_response: bad_provider_response"},
	{"another protocol", func(c net.Conn) { write(c, "220 mail.example ESMTP\r\n") }, "unavailable error bad_response: bad_provider_response"},
	{"TLS where none was", func(c net.Conn) { write(c, "\x15\x03\x01\x00\x02\x02\x46\r\n\r\n") }, "unavailable error bad_response: bad_provider_response"},
}

// A05, behind a gateway: the way from the node to its provider breaks for real, at every step, and the caller has a typed result in time.
func TestOfflineFirst(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	f := newFront(t, fake.Addr())
	g := rig.NewGateway(t, rig.Options{})
	g.NodeOf("n1", f.url(), "--credits", credits)
	waitModel(t, g, sayer)
	const deadline = 400
	for _, cut := range cuts {
		want := cut.want
		if strings.Contains(want, "%d") {
			want = fmt.Sprintf(want, deadline)
		}
		for _, stream := range []bool{false, true} {
			f.set(cut.chat)
			start := time.Now()
			var a edge.Answer
			if stream {
				r, text := g.Do("POST", edgeRuns, ask(sayer, "x", fmt.Sprintf(`,"deadline_ms":%d,"stream":true`, deadline)))
				events := readEvents(t, strings.NewReader(text), false)
				if len(events) == 0 || r.StatusCode != 200 {
					t.Fatalf("%s: %d %q", cut.name, r.StatusCode, text)
				}
				a = events[len(events)-1].Answer
			} else {
				a = typedRun(t, g, ask(sayer, "x", fmt.Sprintf(`,"deadline_ms":%d`, deadline)))
			}
			if d := time.Since(start); d > deadline*time.Millisecond+edgeLate()+time.Second { // TestDeadline is about the 100 ms
				t.Errorf("%s took %v", cut.name, d)
			}
			if got := detail(a); got != want {
				t.Errorf("%s, stream %v: %s, not %s", cut.name, stream, got, want)
			}
			if a.Result.Output != nil || a.Disposition != edge.Fallback || a.Placement != edge.Edge || a.Result.ModelID != sayer {
				t.Errorf("%s: %+v", cut.name, a)
			}
		}
	}
	// The provider is as it was: nothing of all that is left.
	f.set(nil)
	rig.Eventually(t, 20*time.Second, "runs succeed again", func() bool {
		return typedRun(t, g, ask(sayer, `⟦{"city":"Oslo"}⟧`, "")).Result.Status == edge.Success
	})
	if s := g.Node("n1").State; s != "ready" {
		t.Errorf("the node is %s", s)
	}
	// The port refuses: at first the node finds that out, then it is known.
	f.refuse()
	if got := detail(typedRun(t, g, ask(sayer, "x", ""))); got != "unavailable server_unreachable unreachable: provider_unreachable" {
		t.Errorf("refused: %s", got)
	}
	rig.Eventually(t, 10*time.Second, "the node says that its provider is away", func() bool {
		row := g.Node("n1")
		return row != nil && len(row.Targets) == 1 && !row.Targets[0].Reachable
	})
	if got := detail(typedRun(t, g, ask(sayer, "x", ""))); got != "unavailable server_unreachable unreachable: no_node" {
		t.Errorf("a provider known to be away: %s", got)
	}
}

// A provider that was never there, by an address that leads nowhere: nobody has its model.
func TestOfflineFirstFromTheStart(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	refused := fmt.Sprintf("http://127.0.0.1:%d", freeport.Get(t))
	hole, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	g := rig.NewGateway(t, rig.Options{})
	for i, url := range []string{refused, "http://nobody.invalid:11434", "http://" + hole.Addr().String(), "https://" + fake.Addr()} {
		n := g.TryNode(fmt.Sprintf("n%d", i), "--ollama", url, "--token", g.JoinToken(fmt.Sprintf("n%d", i)))
		rig.Eventually(t, 10*time.Second, "the node has joined", func() bool { return g.Node(n.Name) != nil })
	}
	for range 3 {
		if got := detail(typedRun(t, g, ask(sayer, "x", `,"deadline_ms":1000`))); got != "unavailable error model_missing: no_such_model" {
			t.Errorf("%s", got)
		}
	}
	if fake.Execs(sayer) != 0 {
		t.Error("it ran")
	}
}

// The same without any gateway: the node's own command, against every way in which a provider can be away.
func TestOfflineFirstOnTheNode(t *testing.T) {
	t.Parallel()
	bins := rig.Build(t)
	dir := t.TempDir()
	operator, note := filepath.Join(dir, "operator.json"), filepath.Join(dir, "note.txt")
	for name, text := range map[string]string{operator: `{"kind":"schema","model":"t-say","prompt":"Which city?","schema":` + citySchema + `}`, note: `⟦{"city":"Oslo"}⟧`} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hole.Close() })
	plain := newFront(t, fake.Addr()) // hangs up on what is not HTTP
	const unreachable = "unavailable server_unreachable unreachable: provider_unreachable"
	type away struct{ name, url, want string }
	all := []away{
		{"nothing is wrong", fake.URL(), "success"},
		{"refused", fmt.Sprintf("http://127.0.0.1:%d", freeport.Get(t)), unreachable},
		{"no such name", "http://nobody.invalid:11434", unreachable},
		{"no TLS there", "https://" + plain.ln.Addr().String(), unreachable},
		{"a black hole behind TLS", "https://" + hole.Addr().String(), "unavailable deadline_exceeded deadline_ms=1000 elapsed"},
		{"a black hole that does not accept", "http://" + hole.Addr().String(), "unavailable deadline_exceeded deadline_ms=1000 elapsed"},
	}
	for _, cut := range cuts {
		f := newFront(t, fake.Addr())
		f.set(cut.chat)
		want := cut.want
		if strings.Contains(want, "%d") {
			want = fmt.Sprintf(want, 1000)
		}
		all = append(all, away{cut.name, f.url(), want})
	}
	for _, tc := range all {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			cmd := exec.CommandContext(t.Context(), bins.Node, "edge", "run", operator, "--input", "note="+note, "--ollama", tc.url, "--deadline", "1s", "--json")
			out, err := cmd.Output()
			d := time.Since(start)
			var a edge.Answer
			if jerr := json.Unmarshal(out, &a); jerr != nil {
				t.Fatalf("%v, %v in %q", err, jerr, out)
			}
			if got := detail(a); got != tc.want {
				t.Errorf("%s, not %s", got, tc.want)
			}
			if (err == nil) != (a.Disposition == edge.Accept) {
				t.Errorf("%s, and the command says %v", a.Disposition, err)
			}
			if d > 5*time.Second { // a process, beside others that start as well
				t.Errorf("it took %v", d)
			}
		})
	}
}

// The way between gateway and node breaks in the middle of a run: the node is killed, or no packet passes. A run with a deadline ends by it, one
// without one when the session is given up, and the caller has a typed result of each.
func TestOfflineFirstWithoutTheNode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		cut  func(n *rig.Node, r *rig.Relay)
	}{
		{"killed", func(n *rig.Node, _ *rig.Relay) { n.Kill() }},
		{"no packet passes", func(_ *rig.Node, r *rig.Relay) { r.Set(func(w *rig.Ways) { w.Drop = true }) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
			g := rig.NewGateway(t, rig.Options{})
			relay := rig.NewRelay(t, g.Addr())
			n := g.By(relay).NodeOf("n1", fake.URL(), "--credits", credits)
			waitModel(t, g, sayer)
			_, _, long := startTyped(t, g, ask("t-slowload", "", ""))
			start := time.Now()
			_, _, short := startTyped(t, g, ask("t-tick", "", `,"deadline_ms":1500`))
			rig.Eventually(t, 5*time.Second, "both run", func() bool { return fake.Stats().Exec == 2 })
			tc.cut(n, relay)
			a := <-short
			if d := time.Since(start); detail(a) != "unavailable deadline_exceeded deadline_ms=1500 elapsed" || d > 1500*time.Millisecond+edgeLate()+time.Second {
				t.Errorf("%s after %v", detail(a), d)
			}
			a = <-long
			if d := time.Since(start); detail(a) != "unavailable server_unreachable unreachable: node_lost" || d > 25*time.Second {
				t.Errorf("%s after %v", detail(a), d)
			}
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			if err := fake.WaitStats(ctx, func(s fakeollama.Stats) bool { return s.Inflight == 0 }); err != nil {
				t.Error("the provider goes on")
			}
			if fake.Stats().Exec != 2 {
				t.Errorf("%d ran: nothing that was lost may run again", fake.Stats().Exec)
			}
		})
	}
}
