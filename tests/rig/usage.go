package rig

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Usage is what a process holds.
type Usage struct {
	FDs int
	RSS int // KiB
}

// Use reads what the process pid holds now.
func Use(t testing.TB, pid int) Usage {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	u := Usage{FDs: len(fds)}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			u.RSS, _ = strconv.Atoi(strings.Fields(v)[0])
		}
	}
	return u
}
