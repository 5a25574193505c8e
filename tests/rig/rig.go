// Package rig runs whole fleets for tests: a Caddy with the module and fairway-nodes as child processes, on loopback, each with directories of
// its own. What a test starts here ends with it, and what it logged is shown when the test failed.
package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Bins are the programs under test.
type Bins struct {
	Caddy, Node string
}

var (
	buildOnce sync.Once
	built     Bins
	buildErr  error
)

// Build compiles the programs once per test process; with FAIRWAY_RACE set, under the race detector.
func Build(t testing.TB) Bins {
	t.Helper()
	buildOnce.Do(func() { built, buildErr = build() })
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return built
}

func build() (Bins, error) {
	dir, err := os.MkdirTemp("", "fairway-bins-")
	if err != nil {
		return Bins{}, err
	}
	b := Bins{Caddy: filepath.Join(dir, "caddy"), Node: filepath.Join(dir, "fairway-node")}
	for out, pkg := range map[string]string{b.Caddy: "tests/cmd/caddy", b.Node: "nodeclient/cmd/fairway-node"} {
		args := []string{"build", "-o", out}
		if os.Getenv("FAIRWAY_RACE") != "" {
			args = append(args, "-race")
		}
		cmd := exec.CommandContext(context.Background(), "go", append(args, "github.com/fairway-edge/fairway/"+pkg)...)
		if msg, err := cmd.CombinedOutput(); err != nil {
			return Bins{}, fmt.Errorf("building %s: %w\n%s", pkg, err, msg)
		}
	}
	return b, nil
}

// Process is a child that is watched.
type Process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	out  *logBuffer
	done chan struct{}
	err  error // of Wait; set before done is closed
}

// logBuffer gathers what a child prints. Safe for concurrent use.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a command until the test ends. A program that detects a data race in itself fails the test.
func start(t testing.TB, name string, env []string, path string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, name: name, cmd: exec.CommandContext(context.Background(), path, args...), out: &logBuffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Signal(syscall.SIGCONT)
		p.Signal(syscall.SIGKILL)
		<-p.done
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it has started: an Ollama's runners outlive it
		if log := p.out.String(); t.Failed() {
			t.Logf("---- %s ----\n%s", name, tail(log, 6<<10))
		} else if strings.Contains(log, "WARNING: DATA RACE") || strings.Contains(log, "\npanic: ") {
			t.Errorf("%s raced or panicked:\n%s", name, tail(log, 12<<10))
		}
	})
	return p
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Log returns what the process has printed so far.
func (p *Process) Log() string { return p.out.String() }

// Kill ends the process without warning, and waits until it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Exit waits for the process to end by itself and returns its exit code.
func (p *Process) Exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("%s has not ended within %v", p.name, within)
		return 0
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Eventually waits for a condition that another process brings about.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v: %s", within, what)
}
