package freeport

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
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
