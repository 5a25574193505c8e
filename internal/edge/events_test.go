package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

func testAnswer(t testing.TB, r ModelResult) Answer {
	t.Helper()
	req := &Request{Session: "s <é>\u2028", AcceptUncertain: true}
	a, err := NewAnswer("run-1", "", req, Decision{Placement: Edge, Reason: "auto: a node is free"}, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnswer(t *testing.T) {
	t.Parallel()
	results := testResults()
	keys := map[string]string{}
	for name, r := range results {
		a := testAnswer(t, r)
		raw, err := a.JSON()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "events/answer-"+name+".json", raw)
		keys[a.IdempotencyKey] = name
		r.LatencyMS += 1000
		r.Evidence = nil
		if again := testAnswer(t, r); again.IdempotencyKey != a.IdempotencyKey {
			t.Errorf("%s: the key depends on the time", name)
		}
	}
	if len(keys) != len(results) {
		t.Errorf("some share a key: %v", keys)
	}
	r := results["success"]
	job, err := NewAnswer("run-1", "job-1", &Request{}, Decision{}, r)
	if err != nil || job.IdempotencyKey == testAnswer(t, r).IdempotencyKey {
		t.Errorf("the job's own id does not count: %v", err)
	}
	reason := "deadline_exceeded"
	if want, _ := IdempotencyKey("run-1", "failed", &reason, []byte(`{}`)); testAnswer(t, results["unavailable"]).IdempotencyKey != want {
		t.Error("the key of a failure is another")
	}
	if want, _ := IdempotencyKey("job-1", "completed", nil, []byte(`{"output":`+string(r.Output)+`}`)); job.IdempotencyKey != want {
		t.Error("the key of a success is another")
	}
	r.Output = json.RawMessage(`{"a":1,"a":2}`)
	if _, err := NewAnswer("run-1", "", &Request{}, Decision{}, r); err == nil {
		t.Error("an output that is read in two ways has a key")
	}
}

// TestEvents holds the events in both forms.
func TestEvents(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]Form{"events/events.ndjson": NDJSON, "events/events.sse": SSE} {
		var b bytes.Buffer
		e := NewEvents(&b, form, "run-1", "s <é>\u2028")
		for i, err := range []error{
			e.Accepted(Decision{Placement: Edge, Reason: "auto: a node is free"}),
			e.Progress(Queued), e.Progress(Loading), e.Progress(Generating),
			e.Delta("{\"a\":\n\r\u2028"), e.Delta(""),
			e.Result(testAnswer(t, testResults()["success"])),
		} {
			if err != nil {
				t.Errorf("%s: event %d: %v", name, i, err)
			}
		}
		golden(t, name, b.Bytes())
		for i, err := range []error{e.Delta("x"), e.Progress(Loading), e.Accepted(Decision{}), e.Result(Answer{})} {
			if !errors.Is(err, ErrEnded) {
				t.Errorf("%s: after the end, %d: %v", name, i, err)
			}
		}
	}
}

func TestEventsResultIsTheAnswer(t *testing.T) {
	t.Parallel()
	a := testAnswer(t, testResults()["success"])
	var b bytes.Buffer
	if err := NewEvents(&b, NDJSON, a.RunID, a.Session).Result(a); err != nil {
		t.Fatal(err)
	}
	var event, answer map[string]any
	raw, err := a.JSON()
	if err := errors.Join(err, json.Unmarshal(b.Bytes(), &event), json.Unmarshal(raw, &answer)); err != nil {
		t.Fatal(err)
	}
	if event["event"] != "result" || event["seq"] != 0.0 {
		t.Errorf("got %v", event)
	}
	for k := range answer {
		one, _ := json.Marshal(answer[k])
		other, _ := json.Marshal(event[k])
		if !bytes.Equal(one, other) {
			t.Errorf("%s: %s in the answer, %s in the event", k, one, other)
		}
	}
	if len(event) != len(answer)+2 {
		t.Errorf("the event has %d members", len(event))
	}
}

