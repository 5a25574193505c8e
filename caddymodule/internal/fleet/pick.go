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
	// Since is the first version of Ollama that has the endpoint; empty for any. Other providers have no such version.
	Since string
	// Filter says which targets may be used; nil: those with adapter ollama.
	Filter *Filter
	// Suits says which of these will do, by their nodes' labels; nil: all.
	Suits func(labels map[string]string) bool
	// From is the gateway that has forwarded the run, and which has its caller; empty: this one. Such a run goes no further, and waits for nothing but a credit.
	From string
	// Digest is that of the model which the run is about, as a preference: holders of another one are for when none of these has room. Empty for any.
	Digest string
	// Front: the run was in line before and goes back to its head.
	Front bool
	// Out holds the targets that are left out for this run.
	Out map[TargetRef]bool
}

// Candidate is a target as a Filter sees it. Only Node is proven, by the node's certificate; the rest is the node's own word.
type Candidate struct {
	Node            string
	Labels          map[string]string // must not be changed
	Adapter, Target string
}

// Filter says which targets may be used. Wants with the same Filter want the same.
type Filter struct {
	Serves func(c Candidate) bool
}

// candidate is t as a Filter sees it. f.mu is held.
func (t *target) candidate() Candidate {
	return Candidate{Node: t.seat.node.name, Labels: t.seat.session.Labels(), Adapter: t.adapter, Target: t.name}
}

// TargetRef names a target of a session: what a refusal leaves out.
type TargetRef struct {
	Node, Target string
	Generation   uint64
}

// serves reports whether t could serve w if it had room, but for the model. f.mu is held.
func (w *Want) serves(t *target) bool {
	if w.Node != "" && t.seat.node.name != w.Node || w.From != "" && t.seat.node.peer != nil || w.Target != "" && t.name != w.Target {
		return false
	}
	if w.Filter != nil {
		if !w.Filter.Serves(t.candidate()) {
			return false
		}
	} else if t.adapter != adapterOllama {
		return false
	}
	if w.Suits != nil && !w.Suits(t.seat.session.Labels()) {
		return false
	}
	return w.Since == "" || t.adapter != adapterOllama || t.release.AtLeast(ollama.ParseVersion(w.Since))
}

func (w *Want) out(t *target) bool {
	return len(w.Out) > 0 && w.Out[TargetRef{t.seat.node.name, t.name, t.seat.session.Generation()}]
}

// choice is the search for the best target with room for a want: one whose model has the digest, then one that has the model loaded, then the one with the fewest runs per credit,
// then the one that was chosen longest ago.
type choice struct {
	*Want
	best   *target
	loaded bool // best has the model loaded
	same   bool // best's model has the want's digest
}

// pick returns the best target with room for w, nil when none has. It looks at the model's holders, at one node if w is pinned to it, and at all
// targets only when w names no model. f.mu is held.
func (f *Fleet) pick(w *Want) *target {
	c := choice{Want: w}
	switch {
	case w.Node != "":
		for n := range f.named(w.Node) {
			c.seat(n.seat)
		}
	case w.Model != "":
		if l := f.index.models[w.Model]; l != nil {
			for _, h := range l.here {
				c.holder(h)
			}
		}
	default:
		for _, n := range f.nodes {
			c.seat(n.seat)
		}
	}
	return c.best
}

// Keeper returns the target of the node that w is pinned to at which models are kept and changed: the one that holds the model, and where no model is named or
// none holds it the one called ollama, as the node calls its first, or else the first by name. Whether it answers now makes no difference: another would be
// another store. It is empty if the node has none that serves w.
func (f *Fleet) Keeper(w *Want, model string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	best, holds := "", false
	for n := range f.named(w.Node) {
		if n.seat == nil {
			continue
		}
		for name, t := range n.seat.targets {
			if !w.serves(t) {
				continue
			}
			h := model != "" && t.models[model] != nil
			if best == "" || h && !holds || h == holds && (name == adapterOllama || best != adapterOllama && name < best) {
				best, holds = name, h
			}
		}
	}
	return best
}

// seat looks at the targets of one seat.
func (c *choice) seat(s *seat) {
	if s == nil {
		return
	}
	for _, t := range s.targets {
		if c.Model == "" {
			c.target(t, t.used[""], false, false)
		} else if h := t.models[c.Model]; h != nil {
			c.holder(h)
		}
	}
}

func (c *choice) holder(h *held) {
	c.target(h.target, h.used, h.loaded, c.Digest != "" && h.model.Digest == c.Digest)
}

// target looks at one target. What costs most is asked last, of the few that are better than those before.
func (c *choice) target(t *target, used int, loaded, same bool) {
	if !t.reachable || !c.room(t, used) || c.best != nil && !c.better(t, loaded, same) {
		return
	}
	if c.serves(t) && !c.out(t) && t.seat.node.live() {
		c.best, c.loaded, c.same = t, loaded, same
	}
}

// room reports whether t has a place now; used are the credits taken for the model.
func (c *choice) room(t *target, used int) bool {
	if !c.Credit {
		return t.seat.places < places
	}
	return !t.full && t.taken()+1 <= t.perTarget && used+t.elsewhere[c.Model] < t.perModel
}

// taken is how many of t's credits are taken, also by other gateways as far as that is known.
func (t *target) taken() int { return t.total + t.others }

// better orders two targets with room.
func (c *choice) better(t *target, loaded, same bool) bool {
	if same != c.same {
		return same
	}
	if loaded != c.loaded {
		return loaded
	}
	// taken/perTarget < best.taken/best.perTarget, without division.
	if d := cmp.Compare(t.taken()*c.best.perTarget, c.best.taken()*t.perTarget); d != 0 {
		return d < 0
	}
	if here, there := t.seat.node.peer == nil, c.best.seat.node.peer == nil; here != there {
		return here
	}
	if d := cmp.Compare(t.turn, c.best.turn); d != 0 {
		return d < 0
	}
	return t.seat.node.name < c.best.seat.node.name
}
