package pki

import (
	"strings"
	"testing"
)

func TestParseID(t *testing.T) {
	t.Parallel()
	good := []string{
		"spiffe://fairway.internal/node/n1",
		"spiffe://fleet.local/gateway/gw-1.example_2",
		"spiffe://a/node/0",
		"spiffe://" + strings.Repeat("a", 255) + "/node/" + strings.Repeat("z", 63),
	}
	for _, s := range good {
		id, err := ParseID(s)
		if err != nil || id.String() != s || id.URI().String() != s {
			t.Errorf("ParseID(%q) = %v, %v", s, id, err)
		}
	}
	bad := []string{
		"", "spiffe://", "spiffe:///node/n", "https://td/node/n", "SPIFFE://td/node/n", "spiffe:td/node/n",
		"spiffe://TD/node/n", "spiffe://td/Node/n", "spiffe://td/node/N",
		"spiffe://td/node", "spiffe://td/node/", "spiffe://td/node/n/", "spiffe://td/node/n/x", "spiffe://td//node/n",
		"spiffe://td/agent/n", "spiffe://td//n",
		"spiffe://td/node/n?q=1", "spiffe://td/node/n?", "spiffe://td/node/n#f", "spiffe://td/node/n#",
		"spiffe://td:443/node/n", "spiffe://u@td/node/n", "spiffe://u:p@td/node/n",
		"spiffe://td/node/%6e", "spiffe://td/node/n%2f", "spiffe://%74d/node/n",
		"spiffe://td/node/.", "spiffe://td/node/..", "spiffe://td/node/-n", "spiffe://td/node/_n", "spiffe://.td/node/n",
		"spiffe://td/node/n\x00", "spiffe://td/node/n ", " spiffe://td/node/n", "spiffe://td/node/n\n",
		"spiffe://td/node/nоde", // Cyrillic o
		"spiffe://td/node/" + strings.Repeat("z", 64),
		"spiffe://" + strings.Repeat("a", 256) + "/node/n",
		"spiffe://td/node/" + strings.Repeat("z", 1<<20),
	}
	for _, s := range bad {
		if id, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q) = %v, want an error", clip(s), id)
		} else if len(err.Error()) > 400 {
			t.Errorf("error for a long id has %d bytes", len(err.Error()))
		}
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"spiffe://td/node/n", "spiffe://td/gateway/a.b-c_d", "spiffe://td/node/n?x", "spiffe://TD/node/%6e", "spiffe://td:1/node/n/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			if id != (ID{}) {
				t.Fatalf("ParseID(%q) failed with %v", s, id)
			}
			return
		}
		if id.String() != s || id.URI().String() != s || id.Valid() != nil {
			t.Fatalf("ParseID(%q) = %v", s, id)
		}
	})
}
