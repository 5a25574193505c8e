package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// maxPeerNodes bounds how many nodes one other gateway may tell of.
const maxPeerNodes = 20000

// Peer is another gateway of the fleet, which has dialled this one and executes: *tunnel.Session, or a test's. Peers are compared by identity.
type Peer interface {
	Node() string // the gateway's name
	RemoteAddr() net.Addr
	Lane() *tunnel.Lane
	State() tunnel.State
}

// remoteSession is a node's session with another gateway, as that one tells of it. Its lane is the one to the gateway. Guarded by Fleet.mu.
type remoteSession struct {
	peer       Peer
	name       string
	generation uint64
	labels     map[string]string
	software   string
	since      time.Time
	state      tunnel.State
}

func (s *remoteSession) Node() string                   { return s.name }
func (s *remoteSession) Instance() string               { return "" }
func (s *remoteSession) Generation() uint64             { return s.generation }
func (s *remoteSession) Labels() map[string]string      { return s.labels }
func (s *remoteSession) Software() string               { return s.software }
func (s *remoteSession) RemoteAddr() net.Addr           { return s.peer.RemoteAddr() }
func (s *remoteSession) Since() time.Time               { return s.since }
func (s *remoteSession) Lanes() int                     { return 1 }
func (s *remoteSession) Lane() *tunnel.Lane             { return s.peer.Lane() }
func (s *remoteSession) Probe(context.Context) error    { return errNotHere }
func (s *remoteSession) Drain(string, bool) error       { return errNotHere }
func (s *remoteSession) Close(tunnel.CloseCode, string) {}

var errNotHere = errors.New("the session is with another gateway")

// State is the node's as the gateway told it last, unless the way to the gateway itself is in another.
func (s *remoteSession) State() tunnel.State {
	if st := s.peer.State(); st != tunnel.StateReady {
		return st
	}
	return s.state
}

// remoteKey is the key of another gateway's node in Fleet.nodes: no node's name has an @ in it.
func remoteKey(name, gateway string) string { return name + "@" + gateway }

// key is where n stands in Fleet.nodes.
func (n *node) key() string {
	if n.peer == nil {
		return n.name
	}
	return remoteKey(n.name, n.gateway)
}

// named visits the records of a name: this gateway's first. f.mu is held.
func (f *Fleet) named(name string) iter.Seq[*node] {
	return func(yield func(*node) bool) {
		if n := f.nodes[name]; n != nil && !yield(n) {
			return
		}
		for _, n := range f.remote[name] {
			if !yield(n) {
				return
			}
		}
	}
}

// shadowed reports whether n is another gateway's and the node can be reached from here directly. f.mu is held.
func (n *node) shadowed() bool {
	if n.peer == nil {
		return false
	}
	own := n.fleet.nodes[n.name]
	return own != nil && own.live()
}

// unshadow gives those in line the places that a node has by way of other gateways, after its own session with this one has changed. f.mu is held.
func (f *Fleet) unshadow(name string) {
	for _, n := range f.remote[name] {
		f.dispatch(n.seat)
	}
}

// forgetAway drops what is remembered of a node that went, at any gateway, now that it has a session. f.mu is held.
func (f *Fleet) forgetAway(back *node) {
	for n := range f.named(back.name) {
		if n != back && n.peer != nil && !n.goneAt.IsZero() {
			f.forget(n)
		}
	}
	if own := f.nodes[back.name]; back.peer != nil && own != nil && own.seat != nil && !own.goneAt.IsZero() {
		f.index.forget(own.seat)
		own.seat = nil
	}
}

// PeerNodes takes in what another gateway tells of its nodes. An error is that gateway's fault, and closes its connection.
func (f *Fleet) PeerNodes(p Peer, nodes []*tunnel.PeerNode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.newest(p) {
		f.Fenced("stale_peer")
		return nil
	}
	for _, m := range nodes {
		all, err := f.gather(p, m)
		for i := 0; i < len(all) && err == nil; i++ {
			err = f.peerNode(p, all[i])
		}
		if err != nil {
			return closeErr(tunnel.CloseProtocol, "node %s of gateway %s: %v", m.Name, p.Node(), err)
		}
	}
	return nil
}

