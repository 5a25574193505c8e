package fleet

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// The reference: pick and survey as walks over all nodes and targets, which know no index.

func (w *Want) holdsByWalk(t *target) bool {
	if w.Model != "" && t.models[w.Model] == nil {
		return false
	}
	return w.serves(t)
}

// betterByWalk orders two targets with room; 0 for a draw.
func (w *Want) betterByWalk(a, b *target) int {
	_, la := a.loaded[w.Model]
	_, lb := b.loaded[w.Model]
	switch {
	case la != lb && la:
		return -1
	case la != lb:
		return 1
	case a.taken()*b.perTarget != b.taken()*a.perTarget:
		return a.taken()*b.perTarget - b.taken()*a.perTarget
	case (a.seat.node.peer == nil) != (b.seat.node.peer == nil):
		if a.seat.node.peer == nil {
			return -1
		}
		return 1
	case a.turn < b.turn:
		return -1
	case a.turn > b.turn:
		return 1
	}
	return strings.Compare(a.seat.node.name, b.seat.node.name)
}

func (f *Fleet) pickByWalk(w *Want) *target {
	var best *target
	for _, n := range f.nodes {
		if !n.live() {
			continue
		}
		for _, t := range n.seat.targets {
			room := !t.full && t.total+t.others < t.perTarget && t.used[w.Model]+t.elsewhere[w.Model] < t.perModel
			if !w.Credit {
				room = t.seat.places < places
			}
			if t.reachable && w.holdsByWalk(t) && !w.out(t) && room && (best == nil || w.betterByWalk(t, best) < 0) {
				best = t
			}
		}
	}
	return best
}

func (f *Fleet) surveyByWalk(w *Want) prospect {
	p, here := nobody, false
	for _, n := range f.nodes {
		if n.seat == nil {
			continue
		}
		here = here || n.goneAt.IsZero()
		if w.Node != "" && n.name != w.Node {
			continue
		}
		if n.goneAt.IsZero() && !n.seat.ready && f.returning(n) {
			p = max(p, unknown)
			if _, ok := n.seat.before[w.Model]; ok {
				p = max(p, returning)
			}
		}
		for _, t := range n.seat.targets {
			switch {
			case !w.holdsByWalk(t):
				if !t.reachable && n.goneAt.IsZero() && len(t.models) == 0 && f.cfg.Now().Sub(n.seat.since) < comingUp {
					p = max(p, unknown)
				}
			case n.shadowed():
			case n.live() && t.reachable && w.out(t):
				p = max(p, excluded)
			case n.live() && t.reachable:
				p = max(p, busy)
			case f.returning(n) && t.reachable:
				p = max(p, returning)
			default:
				p = max(p, absent)
			}
		}
	}
	if !here {
		p = max(p, unknown)
	}
	return p
}

