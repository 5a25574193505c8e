package store_test

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// mode is how a proxy treats what passes through it.
type mode int

const (
	pass     mode = iota
	swallow       // everything, in both directions, on old and new connections
	silence       // what the server answers
	slow          // a second late
	refuse        // connections, and ends those there are
	loading       // answers itself, as a server does that reads its data
	readonly      // or one that is a replica and lets no write pass
)

// proxy stands between a store and its server, and can be told to misbehave.
type proxy struct {
	addr, target string

	mu    sync.Mutex
	mode  mode              // guarded by mu
	count int               // guarded by mu: connections so far
	conns map[net.Conn]bool // guarded by mu
}

func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{addr: l.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.set(refuse)
		wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "redis://" + p.addr }

// set changes the mode. Connections that have lost something stay broken.
func (p *proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	if m == refuse {
		for c := range p.conns {
			c.Close()
		}
	}
}

func (p *proxy) now() mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

// accepted is how many connections there have been.
func (p *proxy) accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// open is how many connections there are.
func (p *proxy) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

func (p *proxy) keep(c net.Conn, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on && p.mode == refuse {
		c.Close()
	}
	if on {
		p.conns[c] = true
	} else {
		delete(p.conns, c)
		c.Close()
	}
}

func (p *proxy) serve(client net.Conn) {
	p.keep(client, true)
	defer p.keep(client, false)
	p.mu.Lock()
	p.count++
	p.mu.Unlock()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	p.keep(server, true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.pump(server, client, false)
		client.Close()
	}()
	p.pump(client, server, true)
	p.keep(server, false)
	<-done
}

func (p *proxy) pump(from, to net.Conn, up bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		m := p.now()
		switch {
		case m == swallow, m == silence && !up:
			continue
		case m == slow && !up:
			time.Sleep(time.Second)
		case up && (m == loading || m == readonly && bytes.Contains(bytes.ToLower(buf[:n]), []byte("eval"))):
			text := "-LOADING Redis is loading the dataset in memory\r\n"
			if m == readonly {
				text = "-READONLY You can't write against a read only replica.\r\n"
			}
			if _, err := from.Write([]byte(text)); err != nil {
				return
			}
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
