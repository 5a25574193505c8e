package tunnel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// State is where a session stands. Any message out of its state closes the connection.
type State int32

// The states, in order. A session only moves forward, but for suspect, which is derived (State).
const (
	StateAuthenticated State = iota // TLS is done and the certificate checked
	StateRegistered                 // has a generation
	StateReady                      // may be dispatched to
	StateSuspect                    // ready, but three beats are missing: no new runs
	StateDraining                   // takes no new runs; open ones finish
	StateGone
)

// String returns the state's name as `caddy fairway nodes` shows it.
func (s State) String() string {
	return [...]string{"authenticated", "registered", "ready", "suspect", "draining", "gone"}[s]
}

var errOrder = errors.New("message out of its state")

// Bounds on the control stream.
const (
	// Control messages a second that a node may send, and at once: beats, status changes and answers need a few.
	controlRate  = 100
	controlBurst = 500
	// Control bytes a second, and at once: a whole inventory at its bound, twice.
	controlBytes      = 1 << 20
	controlBytesBurst = 8 << 20
)

// Session is the gateway's end of one node process's registration: one generation, one or more lanes. Goroutines: the one that
// serves it (it reads the control stream) and one that beats; both end with the control lane. Safe for concurrent use.
type Session struct {
	st       *Settings
	id       pki.ID
	peer     bool // another gateway's, not a node's
	remote   net.Addr
	register *Register
	since    time.Time
	expires  time.Time       // of the node's leaf
	ctx      context.Context // of the control lane's connection
	ctl      *control
	lane     *Lane // the control lane; further ones will stand beside it
	beats    beats
	probed   chan struct{} // gets a token for each new echo, best effort

	generation atomic.Uint64 // 0 until the Registrar has admitted the session
	state      atomic.Int32
	suspect    atomic.Bool // what Changed was last told
	told       announcements
	recipient  atomic.Pointer[RecipientKey]

	// sendMu is held from the last fence of a run to its first byte, and by whoever ends the session, so that after
	// Close returns no RunOpen can follow.
	sendMu  sync.Mutex
	stopped bool // guarded by sendMu

	done chan struct{}
}

// Node returns the node's name, which its certificate proves.
func (s *Session) Node() string { return s.id.Name }

// Instance identifies the node's process, in hexadecimal.
func (s *Session) Instance() string { return hex.EncodeToString(s.register.Instance) }

// Generation returns the session's fencing number.
func (s *Session) Generation() uint64 { return s.generation.Load() }

// Labels returns the labels that the node registered with; they must not be changed.
func (s *Session) Labels() map[string]string { return s.register.Labels }

// Software returns the version of the node's program.
func (s *Session) Software() string { return s.register.Software }

// RemoteAddr returns the address that the node dialled from.
func (s *Session) RemoteAddr() net.Addr { return s.remote }

// Since returns when the session was made.
func (s *Session) Since() time.Time { return s.since }

// Lanes returns how many lanes the session has.
func (s *Session) Lanes() int { return 1 }

// Lane returns the lane with the fewest runs.
func (s *Session) Lane() *Lane { return s.lane }

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// State returns where the session stands now.
func (s *Session) State() State {
	st := State(s.state.Load())
	if st == StateReady && s.beats.since(&s.beats.lastSeen) > SuspectAfter {
		return StateSuspect
	}
	return st
}

// advance moves the state forward; it reports false when the session is already past to.
func (s *Session) advance(to State) bool {
	for {
		old := s.state.Load()
		if old >= int32(to) {
			return false
		}
		if s.state.CompareAndSwap(old, int32(to)) {
			return true
		}
	}
}

// Close ends the session with code. Once it returns no run can be opened on it. Later calls do nothing.
func (s *Session) Close(code CloseCode, reason string) {
	// The connection goes first: it frees a writer that holds sendMu while the node reads nothing.
	_ = s.lane.conn.CloseWithError(quic.ApplicationErrorCode(code), reason)
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	s.stopped = true
}

