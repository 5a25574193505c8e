package cases

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

func itoa(n int) string { return strconv.Itoa(n) }

// two is a gateway with two nodes, n1 and n2, on fakes of their own.
func two(t *testing.T, a, b fakeollama.Options) (*rig.Gateway, *fakeollama.Server, *fakeollama.Server) {
	t.Helper()
	fa, fb := fakeollama.Start(t, a), fakeollama.Start(t, b)
	g := newGateway(t, rig.Options{})
	g.NodeOf("n1", fa.URL(), "--credits", credits)
	g.NodeOf("n2", fb.URL(), "--credits", credits)
	for name, o := range map[string]fakeollama.Options{"n1": a, "n2": b} {
		models := o.Models
		if models == nil {
			models = fakeollama.DefaultModels
		}
		rig.Eventually(t, 10*time.Second, name+" has reported its models", func() bool {
			n := g.Node(name)
			return n != nil && len(n.Targets) > 0 && len(n.Targets[0].Models) == len(models)
		})
	}
	return g, fa, fb
}

// Management is refused by default; with a permission it goes to the node that the request names, never to one by chance.
func TestA28_Pull(t *testing.T) {
	t.Parallel()
	g, a, b := two(t, fakeollama.Options{}, fakeollama.Options{})
	for range 5 {
		if r := (request{File: "A28_pull"}).to(t, site(g)); r.Status != 403 || !r.isJSON() || errorText("/api/", r.Body) == "" {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	}
	for _, rec := range append(a.Log(), b.Log()...) {
		if rec.Path == "/api/pull" {
			t.Errorf("it reached a node: %+v", rec)
		}
	}
}

func TestA29_UnionOfModels(t *testing.T) {
	t.Parallel()
	g, _, _ := two(t, fakeollama.Options{Models: []string{"a:latest", "b:latest"}}, fakeollama.Options{Models: []string{"b:latest", "c:latest"}})
	c := plain(t, g)
	var first []string
	for range 20 {
		_, tags := c.ask("GET", "/api/tags", "")
		_, list := c.ask("GET", "/v1/models", "")
		var native struct{ Models []struct{ Name string } }
		var openai struct{ Data []struct{ ID string } }
		if err := json.Unmarshal([]byte(tags), &native); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(list), &openai); err != nil {
			t.Fatal(err)
		}
		var names, ids []string
		for _, m := range native.Models {
			names = append(names, m.Name)
		}
		for _, m := range openai.Data {
			ids = append(ids, m.ID)
		}
		if first == nil {
			first = names
		}
		if !slices.Equal(names, first) || !slices.Equal(ids, first) || len(first) != 3 {
			t.Fatalf("tags %v, v1 %v, at first %v", names, ids, first)
		}
	}
	if got := slices.Sorted(slices.Values(first)); !slices.Equal(got, []string{"a:latest", "b:latest", "c:latest"}) {
		t.Errorf("%v", first)
	}
}

func TestA30_SameDigest(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("dd", 32)
	g, a, b := two(t, fakeollama.Options{Models: []string{"base-t:latest"}, Digest: digest}, fakeollama.Options{Models: []string{"alias-t:latest"}, Digest: digest})
	c := plain(t, g)
	if _, tags := c.ask("GET", "/api/tags", ""); !strings.Contains(tags, `"base-t:latest"`) || !strings.Contains(tags, `"alias-t:latest"`) {
		t.Errorf("%s", tags)
	}
	for _, name := range []string{"base-t", "alias-t"} {
		got := burst(50, 5, func(int) int { s, _ := c.ask("POST", "/api/chat", chat(name, "")); return s })
		if got[200] != 50 {
			t.Errorf("%s: %v", name, got)
		}
	}
	if a.Execs("base-t") != 50 || b.Execs("alias-t") != 50 || a.Stats().Exec != 50 || b.Stats().Exec != 50 {
		t.Errorf("ran %v and %v", a.Stats().ExecModel, b.Stats().ExecModel)
	}
}

// Unloading reaches every node that has the model loaded: tests/e2e, TestUnloadReachesEveryNodeThatHasItLoaded.
func TestA31_LoadAndUnload(t *testing.T) {
	t.Parallel()
	g, a, b := two(t, fakeollama.Options{Models: []string{"other"}}, fakeollama.Options{})
	for file, reason := range map[string]string{"A31_preload": "load", "A31_unload": "unload"} {
		r := request{File: file}.to(t, site(g))
		if r.Status != 200 || !strings.Contains(r.Body, fmt.Sprintf(`"done_reason":%q`, reason)) {
			t.Errorf("%s: %d %s", file, r.Status, r.Body)
		}
	}
	for _, rec := range a.Log() {
		if rec.Path == "/api/generate" {
			t.Errorf("it went to the node without the model: %+v", rec)
		}
	}
	if n := b.Execs("t-echo"); n < 1 {
		t.Error("no node was asked")
	}
}
