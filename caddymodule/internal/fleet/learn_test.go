package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// anyProvider lets /v1 use both.
var anyProvider = &Filter{Serves: func(c Candidate) bool { return c.Adapter == "ollama" || c.Adapter == "openai" }}

// openAI are entries of GET /v1/models.
func openAI(ids ...string) (out []*tunnel.Model) {
	for _, id := range ids {
		out = append(out, &tunnel.Model{Name: id, Json: fmt.Appendf(nil, `{"id":%q,"object":"model","created":1700000000,"owned_by":"vllm"}`, id)})
	}
	return out
}

// vllm is a reachable OpenAI-compatible target.
func vllm(ids ...string) *tunnel.Target {
	return &tunnel.Target{
		Name: "vllm", Adapter: "openai", Version: "0.1.0", Origin: "http://127.0.0.1:8000", Reachable: true,
		Credits: &tunnel.Credits{PerModel: 32, PerTarget: 32}, Models: openAI(ids...),
	}
}

func lockedVLLM() *tunnel.Target {
	c := vllm()
	c.Locked = true
	return c
}

// tags are the names of the union's /api/tags, sorted.
func tags(t *testing.T, f *Fleet) string {
	t.Helper()
	var v struct{ Models []struct{ Name string } }
	if err := json.Unmarshal(f.Inventory().Tags, &v); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range v.Models {
		out = append(out, m.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestOpenAITargets(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	own := offer(1, "tiny")
	own.Loaded = loaded("tiny")
	join(t, f, "a", own)
	other := vllm("Qwen/Qwen3-8B", "/models/foo.gguf", "tiny")
	other.Loaded = loaded("tiny")
	join(t, f, "b", other)

	if got := tags(t, f); got != "/models/foo.gguf Qwen/Qwen3-8B tiny" {
		t.Errorf("tags: %s", got)
	}
	inv := f.Inventory()
	if !strings.Contains(string(inv.V1Models), `{"id":"Qwen/Qwen3-8B","object":"model","created":1700000000,"owned_by":"vllm"}`) {
		t.Errorf("v1: %s", inv.V1Models)
	}
	if n := strings.Count(string(inv.PS), `"name"`); n != 1 {
		t.Errorf("ps: %s", inv.PS)
	}
	if v := f.Version(); v != "0.32.15" {
		t.Errorf("version %s is not the Ollama's", v)
	}
	f.Show(nil)
	if tags(t, f) != "tiny" {
		t.Errorf("without a profile: %s", tags(t, f))
	}
	f.Show(anyProvider)
	if !f.Offers("openai") || !f.Offers("ollama") || f.Offers("goals") {
		t.Error("the adapters on offer are others")
	}
	for model, want := range map[string][2]bool{"tiny": {true, true}, "qwen/qwen3-8b:latest": {false, true}, "/models/foo.gguf": {false, true}, "/models/FOO.gguf": {}} {
		if byOllama, byOpenAI := f.HeldBy(ollama.ModelKey(model)); byOllama != want[0] || byOpenAI != want[1] {
			t.Errorf("%s is held by %v %v", model, byOllama, byOpenAI)
		}
	}
	if m, ok := f.Model(ollama.ModelKey("tiny"), ""); !ok || m.OpenAI {
		t.Errorf("Ollama's entry does not count: %+v", m)
	}
	if m, ok := f.Model(ollama.ModelKey("/models/foo.gguf"), ""); !ok || m.OwnedBy != "vllm" {
		t.Errorf("%+v, %v", m, ok)
	}

	// Without a filter Ollama alone serves; the version that it needs is no other provider's.
	w := &Want{Model: ollama.ModelKey("/models/foo.gguf"), Credit: true, Since: "0.13.3"}
	if _, err := f.Acquire(context.Background(), w, now); !errors.Is(err, ErrNoModel) {
		t.Errorf("without a filter: %v", err)
	}
	w.Filter = anyProvider
	p := acquire(t, f, w)
	if p.Adapter != "openai" || p.Target != "vllm" || p.Origin != "http://127.0.0.1:8000" || p.Node() != "b" {
		t.Errorf("%+v", p)
	}
	p.Release()
	if got := f.Holders(key(t, "tiny")); len(got) != 1 || got[0].Node != "a" {
		t.Errorf("holders %v", got)
	}
	if v := f.Nodes()[1].Targets[0]; v.Origin != "http://127.0.0.1:8000" || v.Locked || len(v.Models) != 3 {
		t.Errorf("view %+v", v)
	}
}

// queued asks for a place that there is none of, and returns who waits for it.
func queued(t *testing.T, f *Fleet, w *Want) *waiter {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	p, wt, _, err := f.admit(w, Queue{Depth: 10, Wait: time.Minute})
	if wt == nil {
		t.Fatalf("did not have to wait: %+v, %v", p, err)
	}
	return wt
}

// Nobody overtakes a run that waits for the same through the same filter.
func TestLineWithAFilter(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	c := vllm("m")
	c.Credits = &tunnel.Credits{PerModel: 1, PerTarget: 1}
	join(t, f, "a", c)
	w := func() *Want { return &Want{Model: key(t, "m"), Credit: true, Filter: anyProvider} }
	first := acquire(t, f, w())
	second := queued(t, f, w())
	f.mu.Lock()
	first.t.perTarget, first.t.perModel = 2, 2 // room that no event has told of
	f.mu.Unlock()
	third := queued(t, f, w())
	first.Release()
	(<-second.place).Release()
	(<-third.place).Release()
}

// vLLM says of each model that it was created now, whenever it is asked.
func TestCreatedNowDoesNotMoveLists(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := join(t, f, "a", vllm("m"))
	before := string(f.Inventory().Tags)
	again := vllm()
	again.Models = []*tunnel.Model{{Name: "m", Json: []byte(`{"id":"m","created":1800000000,"owned_by":"vllm"}`)}}
	if err := f.status(s, []*tunnel.Target{again}); err != nil || string(f.Inventory().Tags) != before {
		t.Errorf("%v: %s", err, f.Inventory().Tags)
	}
	again.Models[0].Json = []byte(`{"id":"m","created":1800000000,"owned_by":"me"}`)
	if err := f.status(s, []*tunnel.Target{again}); err != nil || string(f.Inventory().Tags) == before {
		t.Errorf("%v: %s", err, f.Inventory().Tags)
	}
}

func TestLearn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	plain := vllm("z")
	plain.Name = "plain"
	s := &fakeSession{node: "a", instance: "a", labels: map[string]string{"region": "eu"}}
	enter(t, f, s)
	s.state = tunnel.StateReady
	if err := f.ready(context.Background(), s, []*tunnel.Target{lockedVLLM(), plain}); err != nil {
		t.Fatal(err)
	}
	gone := join(t, f, "b", lockedVLLM())
	f.gone(gone)
	away := lockedVLLM()
	away.Reachable = false
	join(t, f, "c", away)

	list := f.Locked()
	if len(list) != 1 || list[0].Node != "a" || list[0].Generation != s.gen || list[0].Target != "vllm" || list[0].Adapter != "openai" ||
		list[0].Origin != "http://127.0.0.1:8000" || list[0].Labels["region"] != "eu" {
		t.Fatalf("locked: %+v", list)
	}
	learn := func(target string, gen uint64, ids ...string) {
		t.Helper()
		if err := f.Learn("a", gen, target, openAI(ids...)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, want string) {
		t.Helper()
		if got := tags(t, f); got != want {
			t.Fatalf("%s: %s", what, got)
		}
	}
	check("before", "z")
	learn("vllm", s.gen-1, "x")
	learn("plain", s.gen, "x")
	learn("nope", s.gen, "x")
	if err := f.Learn("nope", s.gen, "vllm", openAI("x")); err != nil {
		t.Fatal(err)
	}
	check("for another session, an open target, none", "z")

	full := func(is bool) {
		f.mu.Lock()
		f.nodes["a"].seat.targets["vllm"].full = is
		f.mu.Unlock()
	}
	learn("vllm", s.gen, "x")
	full(true)
	waiter := queued(t, f, &Want{Model: key(t, "x"), Credit: true, Filter: anyProvider})
	full(false)
	learn("vllm", s.gen, "x", "y", "y", "a\u202eb", "gpt-oss:20b-cloud")
	check("learned", "x y z")
	(<-waiter.place).Release()

	status := func(c *tunnel.Target) {
		t.Helper()
		if err := f.status(s, []*tunnel.Target{c}); err != nil {
			t.Fatal(err)
		}
	}
	status(lockedVLLM())
	reset := lockedVLLM()
	reset.Reset_, reset.Removed, reset.Models = true, []string{"x"}, openAI("forged")
	status(reset)
	check("a locked target's node says what it holds", "x y z")
	learn("vllm", s.gen, "y")
	check("learned again", "y z")

	// Too much is refused, and what was there stays.
	var many []*tunnel.Model
	for i := range maxModels {
		many = append(many, openAI(fmt.Sprint("m", i))...)
	}
	if err := f.Learn("a", s.gen, "vllm", many); err == nil {
		t.Error("too many models were learned")
	}
	check("too many", "y z")

	status(vllm("w"))
	check("unlocked", "w z")
	learn("vllm", s.gen, "x")
	check("learned of an open one", "w z")
	status(lockedVLLM())
	check("locked again", "z")
	learn("vllm", s.gen, "x")
	moved := lockedVLLM()
	moved.Origin = "http://127.0.0.1:9000"
	status(moved)
	check("at another origin", "z")
	learn("vllm", s.gen, "x")
	status(&tunnel.Target{Name: "vllm", Gone: true})
	check("withdrawn", "z")
}

// Who holds a model is known while its node is away, and when it is back and has not reported.
func TestHeldByWhoIsAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	raw := ollama.ModelKey("/models/foo.gguf")
	is := func(what string) {
		t.Helper()
		if byOllama, byOpenAI := f.HeldBy(raw); byOllama || !byOpenAI {
			t.Errorf("%s: %v %v", what, byOllama, byOpenAI)
		}
	}
	s := join(t, f, "a", vllm("/models/foo.gguf"))
	is("here")
	f.gone(s)
	is("gone")
	if f.Offers("openai") {
		t.Error("who went offers something")
	}
	enter(t, f, &fakeSession{node: "a", instance: "a"})
	is("back")
	if _, err := f.Acquire(context.Background(), &Want{Model: raw, Credit: true, Filter: anyProvider}, now); !errors.Is(err, ErrQueueFull) {
		t.Errorf("it may be back in a moment: %v", err)
	}
}
