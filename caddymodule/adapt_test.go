package caddymodule

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// adapt turns a Caddyfile into JSON.
func adapt(t *testing.T, in string) ([]byte, error) {
	t.Helper()
	out, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(in), map[string]any{"filename": "Caddyfile"})
	for _, w := range warnings {
		t.Errorf("adapting warns: %s", w)
	}
	return out, err
}

// golden runs test on every file in a directory of testdata: what stands above the
// line of dashes must give what stands below.
func golden(t *testing.T, dir string, test func(t *testing.T, in string) string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.caddytest"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files in %s: %v", dir, err)
	}
	const dashes = "\n----------\n"
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddytest"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in, want, _ := strings.Cut(string(raw), dashes)
			got := test(t, in+"\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(in+dashes+got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestAdapt(t *testing.T) {
	golden(t, "adapt", func(t *testing.T, in string) string {
		out, err := adapt(t, in)
		if err != nil {
			t.Fatal(err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, out, "", "\t"); err != nil {
			t.Fatal(err)
		}
		return pretty.String()
	})
}

func TestMistakes(t *testing.T) {
	golden(t, "mistakes", func(t *testing.T, in string) string {
		out, err := adapt(t, in)
		if err == nil {
			t.Fatalf("adapted to %s", out)
		}
		return err.Error()
	})
}

// TestAdaptIsPure sees that placeholders stay as they are, whatever the environment
// and the disk hold.
func TestAdaptIsPure(t *testing.T) {
	t.Setenv("T_PORT", "4477")
	const in = "{\n\tfairway {\n\t\tlisten :{env.T_PORT}\n\t\tname {env.T_UNSET}\n\t\tkey alice {file./no/such/file}\n\t}\n}\n"
	out, err := adapt(t, in)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`":{env.T_PORT}"`, `"{env.T_UNSET}"`, `"{file./no/such/file}"`} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("%s is not in %s", want, out)
		}
	}
}

// TestExample sees that the example is formatted and is what the contract says.
func TestExample(t *testing.T) {
	raw, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	if formatted := caddyfile.Format(raw); !bytes.Equal(formatted, raw) {
		t.Errorf("caddy fmt gives\n%s", formatted)
	}
	out, err := adapt(t, string(raw))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"apps":{"fairway":{"listen":"127.0.0.1:4433","embedded_node":{"ollama":"http://127.0.0.1:11434","demo":"auto"}},` +
		`"http":{"servers":{"srv0":{"listen":["127.0.0.1:11435"],"routes":[{"handle":[{"handler":"fairway"}]}]}}}}}`
	if string(out) != want {
		t.Errorf("adapts to %s", out)
	}
	if err := validate(t, string(raw)); err != nil {
		t.Errorf("does not validate: %v", err)
	}
}

// TestSyntaxIsDocumented compares the words that blocks take with the syntax in the
// comment above them, both ways.
func TestSyntaxIsDocumented(t *testing.T) {
	taken := regexp.MustCompile(`(?m)^\t\t"([a-z_]+)": `)
	files := regexp.MustCompile(`"(cert|key|ca)": +text`)
	shown := regexp.MustCompile(`(?m)^//\t+([a-z_]+)\b`)
	for _, list := range [][]string{{"caddyfile_app.go", "sharedstore.go", "edge.go"}, {"caddyfile_handler.go"}} {
		file := list[0]
		var src []byte
		for _, name := range list {
			one, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			src = append(src, one...)
		}
		words := func(res ...*regexp.Regexp) []string {
			found := map[string]bool{}
			for _, re := range res {
				for _, m := range re.FindAllSubmatch(src, -1) {
					found[string(m[1])] = true
				}
			}
			delete(found, "fairway")
			return slices.Sorted(maps.Keys(found))
		}
		if code, docs := words(taken, files), words(shown); !slices.Equal(code, docs) || len(code) < 6 {
			t.Errorf("%s takes %v and documents %v", file, code, docs)
		}
	}
}
