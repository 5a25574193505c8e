package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	comments    = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/`)
	declaration = regexp.MustCompile(`(?s)MTMD_API\s+([^;{}()]*?)(\w+)\s*(\([^;{}]*\))\s*;`)
	blanks      = regexp.MustCompile(`\s+`)
)

// writeStub writes an empty body for each function that the file symbols lists, one a line, as the headers declare it.
func writeStub(w io.Writer, symbols string, headers []string) error {
	list, err := os.ReadFile(symbols)
	if err != nil {
		return err
	}
	wanted := make(map[string]bool)
	for name := range strings.FieldsSeq(string(list)) {
		wanted[name] = true
	}
	fmt.Fprint(w, "#include <map>\n#include <string>\n")
	var bodies strings.Builder
	for _, h := range headers {
		text, err := os.ReadFile(h)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "#include %q\n", filepath.Base(h))
		for _, d := range declaration.FindAllStringSubmatch(comments.ReplaceAllString(string(text), ""), -1) {
			result, name, params := strings.TrimSpace(blanks.ReplaceAllString(d[1], " ")), d[2], d[3]
			if !wanted[name] {
				continue
			}
			delete(wanted, name)
			body := " { return {}; }\n"
			if result == "void" {
				body = " {}\n"
			}
			bodies.WriteString(result + " " + name + blanks.ReplaceAllString(params, " ") + body)
		}
	}
	_, err = io.WriteString(w, bodies.String())
	return err
}
