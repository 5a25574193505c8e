package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/rig"
)

const edgeRuns = "/api/v1/edge/runs"

// answerSchema fits what the tiny models say to a text that ends in #json; more are further keywords for its answer.
func answerSchema(more string) string {
	return `{"type":"object","properties":{"answer":{"type":"integer"` + more + `},"unit":{"type":"string"}},"required":["answer","unit"],"additionalProperties":false}`
}

func typedSchema(model, schema, text, more string) string {
	return fmt.Sprintf(`{"operator":{"kind":"schema","model":%q,"prompt":"What is the answer?","schema":%s},"input":{"note":%q}%s}`, model, schema, text, more)
}

func typedContract(field, text, more string) string {
	return fmt.Sprintf(`{"operator":{"kind":"contract","model":"tiny","contract":{"contract_id":"c","version":"2","prompt_template":"Which unit?","fields":[%s]}},"input":{"first":"nothing here","note":%q}%s}`, field, text, more)
}

// typed runs body, and takes the answer, which with events is the last of them.
func typed(t *testing.T, g *rig.Gateway, body string) (a edge.Answer, events []string) {
	t.Helper()
	r, text := g.Do("POST", edgeRuns, body)
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", r.StatusCode, text)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, line := range lines {
		var e struct{ Event, State string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		events = append(events, strings.TrimSpace(e.Event+" "+e.State))
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &a); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return a, events
}

func detail(a edge.Answer) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", a.Result.Status, a.Result.DegradeReason, a.Result.DegradeDetail))
}

// Typed runs against a real Ollama, which holds the model to the schema while it generates.
func TestTypedRuns(t *testing.T) {
	t.Parallel()
	p := commonPair(t)
	const unit = `{"name":"unit"}`
	for _, tc := range []struct {
		name, body   string
		want, output string
		evidence     string
	}{
		{"a schema", typedSchema("tiny", answerSchema(""), "x #json", ""), "success", `{"answer":42,"unit":"none"}`, ""},
		{"another model name", typedSchema("tiny:jinja", answerSchema(""), "x #json", ""), "success", `{"answer":42,"unit":"none"}`, ""},
		{"a closed set", typedContract(`{"name":"unit","mode":"closed_set","allowed_values":["some","none"]}`, "x #json", ""), "success", `{"unit":"none"}`, "unit@-1=none"},
		{"words of the text", typedContract(unit, "a none b #json", ""), "success", `{"unit":"none"}`, "note@2=none"},
		{"words of no text", typedContract(unit, "x #json", ""), "uncertain  no value is grounded", `{"unit":"Not specified"}`, ""},
		// What Ollama cannot enforce while it generates is found afterwards.
		{"a keyword that Ollama ignores", typedSchema("tiny", answerSchema(`,"multipleOf":5`), "x #json", ""), "invalid  schema: answer fails multipleOf", "", ""},
		{"any JSON", typedSchema("tiny", "true", "x #json", ""), "success", `{"answer":42,"unit":"none"}`, ""},
		{"no JSON would do", typedSchema("tiny", "false", "x #json", ""), "invalid  schema: the whole fails false", "", ""},
		{
			"an answer without end", typedSchema("tiny", `{"type":"string"}`, "x #loop", ""),
			"unavailable output_unparseable the answer is not JSON: unexpected end of JSON input (it was cut off at its longest)", "", "",
		},
		{"a model that is not there", typedSchema("absent", answerSchema(""), "x #json", ""), "unavailable error model_missing: no_such_model", "", ""},
		{"a model that does not generate", typedSchema("tiny-embed", answerSchema(""), "x #json", ""), "unavailable error bad_response: provider_refused", "", ""},
	} {
		for _, stream := range []string{"", `,"stream":true`} {
			a, events := typed(t, p.g, strings.TrimSuffix(tc.body, "}")+stream+"}")
			if got := detail(a); got != tc.want {
				t.Errorf("%s%s: %q, not %q", tc.name, stream, got, tc.want)
			}
			if string(a.Result.Output) != tc.output {
				t.Errorf("%s%s: %s", tc.name, stream, a.Result.Output)
			}
			var found []string
			for _, e := range a.Result.Evidence {
				offset := -1
				if e.Offset != nil {
					offset = *e.Offset
				}
				found = append(found, fmt.Sprintf("%s@%d=%s", e.Source, offset, *e.Snippet))
			}
			if got := strings.Join(found, " "); got != tc.evidence {
				t.Errorf("%s%s: %s", tc.name, stream, got)
			}
			if stream == "" {
				continue
			}
			all := strings.Join(events, ", ")
			if !strings.HasPrefix(all, "accepted") || !strings.HasSuffix(all, "result") || strings.Count(all, "result") != 1 ||
				(a.Result.Output != nil) != strings.Contains(all, "progress generating, delta") && a.Result.Status != edge.Invalid && a.Result.DegradeReason != edge.OutputUnparseable {
				t.Errorf("%s: %s", tc.name, all)
			}
		}
	}
}

