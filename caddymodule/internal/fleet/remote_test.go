package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// fakePeer is a connection with another gateway, without a network.
type fakePeer struct {
	name string

	mu    sync.Mutex
	state tunnel.State
}

func peerOf(name string) *fakePeer { return &fakePeer{name: name, state: tunnel.StateReady} }

func (p *fakePeer) Node() string         { return p.name }
func (p *fakePeer) RemoteAddr() net.Addr { return &net.UDPAddr{} }
func (p *fakePeer) Lane() *tunnel.Lane   { return nil }
func (p *fakePeer) State() tunnel.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

func (p *fakePeer) set(f *Fleet, st tunnel.State) {
	p.mu.Lock()
	p.state = st
	p.mu.Unlock()
	f.PeerChanged(p)
}

// gatewayFleet is the fleet of one gateway of several.
func gatewayFleet(t testing.TB, gateway string) *Fleet {
	f := newFleet(t)
	f.cfg.Gateway = gateway
	return f
}

// way is the way from one gateway's fleet to another's: what the first tells the second.
type way struct {
	from, to *Fleet
	told     *Told
	peer     *fakePeer // as the second knows the first
}

func newWay(from, to *Fleet) *way {
	w := &way{from: from, to: to}
	w.again()
	return w
}

// again is a new connection of the same gateway, which has been heard.
func (w *way) again() {
	w.told, w.peer = &Told{Peer: w.to.cfg.Gateway}, peerOf(w.from.cfg.Gateway)
	_ = w.to.PeerNodes(w.peer, nil)
}

// maxMessage is what tunnel.NodeSession.Nodes takes at once, in bytes.
const maxMessage = 200 << 10

