// Package canary plants secrets in tests, and looks for them where they must not be: in texts, in any spelling, and in the memory of processes.
package canary

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// Find returns where text shows a secret, by its first 16 bytes, in clear or in one of the spellings in which programs
// show bytes: base64 of either alphabet at any offset, hexadecimal, a URL's. It is -1 when none of them is there.
func Find(text []byte, secret string) int {
	for _, s := range spellings(secret) {
		if i := bytes.Index(text, s); i >= 0 {
			return i
		}
	}
	return -1
}

// spellings are the forms that Find looks for.
func spellings(secret string) [][]byte {
	b := []byte(secret[:min(len(secret), 16)])
	out := [][]byte{b}
	add := func(s string) { out = append(out, []byte(s)) }
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			// What does not depend on the neighbours: whole groups of three bytes.
			whole := b[(3-shift)%3:]
			add(enc.EncodeToString(whole[:len(whole)/3*3]))
		}
	}
	add(hex.EncodeToString(b))
	add(strings.ToUpper(hex.EncodeToString(b)))
	add(url.QueryEscape(string(b)))
	add(url.PathEscape(string(b)))
	slices.SortFunc(out, bytes.Compare)
	return slices.CompactFunc(out, bytes.Equal)
}

// New makes a secret that stands in no program and no other test.
func New(t testing.TB) string {
	t.Helper()
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails
	return "sk-" + hex.EncodeToString(b[:])
}
