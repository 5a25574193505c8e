package ollama

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

// bigBody is a chat with an image of size bytes, the model at the end.
func bigBody(size int) []byte {
	image := strings.Repeat("iVBORw0KGgoAAAANSUhEUg", size/22)
	return []byte(`{"messages":[{"role":"user","content":"what is this?","images":["` + image + `"]}],"options":{"seed":9007199254740993},"model":"tiny"}`)
}

// bigContext is a generate of size bytes with a long context: many small tokens.
func bigContext(size int) []byte {
	return []byte(`{"prompt":"go on","context":[` + strings.TrimSuffix(strings.Repeat("12345,", size/6), ",") + `],"model":"tiny"}`)
}

func TestDecodeAllocatesLittle(t *testing.T) {
	body := bigBody(10 << 20)
	e := row(t, "chat")
	if n := testing.AllocsPerRun(3, func() { Decode(e, "", "", body) }); n > 20 {
		t.Errorf("%v allocations", n)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	Decode(e, "", "", body)
	runtime.ReadMemStats(&after)
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 64<<10 {
		t.Errorf("%d bytes for a body of %d", spent, len(body))
	}
}

func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		`{"model":"tiny"}`, `{"MODEL":"tiny"}`, `{"model":"a","model":"b"}`, `{"Model":"a","model":"b"}`, `{"model":"tiny"}{}`, "\uFEFF{}",
		`{"model":"ti\u006ey","stream":false,"messages":[ ]}`, "{\"model\":\"\xff\"}", `[]`, ``, `null`, `{"name":"tiny","model":null}`,
		`{"source":"a","destination":"b"}`, `{"model":"tiny","keep_alive":0}`, `{"model":"gpt-oss:20b-cloud"}`, `{"mod\ud800el":"x"}`,
		"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b--\r\n",
	} {
		for i := range catalogue {
			f.Add(uint8(i), "", []byte(body))
		}
	}
	f.Add(uint8(18), "zstd", compress(f, []byte(`{"model":"tiny"}`)))
	f.Fuzz(func(t *testing.T, which uint8, encoding string, body []byte) {
		e := &catalogue[int(which)%len(catalogue)]
		before := bytes.Clone(body)
		r, refused := Decode(e, "multipart/form-data; boundary=b", encoding, body)
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed")
		}
		if refused != nil {
			if r != (Request{}) && (r.Name != (Name{}) || r.Model == "" || ModelKey(r.Model) != foreignMark+r.Model) || refused.Status < 400 || refused.Status > 499 || refused.Code == "" || refused.Message == "" {
				t.Fatalf("%+v with %+v", r, refused)
			}
			return
		}
		if e.ModelIn == ModelNone || e.ModelIn == ModelPath || e.ModelIn == ModelMultipart || encoding == "zstd" {
			return
		}
		// What Ollama's own reader sees.
		var v struct {
			Model       string `json:"model"`
			Name        string `json:"name"`
			Source      string `json:"source"`
			Destination string `json:"destination"`
			Stream      *bool  `json:"stream"`
		}
		err := json.NewDecoder(bytes.NewReader(body)).Decode(&v)
		want := v.Model
		switch {
		case e.ModelIn == ModelCopy:
			want = v.Source
		case e.ModelIn == ModelBodyOrName && want == "":
			want = v.Name
		}
		if r.Model != want || r.Model == "" {
			t.Fatalf("%s: got %q, Ollama reads %q (%v)", body, r.Model, want, err)
		}
		if e.ModelIn == ModelCopy && r.Destination != v.Destination {
			t.Fatalf("%s: got %q, Ollama reads %q", body, r.Destination, v.Destination)
		}
		stream := e.Streams && (v.Stream == nil && e.StreamByDefault || v.Stream != nil && *v.Stream)
		if !r.Load && !r.Unload && r.Stream != stream {
			t.Fatalf("%s: stream %v, Ollama reads %v", body, r.Stream, stream)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	fill := func(head, piece, tail string, size int) []byte {
		return []byte(head + strings.TrimSuffix(strings.Repeat(piece, size/len(piece)), ",") + tail)
	}
	for _, bm := range []struct {
		name, endpoint, encoding string
		body                     []byte
	}{
		{"image/1KB", "chat", "", bigBody(1 << 10)},
		{"image/1MB", "chat", "", bigBody(1 << 20)},
		{"image/32MB", "chat", "", bigBody(32 << 20)},
		{"image/zstd/10MB", "v1.messages", "zstd", compress(b, bigBody(10<<20))},
		{"lines/1MB", "generate", "", fill(`{"model":"tiny","prompt":"`, `a line of a text as people write it, with some more words behind\n`, `"}`, 1<<20)},
		{"unicode/1MB", "generate", "", fill(`{"model":"tiny","prompt":"`, `你好,世界`, `"}`, 1<<20)},
		{"escapes/1MB", "generate", "", fill(`{"model":"tiny","prompt":"`, `\u4f60\u597d`, `"}`, 1<<20)},
		{"messages/1MB", "chat", "", fill(`{"model":"tiny","messages":[`, `{"role": "user", "content": "what is this?"},`, `]}`, 1<<20)},
		{"inputs/1MB", "embed", "", fill(`{"model":"tiny","input":[`, `"a sentence to be turned into numbers",`, `]}`, 1<<20)},
		{"context/1MB", "generate", "", bigContext(1 << 20)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			e := row(b, bm.endpoint)
			b.ReportAllocs()
			b.SetBytes(int64(len(bm.body)))
			for b.Loop() {
				if _, refused := Decode(e, "", bm.encoding, bm.body); refused != nil {
					b.Fatal(refused)
				}
			}
		})
	}
}
