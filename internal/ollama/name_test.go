package ollama

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	t.Parallel()
	const tiny = "registry.ollama.ai/library/tiny:latest"
	tests := []struct{ in, key, shown string }{
		{"tiny", tiny, "tiny:latest"},
		{"TINY", tiny, "TINY:latest"},
		{" tiny ", tiny, "tiny:latest"},
		{"\ttiny\n", tiny, "tiny:latest"},
		{"tiny:LATEST", tiny, "tiny:LATEST"},
		{"Library/Tiny", tiny, "Tiny:latest"},
		{"registry.ollama.ai/library/tiny:latest", tiny, "tiny:latest"},
		{"Registry.Ollama.AI/library/tiny", tiny, "tiny:latest"},
		{"http://registry.ollama.ai/library/tiny:latest", tiny, "tiny:latest"},
		{"http:///library/tiny", tiny, "tiny:latest"},
		{"tiny:local", tiny, "tiny:latest"},
		{"tiny:LOCAL", tiny, "tiny:latest"},
		{"tiny: local", tiny, "tiny:latest"},
		{"tiny:latest:local", tiny, "tiny:latest"},
		{"HF.CO/foo/bar-gguf:q4_k_m", "hf.co/foo/bar-gguf:q4_k_m", "HF.CO/foo/bar-gguf:q4_k_m"},
		{"hf.co/Foo/Bar-GGUF:Q4_K_M", "hf.co/foo/bar-gguf:q4_k_m", "hf.co/Foo/Bar-GGUF:Q4_K_M"},
		{"hf.co/Foo/Bar-GGUF", "hf.co/foo/bar-gguf:latest", "hf.co/Foo/Bar-GGUF:latest"},
		{"huggingface.co/Foo/Bar-GGUF:Q4_K_M", "huggingface.co/foo/bar-gguf:q4_k_m", "huggingface.co/Foo/Bar-GGUF:Q4_K_M"},
		{"Foo/Bar", "registry.ollama.ai/foo/bar:latest", "Foo/Bar:latest"},
		{"localhost:5000/x/y:z", "localhost:5000/x/y:z", "localhost:5000/x/y:z"},
		{"localhost:5000/x/y", "localhost:5000/x/y:latest", "localhost:5000/x/y:latest"},
		{"169.254.169.254/library/x", "169.254.169.254/library/x:latest", "169.254.169.254/library/x:latest"},
		{"my-cloud-model", "registry.ollama.ai/library/my-cloud-model:latest", "my-cloud-model:latest"},
		{"tiny-cloud", "registry.ollama.ai/library/tiny-cloud:latest", "tiny-cloud:latest"},
		{"h:1/n/m-cloud", "h:1/n/m-cloud:latest", "h:1/n/m-cloud:latest"},
		{"_a:_1.b-c", "registry.ollama.ai/library/_a:_1.b-c", "_a:_1.b-c"},
		// Cloud names: another key than the local model's.
		{"gpt-oss:20b-cloud", "registry.ollama.ai/library/gpt-oss:20b#cloud", "gpt-oss:20b:cloud"},
		{"gpt-oss:20b:cloud", "registry.ollama.ai/library/gpt-oss:20b#cloud", "gpt-oss:20b:cloud"},
		{"gpt-oss:20b-CLOUD", "registry.ollama.ai/library/gpt-oss:20b#cloud", "gpt-oss:20b:cloud"},
		{"qwen3:cloud", "registry.ollama.ai/library/qwen3:latest#cloud", "qwen3:latest:cloud"},
		// The longest parts.
		{strings.Repeat("m", 80), "registry.ollama.ai/library/" + strings.Repeat("m", 80) + ":latest", strings.Repeat("m", 80) + ":latest"},
		{strings.Repeat("h", 350) + "/n/m", strings.Repeat("h", 350) + "/n/m:latest", strings.Repeat("h", 350) + "/n/m:latest"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			n, err := ParseName(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if n.Key() != tt.key || n.String() != tt.shown || n.Cloud != strings.HasSuffix(tt.key, cloudMark) {
				t.Errorf("key %q, shown %q, cloud %v", n.Key(), n.String(), n.Cloud)
			}
		})
	}
}

func TestParseNameRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, text string }{
		{"", "model is required"},
		{" \t", "model is required"},
		{"registry.ollama.ai/tiny", InvalidNameText},
		{"tiny@sha256:" + strings.Repeat("0", 64), InvalidNameText},
		{"tiny:", InvalidNameText},
		{":latest", InvalidNameText},
		{":", InvalidNameText},
		{":cloud", InvalidNameText},
		{"/", InvalidNameText},
		{"a/b/c/d:e", InvalidNameText},
		{"a//b", InvalidNameText},
		{"/n/m", InvalidNameText},
		{"./tiny", InvalidNameText},
		{"../../x", InvalidNameText},
		{"http://evil/x", InvalidNameText},
		{"a://b://c/n/m", InvalidNameText},
		{"tïny", InvalidNameText},
		{"a b", InvalidNameText},
		{"tiny :local", InvalidNameText},
		{"a\x00b", InvalidNameText},
		{"a\xffb", InvalidNameText},
		{"-a", InvalidNameText},
		{".a", InvalidNameText},
		{"a:b:c", InvalidNameText},
		{strings.Repeat("m", 81), InvalidNameText},
		{strings.Repeat("h", 351) + "/n/m", InvalidNameText},
		{strings.Repeat("x", 5<<10), InvalidNameText},
		{"x:local:cloud", `use either :local or :cloud, not both: "x:local:cloud"`},
		{"x:cloud:local", `use either :local or :cloud, not both: "x:cloud:local"`},
		{"x:20b-cloud:cloud", `use either :local or :cloud, not both: "x:20b-cloud:cloud"`},
		{" x:local:local ", `use either :local or :cloud, not both: "x:local:local"`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			n, err := ParseName(tt.in)
			var refused *Error
			if !errors.As(err, &refused) || refused.Status != http.StatusBadRequest || refused.Message != tt.text || n != (Name{}) {
				t.Errorf("got %+v, %v", n, err)
			}
		})
	}
}

func TestValidDigest(t *testing.T) {
	t.Parallel()
	hex := strings.Repeat("0aF", 21) + "9"
	for s, want := range map[string]bool{
		"sha256:" + hex: true, "sha256-" + hex: true, "sha256:" + hex + "0": false, "sha256:" + hex[1:]: false, "sha256_" + hex: false,
		"SHA256:" + hex: false, "sha512:" + hex: false, "sha256:" + hex[1:] + "g": false, "sha256:" + hex + "\n": false, "": false, "..": false,
	} {
		if got := ValidDigest(s); got != want {
			t.Errorf("ValidDigest(%q) = %v", s, got)
		}
	}
}

func FuzzModelName(f *testing.F) {
	for _, s := range []string{
		"tiny", "TINY:Latest", "hf.co/Foo/Bar-GGUF:Q4_K_M", "localhost:5000/x/y:z", "http://evil/x", "gpt-oss:20b-cloud", "x:local:cloud",
		"a://b://c/n/m", ":", "/", "a/b/c/d:e", "h:cloud/n/m", "tiny: local", "tïny", "../../x", "169.254.169.254/library/x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseName(s)
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) || refused.Status != http.StatusBadRequest || refused.Message == "" {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		key := n.Key()
		if len(key) > 600 || key != strings.ToLower(key) || strings.ContainsAny(key, "%\\ \x00") || strings.Contains(key, "//") || strings.Contains(key, "/.") || strings.HasPrefix(key, foreignMark) {
			t.Fatalf("%q has key %q", s, key)
		}
		again, err := ParseName(n.String())
		if err != nil || again.Key() != key || again.String() != n.String() {
			t.Fatalf("%q is shown as %q, which is %q, %v", s, n.String(), again.Key(), err)
		}
		if upper, err := ParseName(strings.ToUpper(s)); err != nil || upper.Key() != key {
			t.Fatalf("%q in upper case is %q, %v", s, upper.Key(), err)
		}
	})
}
