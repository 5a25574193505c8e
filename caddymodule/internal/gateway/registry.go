package gateway

import (
	"maps"
	"slices"
	"sync"
)

// keepEnded is how many runs that have ended are remembered.
const keepEnded = 1000

// registry knows the runs in flight and the last that ended. Safe for concurrent use.
type registry struct {
	mu    sync.Mutex
	open  map[string]*Account // guarded by mu
	ended []RunView           // guarded by mu; a ring
	next  int                 // guarded by mu
}

func newRegistry() *registry { return &registry{open: make(map[string]*Account)} }

func (g *registry) add(a *Account) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[a.Run] = a
}

func (g *registry) remove(a *Account) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[a.Run] == a { // else it is a later attempt of a forwarded run
		delete(g.open, a.Run)
	}
}

// record remembers a run that has ended.
func (g *registry) record(v RunView) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ended) < keepEnded {
		g.ended = append(g.ended, v)
		return
	}
	g.ended[g.next] = v
	g.next = (g.next + 1) % keepEnded
}

// abort ends every run in flight.
func (g *registry) abort(f *failure) { g.abortIf(f, func(*Account) bool { return true }) }

// abortIf ends the runs in flight that match, and tells how many.
func (g *registry) abortIf(f *failure, match func(*Account) bool) (n int) {
	g.mu.Lock()
	open := slices.Collect(maps.Values(g.open))
	g.mu.Unlock()
	for _, a := range open {
		if match(a) {
			a.abort(f)
			n++
		}
	}
	return n
}

// Runs lists the runs in flight and those that ended last, the newest first.
func (h *Hub) Runs() []RunView {
	g := h.runs
	g.mu.Lock()
	open := slices.Collect(maps.Values(g.open))
	out := slices.Clone(g.ended)
	g.mu.Unlock()
	for _, a := range open {
		out = append(out, a.View())
	}
	slices.SortFunc(out, func(a, b RunView) int { return b.Started.Compare(a.Started) })
	return out
}

// account closes a request's account: remembered when it was a run, and told to whoever counts.
func (h *Hub) account(a *Account) {
	if a.begun {
		h.runs.record(a.View())
	}
	if f := h.cfg.OnRunEnd; f != nil {
		f(a)
	}
}
