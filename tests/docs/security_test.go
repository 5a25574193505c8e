package docs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// A claim is worth what its command checks: each `go test` line names a package that is there, and a test in it.
func TestCheckCommands(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`go test ([^` + "`" + `\n]*?)(\./[\w./-]+)`)
	pattern := regexp.MustCompile(`-(?:run|bench) (?:'([^']+)'|(\S+))`)
	seen := 0
	for _, page := range pages(t) {
		for _, m := range command.FindAllStringSubmatch(read(t, page), -1) {
			have := testsOf(t, m[2])
			for _, p := range pattern.FindAllStringSubmatch(m[1], -1) {
				for alternative := range strings.SplitSeq(p[1]+p[2], "|") {
					first, _, _ := strings.Cut(alternative, "/")
					if first == "^$" {
						continue // none, beside a -bench
					}
					re, err := regexp.Compile(first)
					if err != nil {
						t.Errorf("%s: %s: %v", page, m[0], err)
						continue
					}
					if seen++; !slices.ContainsFunc(have, re.MatchString) {
						t.Errorf("%s: %s has no test %s", page, m[2], first)
					}
				}
			}
		}
	}
	if seen < 25 {
		t.Errorf("only %d tests are named; is the pattern right?", seen)
	}
}

// testsOf lists the tests and benchmarks of the package in a folder.
func testsOf(t *testing.T, folder string) (out []string) {
	t.Helper()
	files, err := fs.Glob(os.DirFS(root(t)), strings.TrimPrefix(folder, "./")+"/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`).FindAllStringSubmatch(read(t, f), -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// TestLeaseCodes compares the codes and classes of security.md with those of the code.
func TestLeaseCodes(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/security.md")
	checks := section(t, page, "### Checks and codes")
	real := find(read(t, "lease/lease.go"), `= "(lease_[a-z_]+)"`)
	for _, c := range find(read(t, "caddymodule/internal/gateway/lease.go"), `"(lease_[a-z_]+)"`) {
		if !slices.Contains(real, c) {
			real = append(real, c)
		}
	}
	if len(real) < 18 {
		t.Fatalf("only %v were found", real)
	}
	compare(t, "docs/security.md", "the code", find(checks, "`(lease_[a-z_]+)`"), real)
	compare(t, "docs/security.md", "lease.go", find(checks, "(?m)^\\| `(credential_[a-z]+)` \\|"), find(read(t, "lease/lease.go"), `Class = "([a-z_]+)"`))
}

// section returns a page's text from a heading to the next of its rank or above.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("there is no %q", heading)
	}
	rank, _, _ := strings.Cut(heading, " ")
	if m := regexp.MustCompile(`(?m)^#{1,` + strconv.Itoa(len(rank)) + `} `).FindStringIndex(rest); m != nil {
		rest = rest[:m[0]]
	}
	return rest
}

// keyedProvider is an OpenAI-compatible server that does nothing without its key.
type keyedProvider struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []string // guarded by mu; those that it takes
	served  int      // guarded by mu; chats
	refused []string // guarded by mu; Authorization of what it refused
}

