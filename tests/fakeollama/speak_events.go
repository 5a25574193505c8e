package fakeollama

// object is a JSON object.
type object = map[string]any

// messages is /v1/messages.
type messages struct{ c *call }

func (m *messages) contentType() string { return sseType }

func (m *messages) message(content []any, stop any) object {
	return object{"id": "msg_1", "type": "message", "role": "assistant", "model": m.c.ask.Model, "content": content,
		"stop_reason": stop, "stop_sequence": nil,
		"usage": object{"input_tokens": promptTokens, "output_tokens": m.c.rec.Tokens}}
}

func (m *messages) start() []byte {
	b := event("message_start", object{"type": "message_start", "message": m.message([]any{}, nil)})
	return append(b, event("content_block_start", object{"type": "content_block_start", "index": 0,
		"content_block": object{"type": "text", "text": ""}})...)
}

func (m *messages) token(t string) []byte {
	return event("content_block_delta", object{"type": "content_block_delta", "index": 0,
		"delta": object{"type": "text_delta", "text": t}})
}

func (m *messages) end() []byte {
	b := event("content_block_stop", object{"type": "content_block_stop", "index": 0})
	b = append(b, event("message_delta", object{"type": "message_delta",
		"delta": object{"stop_reason": "end_turn", "stop_sequence": nil},
		"usage": object{"input_tokens": promptTokens, "output_tokens": m.c.rec.Tokens}})...)
	return append(b, event("message_stop", object{"type": "message_stop"})...)
}

func (m *messages) failure(s string) []byte {
	return event("error", errorShape("/v1/messages", 500, s))
}

func (m *messages) whole(text string) any {
	return m.message([]any{object{"type": "text", "text": text}}, "end_turn")
}

// responses is /v1/responses, with the events that clients and token accounting
// look at and not the ones in between.
type responses struct {
	c        *call
	text     string
	sequence int
}

func (r *responses) contentType() string { return sseType }

func (r *responses) event(name string, o object) []byte {
	o["type"], o["sequence_number"] = name, r.sequence
	r.sequence++
	return event(name, o)
}

func (r *responses) response(status, text string) object {
	out := object{"id": "resp_1", "object": "response", "status": status, "model": r.c.ask.Model, "output": []any{}}
	if status == "completed" {
		n := r.c.rec.Tokens
		out["output"] = []any{object{"type": "message", "id": "msg_1", "role": "assistant", "status": status,
			"content": []any{object{"type": "output_text", "text": text}}}}
		out["usage"] = object{"input_tokens": promptTokens, "output_tokens": n, "total_tokens": promptTokens + n}
	}
	return out
}

func (r *responses) start() []byte {
	return r.event("response.created", object{"response": r.response("in_progress", "")})
}

func (r *responses) token(t string) []byte {
	r.text += t
	return r.event("response.output_text.delta", object{"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": t})
}

func (r *responses) end() []byte {
	return r.event("response.completed", object{"response": r.response("completed", r.text)})
}

func (r *responses) failure(s string) []byte {
	return r.event("response.failed", object{"response": object{"status": "failed", "error": object{"message": s}}})
}

func (r *responses) whole(text string) any { return r.response("completed", text) }
