package nodeclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// build builds fairway-node as it is shipped.
func build(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGTERM there")
	}
	path := filepath.Join(t.TempDir(), "fairway-node")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v9.9.9", "-o", path, "./cmd/fairway-node")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 20<<20 {
		t.Errorf("the program has %d bytes", info.Size())
	}
	return path
}

// process is a running fairway-node.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	log  bytes.Buffer // guarded by mu
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func spawn(t *testing.T, bin string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "OLLAMA_NUM_PARALLEL=4"), env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// exit waits for the process to end and returns its exit code.
func (p *process) exit(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		t.Fatalf("still running after %s:\n%s", within, p.said())
		return -1
	}
}

// tick asks for n tokens, 100 ms apart.
func tick(t *testing.T, s *tunnel.Session, n string) *tunnel.Run {
	t.Helper()
	body := `{"model":"t-tick","messages":[{"role":"user","content":"x"}],"options":{"t_ms":100,"t_n":` + n + `}}`
	r := open(t, s, func(o *tunnel.RunOpen) {
		o.Model, o.Body, o.BodyLength = "t-tick", tunnel.BodyLength, uint64(len(body))
		o.Headers = []*tunnel.Header{{Name: "Content-Type", Value: []byte("application/json")}}
	})
	if err := r.WriteBody([]byte(body)); err != nil {
		t.Fatal(err)
	}
	_ = r.EndBody()
	for { // until the first token
		if ev := r.Next(); ev.Kind == tunnel.EventData {
			return r
		} else if ev.Kind == tunnel.EventRefused || ev.Kind == tunnel.EventTerminal {
			t.Fatalf("%+v", ev)
		}
	}
}

// TestCommand is a day in the life of the program.
func TestCommand(t *testing.T) {
	t.Parallel()
	bin := build(t)
	g := newGateway(t)
	provider := fakeollama.Start(t, fakeollama.Options{})
	dir := filepath.Join(t.TempDir(), "state")
	token := g.token("n1")
	args := []string{"run", "--gateway", g.addr, "--state-dir", dir, "--ollama", provider.URL(), "--log-format", "json"}
	p := spawn(t, bin, []string{"FAIRWAY_TOKEN=" + token}, args...)
	s := g.nextReady(10 * time.Second)
	if tg, n := g.target("ollama"); n < 5 || tg.GetCredits().GetPerModel() != 4 || s.Software() != "v9.9.9" {
		t.Errorf("%d models, credits %v, software %s", n, tg.GetCredits(), s.Software())
	}

	status := func(args ...string) (string, int) {
		out, err := exec.Command(bin, append([]string{"status", "--state-dir", dir}, args...)...).CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return string(out), exit.ExitCode()
		}
		return string(out), 0
	}
	var out string
	eventually(t, 5*time.Second, "status exits 0", func() (ok bool) { o, code := status(); out = o; return code == 0 })
	if !strings.Contains(out, "n1") || !strings.Contains(out, "gw1") || !strings.Contains(out, "ready") {
		t.Error(out)
	}
	out, _ = status("--json")
	var st Status
	if err := json.Unmarshal([]byte(out), &st); err != nil || st.Node != "n1" || st.Version != "v9.9.9" || len(st.Targets) != 1 {
		t.Errorf("%v in %s", err, out)
	}

	if second := spawn(t, bin, nil, args...); second.exit(t, 5*time.Second) != 4 || !strings.Contains(second.said(), "another fairway-node") {
		t.Errorf("a second node on the directory: %s", second.said())
	}
	other := spawn(t, bin, []string{"FAIRWAY_TOKEN=" + g.token("n2")}, args...)
	if other.exit(t, 5*time.Second) != 2 || !strings.Contains(other.said(), "n2") {
		t.Errorf("a token for another node: %s", other.said())
	}

	r := tick(t, s, "15")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if res := collect(r); res.terminal.GetOutcome() != tunnel.Completed || !strings.Contains(res.body, `"done":true`) {
		t.Errorf("a run was cut by SIGTERM: %+v", res.terminal)
	} else if u := res.terminal.GetUsage(); u.GetOutputTokens() != 15 {
		t.Errorf("usage %v", u)
	}
	start := time.Now()
	if code := p.exit(t, 5*time.Second); code != 0 || time.Since(start) > 2*time.Second {
		t.Errorf("exit %d after %s", code, time.Since(start))
	}
	if strings.Contains(p.said(), token) || strings.Contains(p.said(), `"content"`) {
		t.Error("a token or a prompt in the log")
	}
	if out, code := status(); code != 1 || !strings.Contains(out, "no node is running") {
		t.Errorf("%d: %s", code, out)
	}
}

func TestCommandSecondSignalCuts(t *testing.T) {
	t.Parallel()
	bin := build(t)
	g := newGateway(t)
	provider := fakeollama.Start(t, fakeollama.Options{})
	dir := filepath.Join(t.TempDir(), "state")
	out, err := exec.Command(bin, "enroll", "--gateway", g.addr, "--token", g.token("n1"), "--state-dir", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "joined as node n1") {
		t.Fatalf("%v: %s", err, out)
	}
	p := spawn(t, bin, []string{"FAIRWAY_GATEWAY=" + g.addr, "FAIRWAY_STATE_DIR=" + dir, "FAIRWAY_OLLAMA=" + provider.URL()}, "run")
	s := g.nextReady(10 * time.Second)
	r := tick(t, s, "1000")
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, 5*time.Second, "draining", func() bool { return s.State() == tunnel.StateDraining })
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.exit(t, 2*time.Second); code != 0 {
		t.Errorf("exit %d: %s", code, p.said())
	}
	if res := collect(r); res.terminal.GetOutcome() == tunnel.Completed {
		t.Error("the run is called complete")
	}
}

func TestCommandRefusedForGood(t *testing.T) {
	t.Parallel()
	bin := build(t)
	g := newGateway(t)
	token := g.token("n1")
	dir := filepath.Join(t.TempDir(), "state")
	g.set(func(g *gateway) {
		g.refuse = func(*tunnel.Register) error {
			return &tunnel.CloseError{Code: tunnel.CloseRevoked, Reason: "the node is revoked"}
		}
	})
	p := spawn(t, bin, nil, "run", "--gateway", g.addr, "--token", token, "--state-dir", dir, "--demo", "on", "--ollama", "off")
	if code := p.exit(t, 10*time.Second); code != 3 || !strings.Contains(p.said(), "revoke --node") {
		t.Errorf("exit %d: %s", code, p.said())
	}
	spent := spawn(t, bin, nil, "enroll", "--gateway", g.addr, "--token", token, "--state-dir", dir+"2")
	if code := spent.exit(t, 10*time.Second); code != 3 || !strings.Contains(spent.said(), "new token") {
		t.Errorf("exit %d: %s", code, spent.said())
	}
}