// Drain asks the node to take no new runs; with leave also to dial another gateway. The node answers with Draining.
func (s *Session) Drain(reason string, leave bool) error {
	return s.ctl.send(wire.TypeDrain, &wire.Drain{Reason: reason, Leave: leave})
}

// CancelRun cancels a run for which no stream is left. It names a run and nothing else.
func (s *Session) CancelRun(run string) error {
	return s.ctl.send(wire.TypeCancel, &wire.Cancel{Run: run})
}

// Probe beats out of turn and waits until the node has echoed that or a later beat, 2 s at most. An error means that the
// session looks dead.
func (s *Session) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	beat := s.beats.next(s.st.now)
	sent := make(chan error, 1)
	go func() { sent <- s.ctl.send(wire.TypeHeartbeat, beat) }() // the stream may be blocked; ends within controlTimeout
	for s.beats.echoed.Load() < beat.Seq {
		select {
		case err := <-sent:
			if err != nil {
				return err
			}
			sent = nil
		case <-s.probed:
		case <-s.done:
			return ErrGone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// serve answers the registration, beats, and reads the control stream to its end.
func (s *Session) serve(answer *Registered) (err error) {
	log := s.st.Log.With(zap.String("node", s.Node()), zap.Uint64("generation", s.Generation()), zap.Stringer("remote", s.remote))
	s.advance(StateRegistered)
	s.beats.lastSeen.Store(int64(time.Since(s.beats.born))) // registering took its time; silence counts from here
	beating := make(chan struct{})
	defer func() {
		code, reason := closeFor(err)
		if err != nil && s.ctx.Err() != nil {
			err = classify(context.Cause(s.ctx))
		}
		s.Close(code, reason)
		s.state.Store(int32(StateGone))
		close(s.done)
		<-beating
		s.st.Registrar.Gone(s)
		log.Info("node session ended", zap.Error(err))
	}()
	answer.GatewayTimeNs = s.st.now()
	answer.Gateway, answer.Epoch, answer.Software = s.st.Gateway, s.st.Epoch, s.st.Software
	if err := s.ctl.send(wire.TypeRegistered, answer); err != nil {
		close(beating)
		return err
	}
	log.Info("node registered", zap.String("software", s.Software()))
	s.st.Registrar.Registered(s)
	go func() {
		defer close(beating)
		s.beat()
	}()
	return s.read()
}

func (s *Session) read() error {
	limit, bytes := rate.NewLimiter(controlRate, controlBurst), rate.NewLimiter(controlBytes, controlBytesBurst)
	if s.peer {
		limit, bytes = rate.NewLimiter(peerRate, peerBurst), rate.NewLimiter(peerBytes, peerBytesBurst)
	}
	var seq uint64
	for {
		t, p, err := s.ctl.read()
		if err != nil {
			return err
		}
		if err := limit.Wait(s.ctx); err != nil {
			return err
		}
		if err := bytes.WaitN(s.ctx, len(p)); err != nil {
			return err
		}
		if err := s.handle(t, p, &seq); err != nil {
			return err
		}
	}
}

// handle takes in one control message.
func (s *Session) handle(t wire.Type, p []byte, seq *uint64) error {
	if s.peer {
		return s.handlePeer(t, p, seq)
	}
	state := State(s.state.Load())
	switch t {
	case wire.TypeHeartbeat:
		return s.heartbeat(p)
	case wire.TypeReady:
		if state != StateRegistered {
			return fmt.Errorf("%w: Ready when %s", errOrder, state)
		}
		return s.ready(p)
	case wire.TypeStatus:
		if state != StateReady && state != StateDraining {
			return fmt.Errorf("%w: Status when %s", errOrder, state)
		}
		var m Status
		if err := wire.Unmarshal(p, &m); err != nil {
			return err
		}
		if m.Seq != *seq+1 {
			return fmt.Errorf("%w: Status %d after %d", errOrder, m.Seq, *seq)
		}
		*seq = m.Seq
		return s.st.Registrar.Status(s, m.Targets)
	case wire.TypeDraining:
		return s.draining(p)
	case wire.TypeRenew:
		return s.renew(p)
	case wire.TypeProjectionAck, wire.TypeRevokeAck, wire.TypeIssuerKeysAck:
		n, err := acks(t, p)
		if err != nil {
			return err
		}
		return s.acknowledged(t, n)
	case wire.TypeRecipientKey:
		return s.recipientKey(p)
	case wire.TypeCommandResult:
		// An answer to what this gateway does not send yet: known, of no effect.
		s.st.Registrar.Fenced("unexpected_control")
		return nil
	}
	return fmt.Errorf("%w: frame 0x%x from a node", errOrder, uint64(t))
}

func (s *Session) ready(p []byte) error {
	var m Ready
	if err := wire.Unmarshal(p, &m); err != nil {
		return err
	}
	if m.Generation != s.Generation() {
		return fmt.Errorf("%w: Ready for generation %d in %d", errOrder, m.Generation, s.Generation())
	}
	ctx, cancel := context.WithTimeout(s.ctx, registerTimeout)
	defer cancel()
	// The acknowledgement goes out before the first RunOpen can: the Registrar makes the session dispatchable last.
	if err := s.ctl.send(wire.TypeReadyAck, &wire.ReadyAck{Generation: m.Generation}); err != nil {
		return err
	}
	s.beats.lastSeen.Store(int64(time.Since(s.beats.born)))
	s.advance(StateReady)
	return s.st.Registrar.Ready(ctx, s, m.Targets)
}

func (s *Session) heartbeat(p []byte) error {
	var m wire.Heartbeat
	if err := wire.Unmarshal(p, &m); err != nil {
		return err
	}
	s.notice() // a silence that this beat ends is told of before its end is
	if s.beats.arrived(&m) {
		select {
		case s.probed <- struct{}{}:
		default:
		}
	}
	s.notice()
	return nil
}

// notice tells the Registrar when the session has turned suspect or come back.
func (s *Session) notice() {
	now := s.State() == StateSuspect
	if s.suspect.CompareAndSwap(!now, now) {
		s.changed()
	}
}

// beat sends a heartbeat each interval and closes the session when nothing comes back for the idle timeout, which
// QUIC's own may overstep after a freeze, or for that of another gateway.
func (s *Session) beat() {
	patience := IdleTimeout
	if s.peer {
		patience = PeerIdleTimeout
	}
	tick := time.NewTicker(HeartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		if time.Now().After(s.expires) {
			s.Close(wire.CloseExpired, "the node's certificate has ended")
			return
		}
		if s.beats.since(&s.beats.lastSeen) > patience {
			s.Close(wire.CloseSilent, "no heartbeat")
			return
		}
		s.notice()
		if err := s.ctl.send(wire.TypeHeartbeat, s.beats.next(s.st.now)); err != nil {
			s.Close(wire.CloseSilent, "the control stream is stuck")
			return
		}
	}
}

// draining takes the other end's word that it goes away.
func (s *Session) draining(p []byte) error {
	var m wire.Draining
	if err := wire.Unmarshal(p, &m); err != nil {
		return err
	}
	if s.advance(StateDraining) {
		s.changed()
	}
	return nil
}

func (s *Session) renew(p []byte) error {
	var m wire.Renew
	if err := wire.Unmarshal(p, &m); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, controlTimeout)
	defer cancel()
	chain, err := s.st.Registrar.Renew(ctx, s.id, m.Csr)
	answer := &wire.Renewed{Chain: chain}
	if err != nil {
		s.st.Log.Warn("could not renew a node's certificate", zap.String("node", s.Node()), zap.Error(err))
		answer = &wire.Renewed{Error: "renewal failed"}
	}
	return s.ctl.send(wire.TypeRenewed, answer)
}
