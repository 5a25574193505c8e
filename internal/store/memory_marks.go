package store

import (
	"context"
	"sync"
	"time"
)

// maxRestored bounds what is remembered of marks taken back. Forgetting one errs on the side of what is revoked.
const maxRestored = 1000

// drainSubject is how a drained node is spelled beside the revoked subjects, which have other kinds.
func drainSubject(node string) string { return "drain:" + node }

// marks orders the changes of what operators mark, revocations and drains, under one version, and tells watchers.
type marks struct {
	mu      sync.Mutex        // held over a change, storage included
	version uint64            // guarded by mu: of the last change
	back    map[string]uint64 // guarded by mu: what was taken back, and the version then

	watching sync.Mutex
	watchers map[chan struct{}]struct{} // guarded by watching
	closed   bool                       // guarded by watching
}

func (m *marks) begin() { m.mu.Lock() }

func (m *marks) end() {
	m.mu.Unlock()
	m.watching.Lock()
	defer m.watching.Unlock()
	for w := range m.watchers {
		select {
		case w <- struct{}{}:
		default: // one is waiting to be read already
		}
	}
}

// next is a new version. Called within a change.
func (m *marks) next(now time.Time) uint64 {
	m.version = max(m.version+1, millis(now))
	return m.version
}

// restored remembers that a subject was taken back. Called within a change.
func (m *marks) restored(subject string, now time.Time) {
	if m.back == nil || len(m.back) >= maxRestored {
		m.back = map[string]uint64{}
	}
	m.back[subject] = m.next(now)
}

// since reports whether a subject was taken back after version. Called within a change.
func (m *marks) since(subject string, version uint64) bool { return m.back[subject] > version }

// watch gives a channel that lives until ctx ends or close is called.
func (m *marks) watch(ctx context.Context) <-chan struct{} {
	w := make(chan struct{}, 1)
	m.watching.Lock()
	defer m.watching.Unlock()
	if m.closed {
		close(w)
		return w
	}
	if m.watchers == nil {
		m.watchers = map[chan struct{}]struct{}{}
	}
	m.watchers[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.watching.Lock()
		defer m.watching.Unlock()
		m.drop(w)
	})
	return w
}

// drop is called with watching held.
func (m *marks) drop(w chan struct{}) {
	if _, is := m.watchers[w]; is {
		delete(m.watchers, w)
		close(w)
	}
}

func (m *marks) close() {
	m.watching.Lock()
	defer m.watching.Unlock()
	m.closed = true
	for w := range m.watchers {
		m.drop(w)
	}
}

// Watch implements [Store].
func (m *Memory) Watch(ctx context.Context) <-chan struct{} { return m.marks.watch(ctx) }

// marked is what is revoked and drained, at one moment, and the version of both.
func (m *Memory) marked() (*revokedDoc, *drainedDoc, uint64) {
	for {
		r, d := m.revoked.read(), m.drained.read()
		if m.revoked.read() == r { // else a change of d may be newer than one of r that is not in r
			return r, d, max(r.version, d.version)
		}
	}
}