// pass tells what there is to tell, as it would travel, and returns how many messages that took.
func (w *way) pass(t testing.TB) int {
	t.Helper()
	out := w.from.Tell(w.told)
	for i, m := range out {
		b, err := proto.Marshal(m)
		if err != nil || len(b) > maxMessage {
			t.Fatalf("a message of %d bytes about %s: %v", len(b), m.Name, err)
		}
		out[i] = new(tunnel.PeerNode)
		if err := proto.Unmarshal(b, out[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.to.PeerNodes(w.peer, out); err != nil {
		t.Fatalf("%v", err)
	}
	return len(out)
}

// differs compares what the second knows with what there is; "" if it is the same.
func (w *way) differs() string {
	w.from.mu.Lock()
	defer w.from.mu.Unlock()
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	ready := 0
	for _, n := range w.from.nodes {
		if n.peer != nil || n.seat == nil || !n.seat.ready || !n.goneAt.IsZero() {
			continue
		}
		ready++
		r := w.to.nodes[remoteKey(n.name, w.from.cfg.Gateway)]
		if r == nil || !r.goneAt.IsZero() || r.peer != w.peer {
			return n.name + " is not known"
		}
		if d := w.seatDiffers(n, r.seat); d != "" {
			return n.name + ": " + d
		}
	}
	if n := w.to.peers[w.peer]; n != ready {
		return fmt.Sprintf("%d nodes are known of %d", n, ready)
	}
	return ""
}

func (w *way) seatDiffers(n *node, r *seat) string {
	s, rs := n.seat.session, r.session.(*remoteSession)
	switch {
	case s.Generation() != rs.generation || !maps.Equal(s.Labels(), rs.labels) || s.Software() != rs.software || !s.Since().Truncate(time.Millisecond).Equal(rs.since):
		return fmt.Sprintf("session %+v", rs)
	case peerStates[n.peerState()] != rs.state:
		return fmt.Sprintf("state %s", rs.state)
	case len(n.seat.targets) != len(r.targets):
		return fmt.Sprintf("%d targets of %d", len(r.targets), len(n.seat.targets))
	}
	for name, t := range n.seat.targets {
		rt := r.targets[name]
		if rt == nil {
			return "no target " + name
		}
		if d := w.targetDiffers(t, rt); d != "" {
			return name + ": " + d
		}
	}
	return ""
}

func (w *way) targetDiffers(t, r *target) string {
	switch {
	case t.adapter != r.adapter || t.version != r.version || t.release != r.release || t.origin != r.origin || t.reachable != r.reachable || r.locked:
		return fmt.Sprintf("%s %q %q %v, is %s %q %q %v", r.adapter, r.version, r.origin, r.reachable, t.adapter, t.version, t.origin, t.reachable)
	case t.perModel != r.perModel || t.perTarget != r.perTarget:
		return fmt.Sprintf("credits %d %d", r.perModel, r.perTarget)
	case t.full && !r.full:
		return "not full"
	case len(t.models) != len(r.models):
		return fmt.Sprintf("%d models of %d", len(r.models), len(t.models))
	case !maps.EqualFunc(t.loaded, r.loaded, func(a, b ollama.Loaded) bool { return a.Name == b.Name && bytes.Equal(a.Raw, b.Raw) }):
		return fmt.Sprintf("loaded %v, is %v", r.loaded, t.loaded)
	}
	for key, h := range t.models {
		rh := r.models[key]
		if rh == nil || rh.model.Name != h.model.Name || !bytes.Equal(rh.model.Raw, h.model.Raw) || rh.model.OwnedBy != h.model.OwnedBy || !rh.model.ModifiedAt.Equal(h.model.ModifiedAt) ||
			rh.model.OpenAI != h.model.OpenAI || rh.loaded != h.loaded {
			return fmt.Sprintf("model %s: %+v, is %+v", key, rh, h)
		}
	}
	others, sum := make(map[string]int), 0
	for key, n := range t.used {
		if n -= t.from[w.to.cfg.Gateway][key]; n > 0 {
			others[key] += n
			sum += n
		}
	}
	if !maps.Equal(others, r.elsewhere) && len(others)+len(r.elsewhere) > 0 || sum != r.others {
		return fmt.Sprintf("credits taken %v (%d), are %v (%d)", r.elsewhere, r.others, others, sum)
	}
	return ""
}

// TestToldAgainstThere plays random events at three gateways, two of which tell the third of their nodes, some of which the third has itself: what it is told is
// what there is, and it chooses as one would who walks over everything.
func TestToldAgainstThere(t *testing.T) {
	t.Parallel()
	both := &Filter{Serves: func(c Candidate) bool { return c.Adapter == "ollama" || c.Adapter == "openai" }}
	second := &Filter{Serves: func(c Candidate) bool { return c.Target == "t1" }}
	away, own, prospects, picks := 0, 0, make(map[prospect]int), make(map[bool]int)
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 9)) //nolint:gosec // repeatable
		var worlds []*world
		for _, gw := range []string{"gw2", "gw1", "gw3"} { // the first is told
			w := &world{T: t, Rand: rnd, clock: time.Now(), filters: []*Filter{nil, both, second}}
			registered := w.clock
			st, err := store.NewMemory(context.Background(), store.Options{Now: func() time.Time { registered = registered.Add(time.Minute); return registered }})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			w.f = New(Config{Gateway: gw, Store: st, Now: func() time.Time { return w.clock }})
			worlds = append(worlds, w)
		}
		home := worlds[0]
		ways := []*way{newWay(worlds[1].f, home.f), newWay(worlds[2].f, home.f)}
		old := make([]*fakePeer, 2) // connections that were replaced, and have not ended yet
		var forwarded []*Place
		var events []string
		for range 300 {
			i := rnd.IntN(3)
			what := "at " + worlds[i].f.cfg.Gateway + ": "
			switch k := rnd.IntN(20); {
			case i == 0 && k < 13: // home hears
				i = rnd.IntN(2)
				wy := ways[i]
				what = "hear " + wy.from.cfg.Gateway
				switch {
				case k == 0 && old[i] == nil:
					what += " anew"
					old[i] = wy.peer
					wy.again()
				case k == 1 && old[i] != nil:
					what += ": the old connection ends"
					home.f.PeerLeft(old[i])
					old[i] = nil
				case k == 2:
					what += ": it ends"
					home.f.PeerLeft(wy.peer)
					wy.again()
				case k == 3:
					what += ": another state"
					wy.peer.set(home.f, []tunnel.State{tunnel.StateReady, tunnel.StateSuspect, tunnel.StateDraining}[rnd.IntN(3)])
				default:
					if old[i] != nil && rnd.IntN(2) == 0 {
						what += ", after late news of the old connection"
						n := &tunnel.PeerNode{Name: fmt.Sprint("n", rnd.IntN(6)), Generation: uint64(rnd.IntN(9)), State: tunnel.PeerNodeState(1 + rnd.IntN(4))} //nolint:gosec // small
						wy.pass(t)
						if err := home.f.PeerNodes(old[i], []*tunnel.PeerNode{n}); err != nil {
							t.Fatal(err)
						}
					}
					wy.pass(t)
					if d := wy.differs(); d != "" {
						t.Fatalf("seed %d: %s knows of %s: %s; after %q, %s", seed, home.f.cfg.Gateway, wy.from.cfg.Gateway, d, events, what)
					}
				}
			case i > 0 && k < 3: // a run that the first has forwarded begins there
				w := worlds[i].want()
				w.From, w.Node = []string{"gw2", "gw2", "gw9"}[rnd.IntN(3)], fmt.Sprint("n", rnd.IntN(6))
				if p, err := worlds[i].f.Acquire(context.Background(), w, Queue{}); err == nil {
					forwarded = append(forwarded, p)
					what += "forwarded to " + p.Node()
				}
			case i > 0 && k < 5 && len(forwarded) > 0:
				what += "forwarded run ends"
				forwarded[0].Release()
				forwarded = forwarded[1:]
			default:
				what += worlds[i].event()
			}
			events = append(events, what)
			for _, w := range worlds {
				w.line = slices.DeleteFunc(w.line, w.place)
				w.f.mu.Lock()
				w.f.checkIndex(t)
				w.f.mu.Unlock()
			}
			f := home.f
			f.mu.Lock()
			for _, wt := range home.line {
				if tg := f.pickByWalk(wt.want); tg != nil {
					t.Fatalf("seed %d: %+v waits although %s/%s has room; after %q", seed, wt.want, tg.seat.node.key(), tg.name, events)
				}
			}
			for range 8 {
				want := home.want()
				if rnd.IntN(6) == 0 {
					want.From = "gw9"
				}
				got, ref := f.pick(want), f.pickByWalk(want)
				if (got == nil) != (ref == nil) || got != nil && want.betterByWalk(got, ref) != 0 {
					t.Fatalf("seed %d: %+v picked %+v; by a walk %+v; after %q", seed, want, got, ref, events)
				}
				if p, refp := f.survey(want), f.surveyByWalk(want); p != refp {
					t.Fatalf("seed %d: %+v has prospect %d; by a walk %d; after %q", seed, want, p, refp, events)
				} else {
					prospects[p]++
				}
				if got == nil {
					continue
				}
				n := got.seat.node
				if picks[n.peer != nil]++; n.peer == nil {
					continue
				}
				if o := f.nodes[n.name]; want.From != "" || o != nil && o.seat != nil && o.goneAt.IsZero() && !o.draining && o.seat.ready && o.seat.session.State() == tunnel.StateReady {
					t.Fatalf("seed %d: %+v picked %s; after %q", seed, want, n.key(), events)
				}
			}
			for _, n := range f.nodes {
				if n.seat != nil && n.peer != nil {
					away++
				} else if n.seat != nil {
					own++
				}
			}
			f.mu.Unlock()
			for _, v := range f.Nodes() {
				if v.State != "gone" && len(v.Sessions) == 0 || v.State == "gone" && len(v.Sessions) > 0 {
					t.Fatalf("seed %d: row %+v; after %q", seed, v, events)
				}
				if has := f.Has(v.Name); has != (v.State != "gone") {
					t.Fatalf("seed %d: has %s: %v, row %+v", seed, v.Name, has, v)
				}
			}
		}
		for i, wy := range ways {
			for _, p := range []*fakePeer{old[i], wy.peer} {
				if p != nil {
					home.f.PeerLeft(p)
				}
			}
		}
		for _, p := range slices.Concat(forwarded, home.places, worlds[1].places, worlds[2].places) {
			p.Release()
		}
		for _, w := range worlds {
			w.line = slices.DeleteFunc(w.line, w.place)
			w.f.mu.Lock()
			w.f.checkIndex(t)
			if n := len(w.f.peers) + len(w.f.speaks); n != 0 {
				t.Fatalf("%d connections are kept", n)
			}
			w.f.mu.Unlock()
		}
	}
	if away < 1000 || own < 1000 || picks[true] < 300 || picks[false] < 300 || len(prospects) != int(busy)+1 {
		t.Errorf("%d and %d records, picks %v, prospects %v: the events are not as varied as they were", away, own, picks, prospects)
	}
}

