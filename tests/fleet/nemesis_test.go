package fleet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

var (
	nemesisTime = flag.Duration("nemesis", 40*time.Second, "how long the nemesis acts")
	nemesisSeed = flag.Uint64("seed", 0, "its seed; 0 for a new one, which is printed")
)

// world is a fleet under a nemesis: three gateways, four nodes, each with a provider behind a key and an open one.
type world struct {
	t        *testing.T
	dir      string
	fleet    *rig.Fleet
	nodes    []*rig.Node
	relays   []*rig.Relay // from each node to its gateway
	keyed    []*fakeollama.Server
	open     []*fakeollama.Server
	began    time.Time
	rand     *rand.Rand
	mu       sync.Mutex
	outages  map[string][]span // guarded by mu; of gateways, by name: when they were killed
	revoked  []span            // guarded by mu; from when nobody may use the credential
	noted    []string          // guarded by mu
	finished []*result         // guarded by mu
}

// span is a time.
type span struct{ from, to time.Time }

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), began: time.Now(), rand: rand.New(rand.NewPCG(seed, 1)), outages: map[string][]span{}}
	key := canary.New(t)
	w.fleet = rig.NewFleet(t, 3, rig.Options{
		Global:     rig.Slot(t, key) + "\t\tprofile open {\n\t\t\ttarget open\n\t\t}\n\t\taudit " + filepath.Join(w.dir, "audit-GATEWAY.jsonl") + "\n",
		SiteLines:  "\tlog {\n\t\toutput file " + filepath.Join(w.dir, "access-GATEWAY.log") + "\n\t}\n",
		StoreLines: "\t\t\ton_down serve_owned\n",
		Grace:      "2s",
	})
	for i := range 4 {
		k := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick:keyed"}, Key: key})
		o := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick:open"}})
		w.keyed, w.open = append(w.keyed, k), append(w.open, o)
		home := w.fleet.Gateways[i%3]
		r := rig.NewRelay(t, home.Addr())
		w.relays = append(w.relays, r)
		args := []string{"--target", "open=ollama:" + o.URL(), "--credits", "4"}
		if i == 3 { // with a session at two gateways
			args = append(args, "--gateway", w.fleet.Gateways[1].Addr())
		}
		w.nodes = append(w.nodes, home.By(r).NodeOf(fmt.Sprintf("n%d", i+1), k.URL(), args...))
	}
	for _, g := range w.fleet.Gateways {
		for _, model := range []string{"t-tick:keyed", "t-tick:open"} {
			served(t, g, model, 30*time.Second)
		}
	}
	return w
}

// note remembers what was done, for whoever has to find out what went wrong.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noted = append(w.noted, fmt.Sprintf("%8.3f ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

// between is a random time.
func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rand.Int64N(int64(to-from)))
}

// faults are what the nemesis does, each with what undoes it.
var faults = []struct {
	name string
	do   func(w *world)
}{
	{"kill a gateway", func(w *world) {
		g := w.gateway()
		from := time.Now()
		g.Kill()
		time.Sleep(w.between(100*time.Millisecond, 3*time.Second))
		g.Start()
		w.mu.Lock()
		w.outages[g.Opts.Name] = append(w.outages[g.Opts.Name], span{from, time.Now()})
		w.mu.Unlock()
	}},
	{"freeze a gateway", func(w *world) {
		g := w.gateway()
		g.Signal(syscall.SIGSTOP)
		time.Sleep(w.between(500*time.Millisecond, 9*time.Second))
		g.Signal(syscall.SIGCONT)
	}},
	{"kill a node", func(w *world) {
		n := w.nodes[w.rand.IntN(len(w.nodes))]
		n.Kill()
		time.Sleep(w.between(100*time.Millisecond, 3*time.Second))
		n.Restart()
	}},
	{"freeze a node", func(w *world) {
		n := w.nodes[w.rand.IntN(len(w.nodes))]
		n.Signal(syscall.SIGSTOP)
		time.Sleep(w.between(500*time.Millisecond, 12*time.Second))
		n.Signal(syscall.SIGCONT)
	}},
	{"cut a node", func(w *world) {
		r := w.relays[w.rand.IntN(len(w.relays))]
		r.Set(func(x *rig.Ways) { x.Drop = true })
		time.Sleep(w.between(500*time.Millisecond, 12*time.Second))
		r.Set(func(x *rig.Ways) { x.Drop = false })
	}},
	{"cut a gateway from the others", func(w *world) {
		r := w.fleet.Relays[w.rand.IntN(len(w.fleet.Relays))]
		r.Set(func(x *rig.Ways) { x.Drop = true })
		time.Sleep(w.between(500*time.Millisecond, 12*time.Second))
		r.Set(func(x *rig.Ways) { x.Drop = false })
	}},
	{"cut a gateway from the store", func(w *world) {
		way := w.fleet.Ways[w.rand.IntN(len(w.fleet.Ways))]
		way.Cut()
		time.Sleep(w.between(500*time.Millisecond, 9*time.Second))
		way.Mend()
	}},
	{"swallow what a gateway tells the store", func(w *world) {
		way := w.fleet.Ways[w.rand.IntN(len(w.fleet.Ways))]
		way.Hole()
		time.Sleep(w.between(500*time.Millisecond, 9*time.Second))
		way.Mend()
	}},
	{"kill the store, with all that it knows", func(w *world) {
		w.fleet.Redis.Kill()
		time.Sleep(w.between(100*time.Millisecond, 5*time.Second))
		w.fleet.Redis.Start()
	}},
	{"freeze the store", func(w *world) {
		w.fleet.Redis.Freeze()
		time.Sleep(w.between(100*time.Millisecond, 5*time.Second))
		w.fleet.Redis.Thaw()
	}},
	{"reload a gateway", func(w *world) {
		if err := w.gateway().Reload(); err != nil {
			w.note("reload: %v", err)
		}
	}},
	{"revoke the credential", func(w *world) { w.revoke() }},
}

