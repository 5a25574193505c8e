package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/fairway-edge/fairway/tunnel"
)

// maxBuffered bounds the request bodies that one hub holds in memory together, in bytes.
const maxBuffered = 512 << 20

// bodyStep is the least by which a body of unknown length grows.
const bodyStep = 64 << 10

// budget counts bytes of buffered bodies.
type budget struct{ used atomic.Int64 }

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > maxBuffered {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// readBody reads the whole body before a node is chosen: HTTP/1 notices that a client left only then, and the model's name may stand
// at the end. release gives the memory's budget back.
func (x *exchange) readBody() (body []byte, release func(), err error) {
	limit, b := x.h.opts.MaxBody, &x.h.hub.bodies
	if x.r.ContentLength > limit {
		return nil, nil, fail(codeBodyTooLarge, "request body of %d bytes; at most %d are allowed", x.r.ContentLength, limit)
	}
	// Reserved as it grows: a declaration costs nothing, and gives nothing to who only declares.
	body = make([]byte, 0, min(max(x.r.ContentLength, 512), bodyStep)+1)
	reserved := int64(cap(body))
	if !b.take(reserved) {
		return nil, nil, errBodies
	}
	release = func() { b.give(reserved) }
	for {
		n, err := x.r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			err = fail(codeBodyTooLarge, "request body over %d bytes", limit)
		}
		if errors.Is(err, io.EOF) {
			x.bodyRead = true
			return body, release, nil
		}
		if err == nil && len(body) == cap(body) {
			grow := int64(max(cap(body), bodyStep))
			if left := x.r.ContentLength - int64(cap(body)); left > 0 {
				grow = min(grow, left+1) // what was declared is what was reserved; one more byte meets the end
			}
			if !b.take(grow) {
				err = errBodies
			} else {
				reserved += grow
				body = append(make([]byte, 0, int64(cap(body))+grow), body...)
			}
		}
		if err != nil {
			release()
			return nil, nil, x.bodyError(err)
		}
	}
}

var errBodies = fail(codeQueueFull, "server busy: too many request bodies are held in memory")

// bodyError says what a failed read means.
func (x *exchange) bodyError(err error) error {
	var f *failure
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &tooLarge):
		return fail(codeBodyTooLarge, "request body over %d bytes", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded): // before the context, which a server's own time-out ends as well: this client is still there
		return fail(tunnel.CodeClientBody, "the request body did not come in time")
	case x.r.Context().Err() != nil:
		return fail(tunnel.CodeCanceled, "the client went away")
	}
	return fail(codeBadRequest, "the request body could not be read")
}