// news is a node as another gateway might tell of it.
func news(name string, generation uint64, targets ...*tunnel.Target) *tunnel.PeerNode {
	return &tunnel.PeerNode{Name: name, Generation: generation, State: tunnel.PeerReady, Targets: targets}
}

func hear(t testing.TB, f *Fleet, p Peer, nodes ...*tunnel.PeerNode) {
	t.Helper()
	if err := f.PeerNodes(p, nodes); err != nil {
		t.Fatal(err)
	}
}

// knockedAll lets no more runs wait at other gateways' nodes.
func knockedAll(f *Fleet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, there := range f.remote {
		for _, n := range there {
			for _, t := range n.seat.targets {
				t.knocks = maxKnocks
			}
		}
	}
}

// A gateway without a node of its own lets some runs wait at the other one's, in turn with that one's own; the others wait here until one of these has begun.
func TestKnocks(t *testing.T) {
	t.Parallel()
	a, b := gatewayFleet(t, "gw1"), gatewayFleet(t, "gw2")
	w := newWay(a, b)
	join(t, a, "n1", offer(1, "m"))
	busy := acquire(t, a, want(t, "m"))
	w.pass(t)
	var at []*Place
	for range maxKnocks {
		p := acquire(t, b, want(t, "m"))
		if p.Peer() != "gw1" || !p.knock {
			t.Fatalf("%+v", p)
		}
		at = append(at, p)
	}
	first, second := waits(t, b, want(t, "m")), waits(t, b, want(t, "m"))
	at[0].Accepted()
	at[0].Accepted() // said once
	p := given(first)
	if p == nil || !p.knock || given(second) != nil {
		t.Fatal("one has begun, and not one has taken its turn")
	}
	at[0].Release()
	if given(second) != nil {
		t.Fatal("a run that has begun was counted as one that waits")
	}
	at[1].Release() // refused, or its caller has left
	q := given(second)
	if q == nil {
		t.Fatal("one waits no more, and nobody has taken its turn")
	}
	for _, p := range append(at[2:], p, q) {
		p.Release()
	}
	busy.Release()
	// With a node of its own that holds the model nobody is sent away to wait.
	join(t, b, "n2", offer(1, "m"))
	w.pass(t)
	own := acquire(t, b, want(t, "m"))
	again := acquire(t, b, want(t, "m"))
	if _, err := b.Acquire(t.Context(), want(t, "m"), now); !errors.Is(err, ErrQueueFull) {
		t.Errorf("%v", err)
	}
	own.Release()
	again.Release()
	for _, n := range b.Nodes() {
		for _, target := range n.Targets {
			if target.Credits.Free != target.Credits.Granted && n.Name == "n2" {
				t.Errorf("%+v", n)
			}
		}
	}
}

// waits puts a run in line.
func waits(t testing.TB, f *Fleet, w *Want) *waiter {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	p, wt, _, err := f.admit(w, Queue{Depth: 100, Wait: time.Minute})
	if wt == nil {
		t.Fatalf("no place in line: %+v %v", p, err)
	}
	return wt
}

// given returns the place that a waiter has got, nil for none.
func given(wt *waiter) *Place {
	select {
	case p := <-wt.place:
		return p
	default:
		return nil
	}
}

