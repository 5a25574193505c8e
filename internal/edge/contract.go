package edge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a contract.
const (
	maxContract  = 256 << 10 // bytes
	maxPrompt    = 64 << 10  // bytes of a prompt
	maxFields    = 128
	maxLabels    = 256 // allowed values of a field
	maxLabel     = 256 // code points
	maxValue     = 200000
	maxTotal     = 400000
	valueChars   = 2000  // max_value_chars where the contract says nothing
	totalChars   = 20000 // max_total_chars likewise
	noValue      = "Not specified"
	stringValues = "string"
)

var contractLimits = limits{bytes: maxContract, depth: 16, values: maxFields * (maxLabels + 8)}

// mode says what a field's value has to rest on.
type mode string

// The two modes.
const (
	verbatim  mode = "verbatim"   // the words of one input text
	closedSet mode = "closed_set" // the author's list
)

// field is one member of a contract's output.
type field struct {
	name   string
	mode   mode
	labels []string          // of a closed set, as the author wrote them
	byKey  map[string]string // label by its key
}

// Contract is an operator whose output is an object of strings, each of which is grounded: in the words of an input text, or in a closed set.
// It is immutable and may be used by many runs at once.
type Contract struct {
	ID           string
	Version      string
	Prompt       string
	ModelBinding string // "" for none

	fields        []field
	maxValueChars int
	maxTotalChars int
	sentinel      string
}

// ParseContract reads a contract in its wire form, bare or under "grounded_contract". It is strict about what decides over values: an unknown
// member of a field or of the caps is an error, for a misspelt one would weaken the contract in silence. Other members that it does not
// know are its author's business. Errors are [*FieldError]s.
func ParseContract(data []byte) (*Contract, error) {
	n, refused := readJSON(data, contractLimits)
	if refused != nil {
		return nil, refused
	}
	c, refused := contractOf(n)
	if refused != nil {
		return nil, refused
	}
	return c, nil
}

func contractOf(n *node) (*Contract, *FieldError) {
	if inner := n.members["grounded_contract"]; inner != nil {
		c, refused := contractOf(&node{kind: inner.kind, keys: inner.keys, members: without(inner.members, "grounded_contract")})
		if refused != nil {
			return nil, under("grounded_contract", refused)
		}
		return c, nil
	}
	f := read(n)
	c := &Contract{
		ID:           f.needText("contract_id", maxModel),
		Version:      "1",
		Prompt:       f.needText("prompt_template", maxPrompt),
		ModelBinding: f.text("model_binding", maxModel),
	}
	if v := f.get("version"); v != nil {
		c.Version = f.version(v)
	}
	c.caps(f)
	c.readFields(f)
	if f.err != nil {
		return nil, f.err
	}
	return c, nil
}

func without(members map[string]*node, name string) map[string]*node {
	rest := make(map[string]*node, len(members))
	for k, v := range members {
		if k != name {
			rest[k] = v
		}
	}
	return rest
}

// version takes a text, or a whole number: authors write both, and they cannot be confused.
func (f *fields) version(v *node) string {
	_, err := strconv.Atoi(v.text)
	if v.kind != jsonText && (v.kind != jsonNumber || err != nil) || len(v.text) > maxModel {
		f.fail("version", "is not a string")
		return ""
	}
	if v.text == "" {
		return "1"
	}
	return v.text
}

// caps reads anchors_contract; null, zero and the empty text stand for the defaults.
func (c *Contract) caps(f *fields) {
	c.maxValueChars, c.maxTotalChars, c.sentinel = valueChars, totalChars, noValue
	v := f.get("anchors_contract")
	if v == nil {
		return
	}
	g := read(v)
	if n := g.integer("max_value_chars", 0, maxValue, 0); n > 0 {
		c.maxValueChars = n
	}
	if n := g.integer("max_total_chars", 0, maxTotal, 0); n > 0 {
		c.maxTotalChars = n
	}
	if t := g.text("value_type", maxModel); t != "" && t != stringValues {
		g.fail("value_type", "is not %q", stringValues)
	}
	if s := g.text("missing_sentinel", maxModel); s != "" {
		c.sentinel = s
		if !named(s) {
			g.fail("missing_sentinel", "is blank, has control characters or more than %d", maxName)
		}
	}
	if refused := g.done(); refused != nil {
		f.keep(under("anchors_contract", refused))
	}
}

func (c *Contract) readFields(f *fields) {
	items := f.need("fields", jsonList).items
	if f.err == nil && (len(items) == 0 || len(items) > maxFields) {
		f.fail("fields", "has %d entries, not 1 to %d", len(items), maxFields)
	}
	for i, item := range items {
		if f.err != nil {
			return
		}
		fd, refused := c.readField(item)
		if refused != nil {
			f.keep(under("fields", within(i, refused)))
			return
		}
		if slices.ContainsFunc(c.fields, func(other field) bool { return other.name == fd.name }) {
			f.keep(under("fields", within(i, under("name", problem("is given twice")))))
		}
		c.fields = append(c.fields, fd)
	}
}

