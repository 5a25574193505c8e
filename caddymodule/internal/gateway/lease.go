package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// leastLife is what must be left of a lease's life when it is sent.
const leastLife = 5 * time.Second

// loan is one lease on its way: bound, issued, opened, ended. The goroutine of its run uses it; view may be called by anyone.
type loan struct {
	u     *run
	place *fleet.Place
	bound *bound
	scope lease.Scope
	to    []byte // the node's recipient key

	issued lease.Issued
	record AuditRecord // what every record of it says

	mu     sync.Mutex
	opened bool // guarded by mu
}

// lend freezes what a lease of the run at place is bound to. Nothing is issued yet: that is seal's, once the stream is there. Errors of the session are
// tunnel.ErrGone and tunnel.ErrUnsettled: another node may take the run. Any other error is the lease's, and ends the run.
func (u *run) lend(place *fleet.Place, p *Profile) (*loan, error) {
	hub, x := u.x.h.hub, u.x
	lane := place.Lane()
	now, err := hub.lender.ready(u.ctx, lane.Session())
	if err != nil {
		if u.ctx.Err() != nil {
			return nil, context.Cause(u.ctx)
		}
		return nil, tunnel.ErrUnsettled
	}
	to := lane.Session().Recipient()
	if to == nil {
		return nil, tunnel.ErrUnsettled // its node opens no leases
	}
	// What counts is what is published now: a profile or slot that was taken away since the run was admitted is of no use any more.
	b, ok := now.profiles[p.Name]
	if !ok || b.Adapter != place.Adapter || b.Target != place.Target {
		return nil, u.refuseLease(nil, lease.CodeDisabled)
	}
	bind, err := lane.Binding()
	if err != nil {
		return nil, tunnel.ErrGone
	}
	st := x.h.settings
	n := &loan{u: u, place: place, bound: b, to: to.PublicKey}
	n.scope = lease.Scope{
		Issuer:    pki.ID{TrustDomain: st.TrustDomain, Role: pki.RoleGateway, Name: st.Gateway}.String(),
		Audience:  pki.ID{TrustDomain: st.TrustDomain, Role: pki.RoleNode, Name: place.Node()}.String(),
		Principal: x.principal, Run: x.acc.Run, Attempt: u.attempt, Kind: u.kind(),
		Route: now.route, Slot: b.slot, Profile: b.profile, Version: b.version,
		Target: lease.TargetRef{Adapter: place.Adapter, ID: place.Target, Origin: place.Origin},
		Header: b.Header, PGN: now.pgn, CGN: place.Generation(), Epoch: hub.fleet.Epoch(), Exporter: bind.Exporter, Leaf: bind.Node,
	}
	tag := sha256.Sum256(append([]byte("fairway-lane/v1\x00"), bind.Exporter...))
	n.record = AuditRecord{
		Run: x.acc.Run, Attempt: u.attempt, Principal: x.principal, Route: x.acc.Route, Profile: b.Name, Slot: b.Slot, Version: b.version, Node: place.Node(),
		Target: place.Target, Origin: place.Origin, Lane: base64.RawURLEncoding.EncodeToString(tag[:9]), Generation: place.Generation(), Projection: now.pgn,
	}
	return n, nil
}

// kind is the run's, as leases spell it.
func (u *run) kind() string {
	if u.given != nil && u.given.Kind == tunnel.KindEdge {
		return "edge"
	}
	return "tunnel"
}

// subjects are what a lease names that may be revoked.
func (n *loan) subjects() []string {
	return []string{
		store.Subject(store.SubjectSlot, n.bound.Slot), store.Subject(store.SubjectProfile, n.bound.Name), store.Subject(store.SubjectPrincipal, n.scope.Principal),
	}
}

// seal fences, issues and seals: it is called with the hash of the head that is about to be sent.
func (n *loan) seal(head [sha256.Size]byte) ([]byte, error) {
	hub := n.u.x.h.hub
	if !hub.lender.clock.steady() {
		return nil, n.u.refuseLease(n, lease.CodeClockUnavailable)
	}
	err := hub.cfg.Store.Issue(n.u.ctx, store.Issue{
		Node: n.place.Node(), Gateway: hub.cfg.Gateway, Generation: n.scope.CGN, PGN: n.scope.PGN, Subjects: n.subjects(),
	})
	switch {
	case errors.Is(err, store.ErrRevoked):
		return nil, n.u.refuseLease(n, lease.CodeRevoked)
	case errors.Is(err, store.ErrStaleProjection):
		return nil, n.u.refuseLease(n, lease.CodeStaleProjection)
	case isStale(err):
		return nil, err
	case err != nil:
		return nil, n.u.refuseLease(n, codeLeaseStore)
	}
	n.scope.Request = head
	if n.issued, err = hub.lender.issuer.Issue(&n.scope, n.to, n.bound.value.Bytes()); err != nil {
		return nil, n.u.refuseLease(n, codeLeaseIssue)
	}
	n.record.Lease = n.issued.ID
	if err := n.audit("issued", "", ""); err != nil {
		return nil, n.u.refuseLease(n, codeLeaseAudit)
	}
	hub.lender.count("issued")
	hub.lender.add(n)
	return n.issued.Token, nil
}

// Codes of leases that the gateway could not issue; they belong to those of package lease.
const (
	codeLeaseStore lease.Code = "lease_store_unavailable"
	codeLeaseIssue lease.Code = "lease_not_issued"
	codeLeaseAudit lease.Code = "lease_audit_unavailable"
)

