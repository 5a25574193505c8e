package http1

import (
	"bufio"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// maxIdleTime is how long a connection may wait for its next request.
	// A server, or a proxy before it, may close an idle connection just as we
	// write on it: the request is lost, nobody knows whether it ran, and a
	// POST must not be sent again (golang/go#22158). Nothing that the client
	// does closes that gap; staying far below any server's idle time-out does.
	// Dialling loopback costs about 60 µs, so a connection is worth
	// keeping only through a burst.
	maxIdleTime = 20 * time.Millisecond

	// maxIdle bounds the connections kept. More than this come back at once
	// only from a burst that is over.
	maxIdle = 256

	// readBuffer holds a head and small answers. Reads of a larger size go
	// past it straight into the caller's slice.
	readBuffer = 8 << 10
)

// conn is one connection to the server. It has one user at a time: an exchange
// or the pool.
type conn struct {
	net.Conn                 // TLS or plain
	raw      net.Conn        // the TCP connection below
	sys      syscall.RawConn // of raw; nil if it has none
	br       *bufio.Reader   // reads from this conn; nil once given back
	left     int             // bytes that the head may still take; -1: not reading a head
	readErr  error           // the first error of the connection itself
	secret   bool            // a credential went over it; only the reading goroutine's
	since    time.Time       // guarded by pool.mu: idle since
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

func newConn(nc, raw net.Conn) *conn {
	c := &conn{Conn: nc, raw: raw, left: -1, br: readers.Get().(*bufio.Reader)}
	c.br.Reset(c)
	if s, ok := raw.(syscall.Conn); ok {
		c.sys, _ = s.SyscallConn()
	}
	return c
}

// shut closes the connection at once. TLS gets no close_notify, which could
// block behind a pending write. Safe at any time, from any goroutine.
func (c *conn) shut() { c.raw.Close() }

// recycle gives the read buffer back. Only for the goroutine that reads. A
// server may have sent the credential back; then the buffer is overwritten.
func (c *conn) recycle() {
	if c.br != nil {
		if c.secret {
			c.br.Reset(zeros{})
			_, _ = c.br.Peek(c.br.Size())
		}
		c.br.Reset(nil)
		readers.Put(c.br)
		c.br = nil
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// pool keeps idle connections, the latest on top. It has no goroutine: a timer
// sweeps it while it holds anything.
type pool struct {
	mu    sync.Mutex
	conns []*conn     // guarded by mu; oldest first
	timer *time.Timer // guarded by mu
	armed bool        // guarded by mu: the timer will fire
}

// take returns the connection that was idle for the shortest time and is still
// open, or nil.
func (p *pool) take() *conn {
	for {
		c := p.pop()
		if c == nil || alive(c) {
			return c
		}
		c.shut()
		c.recycle()
	}
}

func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns)
	if n == 0 || time.Since(p.conns[n-1].since) > maxIdleTime {
		return nil // the sweep closes them
	}
	c := p.conns[n-1]
	p.conns[n-1], p.conns = nil, p.conns[:n-1]
	return c
}

// put keeps c, or closes it if enough are kept.
func (p *pool) put(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) >= maxIdle {
		c.shut()
		c.recycle()
		return
	}
	c.since = time.Now()
	p.conns = append(p.conns, c)
	if p.armed {
		return
	}
	p.armed = true
	if p.timer == nil {
		p.timer = time.AfterFunc(maxIdleTime, p.sweep)
	} else {
		p.timer.Reset(maxIdleTime)
	}
}

// sweep closes what has been idle for too long.
func (p *pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.conns) && time.Since(p.conns[n].since) >= maxIdleTime {
		p.conns[n].shut()
		p.conns[n].recycle()
		n++
	}
	rest := copy(p.conns, p.conns[n:])
	clear(p.conns[rest:])
	p.conns = p.conns[:rest]
	if p.armed = rest > 0; p.armed {
		p.timer.Reset(maxIdleTime - time.Since(p.conns[0].since))
	}
}
