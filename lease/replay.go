package lease

import (
	"sync"
	"time"
)

// replay remembers the leases that a session has burned, until they have expired. A session's own keys and exporter make those of any other
// useless here, so the memory of one session is enough. The zero value is ready.
type replay struct {
	mu     sync.Mutex
	burned map[string]time.Time // guarded by mu; expiry by lease id
	sweep  time.Time            // guarded by mu; when to look for expired ones next
}

// burn takes an id out of use; it fails when it was used, or when no more can be remembered.
func (r *replay) burn(id string, expires, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.burned == nil {
		r.burned = make(map[string]time.Time)
	}
	if _, used := r.burned[id]; used {
		return refuse(CodeReplayed)
	}
	if now.After(r.sweep) || len(r.burned) >= maxReplay {
		for old, exp := range r.burned {
			if now.After(exp) {
				delete(r.burned, old)
			}
		}
		r.sweep = now.Add(TTL)
	}
	if len(r.burned) >= maxReplay {
		return refuse(CodeReplayCacheFull)
	}
	r.burned[id] = expires
	return nil
}
