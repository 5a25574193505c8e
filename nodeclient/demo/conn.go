package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

func notSent(err error) error { return fmt.Errorf("asking the demo: %w: %w", adapter.ErrNotSent, err) }

// conn carries one request to a handler in this process. The handler runs in a
// goroutine that ends with the answer, with the end of ctx, or with the close
// of the body: each closes the pipe that it writes to and ends its context.
type conn struct {
	handler http.Handler
	used    bool
}

func (c *conn) Close() { c.used = true }

func (c *conn) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	switch {
	case r.Credential != nil:
		r.Credential.Clear()
		return nil, notSent(errors.New("the demo takes no credential"))
	case c.used:
		return nil, notSent(errors.New("connection already used"))
	}
	c.used = true
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := request(ctx, r)
	if err != nil {
		cancel(err)
		return nil, notSent(err)
	}
	body, w := io.Pipe()
	out := &writer{header: http.Header{}, head: make(chan *adapter.Response, 1), body: body, pipe: w, hangUp: cancel}
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer cancel(nil)
		c.handler.ServeHTTP(out, req)
		if ctx.Err() != nil { // the handler gave up: a cut answer, not an empty one
			w.CloseWithError(context.Cause(ctx))
			return
		}
		out.WriteHeader(http.StatusOK)
		w.Close()
	}()
	select {
	case resp := <-out.head:
		return resp, nil
	case <-ctx.Done():
	}
	select {
	case resp := <-out.head: // answered and ended at once
		return resp, nil
	default:
		return nil, fmt.Errorf("asking the demo: %w", context.Cause(ctx))
	}
}

func request(ctx context.Context, r *adapter.Request) (*http.Request, error) {
	body := r.Body
	if body != nil && r.Length >= 0 {
		body = io.LimitReader(body, r.Length)
	}
	return http.NewRequestWithContext(ctx, r.Method, r.Path, body)
}

// writer is the handler's ResponseWriter: the head goes to Do, the body into
// the pipe.
type writer struct {
	header http.Header
	once   sync.Once
	head   chan *adapter.Response
	body   *io.PipeReader
	pipe   *io.PipeWriter
	hangUp context.CancelCauseFunc
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	w.once.Do(func() {
		var hs []adapter.Header
		for name, values := range w.header {
			for _, v := range values {
				hs = append(hs, adapter.Header{Name: name, Value: v})
			}
		}
		w.head <- &adapter.Response{Status: status, Headers: hs, Body: answerBody{w}, Trailers: func() []adapter.Header { return nil }}
	})
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(p)
}

// answerBody is the reading end; its Close tells the handler to stop.
type answerBody struct{ w *writer }

func (b answerBody) Read(p []byte) (int, error) { return b.w.body.Read(p) }

func (b answerBody) Close() error {
	b.w.hangUp(http.ErrBodyReadAfterClose)
	return b.w.body.Close()
}

var _ adapter.Conn = (*conn)(nil)
