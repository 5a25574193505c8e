package gateway

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/tunnel"
)

func TestSplitPrefixes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, rest, token, node string
		bad                   bool
	}{
		{in: "/api/tags", rest: "/api/tags"},
		{in: "/k/tok/api/tags", rest: "/api/tags", token: "tok"},
		{in: "/k/tok", rest: "/", token: "tok"},
		{in: "/k/tok/", rest: "/", token: "tok"},
		{in: "/n/n1/api/pull", rest: "/api/pull", node: "n1"},
		{in: "/k/tok/n/n1/api/pull", rest: "/api/pull", token: "tok", node: "n1"},
		{in: "/n/n1/k/tok/api/pull", rest: "/api/pull", token: "tok", node: "n1"},
		{in: "/k/a%2Fb/api/tags", rest: "/api/tags", token: "a/b"},
		{in: "/k/a/k/b/api/tags", rest: "/k/b/api/tags", token: "a"},
		{in: "//k/tok/api/tags", rest: "/api/tags", token: "tok"},
		{in: "/k/tok//api/tags", rest: "/api/tags", token: "tok"},
		{in: "/k//api/tags", bad: true},
		{in: "/k/%zz/api/tags", bad: true},
		{in: "/kx/api", rest: "/kx/api"},
	} {
		rest, token, node, err := splitPrefixes(tt.in)
		if (err != nil) != tt.bad || (!tt.bad && (rest != tt.rest || token != tt.token || node != tt.node)) {
			t.Errorf("%s: %q %q %q %v", tt.in, rest, token, node, err)
		}
	}
}

func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("POST", "/api/chat", nil)
	stays := []string{"Content-Type", "User-Agent", "Anthropic-Version", "Openai-Beta", "Accept", "Accept-Encoding", "Traceparent", "X-Request-Id"}
	goes := []string{
		"Authorization", "X-Api-Key", "Cookie", "Connection", "Keep-Alive", "Te", "Upgrade", "Transfer-Encoding", "Proxy-Authorization", "Proxy-Connection",
		"Origin", "Referer", "Sec-Fetch-Mode", "Access-Control-Request-Method", "X-Fairway-Run", "X_Fairway_Principal", "X-Forwarded-For", "Forwarded",
		"X-Hop", "Expect", "Content-Length", "Early-Data",
	}
	for _, n := range slices.Concat(stays, goes) {
		r.Header[n] = []string{"v"}
	}
	r.Header["Connection"] = []string{"X-Hop, close"}
	var got []string
	for _, h := range requestHeaders(r) {
		got = append(got, h.Name)
	}
	slices.Sort(got)
	slices.Sort(stays)
	if !slices.Equal(got, stays) {
		t.Fatalf("forwarded %v\nwant %v", got, stays)
	}
}

// Attack 33.
func TestAttack33AnswerHeaders(t *testing.T) {
	t.Parallel()
	h := func(kv ...string) (out []*tunnel.Header) {
		for i := 0; i+1 < len(kv); i += 2 {
			out = append(out, &tunnel.Header{Name: kv[i], Value: []byte(kv[i+1])})
		}
		return out
	}
	for _, tt := range []struct {
		name string
		in   []*tunnel.Header
		ok   bool
		want []string
	}{
		{"what stays", h("Content-Type", "text/x", "Cache-Control", "no-cache", "Content-Length", "3"), true, []string{"Cache-Control", "Content-Length", "Content-Type"}},
		{"what stops here", h("Connection", "X-Hop", "X-Hop", "1", "Keep-Alive", "1", "Transfer-Encoding", "chunked", "Set-Cookie", "a", "Alt-Svc", "x",
			"X-Fairway-Error", "forged", "Access-Control-Allow-Origin", "*", "Date", "x", "Server", "x"), true, nil},
		{"a line break in a value", h("X-A", "a\r\nSet-Cookie: b"), false, nil},
		{"NUL", h("X-A", "a\x00"), false, nil},
		{"no name", h("", "a"), false, nil},
		{"a name with a space", h("X A", "a"), false, nil},
		{"two lengths", h("Content-Length", "1", "Content-Length", "2"), false, nil},
	} {
		dst := http.Header{}
		ok := answerHeaders(dst, tt.in)
		var got []string
		for n := range dst {
			got = append(got, n)
		}
		slices.Sort(got)
		if ok != tt.ok || (ok && !slices.Equal(got, tt.want)) {
			t.Errorf("%s: %v %v", tt.name, ok, got)
		}
	}
}

