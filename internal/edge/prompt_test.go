package edge

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestChatBody holds what goes to a provider.
func TestChatBody(t *testing.T) {
	t.Parallel()
	in := Input{{"caption", "A <cat> by the window."}, {"a \"b\"", "second"}}
	withSchema := schemaOperator(t, `{ "type" : "object", "properties": {"zone": {"type":"string"} } }`)
	for name, body := range map[string]func() ([]byte, error){
		"chat/contract.ollama.json": func() ([]byte, error) { return contractOperator(t).ChatBody(Ollama, in, false) },
		"chat/schema.ollama.json":   func() ([]byte, error) { return withSchema.ChatBody(Ollama, in, true) },
		"chat/no-text.ollama.json":  func() ([]byte, error) { return withSchema.ChatBody(Ollama, nil, false) },
		"chat/schema.openai.json":   func() ([]byte, error) { return withSchema.ChatBody(OpenAI, in, true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := body()
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, raw)
		})
	}
}

// TestChatContextFits: Ollama cuts a prompt that is longer than its context, without a word.
func TestChatContextFits(t *testing.T) {
	t.Parallel()
	o := contractOperator(t)
	for size, want := range map[int]int{0: 8192, 20_000: 8192, 22_000: 16384, 90_000: 32768, 1 << 20: 131072} {
		in := Input{{"t", strings.Repeat("x", size)}}
		raw, err := o.ChatBody(Ollama, in, false)
		if err != nil {
			t.Fatal(err)
		}
		var body struct {
			Options struct {
				NumCtx int `json:"num_ctx"`
			} `json:"options"`
		}
		if err := json.Unmarshal(raw, &body); err != nil {
			t.Fatal(err)
		}
		if got := body.Options.NumCtx; got != want || want < 131072 && got < o.Tokens(in) {
			t.Errorf("%d bytes, %d tokens: num_ctx %d, want %d", size, o.Tokens(in), got, want)
		}
	}
}

func TestOperatorFormat(t *testing.T) {
	t.Parallel()
	if got := string(schemaOperator(t, ` { "type" : [ "object" ] } `).Format()); got != `{"type":["object"]}` {
		t.Errorf("schema: %s", got)
	}
	// Ollama takes no boolean where a schema belongs.
	if got := string(schemaOperator(t, `false`).Format()); got != `{"not":{}}` {
		t.Errorf("false: %s", got)
	}
	if got := schemaOperator(t, `true`); string(got.Format()) != "{}" || got.Origin() != (Origin{ModelID: "tiny", ModelVersion: "0"}) {
		t.Errorf("got %s, %+v", got.Format(), got.Origin())
	}
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"answer":true,"none":false}}`:                                               `{"type":"object","properties":{"answer":{},"none":{"not":{}}}}`,
		`{"prefixItems":[{"type":"string"},true],"items":true}`:                                                     `{"prefixItems":[{"type":"string"},{}],"items":{}}`,
		`{"allOf":[true,{"not":false}],"$defs":{"a":true}}`:                                                         `{"allOf":[{},{"not":{"not":{}}}],"$defs":{"a":{}}}`,
		`{"additionalProperties":false,"default":true,"const":false}`:                                               `{"additionalProperties":false,"default":true,"const":false}`,
		`{"additionalProperties":{"items":true},"enum":[true]}`:                                                     `{"additionalProperties":{"items":{}},"enum":[true]}`,
		`{"properties":{"additionalProperties":true,"\"q\"":{ "if":true}},"x-a":{"items":true},"uniqueItems":true}`: `{"properties":{"additionalProperties":{},"\"q\"":{"if":{}}},"x-a":{"items":true},"uniqueItems":true}`,
	} {
		o := schemaOperator(t, schema)
		body, err := o.ChatBody(Ollama, nil, false)
		if got := string(o.Format()); got != want || err != nil || !strings.Contains(string(body), `"format":`+want) {
			t.Errorf("%s: %s, want %s; %s %v", schema, got, want, body, err)
		}
	}
	// The answer is held to what the author wrote.
	o := schemaOperator(t, `{"properties":{"answer":true,"none":false}}`)
	if r := o.Judge(Said{Text: `{"answer":[1]}`}, nil, Origin{}); r.Status != Success {
		t.Errorf("%+v", r)
	}
	if r := o.Judge(Said{Text: `{"none":1}`}, nil, Origin{}); r.Status != Invalid {
		t.Errorf("%+v", r)
	}
	goal := &Operator{Kind: KindGoal, Workflow: "uw_x"}
	if goal.Format() != nil || goal.Origin() != (Origin{ModelID: "uw_x", ModelVersion: "cloud"}) {
		t.Errorf("goal: %s %+v", goal.Format(), goal.Origin())
	}
}
