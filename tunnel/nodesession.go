package tunnel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// NodeSession is the node's end of a session. Goroutines: one reads the control stream, one beats, one accepts runs, and one per run;
// Done is closed when all have ended. Safe for concurrent use.
type NodeSession struct {
	cfg        DialConfig
	conn       *quic.Conn
	ctl        *control
	peer       bool // with another gateway, for which this one executes
	registered *Registered
	beats      beats
	ready      atomic.Bool // Ready was sent: runs may come from the acknowledgement on
	draining   atomic.Bool
	acked      chan struct{} // closed by ReadyAck
	ackOnce    sync.Once
	renewed    chan *wire.Renewed

	seqMu sync.Mutex // keeps Status in order
	seq   uint64     // guarded by seqMu

	mu   sync.Mutex
	runs map[attempt]*NodeRun // guarded by mu

	wg   sync.WaitGroup
	done chan struct{}
	err  error // set before done is closed
}

func newNodeSession(c *quic.Conn, ctl *control, answer *Registered, cfg DialConfig) *NodeSession {
	s := &NodeSession{
		cfg: cfg, conn: c, peer: cfg.Register == nil, ctl: ctl, registered: answer, beats: beats{born: time.Now()},
		acked: make(chan struct{}), renewed: make(chan *wire.Renewed, 1), runs: make(map[attempt]*NodeRun), done: make(chan struct{}),
	}
	s.wg.Go(s.read)
	s.wg.Go(s.beat)
	s.wg.Go(s.accept)
	go func() {
		<-c.Context().Done()
		s.wg.Wait()
		s.err = classify(context.Cause(c.Context()))
		close(s.done)
	}()
	return s
}

// Generation returns the session's fencing number.
func (s *NodeSession) Generation() uint64 { return s.registered.Generation }

// Epoch returns the incarnation of the gateway's process.
func (s *NodeSession) Epoch() uint64 { return s.registered.Epoch }

// GatewayID returns the gateway's identity, which its certificate proves.
func (s *NodeSession) GatewayID() (pki.ID, error) {
	return pki.IDFromCertificate(s.conn.ConnectionState().TLS.PeerCertificates[0])
}

// Gateway returns the gateway's name.
func (s *NodeSession) Gateway() string { return s.registered.Gateway }

// Limits returns what the gateway takes from a node; nil when it said nothing.
func (s *NodeSession) Limits() *Limits { return s.registered.Limits }

// GatewayTime returns the gateway's clock at registration, in Unix nanoseconds.
func (s *NodeSession) GatewayTime() int64 { return s.registered.GatewayTimeNs }

// GatewayLeafExpiry returns when the gateway's certificate of this connection ends.
func (s *NodeSession) GatewayLeafExpiry() time.Time {
	return s.conn.ConnectionState().TLS.PeerCertificates[0].NotAfter
}

// Done is closed when the session and all its runs have ended; Err then says why.
func (s *NodeSession) Done() <-chan struct{} { return s.done }

// Err returns why the session ended. Call it after Done.
func (s *NodeSession) Err() error { return s.err }

// Runs tells how many runs are open.
func (s *NodeSession) Runs() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}

// Close ends the session; runs are canceled.
func (s *NodeSession) Close(code CloseCode, reason string) {
	_ = s.conn.CloseWithError(quic.ApplicationErrorCode(code), reason)
}