// checkIndex compares what the Fleet keeps beside its nodes with what a walk finds.
func (f *Fleet) checkIndex(t *testing.T) {
	t.Helper()
	here, entries, targets := 0, 0, make(map[string]int)
	young := make(map[*seat]bool, len(f.young))
	for _, s := range f.young {
		young[s] = true
	}
	for _, n := range f.nodes {
		if n.seat == nil {
			continue
		}
		if n.goneAt.IsZero() {
			here++
			if (!n.seat.ready || n.seat.fresh(f.cfg.Now())) && !young[n.seat] {
				t.Fatalf("%s is young, and not among those", n.name)
			}
		}
		models, bytes := 0, 0
		for _, tg := range n.seat.targets {
			if n.goneAt.IsZero() {
				targets[tg.adapter]++
			}
			for key, h := range tg.models {
				entries, models, bytes = entries+1, models+1, bytes+len(h.model.Raw)
				_, loaded := tg.loaded[key]
				list := *f.index.models[key].list(h.away)
				switch {
				case h.key != key || h.target != tg || h.away == n.goneAt.IsZero() || list[h.at] != h:
					t.Fatalf("%s/%s %s stands wrong in the index: %+v", n.name, tg.name, key, h)
				case h.used != tg.used[key] || h.loaded != loaded || key != ollama.ModelKey(h.model.Name):
					t.Fatalf("%s/%s %s: %+v, used %d, loaded %v", n.name, tg.name, key, h, tg.used[key], loaded)
				}
			}
		}
		if n.goneAt.IsZero() && (models != n.seat.models || bytes != n.seat.bytes) {
			t.Fatalf("%s: %d models of %d bytes, counted as %d and %d", n.name, models, bytes, n.seat.models, n.seat.bytes)
		}
	}
	for key, l := range f.index.models {
		if entries -= len(l.here) + len(l.away); len(l.here)+len(l.away) == 0 {
			t.Fatalf("%s has no holder", key)
		}
	}
	if !maps.Equal(targets, f.index.targets) {
		t.Fatalf("targets %v, counted as %v", targets, f.index.targets)
	}
	if here != f.here || entries != 0 {
		t.Fatalf("%d nodes are here, %d are counted; %d entries are not in the index", here, f.here, entries)
	}
	f.checkRemote(t)
}

// checkRemote compares what the Fleet keeps of other gateways' nodes beside the nodes themselves.
func (f *Fleet) checkRemote(t *testing.T) {
	t.Helper()
	records, live := 0, make(map[Peer]int)
	for at, n := range f.nodes {
		if at != n.key() {
			t.Fatalf("%s stands at %s", n.key(), at)
		}
		if n.peer == nil {
			continue
		}
		if records++; !slices.Contains(f.remote[n.name], n) {
			t.Fatalf("%s is not among those of its name", at)
		}
		if n.goneAt.IsZero() {
			live[n.peer]++
		}
		if own := f.nodes[n.name]; own != nil && own.seat != nil && own.goneAt.IsZero() && !n.goneAt.IsZero() {
			t.Fatalf("%s is remembered although the node is here", at)
		}
	}
	for name, there := range f.remote {
		if records -= len(there); len(there) == 0 {
			t.Fatalf("nothing is kept of %s", name)
		}
	}
	if records != 0 {
		t.Fatalf("%d records of other gateways' nodes are kept and lost", -records)
	}
	for p, n := range f.peers {
		if n != live[p] {
			t.Fatalf("%d nodes of %s are here, %d are counted", live[p], p.Node(), n)
		}
		delete(live, p)
	}
	if len(live) != 0 {
		t.Fatalf("nodes of connections that have ended: %v", live)
	}
	for name, p := range f.speaks {
		if _, ok := f.peers[p]; !ok || p.Node() != name {
			t.Fatalf("%s speaks for %s", p.Node(), name)
		}
	}
	if len(f.young) > 2*len(f.nodes)+65 {
		t.Fatalf("%d seats count as young, of %d nodes", len(f.young), len(f.nodes))
	}
}

// world plays random events to a Fleet.
type world struct {
	*testing.T
	*rand.Rand
	f        *Fleet
	clock    time.Time
	sessions []*fakeSession
	places   []*Place
	line     []*waiter
	filters  []*Filter
}

var worldModels = []string{"a", "b", "hf.co/x/c:q4", "gpt-4o", "/models/d.gguf", "accounts/x/models/e/f/g"}

func (w *world) one(n int) bool { return w.IntN(n) == 0 }

func (w *world) want() *Want {
	models := append(slices.Clone(worldModels), "nobody-has-it")
	want := &Want{Model: ollama.ModelKey(models[w.IntN(len(models))]), Credit: !w.one(3), Filter: w.filters[w.IntN(len(w.filters))]}
	if w.one(8) {
		want.Model = ""
	}
	if w.one(4) {
		want.Node = fmt.Sprint("n", w.IntN(6))
	}
	if w.one(6) {
		want.Target = fmt.Sprint("t", w.IntN(2))
	}
	if w.one(4) {
		want.Since = "0.5.0"
	}
	if w.one(4) {
		want.Out = make(map[TargetRef]bool)
		for _, s := range w.sessions {
			want.Out[TargetRef{s.node, fmt.Sprint("t", w.IntN(2)), s.gen}] = w.one(2)
		}
	}
	return want
}

