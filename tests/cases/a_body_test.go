package cases

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

func TestA12_ShowOfEveryTag(t *testing.T) {
	t.Parallel()
	f := surface()
	c := plain(t, f.Gateway)
	_, body := c.ask("GET", "/api/tags", "")
	var tags struct{ Models []struct{ Name string } }
	if err := json.Unmarshal([]byte(body), &tags); err != nil || len(tags.Models) < 5 {
		t.Fatalf("%v %s", err, body)
	}
	for _, m := range tags.Models {
		status, show := c.ask("POST", "/api/show", fmt.Sprintf(`{"model":%q}`, m.Name))
		if status != 200 || !strings.Contains(show, `"capabilities":["completion"]`) || !strings.Contains(show, `"details":{`) {
			t.Errorf("%s: %d %s", m.Name, status, show)
		}
	}
}

func TestA13_DeleteBody(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{Site: "\t\tmanage alice\n"}, "--allow", "DELETE:/api/delete")
	raw := string(request{File: "A13_delete_body"}.bytes(t, site(f.Gateway)))
	named := strings.Replace(raw, "DELETE /api/delete", "DELETE /n/n1/api/delete", 1)
	r := request{Bytes: named, ID: t.Name()}.to(t, site(f.Gateway))
	if r.Status != 200 {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	if got := f.record(t).Head; got != body(t, "A13_delete_body") {
		t.Errorf("the provider got %q", got)
	}
	for _, m := range f.fake.Stats().Models {
		if m == "t-gone:latest" {
			t.Error("the model is still there")
		}
	}
	// By default, and with no node named: refused, and never for want of a body.
	if r := surface().send(t, "A13_delete_body"); r.Status != 403 || !r.isJSON() {
		t.Errorf("an ordinary key: %d %s", r.Status, r.Body)
	}
	if r := f.send(t, "A13_delete_body"); r.Status != 400 || r.Header.Get("X-Fairway-Error") != "node_required" {
		t.Errorf("no node: %d %s", r.Status, r.Body)
	}
}

func TestA14_ContentType(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"A14_form_ctype", "A14_no_ctype"} {
		if r := surface().send(t, file); r.Status != 200 || !strings.Contains(r.Body, `"done":true`) {
			t.Errorf("%s: %d %s", file, r.Status, r.Body)
		}
	}
	for _, rec := range surface().records(t.Name()) {
		if rec.Head != body(t, "A14_no_ctype") {
			t.Errorf("the provider got %q", rec.Head)
		}
	}
}

func TestA15_BadJSON(t *testing.T) {
	t.Parallel()
	f := surface()
	for file, text := range map[string]string{"A15_cmd_quotes": "", "A15_empty_body": "missing request body", "A15_bom": "", "A15_array": ""} {
		r := f.send(t, file)
		if r.Status != 400 || !r.isJSON() || errorText("/api/", r.Body) == "" || !strings.Contains(r.Body, text) || r.Total > time.Second {
			t.Errorf("%s: %d %v %s after %v", file, r.Status, r.Lines, r.Body, r.Total)
		}
	}
	if n := len(f.records(t.Name())); n != 0 {
		t.Errorf("%d went to a node", n)
	}
}

func TestA16_StreamDefault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		file   string
		status int
		ctype  string
		end    string
		one    bool
	}{
		{"A16_api_absent", 200, "application/x-ndjson", `"done":true`, false},
		{"A16_api_null", 200, "application/x-ndjson", `"done":true`, false},
		{"A16_api_false", 200, "application/json", "", true},
		{"A16_api_string", 400, "application/json", "", true},
		{"A16_v1_absent", 200, "application/json", "", true},
		{"A16_v1_true", 200, "text/event-stream", "data: [DONE]", false},
	} {
		r := surface().send(t, tt.file)
		if r.Status != tt.status || !strings.HasPrefix(r.Header.Get("Content-Type"), tt.ctype) {
			t.Errorf("%s: %d %v %s", tt.file, r.Status, r.Lines, r.Body)
		}
		if tt.one && !json.Valid([]byte(r.Body)) {
			t.Errorf("%s: not one object: %s", tt.file, r.Body)
		}
		lines := strings.Split(strings.TrimSpace(r.Body), "\n")
		if !tt.one && (len(lines) < 6 || !strings.Contains(lines[len(lines)-1], tt.end)) {
			t.Errorf("%s: no stream that ends in %s: %s", tt.file, tt.end, r.Body)
		}
	}
}

