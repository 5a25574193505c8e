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

// someModels is how many models a table names before it counts.
const someModels = 3

func some(list []string) string {
	if len(list) <= someModels {
		return strings.Join(list, " ")
	}
	return fmt.Sprintf("%s +%d", strings.Join(list[:someModels], " "), len(list)-someModels)
}

func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return time.Since(t).Round(time.Second).String()
}
