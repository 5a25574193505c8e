package ollama

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

const tinyChat = `{"model":"t-echo","messages":[{"role":"user","content":"x"}]}`

func newAdapter(t testing.TB, origin string) *Adapter {
	t.Helper()
	a, err := New("ollama", origin)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// chat runs a model and returns the answer.
func chat(t testing.TB, a *Adapter) (status int, body string) {
	t.Helper()
	c, err := a.Connect(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(t.Context(), &adapter.Request{Method: "POST", Path: "/api/chat", Body: strings.NewReader(tinyChat), Length: int64(len(tinyChat)),
		Headers: []adapter.Header{{Name: "Content-Type", Value: "application/json"}, {Name: "Host", Value: "llm.example.org"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status, string(b)
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"", ":11434", "127.0.0.1:11434/api", "ftp://h:1", "http://h:1/path"} {
		if a, err := New("ollama", origin); err == nil {
			t.Errorf("New(%q) = %s, want an error", origin, a.Origin())
		}
	}
	for origin, want := range map[string]string{"http://h": "http://h:80", "https://h/": "https://h:443", "localhost:1": "http://localhost:1",
		"127.0.0.1": "http://127.0.0.1:11434", "[::1]": "http://[::1]:11434"} {
		a := newAdapter(t, origin)
		if a.Origin() != want || a.Target() != "ollama" || a.Kind() != "ollama" {
			t.Errorf("%q is target %s of adapter %s at %s, want %s", origin, a.Target(), a.Kind(), a.Origin(), want)
		}
	}
}

// A foreign Host would earn a 403 (ollama/ollama#3269).
func TestRun(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	if status, body := chat(t, newAdapter(t, s.URL())); status != 200 || !strings.Contains(body, `"done":true`) {
		t.Errorf("status %d, body %s", status, body)
	}
	if r := s.Log()[0]; r.Target != "/api/chat" || r.Host != s.Addr() {
		t.Errorf("provider saw %s for %s", r.Target, r.Host)
	}
}
