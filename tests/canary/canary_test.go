package canary

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// A secret is found wherever it stands in what was encoded, and nothing else is.
func TestFind(t *testing.T) {
	t.Parallel()
	key, other := New(t), New(t)
	if len(key) < 32 || key == other {
		t.Fatalf("%q, %q", key, other)
	}
	for before := range 7 {
		for _, after := range []string{"", "z", " and more"} {
			text := strings.Repeat("x", before) + key + after
			for name, shown := range map[string]string{
				"clear": text, "base64": base64.StdEncoding.EncodeToString([]byte(text)), "base64url": base64.RawURLEncoding.EncodeToString([]byte(text)),
				"hex": hex.EncodeToString([]byte(text)), "HEX": fmt.Sprintf("%X", text), "JSON": fmt.Sprintf("{%q:1}", text), "URL": url.QueryEscape(text),
			} {
				if Find([]byte(shown), key) < 0 {
					t.Errorf("not found in %s behind %d bytes: %s", name, before, shown)
				}
				if Find([]byte(shown), other) >= 0 {
					t.Errorf("another is found in %s", name)
				}
			}
		}
	}
}
