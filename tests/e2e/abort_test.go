package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

func TestClientThatLeavesStopsTheProvider(t *testing.T) {
	t.Parallel()
	g, _, fake := fleet(t, rig.Options{TLS: true})
	for name, c := range clients(t, g) {
		for _, st := range stages {
			for _, path := range []string{"/api/chat", "/v1/chat/completions"} {
				t.Run(fmt.Sprintf("%s/%s%s", name, st.name, path), func(t *testing.T) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					id := strings.ReplaceAll(t.Name(), " ", "-")
					left := make(chan time.Time, 1)
					time.AfterFunc(st.after, func() { left <- time.Now(); cancel() })
					r, err := c.post(ctx, path, strings.Replace(st.body, "{", `{"stream":true,`, 1), "X-Test-Id", id)
					if st.head != (err == nil) {
						t.Fatalf("%v", err)
					}
					if err == nil {
						_, _ = io.Copy(io.Discard, r.Body)
						r.Body.Close()
					}
					wait, stop := context.WithTimeout(context.Background(), 2*time.Second)
					defer stop()
					if _, err := fake.Wait(wait, func(rec fakeollama.Record) bool { return rec.ID == id && rec.ClientGone > 0 }); err != nil {
						t.Fatalf("the provider goes on: %v", err)
					}
					if d := time.Since(<-left); d > time.Second {
						t.Errorf("stopped %v after the client left", d)
					}
				})
			}
		}
	}
	idle(t, g, fake)
	if n := outcomes(g, "failed"); n != 0 {
		t.Errorf("%d runs count as failed: clients that leave are not the node's fault", n)
	}
	if s := g.Node("n1").State; s != "ready" {
		t.Errorf("the node is %s", s)
	}
}

// goroutines reads a Go process's count from its own metrics.
func goroutines(g *rig.Gateway) int { return int(g.Metric("go_goroutines")) }

// C07: thousands of aborts leave no stream credit, goroutine or descriptor behind.
func TestThousandsOfAbortsLeaveNothing(t *testing.T) {
	t.Parallel()
	g, n, fake := fleet(t, rig.Options{})
	c := plain(t, g)
	burst := func(total int, lines int) {
		work := make(chan int)
		go func() {
			for i := range total {
				work <- i
			}
			close(work)
		}()
		parallel(50, func(int) {
			for i := range work {
				ctx, cancel := context.WithCancel(context.Background())
				if i%3 == 0 && lines > 0 { // before the first byte
					time.AfterFunc(2*time.Millisecond, cancel)
				}
				r, err := c.post(ctx, "/api/chat", chat("t-tick", `,"t_n":1000,"t_ms":10`))
				if err == nil {
					br := bufio.NewReader(r.Body)
					_, _ = br.ReadString('\n')
					cancel()
					r.Body.Close()
				}
				cancel()
			}
		})
	}
	burst(200, 1) // warm
	idle(t, g, fake)
	time.Sleep(time.Second)
	gw0, node0, gor0 := rig.Use(t, g.Pid()), rig.Use(t, n.Pid()), goroutines(g)
	burst(3000, 1)
	idle(t, g, fake)
	parallel(100, func(int) {
		for range 2 {
			if r, err := c.post(context.Background(), "/api/chat", chat("t-echo", "")); err != nil || r.StatusCode != 200 {
				t.Errorf("after the aborts: %v %v", r, err)
			} else {
				readAll(t, r)
			}
		}
	})
	var gw, node rig.Usage
	var gor int
	defer func() {
		t.Logf("gateway %+v then %+v, goroutines %d then %d; node %+v then %+v", gw0, gw, gor0, gor, node0, node)
	}()
	rig.Eventually(t, 15*time.Second, "goroutines and descriptors are back", func() bool {
		gw, node, gor = rig.Use(t, g.Pid()), rig.Use(t, n.Pid()), goroutines(g)
		// The test's own kept connections cost a descriptor and some goroutines each; a leak would be thousands.
		return gw.FDs <= gw0.FDs+110 && node.FDs <= node0.FDs+5 && gor <= gor0+350
	})
}

// B13: a client that stops reading blocks the provider, not the gateway's memory, and is let go after the stall time.
func TestSlowReadersAreBounded(t *testing.T) {
	t.Parallel()
	g, n, fake := fleet(t, rig.Options{})
	gw0, node0 := rig.Use(t, g.Pid()), rig.Use(t, n.Pid())
	c := plain(t, g)
	parallel(10, func(int) {
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		r, err := c.post(ctx, "/api/chat", chat("t-flood", `,"t_mb":300`))
		if err != nil {
			t.Error(err)
			return
		}
		<-ctx.Done() // reads nothing
		r.Body.Close()
	})
	gw, node := rig.Use(t, g.Pid()), rig.Use(t, n.Pid())
	limit := 64 << 10
	if os.Getenv("FAIRWAY_RACE") != "" {
		limit *= 4 // the race detector's shadow memory
	}
	if gw.RSS-gw0.RSS > limit || node.RSS-node0.RSS > limit {
		t.Errorf("grew by %d and %d KiB", gw.RSS-gw0.RSS, node.RSS-node0.RSS)
	}
	idle(t, g, fake)
}

func TestSlowUploadIsNoTimeOut(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{})
	g := rig.NewGateway(t, rig.Options{Site: "\t\tmanage alice\n"})
	g.NodeOf("n1", fake.URL(), "--allow", "POST:/api/blobs/*")
	waitModel(t, g, "t-echo")
	pr, pw := io.Pipe()
	go func() {
		for range 8 { // 4 s
			_, _ = pw.Write(make([]byte, 10_000))
			time.Sleep(500 * time.Millisecond)
		}
		pw.Close()
	}()
	r, body := g.Upload("/api/blobs/sha256:"+strings.Repeat("0", 64), pr, "X-Fairway-Node", "n1")
	if r.StatusCode != 400 || !strings.Contains(body, "digest") { // it is not the digest of that
		t.Fatalf("%d %s", r.StatusCode, body)
	}
	for _, rec := range fake.Log() {
		if strings.HasPrefix(rec.Path, "/api/blobs/") && (rec.Len != 80_000 || rec.Framing != "chunked") {
			t.Errorf("%d bytes, %s", rec.Len, rec.Framing)
		}
	}
}
