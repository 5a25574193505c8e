package conformance

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quic-go/quic-go/http3"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// streams asks every family for a stream of 60 tokens.
var streams = []request{
	{name: "generate", method: "POST", path: "/api/generate", body: `{"model":"tiny:slow","prompt":"#loop","options":{"num_predict":60}}`},
	{name: "chat", method: "POST", path: "/api/chat", body: chat("tiny:slow", "#loop", `,"options":{"num_predict":60}`)},
	{name: "v1 chat", method: "POST", path: "/v1/chat/completions", body: chat("tiny:slow", "#loop", `,"max_tokens":60,"stream":true`)},
	{name: "v1 completions", method: "POST", path: "/v1/completions", body: `{"model":"tiny:slow","prompt":"#loop","max_tokens":60,"stream":true}`},
	{name: "responses", method: "POST", path: "/v1/responses", body: `{"model":"tiny:slow","input":"#loop","max_output_tokens":60,"stream":true}`},
	{name: "messages", method: "POST", path: "/v1/messages", body: chat("tiny:slow", "#loop", `,"max_tokens":60,"stream":true`)},
}

// Check 15: chunks are cut where Ollama cuts them. It writes a line or an event at a time; those that come while the machine is busy may
// share a chunk, but none is ever split, and they are the exception.
func TestChunkEdges(t *testing.T) {
	p := commonPair(t)
	for _, r := range streams {
		t.Run(r.name, func(t *testing.T) {
			wire(t, p.ollama.URL, rawPost(r.path, r.body), "")
			d, g := wire(t, p.ollama.URL, rawPost(r.path, r.body), ""), wire(t, p.g.URL(), rawPost(r.path, r.body), "")
			sameChunks(t, d, g)
		})
	}
}

// The same from a provider that writes twelve times a second: each write is one chunk, whatever the machine does beside.
func TestChunkEdgesPaced(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick:latest"}})
	g := rig.NewGateway(t, rig.Options{NoKey: true})
	waitAdmin(t, g)
	g.NodeOf("n1", fake.URL(), "--credits", "32")
	waitListed(t, g, "t-tick:latest")
	for _, r := range streams {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			body := strings.TrimSuffix(strings.ReplaceAll(r.body, "tiny:slow", "t-tick"), "}") + `,"t_n":12,"t_ms":80}`
			sameChunks(t, wire(t, fake.URL(), rawPost(r.path, body), ""), wire(t, g.URL(), rawPost(r.path, body), ""))
		})
	}
}

func sameChunks(t *testing.T, d, g message) {
	t.Helper()
	if d.status != 200 || g.status != 200 || !d.whole || !g.whole || d.framings() != 1 || g.framings() != 1 {
		t.Fatalf("direct %d %v whole %v, gateway %d %v whole %v", d.status, d.lines, d.whole, g.status, g.lines, g.whole)
	}
	// Edges are counted in the comparable form: times have no fixed width.
	edges := func(m message) (at []int, body string) {
		for _, c := range m.chunks {
			body += normal(c)
			at = append(at, len(body))
		}
		return at, body
	}
	de, db := edges(d)
	ge, gb := edges(g)
	if db != gb {
		t.Fatalf("direct\n%s\ngateway\n%s", clip(db), clip(gb))
	}
	for i, e := range ge {
		if !slices.Contains(de, e) {
			t.Fatalf("chunk %d ends where none of the direct answer's ends: %q", i, clip(g.chunks[i]))
		}
	}
	if len(ge) < len(de)*8/10 {
		t.Errorf("chunks were gathered: %d direct, %d through the gateway", len(de), len(ge))
	}
}

// Checks 72, 73: nothing is compressed or framed anew, whatever the client accepts.
func TestNoCompressionOneFraming(t *testing.T) {
	p := commonPair(t)
	accept := "Accept-Encoding: gzip, deflate, br, zstd"
	for _, raw := range []string{
		rawPost("/api/generate", `{"model":"tiny","prompt":"hi"}`, accept),
		rawPost("/api/generate", `{"model":"tiny","prompt":"hi","stream":false}`, accept),
		rawPost("/v1/chat/completions", chat("tiny", "hi", `,"stream":true`), accept),
		rawPost("/v1/chat/completions", chat("tiny", "hi", ``), accept),
		rawPost("/v1/messages", chat("tiny", "hi", `,"max_tokens":50,"stream":true`), accept),
		rawPost("/api/embed", `{"model":"tiny-embed","input":"a"}`, accept),
		rawPost("/api/chat", chat("nope", "hi", ""), accept),
		rawPost("/api/show", `{"model":"tiny-tools"}`, accept),
		"GET /api/tags HTTP/1.1\r\nHost: localhost\r\n" + accept + "\r\n\r\n",
		"HEAD /api/tags HTTP/1.1\r\nHost: localhost\r\n" + accept + "\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: localhost\r\n" + accept + "\r\n\r\n",
	} {
		wire(t, p.ollama.URL, raw, "")
		d, g := wire(t, p.ollama.URL, raw, ""), wire(t, p.g.URL(), raw, "")
		line, _, _ := strings.Cut(raw, "\r\n")
		if g.header.Get("Content-Encoding") != "" || g.framings() > 1 || !g.whole || g.status != d.status {
			t.Errorf("%s: %d %v whole %v", line, g.status, g.lines, g.whole)
		}
		// What Ollama sends with a length has one here too; a listing that it chunks may have one.
		if d.header.Get("Content-Length") != "" && g.header.Get("Content-Length") == "" {
			t.Errorf("%s: the length is lost: direct %v, gateway %v", line, d.lines, g.lines)
		}
	}
}