// A node with a session here is used by that, and by way of its other gateway whenever that one cannot take runs.
func TestShadow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		away, back func(t *testing.T, f *Fleet, s *fakeSession)
	}{
		{"suspect", func(_ *testing.T, f *Fleet, s *fakeSession) { s.set(f, tunnel.StateSuspect) }, func(_ *testing.T, f *Fleet, s *fakeSession) { s.set(f, tunnel.StateReady) }},
		{"its process drains", func(_ *testing.T, f *Fleet, s *fakeSession) { s.set(f, tunnel.StateDraining) }, nil},
		{"gone", func(_ *testing.T, f *Fleet, s *fakeSession) { f.gone(s) }, func(t *testing.T, f *Fleet, _ *fakeSession) { join(t, f, "n1", offer(1, "m")) }},
		{"comes anew", func(t *testing.T, f *Fleet, s *fakeSession) {
			enter(t, f, &fakeSession{node: s.node, instance: s.instance}) // registered, not ready
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
			s := join(t, f, "n1", offer(1, "m"))
			hear(t, f, p, news("n1", 77, offer(1, "m")))
			own := acquire(t, f, want(t, "m"))
			if own.Peer() != "" {
				t.Fatal("the node's own session is not used")
			}
			wt := waits(t, f, want(t, "m"))
			hear(t, f, p, news("n1", 77, offer(2, "m", "other")))
			if given(wt) != nil {
				t.Fatal("a place by way of another gateway, although the node is here")
			}
			if _, err := f.Acquire(t.Context(), want(t, "other"), now); !errors.Is(err, ErrNoModel) {
				t.Fatalf("what only the other gateway says of the node: %v", err)
			}
			c.away(t, f, s)
			if c.name == "comes anew" { // nothing tells of it: the next word about the node does
				hear(t, f, p, news("n1", 77))
			}
			there := given(wt)
			if there == nil || there.Peer() != "gw2" || there.Generation() != 77 || there.Node() != "n1" {
				t.Fatalf("%+v", there)
			}
			if v := f.Nodes(); len(v) != 1 || len(v[0].Sessions) == 0 || v[0].Sessions[len(v[0].Sessions)-1] != (SessionView{"gw2", 77, 1}) {
				t.Errorf("rows %+v", v)
			}
			if c.back == nil {
				return
			}
			own.Release()
			c.back(t, f, s)
			if again := acquire(t, f, want(t, "m")); again.Peer() != "" {
				t.Error("the node is back, and not used by its own session")
			}
			there.Release()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.checkIndex(t)
		})
	}
}

// What is drained is drained by every way.
func TestDrainedEverywhere(t *testing.T) {
	t.Parallel()
	f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
	join(t, f, "n1", offer(1, "m"))
	hear(t, f, p, news("n1", 77, offer(1, "m")), news("n2", 78, offer(1, "x")))
	for _, name := range []string{"n1", "n2"} {
		if known, err := f.Drain(t.Context(), name, true); err != nil || !known {
			t.Fatalf("%s: %v %v", name, known, err)
		}
	}
	for _, m := range []string{"m", "x"} {
		if _, err := f.Acquire(t.Context(), want(t, m), now); !errors.Is(err, ErrNoNode) {
			t.Errorf("%s: %v", m, err)
		}
	}
	if _, err := f.Drain(t.Context(), "n2", false); err != nil {
		t.Fatal(err)
	}
	if pl := acquire(t, f, want(t, "x")); pl.Peer() != "gw2" {
		t.Errorf("%+v", pl)
	}
	f.SetDraining([]string{"n2"})
	if pl := acquire(t, f, want(t, "m")); pl.Peer() != "" {
		t.Errorf("%+v", pl)
	}
	if known, _ := f.Drain(t.Context(), "n3", true); known {
		t.Error("n3 is known")
	}
}

// A run that another gateway has forwarded goes to a session here or nowhere, and waits for nothing but a credit.
func TestForwardedGoesNoFurther(t *testing.T) {
	t.Parallel()
	f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
	join(t, f, "n1", offer(1, "m"))
	hear(t, f, p, news("n1", 77, offer(9, "m")), news("n2", 78, offer(9, "x")))
	forwarded := func(node, model string) *Want {
		w := want(t, model)
		w.Node, w.From = node, "gw3"
		return w
	}
	queue := Queue{Depth: 10, Wait: time.Minute}
	place, err := f.Acquire(t.Context(), forwarded("n1", "m"), queue)
	if err != nil || place.Peer() != "" {
		t.Fatalf("%+v %v", place, err)
	}
	for _, c := range []struct {
		w   *Want
		err error
	}{
		{forwarded("n2", "x"), ErrNoModel}, {forwarded("n1", "x"), ErrNoModel}, {forwarded("n9", "m"), ErrNoModel},
	} {
		if _, err := f.Acquire(t.Context(), c.w, queue); !errors.Is(err, c.err) {
			t.Errorf("%s at %s: %v, want %v", c.w.Model, c.w.Node, err, c.err)
		}
	}
	if f.Waiting() != 0 {
		t.Error("one waits")
	}
	if _, err := f.Acquire(t.Context(), forwarded("n1", "m"), now); !errors.Is(err, ErrQueueFull) {
		t.Errorf("at a node without a credit: %v", err)
	}
	wt := waits(t, f, forwarded("n1", "m"))
	place.Release()
	if place = given(wt); place == nil {
		t.Fatal("the credit came free, and the run that waits for it has it not")
	}
	if _, err := f.Drain(t.Context(), "n1", true); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Acquire(t.Context(), forwarded("n1", "m"), queue); !errors.Is(err, ErrNoNode) {
		t.Errorf("at a node that drains: %v", err)
	}
	place.Release()
}

