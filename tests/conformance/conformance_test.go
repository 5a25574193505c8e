// Package conformance sends the same requests to a real Ollama directly and through the gateway, and holds the answers equal.
package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// pair is one Ollama and a gateway in front of it.
type pair struct {
	ollama *rig.Ollama
	g      *rig.Gateway
}

func newPair(t *testing.T, env ...string) pair {
	t.Helper()
	o := rig.NewOllama(t, env...)
	g := rig.NewGateway(t, rig.Options{NoKey: true})
	g.NodeOf("n1", o.URL)
	p := pair{o, g}
	rig.Eventually(t, 10*time.Second, "the models are listed", func() bool {
		_, _, body := p.ask(t, g.URL(), request{method: "GET", path: "/api/tags"})
		return strings.Contains(body, "tiny:latest")
	})
	return p
}

type request struct {
	name, method, path, body string
	header                   []string
	tests                    string // numbers of the checks that it covers
}

// ask sends r to base and returns status, the headers that matter, and the body.
func (p pair) ask(t *testing.T, base string, r request) (int, string, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, base+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	if r.method == http.MethodGet || r.method == http.MethodHead {
		req.Body, req.ContentLength = nil, 0
	}
	for i := 0; i+1 < len(r.header); i += 2 {
		req.Header.Set(r.header[i], r.header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %v after %q", base, err, b)
	}
	return resp.StatusCode, headers(resp), string(b)
}

// headers are those that clients act on.
func headers(r *http.Response) string {
	var out []string
	for _, n := range []string{"Content-Type", "Allow"} {
		out = append(out, n+": "+r.Header.Get(n))
	}
	return strings.Join(out, "; ")
}

// volatile members differ between any two answers of one server.
var volatile = regexp.MustCompile(`"(created_at|total_duration|load_duration|prompt_eval_duration|eval_duration|created|completed_at|expires_at|id|item_id|call_id|modified_at|request_id)":\s*("[^"]*"|[0-9.]+)`)

// normal makes two answers to one request comparable: what a server counts or invents anew is blanked, the rest stays byte for byte.
func normal(body string) string {
	return volatile.ReplaceAllString(body, `"$1":"*"`)
}

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

func TestSameAnswersDirectAndThroughTheGateway(t *testing.T) {
	p := newPair(t)
	for _, r := range requests {
		t.Run(r.name, func(t *testing.T) {
			// Once before, so that both find the model loaded and the prompt cached.
			if r.method == "POST" {
				p.ask(t, p.ollama.URL, r)
			}
			ds, dh, db := p.ask(t, p.ollama.URL, r)
			gs, gh, gb := p.ask(t, p.g.URL(), r)
			if ds != gs || dh != gh || normal(db) != normal(gb) {
				t.Errorf("checks %s\ndirect  %d %s\n%s\ngateway %d %s\n%s", r.tests, ds, dh, clip(normal(db)), gs, gh, clip(normal(gb)))
			}
		})
	}
}

func clip(s string) string {
	if len(s) > 2000 {
		return s[:2000] + "…"
	}
	return s
}

// Checks 29 and 36, and DECISIONS' word on /api/show: PARAMETER lines come in Go's map order.
func TestShow(t *testing.T) {
	p := newPair(t)
	shape := func(body string) string {
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
	for _, body := range []string{`{"model":"tiny"}`, `{"name":"tiny"}`, `{"model":"tiny-tools","verbose":true}`, `{"name":"nope","model":"tiny"}`} {
		r := request{method: "POST", path: "/api/show", body: body, header: []string{"User-Agent", "GitHubCopilotChat/1"}}
		_, _, direct := p.ask(t, p.ollama.URL, r)
		_, _, via := p.ask(t, p.g.URL(), r)
		if shape(direct) != shape(via) {
			t.Errorf("%s\n%s\n%s", body, clip(shape(direct)), clip(shape(via)))
		}
	}
}

// Check 15: one line per read, as Ollama flushes them.
func TestChunkEdges(t *testing.T) {
	p := newPair(t)
	count := func(base string) (reads, lines int) {
		req, _ := http.NewRequestWithContext(context.Background(), "POST", base+"/api/generate", strings.NewReader(`{"model":"tiny:slow","prompt":"#loop","options":{"num_predict":60}}`))
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := resp.Body.Read(buf)
			if n > 0 {
				reads++
				lines += bytes.Count(buf[:n], []byte("\n"))
			}
			if err != nil {
				return reads, lines
			}
		}
	}
	count(p.ollama.URL)
	dr, dl := count(p.ollama.URL)
	gr, gl := count(p.g.URL())
	t.Logf("direct %d reads for %d lines, gateway %d for %d", dr, dl, gr, gl)
	if dl != gl || gr < dr*8/10 {
		t.Errorf("lines were gathered: direct %d reads for %d lines, gateway %d for %d", dr, dl, gr, gl)
	}
}

// Checks 6, 22: what is loaded is listed, and unloading takes it away.
func TestLoadedModels(t *testing.T) {
	p := newPair(t)
	loaded := func(base string) string {
		_, _, body := p.ask(t, base, request{method: "GET", path: "/api/ps"})
		return normal(body)
	}
	p.ask(t, p.g.URL(), request{method: "POST", path: "/api/generate", body: `{"model":"tiny","prompt":"hi","stream":false}`})
	rig.Eventually(t, 5*time.Second, "the gateway lists what is loaded", func() bool {
		return strings.Contains(loaded(p.g.URL()), `"tiny:latest"`) && loaded(p.g.URL()) == loaded(p.ollama.URL)
	})
	status, _, body := p.ask(t, p.g.URL(), request{method: "POST", path: "/api/generate", body: `{"model":"tiny","keep_alive":0}`})
	if status != 200 || !strings.Contains(body, `"done_reason":"unload"`) {
		t.Fatalf("%d %s", status, body)
	}
	rig.Eventually(t, 5*time.Second, "nothing is loaded", func() bool { return !strings.Contains(loaded(p.g.URL()), "tiny:latest") })
}

// Checks 58, 59: a client that leaves stops the runner, so the next run of a one-slot model starts at once.
func TestLeavingFreesTheModel(t *testing.T) {
	p := newPair(t)
	for _, body := range []string{`{"model":"tiny:slow","prompt":"#loop","options":{"num_predict":100000}}`, `{"model":"tiny:slow","prompt":"#loop","stream":false,"options":{"num_predict":100000}}`} {
		ctx, cancel := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "POST", p.g.URL()+"/api/generate", strings.NewReader(body))
		time.AfterFunc(1500*time.Millisecond, cancel)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			_, _ = io.Copy(io.Discard, bufio.NewReader(resp.Body))
			resp.Body.Close()
		}
		cancel()
		start := time.Now()
		status, _, _ := p.ask(t, p.g.URL(), request{method: "POST", path: "/api/generate", body: `{"model":"tiny:slow","prompt":"hi","stream":false}`})
		if d := time.Since(start); status != 200 || d > 3*time.Second {
			t.Errorf("the next run took %v, status %d", d, status)
		}
	}
}
