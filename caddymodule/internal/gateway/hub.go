package gateway

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// HubConfig is what a Hub needs from whoever loads configurations.
type HubConfig struct {
	Store   store.Store
	Gateway string
	// Listen opens the UDP socket.
	Listen func(ctx context.Context) (net.PacketConn, error)
	// Keys returns the persistent stateless-reset and token keys.
	Keys func(ctx context.Context) (reset, token [32]byte, err error)
	// Shared: other gateways use the store, too; else it is this one's alone.
	Shared bool
	// OnRunEnd is told of every request that was answered.
	OnRunEnd func(*Account)
	// Hold takes another reference to the hub, for as long as a drain lasts; nil takes none.
	Hold func() (release func())
	// Exiting reports whether the process is about to end; nil: no.
	Exiting func() bool
}

// Hub is what outlives a configuration: one UDP socket and what stands on it. A hub that no configuration has started holds no
// socket. Safe for concurrent use.
type Hub struct {
	cfg    HubConfig
	fleet  *fleet.Fleet
	runs   *registry
	bodies budget
	typed  *typedRuns
	lender *lender
	keeper *keeper // nil: the store is this gateway's alone
	peers  *peers  // likewise

	opening     sync.Mutex  // one Start opens, or one retire closes, at a time
	renumbering atomic.Bool // see renumberSoon
	reset       [32]byte    // guarded by opening; QUIC's stateless reset key, once read
	token       [32]byte    // guarded by opening; QUIC's token key, once read
	digest      []byte      // guarded by opening; nil before the keys were read

	stopGoing func() // guarded by opening; ends what goes on while there is a socket; nil without one

	mu       sync.Mutex
	stack    []*Settings      // guarded by mu; started ones, the last is current
	listener *tunnel.Listener // guarded by mu
	inflight int              // guarded by mu
	idle     chan struct{}    // guarded by mu; non-nil while someone waits for inflight to be 0
	draining bool             // guarded by mu; no new runs
	leaving  *time.Timer      // guarded by mu; ends what runs when the grace is over
	embedded *embedded        // guarded by mu
	lastLog  *zap.Logger      // guarded by mu
}

// errStopping ends runs that outlast the grace.
var errStopping = fail(codeDraining, "the gateway is shutting down")

// NewHub returns a hub in memory: no socket, no goroutine.
func NewHub(cfg HubConfig) *Hub {
	h := &Hub{cfg: cfg, runs: newRegistry(), typed: newTypedRuns()}
	h.lender = newLender(systemClock, func(by time.Duration) {
		h.log().Warn("the clock was set; no leases are issued for a moment", zap.Duration("by", by), zap.Duration("pause", lease.TTL))
	})
	fc := fleet.Config{Gateway: cfg.Gateway, Store: cfg.Store, Log: h.log}
	if cfg.Shared {
		h.keeper, h.peers = &keeper{hub: h, soon: make(chan struct{}, 1)}, newPeers(h)
		fc.Owned = h.keeper.owns
	}
	h.fleet = fleet.New(fc)
	return h
}

// Fleet returns the nodes.
func (h *Hub) Fleet() *fleet.Fleet { return h.fleet }

// Current returns the settings of the configuration that was started last, nil without any.
func (h *Hub) Current() *Settings {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.stack) == 0 {
		return nil
	}
	return h.stack[len(h.stack)-1]
}

// log returns the current settings' logger, or during a drain the last one's.
func (h *Hub) log() *zap.Logger {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.stack); n > 0 {
		h.lastLog = h.stack[n-1].Log
	}
	if h.lastLog == nil {
		return zap.NewNop()
	}
	return h.lastLog
}

func (h *Hub) tunnelSettings() *tunnel.Settings {
	if st := h.Current(); st != nil {
		return st.tunnel
	}
	return nil
}

// Start makes st current; the first one opens the socket. After an error st is not current, and what was before goes on.
func (h *Hub) Start(ctx context.Context, st *Settings) error {
	h.opening.Lock()
	defer h.opening.Unlock()
	epoch, err := h.epoch(ctx)
	if err != nil {
		return err
	}
	st.tunnel = &tunnel.Settings{
		Gateway: st.Gateway, Epoch: epoch, Software: st.Software, Identity: st.Identity, Registrar: &registrar{h.fleet, h}, Log: st.Log,
		Now: h.lender.clock.Now,
	}
	if h.peers != nil {
		st.tunnel.Peers = h.peers
	}
	if st.Authority != nil {
		st.tunnel.Enroller = &enroller{hub: h, settings: st}
	}
	if err := h.readKeys(ctx); err != nil {
		return err
	}
	if st.projection, err = h.publish(ctx, st); err != nil {
		return err
	}
	h.lender.set(st.projection)
	h.mu.Lock()
	h.stack = append(h.stack, st)
	h.draining = false
	if h.leaving != nil {
		h.leaving.Stop()
		h.leaving = nil
	}
	open := h.listener == nil
	h.mu.Unlock()
	if open {
		if err := h.open(ctx); err != nil {
			h.remove(st)
			return err
		}
	}
	h.fleet.Show(st.filters().all)
	h.broadcast()
	h.fleet.OpenLine()
	h.embed(st.Embedded)
	return nil
}

// epoch asks the store for this process's incarnation, once.
func (h *Hub) epoch(ctx context.Context) (uint64, error) {
	if e := h.fleet.Epoch(); e != 0 {
		return e, nil
	}
	e, err := h.cfg.Store.Epoch(ctx, h.cfg.Gateway)
	if err != nil {
		return 0, err
	}
	h.fleet.SetEpoch(e)
	return e, nil
}

