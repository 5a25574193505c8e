package http1

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// maxHead bounds the head of an answer, interim (1xx) ones included.
const maxHead = 64 << 10

var errLongHead = errors.New("head over 64 KiB")

// Read reads from the connection, and while a head is parsed no more than it
// may take. Only the exchange's reading goroutine comes here, through br.
func (c *conn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errLongHead
	}
	if c.left > 0 && len(p) > c.left {
		p = p[:c.left]
	}
	n, err := c.Conn.Read(p)
	if c.left > 0 {
		c.left -= n
	}
	if err != nil && c.readErr == nil {
		c.readErr = err
	}
	return n, err
}

// headRequest tells ReadResponse that the answer has no body.
var headRequest = &http.Request{Method: http.MethodHead}

// readAnswer reads the head. An error that is not the connection's own is the
// server's fault.
func (x *exchange) readAnswer(method string) (*adapter.Response, error) {
	resp, err := x.readHead(method) //nolint:bodyclose // the answer that is returned closes it
	if err != nil {
		if x.c.readErr != nil {
			return nil, fmt.Errorf("reading answer: %w", noEOF(err))
		}
		return nil, fmt.Errorf("%w: %w", adapter.ErrBadResponse, err)
	}
	out := &adapter.Response{Status: resp.StatusCode, Headers: headers(resp.Header), Body: http.NoBody, Trailers: noTrailers}
	if resp.Body == http.NoBody {
		x.finish(!resp.Close)
		return out, nil
	}
	x.answer = answer{x: x, resp: resp}
	out.Body = &x.answer
	if resp.ContentLength < 0 {
		out.Trailers = x.answer.trailers
	}
	return out, nil
}

func (x *exchange) readHead(method string) (*http.Response, error) {
	var req *http.Request
	if method == http.MethodHead {
		req = headRequest
	}
	x.c.left = maxHead
	for {
		resp, err := http.ReadResponse(x.c.br, req)
		switch {
		case err != nil:
			return nil, err
		case resp.ProtoMajor != 1:
			return nil, fmt.Errorf("protocol %q", resp.Proto)
		case resp.StatusCode/100 == 1 && resp.StatusCode != http.StatusSwitchingProtocols:
			continue
		case resp.StatusCode < 200 || resp.StatusCode > 599:
			return nil, fmt.Errorf("status %d", resp.StatusCode)
		}
		x.c.left = -1
		return resp, nil
	}
}

// headers lists what may travel on, by name.
func headers(h http.Header) []adapter.Header {
	out := make([]adapter.Header, 0, len(h))
	var nominated []string
	for _, v := range h["Connection"] {
		nominated = append(nominated, connectionNames([]adapter.Header{{Name: "Connection", Value: v}})...)
	}
	for name, values := range h {
		if dropResponseHeader(name) || holds(nominated, name) {
			continue
		}
		for _, v := range values {
			out = append(out, adapter.Header{Name: name, Value: v})
		}
	}
	slices.SortStableFunc(out, func(a, b adapter.Header) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func noTrailers() []adapter.Header { return nil }

// answer is the body of a response. ReadResponse's own body knows where it
// ends and reports a missing end as io.ErrUnexpectedEOF; its Close is never
// called, because it would read the rest instead of hanging up.
type answer struct {
	x    *exchange
	resp *http.Response
	err  error // sticky; only Read's
}

// Read returns io.EOF only after the end that the server declared. A body that
// has no declared end (HTTP/1.0) ends with the connection.
func (b *answer) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.x.over.Load() { // closed by its reader
		b.err = http.ErrBodyReadAfterClose
		return 0, b.err
	}
	n, err := b.resp.Body.Read(p)
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		b.x.finish(!b.resp.Close)
		b.err = io.EOF
	default:
		b.x.fail()
		b.err = fmt.Errorf("reading answer of %s: %w", b.x.s.origin, b.x.reason(err))
	}
	return n, b.err
}

// Close hangs up unless the body was read to its end. The read buffer is left
// to the garbage collector: a Read may be pending on it.
func (b *answer) Close() error {
	if b.x.over.CompareAndSwap(false, true) {
		b.x.stop()
		b.x.c.shut()
	}
	return nil
}

func (b *answer) trailers() []adapter.Header {
	if !errors.Is(b.err, io.EOF) {
		return nil
	}
	return headers(b.resp.Trailer)
}
