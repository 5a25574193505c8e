package caddymodule

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tests/freeport"
)

func TestServesThroughTheEmbeddedNode(t *testing.T) {
	s := newServer(t)
	s.mustLoad(s.config(demoNode, "expose_node"))
	before := s.node()
	if before.Name != "embedded-gw1" {
		t.Errorf("the node is %s", before.Name)
	}
	chat := `{"model":"demo","messages":[{"role":"user","content":"hi"}],"stream":false}`
	if code, body := s.do("POST", "http://"+s.http+"/api/chat", chat); code != 200 || !strings.Contains(body, `"done":true`) {
		t.Errorf("chat: %d %s", code, body)
	}
	s.mustLoad(s.config(demoNode, ""))
	if after := s.node(); after.Sessions[0] != before.Sessions[0] {
		t.Errorf("a reload changed the session: %+v, %+v", before.Sessions[0], after.Sessions[0])
	}
	if _, metrics := s.do("GET", "http://"+s.admin+"/metrics", ""); !strings.Contains(metrics, `fairway_nodes{state="ready"} 1`) || !strings.Contains(metrics, "fairway_runs_total{") {
		t.Error("metrics are missing after a reload")
	}
}

func TestAdminRoutes(t *testing.T) {
	s := newServer(t)
	s.mustLoad(s.config(demoNode, ""))
	s.node()
	api := "http://" + s.admin + "/fairway"
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/status", "", 200, `"gateway":"gw1","trust_domain":"fairway.internal"`},
		{"GET", "/runs", "", 200, `[]`},
		{"POST", "/nodes", "", 405, `want GET`},
		{"POST", "/tokens", `{"node":"jetson","ttl":"1d","uses":3}`, 200, `"node":"jetson"`},
		{"POST", "/tokens", `{"node":"Jetson"}`, 400, `not a name`},
		{"POST", "/tokens", `{"node":"embedded-x"}`, 400, `embedded-`},
		{"POST", "/tokens", `{"node":"jetson","ttl":"soon"}`, 400, `want a duration`},
		{"POST", "/tokens", `{"node":"jetson","ttl":"31d"}`, 400, `ttl`},
		{"POST", "/tokens", `{"nodes":"jetson"}`, 400, `unknown field`},
		{"GET", "/tokens", "", 405, `want POST`},
		{"POST", "/drain/embedded-gw1", "", 200, `"draining":true,"connected":true`},
		{"GET", "/nodes", "", 200, `"state":"draining"`},
		{"DELETE", "/drain/embedded-gw1", "", 200, `"draining":false`},
		{"GET", "/nodes", "", 200, `"state":"ready"`},
		{"POST", "/drain/NO", "", 400, `not a name`},
		{"PUT", "/drain/a", "", 405, `is not allowed`},
	} {
		if code, body := s.do(c.method, api+c.path, c.body); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: got %d %s, want %d %s", c.method, c.path, c.body, code, body, c.code, c.want)
		}
	}
}

