package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// fakeSession is a session without a network.
type fakeSession struct {
	node, instance string
	gen            uint64
	labels         map[string]string
	probe          error

	mu     sync.Mutex
	state  tunnel.State
	closed tunnel.CloseCode
	drains int // how often it was told that it is taken out
}

func (s *fakeSession) Node() string              { return s.node }
func (s *fakeSession) Instance() string          { return s.instance }
func (s *fakeSession) Generation() uint64        { return s.gen }
func (s *fakeSession) Labels() map[string]string { return s.labels }
func (s *fakeSession) Software() string          { return "test" }
func (s *fakeSession) RemoteAddr() net.Addr      { return &net.UDPAddr{} }
func (s *fakeSession) Since() time.Time          { return time.Time{} }
func (s *fakeSession) Lanes() int                { return 1 }
func (s *fakeSession) Lane() *tunnel.Lane        { return nil }
func (s *fakeSession) State() tunnel.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}
func (s *fakeSession) Probe(context.Context) error { return s.probe }
func (s *fakeSession) Drain(_ string, leave bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !leave {
		s.drains++
	}
	return nil
}
func (s *fakeSession) Close(c tunnel.CloseCode, _ string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = c
}
func (s *fakeSession) set(f *Fleet, st tunnel.State) {
	s.mu.Lock()
	s.state = st
	s.mu.Unlock()
	f.stateChanged(s)
}