// change is a random word of a node about a target.
func (w *world) change() *tunnel.Target {
	c := &tunnel.Target{
		Name: fmt.Sprint("t", w.IntN(2)), Adapter: "ollama", Version: []string{"", "0.4.0", "0.6.0", "dev"}[w.IntN(4)], Reachable: !w.one(5), Reset_: w.one(6), Gone: w.one(12),
	}
	if w.one(3) {
		c.Adapter, c.Origin, c.Locked = "openai", fmt.Sprint("https://p", w.IntN(2)), w.one(2)
	}
	if w.one(2) {
		per := uint32(1 + w.IntN(2)) //nolint:gosec // small
		c.Credits = &tunnel.Credits{PerModel: per, PerTarget: 2 * per}
	}
	c.Models = w.models(c.Adapter)
	for _, m := range worldModels {
		if w.one(6) {
			c.Removed = append(c.Removed, m)
		}
	}
	if c.Adapter == "ollama" && w.one(2) {
		c.Loaded = loaded([]string{"a", "b"}[:w.IntN(3)]...)
	}
	return c
}

func (w *world) models(adapter string) []*tunnel.Model {
	if adapter == "openai" {
		var names []string
		for range w.IntN(4) {
			names = append(names, worldModels[w.IntN(len(worldModels))])
		}
		return openAI(names...)
	}
	return offer(1, []string{"a", "b", "hf.co/x/c:q4"}[:w.IntN(4)]...).Models
}

// place takes in the place that a waiter got, if it did.
func (w *world) place(wt *waiter) bool {
	select {
	case p := <-wt.place:
		w.places = append(w.places, p)
		return true
	default:
		return false
	}
}

// event lets something happen, and says what.
func (w *world) event() string {
	f, ctx := w.f, context.Background()
	if len(w.sessions) == 0 || w.one(12) {
		s := &fakeSession{node: fmt.Sprint("n", w.IntN(6)), instance: fmt.Sprint(w.IntN(2)), probe: context.DeadlineExceeded}
		gen, err := f.register(ctx, s, 0)
		if err != nil {
			w.Fatal(err)
		}
		s.gen, s.state = gen, tunnel.StateRegistered
		w.sessions = append(w.sessions, s)
		return "register " + s.node
	}
	s := w.sessions[w.IntN(len(w.sessions))]
	switch w.IntN(14) {
	case 0, 1:
		if s.state == tunnel.StateRegistered {
			s.state = tunnel.StateReady
		}
		_ = f.ready(ctx, s, []*tunnel.Target{w.change(), w.change()}) // an old session is refused
		return "ready " + s.node
	case 2, 3, 4:
		if err := f.status(s, []*tunnel.Target{w.change()}); err != nil {
			w.Fatal(err)
		}
		return "status " + s.node
	case 5:
		if w.one(3) {
			f.gone(s)
			w.sessions = slices.DeleteFunc(w.sessions, func(o *fakeSession) bool { return o == s })
			return "gone " + s.node
		}
	case 6:
		if s.state != tunnel.StateRegistered {
			s.set(f, []tunnel.State{tunnel.StateReady, tunnel.StateReady, tunnel.StateSuspect, tunnel.StateDraining}[w.IntN(4)])
			return "state " + s.node
		}
	case 7:
		if _, err := f.Drain(ctx, s.node, w.one(3)); err != nil {
			w.Fatal(err)
		}
		return "drain " + s.node
	case 8:
		for _, l := range f.Locked() {
			if err := f.Learn(l.Node, l.Generation-uint64(w.IntN(2)), l.Target, w.models(l.Adapter)); err != nil { //nolint:gosec // small
				w.Fatal(err)
			}
		}
		return "learn"
	case 9:
		w.clock = w.clock.Add([]time.Duration{time.Second, absence, comingUp, rememberGone}[min(3, w.IntN(12))])
		return "clock"
	case 10, 11:
		if len(w.places) > 0 {
			i := w.IntN(len(w.places))
			if w.one(4) {
				w.places[i].Full()
			}
			w.places[i].Release()
			w.places = slices.Delete(w.places, i, i+1)
			return "release"
		}
	case 12:
		if len(w.line) > 0 && w.one(2) {
			i := w.IntN(len(w.line))
			if p, _ := f.leave(w.line[i], ErrQueueTimeout); p != nil {
				w.Fatal("who left got a place")
			}
			w.line = slices.Delete(w.line, i, i+1)
			return "leave"
		}
	}
	want := w.want()
	want.Front = w.one(5)
	f.mu.Lock()
	p, wt, _, _ := f.admit(want, Queue{Depth: 40, Wait: time.Minute})
	f.mu.Unlock()
	if p != nil {
		w.places = append(w.places, p)
	}
	if wt != nil {
		w.line = append(w.line, wt)
	}
	return "acquire"
}

