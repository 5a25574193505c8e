package freeport

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Ports are free, distinct, and below those that the kernel picks.
func TestGet(t *testing.T) {
	seen := make(map[int]bool)
	for range block / 2 {
		p := Get(t)
		if seen[p] || p <= first || p >= 32768 {
			t.Fatalf("%d", p)
		}
		seen[p] = true
	}
	taken, err := net.Listen("tcp", Addr(t))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for range block {
		if p := Get(t); strconv.Itoa(p) == port {
			t.Fatal("a port that is in use was given out")
		}
	}
}

// A port can be had at once, also while other programs are being started.
func TestGetWhileProgramsStart(t *testing.T) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(stop)
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^$").Run()
			}
		})
	}
	for range 2 * block {
		addr := Addr(t)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// Two processes have no port in common.
func TestTwoProcesses(t *testing.T) {
	if os.Getenv("FREEPORT_CHILD") != "" {
		t.Log("port:", Get(t))
		return
	}
	own := Get(t)
	for range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestTwoProcesses$", "-test.v")
		cmd.Env = append(os.Environ(), "FREEPORT_CHILD=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, rest, _ := strings.Cut(string(out), "port: ")
		other, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if (own-first)/block == (other-first)/block {
			t.Errorf("%d and %d are of one block", own, other)
		}
	}
}
