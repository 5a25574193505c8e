package fleet

// A gateway that has no node of its own for a run sends it also to a node of another gateway that has no credit free, as far as is known: it waits there, in that gateway's
// line, in its turn among that one's own runs. Else those would take each credit the moment that it comes free, and the word of it would always come too late.

// maxKnocks is how many runs wait at one target of another gateway's.
const maxKnocks = 8

// knock returns a target of another gateway's at which w may wait for its turn; nil where a node of this gateway's may serve it. f.mu is held.
func (f *Fleet) knock(w *Want) (best *target) {
	if !w.Credit || w.From != "" || w.Model == "" {
		return nil
	}
	l := f.index.models[w.Model]
	if l == nil {
		return nil
	}
	for _, h := range l.here {
		t := h.target
		switch {
		case !w.serves(t) || !t.reachable || w.out(t):
		case t.seat.node.peer == nil && f.returning(t.seat.node):
			return nil
		case t.knockable() && (best == nil || t.knocks < best.knocks):
			best = t
		}
	}
	return best
}

// knockable reports whether a run may wait at t. f.mu is held.
func (t *target) knockable() bool {
	return t.seat.node.peer != nil && !t.full && t.knocks < maxKnocks && t.seat.node.live()
}

// knocked takes a place for w at which it waits. f.mu is held.
func (f *Fleet) knocked(t *target, w *Want) *Place {
	p := f.take(t, w)
	p.knock = true
	t.knocks++
	return p
}

// Accepted notes that the run at p has begun: it waits no more, at another gateway either.
func (p *Place) Accepted() {
	if p.seat.node.peer == nil {
		return
	}
	p.fleet.mu.Lock()
	defer p.fleet.mu.Unlock()
	p.waitsNoMore()
	p.fleet.dispatch(p.seat)
}

// waitsNoMore lets another run wait in p's stead. f.mu is held.
func (p *Place) waitsNoMore() {
	if p.knock {
		p.knock = false
		p.t.knocks--
	}
}
