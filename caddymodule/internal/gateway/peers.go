package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// tellEvery is how often another gateway is told what has changed of the nodes here.
	tellEvery = 100 * time.Millisecond
	// tellShare is how many times as long as it took to look for that is waited before the next look, and tellLate the most that is waited.
	tellShare = 20
	tellLate  = 500 * time.Millisecond
	// peerDial bounds one dial of another gateway, and the back-off between two.
	peerDial     = 5 * time.Second
	peerBackoff  = 100 * time.Millisecond
	maxPeerSleep = 5 * time.Second
	// forgetPeer is how long a gateway that the store has not heard of is still dialled.
	forgetPeer = 10 * time.Minute
)

// peers is the other gateways of the fleet: those that the store tells of, and the connections with them. This gateway dials each of them and executes for it; each
// dials this one, and is sent the runs for its nodes. Safe for concurrent use.
type peers struct {
	hub *Hub

	mu    sync.Mutex
	known []store.Gateway            // guarded by mu; as the store told last, this gateway included
	heard time.Time                  // guarded by mu; when it did
	links map[string]*peerLink       // guarded by mu; those that are dialled, by name
	in    map[string]*tunnel.Session // guarded by mu; those that have dialled, by name
	turn  chan struct{}              // capacity 1: known has changed
}

func newPeers(h *Hub) *peers {
	return &peers{hub: h, links: map[string]*peerLink{}, in: map[string]*tunnel.Session{}, turn: make(chan struct{}, 1)}
}

// know takes in the store's list.
func (p *peers) know(all []store.Gateway) {
	p.mu.Lock()
	p.known, p.heard = all, time.Now()
	p.mu.Unlock()
	select {
	case p.turn <- struct{}{}:
	default:
	}
}

// run keeps a link to each other gateway until ctx ends, and then ends them.
func (p *peers) run(ctx context.Context) {
	var going sync.WaitGroup
	defer going.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.turn:
		}
		p.mu.Lock()
		for _, g := range p.known {
			if g.Name == p.hub.cfg.Gateway || g.Advertise == "" || g.Age > forgetPeer {
				continue
			}
			l := p.links[g.Name]
			if l == nil {
				l = &peerLink{peers: p, name: g.Name, wake: make(chan struct{}, 1)}
				p.links[g.Name] = l
				going.Go(func() { l.run(ctx) })
			}
			l.aim(g)
		}
		p.mu.Unlock()
	}
}

// wanted reports whether a gateway is still to be dialled; one that is not is forgotten.
func (p *peers) wanted(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.known {
		if g.Name == name && g.Age+time.Since(p.heard) <= forgetPeer {
			return true
		}
	}
	delete(p.links, name)
	return false
}

// leave tells the others that this gateway takes no new runs from them.
func (p *peers) leave(grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		if s := l.current(); s != nil {
			go func() { _ = s.Drain("the gateway is stopping", grace) }() // bounded by the tunnel's own time-out
		}
	}
}

// Joined implements tunnel.Peers. A second connection with the same gateway takes over from the first, unless it is of an earlier process.
func (p *peers) Joined(s *tunnel.Session) error {
	p.mu.Lock()
	old := p.in[s.Node()]
	if old != nil && old.Generation() > s.Generation() {
		p.mu.Unlock()
		return &tunnel.CloseError{Code: tunnel.CloseReplaced, Reason: "a later process of this gateway is connected"}
	}
	p.in[s.Node()] = s
	p.hub.fleet.PeerJoined(s)
	p.mu.Unlock()
	if old != nil {
		old.Close(tunnel.CloseReplaced, "a newer connection took over")
	}
	return nil
}

// Nodes implements tunnel.Peers.
func (p *peers) Nodes(s *tunnel.Session, nodes []*tunnel.PeerNode) error {
	return p.hub.fleet.PeerNodes(s, nodes)
}

// Changed implements tunnel.Peers.
func (p *peers) Changed(s *tunnel.Session) { p.hub.fleet.PeerChanged(s) }

// Left implements tunnel.Peers.
func (p *peers) Left(s *tunnel.Session) {
	p.mu.Lock()
	if p.in[s.Node()] == s {
		delete(p.in, s.Node())
	}
	p.mu.Unlock()
	p.hub.fleet.PeerLeft(s)
}

// peerLink is this gateway's connection to one other. Its goroutine is run.
type peerLink struct {
	peers *peers
	name  string
	wake  chan struct{} // the other one has begun anew, or is elsewhere: dial at once

	mu      sync.Mutex
	at      store.Gateway       // guarded by mu
	session *tunnel.NodeSession // guarded by mu; nil without one
	said    string              // run's alone; the trouble that was logged last
}

