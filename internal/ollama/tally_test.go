package ollama

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	t.Parallel()
	native := Lookup("POST", "/api/generate").Endpoint
	chat := Lookup("POST", "/v1/chat/completions").Endpoint
	messages := Lookup("POST", "/v1/messages").Endpoint
	responses := Lookup("POST", "/v1/responses").Endpoint
	long := strings.Repeat("12345,", 20000)
	for _, tt := range []struct {
		name string
		e    *Endpoint
		body string
		want Usage
		fail bool
	}{
		{"native stream", native, "{\"response\":\"a\",\"done\":false}\n{\"done\":true,\"prompt_eval_count\":7,\"eval_count\":16}\n", Usage{7, 16}, false},
		{"behind a long context", native, `{"done":true,"context":[` + long + `1],"prompt_eval_count":7,"eval_count":16}` + "\n", Usage{7, 16}, false},
		{"the model says the words", native, `{"response":"\"eval_count\":99","done":false}` + "\n" + `{"done":true,"eval_count":3}` + "\n", Usage{0, 3}, false},
		{"native error line", native, "{\"response\":\"a\"}\n{\"error\":\"an error was encountered\"}\n", Usage{}, true},
		{"an answer about errors", native, `{"response":"{\"error\":1}","done":true}` + "\n", Usage{}, false},
		{"openai usage chunk", chat, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n", Usage{5, 6}, false},
		{"openai error event", chat, "data: {\"choices\":[]}\n\ndata: {\"error\":{\"message\":\"x\"}}\n\n", Usage{}, true},
		{"anthropic", messages, "event: message_start\ndata: {\"usage\":{\"input_tokens\":1,\"output_tokens\":0}}\n\nevent: message_delta\ndata: {\"usage\":{\"input_tokens\":8,\"output_tokens\":9}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", Usage{8, 9}, false},
		{"anthropic error", messages, "event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n", Usage{}, true},
		{"responses", responses, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":3}}}\n\n", Usage{2, 3}, false},
		{"a number that does not fit", native, `{"eval_count":99999999999999999999999}`, Usage{}, false},
		{"nothing", native, "", Usage{}, false},
	} {
		for _, step := range []int{1, 7, 4096, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, step), func(t *testing.T) {
				t.Parallel()
				tally := NewTally(tt.e)
				for p := []byte(tt.body); len(p) > 0; p = p[min(step, len(p)):] {
					tally.Add(p[:min(step, len(p))])
				}
				if got := tally.Usage(); got != tt.want || tally.Broke() != tt.fail {
					t.Fatalf("%+v, broke %v", got, tally.Broke())
				}
				if cap(tally.tail) > 4*tallyTail {
					t.Fatalf("keeps %d bytes", cap(tally.tail))
				}
			})
		}
	}
	var none *Tally = NewTally(Lookup("GET", "/api/tags").Endpoint)
	none.Add([]byte("x"))
	if none.Usage() != (Usage{}) || none.Broke() {
		t.Fatal("an endpoint without counters counts")
	}
}

func TestTallyWhole(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("1,", 9<<10)
	for _, c := range []struct {
		endpoint, body string
		want           bool
	}{
		{"chat", `{"message":{"content":"a"},"done":false}` + "\n", false},
		{"chat", `{"message":{"content":"a"},"done":false}` + "\n" + `{"done":true,"eval_count":3}` + "\n", true},
		{"chat", `{"message":{"content":"a"},"done":false}` + "\n" + `{"done":true,"eval_count":3}`, false},
		{"chat", `{"message":{"content":"\"done\":true"},"done":false}` + "\n", false},
		{"chat", `{"done":true}` + "\n" + `{"error":"x"}` + "\n", false},
		{"generate", `{"done":true,"context":[` + long + `1],"total_duration":5}` + "\n", true},
		{"v1.chat.completions", "data: {\"choices\":[]}\n\n", false},
		{"v1.chat.completions", "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", true},
		{"v1.messages", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true},
		{"v1.messages", "event: message_delta\ndata: {\"type\":\"message_delta\"}\n\n", false},
		{"v1.responses", "event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n", true},
		{"tags", "x\n", false},
	} {
		for i := range catalogue {
			if catalogue[i].Name != c.endpoint {
				continue
			}
			tally := NewTally(&catalogue[i])
			tally.Add([]byte(c.body[:len(c.body)/2]))
			tally.Add([]byte(c.body[len(c.body)/2:]))
			if tally.Whole() != c.want {
				t.Errorf("%s %.60q: %v", c.endpoint, c.body, !c.want)
			}
		}
	}
}

func BenchmarkTally(b *testing.B) {
	e := Lookup("POST", "/api/chat").Endpoint
	line := append(bytes.Repeat([]byte("x"), 120), '\n')
	b.ReportAllocs()
	tally := NewTally(e)
	for b.Loop() {
		tally.Add(line)
	}
}
