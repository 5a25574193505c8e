package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// llamaKey is what a llama.cpp server asks for here. No caller of the gateway knows it.
const llamaKey = "sk-llama-canary-51f0c7d2e9"

// llama is a llama.cpp server, which speaks OpenAI's API, and a gateway in front of it.
type llama struct {
	url  string
	g    *rig.Gateway
	node *rig.Node
	key  string // the file of the slot's value
	log  string // the file of the audit
}

// startLlama starts a llama.cpp server with the model "tiny" and returns its base URL.
func startLlama(t testing.TB, flags ...string) string {
	t.Helper()
	dir, port := os.Getenv(rig.OllamaDirEnv), strconv.Itoa(freeport.Get(t))
	run := func(args ...string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, "./ollama.sh", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ollama.sh %v: %w\n%s", args[:3], err, out)
		}
		return nil
	}
	if err := run(append([]string{"llama", dir, port}, flags...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := run("stop", dir, port); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(filepath.Join(dir, "run", port+".home"))
		_ = os.Remove(filepath.Join(dir, "run", port+".log"))
	})
	return "http://127.0.0.1:" + port
}

// makeLlama starts all three: the server behind a key, which is in a slot of the gateway and nowhere else.
func makeLlama(t testing.TB) llama {
	t.Helper()
	l := makeLlamaWith(t, llamaKey)
	waitNodeHas(t, l.g, "n1", "tiny")
	return l
}

// makeLlamaWith has another value in the slot than the server's key.
func makeLlamaWith(t testing.TB, value string) llama {
	t.Helper()
	dir := t.TempDir()
	l := llama{url: startLlama(t, "--api-key", llamaKey), key: filepath.Join(dir, "llama.key"), log: filepath.Join(dir, "audit.jsonl")}
	l.rekey(t, value)
	l.g = rig.NewGateway(t, rig.Options{Global: "\t\tslot llama {\n\t\t\tvalue {file." + l.key + "}\n\t\t}\n" +
		"\t\tprofile llama {\n\t\t\tadapter openai\n\t\t\ttarget llama\n\t\t\tslot llama\n\t\t}\n\t\taudit " + l.log + "\n"})
	l.node = l.g.NewNode("n1", "--ollama", "off", "--target", "llama=openai:"+l.url)
	return l
}

