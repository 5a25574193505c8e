package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	breakAfter = 3 // failures in a row
	probeFirst = 100 * time.Millisecond
	probeEvery = 500 * time.Millisecond // at most, besides what a probe takes
)

// breaker keeps callers from waiting for a server that does not answer: after breakAfter failures in a row they are
// refused at once, and one probe at a time finds out whether it is back.
type breaker struct {
	probe   func(ctx context.Context) error
	changed func(up bool, err error) // one call at a time

	wake chan struct{}   // a probe is wanted now
	ctx  context.Context // ends with close
	stop context.CancelFunc
	wg   sync.WaitGroup

	cause    atomic.Pointer[error] // why it is open; nil while it is closed
	failures atomic.Int32          // in a row

	mu   sync.Mutex // held while it opens
	done bool       // guarded by mu
}

func newBreaker(probe func(ctx context.Context) error, changed func(up bool, err error)) *breaker {
	b := &breaker{probe: probe, changed: changed, wake: make(chan struct{})}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// allow is nil, or why the server is not asked.
func (b *breaker) allow() error {
	if cause := b.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

func (b *breaker) succeeded() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

func (b *breaker) failed(err error) {
	if b.failures.Add(1) < breakAfter {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done || b.cause.Load() != nil {
		return
	}
	b.cause.Store(&err)
	b.wg.Go(func() { b.recover(err) })
}

// recover probes until the server is back.
func (b *breaker) recover(err error) {
	b.changed(false, err)
	for wait := probeFirst; ; wait = min(wait*2, probeEvery) {
		select {
		case <-b.ctx.Done():
			return
		case <-b.wake:
		case <-time.After(wait):
		}
		still := b.probe(b.ctx)
		if still == nil {
			break
		}
		if b.ctx.Err() == nil {
			b.cause.Store(&still)
		}
	}
	b.changed(true, nil)
	b.failures.Store(breakAfter - 1) // it has to prove itself: the next failure opens it again
	b.cause.Store(nil)
}

// retry has an open breaker probe at once, and waits for one that finds the server back. Its error is what keeps it open.
func (b *breaker) retry(ctx context.Context) error {
	for b.allow() != nil {
		select {
		case <-ctx.Done():
			return b.allow()
		case <-b.ctx.Done():
			return b.allow()
		case b.wake <- struct{}{}:
		case <-time.After(probeFirst / 10): // it may be closing
		}
	}
	return nil
}

// close ends probing and waits for that. An open breaker stays open.
func (b *breaker) close() {
	b.mu.Lock()
	b.done = true
	b.mu.Unlock()
	b.stop()
	b.wg.Wait()
}
