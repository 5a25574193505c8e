package http1

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// Cases A01, A02, A25: nothing of the caller's hop reaches Ollama, and what it
// sees of Host and Origin never earns a 403.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	sent := []adapter.Header{
		{Name: "Host", Value: "llm.example.org"}, {Name: "User-Agent", Value: "GitHubCopilotChat/1"},
		{Name: "origin", Value: "https://app.example.org"}, {Name: "Referer", Value: "https://app.example.org/"},
		{Name: "Access-Control-Request-Method", Value: "POST"}, {Name: "Sec-Fetch-Site", Value: "cross-site"},
		{Name: "Authorization", Value: "Bearer k"}, {Name: "Proxy-Authorization", Value: "Basic k"},
		{Name: "X-API-Key", Value: "k"}, {Name: "Cookie", Value: "k"}, {Name: "x_api_key", Value: "k"}, {Name: "X_Fairway_Node", Value: "n"},
		{Name: "api-key", Value: "k"}, {Name: "X-Goog-Api-Key", Value: "k"}, {Name: "Cookie2", Value: "k"}, {Name: "X-Auth-Token", Value: "k"},
		{Name: "X-Amz-Security-Token", Value: "k"}, {Name: "Ocp-Apim-Subscription-Key", Value: "k"}, {Name: "OpenAI-Organization", Value: "o"},
		{Name: "X-Fairway-Session", Value: "s"}, {Name: "Forwarded", Value: "for=1"}, {Name: "X-Forwarded-For", Value: "1"},
		{Name: "Connection", Value: "keep-alive, X-Hop-Req"}, {Name: "X-Hop-Req", Value: "1"}, {Name: "Keep-Alive", Value: "1"},
		{Name: "TE", Value: "trailers"}, {Name: "Upgrade", Value: "h2c"}, {Name: "Proxy-Connection", Value: "keep-alive"},
		{Name: "Transfer-Encoding", Value: "chunked"}, {Name: "Content-Length", Value: "1"}, {Name: "Expect", Value: "100-continue"},
		{Name: "Accept-Encoding", Value: "gzip"}, {Name: "x-Odd-CASE", Value: "kept \tas it is"}, {Name: "X-Twice", Value: "1"}, {Name: "X-Twice", Value: "2"},
	}
	resp, _ := ask(t, newServer(t, s.URL()), chat(tinyChat, sent...))
	if resp.Status != 200 {
		t.Errorf("status %d", resp.Status)
	}
	want := [][2]string{
		{"Host", s.Addr()}, {"Content-Type", "application/json"}, {"User-Agent", "GitHubCopilotChat/1"},
		{"Accept-Encoding", "gzip"}, {"x-Odd-CASE", "kept \tas it is"}, {"X-Twice", "1"}, {"X-Twice", "2"},
		{"Content-Length", fmt.Sprint(len(tinyChat))},
	}
	if got := s.Log()[0].Headers; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("provider saw\n%q, want\n%q", got, want)
	}
}

func TestBadRequestIsNotSent(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	h := func(name, value string) *adapter.Request {
		return chat(tinyChat, adapter.Header{Name: name, Value: value})
	}
	for name, r := range map[string]*adapter.Request{
		"value CRLF": h("X-A", "b\r\nX-Evil: 1"), "value LF": h("X-A", "b\n"), "value NUL": h("X-A", "b\x00"),
		"name space": h("X A", "b"), "name empty": h("", "b"), "name colon": h("X-A:", "b"), "name CRLF": h("X\r\n", "b"),
		"dropped header, bad value": h("Cookie", "a\r\n\r\nGET /"),
		"method":                    {Method: "GET /x", Path: "/"}, "no method": {Path: "/"}, "connect": {Method: "CONNECT", Path: "/"},
		"path space": {Method: "GET", Path: "/a b"}, "path CRLF": {Method: "GET", Path: "/a\r\nX: 1"},
		"absolute": {Method: "GET", Path: "http://other/"}, "no path": {Method: "GET"},
		"length, no body": {Method: "POST", Path: "/", Length: 3}, "length": {Method: "POST", Path: "/", Length: -2},
		"short body":     {Method: "POST", Path: "/api/chat", Body: strings.NewReader("ab"), Length: 3},
		"failing source": {Method: "POST", Path: "/api/chat", Body: failing{}, Length: 3},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := do(t.Context(), a, r)
			if !errors.Is(err, adapter.ErrNotSent) {
				t.Fatalf("error %v", err)
			}
			if strings.Contains(err.Error(), "Evil") {
				t.Errorf("error shows the value: %v", err)
			}
		})
	}
	if n := len(s.Log()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("stream reset") }

// What appendHead accepts, a server reads as exactly one request with only the
// headers that may travel.
func FuzzAppendHead(f *testing.F) {
	f.Add("POST", "/api/chat", "X-A", "b", "Connection", "x-a", int64(3))
	f.Add("GET", "/", "Transfer-Encoding", "chunked", "Content-Length", "5", int64(0))
	f.Fuzz(func(t *testing.T, method, path, n1, v1, n2, v2 string, length int64) {
		r := &adapter.Request{Method: method, Path: path, Length: length, Headers: []adapter.Header{{Name: n1, Value: v1}, {Name: n2, Value: v2}}}
		if length != 0 {
			r.Body = strings.NewReader("")
		}
		b, err := appendHead(nil, "127.0.0.1:11434", r, false)
		if err != nil {
			return
		}
		br := bufio.NewReader(strings.NewReader(string(b) + "\r\n"))
		req, err := http.ReadRequest(br)
		if err != nil {
			return // refused by the server whole: harmless
		}
		if req.Host != "127.0.0.1:11434" || req.Method != method || req.RequestURI != path {
			t.Errorf("server reads %s %s for %s", req.Method, req.RequestURI, req.Host)
		}
		if length >= 0 && len(req.TransferEncoding) > 0 || length > 0 && req.ContentLength != length {
			t.Errorf("framing %v %d, want %d", req.TransferEncoding, req.ContentLength, length)
		}
		for name := range req.Header {
			if dropRequestHeader(name) && name != "Content-Length" {
				t.Errorf("header %s got through", name)
			}
		}
		if br.Buffered() != 0 {
			t.Errorf("bytes after the head: %q", b)
		}
	})
}
