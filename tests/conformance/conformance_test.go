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

func TestSameAnswersDirectAndThroughTheGateway(t *testing.T) {
	p := commonPair(t)
	for _, r := range requests {
		t.Run(r.name, func(t *testing.T) {
			if want, ok := different[r.name]; ok { // the direct one would do it
				g := ask(t, http.DefaultTransport, p.g.URL(), r)
				if got := fmt.Sprintf("%d %s", g.status, g.body); !strings.HasPrefix(got, want) {
					t.Errorf("checks %s: %s", r.tests, got)
				}
				return
			}
			// Once before, so that both find the model loaded and the prompt cached.
			if r.method == "POST" {
				ask(t, http.DefaultTransport, p.ollama.URL, r)
			}
			d, g := p.both(t, r)
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

// Checks 1, 3, 4, 66: with no node at all the ollama command still finds a server, and nothing says that a model does not exist.
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
		// Whether anybody has it is not known: no 404, or clients would pull.
		{post("/api/chat", chat("tiny", "hi", "")), 503, `{"error":"no node that can serve this is connected"}`},
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
