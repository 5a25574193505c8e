// Tally turns `go test -json` on standard input into what a person reads: a line for each package, the output of what failed, and a
// list of what was skipped. It adds its counts to a file, so that a script can sum them up.
//
//	go test -json ./... | tally [-strict] [-counts FILE]
//
// With -strict a skipped test counts as failed: where everything has been installed, a skip hides something. The exit code is 1 when
// anything failed, also a package that did not build.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	strict := flag.Bool("strict", false, "count skipped tests as failed")
	counts := flag.String("counts", "", "append `PASSED FAILED SKIPPED` to this file")
	flag.Parse()
	t := newTally(os.Stdout, *strict)
	if err := t.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}
	t.finish()
	if *counts != "" {
		if err := appendLine(*counts, fmt.Sprintf("%d %d %d\n", t.passed, t.failed, t.skipped)); err != nil {
			fmt.Fprintln(os.Stderr, "tally:", err)
			os.Exit(2)
		}
	}
	if t.failed > 0 {
		os.Exit(1)
	}
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// event is a line of test2json, or of the build that precedes the tests.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

type key struct{ pkg, test string }

// tally is the state of one reading.
type tally struct {
	w                       io.Writer
	strict                  bool
	passed, failed, skipped int
	output                  map[key][]string // of what has not ended
	builds                  map[string][]string
	parents                 map[key]bool   // tests that have sub-tests: only the leaves count
	blamed                  map[key]bool   // those of them in which a sub-test failed, which is counted
	seen                    map[string]int // failed tests of a package
	skips                   []string
}

func newTally(w io.Writer, strict bool) *tally {
	return &tally{
		w: w, strict: strict, output: make(map[key][]string), builds: make(map[string][]string), parents: make(map[key]bool), blamed: make(map[key]bool), seen: make(map[string]int),
	}
}

func (t *tally) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			t.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(t.w, "%s", line) // what the go command itself says
		return
	}
	t.take(e)
}

func (t *tally) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		t.builds[e.ImportPath] = append(t.builds[e.ImportPath], e.Output)
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			t.parents[key{e.Package, e.Test[:i]}] = true
		}
	case "output":
		t.output[k] = append(t.output[k], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.pkg(e)
		} else {
			t.test(e, k)
		}
		delete(t.output, k)
	}
}

func (t *tally) test(e event, k key) {
	leaf := !t.parents[k]
	switch e.Action {
	case "pass":
		if leaf {
			t.passed++
		}
	case "skip":
		if !leaf {
			return
		}
		why := reason(t.output[k])
		t.skips = append(t.skips, fmt.Sprintf("%s %s: %s", short(e.Package), e.Test, why))
		if t.strict {
			t.failed++
		} else {
			t.skipped++
		}
	case "fail":
		t.seen[e.Package]++
		if !t.blamed[k] {
			t.failed++ // a leaf, or a test that failed beside its sub-tests
		}
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			t.blamed[key{e.Package, e.Test[:i]}] = true
		}
		fmt.Fprintf(t.w, "--- failed: %s %s (%.1fs)\n%s", short(e.Package), e.Test, e.Elapsed, strings.Join(t.output[k], ""))
	}
}

// pkg prints a package's line. A package fails without a failed test when it did not build, timed out or exited.
func (t *tally) pkg(e event) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(t.w, "ok    %6.1fs  %s\n", e.Elapsed, short(e.Package))
	case "skip":
		// no test files
	case "fail":
		fmt.Fprintf(t.w, "FAIL  %6.1fs  %s\n", e.Elapsed, short(e.Package))
		if t.seen[e.Package] > 0 {
			return
		}
		t.failed++
		fmt.Fprint(t.w, strings.Join(t.builds[e.FailedBuild], ""), strings.Join(t.output[key{e.Package, ""}], ""))
		// A test that was running when the process ended has no end of its own.
		for k, out := range t.output {
			if k.pkg == e.Package && k.test != "" {
				fmt.Fprintf(t.w, "--- cut off: %s %s\n%s", short(k.pkg), k.test, strings.Join(out, ""))
			}
		}
	}
}

func (t *tally) finish() {
	if len(t.skips) == 0 {
		return
	}
	slices.Sort(t.skips)
	word := "skipped"
	if t.strict {
		word = "skipped, which is a failure here"
	}
	fmt.Fprintf(t.w, "%s:\n", word)
	for _, s := range t.skips {
		fmt.Fprintf(t.w, "  %s\n", s)
	}
}

// reason finds what a test said when it skipped.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, text, ok := strings.Cut(line, ".go:"); ok { // file.go:12: reason
			if _, text, ok = strings.Cut(text, ": "); ok {
				return text
			}
		}
		return line
	}
	return "no reason given"
}

func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/fairway-edge/fairway/")
}
