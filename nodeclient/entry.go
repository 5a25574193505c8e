package nodeclient

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// resolveEvery is how often a name is resolved while nothing is dialled: gateways join a fleet.
	resolveEvery = time.Minute
	// spareFor is how long it is believed that an address leads to the gateway that has answered there.
	spareFor = 15 * time.Minute
	// maxLinks bounds the sessions of a node: each gateway is told everything, and beats every second.
	maxLinks = 32
)

// entry is one gateway as the owner gives it, host:port. A name may have several addresses: several gateways may be behind them, and one gateway may have
// several. Each link of an entry keeps a session with one gateway; one more link looks for the gateways at those addresses of which nothing is known yet.
// Its goroutine is run, beside those of its links.
type entry struct {
	c     *Client
	addr  string
	log   *zap.Logger
	wasIn atomic.Bool   // one of its gateways has registered this process before
	done  chan struct{} // closed when all links have ended

	mu      sync.Mutex
	ctx     context.Context           // guarded by mu; of the links, nil before run
	cancel  context.CancelFunc        // guarded by mu
	links   []*link                   // guarded by mu; at least one
	running int                       // guarded by mu; links that have not ended
	known   []netip.AddrPort          // guarded by mu; what the name stood for last
	places  map[netip.AddrPort]*place // guarded by mu
	fatal   error                     // guarded by mu; a refusal that is not one address's
}

// place is what is known of one address. Its entry's mu guards it.
type place struct {
	link     *link     // that has, or had last, its session here; nil
	gateway  pki.ID    // that answered here last
	met      time.Time // when it did
	missed   bool      // the last dial brought no gateway
	answered bool      // one has answered since start
	refused  error     // for good
}

func newEntry(c *Client, addr string) *entry {
	e := &entry{c: c, addr: addr, log: c.log.With(zap.String("address", addr)), done: make(chan struct{}), places: make(map[netip.AddrPort]*place)}
	e.links = []*link{newLink(e)}
	return e
}

// run keeps the links until ctx ends (then it returns nil) or the entry's gateways have refused the node for good: what they said.
func (e *entry) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.c.cut, cancel)()
	e.mu.Lock()
	e.ctx, e.cancel = ctx, cancel
	e.start(e.links[0])
	e.mu.Unlock()
	tick := time.NewTicker(e.c.resolveEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.done:
			return e.refusal()
		case <-tick.C:
			if _, err := e.resolve(ctx); err == nil {
				e.spread()
			}
		}
	}
}

// start begins a link. e.mu is held.
func (e *entry) start(l *link) {
	e.running++
	e.c.linked.Add(1)
	ctx := e.ctx
	go func() { e.ended(l, l.run(ctx)) }()
}

// ended notes how a link has ended; others may go on.
func (e *entry) ended(l *link, err error) {
	defer e.c.linked.Add(-1)
	e.mu.Lock()
	retired := l.ended
	l.ended = true
	for _, p := range e.places {
		if p.link == l {
			p.link = nil
		}
	}
	switch {
	case retired:
		e.links = slices.DeleteFunc(e.links, func(o *link) bool { return o == l })
	case err != nil && l.at.IsValid() && !isDuplicate(err):
		e.place(l.at).refused = err
	case err != nil:
		e.fatal = err
	}
	e.giveUp()
	e.mu.Unlock()
	e.spread()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running--; e.running == 0 {
		close(e.done)
	}
}

// isDuplicate tells whether another process of this node was there first. That is no one gateway's word: were the others of its fleet dialled all the same,
// one that the first process has no session with just now would take this one in its place.
func isDuplicate(err error) bool {
	var ce *tunnel.CloseError
	return errors.As(err, &ce) && ce.Code == tunnel.CloseDuplicateNode
}

// giveUp ends the links when a gateway has refused the node for good and none is left that may take it. Addresses that never led to a gateway keep no node
// alive that its gateway refuses: most are that gateway's own, of an address family that does not work here. e.mu is held.
func (e *entry) giveUp() {
	if e.ctx == nil || !slices.ContainsFunc(e.addresses(), func(a netip.AddrPort) bool { return e.places[a] != nil && e.places[a].refused != nil }) {
		return
	}
	for _, a := range e.addresses() {
		p := e.places[a]
		if p == nil || p.refused == nil && !e.c.seats.refuses(p.gateway) && (p.answered || !p.missed) {
			return
		}
	}
	e.cancel()
}

