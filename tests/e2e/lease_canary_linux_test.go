package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// show fails when a text shows the provider's key, in any spelling.
func (l *lending) show(where string, text []byte) {
	l.t.Helper()
	if i := canary.Find(text, l.key); i >= 0 {
		l.t.Errorf("%s shows the credential: …%q…", where, text[max(0, i-80):min(len(text), i+60)])
	}
}

// spend has runs with every end, and looks into every answer.
func (l *lending) spend(fake *fakeollama.Server) {
	t := l.t
	t.Helper()
	ask := func(what, path, body string, status int) {
		t.Helper()
		r, answer := l.Do("POST", path, body)
		if r.StatusCode != status {
			t.Errorf("%s: %d %v %.300s", what, r.StatusCode, r.Header, answer)
		}
		l.show(what, fmt.Append(nil, r.Status, r.Header, r.Trailer, answer))
	}
	parallel(4, func(int) {
		for range 5 {
			ask("a stream", "/api/chat", chat("t-echo", ""), 200)
			ask("a whole answer", "/api/chat", chat("t-echo", `,"stream":false`), 200)
			ask("a long request", "/api/chat", chat("t-echo", `,"x":"`+strings.Repeat("x", 200<<10)+`"`), 200)
			ask("another API", "/v1/chat/completions", chat("t-echo", `,"stream":true`), 200)
			ask("an error", "/api/chat", chat("t-echo", `,"t_fault":"500"`), 500)
			ask("a cut answer", "/api/chat", chat("t-die", ""), 200)
			ask("no answer", "/api/chat", chat("t-echo", `,"t_fault":"reset"`), 502)
			ask("garbage", "/api/chat", chat("t-echo", `,"t_fault":"garbage"`), 502)
		}
	})
	c := plain(t, l.Gateway)
	for _, body := range []string{chat("t-tick", `,"t_n":1000,"t_ms":20`), chat("t-echo", `,"t_fault":"hang"`)} {
		for range 3 {
			began := fake.Stats().Exec
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if r, err := c.post(ctx, "/api/chat", body); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
			}()
			rig.Eventually(t, 5*time.Second, "the provider works", func() bool { return fake.Stats().Exec > began })
			cancel()
			<-done
		}
	}
	idle(t, l.Gateway, fake)
}

