package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// recipientLife is how long a session's key is used; leases recorded before cannot be opened by anyone once it is dropped.
	recipientLife = time.Hour
	// recipientAfter is how long the key before is kept, for leases that are under way: a lease's lifetime and leeway.
	recipientAfter = lease.TTL + 2*time.Second
	// maxProjections is how many projections a session remembers: leases under the one before are on their way when the next one comes.
	maxProjections = 8
	// Bounds on what a gateway may announce.
	maxProfiles = 10_000
	maxRevoked  = 100_000
)

// vault is what one session needs to open leases: keys, the gateway's time, what it has published and what is revoked. It ends with the session, and
// its keys with it. It implements tunnel.Handler: the runs of the session. Safe for concurrent use.
type vault struct {
	c      *Client
	self   pki.ID
	keys   *lease.Issuers
	view   lease.View
	clock  gatewayTime
	opener lease.Opener
	life   time.Duration      // of a recipient key
	born   time.Time          // before the session was dialled
	owed   owed               // what the gateway is to hear again
	say    chan chan struct{} // asks the session's link to say at once what has changed, and to close the channel when that is sent

	mu          sync.Mutex
	session     *tunnel.NodeSession  // guarded by mu; nil until attached
	binding     tunnel.Binding       // guarded by mu; of session
	gateway     string               // guarded by mu; its SPIFFE id
	recipients  []*lease.Recipient   // guarded by mu; newest last
	seq         uint64               // guarded by mu; of the newest
	since       time.Time            // guarded by mu; when the newest was announced
	projections []*tunnel.Projection // guarded by mu; newest last
	revoked     int                  // guarded by mu; subjects taken in since the last reset
}

func (c *Client) newVault(self pki.ID) (*vault, error) {
	v := &vault{
		c: c, self: self, keys: lease.NewIssuers(c.cfg.LeaseIssuers), life: recipientLife, born: time.Now(), say: make(chan chan struct{}),
	}
	r, err := lease.NewRecipient()
	if err != nil {
		return nil, err
	}
	v.recipients, v.seq, v.since = []*lease.Recipient{r}, 1, v.born
	v.opener = lease.Opener{Issuers: v.keys, Recipients: v.live, Now: v.clock.Now, View: &v.view}
	return v, nil
}

// key is the newest key as it is announced.
func (v *vault) key() *tunnel.RecipientKey {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.recipients[len(v.recipients)-1]
	return &tunnel.RecipientKey{Seq: v.seq, Kem: uint32(lease.KEM), PublicKey: r.Public(), NotAfterMs: (v.life + recipientAfter).Milliseconds()}
}

func (v *vault) live() []*lease.Recipient {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.recipients)
}

