package nodeclient

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

// Where a link stands, as `fairway-node status` shows it.
const (
	stateConnecting = "connecting"
	stateRegistered = "registered"
	stateReady      = "ready"
	stateDraining   = "draining"
	stateWaiting    = "waiting" // between two dials
	stateRefused    = "refused" // for good
	stateStopped    = "stopped"
)

const (
	readyTimeout = 10 * time.Second
	// sayAgain is how often an unchanged trouble is logged once the back-off no longer grows.
	sayAgain = time.Minute
	// sayGap is the least time between two Status messages: a busy node's changes go out together, well below the 100 messages a second
	// that a gateway takes.
	sayGap = 20 * time.Millisecond
)

// link is a node's tie to one gateway address: at most one session at a time. Its goroutine is run.
type link struct {
	c    *Client
	addr string
	log  *zap.Logger
	wake chan struct{} // something changed that the gateway must hear

	// Only run's goroutine uses these.
	good        netip.AddrPort // the address that answered last
	silentSince time.Time      // zero: the last dial was answered
	saidBlocked bool
	said        string    // the trouble that was logged last
	saidAt      time.Time // and when
	wasIn       bool      // the gateway has registered this process before
	rejected    error     // the gateway has refused our leaf: what it said; nil once it takes one
	renewed     bool      // since rejected

	mu      sync.Mutex
	session *tunnel.NodeSession // guarded by mu; nil without one
	state   string              // guarded by mu
	since   time.Time           // guarded by mu; of state
	lastErr string              // guarded by mu
}

func newLink(c *Client, addr string) *link {
	return &link{
		c: c, addr: addr, log: c.log.With(zap.String("address", addr)), wake: make(chan struct{}, 1), state: stateConnecting, since: time.Now(),
	}
}

// errAgain ends a session that is to be dialled anew for a good reason.
type errAgain struct{ why string }

func (e *errAgain) Error() string { return e.why }

// run keeps a session with the gateway until ctx ends (then it drains and returns nil) or the gateway refuses for good (*FinalError).
func (l *link) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.c.cut, cancel)()
	var b backoff
	for {
		err := l.once(ctx, &b)
		if ctx.Err() != nil {
			l.set(stateStopped, nil, nil)
			return nil
		}
		if final := l.final(err); final != nil {
			l.set(stateRefused, nil, final)
			text := "the gateway refuses this node for good"
			if st := new(StateError); errors.As(final.Err, &st) {
				text = "the state directory cannot be used"
			}
			l.log.Error(text, zap.Error(final.Err))
			return final
		}
		wait, rose := b.next()
		l.complain(err, rose, wait)
		l.set(stateWaiting, nil, err)
		sleep(ctx, wait)
	}
}

// once runs one session from the dial to its end, and returns why it ended.
func (l *link) once(ctx context.Context, b *backoff) error {
	l.set(stateConnecting, nil, nil)
	if l.silentSince.IsZero() {
		l.silentSince = time.Now()
	}
	id, err := l.identity(ctx)
	if err != nil {
		l.noteSilence(err) // joining dials too
		return err
	}
	leave := make(chan string, 1)
	v, err := l.c.newVault(id.ID)
	if err != nil {
		return err
	}
	s, err := l.dial(ctx, id, v, v.events(tunnel.Events{Drain: func(reason string, goes bool) { l.asked(leave, reason, goes) }}))
	if err != nil {
		return err
	}
	defer func() {
		s.Close(tunnel.CloseNone, "")
		<-s.Done()
	}()
	l.wasIn, l.rejected, l.renewed = true, nil, false
	if err := v.attach(s); err != nil {
		return err
	}
	l.set(stateRegistered, s, nil)
	l.registered(s)
	known := make(told, len(l.c.targets))
	if err := l.makeReady(ctx, s, known); err != nil {
		return err
	}
	b.reset()
	l.said = ""
	l.set(stateReady, s, nil)
	l.log.Info("ready", zap.String("gateway", s.Gateway()), zap.Uint64("generation", s.Generation()))
	return l.keep(ctx, s, v, id, known, leave)
}

// registered remembers the generation and compares the clocks.
func (l *link) registered(s *tunnel.NodeSession) {
	if err := l.c.marks.raise(l.addr, s.Gateway(), s.Generation()); err != nil {
		l.log.Warn("the generation could not be kept", zap.Error(err))
	}
	if ns := s.GatewayTime(); ns != 0 {
		l.c.checkClock(time.Unix(0, ns))
	}
}

// checkClock warns, once a process, when the gateway's clock and ours are far apart.
func (c *Client) checkClock(gateway time.Time) {
	here := time.Now()
	if skew, warn := pki.CheckClock(gateway, here); warn {
		if s, ok := c.cfg.Identity.(*StateIdentity); ok && s.clock.Swap(true) {
			return // said when it joined
		}
		c.clock.Do(func() {
			c.log.Warn("the clocks of this machine and the gateway differ; certificates depend on them",
				zap.Time("here", here.UTC()), zap.Time("gateway", gateway.UTC()), zap.Duration("difference", skew.Round(time.Second)))
		})
	}
}

// keep serves until the session, the node or the certificate ends.
func (l *link) keep(ctx context.Context, s *tunnel.NodeSession, v *vault, id *pki.Identity, known told, leave <-chan string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	life := l.lifetime(s, id)
	for {
		select {
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			l.drain(s, "the node stops", l.c.cfg.Grace)
			return nil
		case reason := <-leave:
			l.drain(s, "the gateway leaves", l.c.cfg.Grace)
			return &errAgain{"the gateway leaves: " + reason}
		case <-l.wake:
			if err := l.tell(s, known); err != nil {
				return err
			}
			sleep(ctx, sayGap)
		case now := <-tick.C:
			if err := v.turn(now); err != nil {
				return err
			}
			if again := l.outlived(s, id, life, now); again != nil {
				return again
			}
		}
	}
}

// asked is called when the gateway asks the node to drain.
func (l *link) asked(leave chan<- string, reason string, goes bool) {
	l.log.Info("the gateway asks to drain", zap.String("reason", reason), zap.Bool("leaves", goes))
	if !goes {
		return // the operator takes the node out; the gateway itself sends no runs, and will when it is put back
	}
	select {
	case leave <- reason:
	default:
	}
}

// set publishes where the link stands. Without an error of its own a state keeps the last one, until a session is ready.
func (l *link) set(state string, s *tunnel.NodeSession, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != state {
		l.state, l.since = state, time.Now()
	}
	l.session = s
	switch {
	case err != nil:
		l.lastErr = err.Error()
	case state == stateReady:
		l.lastErr = ""
	}
}

// current returns the session and where it stands.
func (l *link) current() (*tunnel.NodeSession, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session, l.state
}

// complain logs why the session ended: each cause once per step of the back-off, then once a minute.
func (l *link) complain(err error, rose bool, wait time.Duration) {
	var again *errAgain
	if errors.As(err, &again) {
		l.log.Info("dialling again", zap.String("why", again.why))
		return
	}
	text := "the session ended"
	if err != nil {
		text = err.Error()
	}
	if text == l.said && !rose && time.Since(l.saidAt) < sayAgain {
		return
	}
	l.said, l.saidAt = text, time.Now()
	l.log.Warn("no session with the gateway; trying again", zap.Error(err), zap.Duration("after", wait.Round(time.Millisecond)))
}
