// Package fleet tests several gateways as one: real Caddy processes, a real Redis, nodes and providers, and what happens when any of them goes.
package fleet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

func chat(model, more string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}]%s}`, model, more)
}

// provider joins a node that has one model of its own.
func provider(t *testing.T, g *rig.Gateway, name, model string, args ...string) (*rig.Node, *fakeollama.Server) {
	t.Helper()
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{model}})
	return g.NodeOf(name, fake.URL(), args...), fake
}

// knows waits until a gateway can use a node.
func knows(t *testing.T, g *rig.Gateway, node string) {
	t.Helper()
	rig.Eventually(t, 10*time.Second, node+" is known", func() bool {
		row := g.Node(node)
		return row != nil && row.State == "ready" && len(row.Targets) > 0 && len(row.Targets[0].Models) > 0
	})
}

// ask is one request with a bound; 0 stands for no answer.
func ask(g *rig.Gateway, model, more string) (status int, code, body string, took time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	begin := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL()+"/api/chat", strings.NewReader(chat(model, more)))
	if err != nil {
		return 0, "", err.Error(), 0
	}
	req.Header.Set("Authorization", "Bearer "+rig.Key)
	// A connection of its own: one that a server which stops has just closed says nothing of whether it took the request.
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err.Error(), time.Since(begin)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", "cut: " + err.Error(), time.Since(begin)
	}
	return resp.StatusCode, resp.Header.Get("X-Fairway-Error"), string(b), time.Since(begin)
}

// served waits until a model is served at a gateway.
func served(t *testing.T, g *rig.Gateway, model string, within time.Duration) {
	t.Helper()
	var last string
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		status, code, body, _ := ask(g, model, "")
		if status == 200 {
			return
		}
		last = fmt.Sprint(status, code, body)
	}
	t.Fatalf("%s is not served within %v: %s", model, within, last)
}

// Two gateways that start at the same moment on an empty storage are one endpoint: one CA, every model at both, one list of nodes.
func TestTwoGatewaysAreOneEndpoint(t *testing.T) {
	t.Parallel()
	f := rig.NewFleet(t, 2, rig.Options{})
	one, two := f.Gateways[0], f.Gateways[1]
	provider(t, one, "n1", "a")
	provider(t, two, "n2", "b")
	for _, g := range f.Gateways {
		knows(t, g, "n1")
		knows(t, g, "n2")
		for _, model := range []string{"a", "b"} {
			if status, _, body, _ := ask(g, model, ""); status != 200 || !strings.Contains(body, `"done":true`) {
				t.Errorf("%s: %d %s", model, status, body)
			}
		}
		if _, body := g.Do("GET", "/api/tags", ""); !strings.Contains(body, `"name":"a"`) || !strings.Contains(body, `"name":"b"`) {
			t.Errorf("tags: %s", body)
		}
		out := g.Fairway("status")
		for _, want := range []string{"gw1", "gw2", "alive", "redis up"} {
			if !strings.Contains(out, want) {
				t.Errorf("status does not say %q:\n%s", want, out)
			}
		}
		if strings.Count(g.Fairway("nodes"), "ready") != 2 {
			t.Errorf("nodes:\n%s", g.Fairway("nodes"))
		}
		if g.Metric("fairway_store_up") != 1 || g.Metric("fairway_store_seconds_count", `op="beat"`) == 0 {
			t.Error("the store is not in the metrics")
		}
	}
	// A join token is spent once, wherever it is shown first.
	token := one.JoinToken("n3")
	two.NodeWith("n3", token)
	again := one.TryNode("n3", "--token", token)
	if code := again.Exit(20 * time.Second); code != 3 {
		t.Errorf("the token was good twice: exit %d", code)
	}
	// A drain is the fleet's.
	one.Fairway("drain", "n2")
	rig.Eventually(t, 3*time.Second, "n2 is out everywhere", func() bool {
		status, _, _, _ := ask(two, "b", "")
		return status == 503
	})
	two.Fairway("undrain", "n2")
	served(t, one, "b", 5*time.Second)
}

// A rolling change: one gateway is reloaded before the other, tries something and goes back, or fails to load it; what needs a credential is served at both all along,
// but for the moment in which a removal is told.
func TestReloadsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	key := canary.New(t)
	const carol = "\t\tkey carol sk-carol-0123456789abcdef\n"
	slot := rig.Slot(t, key)
	f := rig.NewFleet(t, 2, rig.Options{Global: carol + slot})
	one, two := f.Gateways[0], f.Gateways[1]
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{"a"}, Key: key})
	one.NodeOf("n1", fake.URL(), "--credits", "4")
	knows(t, two, "n1")
	both := func(what string) {
		t.Helper()
		for _, g := range f.Gateways {
			served(t, g, "a", 3*time.Second)
		}
		time.Sleep(1500 * time.Millisecond) // a beat later it is the same
		for _, g := range f.Gateways {
			if status, code, body, _ := ask(g, "a", ""); status != 200 {
				t.Errorf("%s: %s: %d %s %s", what, g.Opts.Name, status, code, body)
			}
		}
	}
	load := func(g *rig.Gateway, global string) {
		t.Helper()
		g.Opts.Global = global
		g.Write(g.Caddyfile())
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	other := strings.Replace(slot, "\t\t\tslot s\n", "\t\t\tslot s\n\t\t\theader Authorization \"Bearer  {slot}\"\n", 1)
	if other == slot {
		t.Fatal("no other profile")
	}
	both("at first")
	for _, g := range f.Gateways {
		load(g, slot)
		both("a key is gone at " + g.Opts.Name)
		load(g, carol+slot)
		both("and is back")
		load(g, carol+other)
		load(g, carol+slot)
		both("a profile was another for a moment at " + g.Opts.Name)
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		g.Opts.Global = other
		g.Write(g.Caddyfile() + fmt.Sprintf("http://%s {\n\trespond no\n}\n", taken.Addr()))
		if err := g.Reload(); err == nil {
			t.Fatal("a site on a port that is taken is loaded")
		}
		taken.Close()
		both("a reload has failed at " + g.Opts.Name)
		load(g, carol+slot)
		both("and the next has not")
	}
}

// A flushed Redis is told again what the gateways know; a run that comes in between waits for that, at the holder and forwarded.
func TestFlushedRedis(t *testing.T) {
	t.Parallel()
	key := canary.New(t)
	f := rig.NewFleet(t, 2, rig.Options{Global: rig.Slot(t, key)})
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{"a"}, Key: key})
	f.Gateways[0].NodeOf("n1", fake.URL(), "--credits", "4")
	knows(t, f.Gateways[1], "n1")
	for i := range 6 {
		g := f.Gateways[i%2]
		served(t, g, "a", 3*time.Second)
		if said := f.Redis.Command("FLUSHALL"); said != "+OK" {
			t.Fatal(said)
		}
		if status, code, body, took := ask(g, "a", ""); status != 200 {
			t.Errorf("%s: %d %s %s after %v", g.Opts.Name, status, code, body, took)
		}
	}
}

// A gateway that is killed leaves the other serving; its node's models come back with it.
func TestKilledGateway(t *testing.T) {
	t.Parallel()
	f := rig.NewFleet(t, 2, rig.Options{})
	one, two := f.Gateways[0], f.Gateways[1]
	provider(t, one, "n1", "a")
	provider(t, two, "n2", "b")
	knows(t, one, "n2")
	knows(t, two, "n1")
	two.Kill()
	if status, _, body, _ := ask(one, "a", ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	status, code, body, took := ask(one, "b", "")
	if status != 502 && status != 503 || took > 19*time.Second {
		t.Errorf("%d %s %s after %v", status, code, body, took)
	}
	two.Start()
	f.Meet()
	served(t, one, "b", 20*time.Second)
	// Frozen and thawed: meanwhile nothing hangs, and then all is as before.
	two.Signal(syscall.SIGSTOP)
	time.Sleep(7 * time.Second) // longer than the store believes in it
	if status, _, body, _ := ask(one, "a", ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body, took := ask(one, "b", ""); status == 200 || took > 19*time.Second {
		t.Errorf("%d %s after %v", status, body, took)
	}
	two.Signal(syscall.SIGCONT)
	served(t, one, "b", 20*time.Second)
	served(t, two, "a", 20*time.Second)
}

// Gateways are restarted one after the other while callers ask, each of whom tries the other gateway when one says at once that it cannot: no answer is cut, and none is
// missing. The nodes have a session with each.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	f := rig.NewFleet(t, 2, rig.Options{Grace: "10s"})
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick"}})
	for i, name := range []string{"n1", "n2"} {
		f.Gateways[i].NodeOf(name, fake.URL(), "--gateway", f.Gateways[1-i].Addr(), "--credits", "64")
	}
	for _, g := range f.Gateways {
		for _, name := range []string{"n1", "n2"} {
			rig.Eventually(t, 10*time.Second, name+" has a session with each", func() bool {
				row := g.Node(name)
				return row != nil && len(row.Sessions) == 2 && len(row.Targets) > 0 && len(row.Targets[0].Models) > 0
			})
		}
	}
	stop := make(chan struct{})
	var mu sync.Mutex
	kinds := map[string]int{}
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				kind := patient(f, n)
				mu.Lock()
				kinds[kind]++
				mu.Unlock()
			}
		})
	}
	for _, g := range f.Gateways {
		time.Sleep(time.Second)
		g.Signal(syscall.SIGTERM)
		if code := g.Exit(20 * time.Second); code != 0 {
			t.Errorf("%s: exit %d", g.Opts.Name, code)
		}
		g.Start()
		f.Meet()
		for _, name := range []string{"n1", "n2"} {
			rig.Eventually(t, 20*time.Second, name+" is back", func() bool { row := g.Node(name); return row != nil && row.State == "ready" && len(row.Sessions) == 2 })
		}
	}
	close(stop)
	callers.Wait()
	if kinds["complete"] < 20 || len(kinds) != 1 {
		t.Errorf("%v", kinds)
	}
	if ran := fake.Stats().Exec; ran != kinds["complete"] {
		t.Errorf("%d answers, and the provider ran %d", kinds["complete"], ran)
	}
	t.Log(kinds)
}

// patient asks one gateway, and the other when it is told at once that nothing ran.
func patient(f *rig.Fleet, n int) string {
	last := "nobody answers"
	for try := range 20 {
		g := f.Gateways[(n+try)%len(f.Gateways)]
		status, code, body, _ := ask(g, "t-tick", `,"t_n":20,"t_ms":20`)
		switch {
		case status == 200 && strings.Contains(body, `"done":true`):
			return "complete"
		case strings.HasPrefix(body, "cut: "):
			return body
		case status == 0 && (strings.Contains(body, "refused") || strings.Contains(body, "reset")), status == 503 && (code == "draining" || code == "no_node"):
			last = fmt.Sprint(status, " ", code)
			time.Sleep(50 * time.Millisecond)
		default:
			return fmt.Sprintf("%d %s %.200s", status, code, body)
		}
	}
	return last
}

// A gateway that is cut off from the store hears of no revocation, and lends nothing at all; what it serves without a credential goes on.
func TestRevokedWhileCutOff(t *testing.T) {
	t.Parallel()
	key := canary.New(t)
	f := rig.NewFleet(t, 2, rig.Options{
		Global: rig.Slot(t, key) + "\t\tprofile open {\n\t\t\ttarget open\n\t\t}\n", StoreLines: "\t\t\ton_down serve_owned\n",
	})
	one, two := f.Gateways[0], f.Gateways[1]
	keyed := fakeollama.Start(t, fakeollama.Options{Models: []string{"keyed"}, Key: key})
	open := fakeollama.Start(t, fakeollama.Options{Models: []string{"open"}})
	two.NodeOf("n2", keyed.URL(), "--target", "open=ollama:"+open.URL())
	served(t, two, "keyed", 10*time.Second)
	served(t, one, "keyed", 10*time.Second) // forwarded
	f.Ways[1].Hole()
	f.Relays[0].Set(func(w *rig.Ways) { w.Drop = true })
	f.Relays[1].Set(func(w *rig.Ways) { w.Drop = true })
	one.Fairway("revoke", "--slot", "s")
	before := keyed.Stats().Exec
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		status, code, body, took := ask(two, "keyed", "")
		if status != 503 || code != "credential_unavailable" || took > 3*time.Second {
			t.Fatalf("%d %s %s after %v", status, code, body, took)
		}
		if status, _, body, _ := ask(two, "open", ""); status != 200 {
			t.Fatalf("without a credential: %d %s", status, body)
		}
	}
	if now := keyed.Stats().Exec; now != before {
		t.Errorf("the provider was asked %d times after the revocation", now-before)
	}
	if err := two.Reload(); err != nil {
		t.Errorf("a new configuration without the store: %v", err)
	}
	if status, _, body, _ := ask(two, "open", ""); status != 200 {
		t.Errorf("after it: %d %s", status, body)
	}
	f.Ways[1].Mend()
	rig.Eventually(t, 10*time.Second, "it has heard of it", func() bool {
		status, code, _, _ := ask(two, "keyed", "")
		return status == 403 && code == "credential_denied"
	})
	if now := keyed.Stats().Exec; now != before {
		t.Errorf("the provider was asked %d times after the revocation", now-before)
	}
}
