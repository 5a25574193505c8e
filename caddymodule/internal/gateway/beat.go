package gateway

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// beatEvery is how often a gateway of a fleet tells the store that it lives: nodes are silent there.
	beatEvery = time.Second
	// beatTimeout bounds one call of the keeper.
	beatTimeout = time.Second
	// ownMargin is how long before its sessions are another's for the taking a gateway stops to use them.
	ownMargin = time.Second
)

// errStore refuses a run while the store cannot be asked.
var errStore = fail(codeStoreUnavail, "the gateway's store is unavailable")

// keeper keeps this gateway's word in a shared store, and takes in what others have put there. One goroutine, run. Other methods are safe for
// concurrent use.
type keeper struct {
	hub  *Hub
	soon chan struct{} // capacity 1: the next beat is not to wait for its time

	mu          sync.Mutex
	owned       time.Time // guarded by mu; until when the sessions are ours; zero before the first beat
	superseded  bool      // guarded by mu; a later process goes by our name
	owed        []string  // guarded by mu; subjects revoked here while the store was away
	incarnation string    // run's alone
	revocations uint64    // run's alone; the version that was read last
	read        bool      // run's alone; revocations were read
	down        bool      // run's alone; said that the store is away
	known       store.Revocations
}

// Superseded reports whether another process has begun under this gateway's name since: this one serves no node any more.
func (h *Hub) Superseded() bool {
	if h.keeper == nil {
		return false
	}
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	return h.keeper.superseded
}

// owns reports whether this gateway may send runs to its nodes now.
func (k *keeper) owns() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.superseded:
		return errStore
	case time.Now().Before(k.owned):
		return nil
	}
	if st := k.hub.Current(); st != nil && st.ServeOwned {
		return nil
	}
	return errStore
}

// beatGap is the least time between two beats that runs ask for.
const beatGap = 50 * time.Millisecond

// beatSoon has the next beat now: the store does not know a session that is here, and a beat tells it, or tells us better.
func (h *Hub) beatSoon() {
	if h.keeper == nil {
		return
	}
	select {
	case h.keeper.soon <- struct{}{}:
	default:
	}
}

// run beats until ctx ends.
func (k *keeper) run(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	changed := k.hub.cfg.Store.Watch(ctx)
	for {
		k.beat(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.soon:
			select {
			case <-ctx.Done():
				return
			case <-time.After(beatGap):
			}
		case _, ok := <-changed:
			if !ok {
				changed = nil
			}
		}
	}
}

// beat tells the store that we live, and goes by its answer.
func (k *keeper) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	began := time.Now()
	held, sessions := k.held()
	res, err := k.hub.cfg.Store.Beat(ctx, k.hub.cfg.Gateway, k.hub.fleet.Epoch(), held)
	if err == nil && (k.incarnation != "" && res.Incarnation != k.incarnation || slices.Contains(res.Verdicts, store.VerdictMissing)) {
		k.hub.log().Warn("the store has lost data; telling it what this gateway knows", zap.String("incarnation", res.Incarnation), zap.Int("sessions", len(held)))
		res, err = k.hub.cfg.Store.Reassert(ctx, k.assertion(sessions))
		k.read = false
	}
	if errors.Is(err, store.ErrStaleEpoch) {
		k.lost(sessions)
		return
	}
	if k.heard(err); err != nil {
		return
	}
	if err := k.meet(ctx, len(sessions)); err != nil {
		return // it is a moment's: the next beat tells
	}
	k.incarnation = res.Incarnation
	k.mu.Lock()
	k.owned = began.Add(store.OwnerTTL - ownMargin)
	k.mu.Unlock()
	k.pay(ctx)
	for i, v := range res.Verdicts {
		if v == store.VerdictSuperseded && i < len(sessions) {
			sessions[i].Close(tunnel.CloseReplaced, "the node's newest session is elsewhere, or the node is revoked")
		}
	}
	if !k.read || res.Revocations != k.revocations {
		k.learn(ctx)
	}
	k.hub.renumberSoon()
}

// meet tells the other gateways where this one is, and hears of them.
func (k *keeper) meet(ctx context.Context, sessions int) error {
	st := k.hub.Current()
	if st == nil {
		return nil // on its way out
	}
	all, err := k.hub.cfg.Store.Meet(ctx, k.hub.cfg.Gateway, k.hub.fleet.Epoch(), store.About{
		Advertise: st.Advertise, Software: st.Software, Nodes: sessions, Runs: k.hub.InFlight(),
	})
	if err == nil {
		k.hub.peers.know(all)
	}
	return err
}

