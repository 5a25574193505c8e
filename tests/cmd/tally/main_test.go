package main

import (
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	t.Parallel()
	const stream = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: needs a moon\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"p","Elapsed":0.2}
{"Action":"run","Package":"q","Test":"TestC"}
{"Action":"output","Package":"q","Test":"TestC","Output":"    c_test.go:9: boom\n"}
{"Action":"fail","Package":"q","Test":"TestC","Elapsed":0}
{"Action":"fail","Package":"q","Elapsed":0.2}
{"ImportPath":"r [r.test]","Action":"build-output","Output":"r/r.go:1: no such thing\n"}
{"Action":"fail","Package":"r","Elapsed":0,"FailedBuild":"r [r.test]"}
go: some message
`
	for _, tc := range []struct {
		name                    string
		strict                  bool
		passed, failed, skipped int
	}{
		{"plain", false, 1, 2, 1},
		{"strict", true, 1, 3, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			tl := newTally(&out, tc.strict)
			if err := tl.read(strings.NewReader(stream)); err != nil {
				t.Fatal(err)
			}
			tl.finish()
			if tl.passed != tc.passed || tl.failed != tc.failed || tl.skipped != tc.skipped {
				t.Errorf("got %d passed, %d failed, %d skipped; want %d, %d, %d", tl.passed, tl.failed, tl.skipped, tc.passed, tc.failed, tc.skipped)
			}
			for _, want := range []string{"p TestB: needs a moon", "c_test.go:9: boom", "no such thing", "go: some message"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, out.String())
				}
			}
		})
	}
}

func TestTallyCountsAKilledPackage(t *testing.T) {
	t.Parallel()
	const stream = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p","Elapsed":600}
`
	var out strings.Builder
	tl := newTally(&out, false)
	if err := tl.read(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	if tl.failed != 1 || !strings.Contains(out.String(), "test timed out") {
		t.Errorf("%d failed; output:\n%s", tl.failed, out.String())
	}
}

func TestTallyCountsAFailureOnce(t *testing.T) {
	t.Parallel()
	const children = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"RESULT","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`
	for _, child := range []string{"pass", "fail"} { // with pass, TestA failed by itself: a race, a cleanup
		tl := newTally(&strings.Builder{}, false)
		if err := tl.read(strings.NewReader(strings.Replace(children, "RESULT", child, 1))); err != nil {
			t.Fatal(err)
		}
		if tl.failed != 1 {
			t.Errorf("sub-test %s: %d failed, want 1", child, tl.failed)
		}
	}
}

// A test that failed may be run again, unless it raced or panicked, or many failed.
func TestTallyAgain(t *testing.T) {
	t.Parallel()
	const flaky = `{"Action":"run","Package":"p","Test":"NAME"}
{"Action":"run","Package":"p","Test":"NAME/one"}
{"Action":"output","Package":"p","Test":"NAME/one","Output":"    a_test.go:7: too slow\n"}
{"Action":"output","Package":"p","Test":"NAME/one","Output":"    rig.go:9: ---- gateway ----\n"}
{"Action":"output","Package":"p","Test":"NAME/one","Output":"OUTPUT\n"}
{"Action":"fail","Package":"p","Test":"NAME/one"}
{"Action":"fail","Package":"p","Test":"NAME"}
`
	test := func(name, output string) string {
		return strings.NewReplacer("NAME", name, "OUTPUT", output).Replace(flaky)
	}
	const end = `{"Action":"fail","Package":"p"}` + "\n"
	for _, tc := range []struct {
		name, stream  string
		failed, again int
	}{
		{"one", test("TestA", "x"), 0, 1},
		{"three", test("TestA", "x") + test("TestB", "x") + test("TestC", "x"), 0, 3},
		{"four", test("TestA", "x") + test("TestB", "x") + test("TestC", "x") + test("TestD", "x"), 4, 0},
		{"a race", test("TestA", "WARNING: DATA RACE") + test("TestB", "x"), 1, 1},
		{"a panic", test("TestA", "panic: oh"), 1, 0},
		{"a package", `{"Action":"output","Package":"p","Output":"exit status 2\n"}` + "\n", 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			tl := newTally(&out, true)
			tl.again = true
			if err := tl.read(strings.NewReader(tc.stream + end)); err != nil {
				t.Fatal(err)
			}
			tl.finish()
			if tl.failed != tc.failed || len(tl.retry) != tc.again {
				t.Errorf("%d failed, %v again; want %d, %d", tl.failed, tl.retry, tc.failed, tc.again)
			}
			for _, k := range tl.retry {
				if got := strings.Join(tl.said[k], ";"); got != "a_test.go:7: too slow" {
					t.Errorf("%v said %q", k, got)
				}
			}
		})
	}
}
