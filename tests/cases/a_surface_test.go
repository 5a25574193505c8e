package cases

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// surface is the fleet of area A: one node, cross-origin calls from two origins, and TLS.
var surface = sync.OnceValue(func() *fleet {
	return newFleet(shared, rig.Options{TLS: true, Site: "\t\tcors https://app.example.net http://localhost:3000\n"})
})

// empty is a gateway without any node.
var empty = sync.OnceValue(func() *rig.Gateway { return newGateway(shared, rig.Options{}) })

func TestA01_HostPublic(t *testing.T) {
	t.Parallel()
	f := surface()
	r := f.send(t, "A01_host_public")
	if r.Status != 200 || len(r.At) < 6 || !strings.Contains(r.Body, `"done":true`) {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	_, port, _ := net.SplitHostPort(f.fake.Addr())
	if h := f.record(t).Host; h != "127.0.0.1:"+port && h != "localhost:"+port {
		t.Errorf("the provider sees Host %q", h)
	}
}

func TestA02_Origin(t *testing.T) {
	t.Parallel()
	f := surface()
	r := f.send(t, "A02_origin_https")
	if r.Status != 200 || r.Header.Get("Access-Control-Allow-Origin") != "https://app.example.net" {
		t.Errorf("an allowed origin: %d %v %s", r.Status, r.Lines, r.Body)
	}
	null := f.send(t, "A02_origin_null")
	// The site has keys, so an origin is no credential: the answer comes, and without a header that lets a page read it.
	if null.Status != 200 && (null.Status != 403 || null.Header.Get("X-Fairway-Error") == "") {
		t.Errorf("null: %d %v %s", null.Status, null.Lines, null.Body)
	}
	if v := null.Header.Get("Access-Control-Allow-Origin"); v != "" {
		t.Errorf("null is allowed: %q", v)
	}
	for _, rec := range f.records(t.Name()) {
		if len(rec.Header("Origin")) > 0 || rec.Status == 403 {
			t.Errorf("Origin reached the provider: %v", rec.Headers)
		}
	}
}

func TestA03_Preflight(t *testing.T) {
	t.Parallel()
	f := surface()
	for _, file := range []string{"A03_preflight", "A03_preflight_stainless"} {
		r := f.send(t, file)
		if r.Status != 204 && r.Status != 200 {
			t.Fatalf("%s: %d %s", file, r.Status, r.Body)
		}
		if m := r.Header.Get("Access-Control-Allow-Methods"); m != "*" && !strings.Contains(m, "POST") {
			t.Errorf("methods %q", m)
		}
		allowed := strings.ToLower(r.Header.Get("Access-Control-Allow-Headers"))
		for line := range strings.SplitSeq(string(request{File: file}.bytes(t, "")), "\r\n") {
			names, ok := strings.CutPrefix(line, "Access-Control-Request-Headers: ")
			if !ok {
				continue
			}
			for name := range strings.SplitSeq(names, ",") {
				if !slices.Contains(strings.FieldsFunc(allowed, func(r rune) bool { return r == ',' || r == ' ' }), name) {
					t.Errorf("%s: %s is not among %q", file, name, allowed)
				}
			}
		}
	}
	if n := len(f.records(t.Name())); n != 0 {
		t.Errorf("%d preflights reached the provider", n)
	}
	r := request{File: "A02_origin_https", Key: "wrong"}.to(t, site(f.Gateway))
	if r.Status != 401 {
		t.Errorf("the call itself without a key: %d", r.Status)
	}
}

func TestA04_OneAllowOrigin(t *testing.T) {
	t.Parallel()
	r := surface().send(t, "A04_origin_localhost")
	if got := r.Header.Values("Access-Control-Allow-Origin"); r.Status != 200 || !slices.Equal(got, []string{"http://localhost:3000"}) {
		t.Errorf("%d %v", r.Status, r.Lines)
	}
	if v := strings.Join(r.Header.Values("Vary"), ","); !strings.Contains(v, "Origin") {
		t.Errorf("Vary %q", v)
	}
}

func TestA05_Slashes(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"A05_double_slash", "A05_trailing_slash"} {
		if r := surface().send(t, file); r.Status != 200 || !strings.Contains(r.Body, `"done":true`) {
			t.Errorf("%s: %d %s", file, r.Status, r.Body)
		}
	}
}

