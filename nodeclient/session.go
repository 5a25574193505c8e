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
	stateSpare      = "spare"   // its gateway has a session already, by another address
	stateRefused    = "refused" // for good
	stateStopped    = "stopped"
)

const (
	readyTimeout = 10 * time.Second
	// sayAgain is how often an unchanged trouble is logged once the back-off no longer grows.
	sayAgain = time.Minute
	// sayAway is how often it is logged that an address does not answer while others of its name do.
	sayAway = time.Hour
	// sayGap is the least time between two Status messages: a busy node's changes go out together, well below the 100 messages a second
	// that a gateway takes.
	sayGap = 20 * time.Millisecond
)

// link is a node's tie to one gateway: at most one session at a time, besides one that drains because its gateway left. Its goroutines are run, and the one of
// that session.
type link struct {
	c     *Client
	e     *entry
	addr  string // the entry's
	log   *zap.Logger
	wake  chan struct{} // something changed that the gateway must hear
	again chan struct{} // the session that drained has ended: the next dial may come at once

	parting sync.WaitGroup // of the session that drains
	ended   bool           // guarded by e.mu
	peer    pki.ID         // guarded by e.mu; the gateway of the last session

	// Only run's goroutine uses these.
	good        netip.AddrPort      // the address that answered last
	at          netip.AddrPort      // the address that was dialled last
	seat        pki.ID              // the gateway of the dial or session
	wasUp       bool                // has been ready
	parted      *tunnel.NodeSession // drains by itself
	silentSince time.Time           // zero: the last dial was answered
	saidBlocked bool
	said        string    // the trouble that was logged last
	saidAt      time.Time // and when
	rejected    error     // the gateway has refused our leaf: what it said; nil once it takes one
	renewed     bool      // since rejected

	mu      sync.Mutex
	session *tunnel.NodeSession // guarded by mu; nil without one
	remote  netip.AddrPort      // guarded by mu; of session, or of the gateway that refuses this node
	state   string              // guarded by mu
	since   time.Time           // guarded by mu; of state
	lastErr string              // guarded by mu
	leaving *departure          // guarded by mu; nil without one
}

// departure is a session that drains while its link dials on.
type departure struct {
	session *tunnel.NodeSession
	remote  netip.AddrPort
	since   time.Time
}

func newLink(e *entry) *link {
	return &link{
		c: e.c, e: e, addr: e.addr, log: e.log, wake: make(chan struct{}, 1), again: make(chan struct{}, 1), state: stateConnecting, since: time.Now(),
	}
}

// errAgain ends a session that is to be dialled anew for a good reason.
type errAgain struct{ why string }

func (e *errAgain) Error() string { return e.why }

// run keeps a session with the gateway until ctx ends (then it drains and returns nil) or the gateway refuses for good (*FinalError).
func (l *link) run(ctx context.Context) error {
	defer l.parting.Wait()
	var b backoff
	for {
		changed := l.c.seats.watch()
		err := l.once(ctx, &b)
		if ctx.Err() != nil {
			l.set(stateStopped, nil, nil)
			return nil
		}
		if final := l.final(err); final != nil {
			l.refused(final)
			return final
		}
		switch {
		case errors.Is(err, errTaken):
			sleep(ctx, backoffFirst) // and look what else there is
			continue
		case errors.Is(err, errNowhere):
			if l.e.retire(l) {
				return nil
			}
			l.set(stateSpare, nil, nil)
			l.await(ctx, changed)
			continue
		}
		wait, rose := b.next()
		l.complain(err, rose, wait)
		l.set(stateWaiting, nil, err)
		if l.pause(ctx, wait) {
			b.reset()
		}
	}
}

// refused publishes that the gateway refuses this node for good, and says so unless it was said of another address.
func (l *link) refused(final *FinalError) {
	l.set(stateRefused, nil, final)
	if l.seat != (pki.ID{}) {
		l.c.seats.refuse(l.seat, final.Err)
	}
	if fe := new(FinalError); errors.As(final.Err, &fe) && fe.said {
		return
	}
	text := "the gateway refuses this node for good"
	if st := new(StateError); errors.As(final.Err, &st) {
		text = "the state directory cannot be used"
	}
	l.log.Error(text, l.which(), zap.Error(final.Err))
}

