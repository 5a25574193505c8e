package demo

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// text is what the demo says, whatever it is asked.
const text = "This is Fairway's demo: no model runs here, and these words were written beforehand. " +
	"They took the way of a real answer: from your app to the gateway, over the tunnel to a node, and back, word by word. " +
	"Start Ollama beside the node, and its models take the demo's place."

// words are the tokens: a word with the space before it.
var words = split(text)

func split(s string) (out []string) {
	for i, w := range strings.Fields(s) {
		if i > 0 {
			w = " " + w
		}
		out = append(out, w)
	}
	return out
}

// promptTokens is what the demo claims to have read: it reads no prompt.
const promptTokens = 1

// answer is one answer being given.
type answer struct {
	w      http.ResponseWriter
	ask    ask
	path   string
	begin  time.Time
	tokens []string
	reason string // stop, or length where a limit cut the words
}

func infer(w http.ResponseWriter, r *http.Request) {
	q, ok := read(w, r)
	if !ok {
		return
	}
	a := &answer{w: w, ask: q, path: r.URL.Path, begin: time.Now(), tokens: words, reason: "stop"}
	for _, limit := range []int{q.Options.NumPredict, q.MaxTokens} {
		if 0 < limit && limit < len(a.tokens) {
			a.tokens, a.reason = a.tokens[:limit], "length"
		}
	}
	native := strings.HasPrefix(a.path, "/api/")
	stream := native
	if q.Stream != nil {
		stream = *q.Stream
	}
	switch {
	case a.path == "/api/chat" && len(q.Messages) == 0, a.path == "/api/generate" && (q.Prompt == nil || q.Prompt == ""):
		a.loaded()
	case stream:
		a.stream(r.Context())
	default:
		a.whole(r.Context())
	}
}

// loaded is Ollama's answer to an empty prompt: a plain object, never a stream.
func (a *answer) loaded() {
	o := a.native("", true)
	o.DoneReason = "load"
	if v, ok := a.ask.KeepAlive.(float64); ok && v == 0 {
		o.DoneReason = "unload"
	}
	reply(a.w, http.StatusOK, o)
}

func (a *answer) stream(ctx context.Context) {
	sse := strings.HasPrefix(a.path, "/v1/")
	a.w.Header().Set("Content-Type", "application/x-ndjson")
	if sse {
		a.w.Header().Set("Content-Type", "text/event-stream")
	}
	for i, t := range a.tokens {
		if !wait(ctx, pace) {
			return
		}
		if sse && !a.write("data: ", a.chunk(t, nil, i == 0), "\n\n") || !sse && !a.write("", a.native(t, false), "\n") {
			return
		}
	}
	if sse {
		a.endEvents()
		return
	}
	a.write("", a.last(""), "\n")
}

func (a *answer) endEvents() {
	if !a.write("data: ", a.chunk("", a.reason, false), "\n\n") {
		return
	}
	if a.ask.StreamOptions.IncludeUsage {
		o := a.openAI(".chunk")
		o["choices"], o["usage"] = []any{}, a.usage()
		if !a.write("data: ", o, "\n\n") {
			return
		}
	}
	_, _ = a.w.Write([]byte("data: [DONE]\n\n"))
}

// whole takes as long as the stream would.
func (a *answer) whole(ctx context.Context) {
	if !wait(ctx, time.Duration(len(a.tokens))*pace) {
		return
	}
	said := strings.Join(a.tokens, "")
	if strings.HasPrefix(a.path, "/api/") {
		reply(a.w, http.StatusOK, a.last(said))
		return
	}
	choice := object{"index": 0, "text": said, "finish_reason": a.reason}
	if a.path == "/v1/chat/completions" {
		choice = object{"index": 0, "message": object{"role": "assistant", "content": said}, "finish_reason": a.reason}
	}
	o := a.openAI("")
	o["choices"], o["usage"] = []any{choice}, a.usage()
	reply(a.w, http.StatusOK, o)
}

// native is one object of /api/chat or /api/generate, its fields in Ollama's
// order. Durations are nanoseconds.
type native struct {
	Model              string   `json:"model"` // as the caller spelled it
	CreatedAt          string   `json:"created_at"`
	Message            *message `json:"message,omitempty"`
	Response           *string  `json:"response,omitempty"`
	Done               bool     `json:"done"`
	DoneReason         string   `json:"done_reason,omitempty"`
	Context            []int    `json:"context,omitempty"`
	TotalDuration      int64    `json:"total_duration,omitempty"`
	LoadDuration       int64    `json:"load_duration,omitempty"`
	PromptEvalCount    int      `json:"prompt_eval_count,omitempty"`
	PromptEvalDuration int64    `json:"prompt_eval_duration,omitempty"`
	EvalCount          int      `json:"eval_count,omitempty"`
	EvalDuration       int64    `json:"eval_duration,omitempty"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (a *answer) native(token string, done bool) native {
	o := native{Model: a.ask.Model, CreatedAt: time.Now().UTC().Format(time.RFC3339Nano), Done: done}
	if a.path == "/api/generate" {
		o.Response = &token
	} else {
		o.Message = &message{"assistant", token}
	}
	return o
}

// last is the object that ends an answer, with the counters.
func (a *answer) last(token string) native {
	o := a.native(token, true)
	took := time.Since(a.begin).Nanoseconds()
	o.DoneReason, o.TotalDuration, o.EvalDuration = a.reason, took, took
	o.PromptEvalCount, o.EvalCount = promptTokens, len(a.tokens)
	return o
}

func (a *answer) openAI(suffix string) object {
	id, kind := "chatcmpl-demo", "chat.completion"+suffix
	if a.path == "/v1/completions" {
		id, kind = "cmpl-demo", "text_completion"
	}
	return object{"id": id, "object": kind, "created": a.begin.Unix(), "model": a.ask.Model, "system_fingerprint": "fp_ollama"}
}

// chunk is one event of a stream: a token, or the end with its reason. Only the
// first chunk of a chat says the role.
func (a *answer) chunk(token string, reason any, first bool) object {
	choice := object{"index": 0, "finish_reason": reason}
	if a.path == "/v1/completions" {
		choice["text"] = token
	} else {
		delta := object{}
		if reason == nil {
			delta["content"] = token
		}
		if first {
			delta["role"] = "assistant"
		}
		choice["delta"] = delta
	}
	o := a.openAI(".chunk")
	o["choices"] = []any{choice}
	return o
}

func (a *answer) usage() object {
	n := len(a.tokens)
	return object{"prompt_tokens": promptTokens, "completion_tokens": n, "total_tokens": promptTokens + n}
}

// write sends one object in one write. False: the caller has left.
func (a *answer) write(before string, v any, after string) bool {
	b, err := json.Marshal(v)
	if err != nil {
		return false
	}
	_, err = a.w.Write(append(append([]byte(before), b...), after...))
	return err == nil
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