func (w *world) gateway() *rig.Gateway { return w.fleet.Gateways[w.rand.IntN(len(w.fleet.Gateways))] }

// revoke takes the credential out of use for a moment, at a gateway, and puts it back at another. It holds fleet-wide within a second.
func (w *world) revoke() {
	w.heal()
	if out, err := w.gateway().Run("fairway", "revoke", "--slot", "s", "--address", w.admin()); err != nil {
		w.t.Errorf("revoke: %v %s", err, out)
		return
	}
	from := time.Now().Add(time.Second)
	time.Sleep(w.between(2*time.Second, 4*time.Second))
	to := time.Now()
	w.mu.Lock()
	w.revoked = append(w.revoked, span{from, to})
	w.mu.Unlock()
	for range 20 {
		if _, err := w.gateway().Run("fairway", "revoke", "--slot", "s", "--undo", "--address", w.admin()); err == nil {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	w.t.Error("the revocation could not be taken back")
}

func (w *world) admin() string { return fmt.Sprintf("127.0.0.1:%d", w.gateway().Admin) }

// heal waits until all is well again.
func (w *world) heal() {
	w.fleet.Meet()
	for _, g := range w.fleet.Gateways {
		rig.Eventually(w.t, 30*time.Second, "the store is there", func() bool { s := g.Status(); return s != nil && s.Store.Up && s.Store.LagMS < 2500 })
		for _, n := range w.nodes {
			rig.Eventually(w.t, 30*time.Second, n.Name+" is ready at "+g.Opts.Name, func() bool { row := g.Node(n.Name); return row != nil && row.State == "ready" })
		}
	}
}

// TestNemesis runs callers against a fleet in which something is always broken, and compares what callers, gateways, leases and providers have seen. By hand:
//
//	go test ./tests/fleet -run TestNemesis -nemesis 10m -timeout 20m
func TestNemesis(t *testing.T) {
	seed := *nemesisSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	}
	t.Logf("seed %d: go test ./tests/fleet -run TestNemesis -nemesis %v -seed %d", seed, *nemesisTime, seed)
	w := newWorld(t, seed)
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for i := range 12 {
		callers.Go(func() { w.call(stop, i, rand.New(rand.NewPCG(seed, uint64(100+i)))) })
	}
	for end := time.Now().Add(*nemesisTime); time.Now().Before(end) && !t.Failed(); {
		f := faults[w.rand.IntN(len(faults))]
		w.note("%s", f.name)
		f.do(w)
		w.note("over")
		time.Sleep(w.between(0, 1500*time.Millisecond))
	}
	w.heal()
	time.Sleep(2 * time.Second) // and then all is well for a while
	close(stop)
	callers.Wait()
	w.check()
	if t.Failed() {
		t.Log("\n" + strings.Join(w.noted, "\n"))
		keep(t, w.dir)
	}
}

// keep copies the logs to where they outlive the test.
func keep(t *testing.T, dir string) {
	to, err := os.MkdirTemp("", "fairway-nemesis-")
	if err != nil {
		return
	}
	if err := os.CopyFS(to, os.DirFS(dir)); err == nil {
		t.Logf("the logs are in %s", to)
	}
}
