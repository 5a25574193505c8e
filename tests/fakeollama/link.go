package fakeollama

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxHead = 64 << 10 // of a request
	maxKeep = 96 << 20 // body bytes kept for parsing
)

var linkNumber atomic.Int64

// link is one accepted connection.
type link struct {
	s      *Server
	nc     net.Conn
	br     *bufio.Reader
	number int
}

func newLink(s *Server, nc net.Conn) *link {
	return &link{s: s, nc: nc, br: bufio.NewReaderSize(nc, maxHead), number: int(linkNumber.Add(1))}
}

// reset drops the connection with an RST.
func (l *link) reset() {
	if tc, ok := l.nc.(*net.TCPConn); ok {
		tc.SetLinger(0)
	}
	l.nc.Close()
}

// serve answers requests until the connection is over.
func (l *link) serve() {
	defer func() {
		l.nc.Close()
		l.s.mu.Lock()
		delete(l.s.links, l)
		l.s.changed()
		l.s.mu.Unlock()
	}()
	for l.one() {
	}
}

// one answers a request. It returns whether the connection goes on.
func (l *link) one() bool {
	c, ok := l.receive()
	if !ok {
		return false
	}
	defer l.s.note(c.rec, func(r *Record) { r.End = l.s.now() })
	if c.fault.early() {
		c.fault.run(c)
		return false
	}
	if !l.readBody(c) {
		l.s.note(c.rec, func(r *Record) { r.ClientGone = l.s.now() })
		return false
	}
	quiet, err := l.answer(c)
	if err != nil {
		l.s.note(c.rec, func(r *Record) { r.Err = err.Error() })
		return false
	}
	return !c.req.Close && l.stay(quiet)
}

// answer runs the call while it watches the connection, as net/http does: its
// end, also of the peer's sending half alone, cancels the call. quiet is closed
// when the watch has ended, by the next request or by the connection's end.
func (l *link) answer(c *call) (quiet chan struct{}, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.ctx = ctx
	quiet = make(chan struct{})
	var running atomic.Bool
	running.Store(true)
	l.s.wg.Go(func() {
		defer close(quiet)
		if _, err := l.br.Peek(1); err != nil && running.Load() {
			l.s.note(c.rec, func(r *Record) { r.ClientGone = l.s.now() })
			cancel()
		}
	})
	l.s.edit(func(st *state) { st.inflight++ })
	err = c.run()
	running.Store(false)
	l.s.edit(func(st *state) { st.inflight-- })
	if ctx.Err() != nil && err == nil {
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, context.Canceled):
		c.canceled()
	case err != nil && !errors.Is(err, errBroken): // the write noticed it before the watch
		l.s.note(c.rec, func(r *Record) {
			if r.ClientGone == 0 {
				r.ClientGone = l.s.now()
			}
		})
	}
	return quiet, err
}

// stay waits for the next request, as long as an idle connection may.
func (l *link) stay(quiet chan struct{}) bool {
	var timeout <-chan time.Time
	if d := l.s.opts.IdleClose; d != 0 {
		timeout = time.After(max(d, 0))
	}
	select {
	case <-quiet:
		return true // an ended connection shows at the next read
	case <-timeout:
		return false
	}
}

// receive reads the head and records it byte for byte.
func (l *link) receive() (*call, bool) {
	raw, err := l.peekHead()
	if err != nil {
		return nil, false
	}
	rec := parseHead(raw)
	req, err := http.ReadRequest(l.br)
	if err != nil {
		io.WriteString(l.nc, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		rec.Err = err.Error()
	}
	rec.At, rec.Conn, rec.Framing = l.s.now(), l.number, framing(req)
	c := &call{s: l.s, link: l, rec: rec, req: req}
	l.s.edit(func(st *state) {
		st.log = append(st.log, rec)
		if req != nil {
			c.fault = st.takeFault(rec.Path)
		}
	})
	return c, req != nil
}

// peekHead returns a copy of the head without consuming it.
func (l *link) peekHead() ([]byte, error) {
	n := 1
	for {
		b, err := l.br.Peek(n)
		if i := bytes.Index(b, []byte("\r\n\r\n")); i >= 0 {
			return bytes.Clone(b[:i]), nil
		}
		if err != nil {
			return nil, err
		}
		n = max(len(b)+1, l.br.Buffered())
	}
}

func parseHead(raw []byte) *Record {
	lines := strings.Split(string(raw), "\r\n")
	rec := &Record{}
	if p := strings.SplitN(lines[0], " ", 3); len(p) == 3 {
		rec.Method, rec.Target, rec.Proto = p[0], p[1], p[2]
	}
	rec.Path, _, _ = strings.Cut(rec.Target, "?")
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		rec.Headers = append(rec.Headers, [2]string{name, value})
		switch strings.ToLower(name) {
		case "host":
			rec.Host = value
		case "origin":
			rec.Origin = value
		case "x-test-id":
			rec.ID = value
		}
	}
	return rec
}

func framing(req *http.Request) string {
	switch {
	case req == nil:
		return "broken"
	case req.ContentLength < 0:
		return "chunked"
	case req.Header.Get("Content-Length") != "" || req.ContentLength > 0:
		return fmt.Sprintf("length %d", req.ContentLength)
	}
	return "none"
}

// readBody reads the body, whole unless it is a blob. False: the peer left
// before its end.
func (l *link) readBody(c *call) bool {
	if strings.EqualFold(c.req.Header.Get("Expect"), "100-continue") {
		io.WriteString(l.nc, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	sum, keep := sha256.New(), &prefix{max: maxKeep}
	if strings.HasPrefix(c.rec.Path, "/api/blobs/") {
		keep.max = 160
	}
	n, err := io.Copy(io.MultiWriter(sum, keep), c.req.Body)
	c.body = keep.b
	l.s.note(c.rec, func(r *Record) {
		r.Len, r.SHA256 = n, hex.EncodeToString(sum.Sum(nil))
		r.Head, r.BodyComplete = string(keep.b[:min(len(keep.b), 160)]), err == nil
	})
	return err == nil
}

// prefix keeps the first max bytes written to it.
type prefix struct {
	b   []byte
	max int
}

func (p *prefix) Write(b []byte) (int, error) {
	p.b = append(p.b, b[:min(len(b), p.max-len(p.b))]...)
	return len(b), nil
}

func equalFold(a, b string) bool { return strings.EqualFold(a, b) }