// TestSecretsStayInside sees that a key that is given by a placeholder and shown in
// every way is nowhere to be read.
func TestSecretsStayInside(t *testing.T) {
	const key = "sk-test-alpha-0001"
	t.Setenv("T_KEY", key)
	s := newServer(t)
	s.mustLoad(s.config(demoNode+"key alice {env.T_KEY}\n", ""))
	s.node()
	base := "http://" + s.http
	for _, c := range []struct {
		path   string
		header []string
		code   int
	}{
		{"/api/tags", []string{"Authorization", "Bearer " + key}, 200},
		{"/api/tags", []string{"X-Api-Key", key}, 200},
		{"/k/" + key + "/api/tags", nil, 200},
		{"/k/" + key + "/api/tags?x=/k/" + key, []string{"Referer", base + "/k/" + key + "/", "X-Custom", key}, 200},
		{"/k/sk%2Dtest-alpha-0001/api/tags", nil, 200},
		{"/api/tags", []string{"Authorization", "Bearer " + key, "Referer", base + "/k/" + key + "/"}, 200},
		{"/api/tags?key=" + key, nil, 401},
		{"/k/" + key + "/api/nothing", nil, 404},
		{"/k/" + key + "x/api/tags", nil, 401},
		{"/api/tags", []string{"X-Api-Key", key + "x"}, 401},
	} {
		if code, body := s.do("GET", base+c.path, "", c.header...); code != c.code {
			t.Errorf("GET %s: got %d %s, want %d", c.path, code, body, c.code)
		}
	}
	_, config := s.do("GET", "http://"+s.admin+"/config/", "")
	_, metrics := s.do("GET", "http://"+s.admin+"/metrics", "")
	saved, err := os.ReadFile(caddy.ConfigAutosavePath)
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Stop(); err != nil { // the log is written
		t.Fatal(err)
	}
	access, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config": config, "metrics": metrics, "autosave": string(saved), "access log": string(access)} {
		if strings.Contains(text, "alpha-0001") {
			t.Errorf("the key stands in the %s:\n%s", name, text)
		}
	}
	lines := bytes.Split(bytes.TrimSpace(access), []byte("\n"))
	if len(lines) != 10 {
		t.Errorf("%d access lines, want one a request:\n%s", len(lines), access)
	}
	plain, own := fields(t, lines[0]), fields(t, lines[1])
	for f := range plain {
		if _, ok := own[f]; !ok {
			t.Errorf("our line has no %s: %s", f, lines[1])
		}
	}
	if own["logger"] != plain["logger"] || own["msg"] != plain["msg"] || own["status"] != plain["status"] {
		t.Errorf("lines differ:\n%s\n%s", lines[0], lines[1])
	}
}