// attach ties the vault to its session, before the first run can come.
func (v *vault) attach(s *tunnel.NodeSession) error {
	b, err := s.Binding()
	if err != nil {
		return err
	}
	id, err := s.GatewayID()
	if err != nil {
		return err
	}
	if ns := s.GatewayTime(); ns != 0 {
		v.clock.heard(ns, v.born)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.session, v.binding, v.gateway = s, b, id.String()
	return nil
}

// turn makes a new recipient key when the current one is old enough, and drops the one before when its leases have expired.
func (v *vault) turn(now time.Time) error {
	v.mu.Lock()
	age := now.Sub(v.since)
	if len(v.recipients) > 1 && age > recipientAfter {
		v.recipients = v.recipients[len(v.recipients)-1:]
	}
	s := v.session
	v.mu.Unlock()
	if age < v.life || s == nil {
		return nil
	}
	r, err := lease.NewRecipient()
	if err != nil {
		return err
	}
	v.mu.Lock()
	v.recipients, v.since = append(v.recipients, r), now
	v.seq++
	v.mu.Unlock()
	return s.AnnounceRecipient(v.key())
}

// events are what the control stream brings for the vault. Every one but the time is acknowledged once it was taken in.
func (v *vault) events(e tunnel.Events) tunnel.Events {
	e.GatewayTime = v.clock.heard
	e.Keys = func(keys []*tunnel.IssuerKey) error {
		set := make([]lease.IssuerKey, 0, len(keys))
		for _, k := range keys {
			set = append(set, lease.IssuerKey{Thumbprint: k.Thumbprint, Public: k.PublicKey})
		}
		if err := v.keys.Announce(set); err != nil {
			v.c.log.Error("the gateway's lease issuer is not taken", zap.Error(err))
			return err
		}
		return nil
	}
	e.Projection = v.publish
	e.Revoke = v.revoke
	return e
}

// announceTime bounds how long the end of a run may wait for announce, beyond a probe that is under way.
const announceTime = 2 * time.Second

// announce asks a provider what it holds and tells the gateway, before it hears that the run has ended that changed it: its caller may ask for the new model at
// once, as it could at the provider.
func (v *vault) announce(ctx context.Context, t *target) {
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	t.probe(ctx, 0)
	said := make(chan struct{})
	select {
	case v.say <- said:
	case <-ctx.Done():
		return
	}
	select {
	case <-said:
	case <-ctx.Done():
	}
}

// publish takes in a projection.
func (v *vault) publish(p *tunnel.Projection) error {
	if len(p.Profiles) > maxProfiles || len(p.Routes) > maxProfiles {
		return fmt.Errorf("projection of %d profiles and %d routes", len(p.Profiles), len(p.Routes))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := len(v.projections); n > 0 && p.Pgn <= v.projections[n-1].Pgn {
		return fmt.Errorf("projection %d after %d", p.Pgn, v.projections[n-1].Pgn)
	}
	if len(v.projections) == maxProjections {
		v.projections = slices.Delete(v.projections, 0, 1)
	}
	v.projections = append(v.projections, p)
	return nil
}

// revoke takes in revocations. Runs under way are the gateway's to end: it knows which of them may go on.
func (v *vault) revoke(r *tunnel.Revoke) error {
	v.mu.Lock()
	if r.Reset_ {
		v.revoked = 0
	}
	v.revoked += len(r.Objects)
	many := v.revoked > maxRevoked
	v.mu.Unlock()
	if many {
		return errors.New("more revocations than a node remembers")
	}
	if r.Reset_ {
		v.view.Replace(r.Objects, r.MinPgn)
	} else {
		v.view.Add(r.Objects, r.MinPgn)
	}
	return nil
}

// ServeRun implements tunnel.Handler.
func (v *vault) ServeRun(ctx context.Context, r *tunnel.NodeRun) { v.c.serveRun(ctx, r, v) }

// check judges a run's lease, without opening or burning it. Its errors are *lease.Error.
func (v *vault) check(r *tunnel.NodeRun, t *target) (*lease.Checked, error) {
	scope, published := v.scope(r.Open, t)
	scope.Request = r.Head
	k, err := v.opener.Check(r.Lease, scope)
	var le *lease.Error
	if !published && errors.As(err, &le) && le.Code == lease.CodeMismatch {
		return nil, &lease.Error{Code: lease.CodeStaleProjection}
	}
	return k, err
}

// scope is the run as this node sees it: nothing of it is taken from the lease. published is false when the gateway has not announced the projection that
// the run names, or no such profile in it.
func (v *vault) scope(o *tunnel.RunOpen, t *target) (s lease.Scope, published bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s = lease.Scope{
		Issuer: v.gateway, Audience: v.self.String(), Run: o.Run, Attempt: o.Attempt, Kind: "tunnel", PGN: o.Projection,
		Target: lease.TargetRef{Adapter: t.kind, ID: t.name, Origin: t.adapter.Origin()},
		CGN:    v.session.Generation(), Epoch: v.session.Epoch(), Exporter: v.binding.Exporter, Leaf: v.binding.Node,
	}
	if o.Kind == tunnel.KindEdge {
		s.Kind = "edge"
	}
	i := slices.IndexFunc(v.projections, func(p *tunnel.Projection) bool { return p.Pgn == o.Projection })
	if i < 0 {
		return s, false
	}
	p := v.projections[i]
	for _, r := range p.Routes {
		if r.Id == o.Route {
			s.Route = lease.Ref{ID: r.Id, Rev: r.Revision}
		}
	}
	for _, pr := range p.Profiles {
		if pr.Id == o.Profile && pr.Adapter == t.kind && pr.Target == t.name {
			s.Profile, s.Slot = lease.Ref{ID: pr.Id, Rev: pr.Revision}, lease.Ref{ID: pr.Slot, Rev: pr.SlotRevision}
			s.Version, s.Header = pr.SlotVersion, pr.Header
			return s, true
		}
	}
	return s, false
}

// open burns the lease and opens it into memory that the caller clears.
func (v *vault) open(k *lease.Checked) (*lease.Secret, error) {
	secret, err := lease.NewSecret()
	if err != nil {
		return nil, &lease.Error{Code: lease.CodeOpenFailed}
	}
	v.mu.Lock()
	s := v.session
	v.mu.Unlock()
	if err := v.opener.Open(k, s.Current, secret); err != nil {
		secret.Clear()
		return nil, err
	}
	return secret, nil
}

// leaseCode is what the gateway is told of a lease that was refused.
func leaseCode(err error) string {
	var le *lease.Error
	if errors.As(err, &le) {
		return string(le.Code)
	}
	return string(lease.CodeMalformed)
}
