package fleet

import (
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// LockedTarget is a target whose provider lists its models only for a credential. Its node has none, so the gateway asks, with a lease.
type LockedTarget struct {
	Node       string
	Generation uint64
	Target     string
	Adapter    string
	Origin     string            // scheme://host:port
	Labels     map[string]string // the node's; must not be changed
}

// Locked returns the locked targets that can be asked now, in no order.
func (f *Fleet) Locked() []LockedTarget {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []LockedTarget
	for _, n := range f.nodes {
		if !n.live() || n.peer != nil {
			continue
		}
		for _, t := range n.seat.targets {
			if t.locked && t.reachable {
				s := n.seat.session
				out = append(out, LockedTarget{n.name, s.Generation(), t.name, t.adapter, t.origin, s.Labels()})
			}
		}
	}
	return out
}

// Learn replaces what a locked target holds by what the gateway was told of it; entries that cannot be used are left out. It does nothing once the
// session with this generation is not current any more, or the target not locked. An error says that the node would hold more than one may, or
// that an entry is none; then the target holds what it held.
func (f *Fleet) Learn(node string, generation uint64, target string, models []*tunnel.Model) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[node]
	if n == nil || n.seat == nil || !n.goneAt.IsZero() || n.seat.session.Generation() != generation {
		return nil
	}
	s := n.seat
	t := s.targets[target]
	if t == nil || !t.locked {
		return nil
	}
	learned := make(map[string]ollama.Model)
	for _, m := range models {
		parsed, err := t.parse(m)
		if err != nil {
			return err
		}
		if parsed.Name != "" && !parsed.Remote {
			learned[ollama.ModelKey(parsed.Name)] = parsed
		}
	}
	count, bytes := s.models-len(t.models)+len(learned), s.bytes
	for _, h := range t.models {
		bytes -= len(h.model.Raw)
	}
	for _, m := range learned {
		bytes += len(m.Raw)
	}
	if count > maxModels || bytes > maxInventoryBytes {
		return errInventory
	}
	for key := range t.models {
		if _, ok := learned[key]; !ok {
			s.forget(t, key)
		}
	}
	for _, m := range learned {
		s.hold(t, m)
	}
	f.changed()
	f.dispatch(s)
	return nil
}
