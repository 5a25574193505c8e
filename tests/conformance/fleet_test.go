package conformance

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

type entry struct {
	Name, Digest string
	ModifiedAt   time.Time `json:"modified_at"`
}

func (e entry) key() string { return strings.ToLower(e.Name) }

func tags(t *testing.T, base string) (out []entry) {
	t.Helper()
	var v struct{ Models []entry }
	a := ask(t, http.DefaultTransport, base, get("/api/tags"))
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return v.Models
}

func names(es []entry) (out []string) {
	for _, e := range es {
		out = append(out, e.Name)
	}
	return out
}

func loaded(t *testing.T, base string) (out []string) {
	t.Helper()
	var v struct{ Models []entry }
	a := ask(t, http.DefaultTransport, base, get("/api/ps"))
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return names(v.Models)
}

func cli(t *testing.T, base string, args ...string) string {
	t.Helper()
	out, err := rig.CLI(t, strings.TrimPrefix(base, "http://"), args...)
	if err != nil {
		t.Fatalf("ollama %v: %v\n%s", args, err, out)
	}
	return out
}

// Checks 4, 6, 7, 10, 22, 33, 66: two Ollamas with different stores look like one that has both.
func TestTwoOllamas(t *testing.T) {
	t.Parallel()
	needOllama(t)
	a, b := startOllama(t), startOllama(t)
	// What a has alone: tiny-tools, tiny:jinja. What b has alone: only-b, and a name of Hugging Face's. The rest both have.
	cli(t, b.URL, "rm", "tiny-tools")
	cli(t, b.URL, "rm", "tiny:jinja")
	cli(t, b.URL, "cp", "tiny", "only-b")
	cli(t, b.URL, "cp", "tiny", "hf.co/Foo/Bar-GGUF:Q4_K_M")
	g := rig.NewGateway(t, rig.Options{NoKey: true})
	waitAdmin(t, g)
	g.NodeOf("a", a.URL)
	nb := g.NodeOf("b", b.URL)
	waitNodeHas(t, g, "a", "tiny:latest", "tiny-tools:latest")
	waitNodeHas(t, g, "b", "tiny:latest", "only-b:latest")

	t.Run("tags", func(t *testing.T) {
		// Both lists, each name once with its newest entry, newest first.
		var want []entry
		for _, e := range append(tags(t, a.URL), tags(t, b.URL)...) {
			if i := slices.IndexFunc(want, func(o entry) bool { return o.key() == e.key() }); i < 0 {
				want = append(want, e)
			} else if e.ModifiedAt.After(want[i].ModifiedAt) {
				want[i] = e
			}
		}
		slices.SortStableFunc(want, func(x, y entry) int { return y.ModifiedAt.Compare(x.ModifiedAt) })
		got := tags(t, g.URL())
		if !slices.Equal(names(got), names(want)) {
			t.Errorf("got %v, want %v", names(got), names(want))
		}
		var v struct{ Data []struct{ ID string } }
		if err := json.Unmarshal([]byte(ask(t, http.DefaultTransport, g.URL(), get("/v1/models")).body), &v); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range v.Data {
			ids = append(ids, m.ID)
		}
		if !slices.Equal(ids, names(got)) {
			t.Errorf("/v1/models %v, /api/tags %v", ids, names(got))
		}
	})

	t.Run("entries are the nodes' own", func(t *testing.T) {
		var at map[string][]json.RawMessage
		of := func(base string) []json.RawMessage {
			if err := json.Unmarshal([]byte(ask(t, http.DefaultTransport, base, get("/api/tags")).body), &at); err != nil {
				t.Fatal(err)
			}
			return at["models"]
		}
		direct := append(of(a.URL), of(b.URL)...)
		for _, m := range of(g.URL()) {
			if !slices.ContainsFunc(direct, func(d json.RawMessage) bool { return string(d) == string(m) }) {
				t.Errorf("no node lists %s", m)
			}
		}
	})

	t.Run("any holder", func(t *testing.T) {
		for model, holder := range map[string]*rig.Ollama{"tiny": a, "tiny-tools": a, "tiny:jinja": a, "only-b": b, "HF.CO/foo/bar-gguf:q4_k_m": b} {
			show := post("/api/show", `{"model":"`+model+`"}`)
			d, v := ask(t, http.DefaultTransport, holder.URL, show), ask(t, http.DefaultTransport, g.URL(), show)
			if blobless(shape(t, d.body)) != blobless(shape(t, v.body)) {
				t.Errorf("show %s\n%s\n%s", model, clip(shape(t, d.body)), clip(shape(t, v.body)))
			}
			run := post("/api/chat", chat(model, "hi", `,"stream":false`))
			ask(t, http.DefaultTransport, holder.URL, run)
			d, v = ask(t, http.DefaultTransport, holder.URL, run), ask(t, http.DefaultTransport, g.URL(), run)
			if diff := d.diff(v); diff != "" {
				t.Errorf("%s\n%s", model, diff)
			}
		}
		// The same names, and owners, as each holder says for one model.
		for model, holder := range map[string]*rig.Ollama{"tiny-tools": a, "only-b": b} {
			d, v := ask(t, http.DefaultTransport, holder.URL, get("/v1/models/"+model)), ask(t, http.DefaultTransport, g.URL(), get("/v1/models/"+model))
			if diff := d.diff(v); diff != "" {
				t.Error(diff)
			}
		}
		if v := ask(t, http.DefaultTransport, g.URL(), get("/v1/models/hf.co/Foo/Bar-GGUF:Q4_K_M")); v.status != 200 || !strings.Contains(v.body, `"owned_by":"Foo"`) {
			t.Errorf("%d %s", v.status, v.body)
		}
		if v := ask(t, http.DefaultTransport, g.URL(), post("/api/chat", chat("hf.co/Foo/Bar-GGUF", "hi", ""))); v.status != 404 {
			t.Errorf("another tag: %d %s", v.status, v.body)
		}
	})

	t.Run("nobody has it", func(t *testing.T) {
		for _, r := range []request{post("/api/chat", chat("nope", "hi", "")), post("/v1/messages", chat("nope", "hi", `,"max_tokens":5`)), post("/api/show", `{"model":"nope"}`)} {
			d, v := ask(t, http.DefaultTransport, a.URL, r), ask(t, http.DefaultTransport, g.URL(), r)
			if diff := d.diff(v); diff != "" {
				t.Error(diff)
			}
		}
	})

	t.Run("unload everywhere", func(t *testing.T) {
		// Two at once on nodes of one place each: one runs on either.
		done := make(chan struct{})
		for range 2 {
			go func() {
				defer func() { done <- struct{}{} }()
				ask(t, http.DefaultTransport, g.URL(), post("/api/generate", `{"model":"tiny:slow","prompt":"#loop","options":{"num_predict":150}}`))
			}()
		}
		<-done
		<-done
		if !slices.Contains(loaded(t, a.URL), "tiny:slow") || !slices.Contains(loaded(t, b.URL), "tiny:slow") {
			t.Fatalf("a has loaded %v, b %v", loaded(t, a.URL), loaded(t, b.URL))
		}
		rig.Eventually(t, 20*time.Second, "one row stands for both", func() bool {
			n := 0
			for _, m := range loaded(t, g.URL()) {
				if m == "tiny:slow" {
					n++
				}
			}
			if n > 1 {
				t.Fatal("listed twice")
			}
			return n == 1
		})
		rig.Eventually(t, 30*time.Second, "unloaded on both", func() bool {
			v := ask(t, http.DefaultTransport, g.URL(), post("/api/generate", `{"model":"tiny:slow","keep_alive":0}`))
			if v.status != 200 || !strings.Contains(v.body, `"done_reason":"unload"`) {
				t.Fatalf("%d %s", v.status, v.body)
			}
			return !slices.Contains(loaded(t, a.URL), "tiny:slow") && !slices.Contains(loaded(t, b.URL), "tiny:slow")
		})
		rig.Eventually(t, 20*time.Second, "listed nowhere", func() bool { return !slices.Contains(loaded(t, g.URL()), "tiny:slow") })
	})

	t.Run("stores that change", func(t *testing.T) {
		cli(t, b.URL, "cp", "tiny", "new-b")
		waitListed(t, g, "new-b:latest")
		if got := names(tags(t, g.URL()))[0]; got != "new-b:latest" {
			t.Errorf("the newest is not first: %s", got)
		}
		cli(t, b.URL, "rm", "new-b")
		rig.Eventually(t, time.Minute, "the removed model is gone", func() bool { return !slices.Contains(names(tags(t, g.URL())), "new-b:latest") })
	})

	t.Run("leaving and joining", func(t *testing.T) {
		nb.Kill()
		rig.Eventually(t, time.Minute, "its models are gone", func() bool { return !slices.Contains(names(tags(t, g.URL())), "only-b:latest") })
		if got := names(tags(t, g.URL())); !slices.Contains(got, "tiny:latest") || !slices.Contains(got, "tiny-tools:latest") {
			t.Errorf("%v", got)
		}
		for _, r := range []request{post("/api/chat", chat("only-b", "hi", "")), post("/v1/chat/completions", chat("only-b", "hi", ""))} {
			if v := ask(t, http.DefaultTransport, g.URL(), r); v.status != 503 || v.raw.Get("Retry-After") == "" || v.raw.Get("X-Fairway-Error") != "no_node" {
				t.Errorf("its holder is away: %d %v %s", v.status, v.raw, v.body)
			}
		}
		if v := ask(t, http.DefaultTransport, g.URL(), post("/api/chat", chat("tiny", "hi", ""))); v.status != 200 {
			t.Errorf("%d %s", v.status, v.body)
		}
		nb.Restart()
		waitListed(t, g, "only-b:latest")
		rig.Eventually(t, 20*time.Second, "it runs there again", func() bool {
			return ask(t, http.DefaultTransport, g.URL(), post("/api/chat", chat("only-b", "hi", ""))).status == 200
		})
	})
}

