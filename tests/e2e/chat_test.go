package e2e

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

func TestChatStreamsLineByLine(t *testing.T) {
	t.Parallel()
	g, _, _ := fleet(t, rig.Options{TLS: true})
	for name, c := range clients(t, g) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := c.post(context.Background(), "/api/chat", chat("t-tick", `,"t_n":10,"t_ms":100`))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if ct := r.Header.Get("Content-Type"); ct != "application/x-ndjson" || r.Header.Get("X-Fairway-Run") == "" {
				t.Fatalf("%v", r.Header)
			}
			// The provider writes a line each 100 ms. A machine under load delays some; a gateway that gathers lines would bring
			// several at the same moment.
			lines, apart, last := 0, 0, time.Now()
			for sc := bufio.NewScanner(r.Body); sc.Scan(); lines++ {
				if time.Since(last) > 10*time.Millisecond {
					apart++
				}
				last = time.Now()
			}
			if apart < 7 {
				t.Errorf("of 11 lines %d came apart", apart)
			}
			if lines != 11 {
				t.Fatalf("%d lines", lines)
			}
		})
	}
}

func TestFamiliesAndErrors(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{})
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code, holds              string
	}{
		{"native", "POST", "/api/chat", chat("t-echo", `,"stream":false`), nil, 200, "", `"done":true`},
		{"openai", "POST", "/v1/chat/completions", chat("t-echo", ""), nil, 200, "", `"chat.completion"`},
		{"openai stream", "POST", "/v1/chat/completions", chat("t-echo", `,"stream":true`), nil, 200, "", "data: [DONE]"},
		{"anthropic", "POST", "/v1/messages", chat("t-echo", `,"max_tokens":5`), nil, 200, "", `"type":"message"`},
		{"double slash", "POST", "//api/chat", chat("t-echo", `,"stream":false`), nil, 200, "", `"done":true`},
		{"show", "POST", "/api/show", `{"model":"t-echo"}`, nil, 200, "", "capabilities"},
		{"unknown model", "POST", "/api/chat", chat("nope", ""), nil, 404, "no_such_model", `model 'nope' not found`},
		{"unknown model, openai", "POST", "/v1/chat/completions", chat("nope", ""), nil, 404, "no_such_model", `"not_found_error"`},
		{"bad json", "POST", "/api/chat", `{`, nil, 400, "bad_request", `"error"`},
		{"two models", "POST", "/api/chat", `{"model":"t-echo","model":"nope","messages":[]}`, nil, 400, "ambiguous_body", `"error"`},
		{"gzip", "POST", "/api/chat", chat("t-echo", ""), []string{"Content-Encoding", "gzip"}, 415, "unsupported_encoding", "gzip"},
		{"cloud", "POST", "/api/chat", chat("gpt-oss:20b-cloud", ""), nil, 403, "forbidden", "cloud"},
		{"management", "POST", "/api/pull", `{"model":"x"}`, nil, 403, "forbidden", "manage"},
		{"unknown path", "GET", "/api/nope", "", nil, 404, "", `"error"`},
		{"wrong method", "GET", "/api/chat", "", nil, 405, "", "405 method not allowed"},
		{"no key", "POST", "/api/chat", chat("t-echo", ""), []string{"Authorization", "Bearer wrong"}, 401, "unauthorized", `"error"`},
		{"version", "GET", "/api/version", "", nil, 200, "", `"version":"`},
		{"ps", "GET", "/api/ps", "", nil, 200, "", `"models":[`},
		{"v1 models", "GET", "/v1/models", "", nil, 200, "", `"object":"list"`},
		{"root", "GET", "/", "", nil, 200, "", "Ollama is running"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, body := g.Do(tt.method, tt.path, tt.body, tt.header...)
			if r.StatusCode != tt.status || r.Header.Get("X-Fairway-Error") != tt.code || !strings.Contains(body, tt.holds) {
				t.Fatalf("%d %q %s", r.StatusCode, r.Header.Get("X-Fairway-Error"), body)
			}
		})
	}
	for _, rec := range fake.Log() {
		if len(rec.Header("Authorization")) > 0 {
			t.Fatal("the caller's key reached the provider")
		}
	}
}

func TestKeyInThePath(t *testing.T) {
	t.Parallel()
	g, _, _ := fleet(t, rig.Options{})
	r, err := http.Get(g.URL() + "/k/" + rig.Key + "/api/tags") //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	if body := readAll(t, r); r.StatusCode != 200 || !strings.Contains(body, "t-echo") {
		t.Fatalf("%d %s", r.StatusCode, body)
	}
	if r, err = http.Head(g.URL() + "/k/" + rig.Key + "/"); err != nil || r.StatusCode != 200 { //nolint:noctx // loopback
		t.Fatal(r, err)
	}
	r.Body.Close()
}

func TestManagementOnANamedNode(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{})
	g := rig.NewGateway(t, rig.Options{Site: "\t\tmanage alice\n"})
	g.NodeOf("n1", fake.URL(), "--allow", "POST:/api/pull", "--allow", "DELETE:/api/delete", "--allow", "POST:/api/blobs/*", "--allow", "HEAD:/api/blobs/*")
	waitModel(t, g, "t-gone")
	for _, tt := range []struct {
		name, method, path, body, node string
		status                         int
	}{
		{"no node named", "POST", "/api/pull", `{"model":"x"}`, "", 400},
		{"another node", "POST", "/api/pull", `{"model":"x"}`, "n9", 503},
		{"allowed", "POST", "/api/pull", `{"model":"x"}`, "n1", 200},
		{"by path prefix", "POST", "/n/n1/api/pull", `{"model":"x"}`, "", 200},
		{"the owner does not allow it", "POST", "/api/create", `{"model":"x","from":"t-echo"}`, "n1", 403},
		{"delete with a body", "DELETE", "/api/delete", `{"model":"t-gone"}`, "n1", 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, body := g.Do(tt.method, tt.path, tt.body, "X-Fairway-Node", tt.node)
			if r.StatusCode != tt.status {
				t.Fatalf("%d %s", r.StatusCode, body)
			}
		})
	}
}

func TestUnloadReachesEveryNodeThatHasItLoaded(t *testing.T) {
	t.Parallel()
	g := rig.NewGateway(t, rig.Options{})
	a, b := fakeollama.Start(t, fakeollama.Options{}), fakeollama.Start(t, fakeollama.Options{})
	g.NodeOf("a", a.URL())
	g.NodeOf("b", b.URL())
	waitModel(t, g, "t-tick")
	parallel(2, func(int) { g.Do("POST", "/api/chat", chat("t-tick", `,"t_n":5,"t_ms":200`)) }) // one on each
	rig.Eventually(t, 5*time.Second, "both have it loaded and that is known", func() bool {
		return len(a.Stats().Loaded) == 1 && len(b.Stats().Loaded) == 1
	})
	rig.Eventually(t, 5*time.Second, "unloaded everywhere", func() bool {
		r, body := g.Do("POST", "/api/generate", `{"model":"t-tick","keep_alive":0}`)
		if r.StatusCode != 200 || !strings.Contains(body, `"unload"`) {
			t.Fatalf("%d %s", r.StatusCode, body)
		}
		return len(a.Stats().Loaded) == 0 && len(b.Stats().Loaded) == 0
	})
}
