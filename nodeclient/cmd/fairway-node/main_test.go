package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func testEnv(vars map[string]string) (*environment, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	return &environment{stdout: &out, stderr: &errs, getenv: func(k string) string { return vars[k] }}, &out, &errs
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "node.conf")
	conf := "# a comment\n\ngateway file1:1\ngateway file2:2\ngrace 1s\nollama http://file:1\nlabel a=b c\nlog-level warn\n"
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	env, _, _ := testEnv(map[string]string{
		"FAIRWAY_CONFIG": file, "FAIRWAY_GATEWAY": "env1:1, env2:2", "FAIRWAY_GRACE": "2s", "FAIRWAY_TOKEN": " tok\n", "FAIRWAY_STATE_DIR": "/state",
	})
	s, err := read(env, "run", []string{"--gateway", "flag:1", "--credits=3"})
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case !slices.Equal(s.gateways, []string{"flag:1"}):
		t.Errorf("gateways %v", s.gateways)
	case s.grace != 2*time.Second, s.ollama != "http://file:1", s.logLevel != "warn", s.logFormat != "console", s.demo != "off":
		t.Errorf("%+v", s)
	case !slices.Equal(s.labels, []string{"a=b c"}), !slices.Equal(s.credits, []string{"3"}), s.token != "tok", s.stateDir != "/state":
		t.Errorf("%+v", s)
	}
	if s, err = read(env, "run", nil); err != nil || !slices.Equal(s.gateways, []string{"env1:1", "env2:2"}) {
		t.Errorf("%+v %v", s, err)
	}
	env, _, _ = testEnv(map[string]string{"XDG_STATE_HOME": "/x"})
	if s, err = read(env, "status", []string{"--config", file}); err != nil || s.stateDir != filepath.Join("/x", "fairway-node") {
		t.Errorf("%+v %v", s, err)
	}
	if s, err = read(env, "enroll", []string{"--config", file}); err != nil || len(s.gateways) != 2 {
		t.Errorf("%+v %v", s, err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = read(env, "run", []string{"--token", "@" + token}); err != nil || s.token != "secret" {
		t.Errorf("%+v %v", s, err)
	}
}

func TestExitCodesOfMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("file", "")
	gw := []string{"run", "--gateway", "gw:1", "--state-dir", filepath.Join(dir, "state")}
	for _, tc := range []struct {
		name string
		args []string
		env  map[string]string
		code int
		says string
	}{
		{"nothing", nil, nil, exitUsage, "usage:"},
		{"help", []string{"help"}, nil, exitOK, "commands:"},
		{"help of a command", []string{"run", "--help"}, nil, exitOK, "--gateway"},
		{"version", []string{"version"}, nil, exitOK, "fairway-node dev"},
		{"--version", []string{"--version"}, nil, exitOK, "fairway-node dev"},
		{"unknown command", []string{"walk"}, nil, exitUsage, "run, enroll, status, edge, version"},
		{"unknown flag", []string{"run", "--gatway", "x:1"}, nil, exitUsage, "--gateway"},
		{"argument", []string{"run", "now"}, nil, exitUsage, `"now"`},
		{"no gateway", []string{"run"}, nil, exitUsage, "FAIRWAY_GATEWAY"},
		{"bad gateway", []string{"run", "--gateway", "gw"}, nil, exitUsage, "host:port"},
		{"bad env", gw, map[string]string{"FAIRWAY_GRACE": "soon"}, exitUsage, "FAIRWAY_GRACE"},
		{"bad line", append(gw, "--config", write("bad", "gateway gw:1\ngatway gw:2\n")), nil, exitUsage, `line 2: unknown option "gatway"`},
		{"no value", append(gw, "--config", write("bare", "label\n")), nil, exitUsage, "line 1: label needs a value"},
		{"no file", append(gw, "--config", filepath.Join(dir, "none")), nil, exitUsage, "none"},
		{"openai", append(gw, "--target", "v=openai:http://h:1/../v1"), nil, exitUsage, "bad path"},
		{"goals", append(gw, "--target", "v=goals:h:1"), nil, exitUsage, "got no scheme"},
		{"leases", append(gw, "--lease-issuer", "x"), nil, exitUsage, "thumbprint"},
		{"demo", append(gw, "--demo", "yes"), nil, exitUsage, "demo"},
		{"allow", append(gw, "--allow", "POST:/etc"), nil, exitUsage, "POST:/api/pull"},
		{"level", append(gw, "--log-level", "loud"), nil, exitUsage, "log-level"},
		{"format", append(gw, "--log-format", "xml"), nil, exitUsage, "log-format"},
		{"no target", append(gw, "--ollama", "off"), nil, exitUsage, "no target"},
		{"no identity", gw, nil, exitUsage, "caddy fairway token"},
		{"bad token", gw, map[string]string{"FAIRWAY_TOKEN": "x.y.z"}, exitUsage, "token"},
		{"state", []string{"run", "--gateway", "gw:1", "--state-dir", filepath.Join(file, "x")}, nil, exitState, "state directory"},
		{"enroll without", []string{"enroll", "--gateway", "gw:1"}, nil, exitUsage, "FAIRWAY_TOKEN"},
		{"status without", []string{"status", "--state-dir", dir}, nil, exitFailed, "no node is running"},
	} {
		env, out, errs := testEnv(tc.env)
		code := dispatch(env, tc.args)
		if text := out.String() + errs.String(); code != tc.code || !strings.Contains(text, tc.says) {
			t.Errorf("%s: exit %d, want %d, and %q in:\n%s", tc.name, code, tc.code, tc.says, text)
		}
	}
}