// Ready offers the targets and waits for the acknowledgement. From here on runs come in.
func (s *NodeSession) Ready(ctx context.Context, targets []*Target) error {
	s.ready.Store(true)
	if err := s.ctl.send(wire.TypeReady, &Ready{Generation: s.Generation(), Targets: targets}); err != nil {
		return err
	}
	select {
	case <-s.acked:
		return nil
	case <-s.conn.Context().Done():
		return classify(context.Cause(s.conn.Context()))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Status tells the gateway what has changed.
func (s *NodeSession) Status(targets []*Target) error {
	s.seqMu.Lock()
	defer s.seqMu.Unlock()
	s.seq++
	return s.ctl.send(wire.TypeStatus, &Status{Seq: s.seq, Targets: targets})
}

// Drain says that the node takes no new runs; those that still come are refused.
func (s *NodeSession) Drain(reason string, grace time.Duration) error {
	s.draining.Store(true)
	return s.ctl.send(wire.TypeDraining, &wire.Draining{Reason: reason, GraceMs: uint32(min(grace, 24*time.Hour) / time.Millisecond)})
}

// Renew asks for a new leaf for the key of csr. Not for concurrent use.
func (s *NodeSession) Renew(ctx context.Context, csr []byte) (chain [][]byte, err error) {
	if err := s.ctl.send(wire.TypeRenew, &wire.Renew{Csr: csr}); err != nil {
		return nil, err
	}
	select {
	case r := <-s.renewed:
		if r.Error != "" {
			return nil, fmt.Errorf("the gateway did not renew: %s", r.Error)
		}
		return r.Chain, nil
	case <-s.conn.Context().Done():
		return nil, classify(context.Cause(s.conn.Context()))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Binding returns the connection's exporter value and both leaf hashes, as the gateway's Lane.Binding does.
func (s *NodeSession) Binding() (Binding, error) {
	var b Binding
	var err error
	b.Exporter, b.Node, b.Gateway, err = binding(s.conn, s.cfg.Identity.Certificate.Leaf.Raw)
	return b, err
}

func (s *NodeSession) fail(err error) {
	code, reason := closeFor(err)
	s.Close(code, reason)
}

func (s *NodeSession) read() {
	for {
		t, p, err := s.ctl.read()
		if err == nil {
			err = s.handle(t, p)
		}
		if err != nil {
			s.fail(err) // without effect when the connection has ended
			return
		}
	}
}

func (s *NodeSession) handle(t wire.Type, p []byte) error {
	if s.peer && t != wire.TypeHeartbeat && t != wire.TypeDrain && t != wire.TypeCancel {
		return fmt.Errorf("%w: frame 0x%x from another gateway", errOrder, uint64(t))
	}
	switch t {
	case wire.TypeHeartbeat:
		var m wire.Heartbeat
		if err := wire.Unmarshal(p, &m); err != nil {
			return err
		}
		s.beats.arrived(&m)
		if asked, ok := s.beats.sentAt(m.Echo); ok && m.GatewayTimeNs != 0 && s.cfg.Events.GatewayTime != nil {
			s.cfg.Events.GatewayTime(m.GatewayTimeNs, asked)
		}
		return nil
	case wire.TypeReadyAck:
		var m wire.ReadyAck
		if err := wire.Unmarshal(p, &m); err != nil {
			return err
		}
		if !s.ready.Load() || m.Generation != s.Generation() {
			return fmt.Errorf("%w: ReadyAck for generation %d in %d", errOrder, m.Generation, s.Generation())
		}
		s.ackOnce.Do(func() { close(s.acked) })
	case wire.TypeDrain:
		var m wire.Drain
		if err := wire.Unmarshal(p, &m); err != nil {
			return err
		}
		if f := s.cfg.Events.Drain; f != nil {
			f(m.Reason, m.Leave)
		}
	case wire.TypeCancel:
		var m wire.Cancel
		if err := wire.Unmarshal(p, &m); err != nil {
			return err
		}
		s.mu.Lock()
		for a, run := range s.runs {
			if a.run == m.Run {
				run.abort(errCanceled)
			}
		}
		s.mu.Unlock()
	case wire.TypeRenewed:
		m := new(wire.Renewed)
		if err := wire.Unmarshal(p, m); err != nil {
			return err
		}
		select {
		case s.renewed <- m:
		default: // not asked for
		}
	case wire.TypeProjection, wire.TypeRevoke, wire.TypeIssuerKeys:
		return s.announced(t, p)
	case wire.TypeCommand, wire.TypeOpenLane:
		// A gateway may send these once lanes are in use.
	default:
		return fmt.Errorf("%w: frame 0x%x from a gateway", errOrder, uint64(t))
	}
	return nil
}

// announced takes in what leases depend on, and acknowledges it.
func (s *NodeSession) announced(t wire.Type, p []byte) error {
	switch t {
	case wire.TypeProjection:
		m := new(Projection)
		if err := wire.Unmarshal(p, m); err != nil {
			return err
		}
		if f := s.cfg.Events.Projection; f != nil {
			if err := f(m); err != nil {
				return err
			}
		}
		return s.ctl.send(wire.TypeProjectionAck, &wire.ProjectionAck{Pgn: m.Pgn})
	case wire.TypeRevoke:
		m := new(Revoke)
		if err := wire.Unmarshal(p, m); err != nil {
			return err
		}
		if f := s.cfg.Events.Revoke; f != nil {
			if err := f(m); err != nil {
				return err
			}
		}
		return s.ctl.send(wire.TypeRevokeAck, &wire.RevokeAck{Seq: m.Seq})
	default:
		m := new(wire.IssuerKeys)
		if err := wire.Unmarshal(p, m); err != nil {
			return err
		}
		if f := s.cfg.Events.Keys; f != nil {
			if err := f(m.Keys); err != nil {
				return err
			}
		}
		return s.ctl.send(wire.TypeIssuerKeysAck, &wire.IssuerKeysAck{Seq: m.Seq})
	}
}

// AnnounceRecipient tells the gateway the key for which leases are to be sealed from now on.
func (s *NodeSession) AnnounceRecipient(k *RecipientKey) error {
	return s.ctl.send(wire.TypeRecipientKey, k)
}

// Current reports whether the session may still execute runs.
func (s *NodeSession) Current() bool { return s.ready.Load() && s.conn.Context().Err() == nil }

// beat sends a heartbeat each interval, and gives the session up after RedialAfter without an echo, by the monotonic clock or, after a
// suspend in which that one stood still, by the wall clock.
func (s *NodeSession) beat() {
	tick := time.NewTicker(HeartbeatInterval)
	defer tick.Stop()
	last := time.Now().Round(0)
	for {
		select {
		case <-s.conn.Context().Done():
			return
		case <-tick.C:
		}
		now := time.Now().Round(0)
		asleep := now.Sub(last) > RedialAfter
		last = now
		if asleep || s.beats.since(&s.beats.lastEcho) > RedialAfter {
			s.Close(wire.CloseSilent, "no heartbeat echo")
			return
		}
		if err := s.ctl.send(wire.TypeHeartbeat, s.beats.next(nil)); err != nil {
			s.Close(wire.CloseSilent, "the control stream is stuck")
			return
		}
	}
}

func (s *NodeSession) accept() {
	for {
		stream, err := s.conn.AcceptStream(context.Background())
		if err != nil {
			return
		}
		s.wg.Go(func() { s.serveRun(stream) })
	}
}

var (
	errCanceled = errors.New("canceled by the gateway")
	errEnded    = errors.New("the run has ended")
)

// serveRun reads what opens a run, checks that it is for this session, and hands it to the Handler.
func (s *NodeSession) serveRun(stream *quic.Stream) {
	r := newNodeRun(s, stream)
	defer r.close()
	if err := r.open(); err != nil {
		return
	}
	switch {
	case !s.peer && r.Open.Generation != s.Generation():
		_ = r.Refuse(&Refused{Code: CodeStaleGeneration, Retry: RetryElsewhere, Reason: "another generation"})
		return
	case !s.ready.Load():
		_ = r.Refuse(&Refused{Code: CodeStaleGeneration, Retry: RetryElsewhere, Reason: "not ready"})
		return
	case s.draining.Load():
		_ = r.Refuse(&Refused{Code: CodeDraining, Retry: RetryElsewhere})
		return
	}
	if !s.add(r) {
		_ = r.Refuse(&Refused{Code: CodeBadRun, Retry: RetryNever, Reason: "a run of this id is open"})
		return
	}
	defer s.remove(r)
	s.cfg.Handler.ServeRun(r.ctx, r)
}

func (s *NodeSession) add(r *NodeRun) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := attempt{r.Open.Run, r.Open.Attempt}
	if _, ok := s.runs[a]; ok {
		return false
	}
	s.runs[a] = r
	return true
}

// attempt is one offer of a run. The next may come before the one that was refused has been cleared away.
type attempt struct {
	run string
	n   uint32
}

func (s *NodeSession) remove(r *NodeRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, attempt{r.Open.Run, r.Open.Attempt})
}
