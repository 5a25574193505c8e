package ollama

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-echo:latest", "hf.co/A/B-GGUF:Q4", "big:120b-cloud"}, Version: "0.32.15"})
	a := newAdapter(t, s.URL())
	chat(t, a) // loads it
	inv, err := a.Probe(t.Context())
	if err != nil || inv.Skipped != nil {
		t.Fatal(err, inv.Skipped)
	}
	if inv.Version != "0.32.15" || len(inv.Models) != 2 || len(inv.Loaded) != 1 {
		t.Fatalf("inventory %+v", inv)
	}
	if m := inv.Models[1]; m.Name != "hf.co/A/B-GGUF:Q4" || !strings.Contains(string(m.JSON), `"quantization_level":"Q4_0"`) {
		t.Errorf("model %s %s", m.Name, m.JSON)
	}
	if l := inv.Loaded[0]; l.Name != "t-echo:latest" || !strings.Contains(string(l.JSON), `"expires_at"`) {
		t.Errorf("loaded %s %s", l.Name, l.JSON)
	}
}

func TestProbeOfAnOldOllama(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{Without: []string{"/api/ps", "/api/version"}})
	inv, err := newAdapter(t, s.URL()).Probe(t.Context())
	if err != nil || inv.Version != "" || inv.Loaded != nil || len(inv.Models) != len(fakeollama.DefaultModels) {
		t.Errorf("%+v %v", inv, err)
	}
}

func TestProbeFails(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]http.HandlerFunc{
		"status":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"no JSON": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"endless": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write(make([]byte, 1<<20))
			}
		},
		"a Fairway gateway": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Fairway-Run", "r1")
			io.WriteString(w, `{"models":[]}`)
		},
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"models":[]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ts := httptest.NewServer(serve)
			defer ts.Close()
			if inv, err := newAdapter(t, ts.URL).Probe(t.Context()); err == nil {
				t.Errorf("inventory %+v", inv)
			}
		})
	}
}

// Case D04: a provider too busy to answer costs the probe its time and nothing
// else.
func TestProbeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	s.SetTagsDelay(time.Minute)
	a := newAdapter(t, s.URL())
	if _, err := a.Probe(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if status, _ := chat(t, a); status != 200 {
		t.Errorf("status %d", status)
	}
}
