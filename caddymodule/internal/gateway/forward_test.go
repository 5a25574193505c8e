package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	iollama "github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// advertised makes a gateway known to the others.
func advertised(st *Settings) { st.Advertise = "itself" }

// twoPeers are two gateways that dial each other; the nodes are left to the test.
func twoPeers(t *testing.T, change ...func(*Settings)) (one, two *rig, mem *flaky) {
	t.Helper()
	return pair(t, append(change, advertised)...)
}

func row(r *rig, node string) *fleet.NodeView {
	for _, v := range r.hub.Fleet().Nodes() {
		if v.Name == node {
			return &v
		}
	}
	return nil
}

// sees waits until r can use a node of another gateway's.
func (r *rig) sees(node string) {
	r.t.Helper()
	wait(r.t, func() bool {
		v := row(r, node)
		return v != nil && v.State == "ready" && len(v.Targets) > 0 && len(v.Targets[0].Models) > 0
	})
}

// An app at any gateway finds the whole fleet: what is listed, what runs, and where.
func TestForwarded(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	a := fakeollama.Start(t, fakeollama.Options{Models: []string{"a"}})
	b := fakeollama.Start(t, fakeollama.Options{Models: []string{"b"}})
	one.node("n1", a, 2)
	two.node("n2", b, 2)
	one.sees("n2")
	two.sees("n1")
	for _, r := range []*rig{one, two} {
		for _, model := range []string{"a", "b"} {
			resp, body := r.do("POST", "/api/chat", chat(model, ""))
			if resp.StatusCode != 200 || !strings.Contains(body, `"done":true`) {
				t.Errorf("%s at %s: %d %s", model, r.st.Gateway, resp.StatusCode, body)
			}
		}
		if _, body := r.do("GET", "/api/tags", ""); !strings.Contains(body, `"name":"a"`) || !strings.Contains(body, `"name":"b"`) {
			t.Errorf("tags at %s: %s", r.st.Gateway, body)
		}
		wait(t, func() bool {
			_, body := r.do("GET", "/api/ps", "")
			return strings.Contains(body, `"name":"a"`) && strings.Contains(body, `"name":"b"`)
		})
		if resp, body := r.do("POST", "/api/show", `{"model":"b"}`); resp.StatusCode != 200 {
			t.Errorf("show at %s: %d %s", r.st.Gateway, resp.StatusCode, body)
		}
		if resp, _ := r.do("POST", "/api/chat", chat("nope", "")); resp.StatusCode != 404 {
			t.Errorf("a model that nobody has, at %s: %d", r.st.Gateway, resp.StatusCode)
		}
	}
	if v := row(one, "n2"); len(v.Sessions) != 1 || v.Sessions[0].Gateway != "gw2" {
		t.Errorf("%+v", v)
	}
	accs := one.accounts()
	i := slices.IndexFunc(accs, func(a *Account) bool { return a.Node == "n2" && a.Endpoint == "chat" })
	if i < 0 || accs[i].Outcome != "completed" || accs[i].Model != "b:latest" && accs[i].Model != "b" {
		t.Errorf("the entry gateway's account: %+v", accs)
	}
	for _, a := range two.accounts() {
		if a.Run == accs[i].Run {
			t.Error("the run was accounted for twice")
		}
	}
}

// A long body travels, a long answer comes back whole, and errors are the provider's own.
func TestForwardedBytes(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	b := fakeollama.Start(t, fakeollama.Options{Models: []string{"b", "t-tick"}})
	two.node("n2", b, 4)
	one.sees("n2")
	for _, n := range []int{100, 3 << 10, 40 << 10, 3 << 20} {
		body := chat("b", `,"pad":"`+strings.Repeat("x", n)+`"`)
		d, direct := two.do("POST", "/api/chat", body)
		f, forwarded := one.do("POST", "/api/chat", body)
		if f.StatusCode != 200 || d.StatusCode != 200 || len(forwarded) != len(direct) {
			t.Errorf("%d bytes: %d %d bytes, direct %d %d bytes", n, f.StatusCode, len(forwarded), d.StatusCode, len(direct))
		}
	}
	resp, body := one.do("POST", "/api/chat", `{"model":"b","messages":[],"t_status":418}`)
	if want, text := two.do("POST", "/api/chat", `{"model":"b","messages":[],"t_status":418}`); resp.StatusCode != want.StatusCode || body != text {
		t.Errorf("%d %s, direct %d %s", resp.StatusCode, body, want.StatusCode, text)
	}
}

