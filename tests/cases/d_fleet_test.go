package cases

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

func TestD01_OnlyWhereTheModelIs(t *testing.T) {
	t.Parallel()
	g, a, b := two(t, fakeollama.Options{Models: []string{"other"}}, fakeollama.Options{})
	c := plain(t, g)
	if got := burst(200, 10, func(int) int { s, _ := c.ask("POST", "/api/chat", chat("t-echo", "")); return s }); got[200] != 200 {
		t.Errorf("%v", got)
	}
	if a.Stats().Exec != 0 || b.Stats().Exec != 200 {
		t.Errorf("ran %d and %d", a.Stats().Exec, b.Stats().Exec)
	}
}

func TestD02_SixOnTwoNodes(t *testing.T) {
	t.Parallel()
	a, b := fakeollama.Start(t, fakeollama.Options{Parallel: 2}), fakeollama.Start(t, fakeollama.Options{Parallel: 2})
	g := newGateway(t, rig.Options{})
	g.NodeOf("n1", a.URL(), "--credits", "2")
	g.NodeOf("n2", b.URL(), "--credits", "2")
	rig.Eventually(t, 10*time.Second, "both have reported their models", func() bool {
		for _, name := range []string{"n1", "n2"} {
			if n := g.Node(name); n == nil || len(n.Targets) == 0 || len(n.Targets[0].Models) == 0 {
				return false
			}
		}
		return true
	})
	c := plain(t, g)
	start := time.Now()
	time.AfterFunc(3*time.Second, func() {
		if x, y := a.Stats(), b.Stats(); x.Exec != 2 || y.Exec != 2 || x.Waiting+y.Waiting != 0 {
			t.Errorf("after 3 s %d and %d run, %d and %d wait at the provider", x.Exec, y.Exec, x.Waiting, y.Waiting)
		}
	})
	got := burst(6, 6, func(int) int {
		s, body := c.ask("POST", "/api/chat", chat("t-tick", `,"t_n":200,"t_ms":50`))
		if !strings.Contains(body, `"done":true`) {
			return -1
		}
		return s
	})
	if d := time.Since(start); got[200] != 6 || d < 19*time.Second || d > within(28*time.Second) {
		t.Errorf("%v in %v", got, d)
	}
}

// 3,000 aborts: tests/e2e, TestThousandsOfAbortsLeaveNothing.
func TestD03_NewcomerGetsWork(t *testing.T) {
	t.Parallel()
	g := newGateway(t, rig.Options{})
	fakes := map[string]*fakeollama.Server{}
	join := func(name string) *rig.Node {
		fakes[name] = fakeollama.Start(t, fakeollama.Options{})
		return g.NodeOf(name, fakes[name].URL(), "--credits", "2")
	}
	join("n1")
	join("n2")
	waitModel(t, g, "t-tick")
	c := plain(t, g)
	burst(300, 30, func(int) int { return c.abort(chat("t-tick", `,"t_n":200,"t_ms":50`), 1) })
	n3 := join("n3")
	old := g.Node("n3").Sessions[0].Generation
	n3.Kill()
	if err := g.Reload(); err != nil {
		t.Error(err)
	}
	settled(t, g)
	n3.Restart()
	rig.Eventually(t, 20*time.Second, "the newcomer has reported its models", func() bool {
		n := g.Node("n3")
		return n.State == "ready" && len(n.Sessions) == 1 && n.Sessions[0].Generation > old && len(n.Targets) > 0 && len(n.Targets[0].Models) > 0
	})
	for _, f := range fakes {
		f.Reset()
	}
	// Six at once on six credits: loaded or not, each node has its third.
	if got := burst(60, 6, func(int) int { s, _ := c.ask("POST", "/api/chat", chat("t-tick", `,"t_n":3,"t_ms":100`)); return s }); got[200] != 60 {
		t.Errorf("%v", got)
	}
	if n := fakes["n3"].Stats().Exec; n < 17 {
		t.Errorf("the newcomer ran %d of 60, the others %d and %d", n, fakes["n1"].Stats().Exec, fakes["n2"].Stats().Exec)
	}
	settled(t, g)
}