// blobless takes out where a store keeps its files.
func blobless(s string) string {
	var out []string
	for _, l := range strings.Split(s, `\n`) {
		if !strings.Contains(l, "/blobs/") {
			out = append(out, l)
		}
	}
	return strings.Join(out, `\n`)
}

// Checks 3, 65: of different versions the lowest is told, and a node is not asked for what its version lacks.
func TestMixedVersions(t *testing.T) {
	t.Parallel()
	needOllama(t)
	real := startOllama(t)
	since := []string{"/v1/messages", "/v1/responses", "/api/embed", "/v1/embeddings"}
	old := fakeollama.Start(t, fakeollama.Options{Version: "0.2.1", Models: []string{"tiny:latest", "tiny-embed:latest", "old:latest"}, Without: since})
	g := rig.NewGateway(t, rig.Options{NoKey: true})
	waitAdmin(t, g)
	no := g.NodeOf("old", old.URL(), "--credits", "8")
	waitNodeHas(t, g, "old", "old:latest")
	version := func() string { return ask(t, http.DefaultTransport, g.URL(), get("/api/version")).body }
	if v := version(); v != `{"version":"0.2.1"}` {
		t.Errorf("%s", v)
	}
	g.NodeOf("new", real.URL)
	waitNodeHas(t, g, "new", "tiny:latest")
	if v := version(); v != `{"version":"0.2.1"}` {
		t.Errorf("with a newer one: %s", v)
	}
	for _, r := range []request{
		post("/v1/messages", chat("tiny", "hi", `,"max_tokens":50`)), post("/v1/responses", `{"model":"tiny","input":"hi"}`),
		post("/api/embed", `{"model":"tiny-embed","input":"a"}`), post("/v1/embeddings", `{"model":"tiny-embed","input":"a"}`),
	} {
		ask(t, http.DefaultTransport, real.URL, r)
		d := ask(t, http.DefaultTransport, real.URL, r)
		for range 8 {
			if diff := d.diff(ask(t, http.DefaultTransport, g.URL(), r)); diff != "" {
				t.Errorf("%s\n%s", r.path, diff)
			}
		}
		// A model that the old one has alone: nobody can answer that now, and no bare text says so.
		lone := request{method: r.method, path: r.path, body: strings.NewReplacer(`"tiny"`, `"old"`, `"tiny-embed"`, `"old"`).Replace(r.body)}
		if v := ask(t, http.DefaultTransport, g.URL(), lone); v.status != 503 && v.status != 404 || !json.Valid([]byte(v.body)) {
			t.Errorf("%s of an old node: %d %s", r.path, v.status, v.body)
		}
	}
	for _, rec := range old.Log() {
		if slices.Contains(since, rec.Path) {
			t.Errorf("the old node was asked for %s", rec.Path)
		}
	}
	// What both have goes to both.
	for range 20 {
		ask(t, http.DefaultTransport, g.URL(), post("/api/chat", chat("old", "hi", "")))
	}
	if old.Execs("old") != 20 {
		t.Errorf("%d runs on the old node", old.Execs("old"))
	}
	no.Kill()
	rig.Eventually(t, time.Minute, "the version is the newer one's", func() bool { return version() == `{"version":"0.32.15"}` })
}

