// Package docs executes what the documentation says: its Caddyfiles load, its flags, options and codes are those of the programs, its
// commands exist, and the protocol page has the wire's numbers.
package docs

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/tests/rig"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages are all Markdown files that people read.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "tunnel/wire/PROTOCOL.md", "tests/conformance/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/adr/*.md"} {
		found, err := filepath.Glob(filepath.Join(root(t), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			name, err := filepath.Rel(root(t), f)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, filepath.ToSlash(name))
		}
	}
	return list
}

// block is a fenced example.
type block struct {
	page string
	line int
	lang string // the whole info string
	text string
}

func blocks(t *testing.T, lang string) (out []block) {
	t.Helper()
	for _, page := range pages(t) {
		var b *block
		for i, line := range strings.Split(read(t, page), "\n") {
			switch {
			case b == nil && strings.HasPrefix(line, "```"):
				b = &block{page: page, line: i + 1, lang: strings.TrimPrefix(line, "```")}
			case b != nil && line == "```":
				if first, _, _ := strings.Cut(b.lang, " "); first == lang {
					out = append(out, *b)
				}
				b = nil
			case b != nil:
				b.text += line + "\n"
			}
		}
		if b != nil {
			t.Errorf("%s:%d: a block that does not end", page, b.line)
		}
	}
	return out
}

// run runs a program with folders of its own.
func run(t *testing.T, path string, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir, "HOME="+dir, "GATEWAY=gw1", "FAIRWAY_KEY=fw_example-key-of-a-test-0123456789abcdef")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestCaddyfiles loads each example as `caddy validate` does; one marked `caddyfile adapt` needs files that only its reader has.
func TestCaddyfiles(t *testing.T) {
	t.Parallel()
	caddy := rig.Build(t).Caddy
	all := append(blocks(t, "caddyfile"), block{page: "Caddyfile.example", lang: "caddyfile", text: read(t, "Caddyfile.example")},
		block{page: "packaging/compose/Caddyfile", lang: "caddyfile", text: strings.ReplaceAll(read(t, "packaging/compose/Caddyfile"), "file_system /data", "file_system "+t.TempDir())})
	if len(all) < 5 {
		t.Fatalf("only %d examples were found", len(all))
	}
	for _, b := range all {
		t.Run(b.page+":"+strconv.Itoa(b.line), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, name := range []string{"alice.key", "vllm.key", "cloud.key"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("fw_example-key-of-a-test-0123456789abcdef\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "redis.url"), []byte("redis://redis.example.com:6379/0\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "Caddyfile")
			text := strings.ReplaceAll(b.text, "/etc/fairway", dir)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			command := "validate"
			if strings.HasSuffix(b.lang, " adapt") {
				command = "adapt"
			}
			if out, err := run(t, caddy, command, "--config", file); err != nil {
				t.Errorf("caddy %s: %v\n%s", command, err, out)
			}
			if out, err := run(t, caddy, "fmt", "--diff", file); err != nil || strings.Contains(out, "\n+") || strings.Contains(out, "\n-") {
				t.Errorf("not as caddy fmt writes it: %v\n%s", err, out)
			}
		})
	}
}

// TestFlags compares node.md's table with what the program takes.
func TestFlags(t *testing.T) {
	t.Parallel()
	out, err := run(t, rig.Build(t).Node, "run", "--help")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compare(t, "docs/node.md", "fairway-node run --help", find(read(t, "docs/node.md"), "(?m)^\\| `--([a-z-]+)"), find(out, `(?m)^ +--([a-z-]+)`))
}

// TestOptions compares caddyfile.md's tables with the words that the parser knows.
func TestOptions(t *testing.T) {
	t.Parallel()
	code := read(t, "caddymodule/caddyfile_app.go") + read(t, "caddymodule/sharedstore.go") + read(t, "caddymodule/edge.go") + read(t, "caddymodule/caddyfile_handler.go")
	words := find(code, `"([a-z_]+)":\s*(?:text|texts|\{)`)
	if len(words) < 15 {
		t.Fatalf("only %d options were found in the parser: %v", len(words), words)
	}
	compare(t, "docs/caddyfile.md", "the parser", find(read(t, "docs/caddyfile.md"), "(?m)^\\| `([a-z_]+)` \\|"), words)
}

// TestCodes compares the table of apps.md with the gateway's.
func TestCodes(t *testing.T) {
	t.Parallel()
	documented := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (\\d{3}) \\|").FindAllStringSubmatch(read(t, "docs/apps.md"), -1) {
		documented[m[1]] = m[2]
	}
	real := gatewayCodes(t)
	for code, status := range real {
		if documented[code] != status {
			t.Errorf("code %s is %s in the gateway and %q in docs/apps.md", code, status, documented[code])
		}
	}
	for code := range documented {
		if _, ok := real[code]; !ok {
			t.Errorf("code %s of docs/apps.md is not in the gateway's table", code)
		}
	}
}

// gatewayCodes reads the table `codes` of the gateway's errors.go.
func gatewayCodes(t *testing.T) map[string]string {
	t.Helper()
	consts := make(map[string]string)
	for _, file := range []string{"lease/lease.go", "tunnel/wire/codes.go", "tunnel/messages.go", "caddymodule/internal/gateway/errors.go"} {
		for _, d := range parse(t, file).Decls {
			constants(d, consts)
		}
	}
	codes := make(map[string]string)
	ast.Inspect(parse(t, "caddymodule/internal/gateway/errors.go"), func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "codes" {
			return true
		}
		for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
			kv := e.(*ast.KeyValueExpr)
			codes[value(kv.Key, consts)] = value(kv.Value.(*ast.CompositeLit).Elts[0], consts)
		}
		return false
	})
	if len(codes) < 10 {
		t.Fatalf("only %d codes were found", len(codes))
	}
	return codes
}

func parse(t *testing.T, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, read(t, name), 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func constants(d ast.Decl, into map[string]string) {
	g, ok := d.(*ast.GenDecl)
	if !ok || g.Tok != token.CONST {
		return
	}
	for _, s := range g.Specs {
		spec, ok := s.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for i, v := range spec.Values {
			into[spec.Names[i].Name] = value(v, into)
		}
	}
}

// value evaluates a literal, a constant's name, that of another package's constant, or one of these as another type.
func value(e ast.Expr, consts map[string]string) string {
	switch x := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(x.Value); err == nil {
			return s
		}
		return x.Value
	case *ast.Ident:
		return consts[x.Name]
	case *ast.SelectorExpr:
		return consts[x.Sel.Name]
	case *ast.CallExpr:
		return value(x.Args[0], consts)
	}
	return ""
}

// TestProtocolPage compares the tables of PROTOCOL.md with package wire.
func TestProtocolPage(t *testing.T) {
	t.Parallel()
	page := read(t, "tunnel/wire/PROTOCOL.md")
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Run("frames", func(t *testing.T) {
		t.Parallel()
		code, doc := make(map[string]uint64), make(map[string]uint64)
		for _, m := range regexp.MustCompile(`(?m)^\tType(\w+) +Type = (0x[0-9a-f]+)`).FindAllStringSubmatch(read(t, "tunnel/wire/frame.go"), -1) {
			code[m[1]] = number(m[2])
		}
		for _, m := range regexp.MustCompile(`(?m)^\| (0x[0-9a-f]+) \| ([A-Z]\w+) \| (?:node|gateway|both) \|`).FindAllStringSubmatch(page, -1) {
			doc[m[2]] = number(m[1])
		}
		if !maps.Equal(code, doc) || len(code) == 0 {
			t.Errorf("the page says %v\nthe code %v", doc, code)
		}
	})
	t.Run("close codes", func(t *testing.T) {
		t.Parallel()
		rows := regexp.MustCompile("(?m)^\\| (0x[0-9a-f]+) \\| `([a-z_]+)` \\| (yes)? ?\\|").FindAllStringSubmatch(page, -1)
		for i, m := range rows {
			c := wire.CloseCode(number(m[1]))
			if uint64(c) != uint64(i) || c.String() != m[2] || c.Final() != (m[3] == "yes") {
				t.Errorf("row %v: the code says %s, final %v", m[0], c, c.Final())
			}
		}
		if next := wire.CloseCode(len(rows)); next.String() != "code_"+strconv.Itoa(len(rows)) {
			t.Errorf("code %s is not on the page", next)
		}
	})
	t.Run("run codes", func(t *testing.T) {
		t.Parallel()
		section := page[strings.Index(page, "**Run codes**"):strings.Index(page, "## 7")]
		compare(t, "PROTOCOL.md", "codes.go", find(section, "(?m)^\\| `([a-z_]+)` \\|"), find(read(t, "tunnel/wire/codes.go"), `(?m)^\tCode\w+ +=? *= "([a-z_]+)"`))
	})
}

// TestCommands holds that each command of the examples exists, with its flags.
func TestCommands(t *testing.T) {
	t.Parallel()
	bins := rig.Build(t)
	flag := regexp.MustCompile(`\s(--[a-z-]+)`)
	fairway := regexp.MustCompile(`caddy fairway ([a-z]+(?: new)?)([^\n|` + "`" + `#]*)`)
	node := regexp.MustCompile(`fairway-node (run|enroll|status|version)\b([^\n|` + "`" + `#]*)`)
	check := func(page, program, command, rest string) {
		help, err := run(t, program, append(strings.Fields(command), "--help")...)
		if command == "version" {
			return
		}
		if err != nil || strings.Contains(help, "unknown command") {
			t.Errorf("%s: there is no command %q: %v\n%s", page, command, err, help)
		}
		for _, f := range flag.FindAllStringSubmatch(rest, -1) {
			if !strings.Contains(help, f[1]) {
				t.Errorf("%s: %q has no flag %s", page, command, f[1])
			}
		}
	}
	for _, page := range pages(t) {
		text := read(t, page)
		for _, m := range fairway.FindAllStringSubmatch(text, -1) {
			check(page, bins.Caddy, "fairway "+m[1], m[2])
		}
		for _, m := range node.FindAllStringSubmatch(text, -1) {
			check(page, bins.Node, m[1], m[2])
		}
	}
}

// TestShell holds that shell examples parse, and name no script or folder that is not there.
func TestShell(t *testing.T) {
	t.Parallel()
	here := regexp.MustCompile(`(?m)(?:^|\s)\.?/?((?:packaging|tests|docs)/[\w./-]+|xcaddy\.sh)`)
	for _, b := range blocks(t, "sh") {
		cmd := exec.CommandContext(context.Background(), "bash", "-n")
		cmd.Stdin = strings.NewReader(b.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s:%d: %v\n%s", b.page, b.line, err, out)
		}
		for _, m := range here.FindAllStringSubmatch(b.text, -1) {
			if _, err := os.Stat(filepath.Join(root(t), m[1])); err != nil {
				t.Errorf("%s:%d: %v", b.page, b.line, err)
			}
		}
	}
}

// TestLinks holds that links within the repository lead somewhere, headings included.
func TestLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			name := page
			if target != "" {
				name = filepath.ToSlash(filepath.Join(filepath.Dir(page), target))
			}
			info, err := os.Stat(filepath.Join(root(t), name))
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			if anchor != "" && !info.IsDir() && !slices.Contains(anchors(read(t, name)), anchor) {
				t.Errorf("%s: %s has no heading #%s", page, name, anchor)
			}
		}
	}
}

// anchors are the headings as GitHub links them.
func anchors(page string) (out []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		a := strings.ToLower(strings.ReplaceAll(m[1], " ", "-"))
		out = append(out, regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(a, ""))
	}
	return out
}

func find(text, pattern string) (out []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(out, m[1]) {
			out = append(out, m[1])
		}
	}
	return out
}

func compare(t *testing.T, oneName, otherName string, one, other []string) {
	t.Helper()
	for _, w := range one {
		if !slices.Contains(other, w) {
			t.Errorf("%s has %s, and %s has not", oneName, w, otherName)
		}
	}
	for _, w := range other {
		if !slices.Contains(one, w) {
			t.Errorf("%s has %s, and %s has not", otherName, w, oneName)
		}
	}
	if len(one) == 0 || len(other) == 0 {
		t.Errorf("nothing to compare: %d in %s, %d in %s", len(one), oneName, len(other), otherName)
	}
}