func TestD04_BusyProbes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	c := plain(t, f.Gateway)
	f.fake.SetTagsDelay(20 * time.Second)
	var wg sync.WaitGroup
	wg.Go(func() {
		if s, body := c.ask("POST", "/api/chat", chat("t-tick", `,"t_n":400,"t_ms":50`)); s != 200 || strings.Count(body, "\n") != 401 || !strings.Contains(body, `"done":true`) {
			t.Errorf("%d, %d lines", s, strings.Count(body, "\n"))
		}
	})
	for range 19 {
		time.Sleep(time.Second)
		if s := f.Node("n1").State; s != "ready" {
			t.Errorf("the node is %s", s)
		}
	}
	wg.Wait()
	if n := len(f.Node("n1").Sessions); n != 1 {
		t.Errorf("%d sessions", n)
	}
	f.fake.SetTagsDelay(0)
	serves(t, f.Gateway, 25*time.Second)
}

// An ordinary drain: tests/e2e, TestNodeDrainsOnSIGTERM.
func TestD07_GraceIsEnforced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{}, "--grace", "3s")
	c := plain(t, f.Gateway)
	r, err := c.do(context.Background(), "POST", "/api/chat", strings.NewReader(chat("t-tick", `,"t_n":2,"t_ms":600000`)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	start := time.Now()
	f.node.Signal(syscall.SIGTERM)
	b, err := io.ReadAll(r.Body)
	if err == nil && !strings.Contains(string(b), `{"error":`) || strings.Contains(string(b), `"done":true`) {
		t.Errorf("a cut answer looks complete: %v %q", err, b)
	}
	if code := f.node.Exit(10 * time.Second); code != 0 {
		t.Errorf("exit %d", code)
	}
	if d := time.Since(start); d < 2*time.Second || d > 6*time.Second {
		t.Errorf("ended after %v", d)
	}
}

func TestD08_ModelsChange(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	f.fake.SetModels("t-echo:latest", "t-new:latest")
	c := plain(t, f.Gateway)
	rig.Eventually(t, 30*time.Second, "the list follows", func() bool {
		_, tags := c.ask("GET", "/api/tags", "")
		return strings.Count(tags, `"name"`) == 2 && strings.Contains(tags, `"t-new:latest"`) && strings.Contains(tags, `"t-echo:latest"`)
	})
	if s, body := c.ask("POST", "/api/chat", chat("t-new", "")); s != 200 {
		t.Errorf("%d %s", s, body)
	}
}

func TestD09_HalfReady(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	late := fakeollama.Start(t, fakeollama.Options{Models: []string{"late:latest"}})
	late.Down()
	c := plain(t, f.Gateway)
	g := f.Gateway
	n := g.TryNode("n2", "--token", g.JoinToken("n2"), "--ollama", late.URL(), "--credits", credits)
	_ = n
	var statuses []int
	ask := func() int {
		s, body := c.ask("POST", "/api/chat", chat("late", `,"stream":false`))
		if s != 200 && errorText("/api/", body) == "" {
			t.Errorf("%d %s", s, body)
		}
		statuses = append(statuses, s)
		return s
	}
	up := time.Now().Add(long(8*time.Second, 20*time.Second))
	for time.Now().Before(up) {
		ask()
		time.Sleep(200 * time.Millisecond)
	}
	if err := late.Up(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 15*time.Second, "served", func() bool { return ask() == 200 })
	// Nobody in the fleet has said that it holds the model: no_such_model by the gateway, in Ollama's words. The half-ready node answers nothing.
	for _, s := range statuses {
		if !slices.Contains([]int{200, 404, 503}, s) {
			t.Errorf("%v", statuses)
			break
		}
	}
	for _, rec := range late.Log() {
		if rec.Path == "/api/chat" && rec.Status != 200 {
			t.Errorf("the half-ready node was asked: %+v", rec)
		}
	}
	if s, body := c.ask("POST", "/api/chat", chat("t-echo", "")); s != 200 {
		t.Errorf("%d %s", s, body)
	}
}
