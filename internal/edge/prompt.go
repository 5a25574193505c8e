package edge

import (
	"encoding/json"
	"strings"
)

// Provider is the protocol of an inference server: the adapter's name.
type Provider string

// The protocols that a typed run can be put in.
const (
	Ollama Provider = "ollama"
	OpenAI Provider = "openai"
)

// How a provider generates an answer.
const (
	numPredict = 1024 // tokens of an answer
	leastCtx   = 8192 // tokens of prompt and answer
	mostCtx    = 131072
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// messages puts the author's words and the rules into the system's part and the texts, which nobody vouches for, into the user's. Without a
// text the author asks in the user's place: a chat needs someone who does.
func (o *Operator) messages(in Input) []message {
	rules := "Answer with JSON and nothing else. It has to fit this JSON Schema:\n" + string(o.Format())
	if o.contract != nil {
		rules = o.contract.rules()
	}
	if len(in) == 0 {
		return []message{{"system", rules}, {"user", o.prompt}}
	}
	var texts strings.Builder
	size := 0
	for _, src := range in {
		size += len(src.Name) + len(src.Text) + 16
	}
	texts.Grow(size)
	for _, src := range in {
		texts.WriteString("Text ")
		texts.Write(appendString(nil, src.Name))
		texts.WriteString(":\n")
		texts.WriteString(src.Text)
		texts.WriteString("\n\n")
	}
	return []message{{"system", o.prompt + "\n\n" + rules}, {"user", strings.TrimSuffix(texts.String(), "\n\n")}}
}

// Tokens is an estimate, from above for most languages, of what a run takes of a model: its prompt and the longest answer that it may give.
// One token stands for three bytes.
func (o *Operator) Tokens(in Input) int {
	// The texts need not be put together to be measured.
	bytes := len("\n\n")
	for _, src := range in {
		bytes += len("Text \"\":\n\n\n") + len(src.Name) + len(src.Text)
	}
	return tokens(o.messages(nil)) + (bytes+2)/3
}

// tokens is the estimate of messages and an answer.
func tokens(all []message) int {
	bytes := 0
	for _, m := range all {
		bytes += len(m.Content)
	}
	return (bytes+2)/3 + numPredict
}

// ChatBody is the request to a provider: POST /api/chat of Ollama, or /v1/chat/completions. The answer is held to [Operator.Format], at
// temperature 0. The context is what the run needs, in powers of two, so that Ollama does not cut the texts in silence and does not load a
// model anew for every length.
func (o *Operator) ChatBody(p Provider, in Input, stream bool) ([]byte, error) {
	if p == OpenAI {
		return plainJSON(openAIChat{
			Model: o.Model, Messages: o.messages(in), Stream: stream, MaxTokens: numPredict,
			ResponseFormat: responseFormat{"json_schema", namedSchema{"answer", o.Format()}},
		})
	}
	messages := o.messages(in)
	ctx := leastCtx
	for need := tokens(messages); ctx < need && ctx < mostCtx; {
		ctx *= 2
	}
	return plainJSON(ollamaChat{
		Model: o.Model, Messages: messages, Stream: stream, Format: o.Format(), Options: ollamaOptions{NumCtx: ctx, NumPredict: numPredict},
	})
}

// LoadBody is the request by which Ollama's /api/chat loads a model and says nothing. It asks for the context that most runs need: with another
// one Ollama would load the model again for the first of them.
func LoadBody(model string) ([]byte, error) {
	return plainJSON(ollamaChat{Model: model, Messages: []message{}, Options: ollamaOptions{NumCtx: leastCtx, NumPredict: numPredict}})
}

type ollamaChat struct {
	Model    string          `json:"model"`
	Messages []message       `json:"messages"`
	Stream   bool            `json:"stream"`
	Think    bool            `json:"think"` // never: a budget of 1024 tokens is soon thought away
	Format   json.RawMessage `json:"format,omitempty"`
	Options  ollamaOptions   `json:"options"`
}

type ollamaOptions struct {
	Temperature float64 `json:"temperature"`
	NumCtx      int     `json:"num_ctx"`
	NumPredict  int     `json:"num_predict"`
}

type openAIChat struct {
	Model          string         `json:"model"`
	Messages       []message      `json:"messages"`
	Stream         bool           `json:"stream"`
	Temperature    float64        `json:"temperature"`
	MaxTokens      int            `json:"max_tokens"`
	ResponseFormat responseFormat `json:"response_format"`
}

type responseFormat struct {
	Type       string      `json:"type"`
	JSONSchema namedSchema `json:"json_schema"`
}

type namedSchema struct {
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
}
