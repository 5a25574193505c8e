package fakeollama

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// ask is a request's body. encoding/json reads it as Ollama does: names match
// in any case, the last of two wins, what follows the first value is ignored.
type ask struct {
	Model       string                     `json:"model"`
	Name        string                     `json:"name"`
	Stream      *bool                      `json:"stream"`
	Prompt      any                        `json:"prompt"`
	Messages    []json.RawMessage          `json:"messages"`
	MaxTokens   int                        `json:"max_tokens"`
	KeepAlive   any                        `json:"keep_alive"`
	Options     map[string]json.RawMessage `json:"options"`
	Source      string                     `json:"source"`
	Destination string                     `json:"destination"`
	From        string                     `json:"from"`
	Files       map[string]string          `json:"files"`

	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	knobs map[string]json.RawMessage // every top-level key as it was spelled
}

// decode reads the body into c.ask, or answers 400.
func (c *call) decode() bool {
	err := json.NewDecoder(bytes.NewReader(c.body)).Decode(&c.ask)
	switch {
	case errors.Is(err, io.EOF):
		c.fail(http.StatusBadRequest, "missing request body")
		return false
	case err != nil:
		c.fail(http.StatusBadRequest, err.Error())
		return false
	}
	_ = json.NewDecoder(bytes.NewReader(c.body)).Decode(&c.ask.knobs) // cannot fail where the other did not
	return true
}

// named decodes the body of an endpoint that takes model, else name. When it
// is not ok the request is answered.
func (c *call) named() (name string, ok bool, err error) {
	if !c.decode() {
		return "", false, nil
	}
	name = c.ask.Model
	if name == "" {
		name = c.ask.Name
	}
	c.s.note(c.rec, func(r *Record) { r.Model = name })
	if strings.TrimSpace(name) == "" {
		return "", false, c.fail(http.StatusBadRequest, "invalid model name")
	}
	return name, true, nil
}

// knob reads t_NAME from the body or from its options into v, if it is there.
func (a *ask) knob(name string, v any) {
	raw, ok := a.knobs["t_"+name]
	if !ok {
		raw, ok = a.Options["t_"+name]
	}
	if ok {
		_ = json.Unmarshal(raw, v) // a wrong type leaves the default
	}
}

func (a *ask) number(name string, def float64) float64 {
	a.knob(name, &def)
	return def
}

func (a *ask) text(name, def string) string {
	a.knob(name, &def)
	return def
}

// keep is how long the model stays loaded: Ollama's keep_alive in its forms.
func (a *ask) keep() time.Duration {
	switch v := a.KeepAlive.(type) {
	case float64:
		if v < 0 {
			return 100 * 365 * 24 * time.Hour
		}
		return time.Duration(v * float64(time.Second))
	case string:
		if d, err := time.ParseDuration(v); err == nil {
			return d
		}
	}
	return 5 * time.Minute
}
