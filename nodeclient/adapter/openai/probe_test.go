package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// server is a provider that remembers what it was asked.
type server struct {
	mu    sync.Mutex
	asked []string          // guarded by mu
	says  map[string]string // guarded by mu; by path. What is not there is a 404
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.RequestURI)
	body, ok := s.says[r.RequestURI]
	if !ok {
		w.WriteHeader(404)
	}
	io.WriteString(w, body)
}

func (s *server) set(path, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says[path] = body
}

func (s *server) since() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

// vllmModel is an entry as vLLM writes it.
const vllmModel = `{"id":"Qwen/Qwen3-4B","object":"model","created":1760000000,"owned_by":"vllm","root":"Qwen/Qwen3-4B","parent":null,"max_model_len":32768,` +
	`"permission":[{"id":"modelperm-1","object":"model_permission","allow_sampling":true}]}`

func TestProbe(t *testing.T) {
	t.Parallel()
	s := &server{says: map[string]string{"/v1/models": `{"object":"list","data":[` + vllmModel + `, { "id":"b" }]}`, "/version": `{"version":"0.11.0"}`}}
	a := newAdapter(t, serve(t, s.ServeHTTP))
	for range 2 {
		inv, err := a.Probe(t.Context())
		if err != nil || inv.Skipped != nil || inv.Version != "0.11.0" || len(inv.Loaded) != 0 || len(inv.Models) != 2 {
			t.Fatalf("%+v %v", inv, err)
		}
		if m := inv.Models[0]; m.Name != "Qwen/Qwen3-4B" || string(m.JSON) != vllmModel {
			t.Errorf("%s %s", m.Name, m.JSON)
		}
		if m := inv.Models[1]; m.Name != "b" || string(m.JSON) != `{ "id":"b" }` {
			t.Errorf("%s %s", m.Name, m.JSON)
		}
		if got := s.since(); !slices.Equal(got, []string{"/v1/models", "/version"}) {
			t.Errorf("asked %v", got)
		}
	}
}

// Only a server that told its version is asked for it with every probe.
func TestProbeAsksForTheVersionOnce(t *testing.T) {
	t.Parallel()
	s := &server{says: map[string]string{"/v1/models": `{"data":null}`, "/version": "<html>"}}
	url := serve(t, s.ServeHTTP)
	a := newAdapter(t, url)
	probe := func(wantErr bool, version string, want ...string) {
		t.Helper()
		inv, err := a.Probe(t.Context())
		if (err != nil) != wantErr || inv.Version != version || len(inv.Models) != 0 {
			t.Errorf("%+v %v", inv, err)
		}
		if got := s.since(); !slices.Equal(got, want) {
			t.Errorf("asked %v, want %v", got, want)
		}
	}
	probe(false, "", "/v1/models", "/version", "/props")
	probe(false, "", "/v1/models")
	s.set("/v1/models", "gone")
	probe(true, "", "/v1/models")
	s.set("/v1/models", `{"data":[]}`)
	s.set("/version", `{"version":"`+strings.Repeat("1", 65)+`"}`)
	s.set("/props", `{"build_info":"b6710-74b8fc17f","total_slots":4}`)
	probe(false, "b6710-74b8fc17f", "/v1/models", "/version", "/props")
	s.set("/version", `{"version":"1\u0000"}`)
	probe(false, "b6710-74b8fc17f", "/v1/models", "/version", "/props")

	a = newAdapter(t, url+"/api/v1")
	s.set("/api/v1/models", `[]`)
	probe(false, "", "/api/v1/models") // a cloud
}

func TestProbeWithoutACredential(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403} {
		asked := 0
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			asked++
			w.WriteHeader(status)
			io.WriteString(w, `{"error":{"message":"give me a key"}}`)
		})
		inv, err := newAdapter(t, url).Probe(t.Context())
		if !errors.Is(err, adapter.ErrUnauthorized) || errors.Is(err, adapter.ErrNotSent) || inv.Models != nil {
			t.Errorf("%+v %v", inv, err)
		}
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	}
}

