package ollama

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

func TestParseTagsOfARealServer(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("testdata/tags-0.32.15.json")
	if err != nil {
		t.Fatal(err)
	}
	models, err := ParseTags(body)
	if err != nil || len(models) != 5 {
		t.Fatalf("%d models, %v", len(models), err)
	}
	for _, m := range models {
		if m.Remote || m.ModifiedAt.IsZero() || len(m.Digest) != 64 {
			t.Errorf("got %+v", m)
		}
	}
	if merged := MergeTags([][]Model{models, models}); len(shown(t, merged)) != 5 {
		t.Errorf("got %s", merged)
	}
}

func TestParsePSOfARealServer(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("testdata/ps-0.32.15.json")
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := ParsePS(body)
	if err != nil || len(loaded) != 1 || loaded[0].Name != "tiny:latest" || loaded[0].ExpiresAt.IsZero() || loaded[0].ContextLength == 0 {
		t.Fatalf("%+v, %v", loaded, err)
	}
}

func TestParseTagsLeavesOutWhatItCannotUse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		models     int
		fails      bool
	}{
		{"none", `{"models":[]}`, 0, false},
		{"null of old versions", `{"models":null}`, 0, false},
		{"not JSON", `<html>`, 0, true},
		{"not a list", `{"models":{}}`, 0, true},
		{"one is bad", `{"models":[{"name":"a"},{"name":"a b"},{"name":"c"}]}`, 2, true},
		{"one is huge", `{"models":[{"name":"a"},{"name":"b","x":"` + strings.Repeat("x", MaxEntry) + `"}]}`, 1, true},
		{"too many", `{"models":[` + strings.Repeat(`{"name":"a"},`, MaxModels) + `{"name":"a"}]}`, MaxModels, true},
		{"too large", `{"models":[]}` + strings.Repeat(" ", maxInventory), 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			models, err := ParseTags([]byte(tt.body))
			if len(models) != tt.models || (err != nil) != tt.fails {
				t.Errorf("%d models, %v", len(models), err)
			}
		})
	}
}

func TestParseModelIsHostile(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"empty": "", "null": "null", "array": "[]", "two objects": `{"name":"a"}{}`, "no name": `{}`, "name is a number": `{"name":1}`,
		"invalid name": `{"name":"../x"}`, "two names": `{"name":"a","name":"b"}`, "two spellings of name": `{"name":"a","NAME":"b"}`,
		"name and model differ": `{"name":"a","model":"b"}`, "bad model": `{"name":"a","model":"a b"}`, "bad date": `{"name":"a","modified_at":"yesterday"}`,
		"not UTF-8": "{\"name\":\"a\",\"x\":\"\xff\"}", "deep": `{"name":"a","x":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `}`,
		"very deep": `{"name":"a","x":` + strings.Repeat("[", MaxEntry/2), "cut off": `{"name":"a"`, "digest is a list": `{"name":"a","digest":[]}`,
		"large": `{"name":"a","x":"` + strings.Repeat("x", MaxEntry) + `"}`,
	} {
		if m, err := ParseModel([]byte(raw)); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
	if _, err := ParseLoaded([]byte(`{"name":"a","size_vram":-1}`)); err == nil {
		t.Error("a negative size was accepted")
	}
	if _, err := ParseModel([]byte(`{"name":"a b"}`)); !errors.As(err, new(*Error)) {
		t.Errorf("the cause is lost: %v", err)
	}
}

func TestRemote(t *testing.T) {
	t.Parallel()
	var models []Model
	for _, raw := range []string{
		`{"name":"here:1"}`, `{"name":"stub","remote_host":"https://ollama.com:443","remote_model":"gpt-oss:20b"}`, `{"model":"x:20b-cloud"}`, `{"name":"tiny-cloud"}`,
	} {
		m, err := ParseModel([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, m)
	}
	kept := DropRemote(models)
	if len(kept) != 2 || kept[0].Name != "here:1" || kept[1].Name != "tiny-cloud" || len(models) != 4 {
		t.Errorf("kept %+v", kept)
	}
}

func FuzzInventoryEntry(f *testing.F) {
	for _, raw := range []string{
		`{"name":"a","modified_at":"2025-01-01T00:00:00Z"}`, `{"name":"a","NAME":"b"}`, `{ "name" : "a" , "x" : "\"[{" }`, `{"model":"x:1-cloud","size_vram":1}`,
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if m, err := ParseModel(raw); err == nil {
			body := MergeTags([][]Model{{m}, {m}})
			if !json.Valid(body) || bytes.ContainsAny(body, "\n\r") {
				t.Fatalf("%q became %q", raw, body)
			}
			again, err := ParseTags(body)
			if err != nil || len(again) != 1 || again[0].Name != m.Name || !bytes.Equal(again[0].Raw, m.Raw) {
				t.Fatalf("%q became %q: %v", raw, body, err)
			}
		}
		if l, err := ParseLoaded(raw); err == nil && !json.Valid(MergePS([][]Loaded{{l}})) {
			t.Fatalf("%q became %q", raw, l.Raw)
		}
	})
}
