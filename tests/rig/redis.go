package rig

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
)

// Redis is a redis-server that keeps nothing, and a way to it that can be cut.
type Redis struct {
	*Process
	*Way
	t    testing.TB
	port int
}

// NewRedis starts one, until the test ends.
func NewRedis(t testing.TB) *Redis {
	t.Helper()
	r := &Redis{t: t, port: freeport.Get(t)}
	r.Way = r.NewWay()
	r.Start()
	return r
}

// NewWay is a further way to the server.
func (r *Redis) NewWay() *Way {
	r.t.Helper()
	return newWay(r.t, fmt.Sprintf("127.0.0.1:%d", r.port))
}

// Start starts the process, again after a Kill: empty.
func (r *Redis) Start() {
	r.t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		r.t.Skip("redis-server is missing: install the package redis-server, as tests/run.sh does")
	}
	r.Process = start(r.t, "redis", nil, program, "--port", fmt.Sprint(r.port), "--bind", "127.0.0.1", "--dir", r.t.TempDir(), "--save", "", "--appendonly", "no")
	Eventually(r.t, 10*time.Second, "redis answers", func() bool { return r.Command("PING") == "+PONG" })
}

// URL is where gateways find the server by this way.
func (w *Way) URL() string { return "redis://" + w.front.Addr().String() }

// Command sends one command of simple words, not by the way that can be cut, and returns the first line of the answer; empty when there is none.
func (r *Redis) Command(words string) string {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", r.port), time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, words+"\r\n"); err != nil {
		return ""
	}
	buf := make([]byte, 4096)
	n, _ := c.Read(buf)
	for i := range n {
		if buf[i] == '\r' {
			return string(buf[:i])
		}
	}
	return ""
}

// Cut ends the connections by the way and refuses new ones; Hole lets them stand and swallows what they carry; Mend undoes both.
func (w *Way) Cut()  { w.set(wayCut) }
func (w *Way) Hole() { w.set(wayHole) }
func (w *Way) Mend() { w.set(wayOpen) }

// PointTo makes the way lead to another server: connections end, new ones go there.
func (w *Way) PointTo(other *Redis) {
	w.set(wayCut)
	w.mu.Lock()
	w.to = fmt.Sprintf("127.0.0.1:%d", other.port)
	w.mu.Unlock()
	w.set(wayOpen)
}

// Freeze and Thaw stop and continue the process.
func (r *Redis) Freeze() { r.Signal(syscall.SIGSTOP) }
func (r *Redis) Thaw()   { r.Signal(syscall.SIGCONT) }

const (
	wayOpen = iota
	wayCut
	wayHole
)

// Way passes TCP connections on, or does not.
type Way struct {
	front net.Listener
	wg    sync.WaitGroup

	mu    sync.Mutex
	to    string                // guarded by mu
	mode  int                   // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu
}

func newWay(t testing.TB, to string) *Way {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Way{to: to, front: front, conns: map[net.Conn]struct{}{}}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		front.Close()
		w.set(wayCut)
		w.wg.Wait()
	})
	return w
}

func (w *Way) set(mode int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mode == mode {
		return
	}
	// What stood in a hole has lost bytes: it is of no use any more.
	if mode == wayCut || w.mode == wayHole {
		for c := range w.conns {
			c.Close()
		}
	}
	w.mode = mode
}

func (w *Way) open() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mode == wayOpen
}

func (w *Way) accept() {
	for {
		c, err := w.front.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.serve(c) })
	}
}

// keep remembers c, to be closed with the way.
func (w *Way) keep(c net.Conn) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mode == wayCut {
		return false
	}
	w.conns[c] = struct{}{}
	return true
}

func (w *Way) drop(c net.Conn) {
	c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

func (w *Way) serve(c net.Conn) {
	defer w.drop(c)
	if !w.keep(c) {
		return
	}
	w.mu.Lock()
	to := w.to
	w.mu.Unlock()
	d, err := net.DialTimeout("tcp", to, time.Second)
	if err != nil {
		return
	}
	defer w.drop(d)
	if !w.keep(d) {
		return
	}
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { w.copy(c, d); c.Close() })
	w.copy(d, c)
	d.Close()
	c.Close()
}

// copy passes bytes on while the way is open, and loses them in a hole.
func (w *Way) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && w.open() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
