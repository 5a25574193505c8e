package fleet

import (
	"cmp"

	"github.com/fairway-edge/fairway/internal/ollama"
)

// Want is what a run asks for.
type Want struct {
	// Model is the canonical key of the model; empty where any target will do, as for management.
	Model string
	// Credit: an inference run. Others take an uncounted place.
	Credit bool
	// Node pins the run to one node; empty for any.
	Node string
	// Target pins the run to one target of that node; empty for any.
	Target string
	// Since is the first version of the provider that has the endpoint; empty for any.
	Since string
	// Serves says whether a target may be used, by labels of its node, adapter and name; nil: adapter ollama.
	Serves func(labels map[string]string, adapter, target string) bool
	// Front: the run was in line before and goes back to its head.
	Front bool
	// Out holds the targets that are left out for this run.
	Out map[TargetRef]bool
}

// TargetRef names a target of a session: what a refusal leaves out.
type TargetRef struct {
	Node, Target string
	Generation   uint64
}

// holds reports whether t could serve w if it had room. f.mu is held.
func (w *Want) holds(t *target) bool {
	if w.Node != "" && t.seat.node.name != w.Node || w.Target != "" && t.name != w.Target {
		return false
	}
	if w.Serves != nil {
		if !w.Serves(t.seat.session.Labels(), t.adapter, t.name) {
			return false
		}
	} else if t.adapter != "ollama" {
		return false
	}
	if w.Model != "" {
		if _, ok := t.models[w.Model]; !ok {
			return false
		}
	}
	return w.Since == "" || ollama.VersionAtLeast(t.version, w.Since)
}

func (w *Want) out(t *target) bool {
	return w.Out[TargetRef{t.seat.node.name, t.name, t.seat.session.Generation()}]
}

// room reports whether t has a place for w now. f.mu is held.
func (w *Want) room(t *target) bool {
	if !w.Credit {
		return t.seat.places < places
	}
	return !t.full && t.total < t.perTarget && t.used[w.Model] < t.perModel
}

// pick returns the best target with room for w: one that has the model loaded, then the fewest runs per credit, then the one that was
// chosen longest ago. nil when none has room. f.mu is held.
func (f *Fleet) pick(w *Want) *target {
	var best *target
	for _, n := range f.nodes {
		if !n.live() {
			continue
		}
		for _, t := range n.seat.targets {
			if t.reachable && w.holds(t) && !w.out(t) && w.room(t) && (best == nil || w.better(t, best)) {
				best = t
			}
		}
	}
	return best
}

// better orders two targets with room.
func (w *Want) better(a, b *target) bool {
	_, la := a.loaded[w.Model]
	_, lb := b.loaded[w.Model]
	if la != lb {
		return la
	}
	// a.total/a.perTarget < b.total/b.perTarget, without division.
	if c := cmp.Compare(a.total*b.perTarget, b.total*a.perTarget); c != 0 {
		return c < 0
	}
	if c := cmp.Compare(a.turn, b.turn); c != 0 {
		return c < 0
	}
	return a.seat.node.name < b.seat.node.name
}

// prospect says why a want cannot be served at once.
type prospect int

const (
	nobody    prospect = iota // no node is known that holds the model, and every node has reported
	unknown                   // no node is here, or one has not reported yet: who can tell
	absent                    // its holders are known, and not here
	returning                 // a holder may be back in a moment
	excluded                  // every holder that is here was left out
	busy                      // a holder is here and full
)

// survey finds the best prospect of w. f.mu is held.
func (f *Fleet) survey(w *Want) prospect {
	p := nobody
	if len(f.nodes) == 0 {
		p = unknown
	}
	here := false
	for _, n := range f.nodes {
		if n.seat == nil {
			continue
		}
		if n.goneAt.IsZero() {
			here = true
		}
		p = max(p, f.surveyNode(n, w))
	}
	if !here {
		p = max(p, unknown)
	}
	return p
}

func (f *Fleet) surveyNode(n *node, w *Want) prospect {
	if w.Node != "" && n.name != w.Node {
		return nobody
	}
	p := nobody
	if n.goneAt.IsZero() && !n.seat.ready && f.returning(n) {
		p = unknown // registered, has not reported
		if n.seat.before[w.Model] {
			p = returning
		}
	}
	for _, t := range n.seat.targets {
		if !w.holds(t) {
			if !t.reachable && n.goneAt.IsZero() && len(t.models) == 0 && f.cfg.Now().Sub(n.seat.since) < comingUp {
				p = max(p, unknown) // its provider has not answered yet, and may be starting
			}
			continue
		}
		switch {
		case n.live() && t.reachable && w.out(t):
			p = max(p, excluded)
		case n.live() && t.reachable:
			p = max(p, busy)
		case f.returning(n) && t.reachable:
			p = max(p, returning)
		default:
			p = max(p, absent)
		}
	}
	return p
}
