package fakeollama

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// norm is the name by which two spellings of a model are the same.
func norm(name string) string {
	n := strings.ToLower(strings.TrimSpace(name))
	n = strings.TrimPrefix(n, "registry.ollama.ai/")
	n = strings.TrimSuffix(strings.TrimPrefix(n, "library/"), ":local")
	if !strings.Contains(n[strings.LastIndex(n, "/")+1:], ":") {
		n += ":latest"
	}
	return n
}

func (s *Server) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds(name)
}

// holds is has with s.mu held.
func (s *Server) holds(name string) bool {
	return slices.ContainsFunc(s.models, func(m string) bool { return norm(m) == norm(name) })
}

// add stores a model. s.mu is held.
func (s *Server) add(name string) {
	if !s.holds(name) {
		s.models = append(s.models, norm(name))
	}
}

func (s *Server) digest(name string) string {
	if s.opts.Digest != "" {
		return s.opts.Digest
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// entry is a model as /api/tags lists it.
func (s *Server) entry(name string) map[string]any {
	e := map[string]any{
		"name": name, "model": name, "modified_at": "2026-01-01T00:00:00Z", "size": 1000000, "digest": s.digest(name),
		"details": map[string]any{"parent_model": "", "format": "gguf", "family": "t", "families": []string{"t"},
			"parameter_size": "1B", "quantization_level": "Q4_0"},
	}
	if strings.HasSuffix(name, "-cloud") {
		e["remote_model"], e["remote_host"] = strings.TrimSuffix(name, "-cloud"), "https://ollama.com:443"
	}
	return e
}

func (c *call) version() error { return c.json(200, map[string]string{"version": c.s.opts.Version}) }

func (c *call) tags() error {
	if err := c.slow(); err != nil {
		return err
	}
	list := []any{}
	for _, m := range c.s.Stats().Models {
		list = append(list, c.s.entry(m))
	}
	return c.json(200, map[string]any{"models": list})
}

// slow waits as long as SetTagsDelay says.
func (c *call) slow() error {
	c.s.mu.Lock()
	d := c.s.tagsDelay
	c.s.mu.Unlock()
	if d == 0 {
		return nil
	}
	return c.pause(d)
}

func (c *call) ps() error {
	if err := c.slow(); err != nil {
		return err
	}
	list := []any{}
	c.s.mu.Lock()
	for _, m := range c.s.models {
		if until, ok := c.s.loaded[norm(m)]; ok {
			e := c.s.entry(m)
			delete(e, "modified_at")
			e["expires_at"], e["size_vram"], e["context_length"] = until.Format(time.RFC3339Nano), 0, 4096
			list = append(list, e)
		}
	}
	c.s.mu.Unlock()
	return c.json(200, map[string]any{"models": list})
}

func v1Entry(id string) map[string]any {
	return map[string]any{"id": id, "object": "model", "created": 1, "owned_by": "library"}
}

func (c *call) v1Models() error {
	var list []any // null when empty, as Ollama's
	for _, m := range c.s.Stats().Models {
		list = append(list, v1Entry(m))
	}
	return c.json(200, map[string]any{"object": "list", "data": list})
}

func (c *call) v1Model() error {
	name, err := url.PathUnescape(strings.TrimPrefix(c.rec.Path, "/v1/models/"))
	if err != nil || strings.Contains(name, "/") {
		return c.text(http.StatusNotFound, "404 page not found")
	}
	if !c.s.has(name) {
		return c.fail(http.StatusNotFound, fmt.Sprintf("model '%s' not found", norm(name)))
	}
	return c.json(200, v1Entry(name))
}

func (c *call) show() error {
	name, ok, err := c.named()
	if !ok {
		return err
	}
	if !c.s.has(name) {
		return c.fail(http.StatusNotFound, fmt.Sprintf("model '%s' not found", norm(name)))
	}
	return c.json(200, map[string]any{
		"details":      c.s.entry(name)["details"],
		"model_info":   map[string]any{"general.architecture": "t", "general.basename": name, "t.context_length": 4096},
		"capabilities": []string{"completion"}, "modified_at": "2026-01-01T00:00:00Z",
	})
}