// The entry gateway waits for its caller; a credit that comes free at the other gateway is used, and what both take together is never more than there is.
func TestForwardedCredits(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	b := fakeollama.Start(t, fakeollama.Options{Models: []string{"b"}})
	two.node("n2", b, 2)
	one.sees("n2")
	var all sync.WaitGroup
	codes := make(chan int, 40)
	for i := range 40 {
		r := one
		if i%2 == 1 {
			r = two
		}
		all.Go(func() {
			resp, _ := r.do("POST", "/api/chat", chat("b", `,"t_ms":10,"t_n":3`))
			codes <- resp.StatusCode
		})
	}
	all.Wait()
	close(codes)
	for c := range codes {
		if c != 200 {
			t.Errorf("%d", c)
		}
	}
	wait(t, func() bool { v := row(one, "n2"); return v.Targets[0].Credits.Free == v.Targets[0].Credits.Granted })
}

// The holder lends: the entry gateway's configuration needs the slot's name, and the audit of the lease is the holder's.
func TestForwardedLease(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	one, two, _ := twoPeers(t, slotted(canary))
	two.serve("n2", p.URL, 4)
	one.sees("n2")
	if resp, body := one.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	if n := two.hub.LeaseCounts()["opened"]; n == 0 {
		t.Error("the holder has lent nothing")
	}
	if n := one.hub.LeaseCounts()["issued"]; n != 0 {
		t.Error("the entry gateway has lent something")
	}
	// Revoked at the entry gateway: the holder refuses, and what runs there ends.
	stream := one.hang()
	begin := time.Now()
	if _, err := one.hub.Revoke(t.Context(), "slot:s", false); err != nil {
		t.Fatal(err)
	}
	if resp, body := one.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 403 || resp.Header.Get("X-Fairway-Error") != "credential_denied" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	rest, err := io.ReadAll(stream.Body)
	if err == nil || !strings.Contains(string(rest), "may not be used") {
		t.Errorf("the stream ended as %q, %v", rest, err)
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("after %v", d)
	}
}

// Gateways that are configured differently lend nothing for each other.
func TestForwardedOtherConfiguration(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	turn := 0
	one, two, _ := twoPeers(t, func(st *Settings) {
		slotted(canary)(st)
		if turn++; turn == 2 {
			st.Profiles[0].Header = "X-Other"
		}
	})
	two.serve("n2", p.URL, 4)
	one.sees("n2")
	resp, body := one.do("POST", "/api/chat", chat("m", ""))
	if resp.StatusCode != 503 || resp.Header.Get("X-Fairway-Error") != "credential_unavailable" {
		t.Errorf("%d %s %s", resp.StatusCode, resp.Header.Get("X-Fairway-Error"), body)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked != 0 {
		t.Errorf("the provider was asked %d times", p.asked)
	}
}

// A change at one gateway, or one that is tried and taken back, leaves what the others have in use: they agree by what their configurations say, not by how often
// these were changed.
func TestReloadsOfOneGateway(t *testing.T) {
	t.Parallel()
	other := func(st *Settings) { st.Profiles[0].Value = "Token {slot}" }
	back := func(st *Settings) { st.Profiles[0].Value = "Bearer {slot}" }
	for name, change := range map[string]func(r *rig){
		"a principal is removed": func(r *rig) { r.reload(func(st *Settings) { st.Keys = st.Keys[:1] }) },
		"and comes back": func(r *rig) {
			all := r.st.Keys
			r.reload(func(st *Settings) { st.Keys = all[:1] })
			r.reload(func(st *Settings) { st.Keys = all })
		},
		"a profile is changed and changed back": func(r *rig) { r.reload(other); r.reload(back) },
		"a profile comes and goes": func(r *rig) {
			r.reload(func(st *Settings) {
				st.Profiles = append(st.Profiles, Profile{Name: "q", Adapter: "openai", Target: "q", Slot: "s", Header: "Authorization", Value: "Bearer {slot}"})
			})
			r.reload(func(st *Settings) { st.Profiles = st.Profiles[:1] })
		},
		"a configuration fails": func(r *rig) { r.hub.Stop(r.next(other)) },
		"one with another key fails": func(r *rig) {
			r.hub.Stop(r.next(func(st *Settings) { st.Keys = append(slices.Clone(st.Keys), Key{"carol", HashKey("sk-carol")}) }))
		},
	} {
		for _, at := range []string{"entry", "holder"} {
			t.Run(name+", "+at, func(t *testing.T) {
				t.Parallel()
				p := newKeyed(t, canary)
				entry, holder, _ := twoPeers(t, slotted(canary))
				holder.serve("n2", p.URL, 4)
				entry.sees("n2")
				changed := map[string]*rig{"entry": entry, "holder": holder}[at]
				change(changed)
				for _, r := range []*rig{entry, holder} {
					wait(t, func() bool { resp, _ := r.do("POST", "/api/chat", chat("m", "")); return resp.StatusCode == 200 })
					time.Sleep(2 * beatEvery) // and so it stays
					if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
						t.Errorf("%s: %d %s", r.st.Gateway, resp.StatusCode, body)
					}
				}
			})
		}
	}
}

