package lease

import (
	"crypto/sha256"
	"slices"
)

// leastToken is the shortest part of a value that is worth looking for, in bytes; a shorter value is looked for as a whole.
const leastToken = 8

// Mark recognises a credential in text without keeping it: it holds SHA-256 sums of the value's tokens. The zero Mark recognises nothing.
type Mark struct {
	hidden
	sums [][sha256.Size]byte
}

// Mark returns the value's mark.
func (s *Secret) Mark() Mark {
	scrub()
	defer scrub()
	return Mark{sums: sumsOf(s.page[:s.n])}
}

// sumsOf has a frame of its own, which scrub overwrites: a sum's state holds what was last put into it.
//
//go:noinline
func sumsOf(value []byte) (sums [][sha256.Size]byte) {
	eachToken(value, func(t []byte) { sums = append(sums, sha256.Sum256(t)) })
	if len(sums) == 0 {
		sums = append(sums, sha256.Sum256(value))
	}
	return sums
}

// In reports whether text has one of the value's tokens as a token of its own, or is the value.
func (m Mark) In(text string) bool {
	if len(m.sums) == 0 {
		return false
	}
	b := []byte(text)
	defer clear(b)
	found := m.has(b)
	eachToken(b, func(t []byte) { found = found || m.has(t) })
	return found
}

func (m Mark) has(token []byte) bool { return slices.Contains(m.sums, sha256.Sum256(token)) }

// eachToken cuts b at what stands in no token68 (RFC 9110 section 11.2), which are the letters of keys, and visits what is long enough. "=" cuts, too:
// it separates a parameter's name.
func eachToken(b []byte, visit func([]byte)) {
	start := 0
	for i := 0; i <= len(b); i++ {
		if i < len(b) && isToken68(b[i]) {
			continue
		}
		if i-start >= leastToken {
			visit(b[start:i])
		}
		start = i + 1
	}
}

func isToken68(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~' || c == '+' || c == '/'
}
