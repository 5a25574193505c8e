package nodeclient

import (
	"context"
	"math/rand/v2"
	"time"
)

// The back-off between dials: doubled from the first to the last step, each half to one and a half times as long, so that a thousand nodes
// do not come back in one wave (facts: teleport#6889, nats#1368).
const (
	backoffFirst = 100 * time.Millisecond
	backoffLast  = 5 * time.Second
)

// backoff counts the failures since a session was last ready. The zero value is ready for use.
type backoff struct{ step time.Duration }

// next returns how long to wait now; rose tells that the step is a longer one than before.
func (b *backoff) next() (wait time.Duration, rose bool) {
	old := b.step
	b.step = min(max(2*b.step, backoffFirst), backoffLast)
	return time.Duration((0.5 + rand.Float64()) * float64(b.step)), b.step > old //nolint:gosec // jitter
}

// reset begins anew: a session has become ready.
func (b *backoff) reset() { b.step = 0 }

// sleep waits for d; it reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