// owe remembers a revocation that the store could not take: it holds here, and is repeated when the store is back.
func (k *keeper) owe(subject string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Contains(k.owed, subject) {
		k.owed = append(k.owed, subject)
	}
}

// pay tells the store what it is owed.
func (k *keeper) pay(ctx context.Context) {
	k.mu.Lock()
	owed := slices.Clone(k.owed)
	k.mu.Unlock()
	if len(owed) == 0 {
		return
	}
	if _, err := k.hub.cfg.Store.Revoke(ctx, owed, 0); err != nil && !errors.Is(err, store.ErrNotDurable) {
		k.heard(err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.owed = slices.DeleteFunc(k.owed, func(s string) bool { return slices.Contains(owed, s) })
}

// heard logs that the store went and came back.
func (k *keeper) heard(err error) {
	if down := err != nil; down != k.down {
		k.down = down
		if down {
			k.hub.log().Error("the store cannot be reached", zap.Error(err))
			return
		}
		k.hub.log().Info("the store answers again")
	}
}

// lost ends everything: another process goes by this gateway's name, and the nodes are its.
func (k *keeper) lost(sessions []sessionOf) {
	k.mu.Lock()
	first := !k.superseded
	k.superseded = true
	k.mu.Unlock()
	if first {
		k.hub.log().Error("another process has begun under this gateway's name; this one serves no node any more", zap.String("gateway", k.hub.cfg.Gateway))
	}
	for _, s := range sessions {
		s.Close(tunnel.CloseReplaced, "another process is this gateway now")
	}
}

// sessionOf is a session that this gateway holds.
type sessionOf struct {
	store.SessionClaim
	close func(tunnel.CloseCode, string)
}

// Close ends it.
func (s sessionOf) Close(code tunnel.CloseCode, reason string) { s.close(code, reason) }

// held lists the sessions, for a beat and for what may follow it.
func (k *keeper) held() (held []store.Held, sessions []sessionOf) {
	for _, s := range k.hub.fleet.Sessions() {
		if s.Generation() == 0 {
			continue
		}
		state := store.StateRegistered
		switch s.State() {
		case tunnel.StateReady, tunnel.StateDraining:
			state = store.StateReady
		case tunnel.StateSuspect:
			state = store.StateSuspect
		}
		held = append(held, store.Held{Node: s.Node(), Generation: s.Generation()})
		sessions = append(sessions, sessionOf{store.SessionClaim{Node: s.Node(), Instance: s.Instance(), Generation: s.Generation(), State: state}, s.Close})
	}
	return held, sessions
}

// assertion is what this gateway knows.
func (k *keeper) assertion(sessions []sessionOf) store.Assertion {
	a := store.Assertion{Gateway: k.hub.cfg.Gateway, Epoch: k.hub.fleet.Epoch(), Revocations: k.known}
	// What was revoked since it was read last, too: a store that failed over may never have had it.
	a.Revocations.Subjects = slices.Compact(slices.Sorted(slices.Values(append(k.hub.lender.view.Subjects(), k.known.Subjects...))))
	a.Revocations.MinPGN = max(k.known.MinPGN, k.hub.lender.view.MinPGN())
	for _, s := range sessions {
		a.Sessions = append(a.Sessions, s.SessionClaim)
	}
	if p := k.hub.lender.projection(); p != nil {
		a.Objects, a.Publication = p.objects, p.published
	}
	return a
}

// learn takes in what is revoked and drained, and ends the runs that it is about.
func (k *keeper) learn(ctx context.Context) {
	r, err := k.hub.cfg.Store.Revocations(ctx)
	if err != nil {
		k.heard(err)
		return
	}
	h := k.hub
	was, least := h.lender.view.Subjects(), h.lender.view.MinPGN()
	k.mu.Lock()
	h.lender.view.Replace(append(slices.Clone(k.owed), r.Subjects...), r.MinPGN)
	k.mu.Unlock()
	k.known, k.revocations, k.read = r, r.Version, true
	h.fleet.SetDraining(r.Drained)
	if slices.Equal(was, h.lender.view.Subjects()) && least == h.lender.view.MinPGN() {
		return
	}
	h.lender.revocationsChanged()
	h.broadcast()
	for _, s := range r.Subjects {
		if _, old := slices.BinarySearch(was, s); old {
			continue
		}
		kind, name, _ := strings.Cut(s, ":")
		if n := h.endRuns(store.SubjectKind(kind), name); n > 0 {
			h.log().Info("runs ended by a revocation at another gateway", zap.String("subject", s), zap.Int("runs", n))
		}
		if kind == string(store.SubjectNode) {
			h.expel(name)
		}
	}
}
