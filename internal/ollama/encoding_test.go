package ollama

import (
	"bytes"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func compress(t testing.TB, plain []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(plain, nil)
}

func TestContentEncoding(t *testing.T) {
	t.Parallel()
	plain := []byte(`{"model":"tiny","messages":[{}]}`)
	packed := compress(t, plain)
	tests := []struct {
		name, endpoint, encoding string
		body                     []byte
		status                   int // 0: accepted
		code                     string
	}{
		{"none", "chat", "", plain, 0, ""},
		{"identity", "chat", "Identity", plain, 0, ""},
		{"zstd on v1", "v1.chat.completions", "zstd", packed, 0, ""},
		{"zstd on messages", "v1.messages", " zstd ", packed, 0, ""},
		{"zstd in two frames", "v1.messages", "zstd", append(compress(t, plain[:9]), compress(t, plain[9:])...), 0, ""},
		{"zstd on native", "chat", "zstd", packed, 415, codeUnsupportedEncoding},
		{"ZSTD is not what Ollama compares with", "v1.messages", "ZSTD", packed, 415, codeUnsupportedEncoding},
		{"gzip", "v1.messages", "gzip", packed, 415, codeUnsupportedEncoding},
		{"two encodings", "v1.messages", "zstd, gzip", packed, 415, codeUnsupportedEncoding},
		{"twice zstd", "v1.messages", "zstd, zstd", packed, 415, codeUnsupportedEncoding},
		{"garbage", "v1.messages", "zstd", plain, 400, codeBadRequest},
		{"cut off", "v1.messages", "zstd", packed[:len(packed)-3], 400, codeBadRequest},
		{"nothing", "v1.messages", "zstd", nil, 400, codeBadRequest},
		{"bytes after the JSON inside", "v1.messages", "zstd", compress(t, append(bytes.Clone(plain), '{')), 400, codeAmbiguousBody},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, refused := Decode(row(t, tt.endpoint), "", tt.encoding, tt.body)
			switch {
			case tt.status == 0 && (refused != nil || r.Model != "tiny"):
				t.Errorf("got %+v, %v", r, refused)
			case tt.status != 0 && (refused == nil || refused.Status != tt.status || refused.Code != tt.code):
				t.Errorf("got %+v, %v", r, refused)
			case tt.status == 415 && !strings.Contains(refused.Message, tt.encoding):
				t.Errorf("%q does not name %q", refused.Message, tt.encoding)
			}
		})
	}
}

func TestZstdBomb(t *testing.T) {
	const size = 100 << 20
	var streamed bytes.Buffer // says nothing of its size
	w, err := zstd.NewWriter(&streamed)
	if err != nil {
		t.Fatal(err)
	}
	for range size >> 20 {
		if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{
		"claimed": compress(t, bytes.Repeat([]byte(" "), size)), "unclaimed": streamed.Bytes(),
	} {
		if len(body) > 1<<20 {
			t.Fatalf("%s: the bomb has %d bytes", name, len(body))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, refused := Decode(row(t, "v1.messages"), "", "zstd", body)
		runtime.ReadMemStats(&after)
		if refused == nil || refused.Status != http.StatusRequestEntityTooLarge || refused.Code != codeBodyTooLarge {
			t.Fatalf("%s: %v", name, refused)
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 20<<20 {
			t.Errorf("%s: allocated %d MiB", name, spent>>20)
		}
	}
	full := []byte(`{"model":"tiny"` + strings.Repeat(" ", MaxDecoded-16) + `}`)
	if r, refused := Decode(row(t, "v1.messages"), "", "zstd", compress(t, full)); refused != nil || r.Model != "tiny" {
		t.Errorf("%d bytes: %+v, %v", len(full), r, refused)
	}
}
