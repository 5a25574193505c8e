package edge

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

const minimal = `{"operator":{"kind":"schema","model":"tiny","prompt":"Sort it.","schema":{"type":"object"}}}`

func TestRequestDefaults(t *testing.T) {
	t.Parallel()
	r, err := ParseRequest([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	o := r.Operator
	r.Operator = nil
	if want := (Request{Placement: Auto, DeadlineMS: 120000, OnDisconnect: Cancel}); !reflect.DeepEqual(*r, want) {
		t.Errorf("got  %+v\nwant %+v", *r, want)
	}
	if o.Kind != KindSchema || o.Model != "tiny" || o.Capability != LLM || o.Tier != Standard || o.Workflow != "" || r.Deadline() != 2*time.Minute {
		t.Errorf("got %+v", o)
	}
}

func TestRequestFull(t *testing.T) {
	t.Parallel()
	_, err := ParseRequest([]byte(`{"operator":{"kind":"schema","model":"qwen3:4b","prompt":"p","schema":{},"capability":"ocr","tier":"premium","contract":null},
		"input":{"z":"1","a b":"", "<e>":"\u2028"},"placement":"edge","deadline_ms":600000,"session_id":"é\u0000😀","stream":true,"on_disconnect":"detach","accept_uncertain":true,
		"action":{"tool":"lamp","risk":"R2","requires_approval":true,"authorization":{"operator":"mia","reason":"dark","approved":true,"granted_at":"2026-05-04T03:02:01Z","decision_source":"expiry_default"}}}`))
	if err == nil || !strings.Contains(err.Error(), "operator.contract is not known here") {
		t.Fatalf("a member of another kind: %v", err)
	}
	r, err := ParseRequest([]byte(`{"operator":{"kind":"schema","model":"qwen3:4b","prompt":"p","schema":{},"capability":"ocr","tier":"premium"},
		"input":{"z":"1","a b":"", "<e>":"\u2028"},"placement":"edge","deadline_ms":600000,"session_id":"é\u0000😀","stream":true,"on_disconnect":"detach","accept_uncertain":true,
		"action":{"tool":"lamp","risk":"R2","requires_approval":true,"authorization":{"operator":"mia","reason":"dark","approved":true,"granted_at":"2026-05-04T03:02:01Z","decision_source":"expiry_default"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.Operator.Capability != OCR || r.Operator.Tier != Premium {
		t.Errorf("operator %+v", r.Operator)
	}
	r.Operator = nil
	want := Request{
		Input: Input{{"z", "1"}, {"a b", ""}, {"<e>", "\u2028"}}, Placement: Edge, DeadlineMS: 600000, Session: "é\x00😀", Stream: true, OnDisconnect: Detach, AcceptUncertain: true,
		Action: &Action{Tool: "lamp", Risk: R2, RequiresApproval: true, Authorization: &Authorization{
			Operator: "mia", Reason: "dark", Approved: true, GrantedAt: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), Source: ByExpiry,
		}},
	}
	if !reflect.DeepEqual(*r, want) {
		t.Errorf("got  %+v\nwant %+v", *r, want)
	}
}

func TestRequestOtherKinds(t *testing.T) {
	t.Parallel()
	contract, err := os.ReadFile("testdata/contract/zones.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRequest([]byte(`{"operator":{"kind":"contract","contract":` + string(contract) + `,"model":"qwen3:4b"},"input":{"a":"x"},"placement":"cloud"}`))
	if err != nil || r.Operator.Model != "qwen3:4b" || r.Operator.Workflow != "uw_"+strings.Repeat("a", 24) {
		t.Errorf("got %+v %v", r, err)
	}
	r, err = ParseRequest([]byte(`{"operator":{"kind":"goal","workflow_id":"uw_abc-1","profile":"main"},"input":{"who":"Mia","when":null}}`))
	if err != nil || r.Operator.Workflow != "uw_abc-1" || r.Operator.Profile != "main" || !reflect.DeepEqual(r.Input, Input{{"who", "Mia"}}) {
		t.Errorf("got %+v %v", r, err)
	}
}

func TestRequestRefuses(t *testing.T) {
	t.Parallel()
	with := func(more string) string { return strings.TrimSuffix(minimal, "}") + "," + more + "}" }
	op := func(o string) string { return `{"operator":{` + o + `},"input":{"a":"x"}}` }
	const contract = `"contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"a"}]}`
	tests := []struct{ name, body, want string }{
		{"empty", ``, "the document is empty"},
		{"a list", `[]`, "the document is a list, not an object"},
		{"no operator", `{}`, "operator is required"},
		{"null operator", `{"operator":null}`, "operator is required"},
		{"operator a string", `{"operator":"schema"}`, "operator is a string, not an object"},
		{"no kind", op(`"model":"m"`), "operator.kind is required"},
		{"another kind", op(`"kind":"shell"`), "operator.kind is not one of schema, contract, goal"},
		{"no model", op(`"kind":"schema","prompt":"p","schema":{}`), "operator.model is required"},
		{"no prompt", op(`"kind":"schema","model":"m","schema":{}`), "operator.prompt is required"},
		{"blank prompt", op(`"kind":"schema","model":"m","prompt":" ","schema":{}`), "operator.prompt is empty"},
		{"no schema", op(`"kind":"schema","model":"m","prompt":"p"`), "operator.schema is required"},
		{"a bad schema", op(`"kind":"schema","model":"m","prompt":"p","schema":{"properties":{"zone":{"type":"text"}}}`), `operator.schema.properties.zone.type breaks the rules for "enum" of schemas`},
		{"a schema from elsewhere", op(`"kind":"schema","model":"m","prompt":"p","schema":{"$ref":"http://169.254.169.254/"}`), "operator.schema.$ref is not # or #/…: nothing is loaded from elsewhere"},
		{"a long schema", op(`"kind":"schema","model":"m","prompt":"p","schema":{"title":"` + strings.Repeat("x", maxSchema) + `"}`), "operator.schema is longer than 131072 bytes"},
		{"unknown capability", op(`"kind":"schema","model":"m","prompt":"p","schema":{},"capability":"magic"`), "operator.capability is not one of llm, ocr, object_detection, tts, stt, embeddings"},
		{"unknown tier", op(`"kind":"schema","model":"m","prompt":"p","schema":{},"tier":"best"`), "operator.tier is not one of basic, standard, premium"},
		{"a workflow beside a schema", op(`"kind":"schema","model":"m","prompt":"p","schema":{},"workflow_id":"uw_x"`), "operator.workflow_id is not known here"},
		{"no contract", op(`"kind":"contract","model":"m"`), "operator.contract is required"},
		{"a bad contract", op(`"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"a","mode":"x"}]}`), "operator.contract.fields[0].mode is not one of verbatim, closed_set"},
		{"a long contract", op(`"kind":"contract","model":"m","contract":{"x":"` + strings.Repeat("x", maxContract) + `"}`), "operator.contract is longer than 262144 bytes"},
		{"a contract without a model", op(`"kind":"contract",` + contract), "operator.model is required: the contract is bound to none"},
		{"a contract about nothing", `{"operator":{"kind":"contract","model":"m",` + contract + `}}`, "input is required with a contract"},
		{"a contract in the cloud", strings.Replace(op(`"kind":"contract","model":"m",`+contract), `"input"`, `"placement":"cloud","input"`, 1), "placement is cloud, which runs workflows: a goal, or a contract whose id begins with uw_"},
		{"no workflow", op(`"kind":"goal"`), "operator.workflow_id is required"},
		{"no id of a workflow", op(`"kind":"goal","workflow_id":"wf_x"`), "operator.workflow_id is not the id of a workflow, uw_…"},
		{"a path as a workflow", op(`"kind":"goal","workflow_id":"uw_../../x"`), "operator.workflow_id is not the id of a workflow, uw_…"},
		{"a goal at a node", `{"operator":{"kind":"goal","workflow_id":"uw_x"},"placement":"edge"}`, "placement is edge, where a goal cannot run"},
		{"a schema in the cloud", with(`"placement":"cloud"`), "placement is cloud, which runs workflows: a goal, or a contract whose id begins with uw_"},
		{"unknown placement", with(`"placement":"moon"`), "placement is not one of edge, cloud, auto"},
		{"no deadline", with(`"deadline_ms":0`), "deadline_ms is not a whole number from 1 to 600000"},
		{"a long deadline", with(`"deadline_ms":600001`), "deadline_ms is not a whole number from 1 to 600000"},
		{"a deadline with a fraction", with(`"deadline_ms":1.5`), "deadline_ms is not a whole number from 1 to 600000"},
		{"a deadline as text", with(`"deadline_ms":"1"`), "deadline_ms is a string, not a number"},
		{"a long session", with(`"session_id":"` + strings.Repeat("é", 129) + `"`), "session_id is longer than 256 bytes"},
		{"a session that is a number", with(`"session_id":7`), "session_id is a number, not a string"},
		{"half a pair in the session", with(`"session_id":"\ud83d"`), "the document has half of a surrogate pair"},
		{"stream as text", with(`"stream":"true"`), "stream is a string, not a boolean"},
		{"another policy", with(`"on_disconnect":"kill"`), "on_disconnect is not one of cancel, drain, detach"},
		{"accept_uncertain as a number", with(`"accept_uncertain":1`), "accept_uncertain is a number, not a boolean"},
		{"misspelt", with(`"deadline":5`), "deadline is not known here"},
		{"in another case", with(`"Stream":true`), "Stream is not known here"},
		{"twice", with(`"stream":true,"stream":false`), "stream is given twice"},
		{"input a string", with(`"input":"x"`), "input is a string, not an object"},
		{"a text that is a number", with(`"input":{"a":"x","b":5}`), "input.b is a number, not a string"},
		{"a text without a name", with(`"input":{"":"x"}`), `input[""] is no name: blank, with control characters, or longer than 128`},
		{"a name with a line break below", with(`"input":{"a\u001b[31m":"x"}`), `input["a\x1b[31m"] is no name: blank, with control characters, or longer than 128`},
		{"too many texts", with(`"input":{` + strings.TrimPrefix(manyTexts(maxSources+1), ",") + `}`), "input has more than 64 texts"},
		{"too much text", with(`"input":{"a":"` + strings.Repeat("x", maxInput) + `","b":"x"}`), "input is longer than 1048576 bytes, all texts together"},
		{"an action without a tool", with(`"action":{"risk":"R0"}`), "action.tool is required"},
		{"an action without a risk", with(`"action":{"tool":"x"}`), "action.risk is required"},
		{"another risk", with(`"action":{"tool":"x","risk":"R4"}`), "action.risk is not one of R0, R1, R2, R3"},
		{"an authorization by nobody", with(`"action":{"tool":"x","risk":"R2","authorization":{"reason":"x","approved":true}}`), "action.authorization.operator is required"},
		{"an authorization without a reason", with(`"action":{"tool":"x","risk":"R2","authorization":{"operator":"x","reason":""}}`), "action.authorization.reason is empty"},
		{"approved as text", with(`"action":{"tool":"x","risk":"R2","authorization":{"operator":"x","reason":"x","approved":"yes"}}`), "action.authorization.approved is a string, not a boolean"},
		{"granted some day", with(`"action":{"tool":"x","risk":"R2","authorization":{"operator":"x","reason":"x","granted_at":"yesterday"}}`), "action.authorization.granted_at is not a time of RFC 3339"},
		{"decided by a model", with(`"action":{"tool":"x","risk":"R2","authorization":{"operator":"x","reason":"x","decision_source":"model"}}`), "action.authorization.decision_source is not one of human, expiry_default"},
		{"too deep", with(`"input":` + strings.Repeat(`[`, 80) + strings.Repeat(`]`, 80)), ""},
		{"too long", with(`"x":"` + strings.Repeat("x", MaxRequest) + `"`), "the document is longer than 8388608 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := ParseRequest([]byte(tt.body))
			var fe *FieldError
			if !errors.As(err, &fe) {
				t.Fatalf("got %+v, %v", r, err)
			}
			if tt.want == "" {
				if !strings.HasSuffix(err.Error(), "is nested deeper than 66 levels") {
					t.Errorf("got %v", err)
				}
			} else if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
			if r != nil {
				t.Error("a request and an error")
			}
		})
	}
}

func manyTexts(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"t` + strings.Repeat("x", i) + `":""`)
	}
	return b.String()
}

func FuzzParseRequest(f *testing.F) {
	contract, err := os.ReadFile("testdata/contract/zones.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(minimal))
	f.Add([]byte(`{"operator":{"kind":"contract","contract":` + string(contract) + `},"input":{"a":"x"},"placement":"cloud","deadline_ms":5}`))
	f.Add([]byte(`{"operator":{"kind":"goal","workflow_id":"uw_x"},"input":{"a":null},"action":{"tool":"x","risk":"R3","authorization":{"operator":"x","reason":"x","granted_at":"2026-01-01T00:00:00Z"}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := ParseRequest(body)
		if err != nil {
			var fe *FieldError
			if r != nil || !errors.As(err, &fe) || fe.Problem == "" || len(err.Error()) > 16<<10 {
				t.Errorf("got %+v, %v", r, err)
			}
			return
		}
		if r.DeadlineMS < 1 || r.DeadlineMS > maxDeadlineMS || r.Operator == nil || len(r.Session) > maxSession {
			t.Errorf("got %+v", r)
		}
		wire(t, r.Operator.Judge(Said{Text: `{"present":true}`}, r.Input, r.Operator.Origin()))
		if d := Place(r.Operator.Demand(r.Placement, r.Deadline()), State{CloudReady: true}); d.Code == "bad_request" {
			t.Errorf("taken, and placed nowhere: %+v", d)
		}
		if _, err := r.Operator.ChatBody(Ollama, r.Input, false); err != nil && r.Operator.Kind != KindGoal {
			t.Error(err)
		}
	})
}

// TestGrantedAt: a time is taken as RFC 3339 writes it, and in no other way.
func TestGrantedAt(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, ok := range map[string]bool{
		"2026-01-02T03:04:05Z": true, "2026-01-02t03:04:05z": true, "2026-01-02T04:04:05+01:00": true, "2026-01-02T03:04:05.000Z": true,
		"2026-01-02T03:04:05,0Z": false, "2026-01-02T3:04:05Z": false, "2026-01-02 03:04:05Z": false, "2026-01-02T03:04:05": false,
		"2026-02-30T03:04:05Z": false, "2026-01-02T03:04:05.Z": false, "2026-01-02T03:04:05+0100": false, "2026-01-02T03:04:05Z\\n": false,
	} {
		r, err := ParseRequest([]byte(`{"operator":{"kind":"goal","workflow_id":"uw_x"},"action":{"tool":"x","risk":"R2","authorization":{"operator":"x","reason":"x","granted_at":"` + s + `"}}}`))
		if (err == nil) != ok || ok && !r.Action.Authorization.GrantedAt.Equal(want) {
			t.Errorf("%s: %v", s, err)
		}
	}
}
