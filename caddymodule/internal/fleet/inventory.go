package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"unicode"
	"unicode/utf8"

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
	release   ollama.Version // version as numbers
	origin    string         // scheme://host:port
	reachable bool
	locked    bool                     // the provider lists its models only for a credential: the gateway asks it, not the node
	models    map[string]*held         // by canonical key
	loaded    map[string]ollama.Loaded // by canonical key
	perModel  int
	perTarget int
	used      map[string]int            // credits taken, by model key, also of models that are forgotten
	total     int                       // credits taken
	from      map[string]map[string]int // of those, by gateways that have forwarded their runs, and model; nil without any
	elsewhere map[string]int            // of a peer's node: credits that others have taken, by model key
	knocks    int                       // of a peer's node: runs that wait there
	others    int                       // their sum
	full      bool                      // refused for want of a credit: full until the next Status
	turn      uint64                    // when it was last chosen
}

// count adds n to the credits that are taken for a model, by a run that came from a gateway.
func (t *target) count(key, from string, n int) {
	t.seat.touch()
	if from != "" {
		if t.from == nil {
			t.from = map[string]map[string]int{}
		}
		if t.from[from] == nil {
			t.from[from] = map[string]int{}
		}
		if t.from[from][key] += n; t.from[from][key] == 0 {
			delete(t.from[from], key)
		}
	}
	t.total += n
	t.used[key] += n
	if h := t.models[key]; h != nil {
		h.used = t.used[key]
	}
	if t.used[key] == 0 {
		delete(t.used, key)
	}
}

// open reports whether any target of the seat may have a credit left.
func (s *seat) open() bool {
	for _, t := range s.targets {
		if t.reachable && !t.full && t.taken() < t.perTarget {
			return true
		}
	}
	return false
}