func newKeyedProvider(t *testing.T, model string, keys ...string) *keyedProvider {
	t.Helper()
	p := &keyedProvider{keys: keys}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := r.Header.Get("Authorization")
		p.mu.Lock()
		defer p.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if !slices.ContainsFunc(p.keys, func(k string) bool { return shown == "Bearer "+k }) {
			if shown != "" {
				p.refused = append(p.refused, shown)
			}
			http.Error(w, `{"error":{"message":"invalid key"}}`, http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/v1/models":
			_, _ = fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","created":1,"owned_by":"test"}]}`, model)
		case "/v1/chat/completions":
			p.served++
			_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// TestVLLMBehindAKey does what README says of one, on ports of its own, with a rotation between, and asks security.md's questions of the audit.
func TestVLLMBehindAKey(t *testing.T) {
	t.Parallel()
	bins := rig.Build(t)
	readme := section(t, read(t, "README.md"), "## A vLLM behind a key")
	example := regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindStringSubmatch(readme)
	line := regexp.MustCompile(`(?m)^fairway-node (run .*)$`).FindStringSubmatch(readme)
	curl := regexp.MustCompile(`(?m)^curl https://ai\.example\.com(/\S+) -H "Authorization: Bearer \$FAIRWAY_KEY" \\\n  -d '(.+)'$`).FindStringSubmatch(readme)
	revoke := regexp.MustCompile(`(?m)^bin/caddy fairway (revoke .*)$`).FindAllStringSubmatch(readme, -1)
	if example == nil || line == nil || curl == nil || len(revoke) != 2 {
		t.Fatal("README's section has not the lines that this test runs")
	}
	var asked struct{ Model string }
	if err := json.Unmarshal([]byte(curl[2]), &asked); err != nil {
		t.Fatal(err)
	}
	const caller, first, second = "fw_example-key-of-a-test-0123456789abcdef", "sk-first-0123456789abcdef", "sk-second-0123456789abcdef"
	provider := newKeyedProvider(t, asked.Model, first, second)
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("alice.key", caller+"\n")
	write("vllm.key", first+"\n")
	web, udp, admin := strconv.Itoa(freeport.Get(t)), strconv.Itoa(freeport.Get(t)), "127.0.0.1:"+strconv.Itoa(freeport.Get(t))
	audit := filepath.Join(dir, "audit.jsonl")
	// Ports, the admin address and the audit are not the example's business, nor is a certificate for its name.
	write("Caddyfile", strings.NewReplacer("/etc/fairway", dir, ":4433", "127.0.0.1:"+udp, "ai.example.com {\n", "http://:"+web+" {\n\tbind 127.0.0.1\n",
		"{\n\tfairway {\n", "{\n\tadmin "+admin+"\n\tfairway {\n\t\taudit "+audit+"\n").Replace(example[1]))
	env := append(os.Environ(), "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_STATE_HOME="+dir, "HOME="+dir)
	gateway := start(t, env, bins.Caddy, "run", "--config", filepath.Join(dir, "Caddyfile"))
	caddy := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), bins.Caddy, append(args, "--address", admin)...)
		cmd.Env = env
		out, err := cmd.Output()
		return string(out), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := caddy(args...)
		if err != nil {
			t.Fatalf("caddy %v: %v", args, err)
		}
		return out
	}
	var token string
	rig.Eventually(t, 20*time.Second, "the gateway gives a token", func() bool {
		gateway.alive(t)
		out, err := caddy("fairway", "token", "--node", "workstation")
		token = strings.TrimSpace(out)
		return err == nil
	})
	args := strings.Fields(strings.NewReplacer("ai.example.com:4433", "127.0.0.1:"+udp, "http://127.0.0.1:8000", provider.URL).Replace(line[1]))
	node := start(t, env, bins.Node, append(args, "--token", strings.Fields(token)[0], "--ollama", "off")...)

	chat := func() (int, string, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+web+curl[1], strings.NewReader(curl[2]))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+caller)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("X-Fairway-Error"), string(body)
	}
	rig.Eventually(t, 30*time.Second, "README's request is answered", func() bool {
		node.alive(t)
		status, _, body := chat()
		return status == 200 && strings.Contains(body, `"content":"hello"`)
	})
	write("vllm.key", second+"\n")
	must("reload", "--force", "--config", filepath.Join(dir, "Caddyfile"))
	if status, code, body := chat(); status != 200 {
		t.Errorf("with another key: %d %s %s", status, code, body)
	}
	must(strings.Fields("fairway " + revoke[0][1])...)
	if status, code, body := chat(); status != 403 || code != "credential_denied" {
		t.Errorf("revoked: %d %s %s", status, code, body)
	}
	must(strings.Fields("fairway " + revoke[1][1])...)
	if status, code, body := chat(); status != 200 {
		t.Errorf("undone: %d %s %s", status, code, body)
	}
	provider.mu.Lock()
	if provider.served != 3 || len(provider.refused) > 0 {
		t.Errorf("the provider served %d and refused %q", provider.served, provider.refused)
	}
	provider.mu.Unlock()
	text, err := os.ReadFile(audit)
	if err != nil || bytes.Contains(text, []byte(first)) || bytes.Contains(text, []byte(second)) || bytes.Contains(text, []byte(caller)) {
		t.Errorf("the audit holds a key, or %v", err)
	}
	askAudit(t, audit)
}

