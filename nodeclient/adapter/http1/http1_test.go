package http1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

const tinyChat = `{"model":"t-echo","messages":[{"role":"user","content":"x"}]}`

func newServer(t testing.TB, origin string) *Server {
	t.Helper()
	a, err := New("ollama", origin, "11434")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// chat is a request for body with a known length.
func chat(body string, hs ...adapter.Header) *adapter.Request {
	return &adapter.Request{Method: "POST", Path: "/api/chat", Body: strings.NewReader(body), Length: int64(len(body)),
		Headers: append([]adapter.Header{{Name: "Content-Type", Value: "application/json"}}, hs...)}
}

// do sends r on a connection of a.
func do(ctx context.Context, a *Server, r *adapter.Request) (*adapter.Response, error) {
	c, err := a.Connect(ctx, false)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Do(ctx, r)
}

// ask sends r and reads the answer to its end.
func ask(t testing.TB, a *Server, r *adapter.Request) (*adapter.Response, string) {
	t.Helper()
	resp, err := do(t.Context(), a, r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func header(hs []adapter.Header, name string) string {
	for _, h := range hs {
		if strings.EqualFold(h.Name, name) {
			return h.Value
		}
	}
	return ""
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestNewRefusesOrigins(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"", ":11434", "127.0.0.1:11434/api", "ftp://h:1", "http://", "http://h:1/path", "http://u:p@h:1",
		"http://h:1?q", "http://h:0", "http://h:65536", "http://h:x", "http://a b:1", "http://[fe80::1%25eth0]:1",
		"http://h\x00:1", "http://%zz", "http://" + strings.Repeat("h", 254)} {
		if a, err := New("ollama", origin, "11434"); err == nil {
			t.Errorf("New(%q) = %s, want an error", origin, a.Origin())
		}
	}
	for origin, want := range map[string]string{"http://h": "http://h:80", "https://h/": "https://h:443", "http://[::1]:11434": "http://[::1]:11434",
		"localhost:1": "http://localhost:1", "127.0.0.1": "http://127.0.0.1:11434", "[::1]": "http://[::1]:11434"} {
		if got := newServer(t, origin).Origin(); got != want {
			t.Errorf("origin of %q = %q, want %q", origin, got, want)
		}
	}
}

func TestStreamArrivesTokenByToken(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	resp, err := do(t.Context(), newServer(t, s.URL()), chat(`{"model":"t-tick","messages":[{}],"t_n":3,"t_ms":60}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := header(resp.Headers, "Content-Type"); got != "application/x-ndjson" {
		t.Errorf("content type %q", got)
	}
	buf := make([]byte, 64<<10)
	for i := range 4 {
		n, err := resp.Body.Read(buf)
		if err != nil && (err != io.EOF || i < 3) {
			t.Fatal(err)
		}
		if lines := bytes.Count(buf[:n], []byte("\n")); lines != 1 {
			t.Errorf("read %d brought %d lines, want 1", i, lines)
		}
	}
	if _, err := resp.Body.Read(buf); err != io.EOF {
		t.Errorf("end of stream: %v", err)
	}
}

// The request reaches the provider byte for byte, whatever its size and framing.
func TestBodies(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	for _, size := range []int{0, 1, 1000, maxInline, maxInline + 1, pieceSize * 3, 5<<20 + 7} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d known=%v", size, known), func(t *testing.T) {
				body := bytes.Repeat([]byte("abcdefgh"), size/8+1)[:size]
				id := t.Name()
				r := &adapter.Request{Method: "POST", Path: "/api/chat?x=%2F", Body: bytes.NewReader(body), Length: -1,
					Headers: []adapter.Header{{Name: "X-Test-Id", Value: id}}}
				want := "chunked"
				if known {
					r.Length, want = int64(size), fmt.Sprintf("length %d", size)
				}
				resp, _ := ask(t, a, r)
				if resp.Status != http.StatusBadRequest { // the body is no JSON, and was read
					t.Errorf("status %d", resp.Status)
				}
				rec, err := s.Wait(within(t, 5*time.Second), func(r fakeollama.Record) bool { return r.ID == id })
				if err != nil {
					t.Fatal(err)
				}
				if rec.Framing != want || rec.Len != int64(size) || !rec.BodyComplete || rec.SHA256 != sum(body) || rec.Target != r.Path {
					t.Errorf("provider saw %s, %d bytes, complete %v, target %s; want %s, %d", rec.Framing, rec.Len, rec.BodyComplete, rec.Target, want, size)
				}
			})
		}
	}
}

func TestGetHasNoPhantomBody(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	for _, method := range []string{"GET", "HEAD"} {
		resp, body := ask(t, a, &adapter.Request{Method: method, Path: "/api/tags"})
		if resp.Status != 200 || (method == "HEAD") != (body == "") {
			t.Errorf("%s: status %d, %d bytes", method, resp.Status, len(body))
		}
	}
	for _, r := range s.Log() {
		if r.Framing != "none" || len(r.Headers) != 1 {
			t.Errorf("%s: framing %s, headers %v", r.Method, r.Framing, r.Headers)
		}
	}
}

func TestRedirectIsAnAnswer(t *testing.T) {
	t.Parallel()
	other := fakeollama.Start(t, fakeollama.Options{})
	s := fakeollama.Start(t, fakeollama.Options{})
	if err := s.SetFault(fakeollama.Fault{Kind: "redirect", To: other.URL()}); err != nil {
		t.Fatal(err)
	}
	resp, _ := ask(t, newServer(t, s.URL()), chat(tinyChat))
	if resp.Status != 307 || header(resp.Headers, "Location") != other.URL()+"/api/chat" {
		t.Errorf("status %d, headers %v", resp.Status, resp.Headers)
	}
	if n := len(other.Log()); n != 0 {
		t.Errorf("%d requests followed the redirect", n)
	}
}

// Case C15: localhost means both loopback addresses, whatever the resolver says.
func TestLocalhostTriesBothFamilies(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			if ln, err := net.Listen("tcp", addr); err != nil {
				t.Skipf("this machine has no %s: %v", addr, err)
			} else {
				ln.Close()
			}
			s := fakeollama.Start(t, fakeollama.Options{Addr: addr})
			_, port, _ := net.SplitHostPort(s.Addr())
			if resp, _ := ask(t, newServer(t, "http://localhost:"+port), chat(tinyChat)); resp.Status != 200 {
				t.Errorf("status %d", resp.Status)
			}
			if host := s.Log()[0].Host; host != "localhost:"+port {
				t.Errorf("Host %q", host)
			}
		})
	}
}

func TestConnectFailureIsNotSent(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	s.Down()
	if _, err := a.Connect(t.Context(), false); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("connecting to a closed port: %v", err)
	}
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	if resp, _ := ask(t, a, chat(tinyChat)); resp.Status != 200 {
		t.Errorf("after the restart: status %d", resp.Status)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	}))
	ts.Config.ErrorLog = log.New(io.Discard, "", 0)
	ts.StartTLS()
	t.Cleanup(ts.Close)
	a := newServer(t, ts.URL)
	c, err := a.Connect(t.Context(), false)
	if !errors.Is(err, adapter.ErrNotSent) {
		t.Fatalf("unknown authority: %v, %v", c, err)
	}
	a.tls.RootCAs = ts.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	for range 3 {
		if _, body := ask(t, a, chat(tinyChat)); body != tinyChat {
			t.Errorf("body %q", body)
		}
	}
}

func TestGet(t *testing.T) {
	t.Parallel()
	const path = "/v1/models?x=1"
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		size  int
		says  string
	}{
		"whole": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "GET" || r.RequestURI != path || r.ContentLength != 0 || !r.Close {
				t.Errorf("%s %s, length %d, close %v", r.Method, r.RequestURI, r.ContentLength, r.Close)
			}
			w.WriteHeader(404)
			w.Write(make([]byte, 100))
		}, 100, ""},
		"most":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); w.Write(make([]byte, maxGot)) }, maxGot, ""},
		"too big": {func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, maxGot+1)) }, 0, "over"},
		"cut":     {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9"); w.Write(nil) }, 0, "EOF"},
		"none":    {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := plainServer(t, tc.serve)
			status, body, err := a.Get(t.Context(), path)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), path) {
					t.Errorf("error %v, want one that says %q", err, tc.says)
				}
				return
			}
			if err != nil || status != 404 || len(body) != tc.size {
				t.Errorf("status %d, %d bytes, %v", status, len(body), err)
			}
			if n := a.idle.len(); n != 0 {
				t.Errorf("%d connections in the pool", n)
			}
		})
	}
	if _, _, err := newServer(t, "http://127.0.0.1:1").Get(t.Context(), path); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("nobody there: %v", err)
	}
}