// readKeys reads what persists, once: QUIC's keys, and what is revoked. h.opening is held.
func (h *Hub) readKeys(ctx context.Context) (err error) {
	if h.digest != nil {
		return nil
	}
	if err := h.recall(ctx); err != nil {
		return err
	}
	if h.reset, h.token, err = h.cfg.Keys(ctx); err == nil {
		h.digest = digestKey(h.reset)
	}
	return err
}

// open binds the socket and accepts nodes. h.opening is held.
func (h *Hub) open(ctx context.Context) error {
	conn, err := h.cfg.Listen(ctx)
	if err != nil {
		return err
	}
	l, err := tunnel.Listen(conn, tunnel.ListenConfig{StatelessResetKey: h.reset, TokenKey: h.token, Settings: h.tunnelSettings})
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.listener = l
	h.mu.Unlock()
	h.keepTurning(true)
	life, end := context.WithCancel(context.Background())
	var going sync.WaitGroup
	going.Go(func() { h.list(life) })
	if h.keeper != nil {
		going.Go(func() { h.keeper.run(life) })
		going.Go(func() { h.peers.run(life) })
	}
	h.stopGoing = func() { end(); going.Wait() }
	h.log().Info("listening for nodes", zap.Stringer("address", l.Addr()))
	return nil
}

// quiet ends what goes on only while there is a socket. h.opening is held.
func (h *Hub) quiet() {
	h.keepTurning(false)
	if h.stopGoing != nil {
		h.stopGoing()
		h.stopGoing = nil
	}
}

// remove takes st off the stack, by identity; it reports whether that was the last one.
func (h *Hub) remove(st *Settings) (last bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.stack, st)
	if i < 0 {
		return false
	}
	h.stack = slices.Delete(h.stack, i, i+1)
	return len(h.stack) == 0
}

// Stop takes st away; what was started before it is current again. Without any the hub retires: in the background, holding a reference of its own,
// or at once when the process ends.
func (h *Hub) Stop(st *Settings) {
	if !h.remove(st) {
		if cur := h.Current(); cur != nil {
			h.embed(cur.Embedded)
			h.retract(st, cur)
		}
		return
	}
	if h.cfg.Exiting != nil && h.cfg.Exiting() {
		h.retire(st)
		return
	}
	release := func() {}
	if h.cfg.Hold != nil {
		release = h.cfg.Hold()
	}
	go func() {
		defer release()
		h.retire(st)
	}()
}

// retire waits for running runs, at most the grace, and closes every lane and then the socket, unless a configuration has started meanwhile.
func (h *Hub) retire(st *Settings) {
	deadline := time.NewTimer(st.Grace)
	defer deadline.Stop()
	select {
	case <-h.whenIdle():
	case <-deadline.C:
		h.runs.abort(errStopping)
		select {
		case <-h.whenIdle():
		case <-time.After(time.Second): // their handlers are on their way out
		}
	}
	h.opening.Lock()
	defer h.opening.Unlock()
	h.mu.Lock()
	l := h.listener
	if len(h.stack) > 0 || l == nil {
		h.mu.Unlock()
		return
	}
	h.listener = nil
	h.mu.Unlock()
	h.embed(nil)
	h.quiet()
	if err := l.Close(tunnel.CloseDraining, "the gateway has stopped"); err != nil && !errors.Is(err, net.ErrClosed) {
		st.Log.Warn("closing the node listener", zap.Error(err))
	}
}

// Announce is told that the process ends: waiting runs end, nodes are asked to look elsewhere, and what still runs after the grace is canceled, so that
// a server which waits for its requests without bound comes to an end.
func (h *Hub) Announce() {
	st := h.Current()
	if st == nil {
		return
	}
	h.mu.Lock()
	if h.draining {
		h.mu.Unlock()
		return
	}
	h.draining = true
	h.leaving = time.AfterFunc(st.Grace, func() { h.runs.abort(errStopping) })
	h.mu.Unlock()
	h.fleet.CloseLine()
	if h.peers != nil {
		h.peers.leave(st.Grace)
	}
	for _, s := range h.fleet.Sessions() {
		go func() { _ = s.Drain("the gateway is stopping", true) }() // bounded by the tunnel's own time-out
	}
}

// leavingNow reports whether the process was announced to end.
func (h *Hub) leavingNow() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

// Addr returns the address on which nodes dial in; nil while there is no socket.
func (h *Hub) Addr() net.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listener == nil {
		return nil
	}
	return h.listener.Addr()
}

// Destruct releases a hub that nobody refers to any more (caddy.Destructor).
func (h *Hub) Destruct() error {
	h.opening.Lock()
	defer h.opening.Unlock()
	h.mu.Lock()
	l := h.listener
	h.listener = nil
	h.mu.Unlock()
	h.embed(nil)
	h.quiet()
	if l == nil {
		return nil
	}
	return l.Close(tunnel.CloseDraining, "the gateway has stopped")
}

// begin counts a run in.
func (h *Hub) begin(acc *Account) error {
	if h.Superseded() { // before h.mu: the keeper takes it with its own
		return errStore
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return fleet.ErrDraining
	}
	h.inflight++
	acc.begun = true
	h.runs.add(acc)
	return nil
}

// end counts it out.
func (h *Hub) end(acc *Account) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs.remove(acc)
	if h.inflight--; h.inflight == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// InFlight tells how many runs there are, those that wait included.
func (h *Hub) InFlight() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inflight
}

// whenIdle returns a channel that is closed when no run is in flight.
func (h *Hub) whenIdle() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan struct{})
	if h.inflight == 0 {
		close(c)
		return c
	}
	if h.idle == nil {
		h.idle = c
	}
	return h.idle
}
