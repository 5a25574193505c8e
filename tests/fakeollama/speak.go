package fakeollama

import "strings"

const (
	created      = "2026-01-01T00:00:00Z"
	promptTokens = 3 // whatever the prompt
)

// format is one family's way of writing an answer.
type format interface {
	contentType() string
	start() []byte           // before the first token of a stream
	token(t string) []byte   // one token of a stream
	end() []byte             // after the last token of a stream
	failure(s string) []byte // an error within a stream
	whole(text string) any   // an answer in one piece
}

// speaker writes tokens as the endpoint asked for them.
type speaker struct {
	c      *call
	f      format
	stream bool
	all    strings.Builder // what an answer in one piece says
}

func newSpeaker(c *call) *speaker {
	v1 := strings.HasPrefix(c.rec.Path, "/v1/")
	sp := &speaker{c: c, stream: !v1}
	if c.ask.Stream != nil {
		sp.stream = *c.ask.Stream
	}
	switch c.rec.Path {
	case "/v1/chat/completions", "/v1/completions":
		sp.f = &openAI{c: c, chat: c.rec.Path == "/v1/chat/completions"}
	case "/v1/responses":
		sp.f = &responses{c: c}
	case "/v1/messages":
		sp.f = &messages{c: c}
	default:
		sp.f = native{c: c}
	}
	return sp
}

func (sp *speaker) head() error {
	if err := sp.c.head(200, -1, contentType(sp.f.contentType())); err != nil {
		return err
	}
	if b := sp.f.start(); b != nil {
		return sp.c.write(b)
	}
	return nil
}

func (sp *speaker) token(t string) error {
	sp.c.s.note(sp.c.rec, func(r *Record) { r.Tokens++ })
	if !sp.stream {
		sp.all.WriteString(t)
		return sp.c.ctx.Err()
	}
	if !sp.c.started {
		if err := sp.head(); err != nil {
			return err
		}
	}
	return sp.c.write(sp.f.token(t))
}

func (sp *speaker) done() error {
	if !sp.stream {
		return sp.c.json(200, sp.f.whole(sp.all.String()))
	}
	if err := sp.c.write(sp.f.end()); err != nil {
		return err
	}
	return sp.c.end()
}

// native is /api/chat and /api/generate.
type native struct{ c *call }

func (n native) contentType() string { return ndjsonType }
func (n native) start() []byte       { return nil }

func (n native) object(text string, done bool) map[string]any {
	o := map[string]any{"model": n.c.ask.Model, "created_at": created, "done": done}
	if n.c.rec.Path == "/api/generate" {
		o["response"] = text
	} else {
		o["message"] = map[string]string{"role": "assistant", "content": text}
	}
	if done {
		o["done_reason"] = "stop"
		o["total_duration"], o["load_duration"], o["prompt_eval_duration"], o["eval_duration"] = 4, 1, 1, 2
		o["prompt_eval_count"], o["eval_count"] = promptTokens, n.c.rec.Tokens
		if n.c.rec.Path == "/api/generate" {
			o["context"] = []int{1, 2, 3}
		}
	}
	return o
}

func (n native) token(t string) []byte   { return append(encode(n.object(t, false)), '\n') }
func (n native) end() []byte             { return append(encode(n.object("", true)), '\n') }
func (n native) whole(text string) any   { return n.object(text, true) }
func (n native) failure(s string) []byte { return append(encode(map[string]string{"error": s}), '\n') }

// openAI is /v1/chat/completions and /v1/completions.
type openAI struct {
	c      *call
	chat   bool
	spoken bool // the role was sent
}

func (o *openAI) contentType() string { return sseType }
func (o *openAI) start() []byte       { return nil }

func (o *openAI) object(kind string, choices []any) map[string]any {
	id := "cmpl-1"
	if o.chat {
		id = "chatcmpl-1"
	} else {
		kind = "text_completion"
	}
	return map[string]any{"id": id, "object": kind, "created": 1, "model": o.c.ask.Model,
		"system_fingerprint": "fp_ollama", "choices": choices}
}

func (o *openAI) usage() map[string]int {
	n := o.c.rec.Tokens
	return map[string]int{"prompt_tokens": promptTokens, "completion_tokens": n, "total_tokens": promptTokens + n}
}

func (o *openAI) chunk(text string, finish any) []byte {
	choice := map[string]any{"index": 0, "finish_reason": finish}
	if !o.chat {
		choice["text"] = text
	} else {
		delta := map[string]string{}
		if finish == nil {
			delta["content"] = text
		}
		if !o.spoken {
			delta["role"] = "assistant"
		}
		choice["delta"], o.spoken = delta, true
	}
	return event("", o.object("chat.completion.chunk", []any{choice}))
}

func (o *openAI) token(t string) []byte { return o.chunk(t, nil) }

func (o *openAI) end() []byte {
	b := o.chunk("", "stop")
	if o.c.ask.StreamOptions.IncludeUsage {
		last := o.object("chat.completion.chunk", []any{})
		last["usage"] = o.usage()
		b = append(b, event("", last)...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

func (o *openAI) failure(s string) []byte {
	return event("", errorShape("/v1/chat/completions", 500, s))
}

func (o *openAI) whole(text string) any {
	choice := map[string]any{"index": 0, "finish_reason": "stop"}
	if o.chat {
		choice["message"] = map[string]string{"role": "assistant", "content": text}
	} else {
		choice["text"] = text
	}
	out := o.object("chat.completion", []any{choice})
	out["usage"] = o.usage()
	return out
}

// event is one server-sent event, without a name if name is empty.
func event(name string, v any) []byte {
	var b []byte
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	return append(append(append(b, "data: "...), encode(v)...), "\n\n"...)
}