func (c *Contract) readField(n *node) (field, *FieldError) {
	f := read(n)
	fd := field{name: f.needText("name", 4*maxName), mode: choice(f, "mode", verbatim, verbatim, closedSet)}
	if f.err == nil && !named(fd.name) {
		f.fail("name", "has control characters or more than %d", maxName)
	}
	labels := f.typed("allowed_values", jsonList)
	switch {
	case labels != nil && len(labels.items) > maxLabels:
		f.fail("allowed_values", "has more than %d entries", maxLabels)
	case fd.mode == verbatim && labels != nil && len(labels.items) > 0:
		f.fail("allowed_values", "belongs to mode closed_set")
	case fd.mode == closedSet && (labels == nil || len(labels.items) == 0):
		f.fail("allowed_values", "is required with mode closed_set")
	case fd.mode == closedSet:
		if refused := c.readLabels(&fd, labels.items); refused != nil {
			f.keep(under("allowed_values", refused))
		}
	}
	return fd, f.done()
}

// readLabels takes a closed set whose labels stay apart after normalisation, also from the sentinel.
func (c *Contract) readLabels(fd *field, items []*node) *FieldError {
	fd.byKey = make(map[string]string, len(items))
	for i, v := range items {
		if v.kind != jsonText {
			return within(i, problem("is %s, not a string", v.kind))
		}
		key := labelKey(v.text)
		switch {
		case key == "":
			return within(i, problem("is empty"))
		case length(v.text) > maxLabel:
			return within(i, problem("is longer than %d characters", maxLabel))
		case key == labelKey(c.sentinel):
			return within(i, problem("reads as the sentinel for a missing value"))
		case fd.byKey[key] != "":
			return within(i, problem("reads as an earlier one"))
		}
		fd.byKey[key] = v.text
		fd.labels = append(fd.labels, v.text)
	}
	return nil
}

// schema is the JSON Schema of the contract's output, members in the order of its fields: what a provider is held to while it generates.
func (c *Contract) schema() []byte {
	b := []byte(`{"type":"object","properties":{`)
	names := make([]string, len(c.fields))
	for i, fd := range c.fields {
		if i > 0 {
			b = append(b, ',')
		}
		names[i] = fd.name
		b = append(appendString(b, fd.name), `:{"type":"string"`...)
		if fd.mode == closedSet {
			b = append(appendStrings(append(b, `,"enum":[`...), fd.labels), ']')
		}
		b = append(b, '}')
	}
	b = appendStrings(append(b, `},"required":[`...), names)
	return append(b, `],"additionalProperties":false}`...)
}

func appendStrings(b []byte, all []string) []byte {
	for i, s := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return b
}

// Missing is the output in which every value is missing: what to hand on where no model could be asked but an answer is owed.
func (c *Contract) Missing() []byte {
	values := make([]string, len(c.fields))
	for i := range values {
		values[i] = c.sentinel
	}
	return c.output(values)
}

func (c *Contract) output(values []string) []byte {
	b := []byte{'{'}
	for i, fd := range c.fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, fd.name), ':')
		b = appendString(b, values[i])
	}
	return append(b, '}')
}

// script is a text for a model in which the author's words are told from ours: the redaction gate looks at his.
type script struct {
	text strings.Builder
	own  []string
}

// quote puts words of the author's into the text, as JSON spells them.
func (s *script) quote(words string) {
	s.own = append(s.own, words)
	s.text.Write(appendString(nil, words))
}

// rules tells a model, in words, what the contract will check.
func (c *Contract) rules() string {
	var s script
	c.say(&s)
	return s.text.String()
}

// say writes the rules. Whatever is the author's goes through quote.
func (c *Contract) say(s *script) {
	b := &s.text
	b.WriteString("Answer with one JSON object and nothing else. It has exactly these members, each of them a string:\n")
	for _, fd := range c.fields {
		b.WriteString("- ")
		s.quote(fd.name)
		if fd.mode == verbatim {
			fmt.Fprintf(b, ": words copied exactly from one of the texts, at most %d characters; ", c.maxValueChars)
			s.quote(c.sentinel)
			b.WriteString(" where no text has them\n")
			continue
		}
		b.WriteString(": exactly one of ")
		for i, label := range fd.labels {
			if i > 0 {
				b.WriteByte(',')
			}
			s.quote(label)
		}
		b.WriteByte('\n')
	}
	if c.maxValueChars != valueChars {
		s.own = append(s.own, strconv.Itoa(c.maxValueChars))
	}
}
