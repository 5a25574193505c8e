package caddymodule

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/fairway-edge/fairway/lease"
)

// validate does what `caddy validate` does.
func validate(t *testing.T, in string) error {
	t.Helper()
	out, err := adapt(t, string(caddyfile.Format([]byte(in))))
	if err != nil {
		return err
	}
	var cfg caddy.Config
	if err := json.Unmarshal(out, &cfg); err != nil {
		t.Fatal(err)
	}
	return caddy.Validate(&cfg)
}

const loopbackSite = "http://:11435 {\n\tbind 127.0.0.1\n\tfairway\n}\n"

// TestValuesFromFiles: whatever option names a file, one that would keep the load
// waiting or fill the memory is refused, as a slot's is.
func TestValuesFromFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, long, most := filepath.Join(dir, "pipe"), filepath.Join(dir, "long"), filepath.Join(dir, "most")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int{long: lease.MaxValue + 1, most: lease.MaxValue} {
		if err := os.WriteFile(name, []byte(strings.Repeat("a", n)+"\r\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	redis := func(lines string) string { return "advertise gw1.test:4433\nstore redis {\n" + lines + "\n}" }
	secure := "url rediss://127.0.0.1:1/0\n"
	for _, c := range []struct{ name, options string }{
		{"key", "key alice {file.%s}"},
		{"within a value", "key alice a{file.%s}"},
		{"store's url", redis("url {file.%s}")},
		{"password in a url", redis("url redis://user:{file.%s}@127.0.0.1:1/0")},
		{"password of Sentinels", redis("url redis-sentinel://127.0.0.1:1/main\nsentinel_password {file.%s}")},
		{"store's ca by placeholder", redis(secure + "ca {file.%s}")},
		{"name", "name {file.%s}"},
		{"audit", "audit {file.%s}"},
		{"label", "embedded_node {\nlabel a={file.%s}\n}"},
	} {
		for file, want := range map[string]string{pipe: pipe + " is not a regular file", dir: dir + " is not a regular file", long: "the file " + long + " is longer than 4096 bytes"} {
			in := "{\n\tfairway {\n" + fmt.Sprintf(c.options, file) + "\n\t}\n}\n" + loopbackSite
			if err := validate(t, in); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", c.name, err, want)
			}
		}
	}
	for name, options := range map[string]string{
		"store's ca":    redis(secure + "ca " + pipe),
		"identity's ca": "identity files {\ncert /dev/null\nkey /dev/null\nca " + pipe + "\n}",
		"certificate":   "identity files {\ncert " + pipe + "\nkey " + pipe + "\nca " + pipe + "\n}",
	} {
		if err := validate(t, "{\n\tfairway {\n"+options+"\n\t}\n}\n"+loopbackSite); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := validate(t, "{\n\tfairway {\nkey alice {file."+most+"}\n\t}\n}\n"+loopbackSite); err != nil {
		t.Errorf("the longest value: %v", err)
	}
}

// TestLoadErrors is what only a config that is being loaded can tell.
func TestLoadErrors(t *testing.T) {
	t.Setenv("T_EMPTY", "")
	t.Setenv("T_KEY", "sk-test-alpha-0001")
	t.Setenv("T_BAD", "NOT A NAME")
	t.Setenv("T_PATTERN", "sk-test-(unclosed")
	t.Setenv("T_ANY", "a*")
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	global := func(lines string) string { return "{\n\tfairway {\n\t\t" + lines + "\n\t}\n}\n" + loopbackSite }
	for _, c := range []struct{ name, in, want string }{
		{"unset key", global("key alice {env.T_UNSET}"), "key alice: "},
		{"empty key", global("key alice {env.T_EMPTY}"), "key alice: "},
		{"empty key file", global("key alice {file." + empty + "}"), "the file " + empty + " is empty"},
		{"no key file", global("key alice {file./no/such/file}"), "/no/such/file: no such file"},
		{"unknown placeholder", global("key alice {no.such.thing}"), "key alice: "},
		{"one key of two", global("key alice {env.T_KEY}\nkey bob {env.T_KEY}"), "key bob: it is the same key as another one of alice"},
		{"name by placeholder", global("name {env.T_BAD}"), "name: 'NOT A NAME' is not a name"},
		{"unset port", global("listen :{env.T_UNSET}"), "listen: "},
		{"unset trust domain", global("trust_domain {env.T_UNSET}"), "trust_domain: "},
		{"identity files", global("identity files {\ncert /no/cert\nkey /no/key\nca /no/ca\n}"), "identity files: load certificate"},
		{"allow", global("embedded_node {\nallow POST:/api/chat\n}"), "embedded_node: allow"},
		{"no target", global("embedded_node {\nollama off\n}"), "embedded_node: no target: ollama is off"},
		{"target twice", global("embedded_node {\ntarget vllm=openai:http://127.0.0.1:8000\ntarget vllm=ollama:http://127.0.0.1:8001\n}"), "target vllm is given twice"},
		{"credits", global("embedded_node {\ncredits vllm=4\n}"), "embedded_node: credits for vllm: there is no such target"},
		{"unset pattern", global("edge {\nredact {env.T_UNSET}\n}"), "edge: redact: "},
		{"unset in a pattern", global("edge {\nredact \\d{3}-{env.T_UNSET}\n}"), "edge: redact: "},
		{"empty pattern file", global("edge {\nredact {file." + empty + "}\n}"), "the file " + empty + " is empty"},
		{"bad pattern", global("edge {\nredact {env.T_PATTERN}\n}"), "edge: redact {env.T_PATTERN}: with its placeholders replaced it is no regular expression"},
		{"pattern for nothing", global("edge {\nredact {env.T_ANY}\n}"), "edge: redact {env.T_ANY}: with its placeholders replaced it matches the empty text"},
		{"pattern of another placeholder", global("edge {\nredact {system.hostname}\n}"), "edge: redact: {system.hostname} is no placeholder that a pattern takes"},
		{"tool", global("edge {\ntools {env.T_UNSET}\n}"), "edge: tools: "},
		{"budget by placeholder", global("edge {\nbudget {env.T_KEY}\n}"), "budget: '{env.T_KEY}' is not a number of tokens that a run could do with"},
		{"name of a label", global("embedded_node {\nlabel {env.T_KEY}=x\n}"), "label: '{env.T_KEY}': a placeholder may stand for a label's value"},
		{"name of a node's label", global("profile p {\nnodes {env.T_KEY}=x\n}"), "nodes: '{env.T_KEY}': a placeholder may stand for a label's value"},
		{"open to the world", ":11435 {\n\tfairway\n}\n", "refusing to serve anyone: the site listens beyond loopback"},
		{"open to the world by name", "http://127.0.0.1:11435 {\n\tfairway\n}\n", "refusing to serve anyone"},
		{"one of two addresses", "http://:11435 {\n\tbind 127.0.0.1 192.0.2.1\n\tfairway\n}\n", "refusing to serve anyone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := validate(t, c.in); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestLoads(t *testing.T) {
	t.Setenv("T_KEY", "sk-test-alpha-0001")
	t.Setenv("T_PORT", "8443")
	const key = "{\n\tfairway {\n\t\tkey alice {env.T_KEY}\n\t}\n}\n"
	for _, c := range []struct{ name, in string }{
		{"loopback", loopbackSite},
		{"loopback v6", "http://:11435 {\n\tbind ::1\n\tfairway\n}\n"},
		{"unix socket", "http://:11435 {\n\tbind unix//run/fairway.sock\n\tfairway\n}\n"},
		{"key", key + ":11435 {\n\tfairway\n}\n"},
		{"key at parse time", strings.ReplaceAll(key, "{env.T_KEY}", "{$T_KEY}") + ":11435 {\n\tfairway\n}\n"},
		{"auth none", ":11435 {\n\tfairway {\n\t\tauth none\n\t}\n}\n"},
		{"auth caddy", ":11435 {\n\tfairway {\n\t\tauth caddy\n\t}\n}\n"},
		{"openai beside ollama", "{\n\tfairway {\n\t\tembedded_node {\n\t\t\ttarget vllm=openai:https://127.0.0.1:8000/api/v1\n\t\t\tcredits vllm=8\n\t\t}\n\t}\n}\n" + loopbackSite},
		{"port at load time", "{\n\tfairway {\n\t\tlisten 127.0.0.1:{env.T_PORT}\n\t}\n}\n" + loopbackSite},
		{"port at parse time", "{\n\tfairway {\n\t\tlisten 127.0.0.1:{$T_PORT}\n\t}\n}\n" + loopbackSite},
		{"two sites, two handlers", ":8081 {\n\tfairway {\n\t\tauth none\n\t}\n}\n:8082 {\n\thandle /a* {\n\t\tfairway {\n\t\t\tauth none\n\t\t}\n\t}\n\thandle {\n\t\tfairway {\n\t\t\tauth none\n\t\t}\n\t}\n}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := validate(t, c.in); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestValidateTouchesNothing: no file is written, and a bound port is no matter.
func TestValidateTouchesNothing(t *testing.T) {
	busy, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	dir := t.TempDir()
	in := "{\n\tstorage file_system " + dir + "\n\tfairway {\n\t\tlisten " + busy.LocalAddr().String() + "\n\t\tembedded_node\n\t}\n}\n" + loopbackSite
	if err := validate(t, in); err != nil {
		t.Fatal(err)
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if path != dir && !strings.Contains(path, "instance.uuid") {
			t.Errorf("wrote %s", path)
		}
		return nil
	})
	if n, _ := hubs.References("udp/" + busy.LocalAddr().String()); n != 0 {
		t.Errorf("%d references to hubs are left", n)
	}
}
