package openai

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

func newAdapter(t *testing.T, url string) *Adapter {
	t.Helper()
	a, err := New("vllm", url)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	return ts.URL
}

func TestNew(t *testing.T) {
	t.Parallel()
	for url, want := range map[string][2]string{
		"http://h":                        {"http://h:80", "/v1"},
		"http://h:8000/":                  {"http://h:8000", "/v1"},
		"https://api.openai.com/v1":       {"https://api.openai.com:443", "/v1"},
		"https://api.openai.com/v1/":      {"https://api.openai.com:443", "/v1"},
		"https://openrouter.ai/api/v1":    {"https://openrouter.ai:443", "/api/v1"},
		"https://h/v1beta/open_ai-1.0~x/": {"https://h:443", "/v1beta/open_ai-1.0~x"},
		"h":                               {"http://h:80", "/v1"},
		"localhost:8000":                  {"http://localhost:8000", "/v1"},
		"localhost:8000/llm/v1":           {"http://localhost:8000", "/llm/v1"},
		"[::1]:8000":                      {"http://[::1]:8000", "/v1"},
	} {
		a := newAdapter(t, url)
		if got := [2]string{a.Origin(), a.base}; got != want || a.Kind() != "openai" || a.Target() != "vllm" {
			t.Errorf("%s is %q of adapter %s, want %q", url, got, a.Kind(), want)
		}
	}
	for url, says := range map[string]string{
		"": "scheme", "ftp://h": "scheme", "http://": "host", "http:///v1": "host", "http://u:p@h/v1": "nothing else", "http://h:0/v1": "port",
		"http://h?q/v1": "nothing else", "http://h/v1?q": "bad path", "http://h/v1#f": "bad path", "http://h/../v1": "bad path", "http://h/./v1": "bad path",
		"http://h/a//v1": "bad path", "http://h/.../v1": "bad path", "http://h/v1%2f": "bad path", "http://h/v1;x": "bad path", "http://h/v 1": "bad path",
		"http://h//": "bad path", "http://h/" + strings.Repeat("x", 256): "256 bytes",
	} {
		if a, err := New("vllm", url); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "vllm") {
			t.Errorf("New(%q) = %v, %v, want an error that says %q", url, a, err, says)
		}
	}
}

// cred is a credential that remembers what was asked of it.
type cred struct {
	line           []byte
	asked, cleared int
}

func (c *cred) Header() string        { return "Authorization" }
func (c *cred) Line() ([]byte, error) { c.asked++; return c.line, nil }
func (c *cred) Clear()                { c.cleared++; clear(c.line) }

func TestRequestsPassUnderTheBase(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Method, " ", r.Host, " ", r.RequestURI, " ", r.Header["Authorization"], " ", string(b))
	})
	host := strings.TrimPrefix(url, "http://")
	for path, want := range map[string]string{"": "/v1", "/v1": "/v1", "/api/v1/": "/api/v1"} {
		a := newAdapter(t, url+path)
		secret := &cred{line: []byte("Authorization: Bearer k\r\n")}
		c, err := a.Connect(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		r := &adapter.Request{
			Method: "POST", Path: "/v1/chat/completions?a=%2F", Body: strings.NewReader("{}"), Length: 2, Credential: secret,
			Headers: []adapter.Header{{Name: "Host", Value: "public.example"}, {Name: "Authorization", Value: "Bearer mine"}},
		}
		resp, err := c.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if want := "POST " + host + " " + want + "/chat/completions?a=%2F [Bearer k] {}"; err != nil || string(b) != want {
			t.Errorf("provider saw %q, want %q (%v)", b, want, err)
		}
		if r.Path != "/v1/chat/completions?a=%2F" || secret.asked != 1 || secret.cleared == 0 {
			t.Errorf("path %s, asked %d times, cleared %d times", r.Path, secret.asked, secret.cleared)
		}
	}
}

func TestOtherPathsAreNotSent(t *testing.T) {
	t.Parallel()
	asked := 0
	url := serve(t, func(http.ResponseWriter, *http.Request) { asked++ })
	for _, path := range []string{"/api/chat", "/api/delete", "/v1", "/v1beta/models", "/v10/models", "//v1/models", "/", "", "http://h/v1/models"} {
		c, err := newAdapter(t, url).Connect(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		secret := &cred{line: []byte("Authorization: Bearer k\r\n")}
		if _, err = c.Do(t.Context(), &adapter.Request{Method: "POST", Path: path, Credential: secret}); !errors.Is(err, adapter.ErrNotSent) {
			t.Errorf("%s: %v", path, err)
		}
		if secret.asked != 0 || secret.cleared == 0 {
			t.Errorf("%s: asked %d times, cleared %d times", path, secret.asked, secret.cleared)
		}
		if _, err = c.Do(t.Context(), &adapter.Request{Method: "GET", Path: "/v1/models"}); !errors.Is(err, adapter.ErrNotSent) {
			t.Errorf("the connection is used after an error: %v", err)
		}
	}
	if asked != 0 {
		t.Errorf("%d requests were sent", asked)
	}
	if _, err := newAdapter(t, "http://127.0.0.1:1").Connect(t.Context(), false); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("nobody there: %v", err)
	}
}
