package docs

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// TestQuickStart does what README says, on ports of its own: Caddyfile.example, the curl line, then a second machine by token.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	bins := rig.Build(t)
	dir := t.TempDir()
	web, udp, admin := strconv.Itoa(freeport.Get(t)), strconv.Itoa(freeport.Get(t)), strconv.Itoa(freeport.Get(t))
	ports := strings.NewReplacer("11435", web, "4433", udp, "127.0.0.1:11434", "127.0.0.1:"+strconv.Itoa(freeport.Get(t)))
	file := filepath.Join(dir, "Caddyfile")
	// The admin port is not the example's business, but two Caddys cannot share one.
	text := strings.Replace(ports.Replace(read(t, "Caddyfile.example")), "{\n", "{\n\tadmin 127.0.0.1:"+admin+"\n", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_STATE_HOME="+dir, "HOME="+dir)
	gateway := start(t, env, bins.Caddy, "run", "--config", file)

	m := regexp.MustCompile(`curl -N (127\.0\.0\.1:11435\S+) -d '(.+)'`).FindStringSubmatch(read(t, "README.md"))
	if m == nil {
		t.Fatal("README has no curl line")
	}
	var answer string
	rig.Eventually(t, 20*time.Second, "the curl line of README streams", func() bool {
		gateway.alive(t)
		answer = post("http://"+ports.Replace(m[1]), m[2])
		return strings.Contains(answer, `"done":true`)
	})
	if n := strings.Count(answer, "\n"); n < 10 {
		t.Errorf("the answer has %d lines; it did not stream:\n%s", n, answer)
	}

	fairway := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), bins.Caddy, append([]string{"fairway"}, append(args, "--address", "127.0.0.1:"+admin)...)...)
		cmd.Env = env
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("caddy fairway %v: %v", args, err)
		}
		return string(out)
	}
	token := strings.Fields(fairway("token", "--node", "workstation"))[0]
	node := start(t, env, bins.Node, "run", "--gateway", "127.0.0.1:"+udp, "--token", token, "--demo", "on", "--ollama", "off")
	rig.Eventually(t, 20*time.Second, "caddy fairway nodes shows the machine ready", func() bool {
		node.alive(t)
		return regexp.MustCompile(`(?m)^workstation\s+ready`).MatchString(fairway("nodes"))
	})
}

func post(url, body string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// process is a program that runs until the test ends.
type process struct {
	log  *bytes.Buffer // read only once done is closed
	done chan struct{}
	cmd  *exec.Cmd
}

func start(t *testing.T, env []string, path string, args ...string) *process {
	t.Helper()
	p := &process{log: new(bytes.Buffer), done: make(chan struct{})}
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.cmd = cmd
	go func() {
		_ = cmd.Wait() // killed below
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(path), p.log.String())
		}
	})
	return p
}

// kill ends it, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

func (p *process) alive(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
		t.Fatalf("it ended:\n%s", p.log.String())
	default:
	}
}
