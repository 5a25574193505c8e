package gateway

import (
	"context"
	"errors"
	"strings"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// registrar is the fleet, completed with what needs the CA.
type registrar struct {
	*fleet.Fleet
	hub *Hub
}

// Register admits a session, unless the process is about to end: nodes are being sent away then.
func (r *registrar) Register(ctx context.Context, s *tunnel.Session, m *tunnel.Register) (*tunnel.Registered, error) {
	if r.hub.leavingNow() {
		return nil, &tunnel.CloseError{Code: tunnel.CloseDraining, Reason: "the gateway is stopping"}
	}
	if strings.HasPrefix(s.Node(), EmbeddedPrefix) && !r.hub.embeds(s.Node()) {
		return nil, &tunnel.CloseError{Code: tunnel.CloseBadNodeID, Reason: "names that begin with " + EmbeddedPrefix + " are the gateway's own"}
	}
	return r.Fleet.Register(ctx, s, m)
}

// Registered tells a node what leases depend on, if it opens any.
func (r *registrar) Registered(s *tunnel.Session) {
	if err := r.hub.lender.tell(s); err != nil {
		r.hub.log().Warn("telling a node what leases depend on", zap.String("node", s.Node()), zap.Error(err))
	}
}

// Recipient refuses keys for which nothing could be sealed.
func (r *registrar) Recipient(_ *tunnel.Session, k *tunnel.RecipientKey) error {
	return lease.CheckRecipient(k.Kem, k.PublicKey)
}

// Gone ends a session.
func (r *registrar) Gone(s *tunnel.Session) {
	r.hub.lender.forget(s)
	r.Fleet.Gone(s)
}

// Renew issues a new leaf under the name that the session's certificate proves.
func (r *registrar) Renew(ctx context.Context, id pki.ID, csr []byte) ([][]byte, error) {
	st := r.hub.Current()
	if st == nil || st.Authority == nil {
		return nil, errors.New("this gateway issues no certificates")
	}
	if err := r.hub.mayEnroll(ctx, id.Name); err != nil {
		return nil, err
	}
	return st.Authority.IssueCSR(id, csr)
}

var _ tunnel.Registrar = (*registrar)(nil)
