package caddymodule

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// table prints rows in columns. What it prints may come from nodes and callers.
type table struct {
	out  io.Writer
	w    *tabwriter.Writer
	rows int
	head []string
}

func newTable(out io.Writer, head ...string) *table {
	return &table{out: out, w: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), head: head}
}

func (t *table) row(cells ...string) {
	if t.rows == 0 {
		_, _ = fmt.Fprintln(t.w, strings.Join(t.head, "\t"))
	}
	t.rows++
	for i, c := range cells {
		if cells[i] = plain(c); cells[i] == "" {
			cells[i] = "-"
		}
	}
	_, _ = fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// end prints what there is, or what it means that there is nothing.
func (t *table) end(empty string) {
	if t.rows == 0 {
		_, _ = fmt.Fprintln(t.out, empty)
		return
	}
	_ = t.w.Flush()
}

// plain keeps a peer's text from steering the terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// widest is how many characters of a caller's or node's text a table shows.
const widest = 40

// short cuts such a text: one long name must not push the columns after it out of sight.
func short(s string) string {
	if len(s) <= widest {
		return s
	}
	if r := []rune(s); len(r) > widest {
		return string(r[:widest-1]) + "…"
	}
	return s
}

// someModels is how many models a table names before it counts.
const someModels = 3

func some(list []string) string {
	shown := make([]string, 0, someModels)
	for _, s := range list[:min(len(list), someModels)] {
		shown = append(shown, short(s))
	}
	if len(list) <= someModels {
		return strings.Join(shown, " ")
	}
	return fmt.Sprintf("%s +%d", strings.Join(shown, " "), len(list)-someModels)
}

func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return time.Since(t).Round(time.Second).String()
}
