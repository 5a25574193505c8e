package cases

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/fairway-edge/fairway/tests/rig"
)

var maxProcs = runtime.GOMAXPROCS(0)

// memory is a bound in KiB, wider under the race detector, whose shadow memory counts.
func memory(mib int) int {
	if raced {
		mib *= 4
	}
	return mib << 10
}

// child is a process beside those that the rig starts: a program under test in surroundings of the test's own.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	out  bytes.Buffer // guarded by mu
}

func (c *child) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *child) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// spawn runs a program until the test ends.
func spawn(t testing.TB, env []string, path string, args ...string) *child {
	t.Helper()
	c := &child{cmd: exec.CommandContext(context.Background(), path, args...), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = c, c
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait() // the tests look at ProcessState
		close(c.done)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		<-c.done
		if log := c.log(); t.Failed() {
			t.Logf("---- %s %v ----\n%s", filepath.Base(path), args, log[max(0, len(log)-4<<10):])
		}
	})
	return c
}

// gatewayEnv are the variables that the rig gives to a gateway.
func gatewayEnv(g *rig.Gateway) []string {
	return []string{"XDG_CONFIG_HOME=" + filepath.Join(g.Dir, "config"), "XDG_DATA_HOME=" + filepath.Join(g.Dir, "data"), "HOME=" + g.Dir}
}

// private returns a command line that runs script in a mount namespace of its own, with the further arguments as $1 and so on; the
// test is skipped, with the reason, where the kernel forbids that.
func private(t testing.TB, script string, args ...string) (string, []string) {
	t.Helper()
	if msg, err := exec.CommandContext(context.Background(), "unshare", "-r", "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("needs a mount namespace: unshare: %v: %s", err, msg)
	}
	return "unshare", append([]string{"-r", "-m", "sh", "-ec", script, "sh"}, args...)
}
