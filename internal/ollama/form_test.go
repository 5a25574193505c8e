package ollama

import (
	"strings"
	"testing"
)

func TestDecodeForm(t *testing.T) {
	t.Parallel()
	part := func(head, body string) string {
		return "--b\r\nContent-Disposition: form-data; " + head + "\r\n\r\n" + body + "\r\n"
	}
	file := part(`name="file"; filename="a.wav"`, "RIFF\x00\xff")
	const form = "multipart/form-data; boundary=b"
	tests := []struct{ name, contentType, body, want string }{
		{"model last", form, file + part(`name="model"`, "tiny") + "--b--\r\n", "tiny"},
		{"model first, spaces", form, part(`name="model"`, " tiny ") + file + "--b--\r\n", " tiny "},
		{"two models", form, part(`name="model"`, "a") + part(`name="model"`, "a") + "--b--\r\n", `ambiguous_body "model" appears more than once`},
		{"a file called model", form, part(`name="model"; filename="x"`, "a") + "--b--\r\n", `ambiguous_body "model" is a file`},
		{"not UTF-8", form, part(`name="model"`, "\xff") + "--b--\r\n", `ambiguous_body "model" is not valid UTF-8`},
		{"another case is another field", form, part(`name="MODEL"`, "tiny") + "--b--\r\n", "bad_request model is required"},
		{"none", form, file + "--b--\r\n", "bad_request model is required"},
		{"too long", form, part(`name="model"`, strings.Repeat("a", 9<<10)) + "--b--\r\n", "bad_request invalid model name"},
		{"cut off", form, part(`name="model"`, "tiny"), "bad_request failed to parse multipart form: unexpected EOF"},
		{"empty", form, "", "bad_request failed to parse multipart form: multipart: NextPart: EOF"},
		{"JSON", "application/json", `{"model":"tiny"}`, "bad_request failed to parse multipart form: request Content-Type isn't multipart/form-data"},
		{"no boundary", "multipart/form-data", file, "bad_request failed to parse multipart form: no multipart boundary param in Content-Type"},
		{"many parts", form, strings.Repeat(part(`name="x"`, ""), 1001) + "--b--\r\n", "bad_request failed to parse multipart form: multipart: message too large"},
		{"large", form, strings.Repeat(" ", maxForm+1), "body_too_large failed to parse multipart form: multipart: message too large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, refused := Decode(row(t, "v1.audio.transcriptions"), tt.contentType, "", []byte(tt.body))
			got := r.Model
			if refused != nil {
				got = refused.Code + " " + refused.Message
			}
			if got != tt.want || r.Stream {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
