package gateway

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// keyLife is how long an issuer key signs.
	keyLife = 24 * time.Hour
	// settleTime is how long a run that needs a lease waits for its node to acknowledge what the lease depends on.
	settleTime = 2 * time.Second
	// revokeBytes is how much of subjects one announcement holds: a frame is 256 KiB.
	revokeBytes = 200 << 10
)

// lender is what a hub needs to issue leases: keys, the published projection, what is revoked; and it sees to it that every node that can open leases
// knows as much. Safe for concurrent use.
type lender struct {
	clock  *clock
	issuer *lease.Issuer
	view   lease.View // what is revoked, at once

	mu      sync.Mutex
	now     *projection               // guarded by mu; nil before the first Start
	keys    uint64                    // guarded by mu; counts the changes of the issuer's keys
	revoked uint64                    // guarded by mu; counts the changes of the view
	told    map[*tunnel.Session]*told // guarded by mu
	open    map[string]*loan          // guarded by mu; leases whose runs are open, by id
	counts  map[string]uint64         // guarded by mu
	turn    *time.Timer               // guarded by mu; turns the issuer's keys
}

// told is what one session was told last.
type told struct {
	mu      sync.Mutex
	keys    uint64 // guarded by mu
	revoked uint64 // guarded by mu
	pgn     uint64 // guarded by mu
}

func newLender(read func() (time.Time, time.Duration), onStep func(time.Duration)) *lender {
	l := &lender{told: map[*tunnel.Session]*told{}, open: map[string]*loan{}, counts: map[string]uint64{}, keys: 1, revoked: 1}
	l.clock = newClock(read, onStep)
	var err error
	if l.issuer, err = lease.NewIssuer(l.clock.Now); err != nil {
		panic(err) // the system's random numbers have failed
	}
	return l
}

// projection returns what is published now.
func (l *lender) projection() *projection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *lender) count(result string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[result]++
}

// tell announces to s what it has not been told yet. A session whose node opens no leases is told nothing.
func (l *lender) tell(s *tunnel.Session) error {
	if s.Recipient() == nil {
		return nil
	}
	l.mu.Lock()
	t := l.told[s]
	if t == nil {
		t = &told{}
		l.told[s] = t
	}
	l.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	l.mu.Lock()
	now, keys, revoked := l.now, l.keys, l.revoked
	l.mu.Unlock()
	if t.revoked != revoked {
		if err := l.tellRevoked(s); err != nil {
			return err
		}
		t.revoked = revoked
	}
	if t.keys != keys {
		if err := s.AnnounceKeys(l.publicKeys()); err != nil {
			return err
		}
		t.keys = keys
	}
	if now != nil && t.pgn != now.pgn {
		if err := s.AnnounceProjection(now.wire()); err != nil {
			return err
		}
		t.pgn = now.pgn
	}
	return nil
}

func (l *lender) publicKeys() []*tunnel.IssuerKey {
	var out []*tunnel.IssuerKey
	for _, k := range l.issuer.Keys() {
		out = append(out, &tunnel.IssuerKey{Thumbprint: k.Thumbprint, PublicKey: k.Public})
	}
	return out
}

// tellRevoked announces the whole set: it is small, and an undoing needs it. One that takes more than one frame (some 3,000 names) is whole again at the node
// with the last of them.
func (l *lender) tellRevoked(s *tunnel.Session) error {
	subjects, least := l.view.Subjects(), l.view.MinPGN()
	for reset := true; reset || len(subjects) > 0; reset = false {
		n, size := 0, 0
		for n < len(subjects) && size+len(subjects[n])+3 <= revokeBytes {
			size += len(subjects[n]) + 3
			n++
		}
		if err := s.AnnounceRevoked(subjects[:n], least, reset); err != nil {
			return err
		}
		subjects = subjects[n:]
	}
	return nil
}

func (l *lender) forget(s *tunnel.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.told, s)
}

