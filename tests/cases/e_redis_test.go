package cases

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// paced asks ten times a second until stop is closed, and tells every answer.
func paced(stop <-chan struct{}, g *rig.Gateway, model string, tell func(status int, code string, took time.Duration)) (wait func()) {
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			all.Go(func() {
				begin := time.Now()
				status, code := 0, ""
				req, err := http.NewRequest(http.MethodPost, g.URL()+"/api/chat", strings.NewReader(chat(model, ""))) //nolint:noctx // the client's time-out bounds it
				if err != nil {
					return
				}
				req.Header.Set("Authorization", "Bearer "+rig.Key)
				if resp, err := (&http.Client{Timeout: 20 * time.Second}).Do(req); err == nil {
					resp.Body.Close()
					status, code = resp.StatusCode, resp.Header.Get("X-Fairway-Error")
				}
				tell(status, code, time.Since(begin))
			})
		}
	})
	return all.Wait
}

func TestE01_RedisStops(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"fail_closed", "serve_owned"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			f := rig.NewFleet(t, 1, rig.Options{StoreLines: "\t\t\ton_down " + policy + "\n"})
			g := f.Gateways[0]
			fake := fakeollama.Start(t, fakeollama.Options{})
			n := g.NodeOf("n1", fake.URL(), "--credits", credits)
			waitModel(t, g, "t-echo")
			var mu sync.Mutex
			var slowest time.Duration
			got := map[string]int{}
			stop := make(chan struct{})
			wait := paced(stop, g, "t-echo", func(status int, code string, took time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				slowest = max(slowest, took)
				got[strings.TrimSpace(fmt.Sprint(status, " ", code))]++
			})
			time.Sleep(time.Second)
			f.Redis.Kill()
			time.Sleep(long(12*time.Second, time.Minute))
			f.Redis.Start()
			back := time.Now()
			rig.Eventually(t, 10*time.Second, "the store is back", func() bool { s := g.Status(); return s != nil && s.Store.Up && s.Store.LagMS < 2000 })
			rig.Eventually(t, 10*time.Second, "served", func() bool { r, _ := g.Do("POST", "/api/chat", chat("t-echo", "")); return r.StatusCode == 200 })
			if d := time.Since(back); d > 10*time.Second {
				t.Errorf("recovered after %v", d)
			}
			close(stop)
			wait()
			if slowest > within(2*time.Second) {
				t.Errorf("a request took %v", slowest)
			}
			for answer := range got {
				if answer != "200" && (policy != "fail_closed" || answer != "503 store_unavailable") {
					t.Errorf("%s: %v", answer, got)
				}
			}
			if policy == "fail_closed" && got["503 store_unavailable"] == 0 {
				t.Errorf("nothing was refused: %v", got)
			}
			if c := strings.Count(n.Log(), "INFO\tready\t"); c != 1 {
				t.Errorf("the node became ready %d times: it had to reconnect", c)
			}
		})
	}
}

func TestE02_ReadOnlyPrimary(t *testing.T) {
	t.Parallel()
	f := rig.NewFleet(t, 1, rig.Options{})
	g := f.Gateways[0]
	fresh := rig.NewRedis(t)
	if got := f.Redis.Command("REPLICAOF 127.0.0.1 1"); got != "+OK" {
		t.Fatalf("%q", got)
	}
	rig.Eventually(t, 10*time.Second, "the store is read-only", func() bool { s := g.Status(); return s != nil && !s.Store.Up })
	time.Sleep(long(8*time.Second, 20*time.Second))
	f.Ways[0].PointTo(fresh)
	rig.Eventually(t, 10*time.Second, "writing again", func() bool {
		_, err := g.Run("fairway", "drain", "n1", "--address", fmt.Sprintf("127.0.0.1:%d", g.Admin))
		return err == nil
	})
	rig.Eventually(t, 10*time.Second, "beating again", func() bool { s := g.Status(); return s != nil && s.Store.Up && s.Store.LagMS < 2000 })
	for line, want := range map[string]int{"the store cannot be reached": 1, "the store answers again": 1} {
		if n := strings.Count(g.Log(), line); n != want {
			t.Errorf("%q stands %d times in the log", line, n)
		}
	}
}

func TestE03_DeadGatewayAndNode(t *testing.T) {
	t.Parallel()
	f := rig.NewFleet(t, 2, rig.Options{})
	a, b := f.Gateways[0], f.Gateways[1]
	dead := fakeollama.Start(t, fakeollama.Options{Models: []string{"both", "only-a"}})
	alive := fakeollama.Start(t, fakeollama.Options{Models: []string{"both"}})
	n := a.NodeOf("na", dead.URL(), "--credits", credits)
	b.NodeOf("nb", alive.URL(), "--credits", credits)
	waitModel(t, b, "only-a")
	waitModel(t, b, "both")
	a.Kill()
	n.Kill()
	begin := time.Now()
	rig.Eventually(t, 30*time.Second, "the dead node is listed no more", func() bool {
		_, tags := b.Do("GET", "/api/tags", "")
		begin := time.Now()
		r, body := b.Do("POST", "/api/chat", chat("both", ""))
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("a request took %v", d)
		}
		if r.StatusCode != 200 && r.StatusCode != 502 && r.StatusCode != 503 {
			t.Errorf("%d %s", r.StatusCode, body)
		}
		return !strings.Contains(tags, "only-a")
	})
	t.Logf("after %v", time.Since(begin))
	for range 20 {
		if r, body := b.Do("POST", "/api/chat", chat("both", "")); r.StatusCode != 200 {
			t.Errorf("%d %s", r.StatusCode, body)
		}
	}
	rig.Eventually(t, 10*time.Second, "the dead gateway is silent", func() bool {
		s := b.Status()
		return s != nil && len(s.Gateways) == 2 && s.Gateways[0].Gateway == "gw1" && s.Gateways[0].State == "silent"
	})
}

func TestE04_RedisDownAtStart(t *testing.T) {
	t.Parallel()
	r := rig.NewRedis(t)
	r.Kill()
	g := rig.Unstarted(t, rig.Options{Redis: r.URL()})
	g.Launch()
	if code := g.Exit(within(25 * time.Second)); code == 0 {
		t.Error("exit 0")
	}
	for _, want := range []string{r.URL(), "store"} {
		if !strings.Contains(g.Log(), want) {
			t.Errorf("the log does not name %q", want)
		}
	}
	// A server that comes a little later is waited for.
	g.Launch()
	time.Sleep(3 * time.Second)
	r.Start()
	g.Await()
}
