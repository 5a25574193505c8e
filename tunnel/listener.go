package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

// Settings are what one loaded configuration tells a Listener. They may be replaced at any time; a handshake uses those that
// are current when it begins. The fields are not changed once the Settings are handed out.
type Settings struct {
	// Gateway is this gateway's name, Epoch its process's incarnation.
	Gateway string
	Epoch   uint64
	// Software is the program's version, for people.
	Software string
	// Identity returns the current leaf; it is asked at every handshake, since leaves are renewed.
	Identity func() (*pki.Identity, error)
	// Registrar admits nodes.
	Registrar Registrar
	// Peers takes in other gateways; nil refuses them.
	Peers Peers
	// Enroller answers enrolment; nil refuses it.
	Enroller Enroller
	// Now is the gateway's time, which nodes are told; nil is the wall clock at start plus what the monotonic clock has measured since.
	Now func() time.Time
	// Log receives the sessions' events.
	Log *zap.Logger
}

// Registrar decides which sessions exist. The fleet implements it over the store. Calls for one session come one at a time.
type Registrar interface {
	// Register admits s and fills in what the node is told. An error that is a *CloseError closes the connection with its code.
	Register(ctx context.Context, s *Session, r *Register) (*Registered, error)
	// Ready makes s dispatchable. Targets are the whole first inventory or its first part.
	Ready(ctx context.Context, s *Session, targets []*Target) error
	// Status takes in a change to the inventory. An error closes the session.
	Status(s *Session, targets []*Target) error
	// Changed tells that the session's state moved between ready, suspect and draining.
	Changed(s *Session)
	// Gone ends s; it comes exactly once for each s that was admitted.
	Gone(s *Session)
	// Renew issues a new leaf to the node.
	Renew(ctx context.Context, id pki.ID, csr []byte) (chain [][]byte, err error)
	// Registered is called once the node has been told its generation and reads the control stream: what it must know before its first lease
	// may be announced. It must not block for long.
	Registered(s *Session)
	// Recipient judges a key for which leases of s are to be sealed. An error closes the session.
	Recipient(s *Session, k *RecipientKey) error
	// Fenced counts a frame or call that was dropped because it came late or from the wrong session.
	Fenced(reason string)
}

// ListenConfig holds what outlives any one configuration.
type ListenConfig struct {
	// StatelessResetKey lets a restarted gateway tell its nodes at once that it has forgotten them. It must persist.
	StatelessResetKey [32]byte
	// TokenKey protects address validation tokens. It should persist.
	TokenKey [32]byte
	// Settings returns the current settings, or nil to refuse handshakes.
	Settings func() *Settings
}

// Listener owns a UDP socket on which nodes dial in. Goroutines: one that accepts, and one per connection; Close waits for all.
type Listener struct {
	cfg         ListenConfig
	conn        net.PacketConn
	transport   *quic.Transport
	ln          *quic.Listener
	registering chan struct{} // one element per connection that has not registered
	enrolling   chan struct{} // one per enrolment
	wg          sync.WaitGroup

	mu    sync.Mutex
	conns map[*quic.Conn]struct{} // guarded by mu
	gone  bool                    // guarded by mu
}

// Listen starts to accept nodes on conn, which it owns from here on, also when it fails.
func Listen(conn net.PacketConn, cfg ListenConfig) (*Listener, error) {
	l := &Listener{cfg: cfg, conn: conn, registering: make(chan struct{}, maxHandshakes), enrolling: make(chan struct{}, maxEnrolments), conns: make(map[*quic.Conn]struct{})}
	reset, token := quic.StatelessResetKey(cfg.StatelessResetKey), quic.TokenGeneratorKey(cfg.TokenKey)
	newcomers := rate.NewLimiter(retryAbove, retryAbove)
	l.transport = &quic.Transport{
		Conn:                steady(conn),
		StatelessResetKey:   &reset,
		TokenGeneratorKey:   &token,
		VerifySourceAddress: func(net.Addr) bool { return !newcomers.Allow() },
	}
	ln, err := l.transport.Listen(gatewayTLS(cfg.Settings, l.refused), quicConfig(gatewayStreams))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("listening for nodes: %w", err)
	}
	l.ln = ln
	l.wg.Go(l.accept)
	return l, nil
}