// maxPieces bounds in how many pieces one node is told: each but the last has some 96 KiB of an inventory of 4 MiB, or of what is loaded.
const maxPieces = 128

// gather keeps the pieces of a node until they are all there: between two of them its models would be gone for a moment. It returns what can be taken in now. f.mu
// is held.
func (f *Fleet) gather(p Peer, m *tunnel.PeerNode) ([]*tunnel.PeerNode, error) {
	all := append(f.pieces[p], m)
	if len(all) > maxPieces || all[0].Name != m.Name || all[0].Generation != m.Generation {
		return nil, errors.New("pieces that do not belong together, or too many")
	}
	if m.More {
		f.pieces[p] = all
		return nil, nil
	}
	delete(f.pieces, p)
	return all, nil
}

// PeerJoined notes the newest connection with a gateway: what an older one still says is of no effect.
func (f *Fleet) PeerJoined(p Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers[p] = 0
	f.speaks[p.Node()] = p
}

// newest reports whether p is the newest connection with its gateway, by what they have told: what one that was replaced still says late is of no effect, or
// the nodes that the newer one has told of already would end with it. f.mu is held.
func (f *Fleet) newest(p Peer) bool {
	if _, ok := f.peers[p]; !ok {
		f.peers[p] = 0
		f.speaks[p.Node()] = p
	}
	return f.speaks[p.Node()] == p
}

// peerNode takes in one of them. f.mu is held.
func (f *Fleet) peerNode(p Peer, m *tunnel.PeerNode) error {
	n := f.nodes[remoteKey(m.Name, p.Node())]
	if m.State == tunnel.PeerGone {
		if n != nil && n.peer == p {
			f.peerNodeGone(n)
		}
		return nil
	}
	state, ok := peerStates[m.State]
	if !ok {
		return errors.New("in no state that there is")
	}
	if y := time.UnixMilli(m.SinceMs).UTC().Year(); y < 1 || y > 9998 {
		return errors.New("since when cannot be shown")
	}
	if n == nil || n.peer != p || !n.goneAt.IsZero() || n.seat.session.Generation() != m.Generation {
		if f.peers[p] >= maxPeerNodes && (n == nil || n.peer != p || !n.goneAt.IsZero()) {
			return fmt.Errorf("more than %d nodes", maxPeerNodes)
		}
		n = f.sitRemote(p, n, m)
	}
	s := n.seat.session.(*remoteSession) //nolint:errcheck // sitRemote's
	if s.state != state {
		s.state = state
		f.changed()
	}
	n.seat.heard++
	holds := n.seat.holds
	for _, c := range m.Targets {
		if t := n.seat.targets[c.Name]; t == nil || t.reachable != c.Reachable || !t.hasLoaded(c.Loaded) {
			f.changed()
			continue
		}
		if !c.Reset_ {
			c.Loaded = nil // as it was
		}
	}
	if err := n.seat.apply(m.Targets); err != nil {
		return err
	}
	if n.seat.holds != holds {
		f.changed()
	}
	for _, t := range n.seat.targets {
		clear(t.elsewhere)
		t.others, t.full = 0, false
	}
	for _, k := range m.Taken {
		t := n.seat.targets[k.Target]
		if t == nil || k.Credits > maxCredits || len(k.Model) > maxNameBytes {
			return fmt.Errorf("credits taken of a target that it does not have, or too many")
		}
		t.full = t.full || k.Full
		if k.Credits == 0 {
			continue
		}
		if t.elsewhere == nil {
			t.elsewhere = map[string]int{}
		}
		if len(t.elsewhere) > maxModels {
			return errInventory
		}
		t.elsewhere[k.Model] += int(k.Credits)
		t.others += int(k.Credits)
	}
	f.dispatch(n.seat)
	return nil
}

