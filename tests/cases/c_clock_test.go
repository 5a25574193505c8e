package cases

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// skewed builds a node whose time.Now is off by the seconds in T_SKEW: Go's own package time with one line changed, by the compiler's overlay.
func skewed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go")
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const call = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	text := strings.Replace(string(src), call, call+"\tsec += skew\n", 1)
	if text == string(src) {
		t.Fatalf("%s of %s has no line to change: adapt this test", file, runtime.Version())
	}
	text += `
var skew = func() int64 {
	v, _ := syscall.Getenv("T_SKEW")
	n, sign := int64(0), int64(1)
	for _, c := range []byte(v) {
		if c == '-' {
			sign = -1
		} else {
			n = n*10 + int64(c-'0')
		}
	}
	return n * sign
}()
`
	text = strings.Replace(text, "import (", "import (\n\t\"syscall\"", 1)
	// Always the same content, so that Go's cache holds what it compiles to.
	patched, overlay, bin := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "fairway-node")
	replace, _ := json.Marshal(map[string]any{"Replace": map[string]string{file: patched}})
	for name, b := range map[string][]byte{patched: []byte(text), overlay: replace} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", bin, "github.com/fairway-edge/fairway/nodeclient/cmd/fairway-node")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// Not parallel: the first time, a third of the standard library is compiled. The rules by themselves, for every difference: internal/pki,
// TestCheckClock and TestVerifyPeerAccepts.
func TestC13_SkewedClocks(t *testing.T) {
	bin := skewed(t)
	g := newGateway(t, rig.Options{})
	t.Run("nodes", func(t *testing.T) {
		for _, skew := range []time.Duration{-90 * time.Second, 90 * time.Second, -15 * time.Minute, 15 * time.Minute} {
			t.Run(skew.String(), func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprintf("n%d", int(skew.Seconds())+10000)
				fake := fakeollama.Start(t, fakeollama.Options{Models: []string{name}})
				n := spawn(t, []string{fmt.Sprintf("T_SKEW=%d", int(skew.Seconds()))}, bin, "run", "--gateway", g.Addr(), "--token", g.JoinToken(name),
					"--state-dir", filepath.Join(t.TempDir(), "state"), "--ollama", fake.URL(), "--log-format", "json")
				rig.Eventually(t, 20*time.Second, "it is ready", func() bool { row := g.Node(name); return row != nil && row.State == "ready" })
				waitModel(t, g, name)
				if s, body := plain(t, g).ask("POST", "/api/chat", chat(name, "")); s != 200 {
					t.Errorf("%d %s", s, body)
				}
				var warned []string
				for line := range strings.Lines(n.log()) {
					if strings.Contains(line, "clocks") {
						warned = append(warned, line)
					}
				}
				if skew.Abs() < 5*time.Minute {
					if len(warned) != 0 {
						t.Errorf("warned: %v", warned)
					}
					return
				}
				if len(warned) != 1 {
					t.Fatalf("%d warnings: %s", len(warned), n.log())
				}
				var w struct{ Here, Gateway any }
				if err := json.Unmarshal([]byte(warned[0]), &w); err != nil || w.Here == nil || w.Gateway == nil || w.Here == w.Gateway {
					t.Errorf("not both clocks: %s", warned[0])
				}
			})
		}
	})
}