// Addr returns the socket's address.
func (l *Listener) Addr() net.Addr { return l.conn.LocalAddr() }

func (l *Listener) refused(err error) {
	if st := l.cfg.Settings(); st != nil {
		st.Log.Warn("refused a node's certificate", zap.Error(err))
		st.Registrar.Fenced("bad_identity")
	}
}

// Close closes every connection with code, then the socket, and waits for the sessions to end. QUIC's own Close sends no
// CONNECTION_CLOSE, so the order matters: connections first.
func (l *Listener) Close(code CloseCode, reason string) error {
	l.mu.Lock()
	l.gone = true
	for c := range l.conns {
		_ = c.CloseWithError(quic.ApplicationErrorCode(code), reason)
	}
	l.mu.Unlock()
	err := errors.Join(l.ln.Close(), l.transport.Close(), l.conn.Close())
	l.wg.Wait()
	return err
}

func (l *Listener) accept() {
	for {
		c, err := l.ln.Accept(context.Background())
		if err != nil {
			return // only Close ends the listener
		}
		// Anyone may enrol, so those who try must not keep out those who have an identity.
		pending := l.registering
		if c.ConnectionState().TLS.NegotiatedProtocol == wire.ALPNEnroll {
			pending = l.enrolling
		}
		select {
		case pending <- struct{}{}:
		default:
			_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseRateLimited), "too many connections are registering")
			continue
		}
		if !l.track(c) {
			<-pending
			continue
		}
		l.wg.Go(func() { l.serve(c, pending) })
	}
}

// track remembers c for Close; it reports false, and closes c, when the listener has closed.
func (l *Listener) track(c *quic.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseDraining), "")
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Listener) serve(c *quic.Conn, pending <-chan struct{}) {
	var once sync.Once
	release := func() { once.Do(func() { <-pending }) }
	defer func() {
		release()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}()
	st := l.cfg.Settings()
	if st == nil {
		_ = c.CloseWithError(quic.ApplicationErrorCode(wire.CloseDraining), "no settings are current")
		return
	}
	if c.ConnectionState().TLS.NegotiatedProtocol == wire.ALPNEnroll {
		serveEnroll(c, st)
		return
	}
	serve := serveNode
	if isGateway(c.ConnectionState().TLS) { // and is one: the handshake has checked it
		serve = servePeer
	}
	err := serve(c, st, release)
	code, reason := closeFor(err)
	_ = c.CloseWithError(quic.ApplicationErrorCode(code), reason)
}

// closeFor chooses what the peer is told when err ends its session.
func closeFor(err error) (CloseCode, string) {
	var ce *CloseError
	switch {
	case err == nil:
		return CloseNone, ""
	case errors.As(err, &ce):
		return ce.Code, ce.Reason
	case errors.Is(err, errOrder), errors.Is(err, wire.ErrFrame), errors.Is(err, wire.ErrUnknownCritical):
		return CloseProtocol, err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return CloseProtocol, "no registration in time"
	}
	return CloseInternal, ""
}

// afterConn runs f in a goroutine of its own when c has ended.
func afterConn(c *quic.Conn, f func()) { context.AfterFunc(c.Context(), f) }

// boot is the moment from which now counts, so that a step of the wall clock does not reach nodes as a jump.
var boot = time.Now()

// now returns the gateway's time in Unix nanoseconds.
func (st *Settings) now() int64 {
	if st.Now != nil {
		return st.Now().UnixNano()
	}
	return boot.UnixNano() + int64(time.Since(boot))
}
