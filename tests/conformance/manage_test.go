package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/tests/rig"
)

// managed is a pair whose gateway and node permit management.
func managed(t *testing.T) pair {
	t.Helper()
	needOllama(t)
	var allow []string
	for _, e := range []string{"POST:/api/pull", "POST:/api/push", "POST:/api/create", "POST:/api/copy", "DELETE:/api/delete", "HEAD:/api/blobs/*", "POST:/api/blobs/*"} {
		allow = append(allow, "--allow "+e)
	}
	return makePair(t, rig.Options{NoKey: true, Site: "\t\tmanage *\n"}, allow...)
}

// settledOutput is what a command printed, without progress and times.
func settledOutput(s string) string {
	ansi := regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]|[⠀-⣿] ?")
	var out []string
	for _, l := range strings.FieldsFunc(ansi.ReplaceAllString(s, ""), func(r rune) bool { return r == '\n' || r == '\r' }) {
		// Progress lines repeat, and how often depends on the moment.
		if l = strings.TrimSpace(l); l != "" && !slices.Contains(out, l) && !strings.HasPrefix(l, "copying file") {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

// Checks 86-90: the stock command manages one node by its path prefix and prints what it prints beside that node.
func TestManagementByCommand(t *testing.T) {
	t.Parallel()
	p := managed(t)
	alone := startOllama(t)
	prefix := strings.TrimPrefix(p.g.URL(), "http://") + "/n/n1"
	// A model file that the store does not have yet: its blob is asked for, and sent.
	dir := t.TempDir()
	gguf, err := os.ReadFile(filepath.Join(os.Getenv(rig.OllamaDirEnv), "models", "tiny.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(gguf, []byte("tiny"), []byte("tinz"), 1)
	if bytes.Equal(changed, gguf) {
		changed[len(changed)-1] ^= 1 // a weight
	}
	file := filepath.Join(dir, "Modelfile")
	if err := os.WriteFile(filepath.Join(dir, "m.gguf"), changed, 0o600); err != nil {
		t.Fatal(err)
	}
	modelfile := fmt.Sprintf("FROM %s\nTEMPLATE \"\"\"{{- range .Messages }}{{ .Content }}{{- end }}\"\"\"\nPARAMETER num_ctx 1024\n", filepath.Join(dir, "m.gguf"))
	if err := os.WriteFile(file, []byte(modelfile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"create", "made", "-f", file}, {"create", "made", "-f", file}, // again: the blob is there
		{"cp", "made", "made:copy"}, {"cp", "nope", "x"}, {"rm", "made:copy"}, {"rm", "nope"}, {"cp", "made", "kept"},
	} {
		d, derr := rig.CLI(t, strings.TrimPrefix(alone.URL, "http://"), args...)
		g, gerr := rig.CLI(t, prefix, args...)
		d, g = settledOutput(d), settledOutput(g)
		if args[0] == "create" { // which steps are drawn depends on the moment
			d, g = d[strings.LastIndex(d, "\n")+1:], g[strings.LastIndex(g, "\n")+1:]
		}
		if d != g || (derr == nil) != (gerr == nil) {
			t.Errorf("ollama %v\ndirect (%v):\n%s\ngateway (%v):\n%s", args, derr, d, gerr, g)
		}
	}
	digests := func(base string) (out []string) {
		for _, e := range tags(t, base) {
			out = append(out, e.Name+" "+e.Digest)
		}
		slices.Sort(out)
		return out
	}
	if d, g := digests(alone.URL), digests(p.ollama.URL); !slices.Equal(d, g) {
		t.Errorf("the stores differ:\n%v\n%v", d, g)
	}
	waitListed(t, p.g, "kept:latest")
	if a := ask(t, http.DefaultTransport, p.g.URL(), post("/api/chat", chat("kept", "hi", `,"stream":false`))); a.status != 200 || !strings.Contains(a.body, "fixed sentence") {
		t.Errorf("%d %s", a.status, a.body)
	}
	// The prefix serves everything else as well.
	for _, r := range []request{{method: "HEAD", path: "/n/n1/"}, get("/n/n1/api/tags"), get("/n/n1/api/version")} {
		if a := ask(t, http.DefaultTransport, p.g.URL(), r); a.status != 200 {
			t.Errorf("%s %s: %d %s", r.method, r.path, a.status, a.body)
		}
	}
}

// Checks 36, 86-89: the endpoints themselves, beside an Ollama that is asked the same.
func TestManagementEndpoints(t *testing.T) {
	t.Parallel()
	p := managed(t)
	alone := startOllama(t)
	sum := func(b []byte) string { h := sha256.Sum256(b); return "sha256:" + hex.EncodeToString(h[:]) }
	blob := []byte(strings.Repeat("blob", 1000))
	digest := sum(blob)
	nowhere := "http://127.0.0.1:1/a/b" // a registry that refuses connections
	storePath := regexp.MustCompile(`open /[^ ]*/models/`)
	for _, r := range []request{
		{method: "HEAD", path: "/api/blobs/" + digest},
		post("/api/blobs/"+digest, string(blob)),
		post("/api/blobs/"+digest, string(blob)),
		{method: "HEAD", path: "/api/blobs/" + digest},
		{method: "HEAD", path: "/api/blobs/nonsense"},
		post("/api/blobs/nonsense", "x"),
		post("/api/blobs/sha256:"+zeros, "another"),
		post("/api/create", `{"model":"m1","from":"tiny","system":"s"}`),
		post("/api/create", `{"model":"m2","from":"tiny","stream":false}`),
		post("/api/create", `{"name":"m3","from":"tiny","stream":false}`),
		post("/api/create", `{"model":"m4","files":{"x.gguf":"sha256:`+zeros+`"}}`),
		post("/api/create", `{"model":"a b","from":"tiny"}`),
		post("/api/copy", `{"source":"m1","destination":"m5"}`),
		post("/api/copy", `{"source":"nope","destination":"m6"}`),
		post("/api/copy", `{"source":"m1"}`),
		{method: "DELETE", path: "/api/delete", body: `{"model":"m1"}`},
		{method: "DELETE", path: "/api/delete", body: `{"name":"m2"}`},
		{method: "DELETE", path: "/api/delete", body: `{"model":"m1"}`},
		{method: "DELETE", path: "/api/delete", body: `{"model":"a b"}`},
		{method: "DELETE", path: "/api/delete", body: ``},
		// Pulls and pushes that fail: with a stream only after the 200, in the last line.
		post("/api/pull", `{"model":"`+nowhere+`","insecure":true}`),
		post("/api/pull", `{"name":"`+nowhere+`","insecure":true,"stream":false}`),
		post("/api/pull", `{"model":"a b"}`),
		post("/api/pull", `{}`),
		post("/api/push", `{"model":"nope/x","insecure":true}`),
		post("/api/push", `{"model":"nope/x","stream":false}`),
	} {
		d := ask(t, http.DefaultTransport, alone.URL, r)
		via := r
		via.path = "/n/n1" + r.path
		g := ask(t, http.DefaultTransport, p.g.URL(), via)
		d.body, g.body = storePath.ReplaceAllString(d.body, "open *"), storePath.ReplaceAllString(g.body, "open *")
		if diff := d.diff(g); diff != "" {
			t.Errorf("%s %s %s\n%s", r.method, r.path, clip(r.body), diff)
		}
		if r.path == "/api/pull" && strings.Contains(r.body, `"model":"http`) && (g.status != 200 || !regexp.MustCompile(`\{"error":"[^\n]*"\}\n$`).MatchString(g.body)) {
			t.Errorf("a failed pull: %d %s", g.status, g.body)
		}
	}
	// By header as by prefix; not without either, and not on a node that is not there.
	h := request{method: "HEAD", path: "/api/blobs/" + digest, header: []string{"X-Fairway-Node", "n1"}}
	if a := ask(t, http.DefaultTransport, p.g.URL(), h); a.status != 200 {
		t.Errorf("by header: %d", a.status)
	}
	for node, want := range map[string]int{"": 400, "n9": 503} {
		h.header = []string{"X-Fairway-Node", node}
		if a := ask(t, http.DefaultTransport, p.g.URL(), h); a.status != want {
			t.Errorf("node %q: %d", node, a.status)
		}
	}
}

// Check 87: a blob streams: neither gateway nor node holds it in memory.
func TestBlobStreams(t *testing.T) {
	t.Parallel()
	p := managed(t)
	const size = 128 << 20
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(pattern{}, size)); err != nil {
		t.Fatal(err)
	}
	before := []int{peak(t, p.g.Pid()), peak(t, p.node.Pid())}
	req, err := http.NewRequestWithContext(context.Background(), "POST", p.g.URL()+"/n/n1/api/blobs/sha256:"+hex.EncodeToString(h.Sum(nil)), io.LimitReader(pattern{}, size))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Expect", "100-continue")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 201 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	limit := 64 << 10
	if os.Getenv("FAIRWAY_RACE") != "" {
		limit *= 3 // the race detector's shadow memory
	}
	for i, pid := range []int{p.g.Pid(), p.node.Pid()} {
		if grown := peak(t, pid) - before[i]; grown > limit {
			t.Errorf("%s grew by %d KiB", []string{"the gateway", "the node"}[i], grown)
		}
	}
}

// pattern is an endless body.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// peak is the most memory that a process has had, in KiB.
func peak(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("no /proc: %v", err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// Check 86: by default nobody manages anything, in the family's shape, and no node hears of it.
func TestManagementIsOff(t *testing.T) {
	w := behind.of(t)
	for _, r := range []request{
		post("/api/pull", `{"model":"x"}`), post("/api/push", `{"model":"x"}`), post("/api/create", `{"model":"x","from":"t-echo"}`), post("/api/blobs/sha256:"+zeros, "x"),
		{method: "HEAD", path: "/api/blobs/sha256:" + zeros}, post("/api/copy", `{"source":"t-echo","destination":"x"}`),
		{method: "DELETE", path: "/api/delete", body: `{"model":"t-echo"}`}, post("/api/signout", ""), post("/api/me", ""),
		post("/api/experimental/web_search", `{"query":"x"}`), post("/api/experimental/web_fetch", `{"url":"x"}`), {method: "DELETE", path: "/api/user/keys/abc"},
	} {
		for _, prefix := range []string{"", "/n/n1"} {
			via := r
			via.path, via.header = prefix+r.path, []string{"X-Test-Id", t.Name()}
			a := ask(t, http.DefaultTransport, w.g.URL(), via)
			var v struct{ Error string }
			if want := 403; a.status != want {
				t.Errorf("%s %s: %d %s", r.method, via.path, a.status, a.body)
			}
			if r.method != "HEAD" && (json.Unmarshal([]byte(a.body), &v) != nil || v.Error == "") {
				t.Errorf("%s %s: %s", r.method, via.path, a.body)
			}
		}
	}
	if rs := w.seen(t.Name()); len(rs) != 0 {
		t.Errorf("reached the node: %+v", rs)
	}
}