func fields(t *testing.T, line []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(line, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestOpenSites: what nobody has declared open serves local names only, and what
// somebody has is warned of where others reach it.
func TestOpenSites(t *testing.T) {
	s := newServer(t)
	_, port, _ := net.SplitHostPort(s.http)
	logs := filepath.Join(t.TempDir(), "caddy.log")
	with := func(app, handler, bind string) string {
		in := strings.Replace(s.config(app, handler), "{\n", "{\nlog {\noutput file "+logs+"\n}\n", 1)
		return strings.Replace(in, "bind 127.0.0.1", bind, 1)
	}
	asked := func(host string) int {
		t.Helper()
		r, err := http.NewRequest("GET", "http://"+s.http+"/api/tags", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host, r.Close = host, true
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	warnings := func() int {
		t.Helper()
		text, err := os.ReadFile(logs)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "auth none: anyone who reaches this site")
	}
	for _, c := range []struct {
		handler, bind   string
		foreign, warned int
	}{
		{"", "bind 127.0.0.1", 403, 0},
		{"auth none", "bind 127.0.0.1", 200, 0},
		{"auth none", "bind 0.0.0.0", 200, 1},
	} {
		s.mustLoad(with(demoNode, c.handler, c.bind))
		s.node()
		if local, foreign := asked("localhost:"+port), asked("evil.example"); local != 200 || foreign != c.foreign || warnings() != c.warned {
			t.Errorf("%s %s: %d for a local name, %d for another, %d warnings, want %d and %d", c.handler, c.bind, local, foreign, warnings(), c.foreign, c.warned)
		}
	}
}

// TestPortOfHTTP3 is case C20: two users of one UDP port.
func TestPortOfHTTP3(t *testing.T) {
	s := newServer(t)
	_, port, _ := net.SplitHostPort(s.nodes)
	site := "https://localhost:" + port + " {\ntls internal\nfairway {\nauth none\n}\n}\n"
	global := func(more string) string {
		return "{\nadmin off\nskip_install_trust\nstorage file_system " + s.storage + "\n" + more + "fairway {\nlisten :" + port + "\n}\n}\n"
	}
	err := s.load(global("servers {\nprotocols h1 h2 h3\n}\n") + site)
	if err == nil {
		t.Fatal("loaded")
	}
	for _, want := range []string{"UDP port " + port + " is wanted twice", "fairway's listen :" + port, "HTTP/3 of the server srv0 on :" + port} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if err := s.load(global("servers {\nprotocols h1 h2\n}\n") + site); err != nil {
		t.Errorf("without h3: %v", err)
	}
	// The certificate is made in the background; what writes it must not outlive the test's directory.
	made := filepath.Join(s.storage, "certificates", "local", "localhost", "localhost.json")
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(made); err == nil {
			return
		}
	}
	t.Error("no certificate was made")
}

// TestFailedReload sees that a config which cannot start changes nothing, and what
// may not change while a gateway runs.
func TestFailedReload(t *testing.T) {
	s := newServer(t)
	good := s.config(demoNode, "")
	s.mustLoad(good)
	before := s.node()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, c := range []struct{ in, want string }{
		{good + "http://:" + port + " {\nbind 127.0.0.1\nrespond never\n}\n", "address already in use"},
		{strings.Replace(good, "name gw1", "name gw2", 1), "name: the gateway that listens on udp/" + s.nodes + " is gw1 and cannot become gw2 while it runs"},
		{strings.Replace(good, s.storage, s.storage+"2", 1), "cannot move to FileStorage:" + s.storage + "2 while it runs"},
	} {
		for range 3 {
			if err := s.load(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		}
	}
	if after := s.node(); after.Sessions[0] != before.Sessions[0] {
		t.Errorf("failed reloads changed the session: %+v, %+v", before.Sessions[0], after.Sessions[0])
	}
	if n, _ := hubs.References("udp/" + s.nodes); n != 1 {
		t.Errorf("%d references to the hub, want 1", n)
	}
	s.mustLoad("{\nadmin " + s.admin + "\n}\n")
	s.freed(s.nodes)
}

// TestListenMoves sees that another address is another hub, that nodes get there, and
// that the old socket goes.
func TestListenMoves(t *testing.T) {
	s := newServer(t)
	s.mustLoad(s.config(demoNode, ""))
	before, old := s.node(), s.nodes
	s.nodes = freeport.Addr(t)
	s.mustLoad(s.config(demoNode, ""))
	if after := s.node(); after.Sessions[0].Generation <= before.Sessions[0].Generation {
		t.Errorf("the node's generation went from %d to %d", before.Sessions[0].Generation, after.Sessions[0].Generation)
	}
	s.freed(old)
}

// TestListenMovesWithinAPort: the old socket has the port until it has drained.
func TestListenMovesWithinAPort(t *testing.T) {
	s := newServer(t)
	s.mustLoad(s.config(demoNode, ""))
	_, port, _ := net.SplitHostPort(s.nodes)
	old := s.nodes
	s.nodes = ":" + port
	err := s.load(s.config(demoNode, ""))
	if err == nil || !strings.Contains(err.Error(), "the gateway on "+old+" in this process holds the port") || !strings.Contains(err.Error(), "restart of Caddy") {
		t.Errorf("got %v", err)
	}
}

// TestIdentityFiles runs a gateway of an existing PKI: its names come from the
// certificate, and it makes no tokens and no CA.
func TestIdentityFiles(t *testing.T) {
	s, dir := newServer(t), t.TempDir()
	ca, err := pki.NewSelfSigned("fleet.local", nil)
	if err != nil {
		t.Fatal(err)
	}
	writeIdentity(t, ca, dir, "gw7")
	files := "identity files {\ncert " + dir + "/cert\nkey " + dir + "/key\nca " + dir + "/ca\n}\n"
	s.mustLoad(s.config(files, ""))
	api := "http://" + s.admin + "/fairway"
	if _, body := s.do("GET", api+"/status", ""); !strings.Contains(body, `"gateway":"gw7","trust_domain":"fleet.local"`) {
		t.Errorf("status: %s", body)
	}
	if code, body := s.do("POST", api+"/tokens", `{"node":"jetson"}`); code != 400 || !strings.Contains(body, "identity files") {
		t.Errorf("token: %d %s", code, body)
	}
	if _, err := os.Stat(filepath.Join(s.storage, caPath(""))); err == nil {
		t.Error("a CA was made")
	}
	for more, want := range map[string]string{
		"name gw8":            "the certificate " + dir + "/cert is for gw7",
		"trust_domain a.test": "name and trust_domain say gw7 in a.test",
		"embedded_node":       "embedded_node: it gets its certificate from the CA",
	} {
		if err := validate(t, s.config(files+more, "")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", more, err, want)
		}
	}
}
