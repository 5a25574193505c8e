package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/store"
)

// hubs are the hubs of this process by listen address. Configs share them.
var hubs = caddy.NewUsagePool()

// sharedHub is a hub with what its process keeps for it.
type sharedHub struct {
	*gateway.Hub
	key     string
	listen  string // for people
	gateway string // the name that its store knows it by
	store   *processStore
}

// takeHub returns the hub of v's listen address and takes a reference to it.
func takeHub(ctx caddy.Context, v values) (*sharedHub, error) {
	key, where := v.listen.String(), storageName(ctx.Storage())
	if v.store.redis != nil {
		where = v.store.where()
	}
	made, _, err := hubs.LoadOrNew(key, func() (caddy.Destructor, error) {
		return newHub(key, v, where), nil
	})
	if err != nil {
		return nil, err
	}
	h := made.(*sharedHub) //nolint:errcheck // nothing else is in the pool
	switch {
	case h.gateway != v.name:
		err = fmt.Errorf("name: the gateway that listens on %s is %s and cannot become %s while it runs; change listen too, or restart Caddy", v.listen, h.gateway, v.name)
	case h.store.where != where:
		err = fmt.Errorf("store or storage: the gateway that listens on %s keeps its records in %s and cannot move to %s while it runs; change listen too, or restart Caddy", v.listen, h.store.where, where)
	}
	if err != nil {
		_, _ = hubs.Delete(key)
		return nil, err
	}
	return h, nil
}

func newHub(key string, v values, where string) *sharedHub {
	h := &sharedHub{key: key, listen: v.listen.JoinHostPort(0), gateway: v.name, store: storeOf(v.name, where)}
	h.Hub = gateway.NewHub(gateway.HubConfig{
		Store:   h.store,
		Gateway: v.name,
		Shared:  v.store.redis != nil,
		Listen:  func(ctx context.Context) (net.PacketConn, error) { return listenUDP(ctx, v.listen) },
		Keys: func(ctx context.Context) (reset, token [32]byte, err error) {
			return hubKeys(ctx, h.store.storage.current())
		},
		OnRunEnd: countRun,
		Hold:     func() func() { return hold(h) },
		Exiting:  caddy.Exiting,
	})
	return h
}

// hold takes another reference, so that a config that brings the address back while
// it drains finds the bound socket.
func hold(h *sharedHub) (release func()) {
	_, _, _ = hubs.LoadOrNew(h.key, func() (caddy.Destructor, error) { return h, nil }) // never made here: whoever stops a hub holds it
	return sync.OnceFunc(func() { _, _ = hubs.Delete(h.key) })
}

// prepare gives the hub what only a started config may touch: storage.
func (h *sharedHub) prepare(ctx context.Context, owner *App, storage certmagic.Storage) error {
	h.store.storage.lend(owner, storage)
	if o := owner.values.store.redis; o != nil {
		return h.store.openShared(ctx, *o)
	}
	return h.store.open(ctx)
}

// storeUp tells whether the store answers, and whether it is one that gateways share.
func (h *sharedHub) storeUp() (up, shared bool) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	return !h.store.down.Load(), h.store.redis != nil
}

// liveHubs are the hubs that a config has started, for the admin API and metrics.
func liveHubs() []*sharedHub {
	var out []*sharedHub
	hubs.Range(func(_, value any) bool {
		if h, ok := value.(*sharedHub); ok && h.Current() != nil {
			out = append(out, h)
		}
		return true
	})
	return out
}

// processStore is a gateway's store. It lives as long as the process: a hub
// that comes back, or moves to another address, finds what is revoked and drained,
// and is the same gateway process in the eyes of the store. Before open it may not
// be asked anything, and nobody has a node to ask about.
type processStore struct {
	store.Store // nil before open
	where       string
	gateway     string
	storage     lentStorage

	down atomic.Bool // a shared store cannot be reached

	mu    sync.Mutex
	redis *store.Redis // guarded by mu; nil for a memory store
	epoch uint64       // guarded by mu; 0 before the first Epoch
}

var (
	storesMu sync.Mutex
	stores   = map[string]*processStore{} // guarded by storesMu; by gateway and storage
)

func storeOf(gatewayName, where string) *processStore {
	storesMu.Lock()
	defer storesMu.Unlock()
	key := gatewayName + "\x00" + where
	if s, ok := stores[key]; ok {
		return s
	}
	s := &processStore{where: where, gateway: gatewayName}
	stores[key] = s
	return s
}

// open reads what the last process left. Once a process.
func (s *processStore) open(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Store != nil {
		return nil
	}
	m, err := store.NewMemory(ctx, store.Options{Persist: &records{gateway: s.gateway, storage: &s.storage}})
	if err != nil {
		return err
	}
	s.Store = m
	return nil
}

// storePatience is how long the first configuration waits for a shared store: a server that is started beside the gateway is there by then.
const storePatience = 10 * time.Second

// openShared connects to a shared store, once a process; a later configuration may bring other credentials. A gateway does not start without its store: it
// could not know what is revoked.
func (s *processStore) openShared(ctx context.Context, o store.RedisOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.redis != nil {
		if err := s.redis.Renew(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", o, err)
		}
		return nil
	}
	o.Changed = func(up bool, _ error) { s.down.Store(!up) } // the hub's beat says it in the log
	o.Observe = observeStore
	r, err := store.NewRedis(o)
	if err != nil {
		return err
	}
	for end := time.Now().Add(storePatience); ; {
		if _, err = r.Revocations(ctx); err == nil {
			s.Store, s.redis = r, r
			return nil
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Now().After(end) || ctx.Err() != nil {
			_ = r.Close()
			return fmt.Errorf("%s: %w", o, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(storePatience / 40):
		}
	}
}

// Epoch allocates one number a process, as the store asks for, however many hubs
// the process has had.
func (s *processStore) Epoch(ctx context.Context, gatewayName string) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != 0 {
		return s.epoch, nil
	}
	epoch, err := s.Store.Epoch(ctx, gatewayName)
	if err != nil {
		return 0, err
	}
	s.epoch = epoch
	return epoch, nil
}

// lentStorage is the storage of the config that counts. Each config has its own
// instance and may close it when it goes, so what outlives configs borrows.
type lentStorage struct {
	mu    sync.Mutex
	stack []lent            // guarded by mu; the last one counts
	last  certmagic.Storage // guarded by mu; for a drain after the last config
}

type lent struct {
	owner   *App
	storage certmagic.Storage
}

func (l *lentStorage) lend(owner *App, s certmagic.Storage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stack, l.last = append(l.stack, lent{owner, s}), s
}

func (l *lentStorage) drop(owner *App) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.stack {
		if x.owner == owner {
			l.stack = append(l.stack[:i:i], l.stack[i+1:]...)
			break
		}
	}
	if n := len(l.stack); n > 0 {
		l.last = l.stack[n-1].storage
	}
}

func (l *lentStorage) current() certmagic.Storage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// storageName tells one storage from another, as far as it says who it is.
func storageName(s certmagic.Storage) string {
	if named, ok := s.(fmt.Stringer); ok {
		return named.String()
	}
	return fmt.Sprintf("%T", s)
}

var _ caddy.Destructor = (*sharedHub)(nil)