// hasLoaded reports whether the list of loaded models is what it was.
func (t *target) hasLoaded(l *tunnel.Loaded) bool {
	if l == nil {
		return true
	}
	if len(l.Models) != len(t.loaded) {
		return false
	}
	for _, m := range l.Models {
		if have, ok := t.loaded[ollama.ModelKey(m.Name)]; !ok || !bytes.Equal(have.Raw, m.Json) {
			return false
		}
	}
	return true
}

var peerStates = map[tunnel.PeerNodeState]tunnel.State{
	tunnel.PeerReady: tunnel.StateReady, tunnel.PeerSuspect: tunnel.StateSuspect, tunnel.PeerDraining: tunnel.StateDraining,
}

// sitRemote gives a node of another gateway a seat. old is its record, or nil. f.mu is held.
func (f *Fleet) sitRemote(p Peer, old *node, m *tunnel.PeerNode) *node {
	if old != nil {
		if old.goneAt.IsZero() {
			f.here--
			f.peers[old.peer]--
		}
		f.forget(old)
		if old.goneAt.IsZero() {
			old.goneAt = f.cfg.Now() // places there are of no effect any more
		}
	}
	f.sweep()
	n := &node{name: m.Name, peer: p, gateway: p.Node(), fleet: f}
	n.seat = &seat{node: n, index: f.index, since: f.cfg.Now(), ready: true, targets: make(map[string]*target), session: &remoteSession{
		peer: p, name: m.Name, generation: m.Generation, labels: m.Labels, software: m.Software, since: time.UnixMilli(m.SinceMs),
	}}
	if own := f.nodes[m.Name]; own != nil {
		n.draining = own.draining
	}
	f.forgetAway(n)
	f.nodes[n.key()] = n
	f.remote[n.name] = append(f.remote[n.name], n)
	f.here++
	f.peers[p]++
	f.comes(n.seat)
	return n
}

// peerNodeGone ends a node's session with another gateway; what it held is remembered. f.mu is held.
func (f *Fleet) peerNodeGone(n *node) {
	if !n.goneAt.IsZero() {
		return
	}
	n.goneAt = f.cfg.Now()
	f.here--
	f.peers[n.peer]--
	f.index.leave(n.seat)
	f.changed()
	for other := range f.named(n.name) {
		if other != n && other.goneAt.IsZero() {
			f.forget(n) // it is still to be had
			return
		}
	}
}

// PeerChanged is called when the way to another gateway turned suspect, came back, or drains.
func (f *Fleet) PeerChanged(p Peer) {
	f.cfg.Log().Info("connection with another gateway changed", zap.String("peer", p.Node()), zap.Stringer("state", p.State()))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed()
	for _, n := range f.peerNodes(p) {
		f.dispatch(n.seat)
	}
}

// PeerLeft ends the sessions of another gateway's nodes, as far as this one could use them.
func (f *Fleet) PeerLeft(p Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.peerNodes(p) {
		f.peerNodeGone(n)
	}
	delete(f.peers, p)
	delete(f.pieces, p)
	if f.speaks[p.Node()] == p {
		delete(f.speaks, p.Node())
	}
	f.sweep()
	f.eachYoung(func(*seat) bool { return false }) // forgets those that are over
}

// peerNodes are the nodes of one connection with another gateway. f.mu is held.
func (f *Fleet) peerNodes(p Peer) (out []*node) {
	for _, there := range f.remote {
		for _, n := range there {
			if n.peer == p {
				out = append(out, n)
			}
		}
	}
	return out
}

// dropRemote takes a record out of the list of its name. f.mu is held.
func (f *Fleet) dropRemote(n *node) {
	list := slices.DeleteFunc(slices.Clone(f.remote[n.name]), func(o *node) bool { return o == n })
	if len(list) == 0 {
		delete(f.remote, n.name)
		return
	}
	f.remote[n.name] = list
}

// unplaced says why a forwarded run has no place here: its own gateway does the waiting. f.mu is held.
func (f *Fleet) unplaced(w *Want) error {
	switch f.survey(w) {
	case nobody:
		return ErrNoModel
	case busy:
		return ErrQueueFull
	case unknown, absent, returning, excluded:
	}
	return ErrNoNode
}
