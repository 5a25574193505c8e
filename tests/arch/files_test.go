package arch

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxLines is the most that a file of production code may have. Past four hundred, ask what else it holds.
const maxLines = 600

// files lists what the repository holds, or would hold with the work tree as it stands.
func files(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git work tree: %v", err)
	}
	return strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if os.IsNotExist(err) {
		return nil // deleted, not yet committed
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestNoFileGrowsTooLong(t *testing.T) {
	t.Parallel()
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") {
			continue
		}
		if n := bytes.Count(read(t, name), []byte{'\n'}); n > maxLines {
			t.Errorf("%s has %d lines; more than %d are two files", name, n, maxLines)
		}
	}
}

// local paths and hosts: a clone must work on another machine, behind another registry. The patterns are written so that they do not find
// themselves.
var notHere = []*regexp.Regexp{
	regexp.MustCompile(`(^|[\s"'=(:])/(work|root)/`),
	regexp.MustCompile(`/home/[a-z]+/|/Users/[a-z]+/`),
	regexp.MustCompile(`\bproxy\.golang\.` + `org\b|\bsum\.golang\.` + `org\b|\bgoproxy\.`),
	regexp.MustCompile(`\bdeb\.debian\.` + `org\b|\bsecurity\.debian\.` + `org\b`),
	regexp.MustCompile(`\bregistry\.(npmjs|yarnpkg)\.`),
	regexp.MustCompile(`\b(pypi\.` + `org|files\.pythonhosted\.|static\.crates\.|rubygems\.` + `org)`),
}

func TestNothingNamesThisMachine(t *testing.T) {
	t.Parallel()
	for _, name := range files(t) {
		text := read(t, name)
		if bytes.IndexByte(text, 0) >= 0 {
			continue // binary
		}
		for i, line := range bytes.Split(text, []byte{'\n'}) {
			for _, p := range notHere {
				if m := p.Find(line); m != nil {
					t.Errorf("%s:%d: %q does not belong into the repository", name, i+1, bytes.TrimSpace(m))
				}
			}
		}
	}
}

// TestOneFileSkipsVerification: a SPIFFE id cannot be checked as a server name, so tunnel/tls.go checks it itself. Nothing else may.
func TestOneFileSkipsVerification(t *testing.T) {
	t.Parallel()
	field := regexp.MustCompile(`InsecureSkipVerify\s*(:|=)|VerifyPeerCertificate\s*(:|=)`)
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "tests/") || name == "tunnel/tls.go" {
			continue
		}
		if m := field.Find(read(t, name)); m != nil {
			t.Errorf("%s sets %s", name, m)
		}
	}
}

// TestQUICVersion: v0.64.1 is the newest release that the required Caddy builds with; v0.65.0 breaks everyone's build.
func TestQUICVersion(t *testing.T) {
	t.Parallel()
	for module, want := range map[string]string{"github.com/quic-go/quic-go": "v0.64.1", "github.com/caddyserver/caddy/v2": "v2.11.9"} {
		cmd := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Version}}{{with .Replace}} replaced{{end}}", module)
		cmd.Dir = root(t)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(out)); got != want {
			t.Errorf("%s is %s, want %s", module, got, want)
		}
	}
	// What xcaddy_build checks, and what the scripts say, must be the same pin.
	for _, script := range []string{"xcaddy.sh", "tests/run.sh"} {
		if !bytes.Contains(read(t, script), []byte("readonly quic=v0.64.1")) {
			t.Errorf("%s does not pin quic-go v0.64.1", script)
		}
	}
}
