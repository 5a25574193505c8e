package store_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fairway-edge/fairway/tests/freeport"
)

// server is a process of redis-server that a test has started.
type server struct {
	t    testing.TB
	addr string
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
}

// output collects what a process prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// startRedis starts a server that keeps nothing, on a free port, until the test ends.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	return startRedisAt(t, "", args...)
}

// startRedisAt starts a server on a port, or a free one. The first of args may be a file.
func startRedisAt(t testing.TB, port string, args ...string) *server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is missing: install the package redis-server, as tests/run.sh does")
	}
	for range 5 {
		at := port
		if at == "" {
			at = freePort(t)
		}
		all := []string{"--port", at, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--enable-debug-command", "local", "--save", "", "--appendonly", "no"}
		if len(args) > 0 && strings.HasSuffix(args[0], ".conf") {
			all = append(append(args[:1:1], all...), args[1:]...)
		} else {
			all = append(all, args...)
		}
		if s := launch(t, program, at, all); s != nil {
			return s
		}
	}
	t.Fatal("redis-server does not start")
	return nil
}

// startSentinel starts a Sentinel, which keeps its state in its configuration.
func startSentinel(t testing.TB, conf string) *server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	must(t, err)
	for range 5 {
		at := freePort(t)
		path := file(t, "sentinel.conf", "port "+at+"\nbind 127.0.0.1\ndir "+t.TempDir()+"\n"+conf)
		if s := launch(t, program, at, []string{path, "--sentinel"}); s != nil {
			return s
		}
	}
	t.Fatal("no Sentinel starts")
	return nil
}

// launch starts a process until the test ends. Nil means that it has ended at once: its port was taken.
func launch(t testing.TB, program, port string, args []string) *server {
	t.Helper()
	s := &server{t: t, addr: net.JoinHostPort("127.0.0.1", port), out: &output{}, done: make(chan struct{})}
	s.cmd = exec.CommandContext(context.Background(), program, args...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	must(t, s.cmd.Start())
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(s.kill)
	if s.listens() {
		return s
	}
	t.Logf("%s did not start: %s", program, s.out)
	s.kill()
	return nil
}

func freePort(t testing.TB) string {
	t.Helper()
	return strconv.Itoa(freeport.Get(t))
}

// listens waits until the server takes connections, or has ended.
func (s *server) listens() bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		select {
		case <-s.done:
			return false
		default:
		}
		if c, err := net.Dial("tcp", s.addr); err == nil {
			c.Close()
			return true
		}
	}
	return false
}

// kill ends the process without warning.
func (s *server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	<-s.done
}

// freeze stops the process without ending it, until thaw.
func (s *server) freeze() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *server) thaw()   { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

func (s *server) url() string { return "redis://" + s.addr }

// do sends one command and gives its answer as text.
func (s *server) do(args ...any) string {
	s.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return fmt.Sprint(v)
}

// info is a field of the server's INFO.
func (s *server) info(section, field string) string {
	s.t.Helper()
	for line := range strings.Lines(s.do("info", section)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
			return value
		}
	}
	return ""
}

// file writes a file for the test.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// eventually waits for what other processes bring about.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v: %s", within, what)
}