// The stock command under a prefix is in tests/conformance: TestCLI.
func TestA06_Prefix(t *testing.T) {
	t.Parallel()
	port := freeport.Get(t)
	f := newFleet(t, rig.Options{Sites: fmt.Sprintf(`http://:%d {
	bind 127.0.0.1
	handle_path /ollama* {
		fairway
	}
	handle {
		respond "not the api" 404
	}
}
`, port)})
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	tags := request{File: "A06_prefix_tags"}.to(t, addr)
	if tags.Status != 200 || !strings.Contains(tags.Body, "t-echo:latest") {
		t.Errorf("tags: %d %s", tags.Status, tags.Body)
	}
	root := request{File: "A06_prefix_root"}.to(t, addr)
	if root.Status != 200 || root.Body != "Ollama is running" {
		t.Errorf("root: %d %s", root.Status, root.Body)
	}
	bare := request{File: "A06_prefix_root_noslash"}.to(t, addr)
	if bare.Status != 200 || bare.Ended != complete {
		t.Errorf("root without a slash: %d %s", bare.Status, bare.Ended)
	}
	chat := request{Bytes: strings.Replace(string(request{File: "A05_double_slash"}.bytes(t, addr)), "//api/chat", "/ollama/api/chat/", 1)}.to(t, addr)
	if chat.Status != 200 {
		t.Errorf("chat: %d %s", chat.Status, chat.Body)
	}
	for _, r := range []*reply{tags, root, bare, chat} {
		if l := r.Header.Get("Location"); l != "" {
			t.Errorf("Location %q", l)
		}
	}
	_ = f
}

func TestA07_Root(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]*rig.Gateway{"a node": surface().Gateway, "no node": empty()} {
		get := request{File: "A07_get_root"}.to(t, site(g))
		if get.Status != 200 || get.Body != "Ollama is running" || !strings.HasPrefix(get.Header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s: GET: %d %v %q", name, get.Status, get.Lines, get.Body)
		}
		head := request{File: "A07_head_root"}
		head = request{Bytes: strings.Replace(string(head.bytes(t, site(g))), "Connection: close\r\n", "", 1)}
		r := head.open(t, site(g))
		if r.Status != 200 || r.Ended != complete {
			t.Errorf("%s: HEAD: %d %s", name, r.Status, r.Ended)
		}
		// The same connection again: nothing may have followed the head.
		if _, err := r.conn.Write(get0(t, g)); err != nil {
			t.Fatal(err)
		}
		if err := r.read(request{}, false, time.Now()); err != nil || r.Status != 200 || r.Body != "Ollama is running" {
			t.Errorf("%s: the connection after HEAD: %v %d %q", name, err, r.Status, r.Body)
		}
		r.close(false)
	}
}

func get0(t *testing.T, g *rig.Gateway) []byte {
	return request{File: "A07_get_root"}.bytes(t, site(g))
}

func TestA08_V1Doubled(t *testing.T) {
	t.Parallel()
	f := surface()
	r := f.send(t, "A08_v1_api_tags")
	if r.Status != 404 || !r.isJSON() || !strings.Contains(r.Body, "/v1/api/tags") || !strings.Contains(r.Body, `"error"`) {
		t.Errorf("%d %v %s", r.Status, r.Lines, r.Body)
	}
	quickest := r.Total
	for range 5 { // the machine may be busy with other tests
		quickest = min(quickest, f.send(t, "A08_v1_api_tags").Total)
	}
	if quickest > within(100*time.Millisecond) {
		t.Errorf("took %v", quickest)
	}
	if n := len(f.records(t.Name())); n != 0 {
		t.Errorf("%d nodes asked", n)
	}
}

func TestA09_Tags(t *testing.T) {
	t.Parallel()
	f := surface()
	for file, name := range map[string]string{"A09_untagged": "t-echo", "A09_tagged": "t-echo:latest"} {
		r := f.send(t, file)
		// The fake, like Ollama, says the name as it was asked.
		if r.Status != 200 || !strings.Contains(r.Body, `"model":"`+name+`"`) {
			t.Errorf("%s: %d %s", file, r.Status, r.Body)
		}
	}
}

