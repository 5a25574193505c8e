package edge

import (
	"bytes"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// appendCanonical writes a value in the one form that keys are made of: members sorted by code point, nothing between tokens, what is not
// ASCII as it is. It is the form of Python's json.dumps(sort_keys=True, ensure_ascii=False, separators=(",", ":")), which the other side
// derives the key with; encoding/json differs in numbers (1e16) and always escapes U+2028 and U+2029.
func appendCanonical(b []byte, n *node) []byte {
	switch n.kind {
	case jsonBool:
		return strconv.AppendBool(b, n.yes)
	case jsonNumber:
		return append(b, numeral(n.text)...)
	case jsonText:
		return appendString(b, n.text)
	case jsonList:
		b = append(b, '[')
		for i, v := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, v)
		}
		return append(b, ']')
	case jsonObject:
		b = append(b, '{')
		for i, k := range slices.Sorted(slices.Values(n.keys)) { // of UTF-8, byte order is code point order
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, k)
			b = append(b, ':')
			b = appendCanonical(b, n.members[k])
		}
		return append(b, '}')
	}
	return append(b, "null"...)
}

// appendString writes a JSON string that escapes nothing but what it must.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20:
			b = append(b, c)
		default:
			if j := bytes.IndexByte([]byte("\b\f\n\r\t"), c); j >= 0 {
				b = append(b, '\\', "bfnrt"[j])
			} else {
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
		}
	}
	return append(b, '"')
}

// numeral writes a number's literal as Python would write it after reading it: whole numbers keep their digits, others become the shortest
// text of the 64-bit float, with an exponent below 1e-4 and from 1e16.
func numeral(literal string) string {
	if !strings.ContainsAny(literal, ".eE") {
		if literal == "-0" {
			return "0"
		}
		return literal
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil {
		return literal // readJSON lets no such number through
	}
	exponent := strconv.FormatFloat(f, 'e', -1, 64)
	if _, e, _ := strings.Cut(exponent, "e"); f != 0 {
		if n, err := strconv.Atoi(e); err == nil && (n < -4 || n >= 16) {
			return exponent
		}
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// wholeNumeral is numeral, save that a float without a fraction reads as a whole number: 3.0 is "3".
func wholeNumeral(literal string) string {
	s := numeral(literal)
	if !strings.ContainsAny(s, ".e") {
		return s
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return s
	}
	if whole, accuracy := big.NewFloat(f).Int(nil); accuracy == big.Exact {
		return whole.String()
	}
	return s
}
