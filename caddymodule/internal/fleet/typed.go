package fleet

// Standing is how one node that holds a model stands, by the target of it that is nearest to taking a run.
type Standing struct {
	Labels map[string]string // of its node; must not be changed
	Ready  bool              // its node can take runs now
	Loaded bool
	Free   int // runs of the model that it would take now
}

// nearness ranks targets of one node by how far they are from taking a run.
func (s Standing) nearness() int {
	switch {
	case !s.Ready:
		return 0
	case s.Free <= 0:
		return 1
	case !s.Loaded:
		return 2
	}
	return 3
}

// Standing tells how every node that holds the model and that a run could go to stands, in no order.
func (f *Fleet) Standing(w *Want) (out []Standing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.index.models[w.Model]
	if l == nil {
		return nil
	}
	place := make(map[*node]int, len(l.here)) // in out
	for _, h := range l.here {
		t := h.target
		if !w.serves(t) || t.seat.node.shadowed() {
			continue
		}
		free := min(t.perTarget-t.taken(), t.perModel-h.used-t.elsewhere[w.Model])
		if t.full {
			free = 0
		}
		s := Standing{Labels: t.seat.session.Labels(), Ready: t.reachable && t.seat.node.live(), Loaded: h.loaded, Free: max(0, free)}
		at, known := place[t.seat.node]
		switch {
		case !known:
			place[t.seat.node] = len(out)
			out = append(out, s)
		case s.nearness() > out[at].nearness():
			out[at] = s
		}
	}
	return out
}

// Serves reports whether a target that the filter admits can be reached now.
func (f *Fleet) Serves(w *Want) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		if !n.live() {
			continue
		}
		for _, t := range n.seat.targets {
			if t.reachable && w.serves(t) {
				return true
			}
		}
	}
	return false
}
