package ollama

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
)

// MergeTags is the /api/tags of all nodes as one: each model once, whatever spellings
// nodes use, newest first. Of several entries the newest counts, then the one whose
// digest sorts first; its bytes are kept as they are. An entry of Ollama's counts
// before one of another provider, which knows less. The result does not depend on
// the order of nodes, so that a list never flickers from one call to the next. Cloud
// stubs are not left out: see [DropRemote].
func MergeTags(nodes [][]Model) []byte {
	merged := mergeModels(nodes)
	raws := make([]json.RawMessage, len(merged))
	for i, m := range merged {
		raws[i] = m.value.Raw
	}
	return list(`{"models":[`, raws, `]}`)
}

// MergePS is the /api/ps of all nodes as one. Clients key its rows by name, so a model
// that several nodes have loaded is one row, the one that stays longest; the row that
// stays longest is first.
func MergePS(nodes [][]Loaded) []byte {
	merged := merge(nodes, func(l Loaded) string { return l.Name }, func(a, b Loaded) int {
		return cmp.Or(b.ExpiresAt.Compare(a.ExpiresAt), bytes.Compare(a.Raw, b.Raw))
	}, func(a, b Loaded) int {
		return b.ExpiresAt.Compare(a.ExpiresAt)
	})
	raws := make([]json.RawMessage, len(merged))
	for i, l := range merged {
		raws[i] = l.value.Raw
	}
	return list(`{"models":[`, raws, `]}`)
}

// MergeV1Models is the /v1/models of all nodes: the models of [MergeTags] in the same
// order. Without any, data is null, as Ollama has it.
func MergeV1Models(nodes [][]Model) []byte {
	merged := mergeModels(nodes)
	if len(merged) == 0 {
		return []byte(`{"object":"list","data":null}`)
	}
	raws := make([]json.RawMessage, len(merged))
	for i, m := range merged {
		raws[i] = V1Model(m.value, m.value.Name)
	}
	return list(`{"object":"list","data":[`, raws, `]}`)
}

// V1Model is the answer to /v1/models/X, with X as it was requested. Of a provider
// that is not Ollama it is what that one says.
func V1Model(m Model, requested string) []byte {
	v := v1Model{ID: requested, Object: "model", Created: m.ModifiedAt.Unix(), OwnedBy: m.OwnedBy}
	if m.OpenAI {
		v.ID, v.Created = m.Name, max(0, v.Created)
		return encode(v)
	}
	name, err := ParseName(requested)
	if err != nil {
		name, _ = ParseName(m.Name)
	}
	v.OwnedBy = name.Namespace
	return encode(v)
}

type v1Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // Unix seconds
	OwnedBy string `json:"owned_by"`
}

// Prefer says which of two entries for one model counts: negative for a.
func Prefer(a, b Model) int {
	switch {
	case a.OpenAI != b.OpenAI && b.OpenAI:
		return -1
	case a.OpenAI != b.OpenAI:
		return 1
	}
	return cmp.Or(newest(a, b), cmp.Compare(a.Digest, b.Digest), bytes.Compare(a.Raw, b.Raw))
}

func newest(a, b Model) int { return b.ModifiedAt.Compare(a.ModifiedAt) }

func mergeModels(nodes [][]Model) []keyed[Model] {
	return merge(nodes, func(m Model) string { return m.Name }, Prefer, newest)
}

type keyed[T any] struct {
	key   string
	value T
}

// merge keeps, of the entries that name the same model, the one that prefer puts
// first, and sorts what is kept by order, then by name.
func merge[T any](nodes [][]T, name func(T) string, prefer, order func(a, b T) int) []keyed[T] {
	at := make(map[string]int)
	var merged []keyed[T]
	for _, entries := range nodes {
		for _, entry := range entries {
			key := ModelKey(name(entry))
			i, ok := at[key]
			switch {
			case !ok:
				at[key] = len(merged)
				merged = append(merged, keyed[T]{key, entry})
			case prefer(entry, merged[i].value) < 0:
				merged[i].value = entry
			}
		}
	}
	slices.SortFunc(merged, func(a, b keyed[T]) int {
		return cmp.Or(order(a.value, b.value), cmp.Compare(a.key, b.key))
	})
	return merged
}

func list(open string, items []json.RawMessage, end string) []byte {
	size := len(open) + len(end)
	for _, item := range items {
		size += len(item) + 1
	}
	b := append(make([]byte, 0, size), open...)
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, item...)
	}
	return append(b, end...)
}