// addresses are all that matter now. e.mu is held.
func (e *entry) addresses() []netip.AddrPort {
	out := slices.Clone(e.known)
	for a := range e.places {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// refusal returns what the gateways said that refuse the node for good.
func (e *entry) refusal() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	errs := []error{e.fatal}
	for _, a := range e.addresses() {
		if p := e.places[a]; p != nil {
			errs = append(errs, p.refused)
		}
	}
	return errors.Join(errs...)
}

// place finds or makes what is known of an address. e.mu is held.
func (e *entry) place(a netip.AddrPort) *place {
	p := e.places[a]
	if p == nil {
		p = new(place)
		e.places[a] = p
	}
	return p
}

// resolve asks what the name stands for now. What no longer belongs to it is forgotten, unless a session is there.
func (e *entry) resolve(ctx context.Context) ([]netip.AddrPort, error) {
	addrs, err := e.c.lookup.resolve(ctx, e.addr)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known = addrs
	for a, p := range e.places {
		if !slices.Contains(addrs, a) && (p.link == nil || !p.link.live()) {
			delete(e.places, a)
		}
	}
	for i := len(e.links) - 1; i >= 0 && len(e.links) > 1; i-- {
		if l := e.links[i]; l.ended && l.at.IsValid() && e.places[l.at] == nil {
			e.links = slices.Delete(e.links, i, i+1)
		}
	}
	return addrs, nil
}

// open returns where l may dial, in the order in which it should: its own last address, then those that are not known to be silent. Not where another link
// has its place, nor where the gateway of another one answers.
func (e *entry) open(l *link, addrs []netip.AddrPort) []netip.AddrPort {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out, silent []netip.AddrPort
	for _, a := range addrs {
		p := e.places[a]
		switch {
		case p != nil && (p.refused != nil || p.link != nil && p.link != l || e.spare(p, l)):
		case a == l.good:
			out = slices.Insert(out, 0, a)
		case p != nil && p.missed:
			silent = append(silent, a)
		default:
			out = append(out, a)
		}
	}
	return append(out, silent...)
}

// spare tells whether an address leads to the gateway of a link other than l: one more way to it, for that link. e.mu is held.
func (e *entry) spare(p *place, l *link) bool {
	if !p.answered || time.Since(p.met) > spareFor {
		return false
	}
	if h := e.c.seats.of(p.gateway); h != nil {
		return h != l
	}
	return slices.ContainsFunc(e.links, func(o *link) bool { return o != l && !o.ended && o.peer == p.gateway })
}

// met notes which gateway has answered.
func (e *entry) met(a netip.AddrPort, gateway pki.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.place(a)
	p.gateway, p.met, p.answered, p.missed = gateway, time.Now(), true, false
}

// missed notes that a dial has brought no session.
func (e *entry) missed(a netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.place(a).missed = true
	e.giveUp()
}

// settle notes where l has its session, and looks for others at what is left.
func (e *entry) settle(l *link, a netip.AddrPort, gateway pki.ID) {
	e.mu.Lock()
	for _, p := range e.places {
		if p.link == l {
			p.link = nil
		}
	}
	e.place(a).link = l
	l.peer = gateway
	e.mu.Unlock()
	e.spread()
}

// spread begins a link when there are addresses that no link looks after. One at a time: it settles at one of them, or finds that all are spare.
func (e *entry) spread() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == 0 || e.ctx.Err() != nil || e.fatal != nil {
		return
	}
	for _, l := range e.links {
		if !l.ended && !e.settled(l) {
			return
		}
	}
	idle := slices.ContainsFunc(e.known, func(a netip.AddrPort) bool {
		p := e.places[a]
		return p == nil || p.link == nil && p.refused == nil && !e.spare(p, nil)
	})
	if !idle {
		return
	}
	if e.c.linked.Load() >= maxLinks {
		if !e.c.tooMany.Swap(true) {
			e.log.Warn("more gateways than a node keeps sessions with; the others are not dialled", zap.Int("sessions", maxLinks))
		}
		return
	}
	l := newLink(e)
	e.links = append(e.links, l)
	e.start(l)
}

// settled tells whether l has a place. e.mu is held.
func (e *entry) settled(l *link) bool {
	for _, p := range e.places {
		if p.link == l {
			return true
		}
	}
	return false
}

// retire ends a link that has nowhere to dial, unless it is the entry's last one.
func (e *entry) retire(l *link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.ContainsFunc(e.links, func(o *link) bool { return o != l && !o.ended }) {
		e.giveUp() // all that is left may be what refuses this node
		return false
	}
	l.ended = true
	return true
}

// served tells whether a link other than l has a session that is ready.
func (e *entry) served(l *link) bool {
	return slices.ContainsFunc(e.all(), func(o *link) bool {
		_, state := o.current()
		return o != l && state == stateReady
	})
}

// several tells whether the name has more addresses than one.
func (e *entry) several() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.known) > 1
}

// all returns the links.
func (e *entry) all() []*link {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.links)
}
