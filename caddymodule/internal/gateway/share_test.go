package gateway

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// Two gateways that both have more runs than a node takes share it: neither waits for the other to run dry. Whoever has just had a credit hears first that it is
// free, so the node itself has to see to it.
func TestTwoBusyGatewaysShareANode(t *testing.T) {
	t.Parallel()
	one, two, _ := pair(t)
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick"}})
	one.also(two, "both", fake.URL(), 2)
	wait(t, func() bool {
		v, w := row(one, "both"), row(two, "both")
		return v != nil && w != nil && v.State == "ready" && w.State == "ready"
	})
	busy(t, one, two)
}

// So do they when only one has the node's session.
func TestForwardedRunsGetTheirShare(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	two.node("n2", fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick"}}), 2)
	one.sees("n2")
	busy(t, one, two)
}

func busy(t *testing.T, one, two *rig) {
	t.Helper()
	var served [2]atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i, r := range []*rig{one, two} {
		for range 8 {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					resp, body := r.do("POST", "/api/chat", chat("t-tick", `,"t_n":4,"t_ms":10`))
					if resp.StatusCode != 200 {
						t.Errorf("%s: %d %s", r.st.Gateway, resp.StatusCode, body)
						return
					}
					served[i].Add(1)
				}
			})
		}
	}
	time.Sleep(4 * time.Second)
	close(stop)
	all.Wait()
	a, b := served[0].Load(), served[1].Load()
	t.Logf("served %d and %d", a, b)
	if min(a, b)*4 < max(a, b) {
		t.Errorf("served %d and %d", a, b)
	}
}
