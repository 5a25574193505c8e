package edge

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// dialect is the one dialect of JSON Schema that operators are written in.
const dialect = "https://json-schema.org/draft/2020-12/schema"

const maxSchema = 128 << 10 // bytes

// schema is a compiled JSON Schema with what checking an answer against it can cost. It may be used by many runs at once.
type schema struct {
	text  json.RawMessage // as the author wrote it
	asked json.RawMessage // for the provider: the same, without booleans in the place of schemas
	whole *jsonschema.Schema
	not   *jsonschema.Schema // {"not": whole}: a yes or no, without a list of everything that is wrong
	costs costs
}

// Names that only the compiler sees. Nothing answers there.
const (
	wholeURL = "urn:fairway:schema"
	notURL   = "urn:fairway:not-schema"
)

// newSchema checks a schema and compiles it, or finds it compiled.
func newSchema(n *node) (*schema, *FieldError) {
	if s := remembered.find(n.raw); s != nil {
		return s, nil
	}
	s, refused := compileSchema(n)
	if refused == nil && len(n.raw) > 0 {
		remembered.keep(n.raw, s)
	}
	return s, refused
}

// compileSchema checks a schema and compiles it. Nothing is fetched for it, from no network and no disk.
func compileSchema(n *node) (_ *schema, refused *FieldError) {
	w := walker{places: make(map[string]int)}
	if refused := w.schema(n, ""); refused != nil {
		return nil, refused
	}
	costs, refused := w.weigh()
	if refused != nil {
		return nil, refused
	}
	s := &schema{text: n.compact(), costs: costs}
	s.asked = s.text
	if w.booleans {
		if asked := appendAsked(nil, n); !bytes.Equal(asked, s.text) { // most have booleans in additionalProperties alone
			s.asked = asked
		}
	}
	defer func() {
		// The library is well tested and read with distrust all the same: a schema comes from a caller.
		if v := recover(); v != nil {
			refused = problem("cannot be compiled")
		}
	}()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nothing{})
	doc := n.any()
	if m, ok := doc.(map[string]any); ok {
		delete(m, "$schema") // has been checked
		delete(m, "$id")     // a name; references are to places in this document
	}
	if err := errors.Join(c.AddResource(wholeURL, doc), c.AddResource(notURL, map[string]any{"not": map[string]any{"$ref": wholeURL}})); err != nil {
		return nil, problem("cannot be compiled")
	}
	var err error
	if s.whole, err = c.Compile(wholeURL); err != nil {
		return nil, uncompiled(err)
	}
	if s.not, err = c.Compile(notURL); err != nil {
		return nil, problem("cannot be compiled")
	}
	return s, nil
}

// nothing is the loader of everything that a schema could ask for.
type nothing struct{}

func (nothing) Load(string) (any, error) {
	return nil, errors.New("schemas are not loaded from elsewhere")
}

// uncompiled names the place that the compiler did not take.
func uncompiled(err error) *FieldError {
	var sve *jsonschema.SchemaValidationError
	var ve *jsonschema.ValidationError
	if errors.As(err, &sve) && errors.As(sve.Err, &ve) {
		v := firstViolation(ve)
		return path(locate(v), problem("breaks the rules for %s", orSchema(keyword(v))))
	}
	return problem("cannot be compiled")
}

func orSchema(keyword string) string {
	if keyword == "" {
		return "schemas"
	}
	return fmt.Sprintf("%q of schemas", keyword)
}

// path names a place in a document as errors about fields do.
func path(location []string, e *FieldError) *FieldError {
	for _, seg := range slices.Backward(location) {
		if i, err := strconv.Atoi(seg); err == nil && strconv.Itoa(i) == seg {
			e = within(i, e)
		} else {
			e = under(seg, e)
		}
	}
	return e
}

// check says what is wrong with an answer, or "". The text names places and keywords and repeats no value.
func (s *schema) check(answer *node) (wrong string) {
	defer func() {
		if v := recover(); v != nil {
			wrong = "could not be checked"
		}
	}()
	cost, ok := s.costs.of(answer)
	if !ok {
		return "is too large or too deep for its schema to be checked"
	}
	doc := answer.any()
	if cost > explainable {
		if s.not.Validate(doc) != nil { // it is not so that it does not fit
			return ""
		}
		return "does not fit the schema"
	}
	err := s.whole.Validate(doc)
	if err == nil {
		return ""
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return "does not fit the schema"
	}
	v := firstViolation(ve)
	field := path(locate(v), problem("")).Field
	switch {
	case keyword(v) == nameKeyword:
		field = "a member's name"
	case field == "":
		field = "the whole"
	}
	return field + " fails " + keyword(v)
}

const nameKeyword = "propertyNames"

// firstViolation picks one leaf of what is wrong, always the same one: the library visits members in any order.
func firstViolation(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	var first *jsonschema.ValidationError
	var visit func(e *jsonschema.ValidationError)
	visit = func(e *jsonschema.ValidationError) {
		if len(e.Causes) > 0 && keyword(e) != nameKeyword {
			for _, c := range e.Causes {
				visit(c)
			}
			return
		}
		if first == nil || cmp.Or(slices.Compare(locate(e), locate(first)), cmp.Compare(keyword(e), keyword(first))) < 0 {
			first = e
		}
	}
	visit(e)
	return first
}

// locate is where in the answer the leaf is wrong. Of a name the library does not keep the place safe: later ones are written over it.
func locate(e *jsonschema.ValidationError) []string {
	if keyword(e) == nameKeyword {
		return nil
	}
	return e.InstanceLocation
}

// keyword is the part of a schema that an answer broke.
func keyword(e *jsonschema.ValidationError) string {
	if p := e.ErrorKind.KeywordPath(); len(p) > 0 {
		return p[0]
	}
	return "false"
}
