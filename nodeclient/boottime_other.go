//go:build !linux

package nodeclient

import "time"

// bootTime is a steady time. Where it stands still while the machine sleeps, the session does not survive the sleep either (NodeSession.beat).
func bootTime() time.Duration { return time.Since(processStart) }

var processStart = time.Now()
