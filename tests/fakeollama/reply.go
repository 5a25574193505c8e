package fakeollama

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// call is one request being answered, and the writer of its answer.
type call struct {
	s    *Server
	link *link
	rec  *Record
	req  *http.Request
	body []byte
	ctx  context.Context // ends when the caller is gone

	fault   *Fault
	ask     ask // of an inference
	started bool
	chunked bool
}

// header is one line of an answer's head.
type header [2]string

func contentType(v string) header { return header{"Content-Type", v} }

const (
	jsonType   = "application/json; charset=utf-8"
	textType   = "text/plain; charset=utf-8"
	ndjsonType = "application/x-ndjson"
	sseType    = "text/event-stream"
)

// head writes status and headers. length < 0 makes the body chunked.
func (c *call) head(status int, length int64, hs ...header) error {
	c.started, c.chunked = true, length < 0
	c.s.note(c.rec, func(r *Record) { r.Status = status })
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	for _, h := range hs {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	if o := c.rec.Origin; o != "" && originAllowed(o) {
		fmt.Fprintf(&b, "Access-Control-Allow-Origin: %s\r\n", o)
	}
	if c.chunked {
		b.WriteString("Transfer-Encoding: chunked\r\n")
	} else {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", length)
	}
	b.WriteString("\r\n")
	return c.raw(b.String())
}

// raw writes bytes to the connection as they are.
func (c *call) raw(s string) error {
	_, err := c.link.nc.Write([]byte(s))
	return err
}

// write writes a part of the body, as one chunk if the body is chunked.
func (c *call) write(p []byte) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	out := p
	if c.chunked {
		out = fmt.Appendf(make([]byte, 0, len(p)+16), "%x\r\n", len(p))
		out = append(append(out, p...), "\r\n"...)
	}
	if _, err := c.link.nc.Write(out); err != nil {
		return err
	}
	c.s.note(c.rec, func(r *Record) { r.Sent, r.LastWrite = r.Sent+int64(len(p)), c.s.now() })
	return nil
}

// end writes the last chunk.
func (c *call) end() error {
	if !c.chunked {
		return nil
	}
	return c.raw("0\r\n\r\n")
}

// whole answers with a body of known length; none for HEAD.
func (c *call) whole(status int, body []byte, hs ...header) error {
	if err := c.head(status, int64(len(body)), hs...); err != nil || c.rec.Method == http.MethodHead || len(body) == 0 {
		return err
	}
	return c.write(body)
}

func (c *call) json(status int, v any) error {
	return c.whole(status, encode(v), contentType(jsonType))
}

func (c *call) text(status int, body string, hs ...header) error {
	return c.whole(status, []byte(body), append(hs, contentType(textType))...)
}

// fail answers with an error in the shape of the path's family.
func (c *call) fail(status int, text string) error {
	return c.json(status, errorShape(c.rec.Path, status, text))
}

func errorShape(path string, status int, text string) any {
	type object = map[string]any
	kind := "api_error"
	switch {
	case path == "/v1/messages":
		switch status {
		case 400:
			kind = "invalid_request_error"
		case 404:
			kind = "not_found_error"
		case 503:
			kind = "overloaded_error"
		}
		return object{"type": "error", "error": object{"type": kind, "message": text}, "request_id": "req_fake"}
	case strings.HasPrefix(path, "/v1/"):
		switch status {
		case 400:
			kind = "invalid_request_error"
		case 404:
			kind = "not_found_error"
		}
		return object{"error": object{"message": text, "type": kind, "param": nil, "code": nil}}
	}
	return object{"error": text}
}

// canceled answers a caller that has gone, or has closed only its sending half:
// Ollama takes both for a disconnect, and the second kind can read this.
func (c *call) canceled() {
	if !c.started {
		body := encode(errorShape(c.rec.Path, 499, "request canceled"))
		c.raw(fmt.Sprintf("HTTP/1.1 499 \r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", jsonType, len(body), body))
	}
}

// pause waits, unless the caller leaves.
func (c *call) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// encode is json.Marshal without escaping <, > and &.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
