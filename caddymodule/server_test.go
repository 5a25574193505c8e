package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/tests/freeport"
)

// server is a Caddy in this process. There can be one at a time, so tests that use
// it are not parallel.
type server struct {
	t                  *testing.T
	admin, http, nodes string // addresses
	storage, log       string // paths
}

func newServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	s := &server{
		t: t, admin: freeport.Addr(t), http: freeport.Addr(t), nodes: freeport.Addr(t),
		storage: filepath.Join(dir, "storage"), log: filepath.Join(dir, "access.log"),
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	return s
}

// config is a Caddyfile with lines in the app's block and in the handler's.
func (s *server) config(app, handler string) string {
	_, port, _ := net.SplitHostPort(s.http)
	return fmt.Sprintf("{\nadmin %s\nstorage file_system %s\nskip_install_trust\nfairway {\nlisten %s\n%s\n}\n}\n"+
		"http://:%s {\nbind 127.0.0.1\nlog {\noutput file %s\n}\nfairway {\n%s\n}\n}\n", s.admin, s.storage, s.nodes, app, port, s.log, handler)
}

func (s *server) load(in string) error {
	s.t.Helper()
	out, err := adapt(s.t, string(caddyfile.Format([]byte(in))))
	if err != nil {
		s.t.Fatal(err)
	}
	return caddy.Load(out, true)
}

func (s *server) mustLoad(in string) {
	s.t.Helper()
	if err := s.load(in); err != nil {
		s.t.Fatal(err)
	}
}

// do makes a request and returns status and body.
func (s *server) do(method, url string, body string, header ...string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	r.Close = true // a connection that a reload is about to close says nothing of the request that it meets
	resp, err := http.DefaultClient.Do(r)
	for deadline := time.Now().Add(5 * time.Second); dialing(err) && time.Now().Before(deadline); {
		resp, err = http.DefaultClient.Do(r) // a reload hands the admin API to another listener
	}
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// dialing tells that nothing was asked yet.
func dialing(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// node waits until the embedded node is ready and returns its row.
func (s *server) node() fleet.NodeView {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, body := s.do("GET", "http://"+s.admin+"/fairway/nodes", "")
		var nodes []fleet.NodeView
		if err := json.Unmarshal([]byte(body), &nodes); err != nil {
			s.t.Fatalf("%v in %s", err, body)
		}
		if len(nodes) == 1 && nodes[0].State == "ready" && len(nodes[0].Targets) > 0 && len(nodes[0].Targets[0].Models) > 0 {
			return nodes[0]
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no node is ready: %s", body)
		}
	}
}

const demoNode = "name gw1\nembedded_node {\nollama off\ndemo on\n}\n"

// freed waits until nobody has a UDP address any more.
func (s *server) freed(addr string) {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.ListenPacket("udp", addr); err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s is still bound", addr)
		}
	}
}
