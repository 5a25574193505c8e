package caddymodule

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"
	"github.com/spf13/cobra"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tests/freeport"
)

// run is `caddy fairway ARGS`.
func run(args ...string) (code int, stdout, stderr string, err error) {
	root := &cobra.Command{Use: "fairway", SilenceUsage: true, SilenceErrors: true}
	commands(root)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.Execute()
	return codeOf(err), out.String(), errs.String(), err
}

// codeOf is the status that Caddy's main would exit with.
func codeOf(err error) int {
	if err == nil {
		return 0
	}
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		if f := v.Elem().FieldByName("ExitCode"); f.IsValid() {
			return int(f.Int())
		}
	}
	return 1
}

func TestCommandExitStatus(t *testing.T) {
	closed := freeport.Addr(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "unknown command"},
		{"bogus", 2, "unknown command 'bogus'"},
		{"key", 2, "unknown command"},
		{"nodes --bogus", 2, "unknown flag"},
		{"nodes extra", 2, "usage: fairway nodes"},
		{"drain", 2, "usage: fairway drain NODE"},
		{"key new", 2, "usage: fairway key new NAME"},
		{"key new anonymous", 2, "auth none"},
		{"token", 2, "--node NAME is missing"},
		{"token --node Jetson", 2, "not a name"},
		{"token --node jetson --ttl soon", 2, "want a duration"},
		{"token --node jetson --ttl 0", 2, "ttl '0': want 1s to 30d"},
		{"token --node jetson --ttl -1h", 2, "want 1s to 30d"},
		{"token --node jetson --ttl 31d", 2, "want 1s to 30d"},
		{"token --node embedded-gw1", 2, "the gateway's own"},
		{"drain NO", 2, "node 'NO' is not a name"},
		{"undrain a/b", 2, "node 'a/b' is not a name"},
		{"token --node jetson --uses 0", 2, "--uses 0: want 1 to 1000"},
		{"token --node jetson --offline", 2, "--config FILE"},
		{"token --node jetson --offline --config /no/such/Caddyfile --adapter caddyfile", 1, "no such file"},
		{"nodes --address " + closed, 1, "asking Caddy at " + closed},
		{"nodes --config /no/such/Caddyfile --adapter caddyfile", 1, "finding the admin API's address"},
	} {
		code, out, _, err := run(strings.Fields(c.args)...)
		if code != c.code || err == nil || !strings.Contains(err.Error(), c.want) || out != "" {
			t.Errorf("%s: got %d, %v, %q, want %d, %s", c.args, code, err, out, c.code, c.want)
		}
	}
}

func TestCommandsAgainstAGateway(t *testing.T) {
	s := newServer(t)
	in := string(caddyfile.Format([]byte(s.config(demoNode, ""))))
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	from := []string{"--config", file, "--adapter", "caddyfile"}
	offline := append([]string{"token", "--node", "jetson", "--offline"}, from...)
	if code, _, _, err := run(offline...); code != 1 || !strings.Contains(err.Error(), "no gateway has run with this storage") {
		t.Errorf("offline before the first start: %d, %v", code, err)
	}
	s.mustLoad(in)
	s.node()
	s.do("POST", "http://"+s.http+"/api/generate", `{"model":"demo","prompt":"hi","stream":false}`)
	for _, c := range []struct{ args, want string }{
		{"nodes", "embedded-gw1"},
		{"runs", "demo:latest"},
		{"status", s.nodes},
		{"drain other", "other  true      false"},
		{"undrain other", "other  false     false"},
		{"nodes --json", `[{"name":"embedded-gw1","state":"ready"`},
		{"runs --json", `"outcome":"completed"`},
		{"status --json", `[{"gateway":"gw1"`},
		{"token --node jetson --json", `"node":"jetson"`},
	} {
		code, out, _, err := run(append(strings.Fields(c.args), from...)...)
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: %d, %v, %s", c.args, code, err, out)
		}
		if strings.HasSuffix(c.args, "--json") && json.Unmarshal([]byte(out), new([]map[string]any)) != nil {
			t.Errorf("%s: not an array of objects: %s", c.args, out)
		}
	}
	for args, unknown := range map[string]bool{
		"drain workbench": true, "undrain workbench": true, "drain workbench --json": true, "drain embedded-gw1": false, "undrain embedded-gw1": false,
	} {
		code, _, notes, err := run(append(strings.Fields(args), from...)...)
		if code != 0 || strings.Contains(notes, "knows no node that is called workbench now; was it misspelt?") != unknown || !unknown && notes != "" {
			t.Errorf("%s: %d, %v, %q", args, code, err, notes)
		}
	}
	online := append([]string{"token", "--node", "jetson", "--ttl", "30m", "--uses", "2"}, from...)
	for _, args := range [][]string{online, append(online, "--offline")} {
		code, out, hint, err := run(args...)
		if code != 0 || !strings.Contains(hint, "fairway-node run --gateway "+s.nodes) {
			t.Fatalf("%v: %d, %v, %s", args, code, err, hint)
		}
		s.checkToken(strings.TrimSpace(out))
	}
}

