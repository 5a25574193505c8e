package fleet

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// Bounds on what one node may make the gateway keep.
const (
	maxTargets        = 64
	maxModels         = 4096
	maxLoaded         = 256 // of one target
	maxInventoryBytes = 4 << 20
	maxCredits        = 1 << 16
	maxNameBytes      = 512
)

// Limits is what a node is told of these bounds.
func Limits() *tunnel.Limits {
	return &tunnel.Limits{
		Targets: maxTargets, Models: maxModels, InventoryBytes: maxInventoryBytes, HeartbeatMs: uint32(tunnel.HeartbeatInterval.Milliseconds()),
	}
}

// target is one provider of a seat. Guarded by Fleet.mu.
type target struct {
	seat      *seat
	name      string
	adapter   string
	version   string
	reachable bool
	models    map[string]ollama.Model  // by canonical key
	loaded    map[string]ollama.Loaded // by canonical key
	perModel  int
	perTarget int
	used      map[string]int       // credits taken, by model key
	total     int                  // credits taken
	full      bool                 // refused for want of a credit: full until the next Status
	turn      uint64               // when it was last chosen
	sent      map[string]time.Time // when a run of a model last went there, by model key: it is loaded before a Status can say so
}

// apply takes in changes from the session of s. f.mu is held. An error is a node's fault, and closes its session.
func (s *seat) apply(changes []*tunnel.Target) error {
	for _, c := range changes {
		if err := s.change(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *seat) change(c *tunnel.Target) error {
	if c.Name == "" || len(c.Name) > maxNameBytes || len(c.Version) > maxNameBytes || len(c.Adapter) > maxNameBytes {
		return fmt.Errorf("target name, adapter or version is empty or over %d bytes", maxNameBytes)
	}
	t := s.targets[c.Name]
	if t == nil {
		if len(s.targets) == maxTargets {
			return fmt.Errorf("more than %d targets", maxTargets)
		}
		t = &target{
			seat: s, name: c.Name, adapter: c.Adapter, models: map[string]ollama.Model{}, loaded: map[string]ollama.Loaded{}, used: map[string]int{}, sent: map[string]time.Time{},
			perModel: 1, perTarget: 1,
		}
		s.targets[c.Name] = t
	}
	if c.Gone || c.Reset_ {
		for key := range t.models {
			s.forget(t, key)
		}
		clear(t.loaded)
	}
	if c.Gone {
		delete(s.targets, c.Name) // runs that are on it give their places back to it all the same
		return nil
	}
	t.reachable = c.Reachable
	if c.Adapter != "" {
		t.adapter = c.Adapter
	}
	t.full = false
	if c.Version != "" {
		t.version = c.Version
	}
	if cr := c.Credits; cr != nil {
		if cr.PerModel > maxCredits || cr.PerTarget > maxCredits || cr.PerModel == 0 || cr.PerTarget < cr.PerModel {
			return fmt.Errorf("credits of target %s are out of range", t.name)
		}
		t.perModel, t.perTarget = int(cr.PerModel), int(cr.PerTarget)
	}
	for _, name := range c.Removed {
		if n, err := ollama.ParseName(name); err == nil {
			s.forget(t, n.Key())
		}
	}
	return s.add(t, c)
}

func (s *seat) add(t *target, c *tunnel.Target) error {
	for _, m := range c.Models {
		parsed, err := ollama.ParseModel(m.Json)
		if err != nil {
			return fmt.Errorf("model entry of target %s: %w", t.name, err)
		}
		name, err := ollama.ParseName(parsed.Name)
		if err != nil || parsed.Remote {
			continue // a name that no request can ask for, or a stub that would send prompts to a cloud
		}
		key := name.Key()
		s.forget(t, key)
		s.models++
		s.bytes += len(parsed.Raw)
		if s.models > maxModels || s.bytes > maxInventoryBytes {
			return fmt.Errorf("inventory over %d models or %d bytes", maxModels, maxInventoryBytes)
		}
		t.models[key] = parsed
	}
	if c.Loaded == nil {
		return nil
	}
	if len(c.Loaded.Models) > maxLoaded {
		return fmt.Errorf("more than %d loaded models", maxLoaded)
	}
	clear(t.loaded)
	for _, m := range c.Loaded.Models {
		parsed, err := ollama.ParseLoaded(m.Json)
		if err != nil {
			return fmt.Errorf("loaded entry of target %s: %w", t.name, err)
		}
		if name, err := ollama.ParseName(parsed.Name); err == nil {
			t.loaded[name.Key()] = parsed
		}
	}
	return nil
}

func (s *seat) forget(t *target, key string) {
	if m, ok := t.models[key]; ok {
		s.models--
		s.bytes -= len(m.Raw)
		delete(t.models, key)
	}
}

// Inventory is the merged answers of the inventory endpoints. The slices must not be changed.
type Inventory struct {
	Tags, PS, V1Models []byte
}

// held returns the keys of the models that a seat's targets hold, or held before; nil for none. f.mu is held.
func (s *seat) held() map[string]bool {
	if s == nil {
		return nil
	}
	keys := maps.Clone(s.before)
	for _, t := range s.targets {
		for key := range t.models {
			if keys == nil {
				keys = make(map[string]bool)
			}
			keys[key] = true
		}
	}
	return keys
}

// keepNames drops what a node that went need not be remembered by. f.mu is held.
func (s *seat) keepNames() {
	for _, t := range s.targets {
		clear(t.loaded)
		for key, m := range t.models {
			t.models[key] = ollama.Model{Name: m.Name}
		}
	}
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
		if of == nil || of(t) {
			models = append(models, slices.Collect(maps.Values(t.models)))
			loaded = append(loaded, slices.Collect(maps.Values(t.loaded)))
		}
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

// eachTarget calls visit for each reachable Ollama target of a node that is here and not draining. A suspect node counts: it is given a few
// seconds before its models vanish from lists. f.mu is held.
func (f *Fleet) eachTarget(visit func(*target)) {
	for _, n := range f.nodes {
		if n.draining || !n.goneAt.IsZero() || n.seat == nil || !n.seat.ready || n.seat.session.State() == tunnel.StateDraining {
			continue
		}
		for _, t := range n.seat.targets {
			if t.reachable && t.adapter == "ollama" {
				visit(t)
			}
		}
	}
}

// Model returns the inventory entry for key from any node that is here.
func (f *Fleet) Model(key string) (ollama.Model, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []ollama.Model
	f.eachTarget(func(t *target) {
		if m, ok := t.models[key]; ok {
			found = append(found, m)
		}
	})
	if len(found) == 0 {
		return ollama.Model{}, false
	}
	newest := slices.MaxFunc(found, func(a, b ollama.Model) int { return a.ModifiedAt.Compare(b.ModifiedAt) })
	return newest, true
}

// Version returns the lowest version among the providers, "" when none is known.
func (f *Fleet) Version() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var versions []string
	f.eachTarget(func(t *target) { versions = append(versions, t.version) })
	return ollama.LowestVersion(versions)
}
