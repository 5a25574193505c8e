package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	renewTimeout = 30 * time.Second
	// renewRetry is the pause after a failed renewal; a leaf that ends sooner is tried again after a tenth of what is left.
	renewRetry = time.Hour
	renewLeast = 5 * time.Second
)

// identity returns the node's identity, renewed if it has expired.
func (l *link) identity(ctx context.Context) (*pki.Identity, error) {
	id, err := l.c.cfg.Identity.Current(ctx)
	if err != nil {
		return nil, err
	}
	if l.rejected != nil && !l.renewed || time.Now().After(id.NotAfter()) {
		if id, err = l.c.replaceExpired(ctx, l.addr, id, l.rejected != nil); err != nil {
			return nil, l.notRenewed(err)
		}
		l.renewed = true
	}
	l.c.adopt(id)
	return id, nil
}

// notRenewed makes the gateway's refusal of the certificate final when a renewal is refused, too, or the gateway is of another fleet.
func (l *link) notRenewed(err error) error {
	var ve *pki.VerifyError
	if l.rejected != nil && (isFinal(err) || errors.As(err, &ve)) {
		return &FinalError{Err: fmt.Errorf("%w (and it cannot be renewed there: %w)", l.rejected, err)}
	}
	return err
}

// adopt makes id the current identity, unless one that lasts longer is.
func (c *Client) adopt(id *pki.Identity) {
	c.name.Store(&id.ID.Name)
	for {
		old := c.identity.Load()
		if old != nil && (old == id || old.NotAfter().After(id.NotAfter())) {
			return
		}
		if c.identity.CompareAndSwap(old, id) {
			return
		}
	}
}

// replaceExpired renews an expired leaf over enrolment. One link at a time: the others then find the new one. judged tells that the
// gateway, and not our clock, calls it expired.
func (c *Client) replaceExpired(ctx context.Context, gateway string, old *pki.Identity, judged bool) (*pki.Identity, error) {
	c.renewing.Lock()
	defer c.renewing.Unlock()
	id, err := c.cfg.Identity.Current(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if now.Before(id.NotAfter()) && (!judged || id.Certificate.Leaf.SerialNumber.Cmp(old.Certificate.Leaf.SerialNumber) != 0) {
		return id, nil
	}
	if until := pki.RenewableUntil(id.Certificate.Leaf); now.After(until) {
		return nil, &FinalError{Err: fmt.Errorf("the certificate of node %s expired on %s, too long ago to be renewed; get a token with `caddy fairway token --node %s` and "+
			"run `fairway-node enroll` with an empty --state-dir (it is %s here: is the clock right?)",
			id.ID.Name, id.NotAfter().UTC().Format(time.DateOnly), id.ID.Name, now.UTC().Format(time.RFC3339))}
	}
	next, err := renewExpired(ctx, gateway, id, c.log)
	if err != nil {
		return nil, fmt.Errorf("renewing the expired certificate: %w", err)
	}
	c.log.Info("renewed the expired certificate", zap.Time("until", next.NotAfter()))
	return next, c.cfg.Identity.Renewed(next)
}

// renewal renews the leaf over a session's control stream when two thirds of its life are over.
func (c *Client) renewal(ctx context.Context) {
	var retry time.Time
	for sleep(ctx, time.Second) {
		id, now := c.identity.Load(), time.Now()
		if id == nil || now.Before(id.RenewAt()) || now.Before(retry) {
			continue
		}
		s := c.readySession()
		if s == nil {
			continue
		}
		next, err := renew(ctx, s, id)
		if err == nil {
			err = c.cfg.Identity.Renewed(next)
		}
		if err != nil {
			retry = now.Add(max(min(renewRetry, time.Until(id.NotAfter())/10), renewLeast))
			c.log.Warn("the certificate could not be renewed", zap.Error(err), zap.Time("ends", id.NotAfter()), zap.Time("next", retry))
			continue
		}
		c.adopt(next)
		c.log.Info("renewed the certificate; sessions change to it when idle", zap.Time("until", next.NotAfter()))
	}
}

func (c *Client) readySession() *tunnel.NodeSession {
	for _, l := range c.links() {
		if s, state := l.current(); state == stateReady && s != nil {
			return s
		}
	}
	return nil
}

func renew(ctx context.Context, s *tunnel.NodeSession, id *pki.Identity) (*pki.Identity, error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	chain, err := s.Renew(ctx, csr)
	if err != nil {
		return nil, err
	}
	next, err := id.Renewed(chain, key)
	if err == nil && !next.NotAfter().After(id.NotAfter()) {
		err = errors.New("the new certificate does not last longer")
	}
	return next, err
}
