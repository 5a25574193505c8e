package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fairway-edge/fairway/tunnel"
)

// What Acquire returns when there is no place.
var (
	// ErrNoModel: every node has reported, and none holds the model.
	ErrNoModel = errors.New("no node holds the model")
	// ErrNoNode: the model's holders, or all nodes, are away.
	ErrNoNode = errors.New("no node that can serve this is connected")
	// ErrLeftOut: every node that could serve the run has refused it.
	ErrLeftOut = errors.New("every node has refused the run")
	// ErrQueueFull: too many runs wait already.
	ErrQueueFull = errors.New("too many runs are waiting")
	// ErrQueueTimeout: no credit came free in time.
	ErrQueueTimeout = errors.New("no credit came free in time")
	// ErrDraining: the gateway takes no new runs.
	ErrDraining = errors.New("the gateway is draining")
	// ErrStale: the session is no longer current.
	ErrStale = errors.New("the session is no longer current and ready")
)

// Queue bounds the waiting of one class of runs.
type Queue struct {
	Depth int           // runs that may wait
	Wait  time.Duration // how long one may
}

// Place is the right to one run at one target. It belongs to the session that it was given on. Release it exactly once.
type Place struct {
	Target  string
	Adapter string
	// Origin is the provider's scheme://host:port, as its node says it; empty for nodes that do not.
	Origin string
	// Model is the provider's own name for the model that was asked for; empty where none was.
	Model string
	// Queued is how long the run waited.
	Queued time.Duration

	fleet  *Fleet
	seat   *seat
	t      *target
	model  string
	from   string
	credit bool
	heard  uint64 // the seat's, when the place was given
	knock  bool   // guarded by Fleet.mu; the run waits at another gateway
}

// Peer returns the name of the gateway that the run is to be forwarded to; empty: the node's session is with this one.
func (p *Place) Peer() string { return p.seat.node.gateway }

// Node returns the node's name.
func (p *Place) Node() string { return p.seat.node.name }

// Generation returns the fencing number of the session that the place is on.
func (p *Place) Generation() uint64 { return p.seat.session.Generation() }

// Candidate returns the place's target as a Filter sees it.
func (p *Place) Candidate() Candidate {
	return Candidate{Node: p.seat.node.name, Labels: p.seat.session.Labels(), Adapter: p.Adapter, Target: p.Target}
}

// Lane returns the lane to use.
func (p *Place) Lane() *tunnel.Lane { return p.seat.session.Lane() }

// Ref names the place's target for Want.Out.
func (p *Place) Ref() TargetRef {
	return TargetRef{p.seat.node.name, p.Target, p.seat.session.Generation()}
}

// line is the runs that wait, first come first.
type line struct {
	waiting []*waiter
	closed  bool
}

type waiter struct {
	want  *Want
	place chan *Place // capacity 1; gets the place under Fleet.mu
	err   chan error  // capacity 1
}

// Acquire gives a place for w, at once or after waiting in line within q. Its errors are those above, or ctx's cause.
func (f *Fleet) Acquire(ctx context.Context, w *Want, q Queue) (*Place, error) {
	f.mu.Lock()
	p, wt, wait, err := f.admit(w, q)
	f.mu.Unlock()
	if wt == nil {
		return p, err
	}
	start := f.cfg.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	look := time.NewTicker(absence / looks)
	defer look.Stop()
	for away := 0; away < looks; {
		select {
		case p := <-wt.place:
			p.Queued = f.cfg.Now().Sub(start)
			return p, nil
		case err := <-wt.err:
			return nil, err
		case <-ctx.Done():
			return f.leave(wt, context.Cause(ctx))
		case <-timer.C:
			return f.leave(wt, ErrQueueTimeout)
		case <-look.C:
			if away++; f.served(w) {
				away = 0
			}
		}
	}
	return f.leave(wt, ErrQueueTimeout) // those that it waited for are away, and have been for long enough
}

// looks is how often within absence a run that waits for room looks whether there is still anybody who could give it.
const looks = 5

// served reports whether somebody who is here could serve w.
func (f *Fleet) served(w *Want) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.survey(w) >= excluded
}

// admit gives a place, or a waiter with the time that it may wait, or an error. f.mu is held.
func (f *Fleet) admit(w *Want, q Queue) (*Place, *waiter, time.Duration, error) {
	if f.line.closed {
		return nil, nil, 0, ErrDraining
	}
	// Nobody overtakes a run that waits for the same.
	if w.Front || !f.line.awaits(w) {
		if t := f.pick(w); t != nil {
			return f.take(t, w), nil, 0, nil
		}
	}
	if w.From != "" {
		if err := f.unplaced(w); !errors.Is(err, ErrQueueFull) {
			return nil, nil, 0, err
		}
	}
	wait := q.Wait
	switch f.survey(w) {
	case nobody:
		return nil, nil, 0, ErrNoModel
	case unknown, absent:
		return nil, nil, 0, ErrNoNode
	case excluded:
		return nil, nil, 0, ErrLeftOut
	case returning:
		wait = min(wait, absence)
	case busy:
		if t := f.knock(w); t != nil && (w.Front || !f.line.awaits(w)) {
			return f.knocked(t, w), nil, 0, nil
		}
	}
	if len(f.line.waiting) >= q.Depth && !w.Front {
		return nil, nil, 0, ErrQueueFull
	}
	wt := &waiter{want: w, place: make(chan *Place, 1), err: make(chan error, 1)}
	if w.Front {
		f.line.waiting = slices.Insert(f.line.waiting, 0, wt)
	} else {
		f.line.waiting = append(f.line.waiting, wt)
	}
	return nil, wt, wait, nil
}

