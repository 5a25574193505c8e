package fakeollama

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

var errQueueFull = errors.New("server busy, please try again.  maximum pending requests exceeded")

// infer is every endpoint that runs a model.
func (c *call) infer() error {
	if !c.decode() {
		return nil
	}
	a := &c.ask
	c.s.note(c.rec, func(r *Record) { r.Model = a.Model })
	if status, text := c.refusal(); status != 0 {
		return c.fail(status, text)
	}
	leave, err := c.s.enter(c.ctx, norm(a.Model))
	if errors.Is(err, errQueueFull) {
		return c.fail(http.StatusServiceUnavailable, err.Error())
	}
	if err != nil {
		return err
	}
	defer leave()
	c.s.executed(c.rec)
	c.load()
	switch {
	case strings.Contains(c.rec.Path, "embed"):
		return c.embed()
	case c.rec.Path == "/api/generate" && (a.Prompt == nil || a.Prompt == ""),
		c.rec.Path == "/api/chat" && len(a.Messages) == 0:
		return c.loadOnly()
	}
	return behaviour(a.Model)(newSpeaker(c))
}

// refusal is Ollama's answer to what it will not run; 0 for none.
func (c *call) refusal() (int, string) {
	model, path := c.ask.Model, c.rec.Path
	switch {
	case path == "/v1/messages" && c.ask.MaxTokens <= 0:
		return http.StatusBadRequest, "max_tokens is required and must be positive"
	case path == "/api/chat" && model == "":
		return http.StatusBadRequest, "model is required"
	case !c.s.has(model) && strings.Contains(path, "embed"):
		return http.StatusNotFound, fmt.Sprintf("model %q not found, try pulling it first", model)
	case !c.s.has(model):
		return http.StatusNotFound, fmt.Sprintf("model '%s' not found", model)
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.busy {
		return http.StatusServiceUnavailable, errQueueFull.Error()
	}
	return 0, ""
}

// load lists the model in /api/ps, or takes it out for keep_alive 0.
func (c *call) load() {
	keep := c.ask.keep()
	c.s.edit(func(st *state) {
		if keep == 0 {
			delete(st.loaded, norm(c.ask.Model))
		} else {
			st.loaded[norm(c.ask.Model)] = time.Now().Add(keep)
		}
	})
}

func (c *call) loadOnly() error {
	reason := "load"
	if c.ask.keep() == 0 {
		reason = "unload"
	}
	out := map[string]any{"model": c.ask.Model, "created_at": created, "done": true, "done_reason": reason}
	if c.rec.Path == "/api/chat" {
		out["message"] = map[string]string{"role": "assistant", "content": ""}
	} else {
		out["response"] = ""
	}
	return c.json(200, out)
}

func (c *call) embed() error {
	vector := []float64{0.1, 0.2}
	switch c.rec.Path {
	case "/api/embed":
		return c.json(200, map[string]any{"model": c.ask.Model, "embeddings": []any{vector},
			"total_duration": 1, "load_duration": 1, "prompt_eval_count": promptTokens})
	case "/api/embeddings":
		return c.json(200, map[string]any{"embedding": vector})
	}
	return c.json(200, map[string]any{"object": "list", "model": c.ask.Model,
		"data":  []any{map[string]any{"object": "embedding", "index": 0, "embedding": vector}},
		"usage": map[string]int{"prompt_tokens": promptTokens, "total_tokens": promptTokens}})
}
