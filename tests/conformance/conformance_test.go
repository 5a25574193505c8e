// Package conformance sends the same requests to a real Ollama directly and through the gateway, and holds the answers equal. CHECKS.md tells
// which test covers which check.
package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// requests are what both are asked. The order matters where one loads what the next lists.
var requests = []request{
	{name: "generate", method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"hi"}`, tests: "11 16 17 18"},
	{name: "generate stream null", method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"hi","stream":null}`, tests: "12"},
	{name: "generate no stream", method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"hi","stream":false}`, tests: "13"},
	{name: "chat", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`, tests: "14"},
	{name: "chat no stream", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":false}`, tests: "14"},
	{name: "length", method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"#loop","options":{"num_predict":3}}`, tests: "19"},
	{name: "stop", method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"hi","options":{"stop":["node"]}}`, tests: "20"},
	{name: "load", method: "POST", path: "/api/generate", body: `{"model":"tiny"}`, tests: "21"},
	{name: "chat load", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[]}`, tests: "23"},
	{name: "think", method: "POST", path: "/api/chat", body: `{"model":"tiny-tools","messages":[{"role":"user","content":"#think"}],"think":true}`, tests: "24"},
	{name: "tools", method: "POST", path: "/api/chat", body: `{"model":"tiny-tools","messages":[{"role":"user","content":"#tool"}],"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]}`, tests: "25"},
	{name: "logprobs", method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"hi","stream":false,"logprobs":true,"top_logprobs":2}`, tests: "26"},
	{name: "utf8", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[{"role":"user","content":"#utf8"}]}`, tests: "27"},
	{name: "format json", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[{"role":"user","content":"#json"}],"format":"json","stream":false}`, tests: "28"},
	{name: "embed", method: "POST", path: "/api/embed", body: `{"model":"tiny-embed","input":"a"}`, tests: "30"},
	{name: "embed list", method: "POST", path: "/api/embed", body: `{"model":"tiny-embed","input":["a","b"]}`, tests: "30"},
	{name: "embed empty", method: "POST", path: "/api/embed", body: `{"model":"tiny-embed","input":""}`, tests: "30"},
	{name: "embeddings", method: "POST", path: "/api/embeddings", body: `{"model":"tiny-embed","prompt":"a"}`, tests: "31"},
	{name: "name upper", method: "POST", path: "/api/generate", body: `{"model":"TINY","prompt":"hi","stream":false}`, tests: "32"},
	{name: "name full", method: "POST", path: "/api/generate", body: `{"model":"registry.ollama.ai/library/tiny:latest","prompt":"hi","stream":false}`, tests: "32"},
	{name: "name spaces", method: "POST", path: "/api/generate", body: `{"model":" tiny ","prompt":"hi","stream":false}`, tests: "32"},
	{name: "name local", method: "POST", path: "/api/generate", body: `{"model":"tiny:local","prompt":"hi","stream":false}`, tests: "32"},
	{name: "bad name", method: "POST", path: "/api/generate", body: `{"model":"a b","prompt":"hi"}`, tests: "34"},
	{name: "bad name tag", method: "POST", path: "/api/chat", body: `{"model":"tiny:","messages":[]}`, tests: "34"},
	{name: "missing, generate", method: "POST", path: "/api/generate", body: `{"model":"nope","prompt":"hi"}`, tests: "35"},
	{name: "missing, chat", method: "POST", path: "/api/chat", body: `{"model":"nope","messages":[]}`, tests: "35"},
	{name: "missing, embed", method: "POST", path: "/api/embed", body: `{"model":"nope","input":"a"}`, tests: "35"},
	{name: "missing, show", method: "POST", path: "/api/show", body: `{"model":"nope"}`, tests: "35"},
	{name: "missing, v1", method: "POST", path: "/v1/chat/completions", body: `{"model":"nope","messages":[{"role":"user","content":"a"}]}`, tests: "35"},
	{name: "missing, messages", method: "POST", path: "/v1/messages", body: `{"model":"nope","max_tokens":5,"messages":[{"role":"user","content":"a"}]}`, tests: "35 57"},
	{name: "missing, v1 completions", method: "POST", path: "/v1/completions", body: `{"model":"nope","prompt":"a"}`, tests: "35"},
	{name: "missing, v1 embeddings", method: "POST", path: "/v1/embeddings", body: `{"model":"nope","input":"a"}`, tests: "35"},
	{name: "no model, v1", method: "POST", path: "/v1/chat/completions", body: `{"messages":[{"role":"user","content":"a"}]}`, tests: "35"},
	{name: "no model, messages", method: "POST", path: "/v1/messages", body: `{"max_tokens":5,"messages":[{"role":"user","content":"a"}]}`, tests: "35"},
	{name: "bad json, messages", method: "POST", path: "/v1/messages", body: `{`, tests: "46"},
	{name: "no model, generate", method: "POST", path: "/api/generate", body: `{}`, tests: "35"},
	{name: "no model, chat", method: "POST", path: "/api/chat", body: `{}`, tests: "35"},
	{name: "MODEL key", method: "POST", path: "/api/generate", body: `{"MODEL":"tiny","prompt":"hi","stream":false}`, tests: "37"},
	{name: "v1 chat", method: "POST", path: "/v1/chat/completions", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`, tests: "39"},
	{name: "v1 chat stream", method: "POST", path: "/v1/chat/completions", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true}`, tests: "40 42"},
	{name: "v1 chat usage", method: "POST", path: "/v1/chat/completions", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`, tests: "41"},
	{name: "v1 tools stream", method: "POST", path: "/v1/chat/completions", body: `{"model":"tiny-tools","messages":[{"role":"user","content":"#tool"}],"stream":true,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]}`, tests: "43"},
	{name: "v1 reasoning", method: "POST", path: "/v1/chat/completions", body: `{"model":"tiny-tools","messages":[{"role":"user","content":"#think"}]}`, tests: "44"},
	{name: "v1 no messages", method: "POST", path: "/v1/chat/completions", body: `{"model":"tiny","messages":[]}`, tests: "45"},
	{name: "v1 bad json", method: "POST", path: "/v1/chat/completions", body: `{`, tests: "46"},
	{name: "v1 completions", method: "POST", path: "/v1/completions", body: `{"model":"tiny","prompt":"hi","stream":true}`, tests: "47"},
	{name: "v1 embeddings", method: "POST", path: "/v1/embeddings", body: `{"model":"tiny-embed","input":"a"}`, tests: "48"},
	{name: "v1 embeddings base64", method: "POST", path: "/v1/embeddings", body: `{"model":"tiny-embed","input":"a","encoding_format":"base64"}`, tests: "48"},
	{name: "responses", method: "POST", path: "/v1/responses", body: `{"model":"tiny","input":"hi"}`, tests: "49"},
	{name: "responses stream", method: "POST", path: "/v1/responses", body: `{"model":"tiny","input":"hi","stream":true}`, tests: "49"},
	{name: "responses missing", method: "POST", path: "/v1/responses", body: `{"model":"nope","input":"hi","stream":true}`, tests: "50"},
	{name: "messages", method: "POST", path: "/v1/messages", body: `{"model":"tiny","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`, tests: "51"},
	{name: "messages stream", method: "POST", path: "/v1/messages", body: `{"model":"tiny","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, tests: "52"},
	{name: "messages tool", method: "POST", path: "/v1/messages", body: `{"model":"tiny-tools","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"#tool"}],"tools":[{"name":"get_weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}]}`, tests: "53"},
	{name: "messages no max_tokens", method: "POST", path: "/v1/messages", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`, tests: "54"},
	{name: "messages beta", method: "POST", path: "/v1/messages?beta=true", body: `{"model":"tiny","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`, tests: "55"},
	{name: "text/plain", method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"hi","stream":false}`, header: []string{"Content-Type", "text/plain"}, tests: "78"},
	{name: "tags", method: "GET", path: "/api/tags", tests: "4"},
	{name: "tags HEAD", method: "HEAD", path: "/api/tags", tests: "5"},
	{name: "v1 models", method: "GET", path: "/v1/models", tests: "7"},
	{name: "v1 model", method: "GET", path: "/v1/models/tiny", tests: "8"},
	{name: "v1 model missing", method: "GET", path: "/v1/models/nope", tests: "9"},
	{name: "root", method: "GET", path: "/", tests: "2"},
	{name: "root HEAD", method: "HEAD", path: "/", tests: "1"},
	{name: "version", method: "GET", path: "/api/version", tests: "3"},
	{name: "unknown", method: "GET", path: "/nothing", tests: "71"},
	{name: "wrong method", method: "GET", path: "/api/chat", tests: "71"},
	{name: "empty body", method: "POST", path: "/api/chat", body: ``, tests: "46"},
	{name: "an array", method: "POST", path: "/api/chat", body: `[]`, tests: "46"},
	{name: "stream a string", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[],"stream":"false"}`, tests: "46"},
	{name: "keep_alive bool", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"keep_alive":true}`, tests: "46"},
	{name: "no such capability", method: "POST", path: "/api/chat", body: `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"think":true}`, tests: "35"},
	{name: "embed on a chat model", method: "POST", path: "/api/embed", body: `{"model":"tiny","input":"a"}`, tests: "35"},
}

// different are the answers that docs/conformance.md lists as different, by the request's name: what the gateway says instead.
var different = map[string]string{}

func TestSameAnswersDirectAndThroughTheGateway(t *testing.T) {
	p := commonPair(t)
	for _, r := range requests {
		t.Run(r.name, func(t *testing.T) {
			// Once before, so that both find the model loaded and the prompt cached.
			if r.method == "POST" {
				ask(t, http.DefaultTransport, p.ollama.URL, r)
			}
			d, g := p.both(t, r)
			if want, ok := different[r.name]; ok {
				if got := fmt.Sprintf("%d %s", g.status, g.body); !strings.HasPrefix(got, want) {
					t.Errorf("checks %s: %s", r.tests, got)
				}
				return
			}
			if diff := d.diff(g); diff != "" {
				t.Errorf("checks %s\n%s", r.tests, diff)
			}
			if g.raw.Get("X-Fairway-Run") == "" {
				t.Error("no X-Fairway-Run")
			}
		})
	}
}

// Checks 36 and 83, and section 7 on /api/show: PARAMETER lines come in Go's map order.
func TestShow(t *testing.T) {
	p := commonPair(t)
	for _, body := range []string{`{"model":"tiny"}`, `{"name":"tiny"}`, `{"model":"tiny-tools","verbose":true}`, `{"name":"nope","model":"tiny"}`, `{"model":"tiny-embed"}`} {
		for _, agent := range []string{"GitHubCopilotChat/1", "curl/8"} {
			d, g := p.both(t, request{method: "POST", path: "/api/show", body: body, header: []string{"User-Agent", agent}})
			if shape(t, d.body) != shape(t, g.body) || d.head != g.head {
				t.Errorf("%s\n%s\n%s", body, clip(shape(t, d.body)), clip(shape(t, g.body)))
			}
		}
	}
}

// shape is an answer of /api/show that can be compared.
func shape(t *testing.T, body string) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, k := range []string{"parameters", "modelfile"} {
		lines := strings.Split(fmt.Sprint(v[k]), "\n")
		slices.Sort(lines)
		v[k] = strings.Join(lines, "\n")
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// Checks 6, 22, 23: what is loaded is listed, and unloading takes it away.
func TestLoadedModels(t *testing.T) {
	p := commonPair(t)
	for _, unload := range []request{post("/api/generate", `{"model":"tiny","keep_alive":0}`), post("/api/chat", `{"model":"tiny","messages":[],"keep_alive":0}`)} {
		ask(t, http.DefaultTransport, p.g.URL(), post("/api/generate", `{"model":"tiny","prompt":"hi","stream":false}`))
		rig.Eventually(t, 5*time.Second, "the gateway lists what is loaded", func() bool {
			d, g := p.both(t, get("/api/ps"))
			return strings.Contains(g.body, `"tiny:latest"`) && d.diff(g) == ""
		})
		a := ask(t, http.DefaultTransport, p.g.URL(), unload)
		if a.status != 200 || !strings.Contains(a.body, `"done_reason":"unload"`) || !strings.HasPrefix(a.raw.Get("Content-Type"), "application/json") {
			t.Fatalf("%d %s", a.status, a.body)
		}
		rig.Eventually(t, 5*time.Second, "it is listed nowhere", func() bool {
			d, g := p.both(t, get("/api/ps"))
			return !strings.Contains(d.body+g.body, "tiny:latest")
		})
	}
}

// Checks 1, 3, 4, 66: with no node at all the ollama command still finds a server, and a model that nobody ever had is a 404.
func TestWithoutNodes(t *testing.T) {
	g := rig.NewGateway(t, rig.Options{NoKey: true})
	waitAdmin(t, g)
	for _, tt := range []struct {
		r      request
		status int
		body   string
	}{
		{request{method: "HEAD", path: "/"}, 200, ""},
		{get("/"), 200, "Ollama is running"},
		{get("/api/tags"), 200, `{"models":[]}`},
		{get("/api/ps"), 200, `{"models":[]}`},
		{get("/v1/models"), 200, `{"object":"list","data":null}` + "\n"},
		{post("/api/chat", chat("tiny", "hi", "")), 404, `{"error":"model 'tiny' not found"}`},
	} {
		a := ask(t, http.DefaultTransport, g.URL(), tt.r)
		if a.status != tt.status || a.body != tt.body {
			t.Errorf("%s %s: %d %q", tt.r.method, tt.r.path, a.status, a.body)
		}
	}
	var v struct{ Version string }
	if err := json.Unmarshal([]byte(ask(t, http.DefaultTransport, g.URL(), get("/api/version")).body), &v); err != nil || strings.Count(v.Version, ".") != 2 {
		t.Errorf("%v %q", err, v.Version)
	}
}

// Checks 58, 59: a client that leaves stops the runner, so the next run of a one-slot model starts at once.
func TestLeavingFreesTheModel(t *testing.T) {
	p := commonPair(t)
	for _, r := range []request{
		post("/api/generate", `{"model":"tiny:slow","prompt":"#loop","options":{"num_predict":100000}}`),
		post("/api/generate", `{"model":"tiny:slow","prompt":"#loop","stream":false,"options":{"num_predict":100000}}`),
		post("/v1/chat/completions", chat("tiny:slow", "#loop", `,"stream":true,"max_tokens":100000`)),
		post("/v1/messages", chat("tiny:slow", "#loop", `,"stream":true,"max_tokens":100000`)),
	} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, _ = try(ctx, http.DefaultTransport, p.g.URL(), r)
		cancel()
		freed(t, p.g.URL(), "tiny:slow")
	}
}

// freed holds that a one-slot model answers soon. What still ran in front of it would take minutes.
func freed(t *testing.T, base, model string) {
	t.Helper()
	start := time.Now()
	a := ask(t, http.DefaultTransport, base, post("/api/generate", fmt.Sprintf(`{"model":%q,"prompt":"hi","stream":false}`, model)))
	if d := time.Since(start); a.status != 200 || d > 10*time.Second {
		t.Errorf("the next run took %v: %d %s", d, a.status, a.body)
	}
}
