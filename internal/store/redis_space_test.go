package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/internal/store/storetest"
)

// What two gateways, two processes of one node, an operator and a failover can do to each other, in every order: each step
// of world is one thing that one of them does. A failover throws the server back to what its replica had, and every
// gateway finds its connections new; what they know they tell it with their next beat.

// world is everything at one moment. It is a value: steps make another one.
type world struct {
	data     [len(keys)]string // the server's
	replica  [len(keys)]string // what a failover leaves of it
	clock    time.Time
	gateways [2]knows
	seen     [2]uint64 // by process of the node: the greatest generation that it was given
	// what is true, whatever the server believes
	winner  int // the process that registered last; -1 none
	last    uint64
	revoked bool
	unsure  bool    // a failover may have lost that it was taken back: then an older view revives it, which is the safe side
	stale   [2]bool // since the last failover the gateway has not told what it knows
}

// knows is a gateway: what it holds and has read.
type knows struct {
	mind        store.Mind
	process     int // whose session it has; -1 none
	generation  uint64
	state       store.State
	incarnation string
	subjects    string // what it knows to be revoked, joined
	version     uint64
	sure        bool // it has revoked the slot itself, or read that it is
}

var keys = [...]string{
	"node:n1", "sessions:gw0", "sessions:gw1", "beats", "epochs", "revoked", "min_pgn", "version", "restored", "pgn", "objects", "incarnation",
}

// explorer takes steps on a real server.
type explorer struct {
	t      testing.TB
	c      *redis.Client
	stores [2]*store.Redis
	base   string
	w      *world
	path   []string
}

var (
	saveScript = redis.NewScript(`local out = {} for i, k in ipairs(KEYS) do out[i] = redis.call('DUMP', k) or '' end return out`)
	loadScript = redis.NewScript(`for i, k in ipairs(KEYS) do
  redis.call('DEL', k)
  if ARGV[i] ~= '' then redis.call('RESTORE', k, 0, ARGV[i]) end
end return 'ok'`)
)

func (x *explorer) names() []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = x.base + k
	}
	return out
}

func (x *explorer) load(data [len(keys)]string) {
	args := make([]any, len(data))
	for i, d := range data {
		args[i] = d
	}
	must(x.t, loadScript.Run(context.Background(), x.c, x.names(), args...).Err())
}

func (x *explorer) save() (data [len(keys)]string) {
	list, err := saveScript.Run(context.Background(), x.c, x.names()).StringSlice()
	must(x.t, err)
	copy(data[:], list)
	return data
}

func (x *explorer) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("after %s: %s", strings.Join(x.path, ", "), fmt.Sprintf(format, args...))
}

func gatewayName(g int) string { return fmt.Sprint("gw", g) }
func processName(p int) string { return fmt.Sprint("process-", p) }

const slot = "slot:s"

// steps are what can happen. A step that is not possible changes nothing.
var steps = map[string]func(x *explorer){
	"p0 registers at gw0": func(x *explorer) { x.register(0, 0) },
	"p0 registers at gw1": func(x *explorer) { x.register(0, 1) },
	"p1 registers at gw1": func(x *explorer) { x.register(1, 1) },
	"gw0 readies":         func(x *explorer) { x.ready(0) },
	"gw1 readies":         func(x *explorer) { x.ready(1) },
	"gw0 loses its node":  func(x *explorer) { x.gone(0) },
	"gw0 beats":           func(x *explorer) { x.beat(0) },
	"gw1 beats":           func(x *explorer) { x.beat(1) },
	"gw0 revokes":         func(x *explorer) { x.revoke(0) },
	"gw1 restores":        func(x *explorer) { x.restore(1) },
	"the replica follows": func(x *explorer) { x.w.replica = x.save() },
	"failover":            func(x *explorer) { x.failover() },
	"time passes":         func(x *explorer) { x.w.clock = x.w.clock.Add(store.OwnerTTL) },
}

func (x *explorer) register(process, gateway int) {
	w, k := x.w, &x.w.gateways[gateway]
	g, err := x.stores[gateway].Register(context.Background(), store.Registration{
		Node: "n1", Gateway: gatewayName(gateway), Instance: processName(process), Watermark: w.seen[process],
	})
	if errors.Is(err, store.ErrRateLimited) {
		return
	}
	if err != nil {
		x.fail("register: %v", err)
	}
	if g <= w.seen[process] || g <= w.last {
		x.fail("generation %d for a process that has seen %d, after %d", g, w.seen[process], w.last)
	}
	w.seen[process], w.last, w.winner = g, g, process
	k.process, k.generation, k.state = process, g, store.StateRegistered
}

