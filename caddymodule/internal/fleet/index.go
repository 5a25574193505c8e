package fleet

import (
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/ollama"
)

// held is one model at one target. Guarded by Fleet.mu.
type held struct {
	target *target
	key    string
	model  ollama.Model
	loaded bool      // in the provider's memory, as its node last said
	used   int       // credits taken, as target.used has it
	sent   time.Time // when a run last went there: it is loaded before a Status can say so

	away bool // which of its holders' lists it stands in
	at   int  // and where
}

// holders are all who hold one model: at nodes that are here, and at those that went.
type holders struct{ here, away []*held }

func (l *holders) list(away bool) *[]*held {
	if away {
		return &l.away
	}
	return &l.here
}

// index finds who holds a model by its key, so that choosing a node takes as long as there are holders and not nodes. Whoever
// changes a target's models changes it. Guarded by Fleet.mu.
type index struct {
	models  map[string]*holders
	targets map[string]int  // of nodes that are here, by adapter
	differ  []difference    // found, and not logged yet
	told    map[string]bool // models for which one was found
	news    uint64          // counts what other gateways have to be told of
}

func newIndex() *index {
	return &index{models: make(map[string]*holders), targets: make(map[string]int), told: make(map[string]bool)}
}

// difference is two models under one name.
type difference struct {
	model         string
	nodes, digest [2]string
}

// maxTold bounds for how many names a difference is found, once each.
const maxTold = 1000

// compare looks whether h is another model than the first of its holders: what they all are, or else the difference was found before.
func (x *index) compare(h *held) {
	if h.away || h.model.OpenAI || h.model.Digest == "" || x.told[h.key] || len(x.told) == maxTold {
		return
	}
	for _, o := range x.models[h.key].here[:min(2, len(x.models[h.key].here))] { // h may be the first itself
		if o.target.seat.node.name == h.target.seat.node.name || o.model.OpenAI || o.model.Digest == "" || o.model.Digest == h.model.Digest {
			continue
		}
		x.told[h.key] = true
		x.differ = append(x.differ, difference{
			model: h.model.Name, nodes: [2]string{o.target.seat.node.name, h.target.seat.node.name}, digest: [2]string{o.model.Digest, h.model.Digest},
		})
		return
	}
}

// warnDifferent logs what compare has found. Lists show one entry for a name, and runs go to all who hold it.
func (f *Fleet) warnDifferent() {
	f.mu.Lock()
	found := f.index.differ
	f.index.differ = nil
	f.mu.Unlock()
	for _, d := range found {
		f.cfg.Log().Warn("nodes hold different models under one name; runs go to either", zap.String("model", d.model),
			zap.Strings("nodes", d.nodes[:]), zap.Strings("digests", d.digest[:]))
	}
}

// add puts h at the end of its list.
func (x *index) add(h *held) {
	l := x.models[h.key]
	if l == nil {
		l = &holders{}
		x.models[h.key] = l
	}
	list := l.list(h.away)
	h.at = len(*list)
	*list = append(*list, h)
}

// drop takes h out. The last of its list takes its place.
func (x *index) drop(h *held) {
	l := x.models[h.key]
	list := l.list(h.away)
	last := len(*list) - 1
	(*list)[h.at] = (*list)[last]
	(*list)[h.at].at = h.at
	(*list)[last] = nil
	*list = (*list)[:last]
	if len(l.here)+len(l.away) == 0 {
		delete(x.models, h.key)
	}
}

// offer counts n more targets with an adapter.
func (x *index) offer(adapter string, n int) {
	if x.targets[adapter] += n; x.targets[adapter] == 0 {
		delete(x.targets, adapter)
	}
}

// leave moves what a seat's targets hold to those that are away, and remembers only the names.
func (x *index) leave(s *seat) {
	for _, t := range s.targets {
		x.offer(t.adapter, -1)
		clear(t.loaded)
		for _, h := range t.models {
			x.drop(h)
			h.away, h.loaded = true, false
			h.model = ollama.Model{Name: h.model.Name, OpenAI: h.model.OpenAI}
			x.add(h)
		}
	}
}

// forget drops what a seat's targets hold, before its node is forgotten or has another seat.
func (x *index) forget(s *seat) {
	if s == nil {
		return
	}
	for _, t := range s.targets {
		if s.current() {
			x.offer(t.adapter, -1)
		}
		for _, h := range t.models {
			x.drop(h)
		}
		t.models = nil // runs that are on it still give their places back
	}
}

// adapters says by which adapters a model is held.
type adapters struct{ ollama, openai bool }

// and adds one more.
func (a adapters) and(adapter string) adapters {
	return adapters{a.ollama || adapter == adapterOllama, a.openai || adapter == adapterOpenAI}
}

// or joins what is known of one model.
func (a adapters) or(b adapters) adapters {
	return adapters{a.ollama || b.ollama, a.openai || b.openai}
}

// HeldBy reports by which adapters the model of this key is held, at nodes that are here, or went, or have come back and not reported yet.
func (f *Fleet) HeldBy(key string) (ollama, openai bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var by adapters
	if l := f.index.models[key]; l != nil {
		for _, list := range [][]*held{l.here, l.away} {
			for _, h := range list {
				if f.shows(h.target) {
					by = by.and(h.target.adapter)
				}
			}
		}
	}
	f.eachYoung(func(s *seat) bool {
		before := s.before[key]
		by.ollama, by.openai = by.ollama || before.ollama, by.openai || before.openai
		return true
	})
	return by.ollama, by.openai
}

// Offers reports whether a node that is here has a target with this adapter, answering or not.
func (f *Fleet) Offers(adapter string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.index.targets[adapter] > 0
}
