package edge

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Bounds of what a provider may answer to one chat.
const (
	maxLine = 1 << 20
	maxBody = 8 << 20
)

// Said is what a model answered, before anything of it is believed.
type Said struct {
	Text     string
	Thinking string // what it thought, where the provider keeps that apart
	Cut      bool   // it reached the length that it was allowed
}

// Transcript collects a provider's answer to [Operator.ChatBody], whole or in pieces as they come. It is for one goroutine.
type Transcript struct {
	provider Provider
	stream   bool
	rest     []byte // an unfinished line, or the whole body
	read     int
	text     strings.Builder
	thinking strings.Builder
	cut      bool
	done     bool // the answer is whole
	over     bool // and nothing may follow
}

// NewTranscript is for an answer in the given protocol, streamed or not as the request asked for.
func NewTranscript(p Provider, stream bool) *Transcript {
	return &Transcript{provider: p, stream: stream}
}

// Feed takes the next bytes of the body, split anywhere, and gives the text that they add to the answer. An error is a code for [Fail].
func (t *Transcript) Feed(p []byte) (delta string, err error) {
	if t.read += len(p); t.read > maxBody {
		return "", badResponse
	}
	before := t.text.Len()
	t.rest = append(t.rest, p...)
	for t.stream {
		line, rest, ok := bytes.Cut(t.rest, []byte("\n"))
		if !ok {
			break
		}
		t.rest = rest
		if err := t.line(line); err != nil {
			return "", err
		}
	}
	if t.stream && len(t.rest) > maxLine {
		return "", badResponse
	}
	return t.text.String()[before:], nil
}

// End gives the whole once the body has ended. A body that ends before its answer does is an error.
func (t *Transcript) End() (Said, error) {
	if err := t.line(t.rest); err != nil {
		return Said{}, err
	}
	if !t.done {
		return Said{}, badResponse
	}
	return Said{Text: t.text.String(), Thinking: t.thinking.String(), Cut: t.cut}, nil
}

// line takes one object: a line of Ollama's stream, an event of OpenAI's, or a body.
func (t *Transcript) line(line []byte) error {
	line = bytes.TrimSpace(line)
	if t.provider == OpenAI && t.stream {
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			return nil // other fields of an event, comments, blank lines
		}
		if line = bytes.TrimSpace(data); string(line) == "[DONE]" {
			t.done, t.over = true, true
			return nil
		}
	}
	switch {
	case len(line) == 0:
		return nil
	case t.over:
		return badResponse // something after the end
	}
	var a answerLine
	if err := json.Unmarshal(line, &a); err != nil || line[0] != '{' {
		return badResponse
	}
	if len(a.Error) > 0 && string(a.Error) != "null" {
		return providerFailed
	}
	if t.provider == OpenAI {
		return t.choice(a)
	}
	t.text.WriteString(a.Message.Content)
	t.thinking.WriteString(a.Message.Thinking)
	t.done, t.over = a.Done, a.Done
	t.cut = t.cut || a.DoneReason == "length"
	if !t.stream && !a.Done {
		return badResponse
	}
	return nil
}

// choice takes the first of OpenAI's choices; no other was asked for.
func (t *Transcript) choice(a answerLine) error {
	if len(a.Choices) == 0 {
		if t.stream {
			return nil // the usage at the end
		}
		return badResponse
	}
	c := a.Choices[0]
	for _, m := range []answerMessage{c.Message, c.Delta} {
		t.text.WriteString(m.Content)
		for _, s := range []string{m.Thinking, m.ReasoningContent, m.Reasoning} {
			t.thinking.WriteString(s)
		}
	}
	t.cut = t.cut || c.FinishReason == "length"
	t.done = t.done || !t.stream || c.FinishReason != ""
	return nil
}

// answerLine is what is read of either protocol.
type answerLine struct {
	Message    answerMessage   `json:"message"`
	Done       bool            `json:"done"`
	DoneReason string          `json:"done_reason"`
	Error      json.RawMessage `json:"error"`
	Choices    []struct {
		Message      answerMessage `json:"message"`
		Delta        answerMessage `json:"delta"`
		FinishReason string        `json:"finish_reason"`
	} `json:"choices"`
}

type answerMessage struct {
	Content          string `json:"content"`
	Thinking         string `json:"thinking"`
	ReasoningContent string `json:"reasoning_content"`
	Reasoning        string `json:"reasoning"`
}