// TestEventsOneResult: an answer and a cancellation race; one result is written, it is the last line, and the numbers have no gap.
func TestEventsOneResult(t *testing.T) {
	t.Parallel()
	for range 50 {
		var b bytes.Buffer
		e := NewEvents(&b, NDJSON, "run-1", "")
		answers := []Answer{testAnswer(t, testResults()["success"]), testAnswer(t, Fail(Origin{}, "canceled"))}
		var wg sync.WaitGroup
		won := make(chan int, 2)
		for i, a := range answers {
			wg.Go(func() {
				for range 5 {
					_ = e.Delta("x") // the other's result may have come first
				}
				if err := e.Result(a); err == nil {
					won <- i
				} else if !errors.Is(err, ErrEnded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d results", len(won))
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		for i, line := range lines {
			var ev struct {
				Event string
				Seq   int
			}
			if err := json.Unmarshal([]byte(line), &ev); err != nil || ev.Seq != i || (ev.Event == "result") != (i == len(lines)-1) {
				t.Fatalf("line %d of %d: %s %v", i, len(lines), line, err)
			}
		}
	}
}

func TestEventsThatCannotBe(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	e := NewEvents(&b, NDJSON, "run-1", "")
	broken := Answer{Result: ModelResult{Status: "maybe"}}
	if err := e.Result(broken); err == nil || errors.Is(err, ErrEnded) || b.Len() > 0 {
		t.Fatalf("got %v, %s", err, b.String())
	}
	if err := e.Result(testAnswer(t, TimedOut(Origin{}, 5))); err != nil {
		t.Errorf("the run has no result: %v", err)
	}
	full := NewEvents(writer(func([]byte) (int, error) { return 0, errors.New("gone") }), SSE, "run-1", "")
	if err := full.Delta("x"); err == nil || err.Error() != "gone" {
		t.Errorf("got %v", err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestFormFor(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]Form{
		"": NDJSON, "*/*": NDJSON, "application/x-ndjson": NDJSON, "text/*": NDJSON,
		"text/event-stream": SSE, "application/json, Text/Event-Stream;q=0.9": SSE,
	} {
		if got := FormFor(accept); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
	if NDJSON.ContentType() != "application/x-ndjson" || SSE.ContentType() != "text/event-stream" {
		t.Error("content types")
	}
}

// BenchmarkTypedRun is all that a typed run adds to the provider's own answer.
func BenchmarkTypedRun(b *testing.B) {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 45)
	body := []byte(`{"operator":{"kind":"schema","model":"tiny","prompt":"Sort it.","schema":{"type":"object","properties":{"zone":{"type":"string","enum":["sofa","kitchen"]},
		"items":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"number"}},"required":["a"],"additionalProperties":false}}},
		"required":["zone"],"additionalProperties":false}},"input":{"mail":"` + text + `"},"placement":"edge"}`)
	reply := []byte(`{"model":"tiny","message":{"role":"assistant","content":"{\"zone\":\"sofa\",\"items\":[{\"a\":\"x\",\"b\":1},{\"a\":\"y\"}]}"},"done":true,"done_reason":"stop"}`)
	for b.Loop() {
		r, err := ParseRequest(body)
		if err != nil {
			b.Fatal(err)
		}
		d := Place(r.Operator.Demand(r.Placement, r.Deadline()), State{Candidates: []Candidate{{LLM, Standard, true, true, 1}}})
		if _, err := r.Operator.ChatBody(Ollama, r.Input, false); err != nil {
			b.Fatal(err)
		}
		tr := NewTranscript(Ollama, false)
		if _, err := tr.Feed(reply); err != nil {
			b.Fatal(err)
		}
		said, err := tr.End()
		if err != nil {
			b.Fatal(err)
		}
		a, err := NewAnswer("run-1", "", r, d, r.Operator.Judge(said, r.Input, Origin{"tiny", "0", time.Second}))
		if err != nil || a.Result.Status != Success {
			b.Fatal(err, a)
		}
		if _, err := a.JSON(); err != nil {
			b.Fatal(err)
		}
	}
}
