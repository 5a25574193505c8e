// Package freeport hands out ports for servers that tests start, stop and start again. A port that the kernel picks may be some connection's own a moment
// after it was given back, and a server that then starts on it fails; the ones here lie below those that Linux, macOS and Windows pick from, and no other
// process that uses this package has them.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Ports are handed out in blocks, of which a process holds one for as long as it lives. Linux picks from 32768 (net.ipv4.ip_local_port_range).
const (
	first  = 10000
	block  = 1000
	blocks = 22
	// settle is how long a child may take from its fork until it has become another program.
	settle = 50 * time.Millisecond
)

var (
	mu   sync.Mutex
	held net.Listener // guarded by mu; on the block's own first port: no other process has the block
	base int          // guarded by mu
	left []int        // guarded by mu; the ports that are handed out next
)

// Get returns a port that is free for TCP and UDP on every address. It is not given out again before the process has gone through its whole block.
// Safe for concurrent use.
func Get(t testing.TB) int {
	t.Helper()
	port, err := Next()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Addr returns 127.0.0.1 with such a port.
func Addr(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(Get(t)))
}

// Next is Get for programs that are no tests.
func Next() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	if held == nil {
		if err := hold(); err != nil {
			return 0, err
		}
	}
	if len(left) == 0 {
		survey()
	}
	if len(left) == 0 {
		return 0, errors.New("no port of this process's block is free")
	}
	port := left[0]
	left = left[1:]
	return port, nil
}

// survey looks for the free ports of the whole block. It does so beforehand, and not when one is asked for: a child that is being started has copies of all sockets until
// it has become another program, so the port of one that was closed this moment may be taken still. mu is held.
func survey() {
	for i := 1; i < block; i++ {
		if free(base + i) {
			left = append(left, base+i)
		}
	}
	time.Sleep(settle)
}

// hold takes a block. mu is held.
func hold() error {
	begin := rand.IntN(blocks)
	var last error
	for i := range blocks {
		at := first + (begin+i)%blocks*block
		l, err := net.Listen("tcp", ":"+strconv.Itoa(at)) //nolint:noctx // at once
		if err == nil {
			held, base = l, at
			return nil
		}
		last = err
	}
	return last
}

func free(port int) bool {
	addr := ":" + strconv.Itoa(port)
	l, err := net.Listen("tcp", addr) //nolint:noctx // at once
	if err != nil {
		return false
	}
	defer l.Close()
	c, err := net.ListenPacket("udp", addr) //nolint:noctx // at once
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
