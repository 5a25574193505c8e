package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/nodeclient"
	"github.com/fairway-edge/fairway/nodeclient/adapter/ollama"
)

// flaky is a store that can be taken away, and can lose what it has.
type flaky struct {
	store.Store
	down  atomic.Bool
	calls atomic.Int64
}

func (f *flaky) err() error {
	f.calls.Add(1)
	if f.down.Load() {
		return store.ErrUnavailable
	}
	return nil
}

func (f *flaky) Beat(ctx context.Context, gateway string, epoch uint64, held []store.Held) (store.BeatResult, error) {
	if err := f.err(); err != nil {
		return store.BeatResult{}, err
	}
	return f.Store.Beat(ctx, gateway, epoch, held)
}

func (f *flaky) Fence(ctx context.Context, node, gateway string, generation uint64) error {
	if err := f.err(); err != nil {
		return err
	}
	return f.Store.Fence(ctx, node, gateway, generation)
}

func (f *flaky) Issue(ctx context.Context, i store.Issue) error {
	if err := f.err(); err != nil {
		return err
	}
	return f.Store.Issue(ctx, i)
}

func (f *flaky) Revoke(ctx context.Context, subjects []string, pgn uint64) (uint64, error) {
	if err := f.err(); err != nil {
		return 0, err
	}
	return f.Store.Revoke(ctx, subjects, pgn)
}

func (f *flaky) Revocations(ctx context.Context) (store.Revocations, error) {
	if err := f.err(); err != nil {
		return store.Revocations{}, err
	}
	return f.Store.Revocations(ctx)
}

// twoGateways share a store and a CA; a node of each gateway's serves p.
func twoGateways(t *testing.T, p *keyed, change ...func(*Settings)) (one, two *rig, mem *flaky) {
	t.Helper()
	one, two, mem = pair(t, append([]func(*Settings){slotted(canary)}, change...)...)
	one.serve("n1", p.URL, 4)
	two.serve("n2", p.URL, 4)
	return one, two, mem
}

