package ollama

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func foreign(t testing.TB, raw string) Model {
	t.Helper()
	m, err := ParseOpenAIModel([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestParseOpenAIModel(t *testing.T) {
	t.Parallel()
	const born = "2023-11-14T22:13:20Z"
	for _, tt := range []struct{ raw, name, modified, owner string }{
		{`{"id":"Qwen/Qwen3-8B","object":"model","created":1700000000,"owned_by":"vllm","root":"x","permission":[{"id":"y"}]}`, "Qwen/Qwen3-8B", born, "vllm"},
		{`{"id":"accounts/x/models/y","created":1700000000.75}`, "accounts/x/models/y", born, ""},
		{` {"id":"/models/foo.gguf","created":null,"owned_by":null} `, "/models/foo.gguf", "0001-01-01T00:00:00Z", ""},
		{`{"id":"gpt-4o","created":-1,"owned_by":7}`, "gpt-4o", "0001-01-01T00:00:00Z", ""},
		{`{"id":"模型 <&>","created":"yesterday","owned_by":"a\u0007b"}`, "模型 <&>", "0001-01-01T00:00:00Z", ""},
		{`{"id":"a","created":1e300,"owned_by":"` + strings.Repeat("x", 200) + `"}`, "a", "0001-01-01T00:00:00Z", ""},
		{`{"id":"` + strings.Repeat("m", maxOpenAIName) + `"}`, strings.Repeat("m", maxOpenAIName), "0001-01-01T00:00:00Z", ""},
	} {
		m := foreign(t, tt.raw)
		if m.Name != tt.name || m.ModifiedAt.Format(time.RFC3339) != tt.modified || m.OwnedBy != tt.owner || !m.OpenAI || m.Remote {
			t.Errorf("%.60s: got %+v", tt.raw, m)
		}
		// What the structs of Ollama's own clients take, and no more. Their command prints the first twelve characters of the digest.
		var tags struct {
			Name, Model string
			ModifiedAt  time.Time `json:"modified_at"`
			Size        *int64
			Digest      string
			Details     struct {
				ParentModel    *string `json:"parent_model"`
				Format, Family string
				Families       []string
				Parameters     *string `json:"parameter_size"`
				Quantization   *string `json:"quantization_level"`
			}
		}
		d := json.NewDecoder(bytes.NewReader(m.Raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&tags); err != nil {
			t.Fatalf("%s: %v", m.Raw, err)
		}
		if tags.Name != tt.name || tags.Model != tt.name || !tags.ModifiedAt.Equal(m.ModifiedAt) || tags.Size == nil || len(tags.Digest) != 64 ||
			tags.Details.Family != "openai" || !slices.Equal(tags.Details.Families, []string{"openai"}) || tags.Details.Format != "" || tags.Details.Parameters == nil {
			t.Errorf("%s", m.Raw)
		}
	}
	if a, b := foreign(t, `{"id":"a","created":1}`), foreign(t, `{"id":"a","created":2}`); a.Digest != b.Digest || a.Digest == foreign(t, `{"id":"b"}`).Digest {
		t.Error("a digest is not of the id alone")
	}
	if !foreign(t, `{"id":"gpt-oss:20b-cloud"}`).Remote {
		t.Error("a cloud's model is not remote")
	}
}

func TestParseOpenAIModelIsHostile(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"empty": "", "null": "null", "array": "[]", "no id": `{"name":"a"}`, "id is null": `{"id":null}`, "id is a number": `{"id":1}`, "two ids": `{"id":"a","id":"b"}`,
		"two spellings": `{"id":"a","ID":"b"}`, "blank": `{"id":" "}`, "long": `{"id":"` + strings.Repeat("m", maxOpenAIName+1) + `"}`, "very long": `{"id":"` + strings.Repeat("m", maxNameText) + `"}`,
		"terminal escape": `{"id":"a\u001b[31m"}`, "line break": `{"id":"a\nb"}`, "right to left": `{"id":"a\u202eb"}`, "lone surrogate": `{"id":"\ud800"}`, "NUL": `{"id":"\u0000"}`,
		"not UTF-8": "{\"id\":\"a\xff\"}", "deep": `{"id":"a","x":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `}`, "cut off": `{"id":"a"`,
		"large": `{"id":"a","x":"` + strings.Repeat("x", MaxEntry) + `"}`, "two objects": `{"id":"a"}{}`,
	} {
		if m, err := ParseOpenAIModel([]byte(raw)); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
}

func TestModelKey(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"tiny": "registry.ollama.ai/library/tiny:latest", "Qwen/Qwen3-8B": "registry.ollama.ai/qwen/qwen3-8b:latest", "gpt-4o": "registry.ollama.ai/library/gpt-4o:latest",
		"accounts/x/models/y": "#accounts/x/models/y", "/models/foo.gguf": "#/models/foo.gguf", "GPT 4": "#GPT 4", "": "#", "#cloud": "##cloud",
	} {
		if got := ModelKey(name); got != want {
			t.Errorf("%q has key %q, want %q", name, got, want)
		}
	}
}

func TestMergeWithOtherProviders(t *testing.T) {
	t.Parallel()
	own := tag(t, "tiny:latest", "2020-01-01T00:00:00Z", "1")
	same := foreign(t, `{"id":"tiny","created":1700000000,"owned_by":"vllm"}`)
	path := foreign(t, `{"id":"/models/Foo.gguf","created":1600000000,"owned_by":"llamacpp"}`)
	upper := foreign(t, `{"id":"/models/foo.gguf"}`)
	for _, nodes := range [][][]Model{{{own}, {same, path}, {upper}}, {{upper, path, same}, {own}}} {
		if got := string(MergeTags(nodes)); got != `{"models":[`+string(path.Raw)+`,`+string(own.Raw)+`,`+string(upper.Raw)+`]}` {
			t.Errorf("tags: %s", got)
		}
		if got, want := string(MergeV1Models(nodes)), `{"object":"list","data":[`+
			`{"id":"/models/Foo.gguf","object":"model","created":1600000000,"owned_by":"llamacpp"},`+
			`{"id":"tiny:latest","object":"model","created":1577836800,"owned_by":"library"},`+
			`{"id":"/models/foo.gguf","object":"model","created":0,"owned_by":""}]}`; got != want {
			t.Errorf("v1: %s", got)
		}
	}
	if got := string(V1Model(same, "TINY:latest")); got != `{"id":"tiny","object":"model","created":1700000000,"owned_by":"vllm"}` {
		t.Errorf("one: %s", got)
	}
}

func FuzzOpenAIEntry(f *testing.F) {
	for _, raw := range []string{
		`{"id":"Qwen/Qwen3-8B","object":"model","created":1700000000,"owned_by":"vllm"}`, `{"id":"/models/a b.gguf","created":1e9}`, `{"id":"a","ID":"b"}`, `{"id":"x:1-cloud"}`, `{"id":"\u202e"}`,
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseOpenAIModel(raw)
		if err != nil {
			return
		}
		if !m.OpenAI || len(m.Raw) > MaxEntry || len(m.Name) > maxOpenAIName || len(m.Digest) != 64 {
			t.Fatalf("%q became %+v", raw, m)
		}
		var list struct {
			Models []struct{ Name, Model string }
			Data   []struct{ ID string }
		}
		for _, body := range [][]byte{MergeTags([][]Model{{m}, {m}}), MergeV1Models([][]Model{{m}})} {
			if err := json.Unmarshal(body, &list); err != nil || bytes.ContainsAny(body, "\n\r\x1b") {
				t.Fatalf("%q became %q: %v", raw, body, err)
			}
		}
		if len(list.Models) != 1 || list.Models[0].Name != m.Name || list.Models[0].Model != m.Name || list.Data[0].ID != m.Name {
			t.Fatalf("%q became %+v", raw, list)
		}
		if n, err := ParseName(m.Name); err == nil && ModelKey(m.Name) != n.Key() || err != nil && ModelKey(m.Name) != foreignMark+m.Name {
			t.Fatalf("%q has key %q", m.Name, ModelKey(m.Name))
		}
	})
}
