package edge

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
)

// How a keyword's value is read. What is not in the table is refused: a misspelt keyword would weaken a schema in silence. Names that begin
// with "x-" are their author's.
type reading int

const (
	note        reading = iota // says nothing that is checked
	plain                      // checked, without schemas in it, and bounded by the schema's own size
	values                     // enum, const: compared with the answer, value by value
	names                      // lists of names
	count                      // a bound on a length
	pattern                    // a regular expression
	one                        // a schema
	many                       // a list of schemas
	byName                     // schemas by the names of members
	byPattern                  // schemas by regular expression
	reference                  // $ref
	placeless                  // refused, with a reason of its own
	dialectName                // $schema
)

var keywords = map[string]reading{
	"title": note, "description": note, "default": note, "examples": note, "deprecated": note, "readOnly": note, "writeOnly": note, "$comment": note,
	"format": note, "contentEncoding": note, "contentMediaType": note, // annotations, by 2020-12
	"type": plain, "multipleOf": plain, "maximum": plain, "exclusiveMaximum": plain, "minimum": plain, "exclusiveMinimum": plain, "uniqueItems": plain,
	"enum": values, "const": values, "required": names, "dependentRequired": names,
	"maxLength": count, "minLength": count, "maxItems": count, "minItems": count, "maxContains": count, "minContains": count, "maxProperties": count,
	"minProperties": count, "pattern": pattern,
	"allOf": many, "anyOf": many, "oneOf": many, "prefixItems": many,
	"not": one, "if": one, "then": one, "else": one, "items": one, "contains": one, "additionalProperties": one, "propertyNames": one,
	"unevaluatedItems": one, "unevaluatedProperties": one, "contentSchema": one,
	"properties": byName, "dependentSchemas": byName, "$defs": byName, "patternProperties": byPattern,
	"$ref": reference, "$schema": dialectName, "$id": placeless,
	"$anchor": placeless, "$dynamicAnchor": placeless, "$dynamicRef": placeless, "$recursiveRef": placeless, "$recursiveAnchor": placeless, "$vocabulary": placeless,
}

const (
	maxSchemas  = 1000  // schemas in one another
	maxPattern  = 1024  // bytes of a regular expression
	maxProgram  = 5000  // its instructions, repetitions unrolled
	maxPrograms = 20000 // of all patterns of a schema
	maxCount    = 1 << 30
	fewUnique   = 20 // the library compares every two of as many entries, and hashes more
)

// part is one schema of a document: what it costs by itself, and which other parts it applies to what.
type part struct {
	at      string  // JSON pointer
	weight  int     // comparisons for one value
	program int     // instructions of the regular expressions that one string meets
	here    []*edge // parts applied to the same value
	below   below   // parts applied to the values in it
}

// edge is a use of a part by another. Its target is known by place until all places are.
type edge struct {
	at   string
	part int
}

// below holds the uses for members and entries. Of fixed, a value meets at most one.
type below struct {
	fixed []*edge // by name or index, or what is left over
	each  []*edge // in addition, all of them
}

// walker reads a schema strictly before a compiler sees it.
type walker struct {
	parts    []*part
	places   map[string]int // part by JSON pointer
	programs int
	unique   bool // some list must have no entry twice
	booleans bool // some schema is true or false
}

func (w *walker) schema(n *node, at string) *FieldError {
	if len(w.parts) >= maxSchemas {
		return problem("has more than %d schemas in it", maxSchemas)
	}
	p := &part{at: at, weight: 1}
	w.places[at] = len(w.parts)
	w.parts = append(w.parts, p)
	if n.kind == jsonBool {
		w.booleans = true
		return nil
	}
	if n.kind != jsonObject {
		return problem("is %s, not a schema", n.kind)
	}
	for _, k := range n.keys {
		if refused := w.keyword(p, k, n.members[k]); refused != nil {
			return under(k, refused)
		}
	}
	return nil
}

func (w *walker) keyword(p *part, k string, v *node) *FieldError {
	how, known := keywords[k]
	at := p.at + "/" + pointer(k)
	switch {
	case !known && strings.HasPrefix(k, "x-"):
	case !known:
		return problem("is no keyword of JSON Schema 2020-12")
	case k == "$id" && p.at == "" && v.kind == jsonText: // the document's name; nothing refers to it
	case how == placeless:
		return problem("is not supported: schemas are one document, and references are #/… in it")
	case how == dialectName && (v.kind != jsonText || strings.TrimSuffix(v.text, "#") != dialect):
		return problem("is not %q", dialect)
	case how == values:
		_, bs, _ := v.size()
		p.weight += comparisons(v) + bs/64
	case how == names:
		vs, _, _ := v.size()
		p.weight += vs / 8
	case how == count:
		if n, err := strconv.Atoi(v.text); v.kind != jsonNumber || err != nil || n < 0 || n > maxCount {
			return problem("is not a whole number from 0 to %d", maxCount)
		}
	case how == pattern:
		return w.pattern(p, v)
	case how == reference:
		return w.reference(p, v)
	case how == one:
		return w.one(p, k, v, at)
	case how == many:
		return w.many(p, k, v, at)
	case how == byName || how == byPattern:
		return w.members(p, k, v, at, how == byPattern)
	case k == "uniqueItems":
		p.weight += fewUnique
		w.unique = w.unique || v.yes
	}
	return nil
}