func TestProbeFails(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/v1/models")
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		says  string
	}{
		"not there": {answer(404, "{}"), "mostly in /v1"}, "busy": {answer(429, "{}"), "status 429"}, "broken": {answer(500, "{}"), "status 500"},
		"moved": {answer(301, ""), "status 301"}, "empty": {answer(204, ""), "status 204"},
		"no JSON": {answer(200, "<html>"), "invalid character"}, "cut JSON": {answer(200, `{"data":[`), "unexpected end"}, "nothing": {answer(200, ""), "unexpected end"},
		"Ollama": {answer(200, `{"models":[]}`), "no list of models"}, "null": {answer(200, "null"), "no list of models"}, "text": {answer(200, `"data"`), "cannot unmarshal"},
		"no list": {answer(200, `{"data":{"id":"a"}}`), "cannot unmarshal"}, "cut list": {answer(200, `[{"id":"a"}`), "unexpected end"},
		"big": {answer(200, `{"data":[]}`+strings.Repeat(" ", 8<<20)), "over"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inv, err := newAdapter(t, serve(t, tc.serve)).Probe(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.says) || errors.Is(err, adapter.ErrUnauthorized) || inv.Models != nil {
				t.Errorf("%+v %v, want an error that says %q", inv, err, tc.says)
			}
		})
	}
}

func TestProbeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/v1/models" {
			<-gate
			return
		}
		io.WriteString(w, `{"data":[{"id":"a"}]}`)
	})
	t.Cleanup(func() { close(gate) })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	// The models came; that the version did not is no reason to lose them.
	if inv, err := newAdapter(t, url).Probe(ctx); err != nil || len(inv.Models) != 1 || inv.Version != "" {
		t.Errorf("%+v %v", inv, err)
	}
	if _, err := newAdapter(t, url).Probe(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// One bad entry does not hide the others, and what is taken is bounded.
func TestEntries(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 512)
	for entry, says := range map[string]string{
		`{"id":"a b/C:d-1.5@é世"}`: "", `{"id":"` + long + `"}`: "", `{"id":"a","x":"` + strings.Repeat("x", 60<<10) + `"}`: "",
		`{}`: "entry 1", `{"id":""}`: "entry 1", `{"id":null}`: "entry 1", `{"id":7}`: "entry 1", `[]`: "entry 1", `"a"`: "entry 1", `null`: "entry 1",
		`{"id":"` + long + `x"}`: "entry 1", `{"id":"a\nb"}`: "entry 1", `{"id":"a\u0000"}`: "entry 1", `{"id":"\u202ea"}`: "entry 1", `{"id":"\ud800"}`: "entry 1",
		`{"id":"a","id":"b"}`: "entry 1", "{\"id\":\"\xff\"}": "entry 1", `{"id":"good"}`: "listed twice",
		`{"id":"a","x":"` + strings.Repeat("x", 64<<10) + `"}`: "entry 1",
	} {
		for _, frame := range []string{`{"object":"list","data":[%s]}`, " \n[%s]"} {
			models, skipped, err := parseModels(fmt.Appendf(nil, frame, `{"id":"good"},`+entry+`,{"id":"far:120b-cloud"},{"id":"last"}`))
			if err != nil || models[0].Name != "good" || models[len(models)-1].Name != "last" {
				t.Fatalf("%.40s: %v %v", entry, models, err)
			}
			switch {
			case says == "" && (len(models) != 3 || skipped != nil || string(models[1].JSON) != entry):
				t.Errorf("%.40s: %d models, skipped %v", entry, len(models), skipped)
			case says != "" && (len(models) != 2 || skipped == nil || !strings.Contains(skipped.Error(), says)):
				t.Errorf("%.40s: %d models, skipped %v, want %q", entry, len(models), skipped, says)
			}
		}
	}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf(`{"id":"m%d"}`, i))
	}
	models, skipped, err := parseModels([]byte("[" + strings.Join(many, ",") + "]"))
	if err != nil || len(models) != 4096 || skipped == nil {
		t.Errorf("%d models of 5000, skipped %v, %v", len(models), skipped, err)
	}
}

func TestFewBadEntriesAreNamed(t *testing.T) {
	t.Parallel()
	models, skipped, err := parseModels([]byte("[" + strings.Repeat("7,", 100) + `{"id":"a"}]`))
	if err != nil || len(models) != 1 || strings.Count(skipped.Error(), "\n") != 10 || !strings.Contains(skipped.Error(), "and 90 more") {
		t.Errorf("%v %v %v", models, skipped, err)
	}
}

func FuzzModels(f *testing.F) {
	f.Add([]byte(`{"object":"list","data":[` + vllmModel + `]}`))
	f.Add([]byte(`[{"id":"a"},{"ID":"b","id":"c"}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		models, _, err := parseModels(body)
		if err != nil && models != nil {
			t.Error("models and an error")
		}
		seen := map[string]bool{}
		for _, m := range models {
			if m.Name == "" || len(m.Name) > 512 || seen[m.Name] || !json.Valid(m.JSON) {
				t.Errorf("%q %s", m.Name, m.JSON)
			}
			seen[m.Name] = true
		}
	})
}
