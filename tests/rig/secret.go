package rig

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

// Find returns where text shows a secret, or a part of at least 16 bytes of it at its beginning, in clear or in one of the spellings in which programs
// show bytes: base64 of either alphabet at any offset, hexadecimal, a URL's. It is -1 when none of them is there.
func Find(text []byte, secret string) int {
	for _, s := range Spellings(secret) {
		if i := bytes.Index(text, s); i >= 0 {
			return i
		}
	}
	return -1
}

// Spellings are the forms that Find looks for.
func Spellings(secret string) [][]byte {
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

// Canary makes a secret that stands in no program and no other test.
func Canary(t testing.TB) string {
	t.Helper()
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails
	return "sk-" + hex.EncodeToString(b[:])
}
