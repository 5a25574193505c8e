package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/lease"
)

// canary is the credential of these tests: it must be nowhere.
const canary = "sk-CANARY-0123456789abcdef"

// secretFile writes a file with content and returns its path.
func secretFile(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// validateJSON does what `caddy validate` does with an app in JSON.
func validateJSON(t *testing.T, app string) error {
	t.Helper()
	return caddy.Validate(&caddy.Config{AppsRaw: caddy.ModuleMap{"fairway": json.RawMessage(app)}})
}

func TestSlotValues(t *testing.T) {
	t.Setenv("T_SLOT", canary)
	t.Setenv("T_SLOT_LINE", canary+"\n")
	t.Setenv("T_SLOT_EMPTY", "")
	t.Setenv("T_SLOT_BAD", canary+"\r\nX-Other: 1")
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", lease.MaxValue)
	file := func(content string) string { return "{file." + secretFile(t, content) + "}" }
	for _, c := range []struct{ name, value, want, err string }{
		{"file", file(canary), canary, ""},
		{"line", file(canary + "\n"), canary, ""},
		{"dos line", file(canary + "\r\n"), canary, ""},
		{"longest", file(long + "\r\n"), long, ""},
		{"environment", "{env.T_SLOT}", canary, ""},
		{"environment with a line break", "{env.T_SLOT_LINE}", canary, ""},
		{"space inside", file("a b"), "a b", ""},

		{"two lines", file(canary + "\n\n"), "", "holds no usable credential"},
		{"carriage return", file(canary + "\r"), "", "holds no usable credential"},
		{"line feed inside", file(canary + "\nX: 1"), "", "holds no usable credential"},
		{"nul", file(canary + "\x00"), "", "holds no usable credential"},
		{"tab", file(canary + "\t"), "", "holds no usable credential"},
		{"space at the end", file(canary + " "), "", "holds no usable credential"},
		{"space at the begin", file(" " + canary), "", "holds no usable credential"},
		{"not ascii", file(canary + "é"), "", "holds no usable credential"},
		{"byte order mark", file("\ufeff" + canary), "", "holds no usable credential"},
		{"too long", file(long + "a"), "", "holds no usable credential"},
		{"far too long", file(strings.Repeat(canary, 1<<16)), "", "holds no usable credential"},
		{"bad environment", "{env.T_SLOT_BAD}", "", "variable T_SLOT_BAD holds no usable credential"},
		{"empty file", file(""), "", "is empty"},
		{"only a line break", file("\r\n"), "", "is empty"},
		{"empty environment", "{env.T_SLOT_EMPTY}", "", "the environment variable T_SLOT_EMPTY is empty"},
		{"unset environment", "{env.T_SLOT_UNSET}", "", "the environment variable T_SLOT_UNSET is not set"},
		{"no file", "{file./no/such/file}", "", "/no/such/file: no such file"},
		{"folder", "{file./}", "", "is not a regular file"},
		{"pipe", "{file." + pipe + "}", "", "is not a regular file"},
		{"inline", canary, "", "want {file./path} or {env.NAME} alone"},
		{"nothing", "", "", "want {file./path} or {env.NAME} alone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			slots, err := resolveSlots([]Slot{{Name: "openai", Value: c.value}}, newResolver())
			if c.err == "" {
				if err != nil || string(slots[0].Value.Bytes()) != c.want || slots[0].Drain {
					t.Fatalf("got %v, %d slots", err, len(slots))
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(err.Error(), "slot openai: value: ") {
				t.Fatalf("got %v, want %s", err, c.err)
			}
			if strings.Contains(err.Error(), "CANARY") || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("the error shows the value: %v", err)
			}
		})
	}
}

// TestSlotOfSystemd: what a Caddyfile in a unit with LoadCredential says.
func TestSlotOfSystemd(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", filepath.Dir(secretFile(t, canary+"\n")))
	if err := validate(t, "{\n\tfairway {\n\t\tslot openai {\n\t\t\tvalue {file.{$CREDENTIALS_DIRECTORY}/secret}\n\t\t}\n\t}\n}\n"); err != nil {
		t.Error(err)
	}
}

// TestSlotErrors is what only a config that is being loaded can tell, in JSON too,
// where no Caddyfile has checked anything.
func TestSlotErrors(t *testing.T) {
	t.Setenv("T_SLOT", canary)
	t.Setenv("T_LONG", strings.Repeat("a", lease.MaxValue-len("Bearer ")+1))
	t.Setenv("T_BAD", "NOT A NAME")
	slot := `"slots":[{"name":"key","value":"{env.T_SLOT}"}]`
	profiles := func(list string) string { return "{" + slot + `,"profiles":[` + list + "]}" }
	header := func(name, value string) string {
		raw, err := json.Marshal(ProfileHeader{Name: name, Value: value})
		if err != nil {
			t.Fatal(err)
		}
		return profiles(`{"name":"vllm","slot":"key","header":` + string(raw) + "}")
	}
	for _, c := range []struct{ name, app, want string }{
		{"inline", `{"slots":[{"name":"key","value":"` + canary + `"}]}`, "slot key: value: want {file./path} or {env.NAME} alone"},
		{"slot name", `{"slots":[{"name":"` + canary + `","value":"{env.T_SLOT}"}]}`, "slot: the name is not one"},
		{"slot twice", `{"slots":[{"name":"key","value":"{env.T_SLOT}"},{"name":"key","value":"{env.T_SLOT}"}]}`, "slot key stands twice"},
		{"on_revoke", `{"slots":[{"name":"key","value":"{env.T_SLOT}","on_revoke":"{env.T_BAD}"}]}`, "slot key: on_revoke: 'NOT A NAME' is not known: want cancel, drain"},
		{"profile name", profiles(`{"name":"V"}`), "profile: 'V' is not a name"},
		{"no profile name", profiles(`{"adapter":"openai"}`), "profile: '' is not a name"},
		{"profile twice", profiles(`{"name":"a"},{"name":"a","target":"b"}`), "profile a stands twice"},
		{"adapter", profiles(`{"name":"a","adapter":"{env.T_BAD}"}`), "profile a: adapter: 'NOT A NAME' is not known: want ollama, openai"},
		{"target", profiles(`{"name":"a","target":"{env.T_BAD}"}`), "profile a: target: 'NOT A NAME' is not a name"},
		{"no slot", profiles(`{"name":"a","slot":"other"}`), "profile a: slot: there is no slot of that name: want key"},
		{"unset slot", profiles(`{"name":"a","slot":"{env.T_UNSET}"}`), "profile a: slot: evaluated placeholder {env.T_UNSET} is empty"},
		{"header alone", profiles(`{"name":"a","header":{"name":"X","value":"{slot}"}}`), "profile a: header needs a slot"},
		{"header's name", header("X Key", "{slot}"), "header: the name is not one of a header"},
		{"no header's name", header("", "{slot}"), "header: the name is not one of a header"},
		{"header's template", header("X-Key", canary), "header: the value must hold {slot}"},
		{"no template", header("X-Key", ""), "header: the value must hold {slot}"},
		{"line break in a template", header("X-Key", "{slot}\r\nX: 1"), "header: the value: a header value is"},
		{"too long together", `{"slots":[{"name":"key","value":"{env.T_LONG}"}],"profiles":[{"name":"a","slot":"key"}]}`, "with the credential of slot key in it the value is longer than 4096"},
		{"label", profiles(`{"name":"a","nodes":{"":"eu"}}`), "nodes: label '': want a name"},
		{"long label", profiles(`{"name":"a","nodes":{"x":"` + strings.Repeat("y", 256) + `"}}`), "at most 256 bytes"},
		{"label's placeholder", profiles(`{"name":"a","nodes":{"x":"{env.T_UNSET}"}}`), "nodes: x: evaluated placeholder"},
		{"same target", profiles(`{"name":"a"},{"name":"b","slot":"key"}`), "profile b could never be used: profile a before it"},
		{"same labels", profiles(`{"name":"a","nodes":{"x":"1"}},{"name":"b","nodes":{"x":"1"}}`), "profile b could never be used"},
		{"more labels, later", profiles(`{"name":"a","nodes":{"x":"1"}},{"name":"b","nodes":{"x":"1","y":"2"}}`), "profile b could never be used"},
		{"audit", `{"audit":"audit.jsonl"}`, "audit: 'audit.jsonl' is not known"},
		{"audit's placeholder", `{"audit":"{env.T_UNSET}"}`, "audit: evaluated placeholder {env.T_UNSET} is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := validateJSON(t, c.app)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			if strings.Contains(err.Error(), "CANARY") {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

func TestProfilesResolve(t *testing.T) {
	t.Setenv("T_ADAPTER", "openai")
	t.Setenv("T_REGION", "eu")
	slots := []gateway.Slot{{Name: "key", Value: lease.NewValue([]byte(canary))}, {Name: "other", Value: lease.NewValue([]byte(canary))}}
	got, err := resolveProfiles([]Profile{
		{Name: "a", Adapter: "{env.T_ADAPTER}", Slot: "key", Nodes: map[string]string{"region": "{env.T_REGION}", "tier": "gpu"}},
		{Name: "b", Adapter: "openai", Slot: "key", Header: &ProfileHeader{Name: "X-Api-Key", Value: "{slot}"}, Nodes: map[string]string{"region": "eu"}},
		{Name: "c", Adapter: "openai", Target: "vllm"},
		{Name: "d"},
	}, slots, newResolver())
	want := []gateway.Profile{
		{Name: "a", Adapter: "openai", Target: "openai", Slot: "key", Header: "Authorization", Value: "Bearer {slot}", Nodes: map[string]string{"region": "eu", "tier": "gpu"}},
		{Name: "b", Adapter: "openai", Target: "openai", Slot: "key", Header: "X-Api-Key", Value: "{slot}", Nodes: map[string]string{"region": "eu"}},
		{Name: "c", Adapter: "openai", Target: "vllm"},
		{Name: "d", Adapter: "ollama", Target: "ollama"},
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v\nwant %v", got, err, want)
	}
	core, logs := observer.New(zap.WarnLevel)
	warnUnused(slots, got, zap.New(core))
	if l := logs.All(); len(l) != 1 || l[0].ContextMap()["slot"] != "other" {
		t.Errorf("warned of %v", l)
	}
}

func TestCredentialHeaders(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Authorization", "X-Api-Key", "api-key", "Cookie", "X-Goog-Api-Key", "x"} {
		if err := checkHeaderName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{
		"Host", "HOST", "Content-Length", "Content-Type", "content_length", "Connection", "Keep-Alive", "Transfer-Encoding", "Transfer_Encoding", "TE",
		"Trailer", "Upgrade", "Expect", "Proxy-Authorization", "Proxy-Connection", "HTTP2-Settings", "X-Fairway-Run", "x_fairway_run", "X-Fairway",
		"", "a b", "a:b", "a\r\nb", "é", strings.Repeat("x", 129),
	} {
		if checkHeaderName(name) == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

// TestSlotRotates is what operate.md says of rotating: Caddy ignores an unchanged
// configuration unless it is forced, and a value that cannot be used changes nothing.
func TestSlotRotates(t *testing.T) {
	s := newServer(t)
	file := secretFile(t, "one\n")
	in := s.config("name gw1\nslot key {\nvalue {file."+file+"}\n}\nprofile vllm {\nadapter openai\nslot key\n}\n", "")
	out, err := adapt(t, string(caddyfile.Format([]byte(in))))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		content string
		force   bool
		want    string
		err     string
	}{
		{"one\n", true, "one", ""},
		{"two\n", false, "one", ""},
		{"two\n", true, "two", ""},
		{"", true, "two", "secret is empty"},
		{"a\nb", true, "two", "no usable credential"},
		{"three", true, "three", ""},
	} {
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := caddy.Load(out, c.force)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q, force %t: %v", c.content, c.force, err)
		}
		if got := liveHubs()[0].Current().Slots[0].Value.Bytes(); string(got) != c.want {
			t.Errorf("%q, force %t: the value is %s, want %s", c.content, c.force, got, c.want)
		}
	}
}

// TestCredentialStaysInside: a slot's value is in no answer of the admin API, no saved
// config, no log and no error, whether the config loads or fails afterwards.
func TestCredentialStaysInside(t *testing.T) {
	s := newServer(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	dir := t.TempDir()
	logs, audit := filepath.Join(dir, "caddy.log"), filepath.Join(dir, "audit.jsonl")
	t.Setenv("T_SLOT", canary+"-env")
	lines := demoNode + "slot file {\nvalue {file." + secretFile(t, canary+"-file\n") + "}\n}\nslot env {\nvalue {env.T_SLOT}\non_revoke drain\n}\n" +
		"profile demo {\ntarget demo\nslot file\n}\nprofile vllm {\nadapter openai\nslot env\nheader X-Api-Key {slot}\n}\naudit " + audit + "\n"
	good := strings.Replace(s.config(lines, ""), "{\n", "{\ndebug\nlog {\noutput file "+logs+"\n}\n", 1)
	out, err := adapt(t, string(caddyfile.Format([]byte(good))))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{"adapted config": string(out)}
	s.mustLoad(good)
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	err = s.load(good + "http://:" + port + " {\nbind 127.0.0.1\nrespond never\n}\n")
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Fatalf("the port was not taken: %v", err)
	}
	seen["error of a load that fails later"] = err.Error()
	err = s.load(strings.Replace(good, "{env.T_SLOT}", "{env.T_UNSET}", 1))
	if err == nil || !strings.Contains(err.Error(), "slot env: value: the environment variable T_UNSET is not set") {
		t.Fatalf("loaded without a value: %v", err)
	}
	seen["error of a load with one value of two"] = err.Error()
	inline := bytes.Replace(out, []byte("{env.T_SLOT}"), []byte(canary+"-inline"), 1)
	code, body := s.do("POST", "http://"+s.admin+"/load", string(inline), "Content-Type", "application/json")
	if code != 400 || !strings.Contains(body, "want {file./path} or {env.NAME} alone") {
		t.Errorf("an inline credential: %d %s", code, body)
	}
	seen["answer to an inline credential"] = body
	s.node()
	s.do("POST", "http://"+s.http+"/api/generate", `{"model":"demo","prompt":"hi","stream":false}`)
	for _, path := range []string{"/config/", "/metrics", "/fairway/routes", "/fairway/leases", "/fairway/revocations", "/fairway/status", "/fairway/nodes", "/fairway/runs"} {
		code, body := s.do("GET", "http://"+s.admin+path, "")
		if code != 200 {
			t.Errorf("GET %s: %d %s", path, code, body)
		}
		seen[path] = body
	}
	saved, err := os.ReadFile(caddy.ConfigAutosavePath)
	if err != nil {
		t.Fatal(err)
	}
	seen["autosaved config"] = string(saved)
	if !strings.Contains(seen["/config/"], "{env.T_SLOT}") || !strings.Contains(seen["autosaved config"], "{env.T_SLOT}") {
		t.Error("the placeholder is not in the configuration, so this test looks in the wrong place")
	}
	if err := caddy.Stop(); err != nil { // the logs are written
		t.Fatal(err)
	}
	for _, root := range []string{dir, s.storage, filepath.Dir(s.log)} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			seen[path] = string(raw)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen[logs] == "" {
		t.Error("nothing was logged")
	}
	for where, text := range seen {
		if strings.Contains(text, "CANARY") {
			t.Errorf("the credential stands in %s", where)
		}
	}
}
