package fleet

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/tunnel"
)

// NodeView is one row of `caddy fairway nodes`; its JSON names are a contract.
type NodeView struct {
	Name     string            `json:"name"`
	State    string            `json:"state"` // registered | ready | suspect | draining | gone
	Labels   map[string]string `json:"labels"`
	Version  string            `json:"version"`
	Since    time.Time         `json:"since"`
	Sessions []SessionView     `json:"sessions"`
	Targets  []TargetView      `json:"targets"`
}

// SessionView is a node's session with one gateway.
type SessionView struct {
	Gateway    string `json:"gateway"`
	Generation uint64 `json:"generation"`
	Lanes      int    `json:"lanes"`
}

// TargetView is one provider of a node.
type TargetView struct {
	Name      string      `json:"name"`
	Adapter   string      `json:"adapter"`
	Origin    string      `json:"origin"`
	Reachable bool        `json:"reachable"`
	Locked    bool        `json:"locked"` // lists its models only for a credential
	Models    []string    `json:"models"`
	Credits   CreditsView `json:"credits"`
}

// CreditsView counts the inference runs that a target takes at once.
type CreditsView struct {
	Granted int `json:"granted"`
	Free    int `json:"free"`
}

// OwnNodes lists every node, connected or remembered, as far as it is this gateway's, by name.
func (f *Fleet) OwnNodes() []NodeView {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sortNodes(f.ownNodes())
}

// ownNodes lists them in no order. f.mu is held.
func (f *Fleet) ownNodes() []NodeView {
	out := make([]NodeView, 0, len(f.nodes))
	for _, n := range f.nodes {
		if n.seat != nil && n.peer == nil {
			out = append(out, f.view(n))
		}
	}
	return out
}

func sortNodes(out []NodeView) []NodeView {
	slices.SortFunc(out, func(a, b NodeView) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Nodes lists every node of the fleet, connected or remembered, by name.
func (f *Fleet) Nodes() []NodeView {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.ownNodes()
	at := make(map[string]int, len(out))
	for i, v := range out {
		at[v.Name] = i
	}
	for name, there := range f.remote {
		best := f.nodes[name]
		var away []SessionView
		for _, n := range there {
			if !n.goneAt.IsZero() {
				continue
			}
			away = append(away, SessionView{n.gateway, n.seat.session.Generation(), n.seat.session.Lanes()})
			if best == nil || best.seat == nil || !best.goneAt.IsZero() {
				best = n
			}
		}
		i, ok := at[name]
		if !ok {
			i = -1
		}
		out = f.alsoAt(out, i, best, away)
	}
	return sortNodes(out)
}

// alsoAt adds a node's sessions with other gateways to its row i, or the row where this gateway has none (-1), or none any more. f.mu is held.
func (f *Fleet) alsoAt(rows []NodeView, i int, best *node, away []SessionView) []NodeView {
	if len(away) == 0 {
		return rows
	}
	if best.peer != nil {
		v := f.view(best)
		v.Sessions = nil
		if i < 0 {
			rows, i = append(rows, v), len(rows)
		} else {
			rows[i] = v
		}
	}
	rows[i].Sessions = append(rows[i].Sessions, away...)
	slices.SortFunc(rows[i].Sessions, func(a, b SessionView) int { return strings.Compare(a.Gateway, b.Gateway) })
	return rows
}

func (f *Fleet) view(n *node) NodeView {
	s := n.seat.session
	v := NodeView{
		Name: n.name, State: n.state(), Labels: s.Labels(), Version: s.Software(), Since: s.Since(),
		Sessions: []SessionView{}, Targets: []TargetView{},
	}
	if n.goneAt.IsZero() {
		v.Sessions = append(v.Sessions, SessionView{cmp.Or(n.gateway, f.cfg.Gateway), s.Generation(), s.Lanes()})
	} else {
		v.Since = n.goneAt
	}
	for _, t := range n.seat.targets {
		tv := TargetView{
			Name: t.name, Adapter: t.adapter, Origin: t.origin, Reachable: t.reachable && n.goneAt.IsZero(), Locked: t.locked, Models: []string{},
			Credits: CreditsView{Granted: t.perTarget, Free: max(0, t.perTarget-t.taken())},
		}
		for _, h := range t.models {
			tv.Models = append(tv.Models, h.model.Name)
		}
		slices.Sort(tv.Models)
		v.Targets = append(v.Targets, tv)
	}
	slices.SortFunc(v.Targets, func(a, b TargetView) int { return strings.Compare(a.Name, b.Name) })
	return v
}

// state is the node's state in words. Fleet.mu is held.
func (n *node) state() string {
	switch {
	case !n.goneAt.IsZero():
		return tunnel.StateGone.String()
	case n.draining:
		return tunnel.StateDraining.String()
	case !n.seat.ready:
		return tunnel.StateRegistered.String()
	}
	return n.seat.session.State().String()
}

// Sessions returns every current session with this gateway.
func (f *Fleet) Sessions() []Session {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Session
	for _, n := range f.nodes {
		if n.seat != nil && n.goneAt.IsZero() && n.peer == nil {
			out = append(out, n.seat.session)
		}
	}
	return out
}

// Holder is a target that has a model loaded.
type Holder struct {
	Node, Target string
}

// loadTime is how long after a run was sent its model counts as loaded although no Status has said so.
const loadTime = 10 * time.Second

// Holders returns the targets that have the model loaded, or are just loading it, for what must reach each of them.
func (f *Fleet) Holders(key string) []Holder {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Holder
	for _, n := range f.nodes {
		if !n.live() {
			continue
		}
		for _, t := range n.seat.targets {
			_, is := t.loaded[key]
			h := t.models[key]
			if (is || h != nil && f.cfg.Now().Sub(h.sent) < loadTime) && t.reachable && t.adapter == adapterOllama {
				out = append(out, Holder{n.name, t.name})
			}
		}
	}
	slices.SortFunc(out, func(a, b Holder) int { return strings.Compare(a.Node+" "+a.Target, b.Node+" "+b.Target) })
	return out
}

// Has reports whether the node is here, or at another gateway.
func (f *Fleet) Has(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := range f.named(name) {
		if n.seat != nil && n.goneAt.IsZero() {
			return true
		}
	}
	return false
}
