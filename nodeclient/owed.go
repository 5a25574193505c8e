package nodeclient

import (
	"sync"
	"time"
)

// repeats are the times after which a gateway is told again that a credit is free. The word travels on another stream than the refusal before it: on a busy
// machine, or when a packet is lost, it may come first, and would be forgotten.
var repeats = [...]time.Duration{50 * time.Millisecond, time.Second}

// owed are the targets of which one session's gateway is to hear that a credit is free: after a refusal it takes the target for full. The zero value is
// ready for use; safe for concurrent use.
type owed struct {
	wake chan struct{} // set before the session's first run; nil: nobody is woken

	mu    sync.Mutex
	words map[*target]word // guarded by mu
}

// word is what is to be said of a target: how often it was, and when the next time is.
type word struct {
	said int
	at   time.Time
}

// add owes the gateway the word that t has room, from now on.
func (o *owed) add(t *target) {
	o.mu.Lock()
	if o.words == nil {
		o.words = make(map[*target]word)
	}
	o.words[t] = word{at: time.Now()}
	o.mu.Unlock()
	poke(o.wake)
}

// due takes the targets that are to be named now. One that has filled up again is not: its gateway, v's, waits for the next credit.
func (o *owed) due(v *vault, now time.Time) map[*target]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out map[*target]bool
	for t, w := range o.words {
		if w.at.After(now) {
			continue
		}
		if w.said > 0 && !t.credits.roomFor(v) {
			delete(o.words, t)
			continue
		}
		if out == nil {
			out = make(map[*target]bool)
		}
		out[t] = true
		if w.said == len(repeats) {
			delete(o.words, t)
			continue
		}
		o.words[t] = word{said: w.said + 1, at: now.Add(repeats[w.said])}
	}
	return out
}

// next returns how long it is until something is to be said; false when nothing is.
func (o *owed) next(now time.Time) (wait time.Duration, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.words {
		if d := max(w.at.Sub(now), 0); !ok || d < wait {
			wait, ok = d, true
		}
	}
	return wait, ok
}
