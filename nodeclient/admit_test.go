package nodeclient

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

func TestAllowList(t *testing.T) {
	allow, err := parseAllow([]string{"POST:/api/pull", "delete:/api/delete", "POST:/api/blobs/*"})
	if err != nil {
		t.Fatal(err)
	}
	digest := "/api/blobs/sha256:0123456789012345678901234567890123456789012345678901234567890123"
	for _, tc := range []struct {
		method, path string
		ok           bool
	}{
		{"POST", "/api/chat", true}, {"POST", "/v1/chat/completions", true}, {"POST", "/api/show", true}, {"GET", "/api/tags", true},
		{"GET", "/v1/models/tiny", true}, {"POST", "/api/pull", true}, {"DELETE", "/api/delete", true}, {"POST", digest, true}, {"HEAD", digest, true},
		{"POST", "/api/chat?x=1", true},
		{"POST", "/api/push", false}, {"POST", "/api/create", false}, {"POST", "/api/signout", false}, {"POST", "/api/me", false},
		{"GET", "/api/pull", false}, {"POST", "/api/chat/", false}, {"POST", "/api//chat", false}, {"POST", "/api/../api/chat", false},
		{"POST", "/api/%63hat", false}, {"POST", "/metrics", false}, {"POST", "", false}, {"POST", "/api/chat HTTP/1.1\r\nX: y", false},
		{"POST", "http://other/api/chat", false}, {"PUT", "/api/chat", false}, {"POST", "/api/blobs/../chat", false},
	} {
		if got := allow.permits(tc.method, tc.path) != nil; got != tc.ok {
			t.Errorf("%s %s: %v", tc.method, tc.path, got)
		}
	}
	for _, bad := range []string{"", "POST", "/api/pull", "GET:/api/pull", "POST:/api/signout", "POST:/api/*", "POST:/api/chat"} {
		if _, err := parseAllow([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestCredits(t *testing.T) {
	c := newCredits(2, 3)
	take := func(model string, want bool) {
		t.Helper()
		if got := c.take(model); got != want {
			t.Fatalf("take %s: %v", model, got)
		}
	}
	take("a", true)
	take("a", true)
	take("a", false)
	take("b", true)
	take("b", false) // of the target
	one, two, three := new(vault), new(vault), new(vault)
	if c.refused("b", one) || c.refused("b", two) || c.refused("b", three) {
		t.Error("there is room for b")
	}
	c.forget(three)
	if tell := c.give("a"); len(tell) != 2 || slices.Contains(tell, three) || tell[0] == tell[1] {
		t.Errorf("%d of two gateways hear of a freed credit", len(tell))
	}
	if !c.roomFor(one) {
		t.Error("no room")
	}
	if tell := c.give("a"); len(tell) != 0 {
		t.Error("heard of twice")
	}
	if !c.refused("a", one) {
		t.Error("a credit that became free meanwhile is not told of")
	}
	c.give("b")
	if len(c.used) != 0 || c.inUse() != 0 {
		t.Errorf("left: %v", c.used)
	}
	if modelKey("tiny") != modelKey("TINY:latest") || modelKey("!!") != "!!" {
		t.Error("model keys")
	}
}

// gated is a provider whose answers wait for the gate.
func gated(gate <-chan struct{}) func(context.Context, *adapter.Request) (*adapter.Response, error) {
	return func(ctx context.Context, _ *adapter.Request) (*adapter.Response, error) {
		select {
		case <-gate:
			return reply(200, "{}"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func TestFullNodeRefusesAndSaysWhenItIsFree(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	gate := make(chan struct{})
	p.do = gated(gate)
	c, s, _ := g.node(g.config(p))
	first := open(t, s, nil)
	_ = first.EndBody()
	eventually(t, 5*time.Second, "the first run", func() bool { return c.Status().Runs == 1 })
	start := time.Now()
	res := ask(t, s, func(o *tunnel.RunOpen) { o.Model = "tiny:latest" })
	if r := res.refused; r.GetCode() != tunnel.CodeNodeBusy || !r.GetNoCredit() || r.GetRetry() != tunnel.RetryElsewhere || time.Since(start) > time.Second {
		t.Fatalf("second run of the model: %v", res.refused)
	}
	other := open(t, s, func(o *tunnel.RunOpen) { o.Model = "other" })
	_ = other.EndBody()
	eventually(t, 5*time.Second, "another model's run", func() bool { return c.Status().Runs == 2 })
	said := g.said()
	close(gate)
	if res := collect(first); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("%v", res.terminal)
	}
	collect(other)
	eventually(t, time.Second, "a Status that says that there is room", func() bool { return g.said() > said })
	if tg, _ := g.target("ollama"); tg.GetCredits().GetPerModel() != 1 || tg.GetCredits().GetPerTarget() != 3 || !tg.GetReachable() {
		t.Errorf("%v", tg)
	}
}

func TestUncountedPlaces(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	gate := make(chan struct{})
	p.do = gated(gate)
	c, s, _ := g.node(g.config(p))
	show := func(o *tunnel.RunOpen) { o.Path, o.Credit = []byte("/api/show"), false }
	var open8 []*tunnel.Run
	for range maxPlaces {
		r := open(t, s, show)
		_ = r.EndBody()
		open8 = append(open8, r)
	}
	eventually(t, 5*time.Second, "eight runs", func() bool { return c.Status().Runs == maxPlaces })
	if res := ask(t, s, show); res.refused.GetCode() != tunnel.CodeNodeBusy || res.refused.GetNoCredit() {
		t.Errorf("ninth: %v", res.refused)
	}
	close(gate)
	for _, r := range open8 {
		if res := collect(r); res.terminal.GetOutcome() != tunnel.Completed {
			t.Errorf("%v", res.terminal)
		}
	}
	if res := ask(t, s, show); res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("after that: %v", res.terminal)
	}
}

func TestTargetsAsPeopleSpellThem(t *testing.T) {
	env := map[string]string{"OLLAMA_NUM_PARALLEL": "4", "OLLAMA_MAX_LOADED_MODELS": "2"}
	ts, err := Targets("http://127.0.0.1:11434", []string{"gpu2=ollama:http://10.0.0.2:11434"}, []string{"gpu2=7"}, func(k string) string { return env[k] })
	if err != nil || len(ts) != 2 || ts[0].PerModel != 4 || ts[0].PerTarget != 8 || ts[1].PerModel != 7 || ts[1].PerTarget != 14 {
		t.Errorf("%+v, %v", ts, err)
	}
	none := func(string) string { return "" }
	if ts, err := Targets("off", nil, nil, none); err != nil || len(ts) != 0 {
		t.Errorf("%v, %v", ts, err)
	}
	for _, bad := range [][2][]string{
		{{"x"}, nil}, {{"x=ollama"}, nil}, {{"x=openai:http://h:1/../v1"}, nil}, {{"x=goals:h:1"}, nil}, {{"x=what:http://h:1"}, nil},
		{{"ollama=ollama:http://h:1"}, nil}, {{"x=ollama:h/path"}, nil}, {nil, {"0"}}, {nil, {"a"}}, {nil, {"other=2"}}, {nil, {"ollama=x"}},
	} {
		if _, err := Targets("http://127.0.0.1:11434", bad[0], bad[1], none); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
	if _, err := Labels([]string{"a=1", "a=2"}); err == nil {
		t.Error("a label twice")
	}
}