func TestA17_JSONErrors(t *testing.T) {
	t.Parallel()
	f := surface()
	check := func(g *rig.Gateway, file, path string, status int) *reply {
		t.Helper()
		r := request{File: file, ID: t.Name()}.to(t, site(g))
		if r.Status != status || !r.isJSON() || errorText(path, r.Body) == "" {
			t.Errorf("%s: %d %v %s", file, r.Status, r.Lines, r.Body)
		}
		if strings.HasPrefix(path, "/v1/") && !strings.Contains(r.Body, `"code":`) {
			t.Errorf("%s: no code: %s", file, r.Body)
		}
		return r
	}
	check(f.Gateway, "A17_badkey_api", "/api/", 401)
	check(f.Gateway, "A17_badkey_v1", "/v1/", 401)
	check(f.Gateway, "A17_unknown_api", "/api/", 404)
	check(f.Gateway, "A17_unknown_v1", "/v1/", 404)
	if n := len(f.records(t.Name())); n != 0 {
		t.Errorf("%d of them reached a node", n)
	}
	// With no node connected: 503 for a model that is known, here by a node that has left.
	gone := newFleet(t, rig.Options{})
	gone.node.Kill()
	gone.WaitNode("n1", "gone")
	for file, path := range map[string]string{"A16_api_false": "/api/", "A16_v1_absent": "/v1/"} {
		if r := check(gone.Gateway, file, path, 503); r.Header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After: %v", file, r.Lines)
		}
	}
	check(empty(), "A17_badkey_api", "/api/", 401)
	for file, path := range map[string]string{"A17_unknown_api": "/api/", "A17_unknown_v1": "/v1/"} {
		r := request{File: file}.to(t, site(empty()))
		if (r.Status != 503 && r.Status != 404) || !r.isJSON() || errorText(path, r.Body) == "" || r.Status == 503 && r.Header.Get("Retry-After") == "" {
			t.Errorf("no node: %s: %d %v %s", file, r.Status, r.Lines, r.Body)
		}
	}
}

func TestA18_ExactBytes(t *testing.T) {
	t.Parallel()
	f := surface()
	if r := f.send(t, "A18_exact_bytes"); r.Status != 200 {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	sum := sha256.Sum256([]byte(body(t, "A18_exact_bytes")))
	if rec := f.record(t); rec.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("the provider got %q", rec.Head)
	}
}

func TestA19_Compressed(t *testing.T) {
	t.Parallel()
	f := surface()
	for _, file := range []string{"A19_gzip_chat", "A19_gzip_v1", "A19_gzip_messages"} {
		if r := f.send(t, file); r.Status != 415 || !r.isJSON() || !strings.Contains(r.Body, "gzip") {
			t.Errorf("%s: %d %v %s", file, r.Status, r.Lines, r.Body)
		}
	}
	if n := len(f.records(t.Name())); n != 0 {
		t.Errorf("%d reached a node", n)
	}
}

// zstd, which is decoded on /v1, has a bound of its own: internal/ollama, TestZstdBomb.
func TestA20_Bomb(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	fmt.Fprint(w, `{"model":"t-echo","prompt":"`)
	for range 400 {
		_, _ = w.Write(bytes.Repeat([]byte(" "), 1_000_000))
	}
	fmt.Fprint(w, `"}`)
	w.Close()
	g := empty()
	before := rig.Use(t, g.Pid()).RSS
	start := time.Now()
	status, body := plain(t, g).ask("POST", "/api/generate", b.String(), "Content-Encoding", "gzip")
	if (status != 413 && status != 415) || errorText("/api/", body) == "" || time.Since(start) > 2*time.Second {
		t.Errorf("%d %s after %v", status, body, time.Since(start))
	}
	if grew := rig.Use(t, g.Pid()).RSS - before; grew > memory(64) {
		t.Errorf("grew by %d KiB", grew)
	}
}

// There are no aliases, so the name is never rewritten: whatever form it has, the node sees the client's bytes under one length.
func TestA21_LengthAgrees(t *testing.T) {
	t.Parallel()
	f := surface()
	for _, file := range []string{"A09_untagged", "A09_tagged"} {
		id := t.Name() + file
		if r := (request{File: file, ID: id}).to(t, site(f.Gateway)); r.Status != 200 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
		rec := f.records(id)[0]
		if n := len(rec.Header("Content-Length")); rec.Framing != fmt.Sprintf("length %d", len(body(t, file))) || n != 1 || int(rec.Len) != len(body(t, file)) {
			t.Errorf("%s: %s, %d Content-Length, %d bytes", file, rec.Framing, n, rec.Len)
		}
	}
}

func TestA27_ContentTypePasses(t *testing.T) {
	t.Parallel()
	f := surface()
	if r := f.send(t, "A27_ctype_json"); r.Header.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Errorf("%v", r.Lines)
	}
	c := plain(t, f.Gateway)
	for _, tt := range []struct{ path, body, want string }{
		{"/api/chat", chat("t-ctype", `,"stream":false,"t_ctype":"application/json"`), "application/json"},
		{"/api/chat", chat("t-ctype", `,"stream":false,"t_ctype":"application/problem+json"`), "application/problem+json"},
		{"/v1/chat/completions", chat("t-echo", `,"t_fault":"500"`), "application/json; charset=utf-8"},
	} {
		r, err := c.do(t.Context(), "POST", tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if got := r.Header.Get("Content-Type"); got != tt.want {
			t.Errorf("%s: %d %q", tt.body, r.StatusCode, got)
		}
	}
}