// ready makes sure that the session's node knows, and has acknowledged, what a lease under the projection that is returned depends on.
func (l *lender) ready(ctx context.Context, s *tunnel.Session) (*projection, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTime, tunnel.ErrUnsettled)
	defer cancel()
	for {
		p := l.projection()
		if err := l.tell(s); err != nil {
			return nil, err
		}
		if s.Unsettled() == 0 && p == l.projection() {
			return p, nil
		}
		if err := s.Settle(ctx); err != nil {
			return nil, err
		}
	}
}

// broadcast tells every session. It returns at once; wait, when it is called, waits until all have acknowledged or ctx ends, and counts both.
func (h *Hub) broadcast() (wait func(ctx context.Context) (nodes, acked int)) {
	var sessions []*tunnel.Session
	for _, s := range h.fleet.Sessions() {
		if ts, ok := s.(*tunnel.Session); ok && ts.Recipient() != nil {
			sessions = append(sessions, ts)
		}
	}
	sent := make(chan struct{}, len(sessions))
	for _, s := range sessions {
		go func() { // bounded by the tunnel's own time-out
			if err := h.lender.tell(s); err != nil {
				h.log().Warn("telling a node what leases depend on", zap.String("node", s.Node()), zap.Error(err))
			}
			sent <- struct{}{}
		}()
	}
	return func(ctx context.Context) (nodes, acked int) {
		for range sessions {
			select {
			case <-sent:
			case <-ctx.Done():
			}
		}
		for _, s := range sessions {
			if s.Settle(ctx) == nil {
				acked++
			}
		}
		return len(sessions), acked
	}
}

// turnKeys makes a new issuer key now and each keyLife, and retires the one before when its last lease has expired.
func (h *Hub) turnKeys() {
	l := h.lender
	if err := l.issuer.Rotate(); err != nil {
		h.log().Error("making an issuer key", zap.Error(err))
		return
	}
	l.mu.Lock()
	l.keys++
	l.mu.Unlock()
	h.broadcast()
	time.AfterFunc(lease.Adoption+2*lease.TTL, func() {
		l.issuer.Retire()
		l.mu.Lock()
		l.keys++
		l.mu.Unlock()
		h.broadcast()
	})
}

// keepTurning turns the keys for as long as the hub has a socket.
func (h *Hub) keepTurning(on bool) {
	l := h.lender
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn != nil {
		l.turn.Stop()
		l.turn = nil
	}
	if on {
		l.turn = time.AfterFunc(keyLife, func() {
			h.turnKeys()
			h.keepTurning(true)
		})
	}
}

// recall loads what the store has revoked. Leases of an earlier process are of no use to anyone: its keys went with it.
func (h *Hub) recall(ctx context.Context) error {
	r, err := h.cfg.Store.Revocations(ctx)
	if err != nil {
		return err
	}
	subjects := slices.DeleteFunc(r.Subjects, func(s string) bool {
		return strings.HasPrefix(s, string(store.SubjectLease)+":")
	})
	h.lender.view.Replace(subjects, r.MinPGN)
	h.lender.revocationsChanged()
	return nil
}

// LeaseIssuers returns the thumbprints of the keys under which leases are issued, the newest last.
func (h *Hub) LeaseIssuers() []string {
	var out []string
	for _, k := range h.lender.issuer.Keys() {
		out = append(out, k.Thumbprint)
	}
	return out
}

// Leases lists the leases whose runs are open, the newest first.
func (h *Hub) Leases() []LeaseView {
	l := h.lender
	l.mu.Lock()
	open := slices.Collect(maps.Values(l.open))
	l.mu.Unlock()
	out := make([]LeaseView, 0, len(open))
	for _, n := range open {
		out = append(out, n.view())
	}
	slices.SortFunc(out, func(a, b LeaseView) int { return b.Issued.Compare(a.Issued) })
	return out
}

// LeaseCounts returns how many leases ended how, since the process began: issued, opened, or a code of package lease.
func (h *Hub) LeaseCounts() map[string]uint64 {
	h.lender.mu.Lock()
	defer h.lender.mu.Unlock()
	return maps.Clone(h.lender.counts)
}