// secure are HTTP/2 and HTTP/3 clients of a gateway with TLS.
func secure(t *testing.T, g *rig.Gateway) map[string]http.RoundTripper {
	t.Helper()
	conf := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"} //nolint:gosec // a CA of the test's own
	two := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", g.HTTPS))
	}}
	three := &http3.Transport{TLSClientConfig: conf}
	t.Cleanup(func() { two.CloseIdleConnections(); _ = three.Close() })
	return map[string]http.RoundTripper{"h2": two, "h3": three}
}

// Check 74: clients of HTTP/1.0, HTTP/2 and HTTP/3 get the bodies that Ollama sends.
func TestEveryHTTPVersion(t *testing.T) {
	p := commonPair(t)
	asked := append([]request{
		get("/"), get("/api/tags"), get("/v1/models/tiny"), get("/api/chat"), post("/api/chat", chat("nope", "hi", "")), post("/v1/chat/completions", `{`),
		post("/api/generate", `{"model":"tiny","prompt":"hi","stream":false}`), post("/api/embed", `{"model":"tiny-embed","input":"a"}`),
		post("/v1/messages", chat("tiny", "hi", `,"max_tokens":50`)), {method: "HEAD", path: "/api/tags"},
	}, streams...)
	versions := secure(t, p.g)
	base := fmt.Sprintf("https://localhost:%d", p.g.HTTPS)
	for _, r := range asked {
		if r.method == "POST" {
			ask(t, http.DefaultTransport, p.ollama.URL, r)
		}
		d := ask(t, http.DefaultTransport, p.ollama.URL, r)
		for v, c := range versions {
			g := ask(t, c, base, r)
			if diff := d.diff(g); diff != "" {
				t.Errorf("%s: %s %s\n%s", v, r.method, r.path, diff)
			}
		}
		raw := fmt.Sprintf("%s %s HTTP/1.0\r\n", r.method, r.path)
		if r.body != "" {
			raw += fmt.Sprintf("Content-Length: %d\r\n", len(r.body))
		}
		g := wire(t, p.g.URL(), raw+"\r\n"+r.body, "")
		if g.status != d.status || normal(g.body()) != normal(d.body) || g.header.Get("Transfer-Encoding") != "" || !g.whole {
			t.Errorf("h1.0: %s %s: %d %v\n%s\nbut direct %d\n%s", r.method, r.path, g.status, g.lines, clip(normal(g.body())), d.status, clip(normal(d.body)))
		}
	}
}

// Check 16, 17, 40-42, 49, 52: what the equal answers look like, so that two equally broken ones would not pass.
func TestStreamsAreOllamas(t *testing.T) {
	p := commonPair(t)
	ended := func(path, body string) string { return ask(t, http.DefaultTransport, p.g.URL(), post(path, body)).body }
	count := func(s, expr string) int { return len(regexp.MustCompile(expr).FindAllString(s, -1)) }
	generate := ended("/api/generate", `{"model":"tiny","prompt":"hi"}`)
	lines := strings.Split(strings.TrimSuffix(generate, "\n"), "\n")
	last := lines[len(lines)-1]
	if len(lines) < 14 || count(generate, `"eval_count"`) != 1 || count(generate, `"done":true`) != 1 || count(last, `"done":true,"done_reason":"stop","context":\[`) != 1 || count(last, `"eval_count":16`) != 1 {
		t.Errorf("%s", generate)
	}
	v1 := ended("/v1/chat/completions", chat("tiny", "hi", `,"stream":true`))
	if count(v1, `"role":"assistant"`) < 1 || count(v1, `"finish_reason":"stop"`) != 1 || !strings.HasSuffix(v1, "data: [DONE]\n\n") || strings.Contains(v1, `"usage"`) || count(v1, `"fp_ollama"`) < 14 {
		t.Errorf("%s", v1)
	}
	if v1 = ended("/v1/chat/completions", chat("tiny", "hi", `,"stream":true,"stream_options":{"include_usage":true}`)); count(v1, `"choices":\[\],"usage"`) != 1 {
		t.Errorf("%s", v1)
	}
	responses := ended("/v1/responses", `{"model":"tiny","input":"hi","stream":true}`)
	for i, seq := range regexp.MustCompile(`"sequence_number":(\d+)`).FindAllStringSubmatch(responses, -1) {
		if seq[1] != fmt.Sprint(i) {
			t.Errorf("event %d has the number %s", i, seq[1])
		}
	}
	order(t, responses, "response.created", "response.in_progress", "response.output_item.added", "response.output_text.delta", "response.output_text.done", "response.completed")
	order(t, ended("/v1/messages", chat("tiny", "hi", `,"max_tokens":50,"stream":true`)),
		"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop")
}

// order holds that the events are there, and first come in this order.
func order(t *testing.T, body string, events ...string) {
	t.Helper()
	at := -1
	for _, e := range events {
		i := strings.Index(body, "event: "+e+"\n")
		if i <= at {
			t.Errorf("%s is at %d: %s", e, i, clip(body))
		}
		at = i
	}
}