// apply takes in changes from the session of s. f.mu is held. An error is a node's fault, and closes its session.
func (s *seat) apply(changes []*tunnel.Target) error {
	s.touch() // and what they hold, where that changes
	for _, c := range changes {
		if err := s.change(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *seat) change(c *tunnel.Target) error {
	if err := checkTarget(c); err != nil {
		return err
	}
	t := s.targets[c.Name]
	if t == nil {
		if len(s.targets) == maxTargets {
			return fmt.Errorf("more than %d targets", maxTargets)
		}
		t = &target{
			seat: s, name: c.Name, adapter: c.Adapter, models: map[string]*held{}, loaded: map[string]ollama.Loaded{}, used: map[string]int{},
			perModel: 1, perTarget: 1,
		}
		s.targets[c.Name] = t
		s.rehold()
		s.index.offer(t.adapter, 1)
	}
	if c.Gone || t.moved(c) || c.Locked != t.locked || c.Reset_ && !c.Locked {
		s.empty(t)
	}
	if c.Gone {
		s.rehold()
		s.index.offer(t.adapter, -1)
		delete(s.targets, c.Name) // runs that are on it give their places back to it all the same
		return nil
	}
	t.take(c)
	if t.locked {
		return nil // what it holds is for the gateway to learn; its node knows nothing of that
	}
	for _, name := range c.Removed {
		s.forget(t, ollama.ModelKey(name))
	}
	return s.add(t, c)
}

// checkTarget bounds what a change says of the target itself.
func checkTarget(c *tunnel.Target) error {
	if c.Name == "" || len(c.Name) > maxNameBytes || len(c.Version) > maxNameBytes || len(c.Adapter) > maxNameBytes {
		return fmt.Errorf("target name, adapter or version is empty or over %d bytes", maxNameBytes)
	}
	if len(c.Origin) > maxNameBytes || !utf8.ValidString(c.Origin) || strings.ContainsFunc(c.Origin, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }) {
		return fmt.Errorf("origin of target %s is over %d bytes or cannot be shown", c.Name, maxNameBytes)
	}
	if cr := c.Credits; cr != nil && (cr.PerModel > maxCredits || cr.PerTarget > maxCredits || cr.PerModel == 0 || cr.PerTarget < cr.PerModel) {
		return fmt.Errorf("credits of target %s are out of range", c.Name)
	}
	return nil
}

// moved reports whether a change makes t another provider.
func (t *target) moved(c *tunnel.Target) bool {
	return c.Adapter != "" && c.Adapter != t.adapter || c.Origin != "" && t.origin != "" && c.Origin != t.origin
}

// take takes in what a change says of the target itself. Texts that are empty are unchanged.
func (t *target) take(c *tunnel.Target) {
	t.reachable, t.locked, t.full = c.Reachable, c.Locked, false
	t.seat.index.offer(t.adapter, -1)
	t.adapter, t.origin = cmp.Or(c.Adapter, t.adapter), cmp.Or(c.Origin, t.origin)
	t.seat.index.offer(t.adapter, 1)
	if c.Version != "" {
		t.version, t.release = c.Version, ollama.ParseVersion(c.Version)
	}
	if cr := c.Credits; cr != nil {
		t.perModel, t.perTarget = int(cr.PerModel), int(cr.PerTarget)
	}
}

func (s *seat) add(t *target, c *tunnel.Target) error {
	for _, m := range c.Models {
		parsed, err := t.parse(m)
		if err != nil {
			return fmt.Errorf("model entry of target %s: %w", t.name, err)
		}
		s.hold(t, parsed)
		if most := s.most(); s.models > most*maxModels || s.bytes > most*maxInventoryBytes {
			return errInventory
		}
	}
	if c.Loaded == nil || t.adapter != adapterOllama {
		return nil
	}
	if len(c.Loaded.Models) > maxLoaded {
		return fmt.Errorf("more than %d loaded models", maxLoaded)
	}
	for key := range t.loaded {
		t.mark(key, false)
	}
	clear(t.loaded)
	for _, m := range c.Loaded.Models {
		parsed, err := ollama.ParseLoaded(m.Json)
		if err != nil {
			return fmt.Errorf("loaded entry of target %s: %w", t.name, err)
		}
		key := ollama.ModelKey(parsed.Name)
		t.loaded[key] = parsed
		t.mark(key, true)
	}
	return nil
}

// most is how many times the bounds a seat may hold: another gateway tells of one target after the other, and what one has given up another may have got.
func (s *seat) most() int {
	if s.node.peer != nil {
		return 2
	}
	return 1
}

var errInventory = fmt.Errorf("inventory over %d models or %d bytes", maxModels, maxInventoryBytes)

// parse reads an entry in the way of t's adapter. What no request can ask for is not held: see hold.
func (t *target) parse(m *tunnel.Model) (ollama.Model, error) {
	if t.adapter != adapterOpenAI {
		return ollama.ParseModel(m.Json)
	}
	parsed, err := ollama.ParseOpenAIModel(m.Json)
	if err != nil {
		return ollama.Model{}, nil //nolint:nilerr // ids are anything that a provider's owner could think of: no reason to close a session
	}
	return parsed, nil
}

// hold adds a model to t, or replaces its entry; but for one without a name, and a stub that would send prompts to a cloud.
func (s *seat) hold(t *target, m ollama.Model) {
	if m.Name == "" || m.Remote {
		return
	}
	key := ollama.ModelKey(m.Name)
	h := t.models[key]
	switch {
	case h == nil:
		_, loaded := t.loaded[key]
		h = &held{target: t, key: key, loaded: loaded, used: t.used[key]}
		t.models[key] = h
		s.index.add(h)
		s.models++
	case h.model.OpenAI && h.model.Name == m.Name && h.model.OwnedBy == m.OwnedBy:
		return // some providers say "created now" each time, and lists would never come to rest
	}
	s.rehold()
	s.bytes += len(m.Raw) - len(h.model.Raw)
	h.model = m
	s.index.compare(h)
}

// mark notes whether a model is loaded.
func (t *target) mark(key string, loaded bool) {
	if h := t.models[key]; h != nil {
		h.loaded = loaded
	}
}

// empty forgets all that t holds.
func (s *seat) empty(t *target) {
	for key := range t.models {
		s.forget(t, key)
	}
	clear(t.loaded)
}

func (s *seat) forget(t *target, key string) {
	if h := t.models[key]; h != nil {
		s.rehold()
		s.models--
		s.bytes -= len(h.model.Raw)
		s.index.drop(h)
		delete(t.models, key)
	}
}

// held tells by which adapters a seat's targets hold models, or held them before, by their keys; nil for none. f.mu is held.
func (s *seat) held() map[string]adapters {
	if s == nil {
		return nil
	}
	keys := maps.Clone(s.before)
	for _, t := range s.targets {
		for key := range t.models {
			if keys == nil {
				keys = make(map[string]adapters)
			}
			keys[key] = keys[key].and(t.adapter)
		}
	}
	return keys
}