// pair is two gateways without nodes.
func pair(t *testing.T, change ...func(*Settings)) (one, two *rig, mem *flaky) {
	t.Helper()
	ca, err := pki.NewSelfSigned("test.local", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	m, err := store.NewMemory(t.Context(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mem = &flaky{Store: m}
	changed := func(st *Settings) {
		for _, f := range change {
			f(st)
		}
	}
	one = newRigNamed(t, Options{}, "gw1", ca, mem, true, changed)
	two = newRigNamed(t, Options{}, "gw2", ca, mem, true, changed)
	return one, two, mem
}

// hang begins a stream at r and returns its answer once it is under way.
func (r *rig) hang() *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "POST", r.srv.URL+"/api/chat", strings.NewReader(chat("m", `,"x":"hang"`)))
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

// What is revoked at one gateway is revoked at the other, and its runs there end, within a second or so.
func TestRevocationReachesOtherGateways(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	one, two, _ := twoGateways(t, p)
	for _, r := range []*rig{one, two} {
		if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	stream := two.hang()
	begin := time.Now()
	if _, err := one.hub.Revoke(t.Context(), "slot:s", false); err != nil {
		t.Fatal(err)
	}
	// At once: the store says so, whatever the other gateway knows.
	if resp, _ := two.do("POST", "/api/chat", chat("m", "")); resp.Header.Get("X-Fairway-Error") != "credential_denied" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if _, err := io.ReadAll(stream.Body); err == nil {
		t.Error("the stream at the other gateway looks whole")
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("after %v", d)
	}
	if _, err := one.hub.Revoke(t.Context(), "slot:s", true); err != nil {
		t.Fatal(err)
	}
	wait(t, func() bool { resp, _ := two.do("POST", "/api/chat", chat("m", "")); return resp.StatusCode == 200 })
	if _, err := one.hub.Fleet().Drain(t.Context(), "n2", true); err != nil {
		t.Fatal(err)
	}
	wait(t, func() bool { resp, _ := two.do("POST", "/api/chat", chat("m", "")); return resp.StatusCode == 503 })
}

// A node process that begins anew at another gateway ends the old one's session here.
func TestNewInstanceElsewhere(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	one, two, _ := twoGateways(t, p)
	two.serve("n1", p.URL, 4) // another process of that name
	wait(t, func() bool {
		for _, n := range one.hub.Fleet().Nodes() {
			if n.Name == "n1" {
				return n.State == "gone" || n.Sessions[0].Generation > two.generation("n1")
			}
		}
		return false
	})
}

// also joins one node with both gateways.
func (r *rig) also(two *rig, name, url string, credits int) {
	r.t.Helper()
	id, err := r.ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := ollama.New("ollama", url)
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := nodeclient.New(nodeclient.Config{
		Identity: identitySource{id}, Gateways: []string{r.hub.listener.Addr().String(), two.hub.listener.Addr().String()},
		Targets: []nodeclient.Target{{Adapter: a, PerModel: credits}}, Grace: -1,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	r.t.Cleanup(func() { cancel(); <-done })
}

func (r *rig) generation(node string) uint64 {
	for _, n := range r.hub.Fleet().Nodes() {
		for _, s := range n.Sessions {
			if n.Name == node && s.Gateway == r.st.Gateway {
				return s.Generation
			}
		}
	}
	return 0
}

// One process of a node, at two gateways: a session with each, and neither ends the other.
func TestOneNodeAtTwoGateways(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	one, two, _ := twoGateways(t, p)
	one.also(two, "both", p.URL, 2)
	ready := func(r *rig) bool {
		for _, n := range r.hub.Fleet().Nodes() {
			if n.Name == "both" {
				return n.State == "ready"
			}
		}
		return false
	}
	wait(t, func() bool { return ready(one) && ready(two) })
	g1, g2 := one.generation("both"), two.generation("both")
	time.Sleep(3 * beatEvery) // what a beat would end, it has
	if !ready(one) || !ready(two) || one.generation("both") != g1 || two.generation("both") != g2 || g1 == g2 {
		t.Errorf("generations %d and %d, now %d and %d", g1, g2, one.generation("both"), two.generation("both"))
	}
}

// The store goes: leases fail at once, what runs goes on, and runs without a credential as configured. It comes back: everything does, without a reconnect.
func TestStoreGone(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]bool{"fail_closed": false, "serve_owned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newKeyed(t, canary)
			one, _, mem := twoGateways(t, p, func(st *Settings) { st.ServeOwned = serve })
			// A second configuration without a slot: the provider refuses it, but it is asked.
			plain := one.hub
			gen := one.generation("n1")
			stream := one.hang()
			mem.down.Store(true)
			resp, _ := one.do("POST", "/api/chat", chat("m", ""))
			if resp.StatusCode != 503 || resp.Header.Get("X-Fairway-Error") != "credential_unavailable" {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
			k := plain.keeper
			k.mu.Lock()
			k.owned = time.Now() // as after six seconds
			k.mu.Unlock()
			if err := k.owns(); (err == nil) != serve {
				t.Errorf("owns: %v", err)
			}
			v, err := plain.Revoke(t.Context(), "slot:other", false)
			if err == nil || v.Durable || !v.Applied {
				t.Errorf("%+v %v", v, err)
			}
			if list, err := plain.Revocations(t.Context()); err != nil || !slices.Equal(list, []string{"slot:other"}) {
				t.Errorf("%v %v", list, err)
			}
			mem.down.Store(false)
			wait(t, func() bool { resp, _ := one.do("POST", "/api/chat", chat("m", "")); return resp.StatusCode == 200 })
			wait(t, func() bool { return k.owns() == nil })
			wait(t, func() bool { // what was revoked while it was away
				r, err := mem.Revocations(t.Context())
				return err == nil && len(r.Subjects) == 1 && r.Subjects[0] == "slot:other"
			})
			if !plain.lender.view.Revoked("slot:other") {
				t.Error("the gateway has forgotten the revocation")
			}
			if one.generation("n1") != gen {
				t.Error("the node had to reconnect")
			}
			if len(plain.Leases()) != 1 {
				t.Error("the stream did not live through it")
			}
			stream.Body.Close()
		})
	}
}

// A process that begins under a gateway's name is that gateway; the one before serves nobody any more.
func TestSecondProcessOfAGateway(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	one, _, mem := twoGateways(t, p)
	if _, err := mem.Epoch(t.Context(), "gw1"); err != nil {
		t.Fatal(err)
	}
	if one.hub.Superseded() {
		t.Error("it gives up too early")
	}
	wait(t, func() bool { return one.hub.keeper.owns() != nil && one.hub.Superseded() })
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/api/chat", chat("m", "")},
		{"POST", "/v1/chat/completions", chat("m", "")},
		{"POST", "/api/show", `{"model":"m"}`},
		{"POST", "/api/generate", `{"model":"m","keep_alive":0}`},
		{"GET", "/api/tags", ""},
		{"GET", "/api/ps", ""},
		{"GET", "/v1/models", ""},
		{"GET", "/v1/models/m", ""},
		{"POST", "/api/v1/edge/runs", typedBody("")},
	} {
		began := time.Now()
		resp, body := one.do(c.method, c.path, c.body)
		if d := time.Since(began); resp.StatusCode != 503 || resp.Header.Get("X-Fairway-Error") != codeStoreUnavail || d > 2*time.Second {
			t.Errorf("%s %s: %d %s after %v", c.method, c.path, resp.StatusCode, body, d)
		}
	}
	for _, path := range []string{"/", "/api/version"} {
		if resp, body := one.do("GET", path, ""); resp.StatusCode != 200 {
			t.Errorf("GET %s: %d %s", path, resp.StatusCode, body)
		}
	}
}
