package fleet

import (
	"slices"
	"time"
)

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

// survey finds the best prospect of w, by the same ways as pick. f.mu is held.
func (f *Fleet) survey(w *Want) prospect {
	p := nobody
	if f.here == 0 {
		p = unknown
	}
	switch {
	case w.Node != "":
		for n := range f.named(w.Node) {
			if n.seat != nil {
				p = max(p, f.surveySeat(n.seat, w))
			}
		}
	case w.Model != "":
		p = max(p, f.surveyHolders(w))
	default:
		for _, n := range f.nodes {
			if n.seat != nil {
				p = max(p, f.surveySeat(n.seat, w))
			}
		}
	}
	return p
}

// Lacks says why nobody can serve w now: ErrNoModel, or ErrNoNode where somebody who is not here has the model, or may.
func (f *Fleet) Lacks(w *Want) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.survey(w) == nobody {
		return ErrNoModel
	}
	return ErrNoNode
}

// surveyHolders asks those who hold the model, and then those of whom more may be heard soon.
func (f *Fleet) surveyHolders(w *Want) prospect {
	p := nobody
	if l := f.index.models[w.Model]; l != nil {
		for _, h := range l.here {
			if p = max(p, f.standing(h.target, w)); p == busy {
				return p
			}
		}
		for _, h := range l.away {
			if p >= returning {
				return p
			}
			p = max(p, f.standing(h.target, w))
		}
	}
	if p < returning {
		f.eachYoung(func(s *seat) bool {
			p = max(p, f.expected(s, w), f.silence(s))
			return p < returning
		})
	}
	return p
}

// surveySeat asks all that one seat has.
func (f *Fleet) surveySeat(s *seat, w *Want) prospect {
	p := f.expected(s, w)
	for _, t := range s.targets {
		if w.Model != "" && t.models[w.Model] == nil || !w.serves(t) {
			p = max(p, f.silent(t))
			continue
		}
		p = max(p, f.standing(t, w))
	}
	return p
}

// expected is what a seat that has not reported yet may turn out to be.
func (f *Fleet) expected(s *seat, w *Want) prospect {
	if s.ready || !s.node.goneAt.IsZero() || !f.returning(s.node) {
		return nobody
	}
	if _, ok := s.before[w.Model]; ok {
		return returning
	}
	return unknown
}

// silence is what the providers of a seat may turn out to be that have not answered yet.
func (f *Fleet) silence(s *seat) prospect {
	p := nobody
	for _, t := range s.targets {
		p = max(p, f.silent(t))
	}
	return p
}

func (f *Fleet) silent(t *target) prospect {
	if !t.reachable && len(t.models) == 0 && t.seat.node.goneAt.IsZero() && t.seat.fresh(f.cfg.Now()) {
		return unknown // it may be starting
	}
	return nobody
}

// fresh reports whether providers of the seat may still be starting.
func (s *seat) fresh(now time.Time) bool { return now.Sub(s.since) < comingUp }

// standing is why a target that holds the model gives no place.
func (f *Fleet) standing(t *target, w *Want) prospect {
	n := t.seat.node
	switch {
	case !w.serves(t), n.shadowed():
		return nobody
	case n.live() && t.reachable && w.out(t):
		return excluded
	case n.live() && t.reachable:
		return busy
	case f.returning(n) && t.reachable:
		return returning
	}
	return absent
}

// eachYoung visits the seats of which more may be heard soon: they have not reported, or their providers may still be starting. It stops when
// visit returns false. f.mu is held.
func (f *Fleet) eachYoung(visit func(*seat) bool) {
	now := f.cfg.Now()
	f.young = slices.DeleteFunc(f.young, func(s *seat) bool { return !s.current() || s.ready && !s.fresh(now) })
	for _, s := range f.young {
		if !visit(s) {
			return
		}
	}
}
