package storetest

import (
	"sync"
	"time"
)

// Clock is a store's clock that a test moves by hand. It begins in November 2026.
// Safe for concurrent use.
type Clock struct {
	mu  sync.Mutex
	now time.Time // guarded by mu
}

// NewClock makes a clock that stands still.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
}

// Now is what the store is given to read.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock by d, backwards if d is negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Millis is the clock as the stores number by it.
func (c *Clock) Millis() uint64 { return uint64(c.Now().UnixMilli()) }
