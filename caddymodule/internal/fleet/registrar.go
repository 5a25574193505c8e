package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// Register admits a session (tunnel.Registrar, which the gateway completes with renewal). The same instance takes over from itself at once;
// another one only when the incumbent does not answer a probe.
func (f *Fleet) Register(ctx context.Context, s *tunnel.Session, r *tunnel.Register) (*tunnel.Registered, error) {
	gen, err := f.register(ctx, s, r.Watermark)
	if err != nil {
		return nil, err
	}
	return &tunnel.Registered{Generation: gen, Limits: Limits()}, nil
}

func (f *Fleet) register(ctx context.Context, s Session, watermark uint64) (generation uint64, err error) {
	n := f.node(s.Node())
	n.registering.Lock()
	defer n.registering.Unlock()

	incumbent := f.current(n)
	if incumbent != nil && incumbent.Instance() != s.Instance() {
		err := incumbent.Probe(ctx)
		if ctx.Err() != nil {
			return 0, ctx.Err() // the newcomer is gone; that says nothing of the incumbent
		}
		if err == nil {
			f.cfg.Log().Warn("refused a second node of the same name; is its state directory a copy?",
				zap.String("node", n.name), zap.Stringer("incumbent", incumbent.RemoteAddr()), zap.Stringer("newcomer", s.RemoteAddr()))
			return 0, closeErr(tunnel.CloseDuplicateNode, "another instance of node %s is connected from %s", n.name, incumbent.RemoteAddr())
		}
		f.cfg.Log().Warn("evicting a node's dead session", zap.String("node", n.name), zap.Stringer("incumbent", incumbent.RemoteAddr()))
	}
	draining, err := f.cfg.Store.Draining(ctx, n.name)
	if err != nil {
		return 0, storeErr(err)
	}
	gen, err := f.cfg.Store.Register(ctx, store.Registration{
		Node: n.name, Gateway: f.cfg.Gateway, Instance: s.Instance(), Watermark: watermark, Epoch: f.epoch.Load(),
	})
	if err != nil {
		return 0, storeErr(err)
	}
	if !f.sit(n, s, draining) {
		return 0, closeErr(tunnel.CloseReplaced, "the node was forgotten meanwhile")
	}
	if incumbent != nil {
		incumbent.Close(tunnel.CloseReplaced, "a newer session took over")
	}
	return gen, nil
}

// sit gives n a seat for s. It reports false if the node's record was swept away since it was found: another one may be in its place.
func (f *Fleet) sit(n *node, s Session, draining bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[n.name] != n {
		return false
	}
	before := n.seat.held()
	for away := range f.named(n.name) { // gone from another gateway, as when that one stops
		if away.peer != nil && !away.goneAt.IsZero() {
			for key, by := range away.seat.held() {
				if before == nil {
					before = make(map[string]adapters)
				}
				before[key] = before[key].or(by)
			}
		}
	}
	f.index.forget(n.seat)
	if !n.goneAt.IsZero() {
		f.here++
	}
	n.seat = &seat{node: n, index: f.index, session: s, since: f.cfg.Now(), targets: make(map[string]*target), before: before}
	n.goneAt = time.Time{}
	n.draining = draining
	f.index.news++
	f.forgetAway(n)
	f.comes(n.seat)
	f.changed()
	return true
}

// node finds or makes the record of a name.
func (f *Fleet) node(name string) *node {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	if n == nil {
		f.sweep()
		n = &node{name: name, goneAt: f.cfg.Now()}
		f.nodes[name] = n
	}
	return n
}

// sweepEvery is how often nodes that went are looked through for those that went long ago.
const sweepEvery = time.Minute

// sweep forgets nodes that went long ago, and the longest gone when there are too many: more of them than that, so that it is not for each that comes that all
// are looked through. f.mu is held.
func (f *Fleet) sweep() {
	now := f.cfg.Now()
	if len(f.nodes)-f.here <= maxGone && now.Sub(f.swept) < sweepEvery {
		return
	}
	f.swept = now
	var gone []*node
	for _, n := range f.nodes {
		switch {
		case n.goneAt.IsZero():
		case now.Sub(n.goneAt) > rememberGone:
			f.forget(n)
		default:
			gone = append(gone, n)
		}
	}
	if len(gone) <= maxGone {
		return
	}
	slices.SortFunc(gone, func(a, b *node) int { return a.goneAt.Compare(b.goneAt) })
	for _, n := range gone[:len(gone)-maxGone*7/8] {
		f.forget(n)
	}
}

// comes counts a new seat among those of which more may be heard soon. f.mu is held.
func (f *Fleet) comes(s *seat) {
	if len(f.young) > 2*len(f.nodes)+64 {
		f.eachYoung(func(*seat) bool { return false }) // else those that are over gather, while nobody asks
	}
	f.young = append(f.young, s)
}

// forget drops a node that went. f.mu is held.
func (f *Fleet) forget(n *node) {
	delete(f.nodes, n.key())
	if n.peer != nil {
		f.dropRemote(n)
	}
	f.index.forget(n.seat)
}

// current returns the node's session if it has one.
func (f *Fleet) current(n *node) Session {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.seat == nil || !n.goneAt.IsZero() {
		return nil
	}
	return n.seat.session
}

// seatOf returns the seat of s if it is current. f.mu is held.
func (f *Fleet) seatOf(s Session) *seat {
	n := f.nodes[s.Node()]
	if n == nil || n.seat == nil || n.seat.session != s || !n.goneAt.IsZero() {
		return nil
	}
	return n.seat
}

