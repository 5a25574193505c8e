package ollama

import (
	"fmt"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, endpoint, body string
		model                string
		stream, load, unload bool
	}{
		{"native streams by default", "chat", `{"model":"tiny","messages":[{"role":"user"}]}`, "tiny", true, false, false},
		{"null is the default", "chat", `{"model":"tiny","messages":[{}],"stream":null}`, "tiny", true, false, false},
		{"false", "generate", `{"model":"tiny","prompt":"x","stream":false}`, "tiny", false, false, false},
		{"v1 does not stream by default", "v1.chat.completions", `{"model":"tiny","messages":[{}]}`, "tiny", false, false, false},
		{"v1 null", "v1.responses", `{"model":"tiny","stream":null}`, "tiny", false, false, false},
		{"v1 true", "v1.messages", `{"model":"tiny","stream":true}`, "tiny", true, false, false},
		{"embed never streams, whatever stream is", "embed", `{"model":"tiny","input":"x","stream":"yes"}`, "tiny", false, false, false},
		{"no prompt loads", "generate", `{"model":"t-echo"}`, "t-echo", false, true, false},
		{"empty prompt loads", "generate", `{"model":"tiny","prompt":"","keep_alive":-1}`, "tiny", false, true, false},
		{"null prompt loads", "generate", `{"model":"tiny","prompt":null,"keep_alive":null}`, "tiny", false, true, false},
		{"unload", "generate", `{"model": "t-echo", "keep_alive": 0}`, "t-echo", false, false, true},
		{"unload, stream true", "chat", `{"model":"tiny","messages":[ ],"keep_alive":"0s","stream":true}`, "tiny", false, false, true},
		{"null messages load", "chat", `{"model":"tiny","messages":null,"keep_alive":"5m"}`, "tiny", false, true, false},
		{"keep_alive 0 with a prompt runs", "generate", `{"model":"tiny","prompt":"x","keep_alive":0}`, "tiny", true, false, false},
		{"empty input loads", "embed", `{"model":"tiny","input":[],"keep_alive":0}`, "tiny", false, true, false},
		{"one empty input runs", "embed", `{"model":"tiny","input":[""]}`, "tiny", false, false, false},
		{"empty prompt of embeddings", "embeddings", `{"model":"tiny"}`, "tiny", false, true, false},
		{"a prompt of a wrong type is for Ollama", "generate", `{"model":"tiny","prompt":5}`, "tiny", true, false, false},
		{"v1 without messages is for Ollama", "v1.chat.completions", `{"model":"tiny","messages":[]}`, "tiny", false, false, false},
		{"any case", "chat", `{"MODEL":"tiny","Messages":[{}],"STREAM":false}`, "tiny", false, false, false},
		{"escaped key and value", "chat", `{"\u006dodel":"t\u0069ny","messages":[{}]}`, "tiny", true, false, false},
		{"the name at the end", "chat", `{"messages":[{"model":"other"}],"options":{"model":"x","seed":9007199254740993},"model":"tiny"}`, "tiny", true, false, false},
		{"spaces are echoed", "chat", `{"model":" tiny ","messages":[{}]}`, " tiny ", true, false, false},
		{"white space around", "chat", " \r\n\t{\"model\":\"tiny\",\"messages\":[{}]} \n", "tiny", true, false, false},
		{"name does not matter to chat", "chat", `{"model":"tiny","messages":[{}],"name":5,"name":"x"}`, "tiny", true, false, false},
		{"show by name", "show", `{"name":"tiny"}`, "tiny", false, false, false},
		{"show by both", "show", `{"name":"unknown","model":"tiny"}`, "tiny", false, false, false},
		{"show by null and name", "show", `{"model":null,"name":"tiny"}`, "tiny", false, false, false},
		{"delete by name", "delete", `{"name":"tiny"}`, "tiny", false, false, false},
		{"pull streams", "pull", `{"model":"tiny"}`, "tiny", true, false, false},
		{"create has no source ending", "create", `{"model":"x:cloud","from":"tiny","stream":false}`, "x:cloud", false, false, false},
		{"hf name", "chat", `{"model":"hf.co/org/Model-GGUF:Q4_K_M","messages":[{}]}`, "hf.co/org/Model-GGUF:Q4_K_M", true, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := tt.body
			r, refused := Decode(row(t, tt.endpoint), "application/x-www-form-urlencoded", "", []byte(tt.body))
			if refused != nil {
				t.Fatalf("%d %s: %s", refused.Status, refused.Code, refused.Message)
			}
			if r.Model != tt.model || r.Stream != tt.stream || r.Load != tt.load || r.Unload != tt.unload || tt.body != before {
				t.Errorf("got %+v", r)
			}
			if r.Name.Model == "" {
				t.Error("the name was not parsed")
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	const bad, amb, gone = "400 bad_request ", "400 ambiguous_body ", "404 no_such_model "
	deep := func(n int) string {
		return `{"model":"tiny","messages":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	tests := []struct{ name, endpoint, body, want string }{
		{"empty body", "chat", "", bad + "missing request body"},
		{"white space", "generate", " \n", bad + "missing request body"},
		{"empty body of v1", "v1.chat.completions", "", bad + "EOF"},
		{"cut off", "chat", `{"model":"tiny"`, bad + "unexpected EOF"},
		{"byte order mark", "chat", "\uFEFF{}", bad + "invalid character 'ï' looking for beginning of value"},
		{"quotes of cmd.exe", "generate", `'{model: t-echo, prompt: hi}'`, bad + `invalid character '\'' looking for beginning of value`},
		{"gzip without a label", "chat", "\x1f\x8b", bad + `invalid character '\x1f' looking for beginning of value`},
		{"array", "chat", "[]", bad + "json: cannot unmarshal array into Go value of type api.ChatRequest"},
		{"string", "embed", `"x"`, bad + "json: cannot unmarshal string into Go value of type api.EmbedRequest"},
		{"array for v1", "v1.completions", "[]", bad + "json: cannot unmarshal array into Go value of type openai.CompletionRequest"},
		{"stream is a string", "chat", `{"model":"tiny","stream":"false"}`, bad + "json: cannot unmarshal string into Go struct field ChatRequest.stream of type bool"},
		{"stream is a number, v1", "v1.messages", `{"model":"tiny","stream":1}`, bad + "json: cannot unmarshal number into Go struct field MessagesRequest.stream of type bool"},
		{"model is a number", "generate", `{"model":1}`, bad + "json: cannot unmarshal number into Go struct field GenerateRequest.model of type string"},
		{"model is an object", "show", `{"model":{}}`, bad + "json: cannot unmarshal object into Go struct field ShowRequest.model of type string"},
		{"name is a bool", "delete", `{"name":true}`, bad + "json: cannot unmarshal bool into Go struct field DeleteRequest.name of type string"},
		{"too deep", "chat", deep(100_000), bad + "invalid character '[' exceeded max depth"},

		{"two models", "chat", `{"model":"nope","model":"tiny"}`, amb + `"model" appears more than once`},
		{"two spellings", "chat", `{"Model":"nope","model":"tiny"}`, amb + `"model" appears more than once`},
		{"two spellings, equal values", "v1.responses", `{"mODEL":"tiny","model":"tiny"}`, amb + `"model" appears more than once`},
		{"one is null", "chat", `{"model":null,"model":"tiny"}`, amb + `"model" appears more than once`},
		{"one is escaped", "chat", `{"model":"nope","m\u006fdel":"tiny"}`, amb + `"model" appears more than once`},
		{"two names", "show", `{"model":"tiny","name":"a","NAME":"b"}`, amb + `"name" appears more than once`},
		{"two sources", "copy", `{"source":"a","\u017fource":"b","destination":"c"}`, amb + `"source" appears more than once`},
		{"two streams", "chat", `{"model":"tiny","stream":true,"Stream":false}`, amb + `"stream" appears more than once`},
		{"two prompts", "generate", `{"model":"tiny","prompt":"","Prompt":"x"}`, amb + `"prompt" appears more than once`},
		{"two keep_alives, one with a Kelvin sign", "generate", "{\"model\":\"tiny\",\"keep_alive\":0,\"\u212Aeep_alive\":1}", amb + `"keep_alive" appears more than once`},
		{"second value", "chat", `{"model":"tiny"}{"model":"nope"}`, amb + "invalid character '{' after top-level value"},
		{"trailing byte", "chat", `{"model":"tiny"}x`, amb + "invalid character 'x' after top-level value"},
		{"trailing NUL", "chat", "{\"model\":\"tiny\"}\x00", amb + `invalid character '\x00' after top-level value`},
		{"model is not UTF-8", "chat", "{\"model\":\"ti\xffny\"}", amb + `"model" is not valid UTF-8`},

		{"no model: generate", "generate", `{}`, gone + "model '' not found"},
		{"no model: null", "generate", `null`, gone + "model '' not found"},
		{"no model: chat", "chat", `{"messages":[{}]}`, bad + "model is required"},
		{"no model: spaces", "chat", `{"model":"  "}`, bad + "model is required"},
		{"no model: spaces for generate", "generate", `{"model":" "}`, gone + "model ' ' not found"},
		{"no model: embed", "embed", `{}`, gone + "model '' not found"},
		{"no model: embeddings", "embeddings", `{}`, bad + "model is required"},
		{"no model: show", "show", `{}`, bad + "model is required"},
		{"no model: pull", "pull", `{}`, bad + "invalid model name"},
		{"no model: push", "push", `{}`, bad + "model is required"},
		{"no model: create", "create", `{}`, bad + "invalid model name"},
		{"no model: delete", "delete", `{}`, bad + "model is required"},
		{"no model: copy", "copy", `{}`, bad + `source "" is invalid`},
		{"no model: v1 chat", "v1.chat.completions", `{"messages":[{}]}`, bad + "model is required"},
		{"no model: v1 completions", "v1.completions", `{}`, gone + "model '' not found"},
		{"no model: v1 embeddings", "v1.embeddings", `{"input":"x"}`, gone + "model '' not found"},
		{"no model: responses", "v1.responses", `{}`, bad + "model is required"},
		{"no model: messages", "v1.messages", `{}`, bad + "model is required"},

		{"invalid name", "chat", `{"model":"../../x"}`, bad + "invalid model name"},
		{"5 KB name", "chat", `{"model":"` + strings.Repeat("a", 5<<10) + `"}`, bad + "invalid model name"},
		{"1 MB name", "show", `{"model":"` + strings.Repeat("a", 1<<20) + `","name":"tiny"}`, bad + "invalid model name"},
		{"lone surrogate", "chat", `{"model":"\ud800"}`, bad + "invalid model name"},
		{"invalid name: delete", "delete", `{"name":"a b"}`, bad + `name "a b" is invalid`},
		{"invalid destination", "copy", `{"source":"a","destination":"b c"}`, bad + `destination "b c" is invalid`},
		{"two endings", "chat", `{"model":"x:local:cloud"}`, bad + `use either :local or :cloud, not both: "x:local:cloud"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, refused := Decode(row(t, tt.endpoint), "application/json", "", []byte(tt.body))
			if refused == nil {
				t.Fatalf("accepted: %+v", r)
			}
			if got := fmt.Sprintf("%d %s %s", refused.Status, refused.Code, refused.Message); got != tt.want || r.Name != (Name{}) || r != (Request{}) && ModelKey(r.Model)[:1] != foreignMark {
				t.Errorf("got  %s\nwant %s\n%+v", got, tt.want, r)
			}
		})
	}
}

// A name that is none of Ollama's may be another provider's.
func TestDecodeKeepsForeignNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		endpoint, body string
		want           Request
	}{
		{"v1.chat.completions", `{"model":"/models/foo.gguf","messages":[{}],"stream":true}`, Request{Model: "/models/foo.gguf", Stream: true}},
		{"v1.rerank", `{"model":"accounts/x/models/y","query":"q"}`, Request{Model: "accounts/x/models/y"}},
		{"generate", `{"model":"a b c"}`, Request{Model: "a b c", Load: true}},
		{"show", `{"name":"a b c"}`, Request{Model: "a b c"}},
	} {
		r, refused := Decode(row(t, tt.endpoint), "", "", []byte(tt.body))
		if refused == nil || refused.Message != InvalidNameText || r != tt.want {
			t.Errorf("%s: %+v, %v", tt.body, r, refused)
		}
	}
}

func TestDecodeCloudNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpt-oss:20b-cloud", "gpt-oss:20b:cloud", "qwen3:CLOUD"} {
		r, refused := Decode(row(t, "chat"), "", "", []byte(`{"model":"`+name+`","messages":[{}]}`))
		if refused != nil || !r.Name.Cloud {
			t.Errorf("%s: %+v, %v", name, r, refused)
		}
	}
}

func TestDecodeCopy(t *testing.T) {
	t.Parallel()
	r, refused := Decode(row(t, "copy"), "", "", []byte(`{"source":"tiny","destination":"Other/new:v1"}`))
	if refused != nil || r.Model != "tiny" || r.Destination != "Other/new:v1" || r.Name.String() != "tiny:latest" {
		t.Errorf("got %+v, %v", r, refused)
	}
}

func TestDecodeWithoutModel(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tags", "v1.model", "blobs.create", "me"} {
		if r, refused := Decode(row(t, name), "", "gzip", []byte("\x00")); refused != nil || r != (Request{}) {
			t.Errorf("%s: %+v, %v", name, r, refused)
		}
	}
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	for value, unload := range map[string]bool{
		`0`: true, `0.0`: true, `-0`: true, `0e5`: true, `1e-10`: true, `"0"`: true, `"0s"`: true, `"0h0m"`: true, `"-0s"`: true, `"0.1ns"`: true,
		`1`: false, `-1`: false, `0.5`: false, `1e30`: false, `1e999`: false, `"5m"`: false, `"-1s"`: false, `""`: false, `"x"`: false,
		`null`: false, `true`: false, `false`: false, `[]`: false, `{}`: false, `"` + strings.Repeat("0", 10<<10) + `"`: false,
	} {
		r, refused := Decode(row(t, "generate"), "", "", []byte(`{"model":"tiny","keep_alive":`+value+`}`))
		if refused != nil || r.Unload != unload || r.Load == unload {
			t.Errorf("keep_alive %.40s: %+v, %v", value, r, refused)
		}
	}
}
