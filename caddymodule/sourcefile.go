package caddymodule

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/fairway-edge/fairway/lease"
)

// maxSource is what is read of a file with a value: the value, the line break, and one
// byte that tells that there is more.
const maxSource = lease.MaxValue + 3

// readRegular reads at most so many bytes of a file, into memory of its own. What is no
// regular file might keep the load waiting, and Caddy's admin API with it, and gives the
// next load something else or nothing.
func readRegular(name string, most int) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	value := make([]byte, most)
	n, err := io.ReadFull(f, value)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return value[:n:n], nil
}

// sourceFiles is Caddy's {file.*} for options: with the bounds of a slot's file, and
// with an error that says why one cannot be had, where Caddy's says that it is empty.
type sourceFiles struct{ err error } // the first

// replace is a caddy.ReplacerFunc.
func (s *sourceFiles) replace(key string) (any, bool) {
	name, ok := strings.CutPrefix(key, "file.")
	if !ok {
		return nil, false
	}
	value, err := readRegular(name, maxSource)
	value = bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r"))
	switch {
	case err != nil:
	case len(value) == 0:
		err = fmt.Errorf("the file %s is empty", name)
	case len(value) > lease.MaxValue:
		err = fmt.Errorf("the file %s is longer than %d bytes", name, lease.MaxValue)
	default:
		return string(value), true
	}
	if s.err == nil {
		s.err = err
	}
	return "", true
}

// replacer adds what else Caddy knows.
func (s *sourceFiles) replacer(others *caddy.Replacer) *caddy.Replacer {
	repl := caddy.NewEmptyReplacer()
	repl.Map(s.replace)
	repl.Map(others.Get)
	return repl
}
