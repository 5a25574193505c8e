package edge

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// What a node writes with Events is what a gateway reads with NodeEvents, however the bytes are cut.
func TestNodeEvents(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	e := NewEvents(&b, NDJSON, "run-1", "s <é>\u2028")
	want := []NodeEvent{{State: Loading}, {State: Generating}, {Text: "{\"a\":\n\u2028"}, {Text: ""}, {Text: "1}"}}
	for _, ev := range want {
		write := func() error { return e.Delta(ev.Text) }
		if ev.State != "" {
			write = func() error { return e.Progress(ev.State) }
		}
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	for size := 1; size <= b.Len(); size += 7 {
		r := NewNodeEvents("run-1")
		var got []NodeEvent
		for rest := b.Bytes(); len(rest) > 0; {
			n := min(size, len(rest))
			events, err := r.Feed(rest[:n])
			if err != nil {
				t.Fatal(err)
			}
			got, rest = append(got, events...), rest[n:]
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("in pieces of %d: %+v", size, got)
		}
	}
}

// A node may say how far its own run has come, and nothing else.
func TestNodeEventsRefused(t *testing.T) {
	t.Parallel()
	good := `{"event":"delta","run_id":"run-1","session_id":"","seq":0,"text":"x"}` + "\n"
	for name, line := range map[string]string{
		"no JSON": "x\n", "blank": "\n", "other run": strings.Replace(good, "run-1", "run-2", 1), "accepted": strings.Replace(good, "delta", "accepted", 1),
		"result": strings.Replace(good, "delta", "result", 1), "no event": strings.Replace(good, "delta", "", 1),
		"no such state": `{"event":"progress","run_id":"run-1","state":"done"}` + "\n", "no state": `{"event":"progress","run_id":"run-1"}` + "\n",
		"text of another type": strings.Replace(good, `"x"`, `1`, 1), "long": strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 64<<10)+`"`, 1),
		"long, without an end": strings.Repeat("x", 64<<10+1),
	} {
		r := NewNodeEvents("run-1")
		if _, err := r.Feed([]byte(good)); err != nil {
			t.Fatal(err)
		}
		events, err := r.Feed([]byte(line))
		if err == nil || TransportCode(err) != "bad_provider_response" || events != nil {
			t.Errorf("%s: %v %v", name, events, err)
		}
	}
}

func FuzzNodeEvents(f *testing.F) {
	f.Add([]byte(`{"event":"delta","run_id":"r","session_id":"","seq":0,"text":"x"}`+"\n"), 3)
	f.Add([]byte(`{"event":"progress","run_id":"r","session_id":"","seq":0,"state":"loading"}`+"\n{"), 90)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		cut = max(0, min(cut, len(data)))
		whole, werr := NewNodeEvents("r").Feed(data)
		r := NewNodeEvents("r")
		first, err := r.Feed(data[:cut])
		var second []NodeEvent
		if err == nil {
			second, err = r.Feed(data[cut:])
		}
		if (err == nil) != (werr == nil) && len(data) <= maxNodeEvent {
			t.Fatalf("cut at %d: %v, whole: %v", cut, err, werr)
		}
		if err == nil && werr == nil && !reflect.DeepEqual(append(first, second...), whole) {
			t.Fatalf("cut at %d: %v %v, whole: %v", cut, first, second, whole)
		}
	})
}

// Each gate of the row can stop a run; the first that does is the one that is named.
func TestGatesAdmit(t *testing.T) {
	t.Parallel()
	body := func(action string) *Request {
		r, err := ParseRequest([]byte(strings.TrimSuffix(minimal, "}") + `,"input":{"a":"call 4711"},"action":` + action + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	quiet, risky := body(`{"tool":"lamp","risk":"R1"}`), body(`{"tool":"lamp","risk":"R2"}`)
	lamp := Tools{"lamp"}
	in, no := Gates{Tools: lamp, Redaction: redaction(t, `\d{4}`)}.Admit(quiet)
	pass(t, no)
	if in[0].Text != "call ████" || quiet.Input[0].Text != "call 4711" {
		t.Errorf("%v of %v", in, quiet.Input)
	}
	quiet.Action = nil
	_, no = Gates{}.Admit(quiet)
	pass(t, no)
	_, no = Gates{}.Admit(risky)
	deny(t, no, GateTool, "not on the list")
	_, no = Gates{Tools: lamp}.Admit(risky)
	deny(t, no, GateAction, "R2 needs an approval")
	_, no = Gates{Redaction: redaction(t, `Sort`)}.Admit(quiet)
	deny(t, no, GateRedaction, "own words")
	_, no = Gates{Budget: Budget{Tokens: 10}}.Admit(quiet)
	deny(t, no, GateBudget, "more tokens")
}

// An input that was written is read as it was, in its order.
func TestInputJSON(t *testing.T) {
	t.Parallel()
	want := Input{{"z", "<a & b>\n\u2028\x01\"\\"}, {"a b", ""}, {"貓", "😀"}}
	raw, err := json.Marshal(struct {
		Operator json.RawMessage `json:"operator"`
		Input    Input           `json:"input"`
	}{json.RawMessage(minimal[len(`{"operator":`) : len(minimal)-1]), want})
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRequest(raw)
	if err != nil || !reflect.DeepEqual(r.Input, want) {
		t.Errorf("%v %v", r, err)
	}
}

func TestLoadBody(t *testing.T) {
	t.Parallel()
	b, err := LoadBody("a<b")
	want := `{"model":"a<b","messages":[],"stream":false,"think":false,"options":{"temperature":0,"num_ctx":8192,"num_predict":1024}}`
	if err != nil || string(b) != want {
		t.Errorf("%s %v", b, err)
	}
}
