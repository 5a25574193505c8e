package fleet

import (
	"maps"
	"slices"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// pieceBytes is about how much of a node's inventory one message of Tell holds.
	pieceBytes = 96 << 10
	// loadedBytes is up to where what is loaded is told beside that, and takenBytes how much says which models' credits are taken: a message holds 200 KiB.
	loadedBytes = 160 << 10
	takenBytes  = 24 << 10
)

// Told is what another gateway has been told of the nodes here. It belongs to one connection, and to one goroutine.
type Told struct {
	// Peer is that gateway's name.
	Peer  string
	nodes map[string]*toldNode
	round uint64
	news  uint64 // that was told last
}

type toldNode struct {
	generation   uint64
	holds, takes uint64
	state        tunnel.PeerNodeState
	targets      map[string]*target // by name; to tell them from others of the same names
	round        uint64
}

// Tell returns what another gateway has yet to hear of the nodes with a session here, in messages that tunnel.NodeSession.Nodes takes, and takes it for told.
// Nodes that are not ready yet are nobody's business.
func (f *Fleet) Tell(k *Told) (out []*tunnel.PeerNode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case k.nodes == nil:
		k.nodes = make(map[string]*toldNode)
	case k.news == f.index.news:
		return nil
	}
	k.news = f.index.news
	k.round++
	for _, n := range f.nodes {
		if n.peer != nil || n.seat == nil || !n.seat.ready || !n.goneAt.IsZero() {
			continue
		}
		s, state := n.seat, n.peerState()
		t := k.nodes[n.name]
		fresh := t == nil || t.generation != s.session.Generation()
		if fresh {
			t = &toldNode{generation: s.session.Generation(), holds: s.holds - 1}
			k.nodes[n.name] = t
		}
		t.round = k.round
		if !fresh && t.holds == s.holds && t.takes == s.takes && t.state == state {
			continue
		}
		b := teller{n: n, to: k.Peer, told: t, whole: t.holds != s.holds}
		b.node(state)
		t.holds, t.takes, t.state = s.holds, s.takes, state
		out = append(out, b.out...)
	}
	for name, t := range k.nodes {
		if t.round != k.round {
			delete(k.nodes, name)
			out = append(out, &tunnel.PeerNode{Name: name, State: tunnel.PeerGone})
		}
	}
	return out
}

// touch notes that something of the seat has changed that other gateways are told of. f.mu is held.
func (s *seat) touch() {
	s.takes++
	s.index.news++
}

// rehold notes that what its targets hold has changed. f.mu is held.
func (s *seat) rehold() {
	s.holds++
	s.index.news++
}

// peerState is what other gateways are told of n. f.mu is held.
func (n *node) peerState() tunnel.PeerNodeState {
	switch st := n.seat.session.State(); {
	case n.draining || st == tunnel.StateDraining:
		return tunnel.PeerDraining
	case st == tunnel.StateReady:
		return tunnel.PeerReady
	}
	return tunnel.PeerSuspect
}

// teller makes the messages about one node. Each says how many credits are taken of the targets that have been told by then: a message replaces what was said
// of that before.
type teller struct {
	n     *node
	to    string
	told  *toldNode
	whole bool // all that its targets hold, too
	out   []*tunnel.PeerNode
	size  int
}

func (b *teller) node(state tunnel.PeerNodeState) {
	s := b.n.seat
	b.next(state)
	known := make(map[string]bool, len(s.targets))
	for name, t := range b.told.targets {
		if s.targets[name] == t {
			known[name] = true
			continue
		}
		// Withdrawn; what goes by that name now is another one, of which nothing is known there.
		b.last().Targets = append(b.last().Targets, &tunnel.Target{Name: name, Gone: true})
		b.size += len(name) + 16
	}
	for _, name := range slices.Sorted(maps.Keys(s.targets)) {
		b.target(s.targets[name], state)
	}
	b.told.targets = maps.Clone(s.targets)
	for _, m := range b.out[:len(b.out)-1] {
		m.More = true
	}
	taken := b.taken()
	for _, m := range b.out {
		for _, t := range m.Targets {
			known[t.Name] = !t.Gone
		}
		for _, k := range taken {
			if known[k.Target] {
				m.Taken = append(m.Taken, k)
			}
		}
	}
}

func (b *teller) last() *tunnel.PeerNode { return b.out[len(b.out)-1] }

// next begins a message.
func (b *teller) next(state tunnel.PeerNodeState) {
	s := b.n.seat.session
	b.out = append(b.out, &tunnel.PeerNode{
		Name: b.n.name, Generation: s.Generation(), State: state, Software: s.Software(), Labels: s.Labels(), SinceMs: s.Since().UnixMilli(),
	})
	b.size = 0
	for k, v := range s.Labels() {
		b.size += len(k) + len(v) + 16
	}
}

// head is what each message says of a target.
func (t *target) head() *tunnel.Target {
	return &tunnel.Target{
		Name: t.name, Adapter: t.adapter, Version: t.version, Origin: t.origin, Reachable: t.reachable,
		Credits: &tunnel.Credits{PerModel: uint32(t.perModel), PerTarget: uint32(t.perTarget)}, //nolint:gosec // bounded by maxCredits
	}
}

// target tells of one target: what is loaded always, what it holds when that has changed.
func (b *teller) target(t *target, state tunnel.PeerNodeState) {
	if b.size > pieceBytes {
		b.next(state)
	}
	m := t.head()
	m.Reset_ = b.whole
	m.Loaded = &tunnel.Loaded{}
	b.last().Targets = append(b.last().Targets, m)
	b.size += len(t.name) + len(t.adapter) + len(t.version) + len(t.origin) + 64
	for _, l := range t.loaded {
		if b.size += len(l.Name) + len(l.Raw) + 16; b.size > loadedBytes {
			break // what does not fit is not told: a hint, no more
		}
		m.Loaded.Models = append(m.Loaded.Models, &tunnel.Model{Name: l.Name, Json: l.Raw})
	}
	if !b.whole {
		return
	}
	for _, h := range t.models {
		raw := h.model.Raw
		if t.adapter == adapterOpenAI {
			raw = ollama.V1Model(h.model, h.model.Name)
		}
		if b.size+len(raw) > pieceBytes {
			b.next(state)
			m = t.head()
			b.last().Targets = append(b.last().Targets, m)
		}
		b.size += len(h.model.Name) + len(raw) + 16
		m.Models = append(m.Models, &tunnel.Model{Name: h.model.Name, Json: raw})
	}
}

// taken are the credits that are taken, but for those of the gateway that is told: it knows of its own. Of more models than fit it is only told how many
// credits there are, under no model.
func (b *teller) taken() (out []*tunnel.Taken) {
	size := 0
	for name, t := range b.n.seat.targets {
		rest := 0
		if t.full {
			out = append(out, &tunnel.Taken{Target: name, Full: true})
		}
		own := t.from[b.to]
		for key, n := range t.used {
			if n -= own[key]; n <= 0 {
				continue
			}
			if size += len(name) + len(key) + 16; len(key) > maxNameBytes || size > takenBytes {
				rest += n
				continue
			}
			out = append(out, &tunnel.Taken{Target: name, Model: key, Credits: uint32(n)}) //nolint:gosec // at most maxCredits
		}
		if rest > 0 {
			out = append(out, &tunnel.Taken{Target: name, Credits: uint32(min(rest, maxCredits))}) //nolint:gosec // bounded
		}
	}
	return out
}
