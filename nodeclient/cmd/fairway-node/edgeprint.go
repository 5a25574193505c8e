package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/fairway-edge/fairway/internal/edge"
)

// print shows an answer: whole, or what a person wants of it.
func (o *offline) print(w io.Writer, a edge.Answer) error {
	if o.json {
		b, err := a.JSON()
		if err != nil {
			return err
		}
		_, err = w.Write(append(b, '\n'))
		return err
	}
	r := a.Result
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format, args...) } // Flush reports
	p("status\t%s\ndisposition\t%s\nmodel\t%s %s\nlatency\t%.1f ms\n", r.Status, a.Disposition, plain(r.ModelID), plain(r.ModelVersion), r.LatencyMS)
	if r.Confidence != nil {
		p("confidence\t%.2f\n", *r.Confidence)
	}
	if r.DegradeReason != "" {
		p("reason\t%s\n", r.DegradeReason)
	}
	if r.DegradeDetail != "" {
		p("detail\t%s\n", plain(r.DegradeDetail))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Output != nil {
		var out bytes.Buffer
		if err := json.Indent(&out, r.Output, "", "  "); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "\n%s\n", plain(out.String()))
	}
	if len(r.Evidence) == 0 {
		return nil
	}
	p("\nSOURCE\tOFFSET\tSNIPPET\n")
	for _, e := range r.Evidence {
		offset, snippet := "-", "-"
		if e.Offset != nil {
			offset = strconv.Itoa(*e.Offset)
		}
		if e.Snippet != nil {
			snippet = strconv.Quote(*e.Snippet)
		}
		p("%s\t%s\t%s\n", plain(e.Source), offset, snippet)
	}
	return t.Flush()
}

// plain writes what a terminal would obey, or a reader be misled by, as JSON would escape it: a model may say anything.
func plain(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '\n' || unicode.IsPrint(c):
			b.WriteRune(c)
		case c > 0xffff:
			_, _ = fmt.Fprintf(&b, `\U%08x`, c)
		default:
			_, _ = fmt.Fprintf(&b, `\u%04x`, c)
		}
	}
	return b.String()
}