func TestA10_LongNames(t *testing.T) {
	t.Parallel()
	f := surface()
	const name = "hf.co/acme-lab/Tiny-T-GGUF:Q4_K_M"
	r := f.send(t, "A10_hf_name")
	if r.Status != 200 {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	if got := f.record(t).Model; got != name {
		t.Errorf("the provider is asked for %q", got)
	}
	var rows []struct {
		RunID string `json:"run_id"`
		Model string
	}
	if err := f.AdminGet("/fairway/runs", &rows); err != nil {
		t.Fatal(err)
	}
	id := r.Header.Get("X-Fairway-Run")
	for _, row := range rows {
		if row.RunID == id && !strings.EqualFold(row.Model, name) {
			t.Errorf("the list of runs says %q", row.Model)
		}
	}
}

func TestA11_NameOrModel(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"A11_show_name", "A11_show_model", "A11_show_both"} {
		if r := surface().send(t, file); r.Status != 200 || !strings.Contains(r.Body, "capabilities") {
			t.Errorf("%s: %d %s", file, r.Status, r.Body)
		}
	}
}

func TestA25_HopByHop(t *testing.T) {
	t.Parallel()
	f := surface()
	if r := f.send(t, "A25_conn_nominated"); r.Status != 200 {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	rec := f.record(t)
	for _, name := range []string{"X-Hop-Req", "Keep-Alive", "Proxy-Connection", "Upgrade"} {
		if v := rec.Header(name); len(v) > 0 {
			t.Errorf("%s %q reached the provider", name, v)
		}
	}
	if v := rec.Header("TE"); len(v) > 0 && !slices.Equal(v, []string{"trailers"}) {
		t.Errorf("TE %q", v)
	}
	r := request{File: "A25_resp_hop"}.to(t, site(f.Gateway))
	clean := func(h http.Header) {
		t.Helper()
		for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Connection"} {
			if v := h.Get(name); v != "" {
				t.Errorf("%s %q reached the client", name, v)
			}
		}
	}
	if r.Status != 200 || r.Header.Get("Connection") != "close" { // the client's own wish
		t.Errorf("%d %v", r.Status, r.Lines)
	}
	clean(r.Header)
	h2, h3 := secure(t, f.Gateway)
	for _, c := range []client{h2, h3} {
		r, err := c.do(t.Context(), "POST", "/api/chat", strings.NewReader(chat("t-hop", "")))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r.Body); err != nil || r.StatusCode != 200 || !strings.Contains(string(b), `"done":true`) {
			t.Errorf("%s: %d %v %s", r.Proto, r.StatusCode, err, b)
		}
		r.Body.Close()
		clean(r.Header)
		if v := r.Header.Get("Connection"); v != "" {
			t.Errorf("%s: Connection %q", r.Proto, v)
		}
	}
}

func TestA26_HTTP3Framing(t *testing.T) {
	t.Parallel()
	f := surface()
	h2, h3 := secure(t, f.Gateway)
	bodies := map[string][]string{}
	for name, c := range map[string]client{"h1": plain(t, f.Gateway), "h2": h2, "h3": h3} {
		for _, ask := range [][3]string{
			{"GET", "/api/tags", ""}, {"GET", "/v1/models/t-echo", ""}, {"POST", "/api/show", `{"model":"t-echo"}`}, {"POST", "/api/chat", chat("t-echo", `,"stream":false`)},
		} {
			status, body := c.ask(ask[0], ask[1], ask[2], "X-Test-Id", t.Name()+name)
			if status != 200 {
				t.Errorf("%s: %v: %d %s", name, ask, status, body)
			}
			bodies[name] = append(bodies[name], body)
		}
		for _, rec := range f.records(t.Name() + name) {
			switch {
			case rec.Method == "GET" && (rec.Framing != "none" || rec.Len != 0):
				t.Errorf("%s: GET %s has a body: %s", name, rec.Path, rec.Framing)
			case rec.Method == "POST" && (rec.Len == 0 || !rec.BodyComplete):
				t.Errorf("%s: POST %s arrived with %d bytes, %s", name, rec.Path, rec.Len, rec.Framing)
			}
		}
	}
	if !slices.Equal(bodies["h1"], bodies["h2"]) || !slices.Equal(bodies["h1"], bodies["h3"]) {
		t.Errorf("the answers differ: %v", bodies)
	}
}