// Checks 57, 65, 66: gateway errors have the family's shape.
func TestErrorShapes(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-echo:latest"}})
	g := rig.NewGateway(t, rig.Options{})
	waitAdmin(t, g)
	n := g.NodeOf("n1", fake.URL())
	waitNodeHas(t, g, "n1", "t-echo:latest")
	native, v1, messages := post("/api/chat", chat("t-echo", "hi", "")), post("/v1/chat/completions", chat("t-echo", "hi", "")), post("/v1/messages", chat("t-echo", "hi", `,"max_tokens":5`))
	say := func(what string, status int, shapes ...string) {
		t.Helper()
		for i, r := range []request{native, v1, messages} {
			if what != "no key" {
				r.header = []string{"X-Api-Key", rig.Key}
			}
			v := ask(t, http.DefaultTransport, g.URL(), r)
			if v.status != status || !strings.Contains(v.body, shapes[i]) || !strings.HasPrefix(v.raw.Get("Content-Type"), "application/json") {
				t.Errorf("%s, %s: %d %v %s", what, r.path, v.status, v.raw, v.body)
			}
		}
	}
	say("no key", 401, `{"error":"`, `"type":"`, `{"type":"error","error":{"type":"authentication_error"`)
	fake.SetBusy(true)
	say("busy", 503, `{"error":"server busy, please try again.  maximum pending requests exceeded"}`, `"type":"api_error"`, `"type":"overloaded_error"`)
	fake.SetBusy(false)
	n.Kill()
	g.WaitNode("n1", "gone")
	say("away", 503, `{"error":"`, `"type":"api_error"`, `{"type":"error","error":{"type":"overloaded_error"`)
}
