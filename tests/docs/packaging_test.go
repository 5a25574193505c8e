package docs

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestUnits compares the units with what the programs do.
func TestUnits(t *testing.T) {
	t.Parallel()
	node := read(t, "packaging/systemd/fairway-node.service")
	if !strings.Contains(node, "\nRestartPreventExitStatus=2 3 4\n") {
		t.Error("fairway-node.service restarts after exit codes that only a person can mend")
	}
	for name, want := range map[string][]string{
		"fairway-node.service":    {"DynamicUser=yes", "StateDirectory=fairway-node", "ProtectSystem=strict", "NoNewPrivileges=yes"},
		"fairway-gateway.service": {"Type=notify", "StateDirectory=fairway", "ProtectSystem=strict", "NoNewPrivileges=yes"},
	} {
		unit := read(t, "packaging/systemd/"+name)
		for _, w := range want {
			if !strings.Contains(unit, "\n"+w+"\n") {
				t.Errorf("%s lacks %s", name, w)
			}
		}
	}
	// Both sides let streams finish for 30 s by default.
	for _, name := range []string{"fairway-node.service", "fairway-gateway.service", "caddy-grace.conf"} {
		m := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)s$`).FindStringSubmatch(read(t, "packaging/systemd/"+name))
		if m == nil {
			t.Errorf("%s has no TimeoutStopSec", name)
			continue
		}
		if s, err := strconv.Atoi(m[1]); err != nil || s <= 30 {
			t.Errorf("%s stops after %s s, and a drain may take 30", name, m[1])
		}
	}
}

// TestSysctl holds that both buffers get the size that quic-go asks for, 7 MiB.
func TestSysctl(t *testing.T) {
	t.Parallel()
	conf := read(t, "packaging/sysctl.d/60-fairway.conf")
	for _, key := range []string{"net.core.rmem_max", "net.core.wmem_max"} {
		m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(key) + ` = (\d+)$`).FindStringSubmatch(conf)
		if m == nil {
			t.Errorf("%s is not set", key)
			continue
		}
		if n, err := strconv.Atoi(m[1]); err != nil || n < 7<<20 {
			t.Errorf("%s is %s, want at least %d", key, m[1], 7<<20)
		}
	}
}