// A caller that leaves cancels the run at the provider, through both gateways.
func TestForwardedCancel(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	b := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick"}})
	two.node("n2", b, 1)
	one.sees("n2")
	resp := one.hangOn("t-tick")
	if n := two.hub.InFlight(); n != 1 {
		t.Errorf("%d runs in flight at the holder", n)
	}
	resp.Body.Close()
	wait(t, func() bool { return b.Stats().Inflight == 0 && two.hub.InFlight() == 0 })
	wait(t, func() bool {
		r, _ := one.do("POST", "/api/chat", chat("t-tick", `,"t_n":2,"t_ms":1`))
		return r.StatusCode == 200
	})
}

// A gateway that goes takes its nodes with it: what ran there ends visibly, what comes then is told, and served again when it is back.
func TestPeerGone(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	b := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick"}})
	two.node("n2", b, 4)
	one.sees("n2")
	resp := one.hangOn("t-tick")
	if err := two.hub.Destruct(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	if err == nil || strings.Contains(string(rest), `"done":true`) {
		t.Errorf("the stream ended as %q, %v", rest, err)
	}
	wait(t, func() bool { v := row(one, "n2"); return v == nil || v.State == "gone" })
	if _, body := one.do("GET", "/api/tags", ""); strings.Contains(body, `"name":"t-tick"`) {
		t.Errorf("still listed: %s", body)
	}
}

// A node with a session at both gateways is used directly by each, and counts once.
func TestNodeAtBothIsUsedDirectly(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	b := fakeollama.Start(t, fakeollama.Options{Models: []string{"b"}})
	one.also(two, "both", b.URL(), 2)
	wait(t, func() bool {
		v, w := row(one, "both"), row(two, "both")
		return v != nil && w != nil && len(v.Sessions) == 2 && len(w.Sessions) == 2
	})
	for _, r := range []*rig{one, two} {
		if resp, body := r.do("POST", "/api/chat", chat("b", "")); resp.StatusCode != 200 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	for _, r := range []*rig{one, two} {
		for _, a := range r.accounts() {
			if a.Generation != r.generation("both") {
				t.Errorf("%s went by generation %d, its own is %d", r.st.Gateway, a.Generation, r.generation("both"))
			}
		}
	}
}

// What a peer may not send is refused: runs that were forwarded before, runs in another's name, runs for what is not there.
func TestForwardedMisuse(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t)
	b := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-tick"}})
	two.node("n2", b, 1)
	one.sees("n2")
	one.hub.peers.mu.Lock()
	lane := one.hub.peers.in["gw2"].Lane()
	one.hub.peers.mu.Unlock()
	gen := two.generation("n2")
	attempts := uint32(0)
	good := func() *tunnel.RunOpen {
		attempts++ // the one before may not have been cleared away
		return &tunnel.RunOpen{
			Run: "r", Attempt: attempts, Generation: gen, Kind: tunnel.KindTunnel, Adapter: "ollama", Target: "ollama", Method: "POST", Path: []byte("/api/chat"),
			Model: iollama.ModelKey("t-tick"), Credit: true, Forward: &tunnel.Forward{Gateway: "gw1", Principal: "alice", Route: "default", Node: "n2", Hop: 1},
		}
	}
	for name, c := range map[string]struct {
		change func(*tunnel.RunOpen)
		code   string
		retry  bool
	}{
		"not forwarded":      {func(o *tunnel.RunOpen) { o.Forward = nil }, tunnel.CodeBadRun, false},
		"second hop":         {func(o *tunnel.RunOpen) { o.Forward.Hop = 2 }, tunnel.CodeBadRun, false},
		"no hop":             {func(o *tunnel.RunOpen) { o.Forward.Hop = 0 }, tunnel.CodeBadRun, false},
		"another entry":      {func(o *tunnel.RunOpen) { o.Forward.Gateway = "gw3" }, tunnel.CodeBadRun, false},
		"an id for the logs": {func(o *tunnel.RunOpen) { o.Run = "a\nb" }, tunnel.CodeBadRun, false},
		"a long principal":   {func(o *tunnel.RunOpen) { o.Forward.Principal = strings.Repeat("p", 300) }, tunnel.CodeBadRun, false},
		"no such kind":       {func(o *tunnel.RunOpen) { o.Kind = 9 }, tunnel.CodeUnsupportedKind, false},
		"no endpoint":        {func(o *tunnel.RunOpen) { o.Path = []byte("/api/none") }, tunnel.CodeNotAllowed, false},
		"a bad path":         {func(o *tunnel.RunOpen) { o.Path = []byte("/api/chat\r\nX: y") }, tunnel.CodeBadRun, false},
		"another generation": {func(o *tunnel.RunOpen) { o.Generation++ }, tunnel.CodeStaleGeneration, true},
		"another node":       {func(o *tunnel.RunOpen) { o.Forward.Node = "n3" }, tunnel.CodeStaleGeneration, true},
		"another adapter":    {func(o *tunnel.RunOpen) { o.Adapter = "openai" }, tunnel.CodeUnknownTarget, true},
		"another target":     {func(o *tunnel.RunOpen) { o.Target = "x" }, tunnel.CodeStaleGeneration, true},
		"a question of none": {func(o *tunnel.RunOpen) {
			o.Method, o.Path, o.Credit = "GET", []byte("/api/v1/edge/runs/x"), false
		}, codeRunNotFound, false},
		"a profile":           {func(o *tunnel.RunOpen) { o.Forward.Profile = "p" }, tunnel.CodeUnknownTarget, true},
		"a model of no one's": {func(o *tunnel.RunOpen) { o.Model = "c:latest" }, tunnel.CodeStaleGeneration, true},
	} {
		o := good()
		c.change(o)
		r, err := lane.OpenRun(t.Context(), o, []byte(`{"model":"t-tick"}`), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ev := r.Next()
		if ev.Refused == nil || ev.Refused.Code != c.code || (ev.Refused.Retry == tunnel.RetryElsewhere) != c.retry {
			t.Errorf("%s: %+v %+v", name, ev.Refused, ev.Terminal)
		}
		r.Close()
	}
	if n := b.Stats().Exec; n != 0 {
		t.Errorf("the provider ran %d", n)
	}
	// All of a model's credits are taken: the entry gateway is told so.
	stream := two.hangOn("t-tick")
	r, err := lane.OpenRun(t.Context(), good(), []byte(`{"model":"t-tick"}`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if ev := r.Next(); ev.Refused == nil || ev.Refused.Code != tunnel.CodeNodeBusy || !ev.Refused.NoCredit {
		t.Errorf("%+v", ev)
	}
	wait(t, func() bool { return row(one, "n2").Targets[0].Credits.Free == 2 }) // of 3 models at once, each with one credit
	stream.Body.Close()
	wait(t, func() bool { return row(one, "n2").Targets[0].Credits.Free == 3 })
}

// hangOn begins a stream of a fake Ollama's model.
func (r *rig) hangOn(model string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "POST", r.srv.URL+"/api/chat", strings.NewReader(chat(model, `,"t_n":100000,"t_ms":20`)))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testKey)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
		r.t.Fatal(err)
	}
	return resp
}