// checkToken sees that a token is what the gateway will take.
func (s *server) checkToken(token string) {
	s.t.Helper()
	seed, err := loadSecret(s.t.Context(), &certmagic.FileStorage{Path: s.storage}, secretJoin)
	if err != nil {
		s.t.Fatal(err)
	}
	got, err := pki.VerifyJoinToken(token, joinKey(seed).Public().(ed25519.PublicKey), time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	want := pki.ID{TrustDomain: defaultTrustDomain, Role: pki.RoleGateway, Name: "gw1"}
	if left := time.Until(got.Expires); got.Issuer != want || got.Node != "jetson" || got.Uses != 2 || left > 30*time.Minute || left < 29*time.Minute {
		s.t.Errorf("the token says %+v", got)
	}
}

func TestNodeTableMarksUnreachableTargets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	nodeTable(&out, []fleet.NodeView{{Name: "n1", State: "ready", Targets: []fleet.TargetView{
		{Name: "ollama", Adapter: "ollama"}, {Name: "second", Adapter: "ollama", Reachable: true},
	}}})
	if text := out.String(); !strings.Contains(text, "ollama (unreachable)") || strings.Contains(text, "second (") {
		t.Error(text)
	}
}

// TestTablesAreNarrow: what callers and nodes call things does not push other columns
// out of sight.
func TestTablesAreNarrow(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 400)
	var out bytes.Buffer
	runTable(&out, []gateway.RunView{{Run: "r1", Principal: long, Model: long, Node: "n1"}, {Run: "r2", Model: strings.Repeat("é", widest)}})
	nodeTable(&out, []fleet.NodeView{{Name: "n1", Version: long, Targets: []fleet.TargetView{{Name: long, Adapter: long, Reachable: true, Models: []string{long, long, long, long}}}}})
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(line)); n > 400 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if text := out.String(); strings.Count(text, "…") != 8 || !strings.Contains(text, strings.Repeat("é", widest)) || !strings.Contains(text, "… +1") {
		t.Error(text)
	}
}

func TestKeyNew(t *testing.T) {
	code, out, _, err := run("key", "new", "alice", "--json")
	var keys []keyView
	if code != 0 || json.Unmarshal([]byte(out), &keys) != nil || len(keys) != 1 {
		t.Fatalf("%d, %v, %s", code, err, out)
	}
	if err := validate(t, "{\n\tfairway {\n\t\t"+keys[0].Line+"\n\t}\n}\n:11435 {\n\tfairway\n}\n"); err != nil {
		t.Errorf("the line is not one: %v", err)
	}
	hash, err := hashOf(strings.Fields(keys[0].Line)[2])
	if err != nil || hash != gateway.HashKey(keys[0].Key) {
		t.Errorf("the line does not admit the key: %v", err)
	}
	_, other, _, _ := run("key", "new", "alice")
	if !strings.HasPrefix(other, "fw_") || strings.Contains(other, keys[0].Key) {
		t.Errorf("second key: %s", other)
	}
}