// rekey writes the slot's value.
func (l *llama) rekey(t testing.TB, key string) {
	t.Helper()
	if err := os.WriteFile(l.key, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

var commonLlama = &shared[llama]{make: makeLlama}

// both asks the server with its key, and the gateway with a caller's.
func (l *llama) both(t *testing.T, r request) (direct, gateway answer) {
	t.Helper()
	d, g := r, r
	d.header = append([]string{"Authorization", "Bearer " + llamaKey}, r.header...)
	g.header = append([]string{"Authorization", "Bearer " + rig.Key}, r.header...)
	direct, gateway = ask(t, http.DefaultTransport, l.url, d), ask(t, http.DefaultTransport, l.g.URL(), g)
	direct.plain()
	gateway.plain()
	return direct, gateway
}

var (
	// The server sends this header without a value; that it ends at the gateway is a listed difference.
	cors = regexp.MustCompile(`Access-Control-Allow-Origin: (; |$)`)
	// What the server measures, and its ids where they are no members of an object.
	measured = regexp.MustCompile(`"timings":\{[^}]*\}|(chatcmpl|resp|msg|rs)[-_][A-Za-z0-9]{32}`)
)

// plain blanks what differs between any two answers of a llama.cpp server.
func (a *answer) plain() {
	a.head, a.body = cors.ReplaceAllString(a.head, ""), measured.ReplaceAllString(a.body, "*")
}

// llamaRequests are what both are asked. All of them run: none is the gateway's to answer.
var llamaRequests = []request{
	post("/v1/chat/completions", chat("tiny", "hi", "")),
	post("/v1/chat/completions", chat("tiny", "hi", `,"stream":true`)),
	post("/v1/chat/completions", chat("tiny", "hi", `,"stream":true,"stream_options":{"include_usage":true}`)),
	post("/v1/chat/completions", chat("tiny", "#loop", `,"max_tokens":3,"temperature":0`)),
	post("/v1/chat/completions", chat("tiny", "hi", `,"logprobs":true,"top_logprobs":2`)),
	post("/v1/chat/completions", chat("tiny", strings.Repeat("word ", 40<<10), "")), // too long for the model, and more than one packet
	post("/v1/chat/completions", chat("tiny", "hi", `,"temperature":"hot"`)),
	post("/v1/completions", `{"model":"tiny","prompt":"hi"}`),
	post("/v1/completions", `{"model":"tiny","prompt":"hi","stream":true}`),
	post("/v1/embeddings", `{"model":"tiny","input":"a"}`), // it was not started for that, and says so
	post("/v1/responses", `{"model":"tiny","input":"hi"}`),
	post("/v1/responses", `{"model":"tiny","input":"hi","stream":true}`),
	post("/v1/messages", `{"model":"tiny","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`),
	post("/v1/messages", `{"model":"tiny","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hi"}]}`),
	// What Ollama has not.
	post("/v1/messages/count_tokens", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`),
	post("/v1/rerank", `{"model":"tiny","query":"a","documents":["b"]}`),
}

// A llama.cpp server behind a key gives callers who do not know the key the same bytes as somebody who does.
func TestLlamaSameAnswers(t *testing.T) {
	needOllama(t)
	l := commonLlama.of(t)
	for i, r := range llamaRequests {
		t.Run(fmt.Sprint(i, r.path), func(t *testing.T) {
			l.both(t, r) // warms the prompt's cache, which answers count
			d, g := l.both(t, r)
			if diff := d.diff(g); diff != "" {
				t.Errorf("%s %s\n%s", r.path, clip(r.body), diff)
			}
			if g.raw.Get("X-Fairway-Run") == "" || g.raw.Get("X-Fairway-Error") != "" {
				t.Errorf("%v", g.raw)
			}
		})
	}
	t.Run("without its key it answers nobody", func(t *testing.T) {
		for _, header := range [][]string{nil, {"Authorization", "Bearer " + rig.Key}} {
			a := ask(t, http.DefaultTransport, l.url, request{method: "POST", path: "/v1/chat/completions", body: chat("tiny", "hi", ""), header: header})
			if a.status != http.StatusUnauthorized {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	})
}

// Such a server lists its models only for its key, which its node does not have: the gateway asks. Every list shows them, and the native endpoints
// say where they are served.
func TestLlamaInventory(t *testing.T) {
	needOllama(t)
	l := commonLlama.of(t)
	asked := func(method, path, body string) (int, string) {
		t.Helper()
		r, text := l.g.Do(method, path, body)
		return r.StatusCode, text
	}
	if status, body := asked("GET", "/v1/models", ""); status != 200 || !strings.Contains(body, `"id":"tiny"`) || strings.Count(body, `"id"`) != 1 || !strings.Contains(body, `"owned_by":"llamacpp"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := asked("GET", "/v1/models/tiny", ""); status != 200 || !strings.Contains(body, `"id":"tiny"`) {
		t.Errorf("%d %s", status, body)
	}
	var tags struct {
		Models []struct {
			Name    string
			Details struct{ Family string }
		}
	}
	if _, body := asked("GET", "/api/tags", ""); json.Unmarshal([]byte(body), &tags) != nil || len(tags.Models) != 1 || tags.Models[0].Name != "tiny" || tags.Models[0].Details.Family != "openai" {
		t.Errorf("%+v", tags)
	}
	for path, body := range map[string]string{
		"/api/chat": chat("tiny", "hi", ""), "/api/generate": `{"model":"tiny","prompt":"hi"}`, "/api/embed": `{"model":"tiny","input":"a"}`, "/api/show": `{"model":"tiny"}`,
	} {
		status, got := asked("POST", path, body)
		var v struct{ Error string }
		if json.Unmarshal([]byte(got), &v) != nil || status != 400 || !strings.HasPrefix(v.Error, `model "tiny" is served by an OpenAI-compatible provider: use /v1/`) {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	// The server would answer under any name; here a name that nobody lists is nobody's.
	if status, body := asked("POST", "/v1/chat/completions", chat("nope", "hi", "")); status != 404 || !strings.Contains(body, `model 'nope' not found`) {
		t.Errorf("%d %s", status, body)
	}
}

// OpenAI's npm client sees the same through the gateway, with a key of the gateway's, as directly with the server's.
func TestLlamaClient(t *testing.T) {
	needOllama(t)
	l := commonLlama.of(t)
	const cases = "openai (chat|chat stream|completions|completions stream|responses|responses stream)$"
	script := installClients(t)
	runClients(t, script, l.url, llamaKey, cases) // warms prompt caches, which answers count
	names, direct := runClients(t, script, l.url, llamaKey, cases)
	_, via := runClients(t, script, l.g.URL(), rig.Key, cases)
	if len(names) != 6 {
		t.Errorf("the cases are %q", names)
	}
	for _, name := range names {
		if d, g := measured.ReplaceAllString(direct[name], "*"), measured.ReplaceAllString(via[name], "*"); d != g || strings.Contains(d, `"failure"`) {
			t.Errorf("direct\n%s\ngateway\n%s", clip(d), clip(g))
		}
	}
	_, listed := runClients(t, script, l.g.URL(), rig.Key, "openai models?$")
	for _, name := range []string{"openai models", "openai model"} {
		if !strings.Contains(listed[name], `"object":"model"`) || !strings.Contains(listed[name], `"owned_by":"llamacpp"`) {
			t.Errorf("%s", listed[name])
		}
	}
	_, missing := runClients(t, script, l.g.URL(), rig.Key, "openai missing$")
	if !strings.Contains(missing["openai missing"], `"class":"NotFoundError"`) {
		t.Errorf("%s", missing["openai missing"])
	}
}

// Who has the provider's key is the gateway alone: not the caller, not the log, not the node's files. What it was used for is in the audit.
func TestLlamaKeyStaysHidden(t *testing.T) {
	needOllama(t)
	l := commonLlama.of(t)
	r, body := l.g.Do("POST", "/v1/chat/completions", chat("tiny", "hi", ""))
	if r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, body)
	}
	run := r.Header.Get("X-Fairway-Run")
	var events []string
	rig.Eventually(t, 5*time.Second, "the audit has the run's three steps", func() bool {
		text, err := os.ReadFile(l.log)
		if err != nil {
			t.Fatal(err)
		}
		events = nil
		for line := range strings.Lines(string(text)) {
			var rec struct {
				Event, Principal, Slot, Node, Target, Origin string
				Run                                          string `json:"run_id"`
				Version                                      uint64 `json:"slot_version"`
			}
			if err := json.Unmarshal([]byte(line), &rec); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if rec.Run != run {
				continue
			}
			events = append(events, rec.Event)
			if rec.Principal != "alice" || rec.Slot != "llama" || rec.Node != "n1" || rec.Target != "llama" || rec.Origin != l.url || rec.Version == 0 {
				t.Errorf("%s", line)
			}
		}
		return strings.Join(events, " ") == "issued opened ended"
	})
	places := map[string]string{"the gateway's log": l.g.Log(), "the node's log": l.node.Log()}
	for _, dir := range []string{filepath.Join(l.g.Dir, "config"), filepath.Join(l.g.Dir, "storage"), l.node.Dir, filepath.Dir(l.log)} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || path == l.key {
				return err
			}
			text, err := os.ReadFile(path)
			places[path] = string(text)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, cmd := range [][]string{{"status"}, {"nodes"}, {"routes"}, {"runs"}, {"leases"}} {
		places[cmd[0]] = l.g.Fairway(append(cmd, "--json")...)
	}
	if _, ok := places[filepath.Join(l.g.Dir, "config", "caddy", "autosave.json")]; !ok {
		t.Error("there is no saved configuration to look into")
	}
	for where, text := range places {
		if strings.Contains(text, llamaKey) {
			t.Errorf("%s holds the provider's key", where)
		}
	}
}

// A provider that refuses its key says so itself: its 401 passes as it is, without a code of the gateway's, and nobody else is asked. With the right
// value back, by a reload, it works again.
func TestLlamaWrongKey(t *testing.T) {
	needOllama(t)
	l := makeLlama(t)
	r := post("/v1/chat/completions", chat("tiny", "hi", ""))
	l.rekey(t, "sk-not-this-one")
	if err := l.g.Reload(); err != nil {
		t.Fatal(err)
	}
	_, g := l.both(t, r)
	wrong := ask(t, http.DefaultTransport, l.url, request{method: r.method, path: r.path, body: r.body, header: []string{"Authorization", "Bearer sk-not-this-one"}})
	wrong.plain()
	if diff := wrong.diff(g); diff != "" || g.status != http.StatusUnauthorized || g.raw.Get("X-Fairway-Error") != "" {
		t.Errorf("%v\n%s", g.raw, diff)
	}
	if script := installClients(t); script != "" {
		_, lines := runClients(t, script, l.g.URL(), rig.Key, "openai chat$")
		if line := lines["openai chat"]; !strings.Contains(line, `"class":"AuthenticationError"`) || !strings.Contains(line, "Invalid API Key") {
			t.Error(line)
		}
	}
	l.rekey(t, llamaKey)
	if err := l.g.Reload(); err != nil {
		t.Fatal(err)
	}
	if d, g := l.both(t, r); g.status != 200 || d.status != 200 {
		t.Errorf("%d %s", g.status, g.body)
	}
}

// With a wrong value from the start nobody learns what the server has: the gateway's log says why, callers hear of no such model. The right value needs
// no more than a reload.
func TestLlamaWrongKeyFromTheStart(t *testing.T) {
	needOllama(t)
	l := makeLlamaWith(t, "sk-not-this-one")
	rig.Eventually(t, 10*time.Second, "the log says which slot", func() bool {
		return strings.Contains(l.g.Log(), "the provider answers 401: it does not take the credential in slot llama")
	})
	if r, body := l.g.Do("POST", "/v1/chat/completions", chat("tiny", "hi", "")); r.StatusCode != 404 || r.Header.Get("X-Fairway-Error") != "no_such_model" {
		t.Errorf("%d %v %s", r.StatusCode, r.Header, body)
	}
	l.rekey(t, llamaKey)
	if err := l.g.Reload(); err != nil {
		t.Fatal(err)
	}
	waitNodeHas(t, l.g, "n1", "tiny")
}

// What README says of a revoked slot, on a real server.
func TestLlamaRevoked(t *testing.T) {
	needOllama(t)
	l := makeLlama(t)
	chats := func() (*http.Response, string) { return l.g.Do("POST", "/v1/chat/completions", chat("tiny", "hi", "")) }
	l.g.Fairway("revoke", "--slot", "llama")
	r, body := chats()
	var v struct {
		Error struct{ Type, Code, Message string }
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil || r.StatusCode != 403 || r.Header.Get("X-Fairway-Error") != "credential_denied" || v.Error.Code != "credential_denied" {
		t.Errorf("%d %v %s", r.StatusCode, r.Header, body)
	}
	if got, want := l.g.Fairway("revocations"), "slot:llama"; !strings.Contains(got, want) {
		t.Errorf("%s", got)
	}
	l.g.Fairway("revoke", "--slot", "llama", "--undo")
	if r, body := chats(); r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, body)
	}
}

// A llama.cpp server without a key is a target like any other: no slot, no lease, and its node lists it.
func TestLlamaOpen(t *testing.T) {
	needOllama(t)
	url := startLlama(t)
	g := rig.NewGateway(t, rig.Options{Global: "\t\tprofile llama {\n\t\t\tadapter openai\n\t\t\ttarget llama\n\t\t}\n"})
	g.NewNode("n1", "--ollama", "off", "--target", "llama=openai:"+url)
	waitNodeHas(t, g, "n1", "tiny")
	for _, r := range llamaRequests[:3] {
		l := llama{url: url, g: g}
		l.both(t, r)
		d, via := l.both(t, r)
		if diff := d.diff(via); diff != "" {
			t.Errorf("%s %s\n%s", r.path, clip(r.body), diff)
		}
	}
	if n := g.Metric("fairway_leases_total"); n != 0 {
		t.Errorf("%v leases without a slot", n)
	}
	if out := g.Fairway("nodes"); !strings.Contains(out, "llama") {
		t.Errorf("%s", out)
	}
}
