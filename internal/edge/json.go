package edge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
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
	if halfPair(data) {
		return nil, problem("has half of a surrogate pair")
	}
	r := reader{data: data, max: max}
	n, refused := r.value(0)
	if refused == nil {
		if r.space(); r.at < len(data) {
			refused = r.unreadable()
		}
	}
	switch {
	case r.broken: // wherever that is, it is the document that cannot be read
		return nil, notJSON(data, r.at)
	case refused != nil:
		return nil, refused
	}
	return n, nil
}

// notJSON says what is wrong with a text, in the words of encoding/json.
func notJSON(data []byte, at int) *FieldError {
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return problem("is not JSON: %v", err)
	}
	return problem("is not JSON: at byte %d", at)
}

// reader makes nodes of a text in one pass. encoding/json's tokens cost ten times as much, twice a run; FuzzReadJSON holds the two to the same language.
type reader struct {
	data   []byte
	at     int
	max    limits
	values int
	broken bool // the text is no JSON
}

// unreadable notes that the text is no JSON.
func (r *reader) unreadable() *FieldError {
	r.broken = true
	return problem("is not JSON")
}

func (r *reader) space() {
	for r.at < len(r.data) {
		switch r.data[r.at] {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return
		}
	}
}

// next passes white space and takes c if it comes next.
func (r *reader) next(c byte) bool {
	r.space()
	if r.at < len(r.data) && r.data[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *reader) value(depth int) (*node, *FieldError) {
	r.space()
	if r.at >= len(r.data) {
		return nil, r.unreadable()
	}
	if r.values++; r.values > r.max.values {
		return nil, problem("has more than %d values", r.max.values)
	}
	switch c := r.data[r.at]; {
	case c == '{' || c == '[':
		if depth++; depth > r.max.depth {
			return nil, problem("is nested deeper than %d levels", r.max.depth)
		}
		return r.nested(c, depth)
	case c == '"':
		text, ok := r.text()
		if !ok {
			return nil, r.unreadable()
		}
		return &node{kind: jsonText, text: text}, nil
	case c == '-' || '0' <= c && c <= '9':
		return r.number()
	case r.word("null"):
		return &node{kind: jsonNull}, nil
	case r.word("true"):
		return &node{kind: jsonBool, yes: true}, nil
	case r.word("false"):
		return &node{kind: jsonBool}, nil
	}
	return nil, r.unreadable()
}

func (r *reader) word(w string) bool {
	if !bytes.HasPrefix(r.data[r.at:], []byte(w)) {
		return false
	}
	r.at += len(w)
	return true
}

func (r *reader) nested(open byte, depth int) (*node, *FieldError) {
	start := r.at
	r.at++
	n, shut := &node{kind: jsonList}, byte(']')
	if open == '{' {
		n.kind, n.members, shut = jsonObject, make(map[string]*node), '}'
	}
	for first := true; !r.next(shut); first = false {
		if !first && !r.next(',') {
			return nil, r.unreadable()
		}
		if open == '{' {
			if refused := r.member(n, depth); refused != nil {
				return nil, refused
			}
			continue
		}
		v, refused := r.value(depth)
		if refused != nil {
			return nil, within(len(n.items), refused)
		}
		n.items = append(n.items, v)
	}
	n.raw = r.data[start:r.at]
	return n, nil
}

func (r *reader) member(n *node, depth int) *FieldError {
	if r.space(); r.at >= len(r.data) || r.data[r.at] != '"' {
		return r.unreadable()
	}
	key, ok := r.text()
	if !ok || !r.next(':') {
		return r.unreadable()
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
	return nil
}

// text reads a string. The text is valid UTF-8, and has no half of a surrogate pair.
func (r *reader) text() (string, bool) {
	r.at++
	start := r.at
	for r.at < len(r.data) {
		switch c := r.data[r.at]; {
		case c == '"':
			r.at++
			return string(r.data[start : r.at-1]), true
		case c == '\\':
			return r.escaped(start)
		case c < ' ':
			return "", false
		}
		r.at++
	}
	return "", false
}

// escapes are the characters that one letter stands for.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escaped reads on from the first backslash of a string that begins at start.
func (r *reader) escaped(start int) (string, bool) {
	out := append(make([]byte, 0, 2*(r.at-start)+32), r.data[start:r.at]...)
	for r.at < len(r.data) {
		c := r.data[r.at]
		switch {
		case c == '"':
			r.at++
			return string(out), true
		case c < ' ':
			return "", false
		case c != '\\':
			out = append(out, c)
			r.at++
			continue
		}
		if r.at++; r.at >= len(r.data) {
			return "", false
		}
		if plain := escapes[r.data[r.at]]; plain != 0 {
			out = append(out, plain)
			r.at++
			continue
		}
		unit, ok := r.unit()
		if !ok {
			return "", false
		}
		if utf16.IsSurrogate(unit) {
			if r.at >= len(r.data) || r.data[r.at] != '\\' {
				return "", false
			}
			r.at++
			low, ok := r.unit()
			if unit = utf16.DecodeRune(unit, low); !ok || unit == utf8.RuneError {
				return "", false
			}
		}
		out = utf8.AppendRune(out, unit)
	}
	return "", false
}

// unit reads uXXXX.
func (r *reader) unit() (rune, bool) {
	if r.at+5 > len(r.data) || r.data[r.at] != 'u' {
		return 0, false
	}
	var n rune
	for _, c := range r.data[r.at+1 : r.at+5] {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			n = n<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			n = n<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	r.at += 5
	return n, true
}

// number reads a number in JSON's spelling.
func (r *reader) number() (*node, *FieldError) {
	start := r.at
	if r.data[r.at] == '-' {
		r.at++
	}
	whole := r.at
	if r.digits(); r.at == whole || r.data[whole] == '0' && r.at > whole+1 {
		r.at = whole
		return nil, r.unreadable()
	}
	if r.at < len(r.data) && r.data[r.at] == '.' {
		r.at++
		if frac := r.at; r.digits() == frac {
			return nil, r.unreadable()
		}
	}
	if r.at < len(r.data) && (r.data[r.at] == 'e' || r.data[r.at] == 'E') {
		r.at++
		if r.at < len(r.data) && (r.data[r.at] == '+' || r.data[r.at] == '-') {
			r.at++
		}
		if exp := r.at; r.digits() == exp {
			return nil, r.unreadable()
		}
	}
	text := string(r.data[start:r.at])
	if !bounded(text) {
		return nil, problem("is a number out of range")
	}
	return &node{kind: jsonNumber, text: text}, nil
}

func (r *reader) digits() int {
	for r.at < len(r.data) && '0' <= r.data[r.at] && r.data[r.at] <= '9' {
		r.at++
	}
	return r.at
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
	for i := bytes.IndexByte(data, '\\'); i >= 0 && i < len(data); i++ {
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

// appendTexts appends every string in the value, the names of members among them.
func (n *node) appendTexts(all []string) []string {
	if n.kind == jsonText {
		all = append(all, n.text)
	}
	for _, v := range n.items {
		all = v.appendTexts(all)
	}
	for _, k := range n.keys {
		all = n.members[k].appendTexts(append(all, k))
	}
	return all
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
