package fakeollama

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

var digestForm = regexp.MustCompile(`^sha256[:-][0-9a-fA-F]{64}$`)

// blob answers HEAD by what is there, and POST by the digest of what came.
// The body was hashed as it arrived and not kept.
func (c *call) blob() error {
	d := strings.TrimPrefix(c.rec.Path, "/api/blobs/")
	if !digestForm.MatchString(d) {
		return c.fail(http.StatusBadRequest, "invalid digest format")
	}
	d = strings.ToLower(strings.Replace(d, "-", ":", 1))
	got := "sha256:" + c.rec.SHA256
	c.s.mu.Lock()
	_, there := c.s.blobs[d]
	if c.rec.Method == http.MethodPost && !there {
		c.s.blobs[got] = c.rec.Len // under its true digest, also if that is not the one named
	}
	c.s.mu.Unlock()
	switch {
	case there:
		return c.head(http.StatusOK, 0)
	case c.rec.Method == http.MethodHead:
		return c.head(http.StatusNotFound, 0)
	case got != d:
		return c.fail(http.StatusBadRequest, fmt.Sprintf("digest mismatch, expected %q, got %q", d, got))
	}
	return c.head(http.StatusCreated, 0)
}

// progress streams statuses, the last one "success" after done ran; with
// stream:false only that.
func (c *call) progress(done func(), statuses ...string) error {
	if c.ask.Stream != nil && !*c.ask.Stream {
		done()
		return c.json(200, map[string]string{"status": "success"})
	}
	if err := c.head(200, -1, contentType(ndjsonType)); err != nil {
		return err
	}
	for _, st := range statuses {
		if err := c.write(append(encode(map[string]string{"status": st}), '\n')); err != nil {
			return err
		}
		if err := c.pause(50 * time.Millisecond); err != nil {
			return err
		}
	}
	done()
	if err := c.write([]byte(`{"status":"success"}` + "\n")); err != nil {
		return err
	}
	return c.end()
}

func (c *call) pull() error {
	name, ok, err := c.named()
	if !ok {
		return err
	}
	return c.progress(func() { c.s.edit(func(*state) { c.s.add(name) }) }, "pulling manifest", "verifying sha256 digest")
}

func (c *call) create() error {
	name, ok, err := c.named()
	if !ok {
		return err
	}
	for _, d := range c.ask.Files {
		if _, there := c.s.Stats().Blobs[strings.ToLower(d)]; !there {
			return c.fail(http.StatusBadRequest, fmt.Sprintf("blob %q not found", d))
		}
	}
	if from := c.ask.From; from != "" && !c.s.has(from) {
		return c.fail(http.StatusNotFound, fmt.Sprintf("model %q not found", from))
	}
	return c.progress(func() { c.s.edit(func(*state) { c.s.add(name) }) }, "parsing GGUF", "writing manifest")
}

func (c *call) copyModel() error {
	if !c.decode() {
		return nil
	}
	src, dst := c.ask.Source, c.ask.Destination
	switch {
	case src == "" || dst == "":
		return c.fail(http.StatusBadRequest, "source and destination are required")
	case !c.s.has(src):
		return c.fail(http.StatusNotFound, fmt.Sprintf("model %q not found", src))
	}
	c.s.edit(func(*state) { c.s.add(dst) })
	return c.head(200, 0)
}

func (c *call) deleteModel() error {
	name, ok, err := c.named()
	if !ok {
		return err
	}
	if !c.s.has(name) {
		return c.fail(http.StatusNotFound, fmt.Sprintf("model '%s' not found", name))
	}
	c.s.edit(func(st *state) {
		st.models = slices.DeleteFunc(st.models, func(m string) bool { return norm(m) == norm(name) })
		delete(st.loaded, norm(name))
	})
	return c.head(200, 0)
}
