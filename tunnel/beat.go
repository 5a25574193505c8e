package tunnel

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// beats is one end's view of a session's heartbeats. Safe for concurrent use.
type beats struct {
	born     time.Time     // base of the monotonic offsets below
	sent     atomic.Uint64 // last seq sent
	seen     atomic.Uint64 // highest seq seen from the peer
	echoed   atomic.Uint64 // highest own seq that the peer has echoed
	lastSeen atomic.Int64  // when the last beat came, ns after born
	lastEcho atomic.Int64  // when echoed last rose, ns after born

	mu    sync.Mutex
	times [beatsKept]time.Time // guarded by mu; when beats were sent, by seq modulo
}

// beatsKept is of how many beats the time is kept: an echo is older than that only on a path where it says nothing.
const beatsKept = 16

// since returns the time from the offset in at to now.
func (b *beats) since(at *atomic.Int64) time.Duration {
	return time.Since(b.born) - time.Duration(at.Load())
}

// next makes the beat to send; now is the gateway's clock, nil on a node. It is read after the echo: so the node can tell that it was.
func (b *beats) next(now func() int64) *wire.Heartbeat {
	b.mu.Lock()
	defer b.mu.Unlock()
	seq := b.sent.Add(1)
	b.times[seq%beatsKept] = time.Now()
	h := &wire.Heartbeat{Seq: seq, Echo: b.seen.Load(), Padding: padding[:]}
	if now != nil {
		h.GatewayTimeNs = now()
	}
	return h
}

// sentAt returns when the beat was sent that the peer echoes.
func (b *beats) sentAt(echo uint64) (t time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sent := b.sent.Load(); echo == 0 || echo > sent || sent-echo >= beatsKept {
		return t, false
	}
	return b.times[echo%beatsKept], true
}

// padding alone makes a beat longer than wire.MinHeartbeat.
var padding [wire.MinHeartbeat]byte

// arrived takes in a peer's beat. It reports whether the peer echoed a beat that it had not echoed before.
func (b *beats) arrived(h *wire.Heartbeat) bool {
	now := int64(time.Since(b.born))
	b.lastSeen.Store(now)
	raise(&b.seen, h.Seq)
	if h.Echo > b.sent.Load() || !raise(&b.echoed, h.Echo) {
		return false
	}
	b.lastEcho.Store(now)
	return true
}

// raise sets v to at least n, and reports whether that changed it.
func raise(v *atomic.Uint64, n uint64) bool {
	for {
		old := v.Load()
		if n <= old {
			return false
		}
		if v.CompareAndSwap(old, n) {
			return true
		}
	}
}