// The credits that a gateway is told of as taken are those that others take: not its own.
func TestTakenByOthers(t *testing.T) {
	t.Parallel()
	a, b := gatewayFleet(t, "gw1"), gatewayFleet(t, "gw2")
	w := newWay(a, b)
	join(t, a, "n1", offer(2, "m", "k"))
	w.pass(t)
	free := func() int { return b.Nodes()[0].Targets[0].Credits.Free }
	mine := acquire(t, b, want(t, "m"))
	fw := want(t, "m")
	fw.From, fw.Node = "gw2", "n1"
	there := acquire(t, a, fw)
	if w.pass(t); free() != 5 {
		t.Errorf("%d credits are free with one run of its own", free())
	}
	local, other := acquire(t, a, want(t, "k")), acquire(t, a, want(t, "m"))
	if w.pass(t); free() != 3 {
		t.Errorf("%d credits are free with two more there", free())
	}
	knockedAll(b)
	if _, err := b.Acquire(t.Context(), want(t, "m"), now); !errors.Is(err, ErrQueueFull) {
		t.Errorf("a third run of a model with two credits: %v", err)
	}
	wt := waits(t, b, want(t, "m"))
	other.Release()
	if w.pass(t); given(wt) == nil {
		t.Error("a credit came free there, and nobody got it")
	}
	there.Release()
	mine.Release()
	local.Release()
	if w.pass(t); free() != 5 {
		t.Errorf("%d credits are free, with one run of its own", free())
	}
	if n := w.pass(t); n != 0 {
		t.Errorf("%d messages when nothing has changed", n)
	}
}

// Credits under more models than a message names are told by their number.
func TestTakenOfManyModels(t *testing.T) {
	t.Parallel()
	a, b := gatewayFleet(t, "gw1"), gatewayFleet(t, "gw2")
	w := newWay(a, b)
	var names []string
	for i := range 450 {
		names = append(names, fmt.Sprintf("/%s/%03d", strings.Repeat("x", 490), i))
	}
	join(t, a, "n1", &tunnel.Target{Name: "vllm", Adapter: "openai", Origin: "http://h", Reachable: true, Credits: &tunnel.Credits{PerModel: 1, PerTarget: 450}, Models: openAI(names...)})
	var places []*Place
	for _, name := range names {
		pl, err := a.Acquire(t.Context(), &Want{Model: ollama.ModelKey(name), Credit: true, Filter: anyProvider}, now)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, pl)
	}
	w.pass(t)
	if free := b.Nodes()[0].Targets[0].Credits.Free; free != 0 {
		t.Errorf("%d credits are free", free)
	}
	for _, pl := range places {
		pl.Release()
	}
	w.pass(t)
	if d := w.differs(); d != "" {
		t.Error(d)
	}
}

// A refusal for want of a credit holds until the gateway says more of the node. That may come before the refusal does, and be all there is to be said.
func TestFullAtAPeer(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		a, b := gatewayFleet(t, "gw1"), gatewayFleet(t, "gw2")
		w := newWay(a, b)
		join(t, a, "n1", offer(1, "m"))
		w.pass(t)
		mine := acquire(t, b, want(t, "m"))
		other := acquire(t, a, want(t, "m")) // b has not heard of it: its run is refused
		if late {
			other.Release()
			w.pass(t)
		}
		mine.Full()
		mine.Release()
		if !late {
			if _, err := b.Acquire(t.Context(), want(t, "m"), now); !errors.Is(err, ErrQueueFull) {
				t.Errorf("at a node that is full: %v", err)
			}
			w.pass(t)
			other.Release()
			w.pass(t)
		}
		if pl, err := b.Acquire(t.Context(), want(t, "m"), now); err != nil {
			t.Errorf("late %v: the node has room, and stays full: %v", late, err)
		} else {
			pl.Release()
		}
	}
}

// Every piece of a node's inventory says what is taken: between two of them nobody is sent to a node that is full.
func TestTakenBetweenPieces(t *testing.T) {
	t.Parallel()
	a, b := gatewayFleet(t, "gw1"), gatewayFleet(t, "gw2")
	w := newWay(a, b)
	s := join(t, a, "n1", offer(1, many("m", 1500)...))
	var busy []*Place
	for i := range 3 { // all that the target has
		busy = append(busy, acquire(t, a, want(t, fmt.Sprint("m", i))))
	}
	w.pass(t)
	knockedAll(b)
	var line []*waiter
	for i := range 50 {
		line = append(line, waits(t, b, want(t, fmt.Sprint("m", 3+i))))
	}
	if err := a.status(s, []*tunnel.Target{offer(1, "new")}); err != nil {
		t.Fatal(err)
	}
	if n := w.pass(t); n < 3 {
		t.Fatalf("%d pieces", n)
	}
	for _, wt := range line {
		if given(wt) != nil {
			t.Fatal("a place at a target that is busy")
		}
	}
	busy[0].Release()
	if w.pass(t); given(line[0]) == nil {
		t.Fatal("no place")
	}
}

