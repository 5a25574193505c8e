package nodeclient

import (
	"sync"
	"time"
)

const (
	// maxUnsynced is how old the gateway's last word of its time may be.
	maxUnsynced = 90 * time.Second
	// syncWindow is how long the best sample counts. It is below a lease's lifetime: a gateway whose clock was set back issues nothing for that
	// long, and by then its new time is believed here.
	syncWindow = 10 * time.Second
)

// gatewayTime is the gateway's clock as a node knows it: what the beats bring, carried on by the time since boot, so that this machine's own wall clock
// does not matter. A beat is late by its way here, so of those of one window the one that says the latest time is the nearest. Safe for
// concurrent use; the zero value knows nothing.
type gatewayTime struct {
	now func() time.Duration // since boot; nil is bootTime

	mu     sync.Mutex
	offset time.Duration // guarded by mu; gateway time less boot time
	best   time.Duration // guarded by mu; when offset was taken, in boot time
	last   time.Duration // guarded by mu; of the last beat, in boot time
	known  bool          // guarded by mu
}

func (g *gatewayTime) boot() time.Duration {
	if g.now != nil {
		return g.now()
	}
	return bootTime()
}

// heard takes in the gateway's time, in Unix nanoseconds, as it comes.
func (g *gatewayTime) heard(ns int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	boot := g.boot()
	if offset := time.Duration(ns) - boot; !g.known || offset >= g.offset || boot-g.best > syncWindow {
		g.offset, g.best = offset, boot
	}
	g.last, g.known = boot, true
}

// Now returns gateway time; false when it was not heard of for too long.
func (g *gatewayTime) Now() (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	boot := g.boot()
	return time.Unix(0, int64(boot+g.offset)), g.known && boot-g.last <= maxUnsynced
}