// auditLine is what the questions of security.md are about.
type auditLine struct {
	Time, Event, Slot, Node, Principal, Code string
	Version                                  json.Number `json:"slot_version"`
	Run                                      string      `json:"run_id"`
	Subjects                                 []string
}

// askAudit answers security.md's questions of an audit with Go, holds that they tell of two versions, one node, alice, and a revocation that was taken back, and that the page's
// jq lines say the same where there is a jq.
func askAudit(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []auditLine
	for raw := range strings.Lines(string(text)) {
		var l auditLine
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		lines = append(lines, l)
	}
	var uses, revocations, totals, refusals []string
	count, last := map[string]int{}, map[string]string{}
	for _, l := range lines {
		switch l.Event {
		case "opened":
			uses = append(uses, strings.Join([]string{l.Time, l.Slot, l.Version.String(), l.Node, l.Principal, l.Run}, "\t"))
			who := strings.Join([]string{l.Slot, l.Version.String(), l.Node, l.Principal}, "\t")
			count[who]++
			last[who] = l.Time
		case "refused":
			refusals = append(refusals, strings.Join([]string{l.Time, l.Code, l.Slot, l.Node, l.Principal, l.Run}, "\t"))
		case "revoked", "restored":
			revocations = append(revocations, strings.Join(append([]string{l.Time, l.Event}, l.Subjects...), "\t"))
		}
	}
	for who, n := range count {
		totals = append(totals, who+"\t"+strconv.Itoa(n)+"\t"+last[who])
	}
	slices.SortFunc(totals, func(a, b string) int { // as jq groups: the version is a number
		x, y := strings.Split(a, "\t"), strings.Split(b, "\t")
		return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(len(x[1]), len(y[1])), slices.Compare(x, y))
	})
	alices := slices.DeleteFunc(slices.Clone(totals), func(l string) bool { return !strings.Contains(l, "\tworkstation\talice\t") })
	if len(alices) != 2 || !strings.Contains(alices[0], "\t1\t") || !strings.Contains(alices[1], "\t2\t") {
		t.Errorf("alice's uses are %q", alices)
	}
	if len(revocations) != 2 || !strings.HasSuffix(revocations[0], "\trevoked\tslot:vllm") || !strings.HasSuffix(revocations[1], "\trestored\tslot:vllm") {
		t.Errorf("the revocations are %q", revocations)
	}
	if !slices.ContainsFunc(refusals, func(l string) bool { return strings.Contains(l, "\tlease_revoked\tvllm\tworkstation\talice\t") }) {
		t.Errorf("the refusals are %q", refusals)
	}
	questions := regexp.MustCompile("(?m)^jq .*$").FindAllString(section(t, read(t, "docs/security.md"), "## Which node used what, for whom, and when was it revoked"), -1)
	answers := [][]string{uses, revocations, totals, refusals}
	if len(questions) != len(answers) {
		t.Fatalf("the page has %d questions, this test %d", len(questions), len(answers))
	}
	if _, err := exec.LookPath("jq"); err != nil {
		t.Log("there is no jq: the questions were answered by this test alone")
		return
	}
	for i, q := range questions {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		out, err := exec.CommandContext(ctx, "bash", "-c", strings.ReplaceAll(q, "/var/lib/fairway/audit.jsonl", file)).CombinedOutput()
		cancel()
		if got, want := strings.TrimSpace(string(out)), strings.Join(answers[i], "\n"); err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", q, err, got, want)
		}
	}
}
