package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// limits bound one JSON text before anything is made of it.
type limits struct {
	bytes  int // of the text
	depth  int // of objects and lists in one another
	values int // of all kinds together
}

// Numbers beyond these bounds are refused wherever they stand: a schema library that counts exactly would spend its time, or panic, on
// 1e999999999, and no reader with 64-bit floats could use them.
const (
	maxNumber   = 64  // bytes of a literal
	maxExponent = 400 // its exponent, either way
)

type jsonKind int

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonNumber
	jsonText
	jsonList
	jsonObject
)

func (k jsonKind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}

// node is a JSON value, with the order of its members, and with numbers as they were written.
type node struct {
	kind    jsonKind
	yes     bool
	text    string // of a string; the literal of a number
	items   []*node
	keys    []string // in the order of the text
	members map[string]*node
	raw     []byte // of lists and objects, a part of what was parsed
}

// readJSON parses one JSON text. What two readers could see differently is refused: a member given twice, text after the value, half of a
// surrogate pair, bytes that are not UTF-8.
func readJSON(data []byte, max limits) (*node, *FieldError) {
	switch {
	case len(data) > max.bytes:
		return nil, problem("is longer than %d bytes", max.bytes)
	case !utf8.Valid(data):
		return nil, problem("is not valid UTF-8")
	case len(bytes.TrimSpace(data)) == 0:
		return nil, problem("is empty")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, problem("is not JSON: %v", err)
	}
	if halfPair(data) {
		return nil, problem("has half of a surrogate pair")
	}
	r := reader{dec: json.NewDecoder(bytes.NewReader(data)), data: data, max: max}
	r.dec.UseNumber()
	return r.value(0)
}

// reader makes nodes from tokens. The text has been found valid, so that tokens come in a valid order.
type reader struct {
	dec    *json.Decoder
	data   []byte
	max    limits
	values int
}

func (r *reader) value(depth int) (*node, *FieldError) {
	tok, err := r.dec.Token()
	if err != nil {
		return nil, unreadable(err)
	}
	if r.values++; r.values > r.max.values {
		return nil, problem("has more than %d values", r.max.values)
	}
	switch tok := tok.(type) {
	case nil:
		return &node{kind: jsonNull}, nil
	case bool:
		return &node{kind: jsonBool, yes: tok}, nil
	case string:
		return &node{kind: jsonText, text: tok}, nil
	case json.Number:
		if !bounded(tok.String()) {
			return nil, problem("is a number out of range")
		}
		return &node{kind: jsonNumber, text: tok.String()}, nil
	}
	if depth++; depth > r.max.depth {
		return nil, problem("is nested deeper than %d levels", r.max.depth)
	}
	start := r.dec.InputOffset() - 1
	n := &node{kind: jsonList}
	var refused *FieldError
	if tok == json.Delim('{') {
		n.kind, n.members = jsonObject, make(map[string]*node)
		refused = r.object(n, depth)
	} else {
		refused = r.list(n, depth)
	}
	if refused != nil {
		return nil, refused
	}
	if _, err := r.dec.Token(); err != nil { // the closing bracket
		return nil, unreadable(err)
	}
	n.raw = r.data[start:r.dec.InputOffset()]
	return n, nil
}

func (r *reader) object(n *node, depth int) *FieldError {
	for r.dec.More() {
		tok, err := r.dec.Token()
		if err != nil {
			return unreadable(err)
		}
		key, ok := tok.(string)
		if !ok {
			return problem("has a member without a name")
		}
		if _, twice := n.members[key]; twice {
			return under(key, problem("is given twice"))
		}
		v, refused := r.value(depth)
		if refused != nil {
			return under(key, refused)
		}
		n.keys = append(n.keys, key)
		n.members[key] = v
	}
	return nil
}

func (r *reader) list(n *node, depth int) *FieldError {
	for r.dec.More() {
		v, refused := r.value(depth)
		if refused != nil {
			return within(len(n.items), refused)
		}
		n.items = append(n.items, v)
	}
	return nil
}

func unreadable(err error) *FieldError {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return problem("is not JSON: %v", err)
}

// bounded reports whether a literal is one that everyone can count with.
func bounded(literal string) bool {
	if len(literal) > maxNumber {
		return false
	}
	if _, exp, ok := strings.Cut(strings.ToLower(literal), "e"); ok {
		if n, err := strconv.Atoi(exp); err != nil || n > maxExponent || n < -maxExponent {
			return false
		}
	}
	f, err := strconv.ParseFloat(literal, 64)
	return err == nil && !math.IsInf(f, 0)
}

// halfPair reports whether a JSON text escapes half of a surrogate pair; readers repair that differently, or not at all.
func halfPair(data []byte) bool {
	unit := func(i int) (rune, bool) {
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
		return rune(n), err == nil
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		r, ok := unit(i)
		switch {
		case !ok:
			i++ // whatever is escaped, it may be a backslash
		case r < 0xd800 || r > 0xdfff:
			i += 5
		default:
			if low, ok := unit(i + 6); r > 0xdbff || !ok || low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 11
		}
	}
	return false
}

// any gives the value as encoding/json would with UseNumber: what the schema library reads.
func (n *node) any() any {
	switch n.kind {
	case jsonBool:
		return n.yes
	case jsonNumber:
		return json.Number(n.text)
	case jsonText:
		return n.text
	case jsonList:
		l := make([]any, len(n.items))
		for i, v := range n.items {
			l[i] = v.any()
		}
		return l
	case jsonObject:
		m := make(map[string]any, len(n.members))
		for k, v := range n.members {
			m[k] = v.any()
		}
		return m
	}
	return nil
}

// compact gives the value's text without white space between tokens, in memory of its own.
func (n *node) compact() json.RawMessage {
	switch n.kind {
	case jsonBool:
		return strconv.AppendBool(nil, n.yes)
	case jsonNumber:
		return json.RawMessage(n.text)
	case jsonText:
		return appendString(nil, n.text)
	case jsonList, jsonObject:
		var b bytes.Buffer
		if err := json.Compact(&b, n.raw); err != nil {
			panic(fmt.Sprintf("edge: valid JSON is invalid: %v", err)) // readJSON has read it
		}
		return b.Bytes()
	}
	return json.RawMessage("null")
}

// size is the weight of a value for budgets: how many values it has, how many bytes its strings and names have together, and how deep it is.
func (n *node) size() (values, bytes, depth int) {
	values = 1
	if n.kind == jsonText || n.kind == jsonNumber {
		bytes = len(n.text)
	}
	add := func(v *node) {
		vs, bs, d := v.size()
		values, bytes, depth = values+vs, bytes+bs, max(depth, d)
	}
	for _, v := range n.items {
		add(v)
	}
	for k, v := range n.members {
		bytes += len(k)
		add(v)
	}
	if n.kind == jsonList || n.kind == jsonObject {
		depth++
	}
	return values, bytes, depth
}