// Ready makes the session dispatchable.
func (f *Fleet) Ready(ctx context.Context, s *tunnel.Session, targets []*tunnel.Target) error {
	return f.ready(ctx, s, targets)
}

func (f *Fleet) ready(ctx context.Context, s Session, targets []*tunnel.Target) error {
	if err := f.cfg.Store.Ready(ctx, s.Node(), f.cfg.Gateway, s.Generation()); err != nil {
		return storeErr(err)
	}
	defer f.warnDifferent()
	f.mu.Lock()
	defer f.mu.Unlock()
	seat := f.seatOf(s)
	if seat == nil {
		return closeErr(tunnel.CloseReplaced, "a newer session took over")
	}
	if err := seat.apply(targets); err != nil {
		return closeErr(tunnel.CloseProtocol, "%v", err)
	}
	seat.ready, seat.before = true, nil
	if seat.node.draining {
		seat.tellDrained()
	}
	f.index.news++
	f.changed()
	f.dispatch(seat)
	return nil
}

// Status takes in a change.
func (f *Fleet) Status(s *tunnel.Session, targets []*tunnel.Target) error {
	return f.status(s, targets)
}

func (f *Fleet) status(s Session, targets []*tunnel.Target) error {
	defer f.warnDifferent()
	f.mu.Lock()
	defer f.mu.Unlock()
	seat := f.seatOf(s)
	if seat == nil {
		f.Fenced("stale_status")
		return nil
	}
	if err := seat.apply(targets); err != nil {
		return closeErr(tunnel.CloseProtocol, "%v", err)
	}
	f.changed()
	f.dispatch(seat)
	return nil
}

// Changed is called when a session turned suspect, came back, or drains.
func (f *Fleet) Changed(s *tunnel.Session) { f.stateChanged(s) }

func (f *Fleet) stateChanged(s Session) {
	state := s.State()
	f.cfg.Log().Info("node session changed", zap.String("node", s.Node()), zap.Stringer("state", state))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed()
	if seat := f.seatOf(s); seat != nil {
		seat.touch()
		f.dispatch(seat)
	}
	f.unshadow(s.Node())
}

// Gone ends a session. A session that was replaced before changes nothing.
func (f *Fleet) Gone(s *tunnel.Session) { f.gone(s) }

func (f *Fleet) gone(s Session) {
	ctx, cancel := context.WithTimeout(context.Background(), storeBudget)
	defer cancel()
	if err := f.cfg.Store.Gone(ctx, s.Node(), f.cfg.Gateway, s.Generation()); err != nil && !errors.Is(err, store.ErrStale) {
		f.cfg.Log().Warn("telling the store that a node went", zap.String("node", s.Node()), zap.Error(err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if seat := f.seatOf(s); seat != nil {
		seat.node.goneAt = f.cfg.Now()
		f.here--
		f.index.news++
		f.index.leave(seat)
		f.changed()
		f.unshadow(s.Node())
	}
}

// storeBudget bounds a store call that no caller's context bounds.
const storeBudget = time.Second

// Drain takes a node out, or back, also across its re-dials. It reports whether the node is known.
func (f *Fleet) Drain(ctx context.Context, name string, on bool) (known bool, err error) {
	f.mu.Lock()
	n := f.nodes[name]
	f.mu.Unlock()
	if n != nil {
		n.registering.Lock() // else a registration under way would go by what it read before
		defer n.registering.Unlock()
	}
	if err := f.cfg.Store.Drain(ctx, name, on); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := range f.named(name) {
		f.setDraining(n, on)
		known = true
	}
	return known, nil
}

// tellDrained lets a node of this gateway's say in its log why it gets no runs. Nothing depends on it, and there is no word for the end of a drain.
func (s *seat) tellDrained() {
	if s.node.peer != nil {
		return // the gateway that it is connected to tells it
	}
	go func() {
		_ = s.session.Drain("an operator has taken this node out; the gateway sends it no runs until it is put back", false)
	}() // bounded by the tunnel's own time-out
}

// SetDraining takes in which nodes are drained, at any gateway.
func (f *Fleet) SetDraining(names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	drained := make(map[string]bool, len(names))
	for _, name := range names {
		drained[name] = true
	}
	for _, n := range f.nodes {
		if n.draining != drained[n.name] {
			f.setDraining(n, drained[n.name])
		}
	}
}

// setDraining takes one node out or back. f.mu is held.
func (f *Fleet) setDraining(n *node, on bool) {
	if on && !n.draining && n.seat != nil && n.seat.current() && n.seat.ready {
		n.seat.tellDrained()
	}
	n.draining = on
	if n.seat != nil {
		n.seat.touch()
	}
	f.changed()
	f.dispatch(n.seat)
	f.unshadow(n.name)
}

func closeErr(code tunnel.CloseCode, format string, args ...any) error {
	return &tunnel.CloseError{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// storeErr says what a node is told when the store refuses.
func storeErr(err error) error {
	switch {
	case errors.Is(err, store.ErrWatermarkImplausible):
		return closeErr(tunnel.CloseWatermark, "the node's generation watermark is more than a day ahead")
	case errors.Is(err, store.ErrDisabled):
		return closeErr(tunnel.CloseRevoked, "the node is revoked")
	case errors.Is(err, store.ErrRateLimited):
		return closeErr(tunnel.CloseRateLimited, "too many registrations of this node")
	case errors.Is(err, store.ErrStale):
		return closeErr(tunnel.CloseReplaced, "a newer session took over")
	}
	return closeErr(tunnel.CloseStoreUnavailable, "the store is unavailable")
}
