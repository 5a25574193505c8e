package gateway

import (
	"sync"
	"time"

	"github.com/fairway-edge/fairway/lease"
)

// maxStep is how far the wall clock may stray from what the monotonic clock says before it counts as set.
const maxStep = 2 * time.Second

// clock is the gateway's time, in which leases are issued and judged: the wall clock at start plus what the monotonic clock has measured, so that a
// small correction of the wall clock is none here. When the wall clock was set, or the machine slept, it follows, and no lease is issued
// for one lifetime: until then nodes may still count by the old time. Safe for concurrent use.
type clock struct {
	read   func() (wall time.Time, steady time.Duration) // for tests
	onStep func(by time.Duration)

	mu      sync.Mutex
	offset  time.Duration // guarded by mu; gateway time less the steady one, since 1970
	stepped time.Duration // guarded by mu; when, in steady time; below 0: never
}

// systemClock reads the wall clock, and a clock that nobody sets.
func systemClock() (wall time.Time, steady time.Duration) {
	now := time.Now()
	return now.Round(0), now.Sub(processStart)
}

var processStart = time.Now()

func newClock(read func() (time.Time, time.Duration), onStep func(time.Duration)) *clock {
	wall, steady := read()
	return &clock{read: read, onStep: onStep, offset: time.Duration(wall.UnixNano()) - steady, stepped: -1}
}

// Now returns the gateway's time.
func (c *clock) Now() time.Time {
	t, _ := c.look()
	return t
}

// steady reports whether the time has not been set within one lease's lifetime.
func (c *clock) steady() bool {
	_, ok := c.look()
	return ok
}

func (c *clock) look() (t time.Time, steady bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, now := c.read()
	t = time.Unix(0, int64(now+c.offset))
	if by := wall.Sub(t); by > maxStep || by < -maxStep {
		c.offset, c.stepped, t = time.Duration(wall.UnixNano())-now, now, wall
		if c.onStep != nil {
			go c.onStep(by)
		}
	}
	return t, c.stepped < 0 || now-c.stepped >= lease.TTL
}