// FuzzAnswerHeaders: whatever a node sends, nothing that is not a header line gets to a client.
func FuzzAnswerHeaders(f *testing.F) {
	f.Add("Content-Type", "text/plain")
	f.Add("X\r\nY", "1")
	f.Add("X-Fairway-Run", "1")
	f.Add("connection", "content-type")
	f.Fuzz(func(t *testing.T, name, value string) {
		dst := http.Header{}
		if !answerHeaders(dst, []*tunnel.Header{{Name: name, Value: []byte(value)}}) {
			return
		}
		for n, vs := range dst {
			if strings.ContainsAny(n, "\r\n\x00: ") || strings.HasPrefix(n, "X-Fairway") || n == "Connection" || n == "Transfer-Encoding" {
				t.Fatalf("%q came through", n)
			}
			for _, v := range vs {
				if strings.ContainsAny(v, "\r\n\x00") {
					t.Fatalf("%q came through", v)
				}
			}
		}
	})
}

func TestCORS(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		o      Options
		origin string
		host   string
		open   bool // may call without a key being asked
	}{
		{"a strange page, no key asked", Options{Auth: AuthNone}, "https://evil.example", "gw.example", false},
		{"a strange page, a key asked", Options{}, "https://evil.example", "gw.example", true},
		{"localhost", Options{Auth: AuthNone}, "http://localhost:3000", "gw", true},
		{"an editor", Options{Auth: AuthNone}, "vscode-webview://abc", "gw", true},
		{"null", Options{Auth: AuthNone}, "null", "gw", false},
		{"its own page", Options{Auth: AuthNone}, "https://ai.example", "ai.example", true},
		{"a rebound name on loopback", Options{Auth: AuthNone, Loopback: true}, "http://evil.example:11435", "evil.example:11435", false},
		{"allowed", Options{Auth: AuthNone, CORS: []string{"https://app.example"}}, "https://app.example", "gw", true},
		{"all allowed", Options{Auth: AuthNone, CORS: []string{"*"}}, "null", "gw", true},
	} {
		p := newCORSPolicy(tt.o)
		open := p.allows(tt.origin) || !p.open || p.local(tt.origin, tt.host)
		if open != tt.open {
			t.Errorf("%s: %v", tt.name, open)
		}
	}
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	ask := []string{"Authorization", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization, x-stainless-os"}
	r := newRig(t, Options{CORS: []string{"https://app.example"}})
	resp, _ := r.do("OPTIONS", "/api/chat", "", ask...)
	if resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Origin") != "https://app.example" || !strings.Contains(resp.Header.Get("Access-Control-Allow-Methods"), "POST") ||
		resp.Header.Get("Access-Control-Allow-Headers") != "authorization, x-stainless-os" || !slices.Contains(resp.Header.Values("Vary"), "Origin") {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	resp, body := r.do("POST", "/api/chat", "{}", "Authorization", "", "Origin", "https://app.example")
	if resp.StatusCode != 401 || len(resp.Header.Values("Access-Control-Allow-Origin")) != 1 {
		t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	none := newRig(t, Options{})
	resp, body = none.do("OPTIONS", "/api/chat", "", ask...)
	if resp.StatusCode != 403 || resp.Header.Get("Access-Control-Allow-Origin") != "" || !strings.HasPrefix(body, `{"error":`) {
		t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for _, tt := range []struct {
		name, path string
		header     []string
		status     int
	}{
		{"bearer", "/api/tags", nil, 200},
		{"another principal", "/api/tags", []string{"Authorization", "bearer sk-bob"}, 200},
		{"x-api-key", "/v1/models", []string{"Authorization", "", "X-Api-Key", testKey}, 200},
		{"path", "/k/" + testKey + "/api/tags", []string{"Authorization", ""}, 200},
		{"none", "/api/tags", []string{"Authorization", ""}, 401},
		{"wrong", "/api/tags", []string{"Authorization", "Bearer x"}, 401},
		{"wrong in the path wins", "/k/x/api/tags", nil, 401},
		{"basic", "/api/tags", []string{"Authorization", "Basic " + testKey}, 401},
		{"liveness needs none", "/", []string{"Authorization", ""}, 200},
		{"Connection names it", "/api/tags", []string{"Connection", "Authorization"}, 400},
	} {
		resp, body := r.do("GET", tt.path, "", tt.header...)
		if resp.StatusCode != tt.status {
			t.Errorf("%s: %d %s", tt.name, resp.StatusCode, body)
		}
		if tt.status == 401 && resp.Header.Get("Www-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", tt.name)
		}
	}
}

func TestBodyLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{MaxBody: 1000})
	big := chat("t-echo", `,"pad":"`+strings.Repeat("x", 2000)+`"`)
	resp, body := r.do("POST", "/api/chat", big)
	if resp.StatusCode != 413 || resp.Header.Get(headerError) != codeBodyTooLarge {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	req, _ := http.NewRequest("POST", r.srv.URL+"/api/chat", struct{ *strings.Reader }{strings.NewReader(big)}) //nolint:noctx // loopback
	req.Header.Set("Authorization", "Bearer "+testKey)
	resp2, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp2.Body.Close()
	if resp2.StatusCode != 413 {
		t.Fatalf("of unknown length: %d", resp2.StatusCode)
	}
	if used := r.hub.bodies.used.Load(); used != 0 {
		t.Fatalf("%d bytes of the budget are not given back", used)
	}
	r.hub.bodies.used.Store(maxBuffered)
	resp, _ = r.do("POST", "/api/chat", chat("t-echo", ""))
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("%d with the budget used up", resp.StatusCode)
	}
}

