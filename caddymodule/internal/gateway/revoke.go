package gateway

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// leaseMemory is how long the revocation of one lease is remembered: by then it has expired.
const leaseMemory = 2 * time.Minute

// Revoke takes a subject (see package store) out of use, or with undo back into it: in this gateway before anything else, then in the store, which
// survives a restart, then on every node. It waits for the nodes' word until ctx ends. An error means that nothing was written; a
// revocation holds in this process all the same.
func (h *Hub) Revoke(ctx context.Context, subject string, undo bool) (RevokeView, error) {
	v := RevokeView{Subject: subject, Revoked: !undo, Applied: true}
	kind, name, _ := strings.Cut(subject, ":")
	var err error
	if undo {
		if err = h.cfg.Store.Unrevoke(ctx, []string{subject}); err == nil {
			h.lender.view.Remove([]string{subject})
		}
		v.Applied = err == nil
	} else {
		h.lender.view.Add([]string{subject}, 0)
		v.Ended = h.endRuns(store.SubjectKind(kind), name)
		_, err = h.cfg.Store.Revoke(ctx, []string{subject}, 0)
	}
	v.Durable = err == nil
	if h.keeper != nil && !undo && err != nil && !errors.Is(err, store.ErrNotDurable) {
		h.keeper.owe(subject)
	}
	h.lender.revocationsChanged()
	wait := h.broadcast()
	if kind == string(store.SubjectNode) && !undo {
		h.expel(name)
	}
	if kind == string(store.SubjectLease) && !undo {
		time.AfterFunc(leaseMemory, func() { h.forgetLease(subject) })
	}
	event := "revoked"
	if undo {
		event = "restored"
	}
	h.auditRevocation(event, []string{subject})
	v.Nodes, v.Acked = wait(ctx)
	h.log().Info("revocation", zap.String("subject", subject), zap.Bool("revoked", !undo), zap.Bool("durable", v.Durable), zap.Int("nodes", v.Nodes),
		zap.Int("acknowledged", v.Acked), zap.Int("runs_ended", v.Ended))
	if errors.Is(err, store.ErrNotDurable) {
		h.log().Error("a revocation holds, but could not be written: a restart would forget it", zap.String("subject", subject), zap.Error(err))
		err = nil // the answer says so
	}
	return v, err
}

// Revocations lists what is revoked, sorted. While a shared store is away, it is what this gateway knows of.
func (h *Hub) Revocations(ctx context.Context) ([]string, error) {
	r, err := h.cfg.Store.Revocations(ctx)
	if h.keeper != nil && errors.Is(err, store.ErrUnavailable) {
		r.Subjects, err = slices.Sorted(slices.Values(h.lender.view.Subjects())), nil
	}
	return r.Subjects, err
}

// endRuns cancels the runs that a revocation is about, and tells how many. Those that wait are refused when their turn comes.
func (h *Hub) endRuns(kind store.SubjectKind, name string) int {
	switch kind {
	case store.SubjectPrincipal:
		return h.runs.abortIf(errRevoked, func(a *Account) bool { return a.Principal == name })
	case store.SubjectNode:
		return h.runs.abortIf(errRevoked, func(a *Account) bool { return a.View().Node == name })
	}
	return h.endLoans(func(n *loan) bool {
		switch kind {
		case store.SubjectSlot:
			return n.bound.Slot == name && !n.bound.drain
		case store.SubjectProfile:
			return n.bound.Name == name && !n.bound.drain
		case store.SubjectLease:
			return n.issued.ID == name
		}
		return false
	})
}

// errRevoked ends runs whose credential, principal or node is revoked.
var errRevoked = func() *failure {
	f := leaseFailure(lease.CodeRevoked)
	f.outcome = tunnel.Canceled
	return f
}()

// endLoans cancels the runs of the open leases that match.
func (h *Hub) endLoans(match func(*loan) bool) int {
	h.lender.mu.Lock()
	var ends []*loan
	for _, n := range h.lender.open {
		if match(n) {
			ends = append(ends, n)
		}
	}
	h.lender.mu.Unlock()
	for _, n := range ends {
		n.u.x.acc.abort(errRevoked)
	}
	return len(ends)
}

// expel closes a revoked node's session; the store takes it no more.
func (h *Hub) expel(node string) {
	for _, s := range h.fleet.Sessions() {
		if s.Node() == node {
			s.Close(tunnel.CloseRevoked, "the node is revoked")
		}
	}
}

