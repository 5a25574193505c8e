package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"
)

// Options of a [Memory].
type Options struct {
	Now     func() time.Time // the store's clock; time.Now if nil
	Persist Persist          // nil: everything is forgotten with the process
}

// Memory is the store of one gateway process. It lives as long as the process:
// a reload of the configuration must find the same one.
//
// Sessions are in maps under one lock, never held over storage; what lasts is in
// documents that readers see without a lock. One small record is kept for every
// node name that ever registered, which enrolment bounds.
type Memory struct {
	now         func() time.Time
	incarnation string

	mu       sync.RWMutex
	nodes    map[string]*nodeState    // guarded by mu
	gateways map[string]*gatewayState // guarded by mu

	published document[publishedDoc]
	revoked   document[revokedDoc]
	drained   document[drainedDoc]
	tokens    document[tokensDoc]
	marks     marks
}

var _ Store = (*Memory)(nil)

// NewMemory makes a store and reads what opts.Persist has. What it has but cannot
// be read is an error: beginning without it would forget revocations.
func NewMemory(ctx context.Context, opts Options) (*Memory, error) {
	m := &Memory{
		now:         opts.Now,
		incarnation: rand.Text(),
		nodes:       map[string]*nodeState{},
		gateways:    map[string]*gatewayState{},
	}
	if m.now == nil {
		m.now = time.Now
	}
	if err := m.published.open(ctx, opts.Persist, "projection.json", &publishedDoc{}); err != nil {
		return nil, fmt.Errorf("open memory store: %w", err)
	}
	if err := m.revoked.open(ctx, opts.Persist, "revocations.json", &revokedDoc{}); err != nil {
		return nil, fmt.Errorf("open memory store: %w", err)
	}
	m.revoked.read().index()
	if err := m.drained.open(ctx, opts.Persist, "drains.json", &drainedDoc{}); err != nil {
		return nil, fmt.Errorf("open memory store: %w", err)
	}
	if err := m.tokens.open(ctx, opts.Persist, "tokens.json", &tokensDoc{}); err != nil {
		return nil, fmt.Errorf("open memory store: %w", err)
	}
	return m, nil
}

// Close ends what Watch has given.
func (m *Memory) Close() error {
	m.marks.close()
	return nil
}
