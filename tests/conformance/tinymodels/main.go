// Tinymodels writes what the conformance suite's Ollama needs and cannot download: models of a few hundred kilobytes whose answers
// are known in advance, and bodies for media functions that a text-only llama-server refers to but never calls.
//
//	tinymodels store DIR                 a model store (manifests and blobs) in DIR
//	tinymodels stub SYMBOLS HEADER...    C++ on standard output
//
// Only the standard library is used.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tinymodels:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "store":
		return writeStore(args[1])
	case len(args) >= 3 && args[0] == "stub":
		return writeStub(os.Stdout, args[1], args[2:])
	}
	return fmt.Errorf("usage: tinymodels store DIR | stub SYMBOLS HEADER")
}
