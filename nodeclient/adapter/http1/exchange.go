package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// maxInline is the largest body that is read whole and sent with the head in
// one write. It fits the socket buffers of both ends, so the write does not
// wait for the server, and most requests need no goroutine.
const maxInline = 64 << 10

// Faults of the caller.
var (
	errUsed   = errors.New("connection already used")
	errShared = errors.New("a credential needs a connection of its own")
)

// exchange is one request on one connection: the adapter.Conn that Connect
// returns, and the body of its answer. The connection goes back to the pool
// exactly if the request was sent whole, the answer was read to its end, and
// nothing of the server asks for a close.
type exchange struct {
	s   *Server
	c   *conn
	own bool // close the connection whatever happens

	ctx    context.Context
	stop   func() bool  // ends the watch on ctx; false: it has fired
	begun  bool         // Do was called
	over   atomic.Bool  // the connection is closed or given back
	sent   atomic.Bool  // the request was written whole
	source atomic.Value // sourceError: why the request's body could not be read
	answer answer
}

type sourceError struct{ error }

// Close gives up a connection on which nothing was sent.
func (x *exchange) Close() {
	if !x.begun && x.over.CompareAndSwap(false, true) {
		x.begun = true
		x.c.shut()
		x.c.recycle()
	}
}

// Do implements adapter.Conn. A body of at most 64 KiB and known length is
// read before the first byte is sent: if its source fails, nothing ran.
func (x *exchange) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	if r.Credential != nil {
		defer r.Credential.Clear() // whatever happens; open does it long before the answer comes
	}
	if x.begun {
		return nil, fmt.Errorf("asking %s: %w: %w", x.s.origin, adapter.ErrNotSent, errUsed)
	}
	x.begun, x.ctx = true, ctx
	x.stop = context.AfterFunc(ctx, x.c.shut)
	if err := x.open(r); err != nil {
		x.fail()
		return nil, fmt.Errorf("asking %s: %w: %w", x.s.origin, adapter.ErrNotSent, x.reason(err))
	}
	resp, err := x.readAnswer(r.Method)
	if err != nil {
		x.fail()
		return nil, fmt.Errorf("asking %s: %w", x.s.origin, x.reason(err))
	}
	return resp, nil
}

// open sends the head, with a small body behind it, and starts sending a large
// one. Its errors mean that no byte was written. A write that failed half-way
// is no error yet: the server may have answered before it hung up.
func (x *exchange) open(r *adapter.Request) error {
	if r.Credential != nil && !x.own {
		return errShared
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	head, err := appendHead((*buf)[:0], x.s.host, r, x.own)
	if err != nil {
		return err
	}
	end := len(head)
	head = append(head, "\r\n"...)
	inline := r.Body != nil && r.Length >= 0 && r.Length <= maxInline
	if inline {
		if head, err = appendBody(head, r); err != nil {
			return err
		}
	}
	*buf = head
	if err := x.ctx.Err(); err != nil { // the watch may not have run yet
		return err
	}
	var n int64
	if r.Credential == nil {
		n, err = written(x.c.Write(head))
	} else {
		n, err = x.inject(head[:end], head[end:], r.Credential)
	}
	switch {
	case err != nil && n == 0:
		return err
	case err != nil:
	case r.Body == nil || inline:
		x.sent.Store(true)
	default:
		go x.send(r.Body, r.Length)
	}
	return nil
}

func written(n int, err error) (int64, error) { return int64(n), err }

func appendBody(b []byte, r *adapter.Request) ([]byte, error) {
	h, n := len(b), int(r.Length)
	if cap(b)-h < n {
		b = append(make([]byte, 0, h+n), b...)
	}
	b = b[:h+n]
	if _, err := io.ReadFull(r.Body, b[h:]); err != nil {
		return b[:h], fmt.Errorf("reading request body: %w", noEOF(err))
	}
	return b, nil
}

// noEOF keeps a source that ended early from looking like a normal end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// buffers holds what one write takes: a head and a small body, or one piece of
// a large one.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

const (
	pieceSize = 32 << 10
	pieceHead = 8 // hexadecimal length and CRLF before a chunk
)

var pieces = sync.Pool{New: func() any { b := make([]byte, pieceHead+pieceSize+2); return &b }}

// send writes a large body while Do waits for the answer. It ends when the body
// is sent, its source fails, or the connection is closed. A failed source
// closes the connection, so that the server never takes a part for the whole;
// a failed write leaves that to the reader, who may yet find an answer.
func (x *exchange) send(body io.Reader, length int64) {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	left := length
	for left != 0 {
		room := (*buf)[pieceHead : pieceHead+pieceSize]
		if length >= 0 && int64(len(room)) > left {
			room = room[:left]
		}
		n, readErr := body.Read(room)
		if n > 0 && x.writePiece(*buf, n, length < 0) != nil {
			return
		}
		if length >= 0 {
			left -= int64(n)
		}
		if readErr == io.EOF && length < 0 {
			break
		}
		if readErr != nil && left != 0 {
			x.source.Store(sourceError{fmt.Errorf("reading request body: %w", noEOF(readErr))})
			x.c.shut()
			return
		}
	}
	if length < 0 {
		if _, err := io.WriteString(x.c, "0\r\n\r\n"); err != nil {
			return
		}
	}
	x.sent.Store(true)
}

// writePiece writes n bytes of buf, which begin at pieceHead, in one write,
// framed as a chunk if asked to.
func (x *exchange) writePiece(buf []byte, n int, chunked bool) error {
	from, to := pieceHead, pieceHead+n
	if chunked {
		var hex [pieceHead]byte
		h := append(strconv.AppendInt(hex[:0], int64(n), 16), '\r', '\n')
		from -= len(h)
		copy(buf[from:], h)
		to += copy(buf[to:], "\r\n")
	}
	_, err := x.c.Write(buf[from:to])
	return err
}

// reason prefers the cause to its effect: the end of ctx and a failed source
// both show as a closed connection.
func (x *exchange) reason(err error) error {
	if s, ok := x.source.Load().(sourceError); ok {
		return s.error
	}
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	return err
}

// fail closes the connection. Only for the goroutine that reads.
func (x *exchange) fail() {
	if x.over.CompareAndSwap(false, true) {
		x.stop()
		x.c.shut()
		x.c.recycle()
	}
}

// finish ends the exchange after a complete answer.
func (x *exchange) finish(reuse bool) {
	if !x.over.CompareAndSwap(false, true) {
		return
	}
	// Without a true from stop, the watch may close the connection any moment.
	if x.stop() && !x.own && reuse && x.sent.Load() && x.c.br.Buffered() == 0 {
		x.s.idle.put(x.c)
		return
	}
	x.c.shut()
	x.c.recycle()
}

var _ adapter.Conn = (*exchange)(nil)