func (x *explorer) ready(gateway int) {
	k := &x.w.gateways[gateway]
	if k.process < 0 {
		return
	}
	if err := x.stores[gateway].Ready(context.Background(), "n1", gatewayName(gateway), k.generation); err == nil {
		k.state = store.StateReady
	} else if !errors.Is(err, store.ErrStale) {
		x.fail("ready: %v", err)
	}
}

func (x *explorer) gone(gateway int) {
	k := &x.w.gateways[gateway]
	if k.process < 0 {
		return
	}
	if err := x.stores[gateway].Gone(context.Background(), "n1", gatewayName(gateway), k.generation); err != nil && !errors.Is(err, store.ErrStale) {
		x.fail("gone: %v", err)
	}
	k.process, k.generation, k.state = -1, 0, ""
}

// beat is what a gateway does every second.
func (x *explorer) beat(gateway int) {
	k, r, ctx := &x.w.gateways[gateway], x.stores[gateway], context.Background()
	var held []store.Held
	var claims []store.SessionClaim
	if k.process >= 0 {
		held = []store.Held{{Node: "n1", Generation: k.generation}}
		claims = []store.SessionClaim{{Node: "n1", Instance: processName(k.process), Generation: k.generation, State: k.state}}
	}
	b, err := r.Beat(ctx, gatewayName(gateway), 0, held)
	if err != nil {
		x.fail("beat: %v", err)
	}
	if k.incarnation != "" && k.incarnation != b.Incarnation || slices.Contains(b.Verdicts, store.VerdictMissing) {
		b, err = r.Reassert(ctx, store.Assertion{
			Gateway: gatewayName(gateway), Sessions: claims,
			Revocations: store.Revocations{Subjects: strings.Fields(k.subjects), Version: k.version},
		})
		if err != nil {
			x.fail("reassert: %v", err)
		}
	}
	x.w.stale[gateway] = false
	k.incarnation = b.Incarnation
	if slices.Contains(b.Verdicts, store.VerdictSuperseded) {
		if !slices.Contains(x.w.stale[:], true) && k.process == x.w.winner && k.generation == x.w.last {
			x.fail("the session of the last registration is said to be over")
		}
		k.process, k.generation, k.state = -1, 0, ""
	}
	v, err := r.Revocations(ctx)
	if err != nil {
		x.fail("revocations: %v", err)
	}
	k.subjects, k.version = strings.Join(v.Subjects, " "), v.Version
	k.sure = slices.Contains(v.Subjects, slot)
	if !slices.Contains(x.w.stale[:], true) && k.sure != x.w.revoked && x.known() && !x.w.unsure {
		x.fail("revoked is %v, the store says %v", x.w.revoked, k.sure)
	}
}

// known says whether a gateway knows what is true of the slot, so that it cannot be lost.
func (x *explorer) known() bool {
	return x.w.gateways[0].sure == x.w.revoked || x.w.gateways[1].sure == x.w.revoked
}

func (x *explorer) revoke(gateway int) {
	if _, err := x.stores[gateway].Revoke(context.Background(), []string{slot}, 0); err != nil {
		x.fail("revoke: %v", err)
	}
	x.w.revoked, x.w.unsure = true, false
	x.read(gateway)
}

func (x *explorer) restore(gateway int) {
	if err := x.stores[gateway].Unrevoke(context.Background(), []string{slot}); err != nil {
		x.fail("unrevoke: %v", err)
	}
	x.w.revoked, x.w.unsure = false, false
	x.read(gateway)
}

// read is what a gateway does after a change of its own.
func (x *explorer) read(gateway int) {
	k := &x.w.gateways[gateway]
	v, err := x.stores[gateway].Revocations(context.Background())
	if err != nil {
		x.fail("revocations: %v", err)
	}
	k.subjects, k.version, k.sure = strings.Join(v.Subjects, " "), v.Version, slices.Contains(v.Subjects, slot)
}

