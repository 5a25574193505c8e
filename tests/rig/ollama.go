package rig

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
)

// OllamaDirEnv names the directory that tests/conformance/ollama.sh has built a real Ollama into. Without it tests that need one are skipped.
const OllamaDirEnv = "FAIRWAY_OLLAMA_DIR"

// Ollama is a real Ollama with tiny deterministic models.
type Ollama struct {
	*Process
	URL string
	dir string
	env []string
}

// NewOllama starts a real Ollama on a free port. Env are further NAME=VALUE pairs; OLLAMA_MODELS among them is a store of its own, for
// tests that change it.
func NewOllama(t testing.TB, env ...string) *Ollama {
	t.Helper()
	dir := os.Getenv(OllamaDirEnv)
	if dir == "" {
		t.Skipf("%s is not set: build one with tests/conformance/ollama.sh", OllamaDirEnv)
	}
	o := &Ollama{dir: dir}
	host := fmt.Sprintf("127.0.0.1:%d", freeport.Get(t))
	o.URL = "http://" + host
	o.env = append([]string{
		"HOME=" + t.TempDir(), "OLLAMA_HOST=" + host, "OLLAMA_MODELS=" + filepath.Join(dir, "models"), "OLLAMA_NO_CLOUD=1", "OLLAMA_NOPRUNE=1",
	}, env...)
	o.Process = start(t, "ollama", o.env, filepath.Join(dir, "bin", "ollama"), "serve")
	Eventually(t, 20*time.Second, "ollama answers", func() bool {
		r, err := http.Get(o.URL + "/") //nolint:noctx // loopback
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
	return o
}

// CopyModels returns a copy of the model store, for a test that changes it.
func CopyModels(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(OllamaDirEnv)
	if dir == "" {
		t.Skipf("%s is not set: build one with tests/conformance/ollama.sh", OllamaDirEnv)
	}
	to := filepath.Join(t.TempDir(), "models")
	if err := os.CopyFS(to, os.DirFS(filepath.Join(dir, "models"))); err != nil {
		t.Fatal(err)
	}
	return to
}

// CLI runs the stock ollama command against a host and returns what it printed.
func CLI(t testing.TB, host string, args ...string) (string, error) {
	t.Helper()
	dir := os.Getenv(OllamaDirEnv)
	if dir == "" {
		t.Skipf("%s is not set: build one with tests/conformance/ollama.sh", OllamaDirEnv)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "ollama"), args...)
	cmd.Env = append(os.Environ(), "OLLAMA_HOST="+host, "HOME="+t.TempDir(), "OLLAMA_NOHISTORY=1", "TERM=dumb")
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