// A model that is not loaded is loaded, and the caller hears of it; where it runs is decided by what the node says is loaded.
func TestTypedColdStart(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := typedSchema("tiny:slow", answerSchema(""), "x #json", `,"stream":true`)
	cold, events := typed(t, p.g, body)
	if detail(cold) != "success" || !strings.Contains(cold.PlacementReason, "1 ready, 1 free, 0 warm") || !strings.Contains(cold.PlacementReason, "it loads the model first") {
		t.Errorf("%s: %s %v", detail(cold), cold.PlacementReason, events)
	}
	if d := time.Duration(cold.Result.LatencyMS * float64(time.Millisecond)); d > time.Second && !strings.Contains(strings.Join(events, ", "), "progress loading, progress generating") {
		t.Errorf("it took %v, and the caller heard %v", d, events)
	}
	rig.Eventually(t, 20*time.Second, "the gateway knows that the model is loaded", func() bool {
		_, ps := p.g.Do("GET", "/api/ps", "")
		return strings.Contains(ps, "tiny:slow")
	})
	warm, events := typed(t, p.g, body)
	if detail(warm) != "success" || !strings.Contains(warm.PlacementReason, "a node has the model loaded and is free") || strings.Contains(strings.Join(events, ", "), "loading") {
		t.Errorf("%s: %s %v", detail(warm), warm.PlacementReason, events)
	}
	if string(warm.Result.Output) != string(cold.Result.Output) || warm.IdempotencyKey == cold.IdempotencyKey {
		t.Errorf("%+v then %+v", cold, warm)
	}

	// A deadline in the middle of an answer, and after it the model is free for the next run.
	start := time.Now()
	a, _ := typed(t, p.g, typedSchema("tiny:slow", `{"type":"string"}`, "x #loop", `,"deadline_ms":500`))
	if d := time.Since(start); detail(a) != "unavailable deadline_exceeded deadline_ms=500 elapsed" || d > 2*time.Second {
		t.Errorf("%s after %v", detail(a), d)
	}
	if a, _ := typed(t, p.g, body); detail(a) != "success" {
		t.Errorf("after a deadline: %s", detail(a))
	}

	// The model is deleted behind the gateway's back: Ollama's word for that is a result.
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, p.ollama.URL+"/api/delete", strings.NewReader(`{"model":"tiny-tools"}`))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := http.DefaultTransport.RoundTrip(req); err != nil || r.StatusCode != 200 {
		t.Fatalf("%v %v", r, err)
	}
	if a, _ := typed(t, p.g, typedSchema("tiny-tools", answerSchema(""), "x #json", "")); detail(a) != "unavailable error model_missing: no_such_model" {
		t.Errorf("deleted: %s", detail(a))
	}
}

// The same operator at a server of OpenAI's API, whose key is lent for the run.
func TestTypedRunsOfLlama(t *testing.T) {
	t.Parallel()
	needOllama(t)
	l := makeLlama(t)
	for _, stream := range []string{"", `,"stream":true`} {
		if a, _ := typed(t, l.g, typedSchema("tiny", answerSchema(""), "x #json", stream)); detail(a) != "success" || string(a.Result.Output) != `{"answer":42,"unit":"none"}` {
			t.Errorf("%s %s", detail(a), a.Result.Output)
		}
	}
	if a, _ := typed(t, l.g, typedContract(`{"name":"unit"}`, "a none b #json", "")); detail(a) != "success" || string(a.Result.Output) != `{"unit":"none"}` {
		t.Errorf("%s %s", detail(a), a.Result.Output)
	}
	if a, _ := typed(t, l.g, typedSchema("tiny", answerSchema(`,"multipleOf":5`), "x #json", "")); detail(a) != "invalid  schema: answer fails multipleOf" {
		t.Errorf("%s", detail(a))
	}
	l.rekey(t, "sk-wrong")
	if err := l.g.Reload(); err != nil {
		t.Fatal(err)
	}
	if a, _ := typed(t, l.g, typedSchema("tiny", answerSchema(""), "x #json", "")); detail(a) != "unavailable error lease: credential_rejected" {
		t.Errorf("%s", detail(a))
	}
}
