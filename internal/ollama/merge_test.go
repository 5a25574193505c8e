package ollama

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func tag(t testing.TB, name, modified, digest string) Model {
	t.Helper()
	m, err := ParseModel(fmt.Appendf(nil, `{"name":%q,"model":%q,"modified_at":%q,"digest":%q,"new_field":{"z":1e0,"a":[ 1 ]}}`, name, name, modified, digest))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func shown(t testing.TB, body []byte) (names []string) {
	t.Helper()
	var v struct{ Models, Data []struct{ Name, ID string } }
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	for _, m := range append(v.Models, v.Data...) {
		names = append(names, m.Name+m.ID)
	}
	return names
}

func TestMergeTags(t *testing.T) {
	t.Parallel()
	const old, mid, young = "2025-01-01T00:00:00Z", "2025-06-01T00:00:00.5+02:00", "2026-01-01T00:00:00Z"
	tests := []struct {
		name  string
		nodes [][]Model
		want  []string
	}{
		{"nothing", nil, nil},
		{"nodes without models", [][]Model{nil, {}}, nil},
		{"union, newest first", [][]Model{{tag(t, "a:latest", old, "1"), tag(t, "b:latest", mid, "2")}, {tag(t, "b:latest", mid, "2"), tag(t, "c:latest", young, "3")}}, []string{"c:latest", "b:latest", "a:latest"}},
		{"equal age sorts by name", [][]Model{{tag(t, "b:1", old, "")}, {tag(t, "a:1", old, "")}}, []string{"a:1", "b:1"}},
		{"spellings are one model, the newest is shown", [][]Model{{tag(t, "tiny:latest", old, "1")}, {tag(t, "registry.ollama.ai/Library/TINY", young, "1")}}, []string{"registry.ollama.ai/Library/TINY"}},
		{"equal digests are two models", [][]Model{{tag(t, "base-t:latest", old, "dd")}, {tag(t, "alias-t:latest", old, "dd")}}, []string{"alias-t:latest", "base-t:latest"}},
		{"a cloud stub is not the local model", [][]Model{{tag(t, "x:1", old, "")}, {tag(t, "x:1-cloud", old, "")}}, []string{"x:1", "x:1-cloud"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := shown(t, MergeTags(tt.nodes)); !slices.Equal(got, tt.want) {
				t.Errorf("tags: %q", got)
			}
			if got := shown(t, MergeV1Models(tt.nodes)); !slices.Equal(got, tt.want) {
				t.Errorf("v1: %q", got)
			}
		})
	}
}

func TestMergeEmptyIsNotNull(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		string(MergeTags(nil)):     `{"models":[]}`,
		string(MergePS(nil)):       `{"models":[]}`,
		string(MergeV1Models(nil)): `{"object":"list","data":null}`,
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestMergeKeepsBytes(t *testing.T) {
	t.Parallel()
	raw := `{"name":"a:1","model":"a:1","modified_at":"2025-01-01T00:00:00.123456789+02:00","size":9007199254740993,"future":{"é":"\u00e9","n":1.0e+2}}`
	m, err := ParseModel([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(MergeTags([][]Model{{m}})); got != `{"models":[`+raw+`]}` {
		t.Errorf("got %s", got)
	}
	if got := string(MergeV1Models([][]Model{{m}})); got != `{"object":"list","data":[{"id":"a:1","object":"model","created":1735682400,"owned_by":"library"}]}` {
		t.Errorf("got %s", got)
	}
}

func TestMergePS(t *testing.T) {
	t.Parallel()
	row := func(name, expires string, vram int) Loaded {
		l, err := ParseLoaded(fmt.Appendf(nil, `{"name":%q,"expires_at":%q,"size_vram":%d,"context_length":4096}`, name, expires, vram))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, b := row("tiny:latest", "2026-01-01T00:00:00Z", 1), row("TINY", "2026-01-01T00:05:00Z", 2)
	forever := row("other:1", "2319-01-01T00:00:00Z", 0)
	if a.SizeVRAM != 1 || a.ContextLength != 4096 {
		t.Errorf("got %+v", a)
	}
	for _, nodes := range [][][]Loaded{{{a, forever}, {b}}, {{b}, {forever, a}}} {
		got := MergePS(nodes)
		if names := shown(t, got); !slices.Equal(names, []string{"other:1", "TINY"}) {
			t.Errorf("got %q", names)
		}
	}
}

// TestMergeDoesNotDependOnOrder draws fleets of few names and dates, so that they clash.
func TestMergeDoesNotDependOnOrder(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "A:latest", "library/a", "a:2", "hf.co/x/a", "HF.co/X/A:Latest", "b", "b:1-cloud"}
	for range 300 {
		tags, ps := make([][]Model, 1+rng.IntN(5)), make([][]Loaded, 1+rng.IntN(5))
		all := make(map[string]bool)
		for i := range tags {
			for range rng.IntN(6) {
				m := tag(t, names[rng.IntN(len(names))], time.Unix(int64(rng.IntN(3)), 0).UTC().Format(time.RFC3339), fmt.Sprint(rng.IntN(2)))
				tags[i] = append(tags[i], m)
				all[ModelKey(m.Name)] = true
			}
		}
		for i := range ps {
			for range rng.IntN(4) {
				l, err := ParseLoaded(fmt.Appendf(nil, `{"name":%q,"expires_at":%q,"size_vram":%d}`, names[rng.IntN(len(names))], time.Unix(int64(rng.IntN(3)), 0).UTC().Format(time.RFC3339), rng.IntN(3)))
				if err != nil {
					t.Fatal(err)
				}
				ps[i] = append(ps[i], l)
			}
		}
		wantTags, wantV1, wantPS := MergeTags(tags), MergeV1Models(tags), MergePS(ps)
		if got := shown(t, wantTags); len(got) != len(all) {
			t.Fatalf("%d models of %d: %q", len(got), len(all), got)
		}
		for range 5 {
			for _, models := range tags {
				rng.Shuffle(len(models), func(i, j int) { models[i], models[j] = models[j], models[i] })
			}
			rng.Shuffle(len(tags), func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
			rng.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
			if !bytes.Equal(MergeTags(tags), wantTags) || !bytes.Equal(MergeV1Models(tags), wantV1) || !bytes.Equal(MergePS(ps), wantPS) {
				t.Fatalf("another order gives another list: %+v", tags)
			}
		}
	}
}

func TestV1Model(t *testing.T) {
	t.Parallel()
	m := tag(t, "hf.co/Foo/Bar-GGUF:Q4_K_M", "1970-01-01T00:01:00Z", "")
	for requested, want := range map[string]string{
		"tiny":               `{"id":"tiny","object":"model","created":60,"owned_by":"library"}`,
		"hf.co/foo/bar:q4":   `{"id":"hf.co/foo/bar:q4","object":"model","created":60,"owned_by":"foo"}`,
		"not a name, really": `{"id":"not a name, really","object":"model","created":60,"owned_by":"Foo"}`,
	} {
		if got := string(V1Model(m, requested)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func BenchmarkMergeTags(b *testing.B) {
	nodes := make([][]Model, 20)
	for i := range nodes {
		for j := range 50 {
			nodes[i] = append(nodes[i], tag(b, fmt.Sprintf("model-%d:8b", (i+j)%100), "2025-01-01T00:00:00Z", "x"))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		MergeTags(nodes)
	}
}
