package nodeclient

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/goals"
	"github.com/fairway-edge/fairway/nodeclient/adapter/ollama"
	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// The memory canary: a node in a process of its own has runs that succeed, fail, are canceled, hang, and panic, and afterwards no copy of the credential is in
// its memory. Of an answer that repeats it what was read stays there until the memory is used for something else, so there is none here.
func TestMemoryOfANode(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]string{"": "", "the scan finds what is there": "yes"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := canary.New(t)
			l := newLender(t)
			provider := fakeollama.Start(t, fakeollama.Options{Key: key})
			l.value, l.origin = "Bearer "+key, provider.URL()
			c := startChild(t, "MEMORY_GATEWAY="+l.addr, "MEMORY_TOKEN="+l.token("n1"), "MEMORY_PROVIDER="+provider.URL(), "MEMORY_KEEP="+keep)
			s := l.nextReady(20 * time.Second)
			l.announce(s)
			spend(t, l, s, provider)
			needle := []byte(key[:16])
			if copies, size := canary.InMemory(t, os.Getpid(), needle); len(copies) == 0 {
				t.Fatalf("this process has no copy in %d bytes; is the scan right?", size)
			}
			copies, size := canary.InMemory(t, c.Process.Pid, needle)
			if (len(copies) > 0) != (keep != "") {
				t.Errorf("%d copies in %d bytes of memory: %s", len(copies), size, copies)
			}
		})
	}
}

// spend has runs with every end.
func spend(t *testing.T, l *lender, s *tunnel.Session, provider *fakeollama.Server) {
	t.Helper()
	run := func(body string) *tunnel.Run { return l.lend(s, lent{body: body}) }
	ends := func(what, body, want string) {
		t.Helper()
		res := collect(run(body))
		if got := fmt.Sprint(res.refused.GetCode(), res.terminal.GetOutcome(), res.terminal.GetCode()); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	chat := func(model, knobs string) string { return fmt.Sprintf(`{"model":%q,"messages":[{}]%s}`, model, knobs) }
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				ends("success", chat("t-echo", ""), fmt.Sprint("", tunnel.Completed, ""))
				ends("a long body", chat("t-echo", `,"x":"`+strings.Repeat("x", 100<<10)+`"`), fmt.Sprint("", tunnel.Completed, ""))
				ends("not streamed", chat("t-echo", `,"stream":false`), fmt.Sprint("", tunnel.Completed, ""))
				ends("500", chat("t-echo", `,"t_fault":"500"`), fmt.Sprint("", tunnel.Completed, ""))
				ends("cut", chat("t-echo", `,"t_fault":"rst"`), fmt.Sprint("", tunnel.Failed, tunnel.CodeBadProvider))
				ends("closed", chat("t-echo", `,"t_fault":"close"`), fmt.Sprint("", tunnel.Failed, tunnel.CodeProviderUnreached))
				ends("garbage", chat("t-echo", `,"t_fault":"garbage"`), fmt.Sprint("", tunnel.Failed, tunnel.CodeBadProvider))
				ends("a panic before the write", chat("t-echo", `,"panic":"before"`), fmt.Sprint("", tunnel.Failed, tunnel.CodeInternal))
				ends("a panic after it", chat("t-echo", `,"panic":"after"`), fmt.Sprint("", tunnel.Failed, tunnel.CodeInternal))
			}
		})
	}
	wg.Wait()
	for _, body := range []string{chat("t-echo", `,"t_fault":"hang"`), chat("t-tick", `,"t_n":1000,"t_ms":20`)} {
		n := provider.Stats().Exec
		r := run(body)
		eventually(t, 5*time.Second, "the provider works", func() bool { return provider.Stats().Exec > n })
		r.Cancel(tunnel.CodeCanceled)
		_ = collect(r)
	}
	eventually(t, 5*time.Second, "the provider is idle", func() bool { return provider.Stats().Inflight == 0 })
	if n := provider.Stats().Exec; n < 4*5*8 {
		t.Errorf("only %d runs", n)
	}
}

// startChild runs this program again, as TestNodeInAChild, and waits until that has begun.
func startChild(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestNodeInAChild$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	said, lines := "", bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "started" {
		said += lines.Text() + "\n"
	}
	t.Cleanup(func() {
		in.Close() // the child ends
		rest, _ := io.ReadAll(out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the child: %v\n%s%s", err, said, rest)
		}
		cancel()
	})
	return cmd
}

// TestNodeInAChild is the child of TestMemoryOfANode.
func TestNodeInAChild(t *testing.T) {
	gateway := os.Getenv("MEMORY_GATEWAY")
	if gateway == "" {
		return // not as a child: nothing to do
	}
	dir := filepath.Join(t.TempDir(), "state")
	id, err := NewStateIdentity(dir, os.Getenv("MEMORY_TOKEN"), []string{gateway}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	a, err := ollama.New("ollama", os.Getenv("MEMORY_PROVIDER"))
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{Adapter: a, keep: os.Getenv("MEMORY_KEEP") != ""}
	cloud, err := goals.New("cloud", os.Getenv("MEMORY_PROVIDER"))
	if err != nil {
		t.Fatal(err)
	}
	_, stop := launch(t, Config{
		Identity: id, StateDir: dir, Gateways: []string{gateway}, Targets: []Target{{Adapter: f, PerModel: 32}, {Adapter: &breaking{cloud}, PerModel: 32}}, Log: zap.NewNop(),
	})
	fmt.Println("started")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if len(f.kept) > 0 && f.kept[0] == "impossible" {
		t.Error(f.kept)
	}
}

// faulty is an adapter that panics where a request asks for it.
type faulty struct {
	adapter.Adapter
	keep bool

	mu   sync.Mutex
	kept []string // guarded by mu
}

func (f *faulty) Connect(ctx context.Context, own bool) (adapter.Conn, error) {
	c, err := f.Adapter.Connect(ctx, own)
	return &faultyConn{c, f}, err
}

type faultyConn struct {
	adapter.Conn
	f *faulty
}

func (c *faultyConn) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = strings.NewReader(string(body))
	if r.Credential != nil && (c.f.keep || strings.Contains(string(body), `"panic":"before"`)) {
		line, err := r.Credential.Line()
		if err != nil {
			return nil, err
		}
		if c.f.keep {
			c.f.mu.Lock()
			c.f.kept = append(c.f.kept, string(line))
			c.f.mu.Unlock()
		}
	}
	if strings.Contains(string(body), `"panic":"before"`) {
		panic("injected")
	}
	resp, err := c.Conn.Do(ctx, r)
	if strings.Contains(string(body), `"panic":"after"`) {
		panic("injected")
	}
	return resp, err
}
