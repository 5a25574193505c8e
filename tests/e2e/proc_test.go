package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// udpSockets counts the sockets that are bound to a UDP port of IPv4 or IPv6.
func udpSockets(t *testing.T, port int) int {
	t.Helper()
	n := 0
	for _, file := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				n++
			}
		}
	}
	return n
}