// aim tells the link where the other gateway is now.
func (l *peerLink) aim(g store.Gateway) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.at.Epoch != g.Epoch || l.at.Advertise != g.Advertise
	l.at = g
	if !changed {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *peerLink) aimed() store.Gateway {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

func (l *peerLink) current() *tunnel.NodeSession {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

func (l *peerLink) set(s *tunnel.NodeSession) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = s
}

// run keeps a connection until ctx ends, or the gateway is forgotten.
func (l *peerLink) run(ctx context.Context) {
	wait := peerBackoff
	for ctx.Err() == nil && l.peers.wanted(l.name) {
		began := time.Now()
		err := l.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 2*maxPeerSleep {
			wait, l.said = peerBackoff, ""
		}
		l.complain(err)
		select {
		case <-ctx.Done():
		case <-l.wake:
			wait = peerBackoff
		case <-time.After(wait/2 + rand.N(wait)): //nolint:gosec // jitter
			wait = min(2*wait, maxPeerSleep)
		}
	}
}

func (l *peerLink) complain(err error) {
	text := "the connection ended"
	if err != nil {
		text = err.Error()
	}
	if text == l.said {
		return
	}
	l.said = text
	l.peers.hub.log().Warn("no connection to another gateway; trying again", zap.String("peer", l.name), zap.String("address", l.aimed().Advertise), zap.Error(err))
}

// once is one connection, from the dial to its end.
func (l *peerLink) once(ctx context.Context) error {
	h, to := l.peers.hub, l.aimed()
	st := h.Current()
	if st == nil || st.tunnel == nil {
		return errors.New("no configuration is current")
	}
	id, err := st.Identity()
	if err != nil {
		return err
	}
	dial, cancel := context.WithTimeout(ctx, peerDial)
	defer cancel()
	addr, err := resolvePeer(dial, to.Advertise)
	if err != nil {
		return err
	}
	leaving := make(chan struct{}, 1)
	s, err := tunnel.DialPeer(dial, tunnel.PeerConfig{Identity: id, Addr: addr, Name: l.name, Settings: st.tunnel, Handler: &forwarder{h, l.name}, Drain: func(string) {
		select {
		case leaving <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		return err
	}
	h.log().Info("connected to another gateway", zap.String("peer", l.name), zap.String("address", to.Advertise))
	l.said = ""
	l.set(s)
	defer func() {
		l.set(nil)
		s.Close(tunnel.CloseNone, "")
		<-s.Done()
	}()
	told := fleet.Told{Peer: l.name}
	tick := time.NewTimer(tellEvery)
	defer tick.Stop()
	for {
		began := time.Now()
		nodes := h.fleet.Tell(&told)
		looked := time.Since(began)
		if len(nodes) > 0 {
			if err := s.Nodes(nodes); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Done():
			return s.Err()
		case <-l.wake:
			if to := l.aimed(); to.Epoch > s.Epoch() {
				return errors.New("the other gateway has begun anew")
			}
		case <-tick.C:
			// Looking through ten thousand nodes takes ten milliseconds, in which nobody gets a place.
			tick.Reset(min(max(tellEvery, tellShare*looked), tellLate))
		}
		if time.Now().After(id.NotAfter()) || time.Now().After(s.GatewayLeafExpiry()) {
			return errors.New("a certificate has ended")
		}
		if cur := h.Current(); cur != nil && s.Runs() == 0 {
			if now, err := cur.Identity(); err == nil && now != id && time.Until(id.NotAfter()) < renewPeer {
				return errors.New("the certificate was renewed")
			}
		}
	}
}

// renewPeer is how long before the end of a certificate an idle connection moves to the next.
const renewPeer = 5 * 24 * time.Hour

// resolvePeer finds the address of another gateway: one of a name's, by chance.
func resolvePeer(ctx context.Context, advertise string) (*net.UDPAddr, error) {
	host, port, err := net.SplitHostPort(advertise)
	if err != nil {
		return nil, fmt.Errorf("the other gateway advertises %q: %w", advertise, err)
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return nil, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	a := addrs[rand.N(len(addrs))] //nolint:gosec // spreads the dials
	return &net.UDPAddr{IP: a.Unmap().AsSlice(), Port: n, Zone: a.Zone()}, nil
}

// StoreLag is how long ago a shared store answered this gateway; 0 without one.
func (h *Hub) StoreLag() time.Duration {
	if h.peers == nil {
		return 0
	}
	h.peers.mu.Lock()
	defer h.peers.mu.Unlock()
	if h.peers.heard.IsZero() {
		return 0
	}
	return time.Since(h.peers.heard)
}

// PeerView is what is known of one gateway of the fleet; its JSON names are a contract.
type PeerView struct {
	Gateway   string `json:"gateway"`
	Advertise string `json:"advertise"`
	Software  string `json:"software"`
	Epoch     uint64 `json:"epoch"`
	Nodes     int    `json:"nodes"`
	Runs      int    `json:"runs"`
	// LagMS is how long ago the store heard of it.
	LagMS int64 `json:"lag_ms"`
	// State is alive or silent, as the store has it.
	State string `json:"state"`
	// Serves: it executes runs for this gateway; Uses: this gateway executes runs for it.
	Serves bool `json:"serves"`
	Uses   bool `json:"uses"`
}

// Peers lists the gateways of the fleet, this one included, by name; none without a shared store.
func (h *Hub) Peers() []PeerView {
	if h.peers == nil {
		return nil
	}
	p := h.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	since := time.Since(p.heard)
	out := make([]PeerView, 0, len(p.known))
	for _, g := range p.known {
		g.Age += since
		v := PeerView{
			Gateway: g.Name, Advertise: g.Advertise, Software: g.Software, Epoch: g.Epoch, Nodes: g.Nodes, Runs: g.Runs, LagMS: g.Age.Milliseconds(), State: "silent",
		}
		if g.Alive() {
			v.State = "alive"
		}
		if s := p.in[g.Name]; s != nil {
			v.Serves = s.State() == tunnel.StateReady
		}
		if l := p.links[g.Name]; l != nil {
			v.Uses = l.current() != nil
		}
		if v.Serves || v.Uses || g.Name == h.cfg.Gateway { // what the store knows may be old
			v.State = "alive"
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b PeerView) int { return strings.Compare(a.Gateway, b.Gateway) })
	return out
}

var _ tunnel.Peers = (*peers)(nil)