// one reads a schema and files it where the keyword applies it.
func (w *walker) one(p *part, k string, v *node, at string) *FieldError {
	use := &edge{at: at}
	switch k {
	case "not", "if", "then", "else":
		p.here = append(p.here, use)
	case "contentSchema": // an annotation
	case "items", "additionalProperties":
		p.below.fixed = append(p.below.fixed, use)
	default:
		p.below.each = append(p.below.each, use)
	}
	return w.schema(v, at)
}

func (w *walker) many(p *part, k string, v *node, at string) *FieldError {
	if v.kind != jsonList {
		return problem("is %s, not a list", v.kind)
	}
	for i, item := range v.items {
		use := &edge{at: at + "/" + strconv.Itoa(i)}
		if k == "prefixItems" {
			p.below.fixed = append(p.below.fixed, use)
		} else {
			p.here = append(p.here, use)
		}
		if refused := w.schema(item, use.at); refused != nil {
			return within(i, refused)
		}
	}
	return nil
}

func (w *walker) members(p *part, k string, v *node, at string, patterns bool) *FieldError {
	if v.kind != jsonObject {
		return problem("is %s, not an object", v.kind)
	}
	for _, name := range v.keys {
		use := &edge{at: at + "/" + pointer(name)}
		switch k {
		case "properties":
			p.below.fixed = append(p.below.fixed, use)
		case "patternProperties":
			p.below.each = append(p.below.each, use)
		case "dependentSchemas":
			p.here = append(p.here, use)
		}
		if patterns {
			if refused := w.pattern(p, &node{kind: jsonText, text: name}); refused != nil {
				return under(name, refused)
			}
		}
		if refused := w.schema(v.members[name], use.at); refused != nil {
			return under(name, refused)
		}
	}
	return nil
}

// pattern takes what Go's regular expressions take: they run in time linear in the text, whatever the pattern.
func (w *walker) pattern(p *part, v *node) *FieldError {
	if v.kind != jsonText {
		return problem("is %s, not a string", v.kind)
	}
	n, refused := program(v.text)
	if refused != nil {
		return refused
	}
	p.program += n
	if w.programs += n; w.programs > maxPrograms {
		return problem("is one regular expression too many: together they are too large")
	}
	return nil
}

// program is the size of a regular expression as a machine, or why it may not be used.
func program(text string) (int, *FieldError) {
	if len(text) > maxPattern {
		return 0, problem("is longer than %d bytes", maxPattern)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, problem("is no regular expression that runs in linear time: %s", reason(err))
	}
	n := unrolled(tree)
	if n > maxProgram {
		return 0, problem("is too large a regular expression, repetitions unrolled")
	}
	if _, err := regexp.Compile(text); err != nil {
		return 0, problem("is no regular expression that runs in linear time: %s", reason(err))
	}
	return n, nil
}

// unrolled estimates a pattern's instructions from above, before anything is compiled.
func unrolled(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass:
		n = 1 + len(re.Rune)/64 // looked up by halves
	}
	for _, sub := range re.Sub {
		n += unrolled(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Max, re.Min+1, 1)
	}
	return min(n, maxProgram+1)
}

// reference takes "#" and "#/…": places in the same document. Whether there is a schema shows when all places are known.
func (w *walker) reference(p *part, v *node) *FieldError {
	if v.kind != jsonText {
		return problem("is %s, not a string", v.kind)
	}
	place, inside := strings.CutPrefix(v.text, "#")
	if !inside || place != "" && place[0] != '/' || strings.Contains(place, "%") {
		return problem("is not # or #/…: nothing is loaded from elsewhere")
	}
	p.here = append(p.here, &edge{at: place})
	return nil
}

// comparisons weighs a value that an answer is compared with: numbers are compared as fractions, which takes four times as long.
func comparisons(v *node) int {
	if v.kind == jsonNumber {
		return 4
	}
	n := 1
	for _, item := range v.items {
		n += comparisons(item)
	}
	for _, member := range v.members {
		n += comparisons(member)
	}
	return n
}

// pointer escapes a name for a JSON pointer.
func pointer(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

// reason is what Go says of a pattern, without the pattern.
func reason(err error) string {
	var e *syntax.Error
	if errors.As(err, &e) {
		return e.Code.String()
	}
	return "it cannot be compiled"
}

// location is a part's place as the names and numbers on the way to it.
func (p *part) location() []string {
	if p.at == "" {
		return nil
	}
	segs := strings.Split(p.at[1:], "/")
	for i, s := range segs {
		segs[i] = strings.ReplaceAll(strings.ReplaceAll(s, "~1", "/"), "~0", "~")
	}
	return segs
}
