package edge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FieldError says what is wrong with which field of a request, a contract, a schema or a result. Its text is made of names and bounds; of
// what a field held it repeats at most a short name.
type FieldError struct {
	Field   string // such as operator.contract.fields[2].mode; "" for the whole
	Problem string // such as "is required"
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return "the document " + e.Problem
	}
	return e.Field + " " + e.Problem
}

func problem(format string, args ...any) *FieldError {
	return &FieldError{Problem: fmt.Sprintf(format, args...)}
}

// under puts a member's name before the field that an error names.
func under(name string, e *FieldError) *FieldError { return at(segment(name), e) }

// within puts the place in a list before it.
func within(i int, e *FieldError) *FieldError { return at("["+strconv.Itoa(i)+"]", e) }

func at(outer string, e *FieldError) *FieldError {
	field := e.Field
	if field != "" && field[0] != '[' && outer != "" {
		field = "." + field
	}
	return &FieldError{Field: outer + field, Problem: e.Problem}
}

// segment makes a name fit for an error's text, whatever a caller called it.
func segment(name string) string {
	plain := name != "" && len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '$' && r != '-'
	})
	if plain {
		return name
	}
	return "[" + strconv.Quote(short(name, 40)) + "]"
}

// short cuts a text to n code points.
func short(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// fields reads an object strictly: each member at most once, of its type, within its bounds, and none that nobody asked for. The first
// error stays; what is read after it does not matter.
type fields struct {
	of   *node
	seen []string
	err  *FieldError
}

func read(n *node) *fields {
	f := &fields{of: n, seen: make([]string, 0, 12)}
	if n.kind != jsonObject {
		f.err = problem("is %s, not an object", n.kind)
		f.of = &node{kind: jsonObject}
	}
	return f
}

func (f *fields) fail(name, format string, args ...any) {
	f.keep(under(name, problem(format, args...)))
}

func (f *fields) keep(e *FieldError) {
	if f.err == nil {
		f.err = e
	}
}

// get gives a member; nil where it is absent or null.
func (f *fields) get(name string) *node {
	f.seen = append(f.seen, name)
	if v := f.of.members[name]; v != nil && v.kind != jsonNull {
		return v
	}
	return nil
}

// typed gives a member of the one kind that it may be of.
func (f *fields) typed(name string, want jsonKind) *node {
	v := f.get(name)
	if v != nil && v.kind != want {
		f.fail(name, "is %s, not %s", v.kind, want)
		return nil
	}
	return v
}

// need is typed for a member that must be there.
func (f *fields) need(name string, want jsonKind) *node {
	v := f.typed(name, want)
	if v == nil {
		f.fail(name, "is required")
		return &node{kind: want}
	}
	return v
}

func (f *fields) bound(name, s string, most int) string {
	if len(s) > most {
		f.fail(name, "is longer than %d bytes", most)
		return ""
	}
	return s
}

// text gives a string of at most so many bytes, or "".
func (f *fields) text(name string, most int) string {
	if v := f.typed(name, jsonText); v != nil {
		return f.bound(name, v.text, most)
	}
	return ""
}

// needText gives a string that must be there and not be blank.
func (f *fields) needText(name string, most int) string {
	s := f.bound(name, f.need(name, jsonText).text, most)
	if f.err == nil && strings.TrimSpace(s) == "" {
		f.fail(name, "is empty")
	}
	return s
}

func (f *fields) flag(name string) bool {
	v := f.typed(name, jsonBool)
	return v != nil && v.yes
}

// integer gives a whole number within bounds, written without fraction or exponent.
func (f *fields) integer(name string, least, most, otherwise int) int {
	v := f.typed(name, jsonNumber)
	if v == nil {
		return otherwise
	}
	n, err := strconv.Atoi(v.text)
	if err != nil || n < least || n > most {
		f.fail(name, "is not a whole number from %d to %d", least, most)
		return otherwise
	}
	return n
}

// choice gives one of a closed set of words.
func choice[T ~string](f *fields, name string, otherwise T, of ...T) T {
	v := f.typed(name, jsonText)
	if v == nil {
		return otherwise
	}
	if !slices.Contains(of, T(v.text)) {
		f.fail(name, "is not one of %s", words(of))
		return otherwise
	}
	return T(v.text)
}

func words[T ~string](of []T) string {
	s := make([]string, len(of))
	for i, w := range of {
		s[i] = string(w)
	}
	return strings.Join(s, ", ")
}

// unknown lists the members that nobody asked for.
func (f *fields) unknown() []string {
	var names []string
	for _, k := range f.of.keys {
		if !slices.Contains(f.seen, k) {
			names = append(names, k)
		}
	}
	return names
}

// done gives the first error; a member that nobody asked for is one.
func (f *fields) done() *FieldError {
	for _, k := range f.unknown() {
		f.fail(k, "is not known here")
	}
	return f.err
}

// named reports whether s may stand as a name: not blank, short, and nothing that a terminal or a log would obey.
func named(s string) bool {
	return strings.TrimSpace(s) != "" && utf8.RuneCountInString(s) <= maxName && !strings.ContainsFunc(s, unicode.IsControl)
}