// which is the address that was dialled last, for the log of a name that has several.
func (l *link) which() zap.Field {
	if l.at.IsValid() && l.e.several() {
		return zap.Stringer("at", l.at)
	}
	return zap.Skip()
}

// await waits until there may be something to dial for a link that is spare: a seat became free, or the name stands for something else.
func (l *link) await(ctx context.Context, changed <-chan struct{}) {
	t := time.NewTimer(l.c.resolveEvery)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-changed:
		sleep(ctx, backoffFirst) // whose session it was dials, too
	}
}

// pause waits between two dials. It reports true when the session that drained has ended meanwhile.
func (l *link) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-l.again:
		return true
	}
	return false
}

// once runs one session from the dial to its end, and returns why it ended.
func (l *link) once(ctx context.Context, b *backoff) error {
	if _, state := l.current(); state != stateSpare {
		l.set(stateConnecting, nil, nil)
	}
	if l.silentSince.IsZero() {
		l.silentSince = time.Now()
	}
	id, err := l.identity(ctx)
	if err != nil {
		if l.rejected == nil {
			l.at, l.seat = netip.AddrPort{}, pki.ID{} // not one gateway's word
		}
		l.noteSilence(err) // joining dials too
		return err
	}
	leave := make(chan string, 1)
	v, err := l.c.newVault(id.ID)
	if err != nil {
		return err
	}
	v.owed.wake = l.wake
	s, err := l.dial(ctx, id, v, v.events(tunnel.Events{Drain: func(reason string, goes bool) { l.asked(leave, reason, goes) }}))
	if err != nil {
		return err
	}
	defer func() {
		if l.parted != s {
			l.end(s, v)
			l.c.seats.release(l.seat, l)
		}
	}()
	l.e.wasIn.Store(true)
	l.rejected, l.renewed = nil, false
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
	l.said, l.wasUp = "", true
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
	repeat := time.NewTimer(time.Hour)
	defer repeat.Stop()
	for {
		if wait, ok := v.owed.next(time.Now()); ok {
			repeat.Reset(wait)
		}
		select {
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			l.drain(s, "the node stops", l.c.cfg.Grace)
			return nil
		case reason := <-leave:
			if !l.part(s, v) {
				l.drain(s, "the gateway leaves", l.c.cfg.Grace)
			}
			return &errAgain{"the gateway leaves: " + reason}
		case <-l.wake:
			if err := l.tell(s, v, known); err != nil {
				return err
			}
			sleep(ctx, sayGap)
		case <-repeat.C:
			if err := l.tell(s, v, known); err != nil {
				return err
			}
			sleep(ctx, sayGap)
		case said := <-v.say:
			if err := l.tell(s, v, known); err != nil {
				return err
			}
			close(said)
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
	if l.remote = (netip.AddrPort{}); s != nil || state == stateRefused {
		l.remote = l.at
	}
	switch {
	case err != nil:
		l.lastErr = err.Error()
	case state == stateReady, state == stateSpare:
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
	if ce := new(tunnel.CloseError); errors.As(err, &ce) && ce.Code == tunnel.CloseDraining && l.departing() {
		l.log.Debug("the gateway that leaves takes no session; trying again", zap.Error(err), zap.Duration("after", wait.Round(time.Millisecond)))
		return
	}
	if !l.wasUp && l.e.served(l) {
		if l.said == "" || time.Since(l.saidAt) > sayAway {
			l.said, l.saidAt = text, time.Now()
			l.log.Info("the gateway does not answer at all of its addresses; serving through the others, and trying on", zap.Error(err))
		}
		return
	}
	if text == l.said && !rose && time.Since(l.saidAt) < sayAgain {
		return
	}
	l.said, l.saidAt = text, time.Now()
	l.log.Warn("no session with the gateway; trying again", l.which(), zap.Error(err), zap.Duration("after", wait.Round(time.Millisecond)))
}
