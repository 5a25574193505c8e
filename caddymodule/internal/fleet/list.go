package fleet

import (
	"maps"
	"slices"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// Inventory is the merged answers of the inventory endpoints. The slices must not be changed.
type Inventory struct {
	Tags, PS, V1Models []byte
}

// mergedCache keeps an Inventory until something changes.
type mergedCache struct {
	made    *Inventory // nil: to be made
	version uint64     // counts the changes
}

// changed notes that the inventory is another now. f.mu is held.
func (f *Fleet) changed() {
	f.merged.made = nil
	f.merged.version++
}

// InventoryOf returns what one node holds.
func (f *Fleet) InventoryOf(name string) Inventory {
	f.mu.Lock()
	models, loaded := f.collect(func(t *target) bool { return t.seat.node.name == name })
	f.mu.Unlock()
	return merge(models, loaded)
}

// collect copies the models and loaded models of the targets that of wants. f.mu is held.
func (f *Fleet) collect(of func(*target) bool) (models [][]ollama.Model, loaded [][]ollama.Loaded) {
	f.eachTarget(func(t *target) {
		if of != nil && !of(t) {
			return
		}
		own := make([]ollama.Model, 0, len(t.models))
		for _, h := range t.models {
			own = append(own, h.model)
		}
		models = append(models, own)
		loaded = append(loaded, slices.Collect(maps.Values(t.loaded)))
	})
	return models, loaded
}

func merge(models [][]ollama.Model, loaded [][]ollama.Loaded) Inventory {
	return Inventory{Tags: ollama.MergeTags(models), PS: ollama.MergePS(loaded), V1Models: ollama.MergeV1Models(models)}
}

// Inventory returns the union over the nodes that can take runs. It is made once after a change, outside the mutex: with many nodes it takes
// milliseconds, which runs must not wait for.
func (f *Fleet) Inventory() Inventory {
	f.mu.Lock()
	if f.merged.made != nil {
		defer f.mu.Unlock()
		return *f.merged.made
	}
	version := f.merged.version
	models, loaded := f.collect(nil)
	f.mu.Unlock()
	inv := merge(models, loaded)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merged.version == version {
		f.merged.made = &inv
	}
	return inv
}

// Show says which targets count in lists: those that the current configuration uses; nil: those with adapter ollama.
func (f *Fleet) Show(filter *Filter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown = filter
	f.changed()
}

// shows reports whether the current configuration uses t. f.mu is held.
func (f *Fleet) shows(t *target) bool {
	if f.shown == nil {
		return t.adapter == adapterOllama
	}
	return f.shown.Serves(t.candidate())
}

// listed reports whether t's models are in lists: it is in use, reachable, of an adapter that has models, and its node is here and not draining. A suspect
// node counts: it is given a few seconds before its models vanish. f.mu is held.
func (f *Fleet) listed(t *target) bool {
	s := t.seat
	return t.reachable && (t.adapter == adapterOllama || t.adapter == adapterOpenAI) && f.shows(t) &&
		s.current() && !s.node.draining && s.ready && s.session.State() != tunnel.StateDraining
}

// eachTarget calls visit for each listed target. f.mu is held.
func (f *Fleet) eachTarget(visit func(*target)) {
	for _, n := range f.nodes {
		if n.seat == nil {
			continue
		}
		for _, t := range n.seat.targets {
			if f.listed(t) {
				visit(t)
			}
		}
	}
}

// Model returns the inventory entry for key that lists show, from any node that is here, or from the one that is named.
func (f *Fleet) Model(key, node string) (ollama.Model, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []ollama.Model
	if l := f.index.models[key]; l != nil {
		for _, h := range l.here {
			if f.listed(h.target) && (node == "" || h.target.seat.node.name == node) {
				found = append(found, h.model)
			}
		}
	}
	if len(found) == 0 {
		return ollama.Model{}, false
	}
	return slices.MinFunc(found, ollama.Prefer), true
}

// Version returns the lowest version among the Ollamas, "" when none is known.
func (f *Fleet) Version() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var versions []string
	f.eachTarget(func(t *target) {
		if t.adapter == adapterOllama {
			versions = append(versions, t.version)
		}
	})
	return ollama.LowestVersion(versions)
}
