package fleet

import (
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// script reads what happens from a fuzzer's bytes; zeros follow their end.
type script struct{ in []byte }

func (s *script) next(n int) int {
	if len(s.in) == 0 {
		return 0
	}
	b := s.in[0]
	s.in = s.in[1:]
	return int(b) % n
}

func (s *script) flag() bool { return s.next(2) == 1 }

func (s *script) target() *tunnel.Target {
	c := &tunnel.Target{
		Name: fmt.Sprint("t", s.next(3)), Adapter: []string{"ollama", "openai", "goals", ""}[s.next(4)], Version: []string{"", "0.6.0"}[s.next(2)], Origin: []string{"", "http://h"}[s.next(2)],
	}
	bits := s.next(64)
	c.Reachable, c.Reset_, c.Gone, c.Locked = bits&1 == 0, bits&2 != 0, bits&12 == 12, bits&48 == 48
	if n := s.next(4); n > 0 {
		c.Credits = &tunnel.Credits{PerModel: uint32(n), PerTarget: uint32(n + s.next(3))} //nolint:gosec // small
	}
	models := []string{"a", "b", "c"}[:s.next(4)]
	c.Models = offer(1, models...).Models
	if c.Adapter == "openai" {
		c.Models = openAI(models...)
	}
	c.Removed = []string{"a", "b"}[:s.next(3)]
	if s.flag() {
		c.Loaded = loaded([]string{"a", "c"}[:s.next(3)]...)
	}
	return c
}

func (s *script) node() *tunnel.PeerNode {
	n := &tunnel.PeerNode{Name: fmt.Sprint("n", s.next(4)), Generation: uint64(s.next(3)), State: tunnel.PeerNodeState(s.next(6))} //nolint:gosec // small
	for range s.next(3) {
		n.Targets = append(n.Targets, s.target())
	}
	for range s.next(3) {
		n.Taken = append(n.Taken, &tunnel.Taken{Target: fmt.Sprint("t", s.next(3)), Model: []string{"", "a:latest"}[s.next(2)], Credits: uint32(s.next(5)), Full: s.next(4) == 3}) //nolint:gosec // small
	}
	return n
}

// raw is a node as the fuzzer encodes it; nil where tunnel would have refused it.
func (s *script) raw() *tunnel.PeerNode {
	n := min(s.next(256), len(s.in))
	m := new(tunnel.PeerNode)
	err := proto.Unmarshal(s.in[:n], m)
	s.in = s.in[n:]
	if err != nil || !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`).MatchString(m.Name) {
		return nil
	}
	return m
}

// FuzzPeerNodes: whatever two other gateways tell of their nodes, and whatever nodes do here meanwhile, nothing panics, what is kept beside the nodes agrees
// with them and is bounded, and nothing is left of a gateway when it has gone, nor of runs that have ended.
func FuzzPeerNodes(f *testing.F) {
	node := func(m *tunnel.PeerNode) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return append([]byte{4, 0, byte(len(b))}, b...)
	}
	f.Add([]byte{0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 2, 1, 3, 0, 0, 0, 7, 0, 0, 6, 1, 0, 0, 1, 1, 1})
	f.Add(append(node(news("n1", 7, &tunnel.Target{Name: "t0", Adapter: "ollama", Reachable: true, Models: offer(1, "a").Models[:1]})), 6, 1, 0, 6, 1, 1, 7, 1, 5, 0))
	f.Add(append(node(&tunnel.PeerNode{Name: "n1", State: tunnel.PeerGone}), 0, 1, 1, 1, 4, 5, 1, 0, 0, 1, 1, 1, 3))
	f.Add([]byte{6, 0, 0, 6, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 1, 2, 6, 0, 3, 7, 1, 0, 7, 1, 0, 7, 2, 0, 5, 0, 0, 1, 0, 1, 1, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4096 {
			return
		}
		clock := time.Now()
		registered := clock
		st, err := store.NewMemory(context.Background(), store.Options{Now: func() time.Time { registered = registered.Add(time.Minute); return registered }})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		fl := New(Config{Gateway: "gw1", Store: st, Now: func() time.Time { return clock }})
		peers := []*fakePeer{peerOf("gw2"), peerOf("gw3")}
		sessions := make([]*fakeSession, 4)
		var given []*Place
		var line []*waiter
		collect := func() {
			for _, wt := range line {
				select {
				case p := <-wt.place:
					given = append(given, p)
				default:
				}
			}
		}
		s := &script{in}
		for len(s.in) > 0 {
			op, i := s.next(8), s.next(2)
			p := peers[i]
			switch op {
			case 0, 1, 2, 3, 4:
				var nodes []*tunnel.PeerNode
				if op == 4 {
					if n := s.raw(); n != nil {
						nodes = append(nodes, n)
					}
				} else {
					for range 1 + op/2 {
						nodes = append(nodes, s.node())
					}
				}
				if fl.PeerNodes(p, nodes) != nil { // its connection is closed
					fl.PeerLeft(p)
					peers[i] = peerOf(p.name)
				}
			case 5:
				switch s.next(4) {
				case 0:
					peers[i] = peerOf(p.name) // a newer connection; the older one ends after its first word
					_ = fl.PeerNodes(peers[i], []*tunnel.PeerNode{s.node()})
					_ = fl.PeerNodes(p, []*tunnel.PeerNode{s.node()})
					fl.PeerLeft(p)
				case 1:
					fl.PeerLeft(p)
					peers[i] = peerOf(p.name)
				case 2:
					p.set(fl, tunnel.State(1+s.next(4))) //nolint:gosec // small
				case 3:
					clock = clock.Add([]time.Duration{time.Second, absence, comingUp, rememberGone}[s.next(4)])
				}
			case 6:
				k := s.next(4)
				ses := sessions[k]
				switch what := s.next(5); {
				case ses == nil || what == 0:
					ses = &fakeSession{node: fmt.Sprint("n", k), instance: "1"}
					sessions[k] = ses
					if ses.gen, err = fl.register(t.Context(), ses, 0); err != nil {
						t.Fatal(err)
					}
					ses.state = tunnel.StateRegistered
				case what == 1:
					ses.state = tunnel.StateReady
					_ = fl.ready(t.Context(), ses, []*tunnel.Target{s.target()})
				case what == 2:
					ses.set(fl, []tunnel.State{tunnel.StateReady, tunnel.StateSuspect, tunnel.StateDraining}[s.next(3)])
				case what == 3:
					fl.gone(ses)
					sessions[k] = nil
				case what == 4:
					_, _ = fl.Drain(t.Context(), ses.node, s.flag())
				}
			case 7:
				if k := s.next(3); k == 0 && len(given) > 0 {
					if s.flag() {
						given[0].Full()
					}
					given[0].Release()
					given = given[1:]
					break
				}
				w := &Want{Model: []string{"a:latest", "b:latest", ""}[s.next(3)], Credit: s.flag(), Filter: []*Filter{nil, anyProvider}[i], From: []string{"", "", "gw3"}[s.next(3)]}
				if s.flag() {
					w.Node = fmt.Sprint("n", s.next(4))
				}
				fl.mu.Lock()
				pl, wt, _, _ := fl.admit(w, Queue{Depth: 8, Wait: time.Minute})
				fl.mu.Unlock()
				if pl != nil {
					given = append(given, pl)
				}
				if wt != nil {
					line = append(line, wt)
				}
				if pl != nil && w.From != "" && pl.Peer() != "" || wt != nil && w.From != "" {
					t.Fatal("a forwarded run waits, or goes further")
				}
			}
			collect()
			fl.mu.Lock()
			fl.checkIndex(t)
			for _, n := range fl.nodes {
				if n.peer != nil && (len(n.seat.targets) > maxTargets || n.seat.models > 2*maxModels || n.seat.bytes > 2*maxInventoryBytes) {
					t.Fatal("more than may be kept of a node")
				}
			}
			fl.mu.Unlock()
			fl.Nodes()
			fl.Inventory()
		}
		for _, p := range peers {
			fl.PeerLeft(p)
		}
		fl.CloseLine()
		for _, p := range given {
			p.Release()
			if p.seat.runs < 0 || p.t.total < 0 || p.seat.places < 0 {
				t.Fatal("a place was given back twice")
			}
		}
		fl.mu.Lock()
		defer fl.mu.Unlock()
		fl.checkIndex(t)
		for _, n := range fl.nodes {
			if n.peer != nil && n.goneAt.IsZero() {
				t.Fatalf("%s is here", n.key())
			}
			if n.seat == nil {
				continue
			}
			for _, tg := range n.seat.targets {
				if tg.total != 0 || len(tg.used) != 0 || n.seat.places != 0 {
					t.Fatalf("%s: %d credits and %d places are taken, and no run is left", n.key(), tg.total, n.seat.places)
				}
			}
		}
		if len(fl.peers)+len(fl.speaks) != 0 {
			t.Fatal("a connection is kept")
		}
	})
}
