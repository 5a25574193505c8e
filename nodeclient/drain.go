package nodeclient

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

// drainLinger is how long a draining session stays open after its last run and after its last word. Closing a QUIC connection drops what was
// not acknowledged; a run that the gateway sent before it heard of the drain is refused meanwhile.
const drainLinger = 500 * time.Millisecond

// drain tells the gateway that no new runs are taken, waits for the open ones at most for grace, and closes the session.
func (l *link) drain(s *tunnel.NodeSession, reason string, grace time.Duration) {
	l.set(stateDraining, s, nil)
	l.finish(s, reason, grace)
}

// part lets a session of a gateway that leaves drain by itself, while the link dials: a process may have taken that one's place long before its last run has
// ended. The gateway that leaves takes no registration, so the session is not replaced. Only one session at a time: part reports false when there is
// one that drains already.
func (l *link) part(s *tunnel.NodeSession, v *vault) bool {
	l.mu.Lock()
	if l.leaving != nil {
		l.mu.Unlock()
		return false
	}
	l.leaving = &departure{session: s, remote: l.at, since: time.Now()}
	l.mu.Unlock()
	l.parted = s
	l.c.seats.release(l.seat, l)
	l.parting.Go(func() {
		l.finish(s, "the gateway leaves", l.c.cfg.Grace)
		l.end(s, v)
		l.mu.Lock()
		l.leaving = nil
		l.mu.Unlock()
		poke(l.again)
	})
	return true
}

// departing tells whether a session drains beside the link's own.
func (l *link) departing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving != nil
}

// end closes a session and waits for all of it.
func (l *link) end(s *tunnel.NodeSession, v *vault) {
	s.Close(tunnel.CloseNone, "")
	<-s.Done()
	for _, t := range l.c.targets {
		t.credits.forget(v)
	}
}

// finish drains s as drain says.
func (l *link) finish(s *tunnel.NodeSession, reason string, grace time.Duration) {
	grace = max(grace, 0)
	if err := s.Drain(reason, grace); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(l.c.cut, grace)
	defer cancel()
	if !l.quiet(ctx, s) && s.Runs() > 0 {
		l.log.Warn("closing with open runs", zap.Int("runs", s.Runs()), zap.String("why", reason))
	}
	s.Close(tunnel.CloseNone, reason)
}

// quiet waits until no run has been open for drainLinger; false when ctx or the session ended first.
func (l *link) quiet(ctx context.Context, s *tunnel.NodeSession) bool {
	tick := time.NewTicker(drainLinger / 20)
	defer tick.Stop()
	idle := time.Now()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.Done():
			return false
		case now := <-tick.C:
			if s.Runs() > 0 {
				idle = now
			} else if now.Sub(idle) >= drainLinger {
				return true
			}
		}
	}
}

// lifetime is until when a session may last: its certificates bound it.
type lifetime struct{ drain, end time.Time }

// lifetime returns when a session begins to drain because a leaf ends, and when it ends. The drain begins the grace period before the end,
// but leaves a short-lived leaf half of its time.
func (l *link) lifetime(s *tunnel.NodeSession, id *pki.Identity) lifetime {
	end := id.NotAfter()
	if g := s.GatewayLeafExpiry(); g.Before(end) {
		end = g
	}
	now := time.Now()
	drain := end.Add(-l.c.cfg.Grace)
	if half := now.Add(end.Sub(now) / 2); half.After(drain) {
		drain = half
	}
	return lifetime{drain: drain, end: end}
}

// outlived ends a session whose certificate ends or has been renewed; nil while it may go on. A renewed leaf waits until the session is idle.
func (l *link) outlived(s *tunnel.NodeSession, id *pki.Identity, life lifetime, now time.Time) error {
	switch {
	case !now.Before(life.drain):
		l.drain(s, "a certificate ends", time.Until(life.end))
		s.Close(tunnel.CloseExpired, "a certificate ended")
		return &errAgain{"a certificate of the session ends"}
	case s.Runs() == 0 && l.c.identity.Load() != id:
		l.drain(s, "the certificate was renewed", l.c.cfg.Grace)
		return &errAgain{"the certificate was renewed"}
	}
	return nil
}

// FinalError says that dialling again cannot help: a person has to mend something.
type FinalError struct {
	Err  error
	said bool // it is in the log
}

// Error implements error.
func (e *FinalError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *FinalError) Unwrap() error { return e.Err }

// final returns err as a FinalError if it is one for this link.
func (l *link) final(err error) *FinalError {
	var ce *tunnel.CloseError
	if !errors.As(err, &ce) || !ce.Remote {
		ce = new(tunnel.CloseError)
	}
	switch {
	case (ce.Code == tunnel.CloseIdentity || ce.Code == tunnel.CloseExpired) && l.rejected == nil:
		// TLS says of an expired certificate, too, that it is bad. By the gateway's clock it may have ended while ours is slow, so it is
		// renewed once, by proof of its key, before that is taken for the last word.
		l.rejected = err
		l.log.Info("the gateway does not take this node's certificate; renewing it", zap.Error(err))
		return nil
	case isFinal(err):
		return &FinalError{Err: err}
	}
	return nil
}

// isFinal tells whether err is a refusal that only a person can mend.
func isFinal(err error) bool {
	var ce *tunnel.CloseError
	if errors.As(err, &ce) && ce.Final() {
		return true
	}
	var ee *tunnel.EnrollError
	if errors.As(err, &ee) {
		switch ee.Code {
		case "token_invalid", "token_expired", "token_spent", "revoked", "bad_csr", "not_renewable":
			return true
		}
		return false
	}
	var fe *FinalError
	return errors.As(err, &fe)
}