func newFleet(t testing.TB) *Fleet {
	t.Helper()
	st, err := store.NewMemory(context.Background(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	f := New(Config{Gateway: "gw1", Store: st})
	f.Show(anyProvider)
	return f
}

// offer is a reachable Ollama target.
func offer(credits uint32, models ...string) *tunnel.Target {
	c := &tunnel.Target{Name: "ollama", Adapter: "ollama", Version: "0.32.15", Reachable: true, Credits: &tunnel.Credits{PerModel: credits, PerTarget: 3 * credits}}
	for _, m := range models {
		raw, _ := json.Marshal(map[string]any{"name": m, "model": m, "modified_at": "2026-01-02T03:04:05Z", "digest": strings.Repeat("a", 64), "size": 1})
		c.Models = append(c.Models, &tunnel.Model{Name: m, Json: raw})
	}
	return c
}

func loaded(models ...string) *tunnel.Loaded {
	l := &tunnel.Loaded{}
	for _, m := range models {
		l.Models = append(l.Models, &tunnel.Model{Name: m, Json: fmt.Appendf(nil, `{"name":%q,"model":%q,"expires_at":"2030-01-01T00:00:00Z"}`, m, m)})
	}
	return l
}

// join registers a node and makes it ready.
func join(t testing.TB, f *Fleet, name string, targets ...*tunnel.Target) *fakeSession {
	t.Helper()
	s := &fakeSession{node: name, instance: name + "-1"}
	enter(t, f, s)
	s.state = tunnel.StateReady
	if err := f.ready(context.Background(), s, targets); err != nil {
		t.Fatal(err)
	}
	return s
}

func enter(t testing.TB, f *Fleet, s *fakeSession) {
	t.Helper()
	gen, err := f.register(context.Background(), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.gen, s.state = gen, tunnel.StateRegistered
}

func key(t testing.TB, model string) string {
	t.Helper()
	n, err := ollama.ParseName(model)
	if err != nil {
		t.Fatal(err)
	}
	return n.Key()
}

func want(t testing.TB, model string) *Want { return &Want{Model: key(t, model), Credit: true} }

// now is a queue in which nobody waits: a place at once, or the reason why not.
var now = Queue{Depth: 0}

func acquire(t testing.TB, f *Fleet, w *Want) *Place {
	t.Helper()
	p, err := f.Acquire(context.Background(), w, now)
	if err != nil {
		t.Fatalf("no place: %v", err)
	}
	return p
}

func TestPickPrefersLoadedThenIdleThenTurn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	join(t, f, "a", offer(2, "m"))
	join(t, f, "b", offer(2, "m"))
	b := offer(2, "m", "other")
	b.Loaded = loaded("m")
	join(t, f, "c", b)

	var got []string
	var held []*Place
	for range 6 {
		p := acquire(t, f, want(t, "m"))
		held = append(held, p)
		got = append(got, p.Node())
	}
	// c has it loaded and two credits; then the least used, in turn.
	if s := strings.Join(got, ""); s != "ccabab" {
		t.Fatalf("order %s", s)
	}
	if _, err := f.Acquire(context.Background(), want(t, "m"), now); !errors.Is(err, ErrQueueFull) {
		t.Fatalf("got %v, want a full queue", err)
	}
	for _, p := range held {
		p.Release()
	}
	for _, n := range f.Nodes() {
		if c := n.Targets[0].Credits; c.Free != c.Granted {
			t.Errorf("%s: %d of %d credits are back", n.Name, c.Free, c.Granted)
		}
	}
}

// Two models under one name: a want with a digest goes to who has it as long as he has room, one without to either, and people learn of it once.
func TestPickPrefersTheDigest(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.WarnLevel)
	f := newFleet(t)
	f.cfg.Log = func() *zap.Logger { return zap.New(core) }
	other := func() *tunnel.Target {
		o := offer(2, "m")
		o.Models[0].Json = []byte(strings.ReplaceAll(string(o.Models[0].Json), "aaaa", "bbbb"))
		return o
	}
	join(t, f, "a", offer(2, "m"))
	b := other()
	b.Loaded = loaded("m")
	s := join(t, f, "b", b)
	join(t, f, "c", offer(2, "m"))
	if err := f.status(s, []*tunnel.Target{other()}); err != nil {
		t.Fatal(err)
	}
	if all := logs.All(); len(all) != 1 || all[0].ContextMap()["model"] != "m" || fmt.Sprint(all[0].ContextMap()["nodes"]) != "[a b]" {
		t.Errorf("logged %v", all)
	}
	m, ok := f.Model(key(t, "m"), "")
	if !ok || m.Digest != strings.Repeat("a", 64) {
		t.Fatalf("%v %+v", ok, m)
	}
	w := &Want{Model: key(t, "m"), Digest: m.Digest}
	for range 2 * places {
		if p := acquire(t, f, w); p.Node() == "b" {
			t.Fatal("b holds another model")
		}
	}
	if p := acquire(t, f, w); p.Node() != "b" {
		t.Errorf("got %s, want the one who has room", p.Node())
	}
	if p := acquire(t, f, &Want{Model: key(t, "m"), Credit: true}); p.Node() != "b" {
		t.Errorf("got %s for a run, want the one who has it loaded", p.Node())
	}
}

// A node is told once that it is taken out, and once more when it comes back and still is.
func TestDrainedNodeIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		told := func(s *fakeSession, want int) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.drains != want {
				t.Errorf("told %d times, want %d", s.drains, want)
			}
		}
		s := join(t, f, "a", offer(1, "m"))
		for _, on := range []bool{true, true, false} {
			if _, err := f.Drain(t.Context(), "a", on); err != nil {
				t.Fatal(err)
			}
			told(s, 1)
		}
		f.SetDraining([]string{"a"}) // by another gateway
		told(s, 2)
		if _, err := f.Drain(t.Context(), "a", true); err != nil {
			t.Fatal(err)
		}
		f.gone(s)
		told(join(t, f, "a", offer(1, "m")), 1)
	})
}

func TestWhyThereIsNoPlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T, f *Fleet)
		want  Want
		err   error
	}{
		{"no node was ever here", func(*testing.T, *Fleet) {}, Want{}, ErrNoNode},
		{"nobody holds it", func(t *testing.T, f *Fleet) { join(t, f, "a", offer(1, "other")) }, Want{}, ErrNoModel},
		{"a node has not reported yet", func(t *testing.T, f *Fleet) {
			join(t, f, "a", offer(1, "other"))
			enter(t, f, &fakeSession{node: "b", instance: "b"})
		}, Want{}, ErrNoNode},
		{"a provider has not answered yet", func(t *testing.T, f *Fleet) {
			join(t, f, "a", &tunnel.Target{Name: "ollama", Adapter: "ollama"})
		}, Want{}, ErrNoNode},
		{"its holder's provider went away", func(t *testing.T, f *Fleet) {
			s := join(t, f, "a", offer(1, "m"))
			_ = f.status(s, []*tunnel.Target{{Name: "ollama", Adapter: "ollama"}})
		}, Want{}, ErrNoNode},
		{"its holder is drained", func(t *testing.T, f *Fleet) {
			join(t, f, "a", offer(1, "m"))
			if known, err := f.Drain(context.Background(), "a", true); !known || err != nil {
				t.Fatal(known, err)
			}
		}, Want{}, ErrNoNode},
		{"its holders were left out", func(t *testing.T, f *Fleet) {
			join(t, f, "a", offer(1, "m"))
		}, Want{Out: map[TargetRef]bool{{"a", "ollama", 0}: true}}, ErrLeftOut},
		{"it is pinned to another node", func(t *testing.T, f *Fleet) { join(t, f, "a", offer(1, "m")) }, Want{Node: "b"}, ErrNoModel},
		{"the provider is too old", func(t *testing.T, f *Fleet) { join(t, f, "a", offer(1, "m")) }, Want{Since: "99.0.0"}, ErrNoModel},
		{"all are busy", func(t *testing.T, f *Fleet) {
			join(t, f, "a", offer(1, "m"))
			acquire(t, f, want(t, "m"))
		}, Want{}, ErrQueueFull},
		{"the gateway drains", func(t *testing.T, f *Fleet) { f.CloseLine() }, Want{}, ErrDraining},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			tt.setup(t, f)
			w := tt.want
			w.Model, w.Credit = key(t, "m"), true
			if w.Out != nil {
				for _, n := range f.Nodes() {
					w.Out = map[TargetRef]bool{{n.Name, "ollama", n.Sessions[0].Generation}: true}
				}
			}
			if _, err := f.Acquire(context.Background(), &w, now); !errors.Is(err, tt.err) {
				t.Fatalf("got %v, want %v", err, tt.err)
			}
		})
	}
}

// waiting starts an Acquire that must wait, and returns where its result comes.
func waiting(t *testing.T, f *Fleet, ctx context.Context, w *Want) <-chan any {
	t.Helper()
	before := f.Waiting()
	out := make(chan any, 1)
	go func() {
		p, err := f.Acquire(ctx, w, Queue{Depth: 100, Wait: time.Minute})
		if err != nil {
			out <- err
		} else {
			out <- p
		}
	}()
	for f.Waiting() == before {
		time.Sleep(time.Millisecond)
	}
	return out
}

func TestLineIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	join(t, f, "a", offer(1, "m", "n"))
	first := acquire(t, f, want(t, "m"))
	w1 := waiting(t, f, context.Background(), want(t, "m"))
	w2 := waiting(t, f, context.Background(), want(t, "m"))
	// Another model does not wait behind them.
	acquire(t, f, want(t, "n")).Release()
	first.Release()
	p1 := (<-w1).(*Place)
	select {
	case <-w2:
		t.Fatal("two runs have one credit")
	default:
	}
	// One that was refused goes back to the head.
	front := want(t, "m")
	front.Front = true
	w0 := waiting(t, f, context.Background(), front)
	p1.Release()
	p0 := (<-w0).(*Place)
	p0.Release()
	(<-w2).(*Place).Release()
	if n := f.Waiting(); n != 0 {
		t.Fatalf("%d still wait", n)
	}
}

func TestWhoLeavesTheLineTakesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	join(t, f, "a", offer(1, "m"))
	p := acquire(t, f, want(t, "m"))
	ctx, cancel := context.WithCancelCause(context.Background())
	gone := errors.New("client gone")
	w1 := waiting(t, f, ctx, want(t, "m"))
	w2 := waiting(t, f, context.Background(), want(t, "m"))
	cancel(gone)
	if err := (<-w1).(error); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	p.Release()
	(<-w2).(*Place).Release()
	acquire(t, f, want(t, "m")).Release()
}

func TestEventsWakeTheLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		event func(t *testing.T, f *Fleet, a *fakeSession)
	}{
		{"a node joins", func(t *testing.T, f *Fleet, _ *fakeSession) { join(t, f, "b", offer(1, "m")) }},
		{"a model appears", func(t *testing.T, f *Fleet, _ *fakeSession) {
			s := join(t, f, "b", offer(1, "x"))
			_ = f.status(s, []*tunnel.Target{offer(1, "m")})
		}},
		{"more credits", func(_ *testing.T, f *Fleet, a *fakeSession) { _ = f.status(a, []*tunnel.Target{offer(2)}) }},
		{"a suspect node is back", func(t *testing.T, f *Fleet, _ *fakeSession) {
			s := &fakeSession{node: "b", instance: "b"}
			enter(t, f, s)
			s.state = tunnel.StateSuspect
			if err := f.ready(context.Background(), s, []*tunnel.Target{offer(1, "m")}); err != nil {
				t.Fatal(err)
			}
			s.set(f, tunnel.StateReady)
		}},
		{"an undrained node", func(t *testing.T, f *Fleet, _ *fakeSession) {
			ctx := context.Background()
			_, _ = f.Drain(ctx, "b", true)
			join(t, f, "b", offer(1, "m"))
			if f.Waiting() != 1 {
				t.Error("a drained node got a run")
			}
			_, _ = f.Drain(ctx, "b", false)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			a := join(t, f, "a", offer(1, "m"))
			acquire(t, f, want(t, "m"))
			w := waiting(t, f, context.Background(), want(t, "m"))
			tt.event(t, f, a)
			if _, ok := (<-w).(*Place); !ok {
				t.Fatal("no place")
			}
		})
	}
}

func TestAFullTargetIsFullUntilItsNextStatus(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := join(t, f, "a", offer(4, "m"))
	p := acquire(t, f, want(t, "m"))
	p.Full()
	p.Release()
	if _, err := f.Acquire(context.Background(), want(t, "m"), now); !errors.Is(err, ErrQueueFull) {
		t.Fatalf("got %v", err)
	}
	_ = f.status(s, []*tunnel.Target{{Name: "ollama", Adapter: "ollama", Reachable: true}})
	acquire(t, f, want(t, "m"))
}

func TestUncountedPlacesNeverWaitBehindInference(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	join(t, f, "a", offer(1, "m"))
	acquire(t, f, want(t, "m"))
	w := want(t, "m")
	w.Credit = false
	for range places {
		acquire(t, f, w)
	}
	if _, err := f.Acquire(context.Background(), w, now); !errors.Is(err, ErrQueueFull) {
		t.Fatalf("got %v", err)
	}
}

func TestDuplicateNodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		instance  string
		probe     error
		code      tunnel.CloseCode // of the newcomer; CloseNone: admitted
		incumbent tunnel.CloseCode
	}{
		{"the same instance takes over", "a-1", nil, tunnel.CloseNone, tunnel.CloseReplaced},
		{"another one, the incumbent lives", "a-2", nil, tunnel.CloseDuplicateNode, tunnel.CloseNone},
		{"another one, the incumbent is dead", "a-2", context.DeadlineExceeded, tunnel.CloseNone, tunnel.CloseReplaced},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			old := join(t, f, "a", offer(1, "m"))
			old.probe = tt.probe
			p := acquire(t, f, want(t, "m"))
			next := &fakeSession{node: "a", instance: tt.instance}
			gen, err := f.register(context.Background(), next, 0)
			var ce *tunnel.CloseError
			if errors.As(err, &ce) != (tt.code != tunnel.CloseNone) || (ce != nil && ce.Code != tt.code) || old.closed != tt.incumbent {
				t.Fatalf("newcomer %v, incumbent %s", err, old.closed)
			}
			stale := f.Fence(context.Background(), p)
			if errors.Is(stale, ErrStale) != (tt.code == tunnel.CloseNone) {
				t.Errorf("fence of a place on the old session: %v", stale)
			}
			if tt.code != tunnel.CloseNone {
				return
			}
			if gen <= old.gen {
				t.Errorf("generation %d after %d", gen, old.gen)
			}
			// The old session's word changes nothing, and its run's credit is not the new one's.
			next.gen, next.state = gen, tunnel.StateReady
			if err := f.ready(context.Background(), next, []*tunnel.Target{offer(1, "m")}); err != nil {
				t.Fatal(err)
			}
			f.gone(old)
			_ = f.status(old, []*tunnel.Target{{Name: "ollama", Gone: true}})
			q := acquire(t, f, want(t, "m"))
			p.Release()
			if err := f.Fence(context.Background(), q); err != nil {
				t.Errorf("fence of the new session: %v", err)
			}
			if f.FencedCounts()["stale_status"] != 1 {
				t.Error("the late status was not counted")
			}
		})
	}
}

