package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const lastCheck = 91

// TestChecks holds that CHECKS.md names tests for every check, once, and that they exist.
func TestChecks(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("CHECKS.md")
	if err != nil {
		t.Fatal(err)
	}
	row, quoted := regexp.MustCompile(`^\| (\d+) \| [^|]+ \| ([^|]+) \|$`), regexp.MustCompile("`([^`]+)`")
	var seen []int
	for line := range strings.Lines(string(table)) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		n, _ := strconv.Atoi(m[1])
		seen = append(seen, n)
		for _, cell := range strings.Split(m[2], " · ") {
			folder, name := "tests/conformance", ""
			for _, q := range quoted.FindAllStringSubmatch(cell, -1) {
				if strings.HasPrefix(q[1], "Test") {
					name = q[1]
				} else {
					folder = q[1]
				}
			}
			if why := missing(t, folder, name); why != "" {
				t.Errorf("check %d: %s %q: %s", n, folder, name, why)
			}
		}
	}
	var want []int
	for n := 1; n <= lastCheck; n++ {
		want = append(want, n)
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the rows are %v", seen)
	}
}

// missing says why a test is not there; empty when it is.
func missing(t *testing.T, folder, name string) string {
	t.Helper()
	name, sub, of := strings.Cut(name, "/")
	if of && !slices.ContainsFunc(requests, func(r request) bool { return r.name == sub }) {
		return "no such request"
	}
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if name != "" && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return ""
		}
	}
	return "no such test"
}

// TestRequestsAreNamedOnce holds that a request can be told by its name, and that no difference is listed for one that is gone.
func TestRequestsAreNamedOnce(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for _, r := range requests {
		if count[r.name]++; count[r.name] > 1 {
			t.Errorf("two are called %q", r.name)
		}
	}
	for name := range different {
		if count[name] == 0 {
			t.Errorf("there is no request %q", name)
		}
	}
}
