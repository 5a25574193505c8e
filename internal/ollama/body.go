package ollama

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// The bodies below are what endpoints read of a body. Their members count how often
// they are given a value, so that duplicates are found in whatever spelling, and note
// what is wrong instead of failing, so that members which an endpoint does not read
// do no harm.

// member is a value of the outermost object, by the name under which encoding/json
// would look for it: also in another case, or escaped.
type member struct {
	name string
	into json.Unmarshaler
}

// members gives the members of body to those who want them. Measured on bodies of
// 1 MB: 0.15 ms and 300 bytes for one image, 1.3 ms for short messages, 2.2 ms for a
// context of numbers.
func members(e *Endpoint, body []byte, wanted ...member) *Error {
	var failed error
	ok := eachMember(body, func(key, value []byte) {
		key = plainKey(key)
		for _, m := range wanted {
			if !bytes.EqualFold(key, []byte(m.name)) {
				continue
			}
			if err := m.into.UnmarshalJSON(value); err != nil && failed == nil {
				failed = err
			}
		}
	})
	switch {
	case !ok:
		return unreadable(e, body)
	case failed != nil:
		return badRequest(failed.Error())
	}
	return nil
}

// runBody is what runs a model.
type runBody struct {
	Model                   text
	Stream                  flag
	KeepAlive               keepAlive
	Prompt, Messages, Input content
}

func (b *runBody) read(e *Endpoint, body []byte) *Error {
	return members(e, body, member{"model", &b.Model}, member{"stream", &b.Stream}, member{"keep_alive", &b.KeepAlive},
		member{"prompt", &b.Prompt}, member{"messages", &b.Messages}, member{"input", &b.Input})
}

func (b *runBody) content(field string) content {
	switch field {
	case "messages":
		return b.Messages
	case "input":
		return b.Input
	}
	return b.Prompt
}

// namedBody is what names a model by "model" or "name".
type namedBody struct {
	Model, Name text
	Stream      flag
}

func (b *namedBody) read(e *Endpoint, body []byte) *Error {
	return members(e, body, member{"model", &b.Model}, member{"name", &b.Name}, member{"stream", &b.Stream})
}

type copyBody struct {
	Source, Destination text
}

func (b *copyBody) read(e *Endpoint, body []byte) *Error {
	return members(e, body, member{"source", &b.Source}, member{"destination", &b.Destination})
}

// maxNameText bounds the JSON text of a name. The longest valid one has under 610
// bytes, six times that with every byte escaped; the rest is room for spaces.
const maxNameText = 8 << 10

// text is a string that names a model.
type text struct {
	value   string
	seen    int
	wrong   string // kind of a value that is no string
	garbled bool   // not UTF-8: readers repair that differently
	long    bool
}

// UnmarshalJSON implements [json.Unmarshaler]. Null leaves the value alone.
func (t *text) UnmarshalJSON(raw []byte) error {
	t.seen++
	switch {
	case raw[0] == 'n':
	case raw[0] != '"':
		t.wrong = kindOf(raw)
	case len(raw) > maxNameText:
		t.long = true
	case !utf8.Valid(raw):
		t.garbled = true
	default:
		return json.Unmarshal(raw, &t.value)
	}
	return nil
}

func (t *text) check(e *Endpoint, field string) *Error {
	switch {
	case t.seen > 1:
		return twice(field)
	case t.garbled:
		return ambiguous(`"` + field + `" is not valid UTF-8`)
	case t.wrong != "":
		return wrongType(e, field, t.wrong, "string")
	}
	return nil
}

// flag is a boolean that may be absent.
type flag struct {
	value, set bool
	seen       int
	wrong      string
}

// UnmarshalJSON implements [json.Unmarshaler].
func (f *flag) UnmarshalJSON(raw []byte) error {
	f.seen++
	switch raw[0] {
	case 'n':
	case 't', 'f':
		f.value, f.set = raw[0] == 't', true
	default:
		f.wrong = kindOf(raw)
	}
	return nil
}

func (f *flag) check(e *Endpoint) *Error {
	switch {
	case !e.Streams:
		return nil
	case f.seen > 1:
		return twice("stream")
	case f.wrong != "":
		return wrongType(e, "stream", f.wrong, "bool")
	}
	return nil
}

// content tells whether there is anything to work on.
type content struct {
	seen   int
	filled bool
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *content) UnmarshalJSON(raw []byte) error {
	c.seen++
	switch raw[0] {
	case 'n':
	case '"':
		c.filled = len(raw) > len(`""`)
	case '[':
		c.filled = len(trimSpace(raw[1:len(raw)-1])) > 0
	default:
		c.filled = true // a wrong type: Ollama says so
	}
	return nil
}

// keepAlive tells whether a keep_alive means "unload now": a number of seconds or a
// Go duration that comes to no nanosecond.
type keepAlive struct {
	seen int
	zero bool
}

// UnmarshalJSON implements [json.Unmarshaler]. What Ollama would refuse is not zero.
func (k *keepAlive) UnmarshalJSON(raw []byte) error {
	k.seen++
	var v any
	if c := raw[0]; c != '"' && c != '-' && (c < '0' || c > '9') || len(raw) > maxNameText {
		return nil
	} else if err := json.Unmarshal(raw, &v); err != nil {
		return nil //nolint:nilerr // such as 1e999
	}
	switch v := v.(type) {
	case float64:
		k.zero = v >= 0 && math.Trunc(v*float64(time.Second)) == 0
	case string:
		d, err := time.ParseDuration(v)
		k.zero = err == nil && d == 0
	}
	return nil
}

// kindOf names a JSON value as encoding/json does in its errors.
func kindOf(raw []byte) string {
	switch raw[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "bool"
	}
	return "number"
}

// wrongType is encoding/json's text for a field of the wrong type.
func wrongType(e *Endpoint, field, got, want string) *Error {
	_, request, _ := strings.Cut(e.request, ".")
	return badRequest("json: cannot unmarshal " + got + " into Go struct field " + request + "." + field + " of type " + want)
}

// trimSpace cuts what JSON takes for white space, which is less than Unicode's.
func trimSpace(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }

// take is UnmarshalJSON for a value that is not JSON.
func (t *text) take(value []byte) {
	t.seen++
	t.long = len(value) > maxNameText
	t.garbled = !utf8.Valid(value)
	if !t.long {
		t.value = string(value)
	}
}