// Attack 13: early data can be replayed, so it starts nothing.
func TestAttack13EarlyData(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	h := r.handler(Options{})
	for method, status := range map[string]int{"POST": 425, "DELETE": 425, "GET": 401} {
		path := map[string]string{"POST": "/api/chat", "DELETE": "/api/delete", "GET": "/api/tags"}[method]
		req := httptest.NewRequest(method, path, strings.NewReader(chat("t-echo", "")))
		req.TLS = &tls.ConnectionState{}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code != status {
			t.Errorf("%s in early data: %d %s", method, w.Code, w.Body)
		}
	}
}

func TestLocalHost(t *testing.T) {
	t.Parallel()
	for host, local := range map[string]bool{
		"": true, "localhost": true, "LOCALHOST:11435": true, "x.localhost": true, "box.local": true, "ollama.internal:80": true, "127.0.0.1:1": true, "[::1]:1": true,
		"10.1.2.3": true, "0.0.0.0": true, "evil.example": false, "evil.example:11435": false, "127.0.0.1.evil.example": false, "8.8.8.8": false, "localhost.evil.example": false,
	} {
		if localName(host) != local {
			t.Errorf("%q", host)
		}
	}
	r := newRig(t, Options{Auth: AuthNone, Loopback: true, LocalHost: true})
	req, _ := http.NewRequest("GET", r.srv.URL+"/api/tags", nil) //nolint:noctx // loopback
	req.Host = "evil.example"
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 403 {
		t.Errorf("%d", resp.StatusCode)
	}
	if resp, _ := r.do("GET", "/api/tags", ""); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
}
