package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter/openai"
)

// guarded is a provider that shows nothing without its key.
type guarded struct {
	*httptest.Server
	key    atomic.Value // string
	models atomic.Value // string: the body of its list
	lists  atomic.Int32
}

func newGuarded(t testing.TB, key, list string) *guarded {
	t.Helper()
	g := &guarded{}
	g.key.Store(key)
	g.models.Store(list)
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+g.key.Load().(string) {
			http.Error(w, `{"error":{"message":"no key"}}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			g.lists.Add(1)
			_, _ = io.WriteString(w, g.models.Load().(string))
			return
		}
		_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","choices":[],"done":true}`)
	}))
	t.Cleanup(g.Close)
	return g
}

// join brings up a node with one target, and returns once it is ready.
func (r *rig) join(name string, a adapter.Adapter) {
	r.t.Helper()
	id, err := r.ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := nodeclient.New(nodeclient.Config{
		Identity: identitySource{id}, Gateways: []string{r.hub.listener.Addr().String()}, Targets: []nodeclient.Target{{Adapter: a, PerModel: 4}}, Grace: -1,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	wait(r.t, func() bool {
		for _, n := range r.hub.Fleet().Nodes() {
			if n.Name == name && n.State == "ready" && len(n.Targets) > 0 && n.Targets[0].Reachable {
				return true
			}
		}
		return false
	})
}

const vllmList = `{"object":"list","data":[{"id":"Qwen/Qwen3-8B","object":"model","created":1700000000,"owned_by":"vllm"},{"id":"/models/foo.gguf","object":"model"},{"nonsense":1},7]}`

// A provider that lists its models only for the key: the gateway asks, with a lease, and its models are there for everyone.
func TestLockedProvider(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, canary, vllmList)
	a := &audits{}
	r := newRigWith(t, Options{}, func(st *Settings) {
		st.Slots = []Slot{{Name: "s", Value: lease.NewValue([]byte(canary))}}
		st.Profiles = []Profile{{Name: "vllm", Adapter: "openai", Target: "vllm", Slot: "s", Header: "Authorization", Value: "Bearer {slot}"}}
		st.Audit = a.take
	})
	ad, err := openai.New("vllm", g.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.join("n1", ad)
	wait(t, func() bool {
		_, body := r.do("GET", "/v1/models", "")
		return strings.Contains(body, "Qwen/Qwen3-8B") && strings.Contains(body, "/models/foo.gguf")
	})
	if _, body := r.do("GET", "/api/tags", ""); !strings.Contains(body, `"family":"openai"`) {
		t.Errorf("%s", body)
	}
	for _, model := range []string{"Qwen/Qwen3-8B", "/models/foo.gguf"} {
		if resp, body := r.do("POST", "/v1/chat/completions", `{"model":"`+model+`","messages":[]}`); resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", model, resp.StatusCode, body)
		}
		if resp, body := r.do("POST", "/api/chat", chat(model, "")); resp.StatusCode != 400 || !strings.Contains(body, "/v1/chat/completions") {
			t.Errorf("%s, natively: %d %s", model, resp.StatusCode, body)
		}
	}
	first := a.all()[0]
	if first.Principal != lister || first.Slot != "s" || first.Event != "issued" {
		t.Errorf("%+v", first)
	}
	if n := len(r.accounts()); n == 0 {
		t.Error("no accounts")
	}
	for _, v := range r.hub.Runs() {
		if v.Principal == lister {
			t.Errorf("a listing is shown as a run: %+v", v)
		}
	}
}

// A wrong value in the slot: the models do not appear, the log says why, and with the right one they do.
func TestLockedProviderWithAWrongKey(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, "right", vllmList)
	with := func(key string) func(*Settings) {
		return func(st *Settings) {
			st.Slots = []Slot{{Name: "s", Value: lease.NewValue([]byte(key))}}
			st.Profiles = []Profile{{Name: "vllm", Adapter: "openai", Target: "vllm", Slot: "s", Header: "Authorization", Value: "Bearer {slot}"}}
		}
	}
	r := newRigWith(t, Options{}, with("wrong"))
	ad, err := openai.New("vllm", g.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.join("n1", ad)
	wait(t, func() bool { return r.hub.LeaseCounts()["opened"] > 0 })
	if _, body := r.do("GET", "/v1/models", ""); strings.Contains(body, "Qwen") {
		t.Errorf("%s", body)
	}
	if resp, _ := r.do("POST", "/v1/chat/completions", `{"model":"Qwen/Qwen3-8B","messages":[]}`); resp.StatusCode != 404 {
		t.Errorf("%d", resp.StatusCode)
	}
	r.reload(with("right"))
	wait(t, func() bool {
		_, body := r.do("GET", "/v1/models", "")
		return strings.Contains(body, "Qwen/Qwen3-8B")
	})
}

// An Ollama behind a key is a target like any other.
func TestLockedOllama(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, canary, `{"models":[{"name":"m:latest","model":"m:latest","modified_at":"2026-01-01T00:00:00Z","size":1,"digest":"aa"}]}`)
	r := newRigWith(t, Options{}, slotted(canary))
	ad, err := ollama.New("ollama", g.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.join("n1", ad)
	wait(t, func() bool {
		_, body := r.do("GET", "/api/tags", "")
		return strings.Contains(body, "m:latest")
	})
	if resp, body := r.do("POST", "/api/chat", chat("m", `,"stream":false`)); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestEntries(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{vllmList: 2, `{"data":[]}`: 0, `{"models":[{"name":"m"}]}`: 1, `{}`: 0} {
		if got, err := entries([]byte(body)); err != nil || len(got) != want {
			t.Errorf("%s: %v %v", body, got, err)
		}
	}
	for _, body := range []string{``, `[]`, `{"data":7}`} {
		if _, err := entries([]byte(body)); err == nil {
			t.Errorf("%q was read", body)
		}
	}
}

// What is asked when: at once, then after a pause that grows while it fails; what is gone is forgotten.
func TestListingsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	l := &listings{hub: r.hub, tried: map[fleet.TargetRef]*attempt{}}
	locked := []fleet.LockedTarget{{Node: "n1", Target: "vllm", Generation: 1}}
	due := func(after time.Duration) bool { return len(l.due(locked, time.Now().Add(after))) == 1 }
	if !due(0) || due(0) {
		t.Fatal("a new target is asked once, at once")
	}
	for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		l.done(locked[0], errors.New("no"))
		if wait := time.Duration(seconds) * time.Second; due(wait-time.Second) || !due(wait) {
			t.Errorf("not asked again after %v", wait)
		}
	}
	l.done(locked[0], nil)
	if due(listEvery-time.Second) || !due(listEvery) {
		t.Error("not asked again after the pause")
	}
	l.done(locked[0], nil)
	l.due(nil, time.Now())
	if len(l.tried) != 0 {
		t.Error("a target that is gone is remembered")
	}
}
