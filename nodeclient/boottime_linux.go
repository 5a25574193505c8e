package nodeclient

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is the time since the machine booted, sleep included: Go's monotonic clock stands still then (golang/go#24595).
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(processStart)
	}
	return time.Duration(ts.Nano())
}

var processStart = time.Now()
