package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A table of attacks is worth what its tests are: each that a page names as `TestSomething` exists.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	decl := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range decl.FindAllStringSubmatch(string(text), -1) {
			have[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	seen := 0
	for _, page := range append(pages(t), "tests/cases/README.md", "tests/conformance/CHECKS.md") {
		if _, err := os.Stat(filepath.Join(root(t), page)); err != nil {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(read(t, page), -1) {
			if seen++; !have[m[1]] {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d tests are named; is the pattern right?", seen)
	}
}