// fence is the last check, under the send lock.
func (n *loan) fence() error {
	hub := n.u.x.h.hub
	switch {
	case !hub.fleet.Current(n.place):
		return fleet.ErrStale
	case n.scope.PGN < hub.lender.view.MinPGN():
		return n.u.refuseLease(n, lease.CodeStaleProjection)
	case hub.lender.view.Revoked(append(n.subjects(), lease.LeaseSubject(n.issued.ID))...):
		return n.u.refuseLease(n, lease.CodeRevoked)
	case n.issued.Expires.Sub(hub.lender.clock.Now()) < leastLife:
		return n.u.refuseLease(n, lease.CodeExpired)
	}
	return nil
}

// refuseLease makes the error of a lease that was not, or will not be, used, and writes it down. n is nil when there was none to speak of.
func (u *run) refuseLease(n *loan, code lease.Code) error {
	u.x.h.hub.lender.count(string(code))
	if n == nil {
		n = &loan{u: u, record: AuditRecord{Run: u.x.acc.Run, Attempt: u.attempt, Principal: u.x.principal, Route: u.x.acc.Route, Node: u.x.acc.Node, Target: u.x.acc.Target}}
	}
	u.x.h.hub.log().Warn("no lease for a run", zap.String("run", n.record.Run), zap.String("code", string(code)), zap.String("node", n.record.Node), zap.String("slot", n.record.Slot))
	if code != codeLeaseAudit {
		_ = n.audit("refused", "", string(code)) // it fails anyway
	}
	return leaseFailure(code)
}

// leaseFailure is what a caller hears of a lease that failed: one of three words, so that it learns nothing of the checks. The code itself stays inside.
func leaseFailure(code lease.Code) *failure {
	class := code.Class()
	switch code {
	case codeLeaseStore, codeLeaseAudit:
		class = lease.Unavailable
	}
	f := fail(string(class), "%s", leaseTexts[class])
	f.inner = string(code)
	return f
}

var leaseTexts = map[lease.Class]string{
	lease.Unavailable: "the provider's credential cannot be used now",
	lease.Denied:      "the provider's credential may not be used",
	lease.Rejected:    "the provider's credential could not be used",
}

// isLeaseCode reports whether a node refused a lease, rather than a run.
func isLeaseCode(code string) bool { return strings.HasPrefix(code, "lease_") }

func (n *loan) audit(event, outcome, code string) error {
	write := n.u.x.h.hub.auditor(n.u.x.h.settings)
	if write == nil {
		return nil
	}
	r := n.record
	r.Time, r.Event, r.Outcome, r.Code = time.Now().UTC(), event, outcome, code
	return write(&r)
}

// auditor is where records go: as the current configuration says, or for a run that outlives it, as its own did.
func (h *Hub) auditor(own *Settings) func(*AuditRecord) error {
	if st := h.Current(); st != nil {
		return st.Audit
	}
	return own.Audit
}

// accepted notes that the node has opened the lease: it says so before it uses the provider.
func (n *loan) accepted() {
	n.mu.Lock()
	n.opened = true
	n.mu.Unlock()
	n.u.x.h.hub.lender.count("opened")
	_ = n.audit("opened", "", "") // the run is under way: what is lost here is said by the log
}

// end writes down how the run ended, or that its node refused it.
func (n *loan) end(refused *tunnel.Refused, err error) {
	hub := n.u.x.h.hub
	hub.lender.remove(n)
	if refused != nil {
		code := refused.Code
		if isLeaseCode(code) {
			if !knownLeaseCode(code) {
				code = "lease_other"
			}
			hub.lender.count(code)
			hub.log().Warn("a node refused a lease", zap.String("run", n.record.Run), zap.String("code", code), zap.String("node", n.record.Node), zap.String("slot", n.record.Slot))
		}
		_ = n.audit("refused", "", code)
		return
	}
	outcome, code := "completed", ""
	if err != nil {
		f := asFailure(err, n.u.x.match.Endpoint, "")
		outcome, code = "failed", f.code
		if f.inner != "" {
			code = f.inner
		}
		if f.code == tunnel.CodeCanceled || f.code == codeClientStalled {
			outcome = "canceled"
		}
	}
	_ = n.audit("ended", outcome, code)
}

// knownLeaseCode reports whether a code that a node sent is one of ours: it goes into metrics.
func knownLeaseCode(code string) bool { return lease.Code(code).Known() }

// drop writes down that a lease was issued and not sent: its run could not be opened. A refusal of its own was written when it was made.
func (n *loan) drop(err error) {
	hub := n.u.x.h.hub
	hub.lender.remove(n)
	var f *failure
	if errors.As(err, &f) && isLeaseCode(f.inner) {
		return
	}
	_ = n.audit("refused", "", "lease_not_sent")
}

func (n *loan) view() LeaseView {
	n.mu.Lock()
	state := "issued"
	if n.opened {
		state = "opened"
	}
	n.mu.Unlock()
	return LeaseView{
		Lease: n.issued.ID, Run: n.record.Run, Principal: n.record.Principal, Route: n.record.Route, Profile: n.record.Profile, Slot: n.record.Slot,
		Version: n.record.Version, Node: n.record.Node, Target: n.record.Target, Generation: n.record.Generation, Projection: n.record.Projection,
		State: state, Issued: n.issued.Expires.Add(-lease.TTL).UTC(),
	}
}

func (l *lender) add(n *loan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[n.issued.ID] = n
}

func (l *lender) remove(n *loan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, n.issued.ID)
}