func many(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// Whatever this gateway takes from a node another one takes from this gateway: one node cannot part two gateways.
func TestToldAtTheBounds(t *testing.T) {
	t.Parallel()
	long := func(i int) string { return fmt.Sprintf("%02d%s", i, strings.Repeat("x", maxNameBytes-2)) }
	labels := make(map[string]string)
	for i := range 32 {
		labels[long(i)[:128]] = strings.Repeat("v", 128)
	}
	entry := func(name string, bytes int) *tunnel.Model {
		head := fmt.Sprintf(`{"name":%q,"model":%q,"modified_at":"2026-01-02T03:04:05Z","expires_at":"2030-01-01T00:00:00Z","pad":"`, name, name)
		return &tunnel.Model{Name: name, Json: []byte(head + strings.Repeat("x", bytes-len(head)-2) + `"}`)}
	}
	a, b := gatewayFleet(t, "gw1"), gatewayFleet(t, "gw2")
	w := newWay(a, b)
	s := &fakeSession{node: "n1", instance: "1", labels: labels}
	enter(t, a, s)
	s.state = tunnel.StateReady
	var targets []*tunnel.Target
	for i := range maxTargets {
		c := &tunnel.Target{
			Name: long(i), Adapter: "ollama", Version: strings.Repeat("9", maxNameBytes), Origin: "http://" + long(i)[:maxNameBytes-7], Reachable: true, Loaded: &tunnel.Loaded{},
			Credits: &tunnel.Credits{PerModel: maxCredits, PerTarget: maxCredits},
		}
		c.Models = append(c.Models, entry(fmt.Sprint("big", i), 60<<10))
		for j := range []int{4, maxLoaded}[i%8/7] {
			c.Loaded.Models = append(c.Loaded.Models, entry(fmt.Sprint("l", j), 300))
		}
		targets = append(targets, c)
	}
	if err := a.ready(t.Context(), s, targets); err != nil {
		t.Fatal(err)
	}
	if n := w.pass(t); n < 40 {
		t.Errorf("%d pieces for 4 MiB", n)
	}
	if d := w.differs(); d != "" {
		t.Error(d)
	}
	// What is loaded now, and nothing else: all fits, or is left out as a hint may be.
	for i, c := range targets {
		c.Models = nil
		c.Loaded = &tunnel.Loaded{Models: []*tunnel.Model{entry("big", 60<<10), entry("l", 60<<10), entry("x", 60<<10), entry("y", 60<<10)}[:i%5]}
	}
	if err := a.status(s, targets); err != nil {
		t.Fatal(err)
	}
	w.pass(t)
	for _, c := range targets {
		c.Loaded = &tunnel.Loaded{}
	}
	targets[maxTargets-1].Loaded.Models = []*tunnel.Model{entry("big", 50<<10), entry("l", 50<<10), entry("x", 50<<10)}
	if err := a.status(s, targets); err != nil {
		t.Fatal(err)
	}
	w.pass(t)
	// The models of one target move to another: there are never more than one may have.
	swap := func(first, second int) []*tunnel.Target {
		c, d := offer(1, many("a", first)...), offer(1, many("b", second)...)
		c.Name, d.Name, c.Reset_, d.Reset_ = "c", "d", true, true
		return []*tunnel.Target{c, d}
	}
	s2 := join(t, a, "n2", swap(90, 2500)...)
	w.pass(t)
	for _, n := range [][2]int{{2500, 90}, {90, 2500}} {
		down := swap(0, 0)
		if err := a.status(s2, append(down, swap(n[0], n[1])...)); err != nil {
			t.Fatal(err)
		}
		w.pass(t)
		if f, r := a.InventoryOf("n2"), b.InventoryOf("n2"); !bytes.Equal(f.Tags, r.Tags) || len(f.Tags) < 1000 {
			t.Errorf("%d bytes, are %d", len(r.Tags), len(f.Tags))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checkIndex(t)
}

// A target that is withdrawn and offered again at once is another one: nothing of the first is left.
func TestToldTargetAgain(t *testing.T) {
	t.Parallel()
	a, b := gatewayFleet(t, "gw1"), gatewayFleet(t, "gw2")
	w := newWay(a, b)
	s := join(t, a, "n1", &tunnel.Target{Name: "t", Adapter: "ollama", Version: "0.9.0", Origin: "http://h", Reachable: true, Models: offer(1, "m").Models})
	w.pass(t)
	if err := a.status(s, []*tunnel.Target{{Name: "t", Gone: true}, {Name: "t", Adapter: "ollama", Reachable: true, Models: offer(1, "k").Models}}); err != nil {
		t.Fatal(err)
	}
	w.pass(t)
	if d := w.differs(); d != "" {
		t.Error(d)
	}
}

// Models of nodes that went at another gateway are missed for a while and not denied; those that nobody had are.
func TestWentAtAPeer(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
	f.cfg.Now = func() time.Time { return clock }
	join(t, f, "here", offer(1, "x"))
	clock = clock.Add(comingUp)
	hear(t, f, p, news("n1", 7, offer(1, "m")))
	hear(t, f, p, &tunnel.PeerNode{Name: "n1", State: tunnel.PeerGone})
	ask := func(model string, expected error) {
		t.Helper()
		if _, err := f.Acquire(t.Context(), want(t, model), now); !errors.Is(err, expected) {
			t.Errorf("%s: %v, want %v", model, err, expected)
		}
	}
	ask("m", ErrQueueFull) // it would wait, if anything might
	ask("nope", ErrNoModel)
	clock = clock.Add(absence)
	ask("m", ErrNoNode)
	if ol, oa := f.HeldBy(key(t, "m")); !ol || oa {
		t.Errorf("held by %v %v", ol, oa)
	}
	// It is back, here, and has not reported yet: what it held at the other gateway it may hold still.
	enter(t, f, &fakeSession{node: "n1", instance: "1"})
	ask("m", ErrQueueFull)
	if ol, _ := f.HeldBy(key(t, "m")); !ol {
		t.Error("not held by who comes back")
	}
	f.mu.Lock()
	f.checkIndex(t)
	f.mu.Unlock()
	// And the other way round: gone from here, at another gateway now, with less.
	g := gatewayFleet(t, "gw1")
	s := join(t, g, "n1", offer(1, "m", "k"))
	wt := waits(t, g, &Want{Model: acquireAll(t, g, "m"), Credit: true})
	g.gone(s)
	hear(t, g, p, news("n1", 9, offer(1, "m")))
	if pl := given(wt); pl == nil || pl.Peer() != "gw2" {
		t.Errorf("%+v", pl)
	}
	if ol, _ := g.HeldBy(key(t, "k")); ol {
		t.Error("held by a session that is over")
	}
}

// acquireAll takes the one credit of a model, and returns its key.
func acquireAll(t testing.TB, f *Fleet, model string) string {
	acquire(t, f, want(t, model))
	return key(t, model)
}

// A newer connection of a gateway takes over from an older one, whatever that one still says, and its end is of no effect then.
func TestPeerAgain(t *testing.T) {
	t.Parallel()
	f, first, second := gatewayFleet(t, "gw1"), peerOf("gw2"), peerOf("gw2")
	hear(t, f, first, news("n1", 7, offer(1, "m")), news("n2", 8, offer(1, "k")))
	stale := acquire(t, f, want(t, "m"))
	hear(t, f, second, news("n1", 7, offer(1, "m")))
	if f.Current(stale) {
		t.Error("a place on the older connection is good")
	}
	hear(t, f, first, news("n1", 7, offer(1, "m")), news("n1", 6, offer(1, "m")), &tunnel.PeerNode{Name: "n1", State: tunnel.PeerGone}) // late
	if pl := acquire(t, f, want(t, "m")); pl.seat.session.(*remoteSession).peer != Peer(second) {
		t.Error("the older connection is used")
	}
	f.PeerLeft(first)
	if !f.Has("n1") || f.Has("n2") {
		t.Errorf("n1 %v, n2 %v", f.Has("n1"), f.Has("n2"))
	}
	stale.Release()
	f.mu.Lock()
	f.checkIndex(t)
	f.mu.Unlock()
	f.PeerLeft(second)
	if f.Has("n1") {
		t.Error("n1 is here")
	}
}

// A run that was placed on a session that is over gives nothing to those in line.
func TestPlaceOfAnEarlierGeneration(t *testing.T) {
	t.Parallel()
	f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
	hear(t, f, p, news("n1", 7, offer(1, "m")))
	any := &Want{Node: "n1"}
	var old []*Place
	for range places {
		old = append(old, acquire(t, f, any))
	}
	hear(t, f, p, news("n1", 8, offer(1, "m")))
	var now8 []*Place
	for range places {
		now8 = append(now8, acquire(t, f, any))
	}
	wt := waits(t, f, any)
	old[0].Release()
	if pl := given(wt); pl != nil {
		t.Fatalf("a place of generation %d", pl.Generation())
	}
	now8[0].Release()
	if pl := given(wt); pl == nil || pl.Generation() != 8 {
		t.Fatalf("%+v", pl)
	}
	if f.Fence(t.Context(), old[1]) == nil {
		t.Error("a place of an earlier generation passes the fence")
	}
}

// What a gateway may not say closes its connection, and is of no other effect.
func TestPeerNodesRefused(t *testing.T) {
	t.Parallel()
	taken := func(k *tunnel.Taken) *tunnel.PeerNode {
		n := news("n1", 1, offer(1, "m"))
		n.Taken = []*tunnel.Taken{k}
		return n
	}
	for name, n := range map[string]*tunnel.PeerNode{
		"no state":           {Name: "n1"},
		"another state":      {Name: "n1", State: 9},
		"no target's credit": taken(&tunnel.Taken{Target: "t9", Credits: 1}),
		"too many credits":   taken(&tunnel.Taken{Target: "ollama", Credits: maxCredits + 1}),
		"a model's name":     taken(&tunnel.Taken{Target: "ollama", Model: strings.Repeat("m", maxNameBytes+1), Credits: 1}),
		"no target's name":   news("n1", 1, &tunnel.Target{}),
		"a bad entry":        news("n1", 1, &tunnel.Target{Name: "t", Models: []*tunnel.Model{{Name: "x", Json: []byte("{")}}}),
		"year 10000":         {Name: "n1", State: tunnel.PeerReady, SinceMs: 1 << 60},
	} {
		f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
		err := f.PeerNodes(p, []*tunnel.PeerNode{n})
		if ce := (*tunnel.CloseError)(nil); !errors.As(err, &ce) || ce.Code != tunnel.CloseProtocol {
			t.Errorf("%s: %v", name, err)
		}
		f.PeerLeft(p)
		f.mu.Lock()
		f.checkIndex(t)
		f.mu.Unlock()
		if f.Has("n1") {
			t.Errorf("%s: the node is here", name)
		}
	}
}

// However much a gateway tells of, what is kept of it is bounded, and when it leaves no more is remembered than of nodes that were here.
func TestPeerMemory(t *testing.T) {
	t.Parallel()
	f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
	clock := time.Now()
	f.cfg.Now = func() time.Time { return clock }
	check := func(what string, nodes int) {
		t.Helper()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.checkIndex(t)
		remote := 0
		for _, l := range f.remote {
			remote += len(l)
		}
		if len(f.nodes) > nodes || remote > nodes || len(f.index.models) > nodes || len(f.young) > 2*nodes+65 {
			t.Errorf("%s: %d nodes, %d of them remote, %d models, %d seats are young", what, len(f.nodes), remote, len(f.index.models), len(f.young))
		}
	}
	// Generations without end, of one node.
	for g := range uint64(600) {
		hear(t, f, p, news("n1", g+1, offer(1, fmt.Sprint("m", g))))
	}
	check("generations", 1)
	// Nodes without end, each of which goes at once.
	for i := range maxGone + 700 {
		hear(t, f, p, news(fmt.Sprint("x", i), 1, offer(1, fmt.Sprint("x", i))), &tunnel.PeerNode{Name: fmt.Sprint("x", i), State: tunnel.PeerGone})
	}
	check("nodes that go", maxGone+2)
	// As many nodes at once as may be; another generation of one of them is no more.
	for i := range maxPeerNodes - 1 {
		hear(t, f, p, news(fmt.Sprint("y", i), 1))
	}
	hear(t, f, p, news("y0", 2, offer(1, "y0")))
	if err := f.PeerNodes(p, []*tunnel.PeerNode{news("over", 1)}); err == nil {
		t.Error("more nodes than may be")
	}
	check("nodes", maxPeerNodes+maxGone+1)
	f.PeerLeft(p)
	check("a gateway that has left", maxGone)
	clock = clock.Add(rememberGone + time.Minute)
	join(t, f, "n9", offer(1, "m"))
	check("a day later", 1)
	if f.mu.Lock(); len(f.peers)+len(f.speaks)+len(f.remote) != 0 {
		t.Errorf("%d %d %d are kept", len(f.peers), len(f.speaks), len(f.remote))
	}
	f.mu.Unlock()
}

// Each session of a node has its place in the node's row, the one here first by what is used.
func TestRowsOfSeveralGateways(t *testing.T) {
	t.Parallel()
	f, p2, p3 := gatewayFleet(t, "gw1"), peerOf("gw2"), peerOf("gw3")
	s := join(t, f, "n1", offer(1, "m"))
	hear(t, f, p2, news("n1", 20, offer(1, "m")), news("n2", 21, offer(1, "m")))
	hear(t, f, p3, news("n1", 30, offer(1, "m")), news("n2", 31, offer(1, "m")))
	rows := func() (out []string) {
		for _, v := range f.Nodes() {
			line := v.Name + " " + v.State
			for _, s := range v.Sessions {
				line += fmt.Sprintf(" %s/%d", s.Gateway, s.Generation)
			}
			out = append(out, line)
		}
		return out
	}
	check := func(expected ...string) {
		t.Helper()
		if got := rows(); !slices.Equal(got, expected) {
			t.Errorf("%q, want %q", got, expected)
		}
	}
	check(fmt.Sprintf("n1 ready gw1/%d gw2/20 gw3/30", s.gen), "n2 ready gw2/21 gw3/31")
	if own := f.OwnNodes(); len(own) != 1 || len(own[0].Sessions) != 1 {
		t.Errorf("own: %+v", own)
	}
	f.gone(s)
	check("n1 ready gw2/20 gw3/30", "n2 ready gw2/21 gw3/31")
	f.PeerLeft(p2)
	check("n1 ready gw3/30", "n2 ready gw3/31")
	if len(f.Sessions()) != 0 || len(f.Locked()) != 0 {
		t.Error("another gateway's sessions count as this one's")
	}
	// Left out for one run: that session, and not the node's others.
	hear(t, f, p2, news("n1", 20, offer(1, "m")))
	w := want(t, "m")
	w.Node = "n1"
	w.Out = map[TargetRef]bool{{"n1", "ollama", 30}: true}
	if pl := acquire(t, f, w); pl.Generation() != 20 || pl.Ref() != (TargetRef{"n1", "ollama", 20}) {
		t.Errorf("%+v", pl.Ref())
	}
	w.Out[TargetRef{"n1", "ollama", 20}] = true
	if _, err := f.Acquire(t.Context(), w, now); !errors.Is(err, ErrLeftOut) {
		t.Errorf("%v", err)
	}
}

// The way to a gateway is part of the way to its nodes.
func TestPeerSuspect(t *testing.T) {
	t.Parallel()
	f, p := gatewayFleet(t, "gw1"), peerOf("gw2")
	hear(t, f, p, news("n1", 7, offer(1, "m")))
	p.set(f, tunnel.StateSuspect)
	wt := waits(t, f, want(t, "m"))
	if v := f.Nodes()[0]; v.State != "suspect" {
		t.Errorf("%s", v.State)
	}
	hear(t, f, p, news("n1", 7))
	if given(wt) != nil {
		t.Fatal("a place by a way that is suspect")
	}
	p.set(f, tunnel.StateReady)
	if given(wt) == nil {
		t.Fatal("no place")
	}
}
