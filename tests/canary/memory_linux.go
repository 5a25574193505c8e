package canary

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// InMemory finds what in the memory of a process, in all of its mappings that can be read, and tells how much that was. Each copy is shown by its
// mapping and neighbours. A test process that may not read another's memory skips the test: that takes CAP_SYS_PTRACE for a process that has made itself
// undumpable, as fairway-node does.
func InMemory(t testing.TB, pid int, what []byte) (copies []string, size int) {
	t.Helper()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("the memory of another process cannot be read here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	const most = 1 << 30 // what is longer is the race detector's shadow, which holds no data
	buf := make([]byte, 1<<20)
	for m := range strings.Lines(string(maps)) {
		var from, to uint64
		var mode string
		if n, _ := fmt.Sscanf(m, "%x-%x %s", &from, &to, &mode); n != 3 || mode[0] != 'r' || to-from > most {
			continue
		}
		// Windows overlap, so that a copy across their border is seen; the kernel's own pages give an error and nothing.
		for at := from; at < to; at += uint64(len(buf) - len(what) + 1) {
			n, _ := mem.ReadAt(buf[:min(uint64(len(buf)), to-at)], int64(at))
			size += n
			for i := 0; i < n; i += len(what) {
				j := bytes.Index(buf[i:n], what)
				if j < 0 {
					break
				}
				i += j
				copies = append(copies, fmt.Sprintf("%x in %s: %q", at+uint64(i), strings.TrimSpace(m), buf[max(0, i-48):min(n, i+len(what)+48)]))
			}
		}
	}
	return copies, size
}