// The memory canary: whatever became of its runs, a node's memory holds no copy of a credential afterwards. And nothing of what the two programs write, show
// or send has it, with everything at DEBUG.
func TestCredentialCanary(t *testing.T) {
	t.Parallel()
	l := newLending(t, rig.Options{SiteLines: "\tlog {\n\t\toutput stderr\n\t}\n"})
	relay := rig.NewRelay(t, l.Addr())
	var packets, leaks atomic.Int64
	var first sync.Once
	relay.Set(func(w *rig.Ways) {
		w.Tap = func(p []byte) {
			packets.Add(1)
			if i := canary.Find(p, l.key); i >= 0 {
				leaks.Add(1)
				first.Do(func() { t.Errorf("a datagram shows the credential at %d: %q", i, p) })
			}
		}
	})
	n, fake := l.lend("n1", l.By(relay))
	l.spend(fake)
	if runs := fake.Stats().Exec; runs < 4*5*8 {
		t.Errorf("only %d runs", runs)
	}

	needle := []byte(l.key[:16])
	if copies, size := canary.InMemory(t, l.Pid(), needle); len(copies) == 0 {
		t.Errorf("the gateway, which keeps the credential, has none in %d bytes; is the scan right?", size)
	}
	if copies, size := canary.InMemory(t, n.Pid(), needle); len(copies) > 0 {
		t.Errorf("%d copies in %d bytes of the node's memory: %s", len(copies), size, copies)
	}

	// Providers that send it back, and what the answer becomes.
	for fault, status := range map[string]int{"echohead": 502, "echotrailer": 200} {
		r, body := l.Do("POST", "/api/chat", chat("t-echo", `,"t_fault":"`+fault+`"`))
		if r.StatusCode != status || r.Header.Get("X-Debug") != "" || len(r.Trailer["X-Debug"]) > 0 {
			t.Errorf("%s: %d %v %v %s", fault, r.StatusCode, r.Header, r.Trailer, body)
		}
		l.show(fault, fmt.Append(nil, r.Header, r.Trailer, body))
	}

	for _, cmd := range []string{"runs", "routes", "leases", "status"} { // the others show less
		l.show(cmd, []byte(l.Fairway(cmd)))
	}
	for _, path := range []string{"/config/", "/metrics", "/fairway/nodes", "/fairway/runs", "/fairway/routes", "/fairway/leases", "/fairway/revocations", "/fairway/status"} {
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", l.Admin, path)) //nolint:noctx // loopback
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if len(b) == 0 {
			t.Errorf("%s is empty", path)
		}
		l.show(path, fmt.Append(b, r.Header))
	}
	if err := l.Reload(); err != nil { // what a reload logs and saves
		t.Error(err)
	}
	audit, err := os.ReadFile(l.audit)
	if err != nil || strings.Count(string(audit), `"opened"`) < 100 {
		t.Errorf("the audit has %d bytes, %v", len(audit), err)
	}
	l.show("the audit", audit)
	l.show("the gateway's log", []byte(l.Log()))
	l.show("the node's log", []byte(n.Log()))
	if !strings.Contains(l.Log(), "fairway_run") || !strings.Contains(l.Log(), "autosaved config") {
		t.Error("the log has neither an access line nor a word of the autosave")
	}
	files := 0
	for _, dir := range []string{l.Dir, n.Dir} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			files++
			b, err := os.ReadFile(path)
			l.show(path, b)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(l.Dir, "config", "caddy", "autosave.json")); err != nil || files < 8 {
		t.Errorf("%d files, %v", files, err)
	}
	if packets.Load() < 500 {
		t.Errorf("only %d datagrams passed", packets.Load())
	}
}

// A node's memory is closed to other processes of its user, as it would be to a debugger, and no core is written of it.
func TestNodeIsClosed(t *testing.T) {
	t.Parallel()
	g := rig.NewGateway(t, rig.Options{})
	dir, err := os.MkdirTemp("", "fairway-closed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	program, bin := rig.Build(t).Node, filepath.Join(dir, "fairway-node")
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, text, 0o755); err != nil { // what cannot be read cannot be dumped anyway
		t.Fatal(err)
	}
	// Root may read everything: so all three are somebody else's.
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	run := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), name, args...)
		cmd.SysProcAttr, cmd.Dir, cmd.Env = attr, dir, append(os.Environ(), "HOME="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	node := run(bin, "run", "--gateway", g.Addr(), "--token", g.JoinToken("n1"), "--state-dir", filepath.Join(dir, "state"), "--ollama", "off", "--demo", "on")
	other := run("sleep", "600")
	g.WaitNode("n1", "ready")
	for _, file := range []string{"environ", "mem", "maps"} {
		// A file of an address space opens only for who may trace its process; the pages of mem that dd asks for need not be there.
		peek := func(pid int) string {
			cmd := exec.CommandContext(context.Background(), "dd", "if=/proc/"+strconv.Itoa(pid)+"/"+file, "of=/dev/null", "bs=1", "count=1")
			cmd.SysProcAttr = attr
			out, _ := cmd.CombinedOutput()
			return string(out)
		}
		if said := peek(other.Process.Pid); strings.Contains(said, "failed to open") {
			t.Skipf("no process of this user may look at another here: %s", said)
		}
		if said := peek(node.Process.Pid); !strings.Contains(said, "failed to open") {
			t.Errorf("%s of the node opens: %s", file, said)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", node.Process.Pid))
	if err != nil || !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(limits) {
		t.Errorf("%v\n%s", err, limits)
	}
}
