package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// fault runs one request into a fault and returns its outcome.
//
//nolint:revive,staticcheck // the server stands beside the outcome
func fault(t *testing.T, kind string, r *adapter.Request) (*adapter.Response, []byte, error, *fakeollama.Server) {
	t.Helper()
	s := fakeollama.Start(t, fakeollama.Options{})
	if err := s.SetFault(fakeollama.Fault{Kind: kind, Times: 1}); err != nil {
		t.Fatal(err)
	}
	a := newServer(t, s.URL())
	resp, err := do(t.Context(), a, r)
	if err != nil {
		return nil, nil, err, s
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, b, err, s
}

func TestFaultBeforeTheHead(t *testing.T) {
	t.Parallel()
	for kind, bad := range map[string]bool{"close": false, "reset": false, "bighead": true, "badstatus": true,
		"switch": true, "garbage": true, "twolengths": true, "badheader": true} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			_, _, err, s := fault(t, kind, chat(tinyChat))
			if err == nil || errors.Is(err, adapter.ErrNotSent) || errors.Is(err, adapter.ErrBadResponse) != bad {
				t.Errorf("error %v, bad response: want %v", err, bad)
			}
			if errors.Is(err, io.EOF) {
				t.Errorf("%v looks like a normal end", err)
			}
			if n := len(s.Log()); n != 1 {
				t.Errorf("provider saw %d requests", n)
			}
		})
	}
}

// Case B05: a cut answer never looks complete, and what came before the cut is
// there.
func TestCutAnswerIsAnError(t *testing.T) {
	t.Parallel()
	for kind, prefix := range map[string]string{"rst": `{"created_at"`, "truncate": "{}{}", "unfinished": "{}{}", "short": `{"done":`} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			_, b, err, _ := fault(t, kind, chat(tinyChat))
			if err == nil || errors.Is(err, io.EOF) {
				t.Fatalf("error %v after %q", err, b)
			}
			if kind != "rst" && !bytes.HasPrefix(b, []byte(prefix)) { // a reset may overtake data
				t.Errorf("body %q, want it to begin with %q", b, prefix)
			}
		})
	}
}

func TestUnusualAnswers(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"interim": `{"done":true}`, "http10": `{"done":true}`, "extra": "{}", "closeheader": "{}", "trailer": "{}"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			resp, b, err, _ := fault(t, kind, chat(tinyChat))
			if err != nil || resp.Status != 200 || string(b) != want {
				t.Fatalf("%v %q %v", resp, b, err)
			}
			if got := header(resp.Trailers(), "X-Sum"); (kind == "trailer") != (got == "7") {
				t.Errorf("trailer %q", got)
			}
		})
	}
}

// Cases A25, A27, A04: the provider's hop and its CORS stay here, its
// Content-Type passes.
func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	resp, _, err, _ := fault(t, "hostile", chat(tinyChat))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range resp.Headers {
		names = append(names, h.Name)
	}
	// Cookies and the forged header are the gateway's to judge.
	if got := strings.Join(names, " "); got != "Content-Length Content-Type Set-Cookie X-Fairway-Node X-Long" {
		t.Errorf("headers %s", got)
	}
}

func TestBytesAfterAnAnswerNeverReachTheNext(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	for range 20 {
		if err := s.SetFault(fakeollama.Fault{Kind: "extra", Times: 1}); err != nil {
			t.Fatal(err)
		}
		ask(t, a, chat(tinyChat))
		if _, body := ask(t, a, chat(tinyChat)); strings.Contains(body, "poison") {
			t.Fatal("answer of nobody's request delivered")
		}
	}
}

// An answer that comes before the body was read is seen, and ends the sending.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	if err := s.SetFault(fakeollama.Fault{Kind: "early"}); err != nil {
		t.Fatal(err)
	}
	body, w := io.Pipe() // more never comes
	go w.Write(make([]byte, 1000))
	t.Cleanup(func() { w.Close() })
	resp, b := ask(t, newServer(t, s.URL()), &adapter.Request{Method: "POST", Path: "/api/blobs/x", Body: body, Length: -1})
	if resp.Status != 413 || !strings.Contains(b, "too large") {
		t.Errorf("status %d, body %q", resp.Status, b)
	}
}

// A body whose source fails on the way is never completed by the adapter.
func TestFailingSourceCutsTheRequest(t *testing.T) {
	t.Parallel()
	for _, length := range []int64{-1, maxInline * 2} {
		s := fakeollama.Start(t, fakeollama.Options{})
		src := io.MultiReader(strings.NewReader(strings.Repeat("x", 1000)), failing{})
		_, err := do(t.Context(), newServer(t, s.URL()), &adapter.Request{Method: "POST", Path: "/api/chat", Body: src, Length: length})
		if err == nil || errors.Is(err, adapter.ErrNotSent) || !strings.Contains(err.Error(), "stream reset") {
			t.Errorf("length %d: error %v", length, err)
		}
		rec, err := s.Wait(within(t, 5*time.Second), func(r fakeollama.Record) bool { return r.ClientGone > 0 })
		if err != nil || rec.BodyComplete {
			t.Errorf("length %d: provider saw a complete body (%v)", length, err)
		}
	}
}

func TestBodyWithoutDeclaredEnd(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"", "a", "short"} {
		s := fakeollama.Start(t, fakeollama.Options{})
		_, err := do(t.Context(), newServer(t, s.URL()), &adapter.Request{Method: "POST", Path: "/api/chat",
			Body: strings.NewReader(part), Length: maxInline + 1})
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("body of %d of %d bytes: %v", len(part), maxInline+1, err)
		}
	}
}

// FuzzAnswer feeds arbitrary bytes as a provider's answer: no panic, no hang, and
// never a status outside the bounds.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 100 \r\n\r\nHTTP/1.1 204 \r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "HTTP/1.1 999 X\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n"} {
		f.Add([]byte(s))
	}
	a, err := New("ollama", "http://127.0.0.1:1", "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		near, far := net.Pipe()
		go func() {
			http.ReadRequest(bufio.NewReader(far))
			far.Write(raw)
			far.Close()
		}()
		x := &exchange{s: a, c: newConn(near, near), own: true}
		resp, err := x.Do(t.Context(), &adapter.Request{Method: "GET", Path: "/"})
		if err != nil {
			near.Close()
			return
		}
		if resp.Status < 200 || resp.Status > 599 {
			t.Errorf("status %d", resp.Status)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	})
}
