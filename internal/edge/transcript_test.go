package edge

import (
	"errors"
	"strings"
	"testing"
)

func TestTranscript(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine)
	tests := []struct {
		name     string
		provider Provider
		stream   bool
		body     string
		want     Said
		code     string
	}{
		{"whole", Ollama, false, `{"model":"tiny","message":{"role":"assistant","content":"{}","thinking":"hm"},"done":true,"done_reason":"stop"}`, Said{Text: "{}", Thinking: "hm"}, ""},
		{"whole, on several lines", Ollama, false, "{\n\"message\":{\"content\":\"{}\"},\n\"done\":true}\n", Said{Text: "{}"}, ""},
		{"cut off", Ollama, false, `{"message":{"content":"{"},"done":true,"done_reason":"length"}`, Said{Text: "{", Cut: true}, ""},
		{"stream", Ollama, true, "{\"message\":{\"thinking\":\"h\"}}\n{\"message\":{\"content\":\"{\"}}\r\n\n{\"message\":{\"content\":\"}\"}}\n{\"message\":{},\"done\":true,\"done_reason\":\"length\"}\n",
			Said{Text: "{}", Thinking: "h", Cut: true}, ""},
		{"the last line without a break", Ollama, true, `{"message":{"content":"a"},"done":true}`, Said{Text: "a"}, ""},
		{"no end", Ollama, true, "{\"message\":{\"content\":\"{}\"}}\n", Said{}, "bad_provider_response"},
		{"not done", Ollama, false, `{"message":{"content":"{}"},"done":false}`, Said{}, "bad_provider_response"},
		{"nothing", Ollama, false, "", Said{}, "bad_provider_response"},
		{"a page", Ollama, false, "<html>502</html>", Said{}, "bad_provider_response"},
		{"a list", Ollama, false, "[]", Said{}, "bad_provider_response"},
		{"null", Ollama, false, "null", Said{}, "bad_provider_response"},
		{"content of another type", Ollama, false, `{"message":{"content":{}},"done":true}`, Said{}, "bad_provider_response"},
		{"an error", Ollama, true, "{\"message\":{\"content\":\"{\"}}\n{\"error\":\"out of memory\"}\n", Said{}, "provider_error"},
		{"something after the end", Ollama, true, "{\"message\":{},\"done\":true}\n{\"message\":{\"content\":\"x\"}}\n", Said{}, "bad_provider_response"},
		{"a broken line", Ollama, true, "{\"message\":\n", Said{}, "bad_provider_response"},
		{"a line without an end", Ollama, true, `{"message":{"content":"` + long, Said{}, "bad_provider_response"},
		{"a body without an end", Ollama, false, strings.Repeat(long, 9), Said{}, "bad_provider_response"},
		{"OpenAI, whole", OpenAI, false, "{\"choices\":[{\"message\":{\"content\":\"{}\",\"reasoning_content\":\"hm\"},\"finish_reason\":\"stop\"}],\n\"error\":null}", Said{Text: "{}", Thinking: "hm"}, ""},
		{"OpenAI, null content", OpenAI, false, `{"choices":[{"message":{"content":null,"reasoning":"hm"},"finish_reason":"length"}]}`, Said{Thinking: "hm", Cut: true}, ""},
		{"OpenAI, no choice", OpenAI, false, `{"choices":[]}`, Said{}, "bad_provider_response"},
		{"OpenAI, an error", OpenAI, false, `{"error":{"message":"no"}}`, Said{}, "provider_error"},
		{"OpenAI, stream", OpenAI, true, ": hello\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\nevent: x\ndata:{\"choices\":[{\"delta\":{\"content\":\"{}\"}}]}\r\n\r\n" +
			"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n", Said{Text: "{}", Cut: true}, ""},
		{"OpenAI, stream without an end", OpenAI, true, "data: {\"choices\":[{\"delta\":{\"content\":\"{}\"}}]}\n\n", Said{}, "bad_provider_response"},
		{"OpenAI, something after the end", OpenAI, true, "data: [DONE]\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"late\"}}]}\n\n", Said{}, "bad_provider_response"},
		{"OpenAI, an error in the stream", OpenAI, true, "data: {\"error\":{\"message\":\"no\"}}\n\n", Said{}, "provider_error"},
		{"OpenAI, a broken event", OpenAI, true, "data: {\n\n", Said{}, "bad_provider_response"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, piece := range []int{len(tt.body) + 1, 7} {
				if piece == 7 && len(tt.body) > 1000 {
					piece = 1000
				}
				tr := NewTranscript(tt.provider, tt.stream)
				var deltas strings.Builder
				said, err := feed(tr, tt.body, piece, &deltas)
				if said != tt.want {
					t.Errorf("got %+v, want %+v", said, tt.want)
				}
				switch {
				case tt.code == "" && err != nil, tt.code != "" && (err == nil || TransportCode(err) != tt.code):
					t.Errorf("got %v, want %q", err, tt.code)
				case tt.code == "" && tt.stream && strings.HasSuffix(tt.body, "\n") && deltas.String() != tt.want.Text:
					t.Errorf("deltas %q", deltas.String())
				}
			}
		})
	}
}

func feed(tr *Transcript, body string, piece int, deltas *strings.Builder) (Said, error) {
	for len(body) > 0 {
		n := min(piece, len(body))
		delta, err := tr.Feed([]byte(body[:n]))
		if err != nil {
			return Said{}, err
		}
		deltas.WriteString(delta)
		body = body[n:]
	}
	return tr.End()
}

func FuzzTranscript(f *testing.F) {
	f.Add(true, false, []byte("{\"message\":{\"content\":\"{\"}}\n{\"message\":{},\"done\":true}\n"), 3)
	f.Add(true, true, []byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n"), 5)
	f.Add(false, true, []byte(`{"choices":[{"message":{"content":"x"}}]}`), 1)
	f.Add(false, false, []byte(`{"error":"x"}`), 1)
	f.Fuzz(func(t *testing.T, stream, openAI bool, body []byte, piece int) {
		p := Ollama
		if openAI {
			p = OpenAI
		}
		var whole, pieces strings.Builder
		a, errA := feed(NewTranscript(p, stream), string(body), len(body)+1, &whole)
		b, errB := feed(NewTranscript(p, stream), string(body), max(piece, 1), &pieces)
		if a != b || !errors.Is(errA, errB) && !errors.Is(errB, errA) {
			t.Errorf("whole %+v %v, in pieces %+v %v", a, errA, b, errB)
		}
		if errA == nil && !strings.HasPrefix(a.Text, pieces.String()) {
			t.Errorf("deltas %q of %q", pieces.String(), a.Text)
		}
	})
}
