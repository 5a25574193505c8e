package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// installClients puts the clients of clients/package-lock.json into the user's cache, once, and returns the script beside them.
func installClients(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing: install Node.js 20 or newer with npm", tool)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no cache folder: %v", err)
	}
	lock, err := os.ReadFile("clients/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "fairway", "clients-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(filepath.Join(dir, "complete")); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		part, err := os.MkdirTemp(filepath.Dir(dir), "clients-part-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(part)
		copyFiles(t, part, "package.json", "package-lock.json")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = part
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("npm ci: %v\n%s", err, out)
		}
		if err := os.WriteFile(filepath.Join(part, "complete"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(part, dir); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	// Node finds packages from where the script is.
	here := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(here, "node_modules")); err != nil {
		t.Fatal(err)
	}
	copyFiles(t, here, "package.json", "clients.mjs")
	return filepath.Join(here, "clients.mjs")
}

func copyFiles(t *testing.T, to string, names ...string) {
	t.Helper()
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join("clients", n))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, n), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// runClients returns what the script printed, by case, and the cases in order.
func runClients(t *testing.T, script string, args ...string) (names []string, lines map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{script}, args...)...)
	// Keys and addresses of the caller's own would change who is asked.
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); !strings.HasPrefix(name, "OPENAI_") && !strings.HasPrefix(name, "ANTHROPIC_") && !strings.HasPrefix(name, "OLLAMA_") && !strings.EqualFold(strings.TrimLeft(name, "htpsHTPS"), "_proxy") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node %v: %v\n%s\n%s", args, err, clip(string(out)), stderr.String())
	}
	lines = map[string]string{}
	for line := range strings.Lines(string(out)) {
		var c struct{ Name string }
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		names = append(names, c.Name)
		lines[c.Name] = strings.TrimSpace(line)
	}
	return names, lines
}

// The npm clients of Ollama, OpenAI and Anthropic see the same through a gateway with keys as they see directly.
func TestClients(t *testing.T) {
	p := commonPair(t)
	script := installClients(t)
	keyed := rig.NewGateway(t, rig.Options{})
	waitAdmin(t, keyed)
	keyed.NodeOf("n1", p.ollama.URL)
	waitNodeHas(t, keyed, "n1", "tiny:latest")
	runClients(t, script, p.ollama.URL) // warms prompt caches, which answers count
	names, direct := runClients(t, script, p.ollama.URL)
	_, via := runClients(t, script, keyed.URL(), rig.Key)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if direct[name] != via[name] {
				t.Errorf("direct\n%s\ngateway\n%s", clip(direct[name]), clip(via[name]))
			}
			if missing := strings.Contains(name, "missing") || strings.Contains(name, "bad "); missing != strings.Contains(via[name], `"failure"`) && missing {
				t.Errorf("no failure: %s", clip(via[name]))
			}
		})
	}
	t.Run("a wrong key", func(t *testing.T) {
		_, refused := runClients(t, script, keyed.URL(), "sk-wrong", "chat|list|responses stream|models|messages")
		for name, want := range map[string]string{
			"ollama chat": `"class":"ResponseError"`, "ollama chat stream": `"class":"ResponseError"`, "ollama list": `"class":"ResponseError"`,
			"openai chat": `"class":"AuthenticationError"`, "openai responses stream": `"class":"AuthenticationError"`, "openai models": `"class":"AuthenticationError"`,
			"anthropic messages": `"class":"AuthenticationError"`, "anthropic messages stream": `"class":"AuthenticationError"`,
		} {
			if !strings.Contains(refused[name], want) || !strings.Contains(refused[name], `"status":401`) {
				t.Errorf("%s", refused[name])
			}
		}
	})
}
