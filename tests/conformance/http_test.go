package conformance

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// watched is a gateway with a fake behind it, for what must or must not reach a node.
type watched struct {
	g    *rig.Gateway
	fake *fakeollama.Server
}

var behind = &shared[watched]{make: func(t testing.TB) watched {
	fake := fakeollama.Start(t, fakeollama.Options{})
	g := rig.NewGateway(t, rig.Options{NoKey: true, Site: "\t\tcors https://app.example.net\n"})
	waitAdmin(t, g)
	g.NodeOf("n1", fake.URL(), "--credits", "16")
	waitListed(t, g, "t-echo:latest")
	return watched{g, fake}
}}

// seen returns what reached the fake with this id.
func (w watched) seen(id string) (out []fakeollama.Record) {
	for _, r := range w.fake.Log() {
		if r.ID == id {
			out = append(out, r)
		}
	}
	return out
}

// Checks 79-83: what a node sees of a request: its own address, the client's words, and nothing of who the client is.
func TestWhatReachesTheNode(t *testing.T) {
	w := behind.of(t)
	raw := "POST /api/chat HTTP/1.1\r\nHost: ai.example.com\r\nX-Test-Id: " + t.Name() + "\r\n" +
		"User-Agent: GitHubCopilotChat/0.30\r\nOrigin: https://app.example.net\r\nReferer: https://app.example.net/x\r\nAuthorization: Bearer secret\r\n" +
		"Cookie: a=secret\r\nAnthropic-Version: 2023-06-01\r\nOpenai-Organization: o\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTe: trailers\r\n" +
		"Proxy-Authorization: Basic secret\r\nSec-Fetch-Mode: cors\r\nX-Forwarded-For: 10.1.1.1\r\nX-Stainless-Lang: js\r\n"
	body := chat("t-echo", "hi", "")
	m := wire(t, w.g.URL(), raw+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body), "")
	if m.status != 200 || m.header.Get("Access-Control-Allow-Origin") != "https://app.example.net" {
		t.Fatalf("%d %v %s", m.status, m.lines, m.body())
	}
	rs := w.seen(t.Name())
	if len(rs) != 1 {
		t.Fatalf("%d requests", len(rs))
	}
	r := rs[0]
	if r.Host != w.fake.Addr() {
		t.Errorf("Host %q", r.Host)
	}
	for _, h := range r.Headers {
		if strings.Contains(h[1], "secret") || strings.Contains(h[1], "example") || strings.Contains(h[1], "10.1.1.1") {
			t.Errorf("%v reached the node", h)
		}
		if slices.Contains([]string{"origin", "referer", "authorization", "cookie", "x-hop", "keep-alive", "te", "proxy-authorization", "sec-fetch-mode", "openai-organization"}, strings.ToLower(h[0])) {
			t.Errorf("%v reached the node", h)
		}
	}
	for name, want := range map[string]string{"User-Agent": "GitHubCopilotChat/0.30", "Anthropic-Version": "2023-06-01", "X-Stainless-Lang": "js"} {
		if got := r.Header(name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q", name, got)
		}
	}
	preflight := "OPTIONS /api/chat HTTP/1.1\r\nHost: x\r\nConnection: close\r\nOrigin: https://app.example.net\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-api-key\r\n\r\n"
	if m := wire(t, w.g.URL(), preflight, ""); m.status != 204 || !strings.Contains(strings.ToLower(m.header.Get("Access-Control-Allow-Headers")), "x-api-key") {
		t.Errorf("%d %v", m.status, m.lines)
	}
}

// Checks 29, 69: a body of 20 MB and more arrives byte for byte, and a real Ollama says the same to it.
func TestLargeImages(t *testing.T) {
	image := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("0123456789abcde", 1<<20))) // 20 MiB
	body := func(model string) string {
		return fmt.Sprintf(`{"messages":[{"role":"user","content":"hi","images":[%q]}],"stream":false,"model":%q}`, image, model)
	}
	w := behind.of(t)
	sent := body("t-echo")
	a := ask(t, http.DefaultTransport, w.g.URL(), request{method: "POST", path: "/api/chat", body: sent, header: []string{"X-Test-Id", t.Name()}})
	sum := sha256.Sum256([]byte(sent))
	if rs := w.seen(t.Name()); a.status != 200 || len(rs) != 1 || rs[0].SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("%d %s: %+v", a.status, clip(a.body), rs)
	}
	p := commonPair(t)
	if a := p.same(t, post("/api/chat", body("tiny"))); a.status != 400 || !strings.Contains(a.body, "multimodal") {
		t.Errorf("%d %s", a.status, clip(a.body))
	}
}

