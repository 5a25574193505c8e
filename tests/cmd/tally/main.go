// Tally turns `go test -json` on standard input into what a person reads: a line for each package, the output of what failed, and a
// list of what was skipped. It adds its counts to a file, so that a script can sum them up.
//
//	go test -json ./... | tally [-strict] [-counts FILE] [-again FILE]
//
// With -strict a skipped test counts as failed: where everything has been installed, a skip hides something. With -again a test that failed is not
// counted but named in that file, as PACKAGE TEST WHAT IT SAID, for the script to run it once more; not when it raced or panicked, and not when more than
// maxAgain failed. The exit code is 1 when anything failed, also a package that did not build.
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
	again := flag.String("again", "", "append failed tests that may be run once more to this file")
	flag.Parse()
	t := newTally(os.Stdout, *strict)
	t.again = *again != ""
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
	for _, k := range t.retry {
		if err := appendLine(*again, fmt.Sprintf("%s %s %s\n", k.pkg, k.test, strings.Join(t.said[k], " | "))); err != nil {
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

// top is the test of which k is a part.
func (k key) top() key {
	k.test, _, _ = strings.Cut(k.test, "/")
	return k
}

// maxAgain is how many failed tests may be run again: where more fail, it is not the machine.
const maxAgain = 3

// tally is the state of one reading.
type tally struct {
	w                       io.Writer
	strict, again           bool
	passed, failed, skipped int
	output                  map[key][]string // of what has not ended
	builds                  map[string][]string
	parents                 map[key]bool   // tests that have sub-tests: only the leaves count
	blamed                  map[key]bool   // those of them in which a sub-test failed, which is counted
	seen                    map[string]int // failed tests of a package
	skips                   []string

	grave map[key]bool     // top-level tests that raced or panicked
	fails map[key]int      // failures counted in a top-level test
	said  map[key][]string // what a top-level test and its parts reported
	retry []key            // failed top-level tests that are not counted
}

func newTally(w io.Writer, strict bool) *tally {
	return &tally{
		w: w, strict: strict, output: make(map[key][]string), builds: make(map[string][]string), parents: make(map[key]bool), blamed: make(map[key]bool), seen: make(map[string]int),
		grave: make(map[key]bool), fails: make(map[key]int), said: make(map[key][]string),
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
		if e.Test != "" && (strings.Contains(e.Output, "DATA RACE") || strings.HasPrefix(e.Output, "panic: ")) {
			t.grave[k.top()] = true
		}
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
		top := k.top()
		t.seen[e.Package]++
		if !t.blamed[k] { // a leaf, or a test that failed beside its sub-tests
			t.failed++
			t.fails[top]++
		}
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			t.blamed[key{e.Package, e.Test[:i]}] = true
		}
		said := reports(t.output[k])
		t.said[top] = append(t.said[top], said...)
		// What it reported stands once more at the end: it is easily lost among the logs of what it ran.
		fmt.Fprintf(t.w, "%s--- failed: %s %s (%.1fs)\n", strings.Join(t.output[k], ""), short(e.Package), e.Test, e.Elapsed)
		for _, line := range said {
			fmt.Fprintf(t.w, "    %s\n", line)
		}
		if k == top && t.again && !t.grave[k] {
			t.retry = append(t.retry, k)
			t.failed -= t.fails[k]
		}
	}
}

// reports finds what a test reported by Error, Fatal or Log, without the logs of processes that it ran; the first line of each.
func reports(output []string) []string {
	var out []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		file, text, ok := strings.Cut(line, ".go:")
		if !ok || strings.ContainsAny(file, " \t{\"") || len(out) == 10 {
			continue
		}
		if _, text, ok = strings.Cut(text, ": "); ok && !strings.HasPrefix(text, "----") {
			out = append(out, line[:min(len(line), 300)])
		}
	}
	return out
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
	if len(t.retry) > maxAgain {
		for _, k := range t.retry {
			t.failed += t.fails[k]
		}
		t.retry = nil
	}
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