// forgetLease drops the revocation of a lease that has expired.
func (h *Hub) forgetLease(subject string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := h.cfg.Store.Unrevoke(ctx, []string{subject}); err != nil {
		h.log().Warn("forgetting the revocation of an expired lease", zap.Error(err))
		return
	}
	h.lender.view.Remove([]string{subject})
	h.lender.revocationsChanged() // told with the next change
}

// retract takes out of use what a configuration that has ended had and the current one has not: its slots, profiles and principals. Leases under the
// projections before are good no more, and the runs of what is gone are canceled. It also makes cur's projection the published one again, if a configuration that
// failed to start had replaced it.
func (h *Hub) retract(old, cur *Settings) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	h.opening.Lock()
	defer h.opening.Unlock()
	if h.lender.projection() != cur.projection {
		p, err := h.publish(ctx, cur)
		if err != nil {
			h.log().Error("publishing the configuration that goes on", zap.Error(err))
			return
		}
		cur.projection = p
		h.lender.set(p)
	}
	h.fleet.Show(cur.filters().all)
	slots, profiles := old.projection.removed(cur.projection)
	principals := old.removedPrincipals(cur)
	if len(slots)+len(profiles)+len(principals) == 0 {
		h.broadcast()
		return
	}
	least, err := h.cfg.Store.Revoke(ctx, nil, cur.projection.pgn)
	if err != nil {
		h.log().Error("taking what the configuration no longer has out of use", zap.Error(err))
	}
	h.lender.view.Add(nil, max(least, cur.projection.pgn))
	h.lender.revocationsChanged()
	h.broadcast()
	h.endLoans(func(n *loan) bool { return (slots[n.bound.Slot] || profiles[n.bound.Name]) && !n.bound.drain })
	h.runs.abortIf(errRevoked, func(a *Account) bool { return principals[a.Principal] })
	h.auditRevocation("revoked", subjectsOf(slots, profiles, principals))
}

// renumberSoon publishes the current configuration again if its number has become too low: another gateway's configuration has lost something, and with it every
// earlier projection of the fleet its use. What this gateway still has is good under its next one. It does not wait.
func (h *Hub) renumberSoon() {
	if p := h.lender.projection(); p == nil || p.pgn >= h.lender.view.MinPGN() || !h.renumbering.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer h.renumbering.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		h.renumber(ctx)
	}()
}

func (h *Hub) renumber(ctx context.Context) {
	h.opening.Lock()
	defer h.opening.Unlock()
	cur, least := h.Current(), h.lender.view.MinPGN()
	if p := h.lender.projection(); cur == nil || p == nil || p != cur.projection || p.pgn >= least {
		return // a configuration has started meanwhile, or none is left
	}
	p, err := h.publish(ctx, cur)
	if err != nil || p.pgn < least {
		h.log().Error("publishing the configuration under a number that is still good; it is tried again", zap.Uint64("least", least), zap.Error(err))
		return
	}
	cur.projection = p
	h.lender.set(p)
	h.broadcast()
	h.log().Info("the configuration has another number: a slot, profile or principal was removed at another gateway", zap.Uint64("projection", p.pgn))
}

func subjectsOf(slots, profiles, principals map[string]bool) (out []string) {
	for kind, names := range map[store.SubjectKind]map[string]bool{
		store.SubjectSlot: slots, store.SubjectProfile: profiles, store.SubjectPrincipal: principals,
	} {
		for name := range names {
			out = append(out, store.Subject(kind, name))
		}
	}
	slices.Sort(out)
	return out
}

// removedPrincipals lists the principals whose last key is gone.
func (st *Settings) removedPrincipals(next *Settings) map[string]bool {
	out := map[string]bool{}
	for _, k := range st.Keys {
		out[k.Principal] = true
	}
	for _, k := range next.Keys {
		delete(out, k.Principal)
	}
	return out
}

func (h *Hub) auditRevocation(event string, subjects []string) {
	st := h.Current()
	if st == nil || st.Audit == nil {
		return
	}
	if err := st.Audit(&AuditRecord{Time: time.Now().UTC(), Event: event, Subjects: subjects}); err != nil {
		h.log().Error("writing a revocation to the audit", zap.Strings("subjects", subjects), zap.Error(err))
	}
}

func (l *lender) revocationsChanged() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revoked++
}

func (l *lender) set(p *projection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = p
}