// Check 75: a client that waits for a 100 gets one, from both.
func TestExpectContinue(t *testing.T) {
	p := commonPair(t)
	body := chat("tiny", "hi", `,"stream":false`)
	head := fmt.Sprintf("POST /api/chat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	wire(t, p.ollama.URL, head, body)
	d, g := wire(t, p.ollama.URL, head, body), wire(t, p.g.URL(), head, body)
	if d.status != 200 || g.status != 200 || !slices.Equal(d.interim, g.interim) || normal(d.body()) != normal(g.body()) {
		t.Errorf("direct %v %d %s\ngateway %v %d %s", d.interim, d.status, d.body(), g.interim, g.status, g.body())
	}
}

// Check 84: a path that is no endpoint's never travels, and no spelling becomes another endpoint on the way.
func TestPathTricks(t *testing.T) {
	w := behind.of(t)
	for _, tt := range []struct {
		path   string
		status int
	}{
		{"//api/tags", 200}, {"/api/tags/", 200}, // folded, not redirected
		{"///api///tags", 404}, {"/api/../x", 404}, {"/api/chat/../tags", 404}, {"/./api/tags", 404}, {"/api/%2e%2e/api/delete", 404}, {"/%2e%2e/api/tags", 404},
		{"/api%2ftags", 404}, {"/api/%74ags", 404}, {"/API/TAGS", 404}, {"/api/tags;x", 404}, {"/api/tags%00", 404}, {"/api/tags%20", 404}, {`/api\tags`, 404},
		{"/v1/v1/models", 404}, {"/v1/api/tags", 404}, {"/api/v1/models", 404},
	} {
		for _, method := range []string{"GET", "POST"} {
			m := wire(t, w.g.URL(), method+" "+tt.path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Test-Id: "+t.Name()+"\r\nContent-Length: 0\r\n\r\n", "")
			// POST to a folded listing is a wrong method. A path that HTTP itself forbids is a 400.
			want := []int{tt.status, 400}
			if tt.status == 200 {
				want = map[string][]int{"GET": {200}, "POST": {405}}[method]
			}
			if !slices.Contains(want, m.status) || !m.whole {
				t.Errorf("%s %s: %d %v %s", method, tt.path, m.status, m.lines, m.body())
			}
		}
	}
	if rs := w.seen(t.Name()); len(rs) != 0 {
		t.Errorf("reached the node: %+v", rs)
	}
}

// Check 85: two readings of where a body ends are none.
func TestSmuggling(t *testing.T) {
	w := behind.of(t)
	hidden := "DELETE /api/delete HTTP/1.1\r\nHost: x\r\nX-Test-Id: " + t.Name() + "\r\nContent-Length: 18\r\n\r\n{\"model\":\"t-echo\"}"
	for name, raw := range map[string]string{
		"two lengths":       "Content-Length: 0\r\nContent-Length: 4\r\n\r\n" + hidden,
		"a length list":     "Content-Length: 0, 4\r\n\r\n" + hidden,
		"length and chunks": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"odd coding":        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		"two codings":       "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
		"space before":      "Transfer-Encoding : chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + hidden,
		"signed length":     "Content-Length: +4\r\n\r\n" + hidden,
	} {
		m := wire(t, w.g.URL(), "POST /api/show HTTP/1.1\r\nHost: localhost\r\n"+raw, "")
		if m.status < 400 || m.status > 501 {
			t.Errorf("%s: %d %s", name, m.status, m.body())
		}
	}
	if rs := w.seen(t.Name()); len(rs) != 0 {
		t.Errorf("a hidden request reached the node: %+v", rs)
	}
}
