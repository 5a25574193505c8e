package nodeclient

import (
	"bytes"
	"strings"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

// Sizes of what is told. A control frame has 256 KiB at most, an inventory entry 64 KiB.
const (
	maxPart    = 96 << 10  // of one Target message
	maxFrame   = 200 << 10 // of one Ready or Status
	entrySize  = 16        // what protobuf adds to an entry, at most
	targetSize = 128       // what it adds to a target beside its texts
	maxText    = 512       // of a name or version; the gateway takes no more
)

// told is what one session's gateway knows of each target. Only the session's own goroutine uses it.
type told map[*target]*snapshot

// next returns what the gateway has yet to hear, as frames of bounded size, and takes it for told. The targets in again are named though nothing of them
// has changed.
func (k told) next(targets []*target, limits *tunnel.Limits, again map[*target]bool) (frames [][]*tunnel.Target) {
	size := 0
	views := fit(targets, limits)
	for i, t := range targets {
		old := k[t]
		if old != nil && old.same(views[i]) && !again[t] {
			continue
		}
		k[t] = views[i]
		for _, p := range parts(t, old, views[i]) {
			if len(frames) == 0 || size+p.size > maxFrame {
				frames, size = append(frames, nil), 0
			}
			frames[len(frames)-1] = append(frames[len(frames)-1], p.msg)
			size += p.size
		}
	}
	return frames
}

func (s *snapshot) same(o *snapshot) bool {
	return s == o || s.reachable == o.reachable && s.locked == o.locked && s.withdrawn == o.withdrawn && sameInventory(&s.Inventory, &o.Inventory)
}

// fit returns the snapshots of targets, cut to what the gateway takes from one node: more would end the session.
func fit(targets []*target, limits *tunnel.Limits) []*snapshot {
	views := make([]*snapshot, len(targets))
	models, size := int(^uint(0)>>1), int(^uint(0)>>1)
	if limits.GetModels() > 0 {
		models = int(limits.GetModels())
	}
	if limits.GetInventoryBytes() > 0 {
		size = int(min(limits.GetInventoryBytes(), 1<<40))
	}
	for i, t := range targets {
		v := t.view()
		n := 0
		for n < len(v.Models) && models > 0 && size >= len(v.Models[n].JSON) {
			models--
			size -= len(v.Models[n].JSON)
			n++
		}
		if n < len(v.Models) {
			cut := *v
			cut.Models = v.Models[:n]
			v = &cut
		}
		views[i] = v
	}
	return views
}

// part is one Target message and about how long it is.
type part struct {
	msg  *tunnel.Target
	size int
}

// parts returns the messages that lead from old to now; old may be nil.
func parts(t *target, old, now *snapshot) (out []part) {
	if now.withdrawn {
		if old == nil || old.withdrawn {
			return nil
		}
		return []part{{&tunnel.Target{Name: t.name, Adapter: t.kind, Origin: t.adapter.Origin(), Gone: true}, targetSize}}
	}
	fresh := old == nil || old.withdrawn || old.locked && !now.locked // the gateway may have learned of models that are not there
	if fresh {
		old = &snapshot{}
	}
	b := builder{t: t, now: now}
	b.open()
	b.msg().Reset_ = fresh
	if fresh || !sameLoaded(old.Loaded, now.Loaded) {
		b.loaded(now.Loaded)
	}
	before := make(map[string][]byte, len(old.Models))
	for _, m := range old.Models {
		before[m.Name] = m.JSON
	}
	after := make(map[string]bool, len(now.Models))
	for _, m := range now.Models {
		after[m.Name] = true
	}
	// What goes, goes first: the gateway bounds what there is at any time.
	for _, m := range old.Models {
		if !after[m.Name] {
			b.room(len(m.Name))
			b.msg().Removed = append(b.msg().Removed, m.Name)
		}
	}
	for _, m := range now.Models {
		if j, ok := before[m.Name]; !ok || !bytes.Equal(j, m.JSON) {
			b.room(len(m.Name) + len(m.JSON))
			b.msg().Models = append(b.msg().Models, &tunnel.Model{Name: m.Name, Json: m.JSON})
		}
	}
	return b.parts
}

// builder fills Target messages one after the other.
type builder struct {
	t     *target
	now   *snapshot
	parts []part
}

// open begins a message. Each carries all that is short: in proto3 an absent flag is a false one.
func (b *builder) open() {
	m := &tunnel.Target{
		Name: b.t.name, Adapter: b.t.kind, Origin: b.t.adapter.Origin(), Reachable: b.now.reachable, Locked: b.now.locked,
		Version: strings.ToValidUTF8(b.now.Version[:min(len(b.now.Version), maxText)], ""),                         // a cut may go through a character
		Credits: &tunnel.Credits{PerModel: uint32(b.t.credits.perModel), PerTarget: uint32(b.t.credits.perTarget)}, //nolint:gosec // bounded
	}
	b.parts = append(b.parts, part{m, targetSize + len(m.Name) + len(m.Adapter) + len(m.Origin) + len(m.Version)})
}

func (b *builder) msg() *tunnel.Target { return b.parts[len(b.parts)-1].msg }

// room makes room for an entry of n bytes.
func (b *builder) room(n int) {
	if b.parts[len(b.parts)-1].size+n+entrySize > maxPart {
		b.open()
	}
	b.parts[len(b.parts)-1].size += n + entrySize
}

// loaded puts the list of loaded models into the open message. It cannot be split; what does not fit into one is left out.
func (b *builder) loaded(list []adapter.Loaded) {
	p := &b.parts[len(b.parts)-1]
	p.msg.Loaded = &tunnel.Loaded{}
	for _, m := range list {
		n := len(m.Name) + len(m.JSON) + entrySize
		if p.size+n > maxPart {
			return
		}
		p.size += n
		p.msg.Loaded.Models = append(p.msg.Loaded.Models, &tunnel.Model{Name: m.Name, Json: m.JSON})
	}
}