// failover takes longer than numbers can be ahead of the clock.
func (x *explorer) failover() {
	x.load(x.w.replica)
	x.w.clock = x.w.clock.Add(time.Second)
	x.w.stale = [2]bool{true, true}
	x.w.unsure = !x.w.revoked
	for _, r := range x.stores {
		r.Reconnected("another server")
	}
}

// look asks both gateways for a lease, and holds every answer against what is true.
func (x *explorer) look() {
	w := x.w
	issued := -1
	for g := range w.gateways {
		k := &w.gateways[g]
		if k.process < 0 {
			continue
		}
		err := x.stores[g].Issue(context.Background(), store.Issue{Node: "n1", Gateway: gatewayName(g), Generation: k.generation, Subjects: []string{slot}})
		if err != nil {
			continue
		}
		all := !slices.Contains(w.stale[:], true)
		switch {
		case k.state != store.StateReady:
			x.fail("%s issues for a session that it has not made ready", gatewayName(g))
		case w.stale[g] && k.incarnation != "":
			x.fail("%s issues before it has told the new server what it knows", gatewayName(g))
		case w.revoked && k.sure:
			x.fail("%s issues for what it knows to be revoked", gatewayName(g))
		case w.revoked && all && x.known():
			x.fail("%s issues for what is revoked", gatewayName(g))
		case all && k.process != w.winner && x.winnerLives():
			x.fail("%s issues for a process that has been superseded", gatewayName(g))
		case all && issued >= 0 && issued != k.process:
			x.fail("leases for two processes of one node")
		}
		issued = k.process
	}
}

// winnerLives says whether a gateway still has the session of the last registration: else nobody may know of it.
func (x *explorer) winnerLives() bool {
	return slices.ContainsFunc(x.w.gateways[:], func(k knows) bool { return k.process == x.w.winner })
}

// depthEnv makes TestRedisEveryOrder look further: each step more takes six times as long.
const depthEnv = "FAIRWAY_STORE_DEPTH"

func TestRedisEveryOrder(t *testing.T) {
	t.Parallel()
	depth, _ := strconv.Atoi(os.Getenv(depthEnv))
	s := startRedis(t)
	for name, begin := range map[string]struct {
		depth int
		path  []string
	}{
		"from nothing": {max(depth, 3), nil},
		"from a fleet": {max(depth, 4), []string{
			"p0 registers at gw0", "gw0 readies", "p0 registers at gw1", "gw1 readies", "gw0 beats", "gw1 beats", "the replica follows",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore(t, s, begin.path, begin.depth)
		})
	}
}

// explore takes every sequence of steps of that length after path, but none twice from the same state.
func explore(t *testing.T, s *server, path []string, depth int) {
	prefix := namespace()
	x := &explorer{t: t, c: redis.NewClient(&redis.Options{Addr: s.addr}), base: "{" + prefix + "}:"}
	defer x.c.Close()
	connected := openRedis(t, s.url(), storetest.NewClock())
	_, err := connected.Node(t.Context(), "n1")
	must(t, err)
	first := world{clock: storetest.NewClock().Now(), winner: -1}
	for g := range x.stores {
		x.stores[g] = connected.In(prefix, func() time.Time { return x.w.clock })
		first.gateways[g] = knows{process: -1, mind: connected.Mind()}
	}
	for _, name := range path {
		first = x.take(first, path, name)
	}
	type node struct {
		w    world
		path []string
	}
	names := slices.Sorted(maps.Keys(steps))
	known := map[world]bool{first: true}
	layer, taken := []node{{first, path}}, 0
	for range depth {
		var next []node
		for _, n := range layer {
			for _, name := range names {
				w := x.take(n.w, n.path, name)
				taken++
				if !known[w] {
					known[w] = true
					next = append(next, node{w, x.path})
				}
			}
		}
		layer = next
	}
	t.Logf("%d states, %d steps", len(known), taken)
}

// take takes a step after path, which has led to w.
func (x *explorer) take(w world, path []string, name string) world {
	x.w, x.path = &w, append(path[:len(path):len(path)], name)
	x.load(w.data)
	for g, r := range x.stores {
		r.SetMind(w.gateways[g].mind)
	}
	steps[name](x)
	x.look()
	w.data = x.save()
	for g, r := range x.stores {
		w.gateways[g].mind = r.Mind()
	}
	return w
}
