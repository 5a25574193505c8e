package edge

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestIdemGolden: the keys were computed with the implementation that derives them on the other side, and with Python's json.
func TestIdemGolden(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/idempotency.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name           string  `json:"name"`
		JobSpecID      string  `json:"job_spec_id"`
		RunStatus      string  `json:"run_status"`
		TerminalReason *string `json:"terminal_reason"`
		Payload        string  `json:"payload"`
		Key            string  `json:"key"`
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 25 {
		t.Fatalf("only %d vectors", len(vectors))
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			got, err := IdempotencyKey(v.JobSpecID, v.RunStatus, v.TerminalReason, []byte(v.Payload))
			if err != nil || got != v.Key {
				t.Errorf("got %s, %v; want %s", got, err, v.Key)
			}
		})
	}
}

func TestIdemTellsApart(t *testing.T) {
	t.Parallel()
	key := func(job, status string, reason *string, payload string) string {
		k, err := IdempotencyKey(job, status, reason, []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	seen := map[string]bool{}
	for _, k := range []string{
		key("a", "completed", nil, `{}`), key("b", "completed", nil, `{}`), key("a", "failed", nil, `{}`), key("a", "completed", ptr(""), `{}`),
		key("a", "completed", nil, `[]`), key("a", "completed", nil, `{"a":1}`), key("a", "completed", nil, `{"a":1.0}`), key("a", "completed", nil, `{"a":"1"}`),
		key(`a","x":"`, "completed", nil, `{}`),
	} {
		if seen[k] {
			t.Error("two of them share a key")
		}
		seen[k] = true
	}
	if key("a", "completed", nil, ` { "x" : 1 , "b":[ ] }`) != key("a", "completed", nil, `{"b":[],"x":1}`) {
		t.Error("order and white space make a difference")
	}
}

func TestIdemRefuses(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		``, `{`, `{"a":1,"a":2}`, `{"n":NaN}`, `{"n":1e309}`, `{"n":1e-9999999}`, `{"n":` + strings.Repeat("1", 65) + `}`, `{"t":"\ud800"}`, `{"t":"\udc00x"}`,
		"{\"t\":\"\xff\"}", `{} {}`, strings.Repeat("[", 70) + strings.Repeat("]", 70),
	} {
		_, err := IdempotencyKey("job-1", "completed", nil, []byte(payload))
		var fe *FieldError
		if !errors.As(err, &fe) || !strings.HasPrefix(fe.Field, "payload") {
			t.Errorf("%.40q: got %v", payload, err)
		}
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	f.Add([]byte(`{"b":2,"a":[1e16,"x\u2028",null]}`))
	f.Add([]byte(`{"n":-0.0,"m":1E-7}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		n, refused := readJSON(payload, keyLimits)
		if refused != nil {
			return
		}
		// The canonical form is JSON, and its own canonical form: numbers and escapes have settled.
		once := appendCanonical(nil, n)
		m, refused := readJSON(once, keyLimits)
		if refused != nil {
			t.Fatalf("%q became %q: %v", payload, once, refused)
		}
		if twice := appendCanonical(nil, m); string(twice) != string(once) {
			t.Errorf("%q became %q", once, twice)
		}
	})
}