// plain is a Want that can be compared.
type plain struct {
	model, node, target, since string
	credit                     bool
	filter                     *Filter
}

// plain returns w in a form that can be compared, and whether it says all of w.
func (w *Want) plain() (plain, bool) {
	return plain{w.Model, w.Node, w.Target, w.Since, w.Credit, w.Filter}, len(w.Out) == 0 && w.Suits == nil
}

// awaits reports whether a run waits for what w wants.
func (l *line) awaits(w *Want) bool {
	if len(l.waiting) == 0 {
		return false
	}
	own, _ := w.plain()
	return slices.ContainsFunc(l.waiting, func(o *waiter) bool {
		other, comparable := o.want.plain()
		return comparable && other == own
	})
}

// leave takes a waiter that gave up out of the line. If its place came at the same moment it is given back.
func (f *Fleet) leave(wt *waiter, err error) (*Place, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.line.waiting, wt)
	if i >= 0 {
		f.line.waiting = slices.Delete(f.line.waiting, i, i+1)
		if errors.Is(err, ErrQueueTimeout) && f.survey(wt.want) < excluded {
			err = ErrNoNode
		}
		return nil, err
	}
	select {
	case p := <-wt.place:
		f.give(p)
		f.dispatch(p.seat)
	case err = <-wt.err:
	}
	return nil, err
}

// take counts a run at t. f.mu is held.
func (f *Fleet) take(t *target, w *Want) *Place {
	f.turn++
	t.turn = f.turn
	t.seat.runs++
	if h := t.models[w.Model]; h != nil {
		h.sent = f.cfg.Now()
	}
	if w.Credit {
		t.count(w.Model, w.From, 1)
	} else {
		t.seat.places++
	}
	name := ""
	if h := t.models[w.Model]; h != nil {
		name = h.model.Name
	}
	return &Place{Target: t.name, Model: name, Adapter: t.adapter, Origin: t.origin, fleet: f, seat: t.seat, t: t, model: w.Model, from: w.From, credit: w.Credit, heard: t.seat.heard}
}

// give undoes take. f.mu is held.
func (f *Fleet) give(p *Place) {
	p.waitsNoMore()
	p.seat.runs--
	if !p.credit {
		p.seat.places--
		return
	}
	p.t.count(p.model, p.from, -1)
}

// Release gives the place back; the first run in line that fits takes it.
func (p *Place) Release() {
	f := p.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	f.give(p)
	f.dispatch(p.seat)
}

// Full notes that the node refused p's run for want of a credit: its target counts as full until its next Status, or until its gateway says more of it. That may
// have come already, before the refusal: there may be no more to be said then.
func (p *Place) Full() {
	p.fleet.mu.Lock()
	defer p.fleet.mu.Unlock()
	if p.heard != p.seat.heard {
		return
	}
	p.t.full = true
	p.seat.touch()
}

// dispatch gives the places of one seat to those in line, first come first served among those that it has room for. Whatever makes room, at a
// target or by bringing one back, says at which seat; nobody in line fits anywhere else, or the event that made room there had placed him. f.mu is
// held.
func (f *Fleet) dispatch(s *seat) {
	if len(f.line.waiting) == 0 || s == nil || !s.current() || !s.node.live() {
		return
	}
	credit := s.open()
	f.line.waiting = slices.DeleteFunc(f.line.waiting, func(wt *waiter) bool {
		if wt.want.Credit && !credit || !wt.want.Credit && s.places == places {
			return false
		}
		c := choice{Want: wt.want}
		c.seat(s)
		if c.best == nil {
			return false
		}
		wt.place <- f.take(c.best, wt.want)
		credit = s.open()
		return true
	})
	if s.node.peer == nil {
		return
	}
	f.line.waiting = slices.DeleteFunc(f.line.waiting, func(wt *waiter) bool {
		t := f.knock(wt.want)
		if t == nil || t.seat != s {
			return false
		}
		wt.place <- f.knocked(t, wt.want)
		return true
	})
}

// Waiting tells how many runs wait.
func (f *Fleet) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.line.waiting)
}

// CloseLine refuses new runs and ends those that wait with ErrDraining; OpenLine undoes it.
func (f *Fleet) CloseLine() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line.closed = true
	for _, wt := range f.line.waiting {
		wt.err <- ErrDraining
	}
	f.line.waiting = nil
}

// OpenLine takes runs again after CloseLine.
func (f *Fleet) OpenLine() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line.closed = false
}