// TestIndexAgainstWalk plays random events and compares the index with a walk over everything, for many wants, after each one.
func TestIndexAgainstWalk(t *testing.T) {
	t.Parallel()
	both := &Filter{Serves: func(c Candidate) bool { return c.Adapter == "ollama" || c.Adapter == "openai" }}
	second := &Filter{Serves: func(c Candidate) bool { return c.Target == "t1" }}
	picked, prospects := 0, make(map[prospect]int)
	for seed := range uint64(40) {
		w := &world{T: t, Rand: rand.New(rand.NewPCG(seed, 5)), clock: time.Now(), filters: []*Filter{nil, both, second}}
		registered := w.clock // the store's clock, which no bound on registrations should stop
		st, err := store.NewMemory(context.Background(), store.Options{Now: func() time.Time { registered = registered.Add(time.Minute); return registered }})
		if err != nil {
			t.Fatal(err)
		}
		w.f = New(Config{Gateway: "gw1", Store: st, Now: func() time.Time { return w.clock }})
		var events []string
		for range 250 {
			events = append(events, w.event())
			w.line = slices.DeleteFunc(w.line, w.place)
			w.f.mu.Lock()
			w.f.checkIndex(t)
			for _, wt := range w.line {
				if tg := w.f.pickByWalk(wt.want); tg != nil {
					t.Fatalf("seed %d: %+v waits although %s/%s has room; after %q", seed, wt.want, tg.seat.node.name, tg.name, events)
				}
			}
			for range 12 {
				want := w.want()
				got, ref := w.f.pick(want), w.f.pickByWalk(want)
				if (got == nil) != (ref == nil) || got != nil && want.betterByWalk(got, ref) != 0 {
					t.Fatalf("seed %d: %+v picked %+v; by a walk %+v; after %q", seed, want, got, ref, events)
				}
				p, refp := w.f.survey(want), w.f.surveyByWalk(want)
				if p != refp {
					t.Fatalf("seed %d: %+v has prospect %d; by a walk %d; after %q", seed, want, p, refp, events)
				}
				prospects[p]++
				if got != nil {
					picked++
				}
			}
			w.f.mu.Unlock()
		}
		for _, p := range w.places {
			p.Release()
		}
		w.line = slices.DeleteFunc(w.line, w.place)
		_ = st.Close()
	}
	if picked < 1000 || len(prospects) != int(busy)+1 {
		t.Errorf("%d picks, prospects %v: the events are not as varied as they were", picked, slices.Sorted(maps.Keys(prospects)))
	}
}
