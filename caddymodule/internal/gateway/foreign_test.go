package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/nodeclient"
	"github.com/fairway-edge/fairway/nodeclient/adapter/openai"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// openaiNode joins a node whose only provider speaks OpenAI's API, has these models, and answers a request with its path.
func (r *rig) openaiNode(name string, models ...string) {
	r.t.Helper()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if q.URL.Path != "/v1/models" {
			_, _ = io.Copy(io.Discard, q.Body)
			_, _ = fmt.Fprintf(w, `{"object":"answer","path":%q}`, q.URL.Path)
			return
		}
		var list []string
		for _, m := range models {
			list = append(list, fmt.Sprintf(`{"id":%q,"object":"model","created":%d,"owned_by":"vllm"}`, m, time.Now().Unix()))
		}
		_, _ = io.WriteString(w, `{"object":"list","data":[`+strings.Join(list, ",")+`]}`)
	}))
	r.t.Cleanup(provider.Close)
	a, err := openai.New("vllm", provider.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	id, err := r.ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := nodeclient.New(nodeclient.Config{
		Identity: identitySource{id}, Gateways: []string{r.hub.listener.Addr().String()}, Targets: []nodeclient.Target{{Adapter: a}}, Grace: -1,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, n := range r.hub.Fleet().Nodes() {
			if n.Name == name && n.State == "ready" && len(n.Targets) > 0 && len(n.Targets[0].Models) == len(models) {
				return
			}
		}
	}
	r.t.Fatalf("node %s is not ready", name)
}

func TestModelsOfOtherProviders(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, Options{}, func(st *Settings) {
		st.Profiles = []Profile{{Name: "local", Adapter: "ollama", Target: "ollama"}, {Name: "vllm", Adapter: "openai", Target: "vllm"}}
	})
	r.node("n1", fakeollama.Start(t, fakeollama.Options{}), 4)

	// What Ollama does not have is unknown while nobody else does.
	resp, body := r.do("POST", "/v1/rerank", `{"model":"gpt-x","query":"q","documents":[]}`)
	if resp.StatusCode != 404 || body != `{"error":{"message":"404 page not found: /v1/rerank","type":"not_found_error","param":null,"code":null}}` {
		t.Errorf("rerank without a provider: %d %s", resp.StatusCode, body)
	}
	resp, body = r.do("POST", "/v1/chat/completions", `{"model":"/models/foo.gguf","messages":[{}]}`)
	if resp.StatusCode != 400 || !strings.Contains(body, "invalid model name") {
		t.Errorf("a name that nobody knows: %d %s", resp.StatusCode, body)
	}

	r.openaiNode("n2", "gpt-x", "/models/foo.gguf")
	for _, tt := range []struct{ method, path, body, want string }{
		{"POST", "/api/chat", `{"model":"gpt-x","messages":[{}]}`, `{"error":"model \"gpt-x\" is served by an OpenAI-compatible provider: use /v1/chat/completions"}`},
		{"POST", "/api/chat", `{"model":"GPT-X:latest","messages":[]}`, `use /v1/chat/completions`},
		{"POST", "/api/generate", `{"model":"gpt-x","keep_alive":0}`, `use /v1/completions`},
		{"POST", "/api/generate", `{"model":"/models/foo.gguf","prompt":"x"}`, `model \"/models/foo.gguf\" is served`},
		{"POST", "/api/embed", `{"model":"gpt-x","input":"x"}`, `use /v1/embeddings`},
		{"POST", "/api/show", `{"model":"gpt-x"}`, `is served by an OpenAI-compatible provider`},
	} {
		resp, body := r.do(tt.method, tt.path, tt.body)
		if resp.StatusCode != 400 || resp.Header.Get("X-Fairway-Error") != "bad_request" || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s %s: %d %s", tt.method, tt.path, tt.body, resp.StatusCode, body)
		}
	}
	for path, want := range map[string]string{
		"/api/tags":          `{"name":"/models/foo.gguf","model":"/models/foo.gguf",`,
		"/v1/models":         `{"id":"gpt-x","object":"model","created":`,
		"/v1/models/GPT-x":   `{"id":"gpt-x","object":"model","created":`,
		"/v1/models/a/b/c/d": `invalid model name`,
	} {
		if _, body := r.do("GET", path, ""); !strings.Contains(body, want) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if _, body := r.do("GET", "/api/ps", ""); strings.Contains(body, "gpt-x") {
		t.Errorf("ps: %s", body)
	}
	if resp, body := r.do("GET", "/v1/rerank", ""); resp.StatusCode != 404 || !strings.Contains(body, "404 page not found") {
		t.Errorf("another method: %d %s", resp.StatusCode, body)
	}
	if resp, body := r.do("POST", "/api/chat", `{"model":"nope","messages":[{}]}`); resp.StatusCode != 404 {
		t.Errorf("nobody's model: %d %s", resp.StatusCode, body)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/rerank", "/v1/messages/count_tokens"} {
		for _, model := range []string{"gpt-x", "/models/foo.gguf"} {
			resp, body := r.do("POST", path, fmt.Sprintf(`{"model":%q,"messages":[{}],"max_tokens":1}`, model))
			if resp.StatusCode != 200 || body != fmt.Sprintf(`{"object":"answer","path":%q}`, path) {
				t.Errorf("%s %s: %d %s", path, model, resp.StatusCode, body)
			}
		}
	}
	// What Ollama does not have does not go there, whoever else has it.
	if resp, body := r.do("POST", "/v1/rerank", `{"model":"t-echo"}`); resp.StatusCode != 404 || resp.Header.Get("X-Fairway-Error") != "no_such_model" {
		t.Errorf("rerank by an Ollama: %d %s", resp.StatusCode, body)
	}
}

// Without any profile Ollamas are used and nothing else.
func TestOtherProvidersNeedAProfile(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.node("n1", fakeollama.Start(t, fakeollama.Options{}), 4)
	r.openaiNode("n2", "gpt-x")
	for _, body := range []string{`{"model":"gpt-x","messages":[{}]}`, `{"model":"t-echo","query":"q"}`} {
		if resp, got := r.do("POST", "/v1/rerank", body); resp.StatusCode != 404 {
			t.Errorf("rerank %s: %d %s", body, resp.StatusCode, got)
		}
	}
	if resp, got := r.do("POST", "/v1/chat/completions", `{"model":"gpt-x","messages":[{}]}`); resp.StatusCode != 404 {
		t.Errorf("chat: %d %s", resp.StatusCode, got)
	}
}
