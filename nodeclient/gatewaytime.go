package nodeclient

import (
	"sync"
	"time"
)

const (
	// maxUnsynced is how old the gateway's last word of its time may be.
	maxUnsynced = 90 * time.Second
	// maxDoubt is how inexactly the gateway's time may be known. By so much a lease may be opened late: with its lifetime the 17 s after which
	// what was revoked is of no use to a node that has not heard of it.
	maxDoubt = 2 * time.Second
)

// gatewayTime is the gateway's clock as a node knows it: what the beats bring, carried on by the time since boot, so that this machine's own wall clock
// does not matter. A beat is late by its way here, and whoever holds it up must not make leases live longer. But it was sent after the beat of ours that it
// echoes, so between then and now: one that took too long is not heard, and of what the others say all is true at once. Safe for concurrent use; the zero
// value knows nothing.
type gatewayTime struct {
	now func() time.Duration // since boot; nil is bootTime

	mu    sync.Mutex
	least time.Duration // guarded by mu; gateway time less boot time is at least this
	most  time.Duration // guarded by mu; and at most this
	last  time.Duration // guarded by mu; when it was heard last, in boot time
	known bool          // guarded by mu
}

func (g *gatewayTime) boot() time.Duration {
	if g.now != nil {
		return g.now()
	}
	return bootTime()
}

// heard takes in the gateway's time, in Unix nanoseconds, as it comes; the gateway has read it since asked.
func (g *gatewayTime) heard(ns int64, asked time.Time) {
	boot := g.boot() // first: then the time passed is not too short
	g.sample(ns, boot, elapsed(asked, time.Now()))
}

// sample takes in the gateway's time as it came at boot, read within the time given before that.
func (g *gatewayTime) sample(ns int64, boot, within time.Duration) {
	if within > maxDoubt {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	least := time.Duration(ns) - boot
	most := least + within
	if g.known && least <= g.most && most >= g.least {
		least, most = max(least, g.least), min(most, g.most)
	} // else the gateway's clock was set, and what was true is no more
	g.least, g.most, g.last, g.known = least, most, boot, true
}

// Now returns gateway time, behind it by at most maxDoubt; false when it was not heard of for too long.
func (g *gatewayTime) Now() (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	boot := g.boot()
	return time.Unix(0, int64(boot+g.least)), g.known && boot-g.last <= maxUnsynced
}

// elapsed is the time from one moment to another by the clock that shows more: Go's monotonic clock stands still while a machine sleeps (golang/go#24595), and
// the wall clock can be set.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