// Attack 25: numbers that no honest node has.
func TestAttack25Watermark(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, wm := range []uint64{1 << 53, 1<<64 - 1, uint64(time.Now().Add(48 * time.Hour).UnixMilli())} { //nolint:gosec // positive
		_, err := f.register(context.Background(), &fakeSession{node: "a", instance: "a"}, wm)
		var ce *tunnel.CloseError
		if !errors.As(err, &ce) || ce.Code != tunnel.CloseWatermark {
			t.Errorf("%d: %v", wm, err)
		}
	}
}

// Attack 26, and what else an inventory can be.
func TestAttack26Inventories(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		targets func() []*tunnel.Target
	}{
		{"too many targets", func() []*tunnel.Target {
			var out []*tunnel.Target
			for i := range maxTargets + 1 {
				out = append(out, &tunnel.Target{Name: fmt.Sprint("t", i), Adapter: "ollama"})
			}
			return out
		}},
		{"no credits", func() []*tunnel.Target {
			return []*tunnel.Target{{Name: "t", Credits: &tunnel.Credits{}}}
		}},
		{"a billion credits", func() []*tunnel.Target {
			return []*tunnel.Target{{Name: "t", Credits: &tunnel.Credits{PerModel: 1, PerTarget: 1e9}}}
		}},
		{"an entry that is no object", func() []*tunnel.Target {
			return []*tunnel.Target{{Name: "t", Models: []*tunnel.Model{{Name: "m", Json: []byte("[]")}}}}
		}},
		{"too many models", func() []*tunnel.Target {
			c := &tunnel.Target{Name: "t", Adapter: "ollama"}
			for i := range maxModels + 1 {
				c.Models = append(c.Models, offer(1, fmt.Sprint("m", i)).Models...)
			}
			return []*tunnel.Target{c}
		}},
		{"no name", func() []*tunnel.Target { return []*tunnel.Target{{}} }},
		{"an origin that no terminal should see", func() []*tunnel.Target { return []*tunnel.Target{{Name: "t", Origin: "http://a\x1b[31m"}} }},
		{"an origin with a space", func() []*tunnel.Target { return []*tunnel.Target{{Name: "t", Origin: "http://a b"}} }},
		{"an origin without end", func() []*tunnel.Target {
			return []*tunnel.Target{{Name: "t", Origin: "http://" + strings.Repeat("a", maxNameBytes)}}
		}},
		{"too many models of another provider", func() []*tunnel.Target {
			c := &tunnel.Target{Name: "t", Adapter: "openai"}
			for i := range maxModels + 1 {
				c.Models = append(c.Models, openAI(fmt.Sprint("/m", i))...)
			}
			return []*tunnel.Target{c}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			s := &fakeSession{node: "a", instance: "a"}
			enter(t, f, s)
			s.state = tunnel.StateReady
			err := f.ready(context.Background(), s, tt.targets())
			var ce *tunnel.CloseError
			if !errors.As(err, &ce) || ce.Code != tunnel.CloseProtocol {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestInventoryIsTheUnion(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	join(t, f, "a", offer(1, "x", "y"))
	b := join(t, f, "b", offer(1, "y", "z"))
	names := func() string {
		var v struct{ Models []struct{ Name string } }
		if err := json.Unmarshal(f.Inventory().Tags, &v); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, m := range v.Models {
			out = append(out, m.Name)
		}
		return strings.Join(out, " ")
	}
	if got := names(); got != "x y z" {
		t.Fatalf("got %s", got)
	}
	_ = f.status(b, []*tunnel.Target{{Name: "ollama", Reachable: true, Removed: []string{"z"}}})
	if got := names(); got != "x y" {
		t.Fatalf("after a removal: %s", got)
	}
	f.gone(b)
	_ = f.status(b, nil)
	if got := names(); got != "x y" {
		t.Fatalf("after b went: %s", got)
	}
}

func TestGoneTargetIsForgotten(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := join(t, f, "a", offer(1, "m"), &tunnel.Target{Name: "demo", Adapter: "ollama", Reachable: true, Models: offer(1, "demo").Models})
	p := acquire(t, f, want(t, "demo"))
	_ = f.status(s, []*tunnel.Target{{Name: "demo", Gone: true}})
	if n := len(f.Nodes()[0].Targets); n != 1 {
		t.Errorf("%d targets", n)
	}
	p.Release()
	if _, err := f.Acquire(context.Background(), want(t, "demo"), now); !errors.Is(err, ErrNoModel) {
		t.Errorf("%v", err)
	}
}

// A provider that has never answered makes an unknown model a 503 while it may be starting, and not for ever.
func TestSilentProviderIsNotForEver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	clock := time.Now()
	f.cfg.Now = func() time.Time { return clock }
	join(t, f, "a", offer(1, "m"))
	join(t, f, "b", &tunnel.Target{Name: "ollama", Adapter: "ollama"})
	if _, err := f.Acquire(context.Background(), want(t, "nope"), now); !errors.Is(err, ErrNoNode) {
		t.Errorf("at first: %v", err)
	}
	clock = clock.Add(comingUp)
	if _, err := f.Acquire(context.Background(), want(t, "nope"), now); !errors.Is(err, ErrNoModel) {
		t.Errorf("later: %v", err)
	}
}

// What a run was just sent for counts as loaded before the node can say so.
func TestHolders(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	clock := time.Now()
	f.cfg.Now = func() time.Time { return clock }
	a := offer(1, "m")
	a.Loaded = loaded("m")
	join(t, f, "a", a)
	second := offer(1, "m")
	second.Name = "second"
	join(t, f, "b", offer(1, "m"), second)
	if got := f.Holders(key(t, "m")); len(got) != 1 || got[0] != (Holder{"a", "ollama"}) {
		t.Errorf("%v", got)
	}
	w := want(t, "m")
	w.Node, w.Target = "b", "second"
	acquire(t, f, w).Release()
	if got := f.Holders(key(t, "m")); len(got) != 2 || got[1] != (Holder{"b", "second"}) {
		t.Errorf("%v", got)
	}
	clock = clock.Add(loadTime)
	if got := f.Holders(key(t, "m")); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// A run that waits for room does not wait longer than others once whoever could give it is gone; and a provider that is away for a moment ends nothing.
func TestWaitingForRoomThatIsGone(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]bool{"gone": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				s := join(t, f, "a", offer(1, "m"))
				p := acquire(t, f, want(t, "m"))
				w := waiting(t, f, t.Context(), want(t, "m"))
				time.Sleep(3 * absence)
				f.gone(s)
				p.Release()
				start := time.Now()
				if back {
					time.Sleep(absence - absence/looks)
					join(t, f, "a", offer(1, "m"))
					if p, ok := (<-w).(*Place); !ok {
						t.Error("no place")
					} else {
						p.Release()
					}
					return
				}
				if err, _ := (<-w).(error); !errors.Is(err, ErrNoNode) {
					t.Errorf("%v", err)
				}
				if d := time.Since(start); d < absence-absence/looks || d > absence {
					t.Errorf("after %v", d)
				}
			})
		})
	}
}

// A node whose process restarts is waited for, before and after it is gone.
func TestRestartingNodeIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := join(t, f, "a", offer(1, "m"))
	s.set(f, tunnel.StateDraining)
	w1 := waiting(t, f, context.Background(), want(t, "m"))
	f.gone(s)
	w2 := waiting(t, f, context.Background(), want(t, "m"))
	join(t, f, "a", offer(2, "m"))
	for _, w := range []<-chan any{w1, w2} {
		if p, ok := (<-w).(*Place); !ok {
			t.Error("no place")
		} else {
			p.Release()
		}
	}
}
