// Package arch holds what the source tree promises as a whole: who imports whom, how long a file may grow, which version of quic-go is
// required, and that nothing names the machine that a file was written on.
package arch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/fairway-edge/fairway"

// pkg is what `go list -json` says of a package; tests are not part of it.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	Imports    []string
	GoFiles    []string
	Deps       []string
	DepOnly    bool
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// list runs go list for one system.
func list(t *testing.T, goos string, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "go", append([]string{"list", "-e", "-json=ImportPath,Dir,Standard,Imports,GoFiles,DepOnly"}, args...)...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// systems are those that the node supports; a file of one of them could hide an import from the others.
var systems = []string{"linux", "darwin", "windows"}

// ours lists the module's packages outside tests/ with their imports of all systems together.
var ours = sync.OnceValue(func() func(t *testing.T) map[string][]string {
	var once sync.Once
	m := make(map[string][]string)
	return func(t *testing.T) map[string][]string {
		once.Do(func() {
			for _, goos := range systems {
				for _, p := range list(t, goos, "./...") {
					name := local(p.ImportPath)
					if name == "tests" || strings.HasPrefix(name, "tests/") {
						continue
					}
					m[name] = append(m[name], p.Imports...)
				}
			}
			for name, imports := range m {
				slices.Sort(imports)
				m[name] = slices.Compact(imports)
			}
		})
		return m
	}
})()

// local strips the module's path.
func local(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

// within reports whether a package is one of the list; a name that ends in "/" stands for all below it.
func within(name string, list []string) bool {
	return slices.ContainsFunc(list, func(l string) bool {
		return name == l || strings.HasSuffix(l, "/") && strings.HasPrefix(name, l)
	})
}

// mayImport says which of our packages each room may import. The first pattern that fits counts.
var mayImport = []struct {
	room string
	may  []string
}{
	{"caddymodule", []string{
		"caddymodule/internal/gateway", "caddymodule/internal/fleet", "tunnel", "lease", "nodeclient", "nodeclient/",
		"internal/pki", "internal/store", "internal/ollama", "internal/edge",
	}},
	{"caddymodule/internal/gateway", []string{
		"caddymodule/internal/fleet", "caddymodule/internal/bundles", "tunnel", "lease",
		"internal/ollama", "internal/edge", "internal/pki", "internal/store", "internal/bundle",
	}},
	{"caddymodule/internal/fleet", []string{"tunnel", "internal/ollama", "internal/store"}},
	{"caddymodule/internal/bundles", []string{"internal/bundle"}},
	{"tunnel", []string{"tunnel/wire", "internal/pki"}},
	{"tunnel/wire", nil},
	{"lease", nil},
	{"nodeclient/adapter", nil},
	{"nodeclient/adapter/http1", []string{"nodeclient/adapter"}},
	{"nodeclient/adapter/", []string{"nodeclient/adapter", "nodeclient/adapter/http1", "internal/ollama", "internal/edge"}},
	{"nodeclient/demo", []string{"nodeclient/adapter", "internal/ollama"}},
	{"nodeclient/cmd/fairway-node", []string{"nodeclient", "tunnel", "internal/pki", "internal/ollama", "internal/edge", "internal/bundle"}},
	{"nodeclient", []string{
		"nodeclient/adapter", "nodeclient/adapter/", "nodeclient/demo", "tunnel", "lease",
		"internal/ollama", "internal/edge", "internal/bundle", "internal/pki",
	}},
	{"internal/store/storetest", []string{"internal/store"}}, // the suite that every store must pass
	{"internal/", nil},
}

func TestWhoMayImportWhom(t *testing.T) {
	t.Parallel()
	for name, imports := range ours(t) {
		i := slices.IndexFunc(mayImport, func(r struct {
			room string
			may  []string
		}) bool {
			return within(name, []string{r.room})
		})
		if i < 0 {
			t.Errorf("package %s has no place in the architecture; give it one in mayImport", name)
			continue
		}
		for _, imp := range imports {
			if strings.HasPrefix(imp, module+"/") && !within(local(imp), mayImport[i].may) {
				t.Errorf("%s imports %s, and may not", name, local(imp))
			}
		}
	}
}

// onlyIn says which packages alone may import what belongs to a third party.
func TestWhoMayImportWhatOfOthers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what string
		only []string
	}{
		{"github.com/caddyserver/", []string{"caddymodule"}},
		{"github.com/quic-go/quic-go", []string{"tunnel"}},
		{"github.com/redis/", []string{"internal/store"}},
		{"github.com/golang-jwt/", []string{"internal/pki", "lease"}},
		{"google.golang.org/protobuf", []string{"tunnel", "tunnel/wire"}},
		{"github.com/klauspost/compress", []string{"internal/ollama", "internal/bundle"}},
		{"github.com/santhosh-tekuri/jsonschema", []string{"internal/edge"}},
		{"os/exec", nil},
		{"unsafe", []string{"tunnel/wire", "lease"}}, // generated code; locked memory
		{"plugin", nil},
		{"net/http/pprof", nil},
	} {
		t.Run(strings.ReplaceAll(tc.what, "/", "."), func(t *testing.T) {
			t.Parallel()
			for name, imports := range ours(t) {
				for _, imp := range imports {
					if (imp == tc.what || strings.HasPrefix(imp, strings.TrimSuffix(tc.what, "/")+"/")) && !within(name, tc.only) {
						t.Errorf("%s imports %s; only %v may", name, imp, tc.only)
					}
				}
			}
		})
	}
}

// TestLeavesAreSmall holds what the leaves may bring along from outside the standard library.
func TestLeavesAreSmall(t *testing.T) {
	t.Parallel()
	for leaf, allowed := range map[string][]string{
		"tunnel/wire":     {"google.golang.org/protobuf/"},
		"lease":           {"github.com/golang-jwt/jwt/v5", "golang.org/x/sys/"},
		"internal/ollama": {"github.com/klauspost/compress/"},
		"internal/edge":   {"github.com/santhosh-tekuri/jsonschema/"},
		"internal/bundle": {"github.com/klauspost/compress/"},
		"internal/pki":    {"github.com/golang-jwt/jwt/v5"},
	} {
		for _, imp := range ours(t)[leaf] {
			if strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") && !within(imp, allowed) {
				t.Errorf("%s imports %s; it may import %v", leaf, imp, allowed)
			}
		}
	}
}

// TestTheNodeIsSmall holds the promise of the node's program, through everything that it is linked from.
func TestTheNodeIsSmall(t *testing.T) {
	t.Parallel()
	forbidden := []string{module + "/caddymodule", module + "/internal/store", "github.com/caddyserver/", "github.com/redis/", "os/exec", "plugin"}
	for _, goos := range systems {
		t.Run(goos, func(t *testing.T) {
			t.Parallel()
			for _, p := range list(t, goos, "-deps", "./nodeclient/...") {
				for _, f := range forbidden {
					if p.ImportPath == strings.TrimSuffix(f, "/") || strings.HasPrefix(p.ImportPath, strings.TrimSuffix(f, "/")+"/") {
						t.Errorf("the node is linked from %s", p.ImportPath)
					}
				}
			}
		})
	}
}

// TestOnlyOneFileImportsTheNode: the gateway's embedded node is one file, so that the rest can be read without it.
func TestOnlyOneFileImportsTheNode(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root(t), "caddymodule", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if base := filepath.Base(f); base != "embedded.go" && bytes.Contains(text, []byte(`"`+module+`/nodeclient`)) {
			t.Errorf("caddymodule/%s imports nodeclient; only embedded.go may", base)
		}
	}
}
