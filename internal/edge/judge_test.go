package edge

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func schemaOperator(t testing.TB, schema string) *Operator {
	t.Helper()
	r, err := ParseRequest([]byte(`{"operator":{"kind":"schema","model":"tiny","prompt":"Sort it.","schema":` + schema + `},"input":{"mail":"The sofa is broken."}}`))
	if err != nil {
		t.Fatal(err)
	}
	return r.Operator
}

func contractOperator(t testing.TB) *Operator {
	t.Helper()
	o, err := ContractOperator(contractFile(t, "zones.json"), "tiny")
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// wire holds every result of a test to what may be on the wire.
func wire(t testing.TB, r ModelResult) {
	t.Helper()
	if _, err := plainJSON(r); err != nil {
		t.Errorf("%+v cannot be encoded: %v", r, err)
	}
}

func TestJudgeSchema(t *testing.T) {
	t.Parallel()
	o := schemaOperator(t, `{"type":["object","null"],"properties":{"zone":{"enum":["sofa","window"]},"n":{"type":"integer","minimum":1}},"required":["zone"],"additionalProperties":false}`)
	tests := []struct {
		name   string
		said   Said
		status Status
		reason DegradeReason
		detail string
		output string
	}{
		{"fits", Said{Text: `{"zone": "sofa" }`}, Success, "", "", `{"zone":"sofa"}`},
		{"white space around", Said{Text: " \n{\"zone\":\"sofa\"}\n"}, Success, "", "", `{"zone":"sofa"}`},
		{"after thoughts", Said{Text: "<think>zone?\n</think>\n{\"zone\":\"sofa\"}"}, Success, "", "", `{"zone":"sofa"}`},
		{"after thoughts, twice", Said{Text: "<think></think><think>a</think>{\"zone\":\"sofa\"}"}, Success, "", "", `{"zone":"sofa"}`},
		{"thoughts kept apart", Said{Text: `{"zone":"sofa"}`, Thinking: "hm"}, Success, "", "", `{"zone":"sofa"}`},
		{"in a fence", Said{Text: "```json\n{\"zone\":\"sofa\"}\n```"}, Success, "", "", `{"zone":"sofa"}`},
		{"in a bare fence", Said{Text: "```\n{\"zone\":\"sofa\"}```"}, Success, "", "", `{"zone":"sofa"}`},
		{"in a fence of one line", Said{Text: "```JSON {\"zone\":\"sofa\"} ```"}, Success, "", "", `{"zone":"sofa"}`},
		{"numbers as they were said", Said{Text: `{"zone":"sofa","n":1.50e1}`}, Success, "", "", `{"zone":"sofa","n":1.50e1}`},
		{"breaks it", Said{Text: `{"zone":"kitchen"}`}, Invalid, "", "schema: zone fails enum", ""},
		{"ignores it", Said{Text: `{"answer":"It is on the sofa."}`}, Invalid, "", "schema: the whole fails additionalProperties", ""},
		{"a list", Said{Text: `[1]`}, Invalid, "", "schema: the whole fails type", ""},
		{"null, which fits", Said{Text: `null`}, Uncertain, "", "the answer is null", ""},
		{"prose", Said{Text: `It is on the sofa.`}, Unavailable, OutputUnparseable, "the answer is not JSON: invalid character 'I' looking for beginning of value", ""},
		{"prose after it", Said{Text: `{"zone":"sofa"} I hope this helps!`}, Unavailable, OutputUnparseable, "the answer is not JSON: invalid character 'I' after top-level value", ""},
		{"prose before it", Said{Text: "Sure:\n```json\n{\"zone\":\"sofa\"}\n```"}, Unavailable, OutputUnparseable, "the answer is not JSON: invalid character 'S' looking for beginning of value", ""},
		{"two values", Said{Text: `{"zone":"sofa"}{"zone":"window"}`}, Unavailable, OutputUnparseable, "the answer is not JSON: invalid character '{' after top-level value", ""},
		{"a member twice", Said{Text: `{"zone":"sofa","zone":"window"}`}, Unavailable, OutputUnparseable, "zone is given twice", ""},
		{"another fence", Said{Text: "```yaml\nzone: sofa\n```"}, Unavailable, OutputUnparseable, "the answer is not JSON: invalid character 'y' looking for beginning of value", ""},
		{"an open fence", Said{Text: "```json\n{\"zone\":\"sofa\"}"}, Unavailable, OutputUnparseable, "the answer is not JSON: invalid character '`' looking for beginning of value", ""},
		{"nothing", Said{}, Unavailable, OutputUnparseable, "the answer is empty", ""},
		{"an empty fence", Said{Text: "``````"}, Unavailable, OutputUnparseable, "the answer is empty", ""},
		{"thoughts alone", Said{Text: "<think>so much to think"}, Unavailable, OutputUnparseable, "the model thought and did not answer", ""},
		{"thoughts alone, kept apart", Said{Text: " ", Thinking: "hm"}, Unavailable, OutputUnparseable, "the model thought and did not answer", ""},
		{"cut off", Said{Text: `{"zone":"so`, Cut: true}, Unavailable, OutputUnparseable, "the answer is not JSON: unexpected end of JSON input (it was cut off at its longest)", ""},
		{"cut off but whole", Said{Text: `{"zone":"sofa"}`, Cut: true}, Success, "", "", `{"zone":"sofa"}`},
		{"a number that nobody can count with", Said{Text: `{"zone":"sofa","n":1e9999999}`}, Unavailable, OutputUnparseable, "n is a number out of range", ""},
		{"too deep", Said{Text: strings.Repeat(`{"zone":`, 100) + `1` + strings.Repeat(`}`, 100)}, Unavailable, OutputUnparseable, "is nested deeper than 64 levels", ""},
		{"too long", Said{Text: `"` + strings.Repeat("x", maxAnswer) + `"`}, Unavailable, OutputUnparseable, "the answer is longer than 1048576 bytes", ""},
		{"not UTF-8", Said{Text: "{\"zone\":\"\xff\"}"}, Unavailable, OutputUnparseable, "the answer is not valid UTF-8", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := o.Judge(tt.said, nil, o.Origin())
			if r.Status != tt.status || r.DegradeReason != tt.reason || !strings.HasSuffix(r.DegradeDetail, tt.detail) || string(r.Output) != tt.output {
				t.Errorf("got %s %s %q %s", r.Status, r.DegradeReason, r.DegradeDetail, r.Output)
			}
			if r.Confidence != nil || r.Evidence != nil {
				t.Errorf("grounded, and nothing had to be: %+v", r)
			}
			wire(t, r)
		})
	}
}

// TestInvalidOnSchema: an answer that breaks the schema is invalid, and nothing of it is left.
func TestInvalidOnSchema(t *testing.T) {
	t.Parallel()
	o := schemaOperator(t, `{"properties":{"iban":{"type":"string","maxLength":5}}}`)
	r := o.Judge(Said{Text: `{"iban":"DE00SECRET"}`}, nil, Origin{"tiny", "0", time.Second})
	if r.Status != Invalid || r.Output != nil || r.DegradeReason != "" || r.Disposition(true) != Fallback {
		t.Errorf("got %+v", r)
	}
	raw, err := plainJSON(r)
	if err != nil || strings.Contains(string(raw), "SECRET") || !strings.Contains(string(raw), `"output":null`) {
		t.Errorf("%s %v", raw, err)
	}
}

func TestJudgeContract(t *testing.T) {
	t.Parallel()
	o := contractOperator(t)
	in := Input{{"caption", "Our cat sleeps by the window."}}
	const none = `{"present":"Not specified","zone":"Not specified","evidence_snippet":"Not specified"}`
	tests := []struct {
		name, text string
		status     Status
		detail     string
		output     string
		confidence float64
	}{
		{"everything holds", `{"present":true,"zone":"Window","evidence_snippet":"by the window"}`, Success, "",
			`{"present":"true","zone":"window","evidence_snippet":"by the window"}`, 1},
		{"in any order", `{"evidence_snippet":"by the window","present":"TRUE","zone":"window"}`, Success, "",
			`{"present":"true","zone":"window","evidence_snippet":"by the window"}`, 1},
		{"one holds", `{"present":"maybe","zone":7,"evidence_snippet":"sleeps by\nthe window"}`, Success, "",
			`{"present":"Not specified","zone":"Not specified","evidence_snippet":"sleeps by\nthe window"}`, 1.0 / 3},
		{"nothing holds", `{"present":"maybe","zone":"garden","evidence_snippet":"under the bed"}`, Uncertain, "no value is grounded", none, 0},
		{"nothing is said", `{}`, Uncertain, "no value is grounded", none, 0},
		{"a field that nobody asked for", `{"present":true,"note":"<b>"}`, Invalid, "schema: note is no field of the contract", "", -1},
		{"a list", `[{"present":true}]`, Unavailable, "the answer is a list, not an object", "", -1},
		{"a bare string", `"window"`, Unavailable, "the answer is a string, not an object", "", -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := o.Judge(Said{Text: tt.text}, in, o.Origin())
			if r.Status != tt.status || r.DegradeDetail != tt.detail || string(r.Output) != tt.output {
				t.Errorf("got %s %q %s", r.Status, r.DegradeDetail, r.Output)
			}
			if got := r.Confidence; (got == nil) != (tt.confidence < 0) || got != nil && *got != tt.confidence {
				t.Errorf("confidence %v, want %v", got, tt.confidence)
			}
			if (r.Status == Unavailable) != (r.DegradeReason == OutputUnparseable) {
				t.Errorf("reason %q", r.DegradeReason)
			}
			wire(t, r)
		})
	}
}

// TestEvidence: who reads source, snippet and offset finds the snippet in the text that they sent.
func TestEvidence(t *testing.T) {
	t.Parallel()
	o := contractOperator(t)
	in := Input{{"title", "Hauskatze"}, {"caption", "貓😀 — our cat sleeps by the window."}}
	r := o.Judge(Said{Text: `{"present":true,"zone":"window","evidence_snippet":"by the window"}`}, in, o.Origin())
	raw, err := json.Marshal(r.Evidence)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"source":"present","snippet":"true","offset":null},{"source":"zone","snippet":"window","offset":null},{"source":"caption","snippet":"by the window","offset":20}]`
	if string(raw) != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
	text := []rune(in[1].Text)
	if got := string(text[20 : 20+len("by the window")]); got != "by the window" {
		t.Errorf("at the offset: %q", got)
	}
}

// TestJudgeHostileLengths: the most fields, the longest text, and values that are in it everywhere and nowhere as words.
func TestJudgeHostileLengths(t *testing.T) {
	t.Parallel()
	var fields, said []string
	for i := range maxFields {
		fields = append(fields, fmt.Sprintf(`{"name":"f%d"}`, i))
		said = append(said, fmt.Sprintf(`"f%d":%q`, i, []string{"a", "aa", strings.Repeat("a", 1990) + "b", strings.Repeat("ab", i+2) + "c"}[i%4]))
	}
	c, err := ParseContract([]byte(`{"contract_id":"c","prompt_template":"p","fields":[` + strings.Join(fields, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	o, err := ContractOperator(c, "tiny")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, text := range []string{strings.Repeat("a", maxInput), strings.Repeat("ab", maxInput/2), strings.Repeat("a ", maxInput/2)} {
		wire(t, o.Judge(Said{Text: `{` + strings.Join(said, ",") + `}`}, Input{{"t", text}}, o.Origin()))
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestJudgeInParallel: one operator, a thousand runs at once.
func TestJudgeInParallel(t *testing.T) {
	t.Parallel()
	contract, withSchema := contractOperator(t), schemaOperator(t, `{"properties":{"n":{"type":"integer"}},"required":["n"]}`)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			text := fmt.Sprintf("run %d by the window", i)
			r := contract.Judge(Said{Text: fmt.Sprintf(`{"evidence_snippet":"run %d"}`, i)}, Input{{"t", text}}, Origin{})
			if !strings.Contains(string(r.Output), fmt.Sprintf(`"run %d"`, i)) {
				t.Errorf("run %d got %s", i, r.Output)
			}
			if r := withSchema.Judge(Said{Text: fmt.Sprintf(`{"n":%d}`, i)}, nil, Origin{}); r.Status != Success {
				t.Errorf("run %d: %+v", i, r)
			}
			if r := withSchema.Judge(Said{Text: `{"n":"x"}`}, nil, Origin{}); r.DegradeDetail != "schema: n fails type" {
				t.Errorf("run %d: %+v", i, r)
			}
		})
	}
	wg.Wait()
}

func TestJudgeGoalIsNotOurs(t *testing.T) {
	t.Parallel()
	r := (&Operator{Kind: KindGoal}).Judge(Said{Text: `{}`}, nil, Origin{})
	if r.Status != Unavailable || r.DegradeReason != OtherError {
		t.Errorf("got %+v", r)
	}
}

// FuzzJudge: whatever a model says, the result is one that may be on the wire, and every verbatim value is in the text.
func FuzzJudge(f *testing.F) {
	for _, s := range []string{
		`{"present":true,"zone":"WINDOW","evidence_snippet":"by the window"}`, "```json\n{}\n```", `<think>x</think>[]`, `{"present":1e400}`,
		"{\"evidence_snippet\":\"by\\u00a0the \\u0007window\"}", `{"zone":0.0,"zone":1}`, `null`, "\xff", `{"evidence_snippet":"o"}`,
	} {
		f.Add(s, "Our cat sleeps by the window.", "")
	}
	contract := contractOperator(f)
	withSchema := schemaOperator(f, `{"type":"object","properties":{"zone":{"enum":["sofa",1]},"n":{"minimum":1,"multipleOf":0.1}},"patternProperties":{"^e":{"pattern":"^[a-z]+$"}}}`)
	f.Fuzz(func(t *testing.T, text, source, thinking string) {
		said := Said{Text: text, Thinking: thinking}
		wire(t, withSchema.Judge(said, nil, withSchema.Origin()))
		r := contract.Judge(said, Input{{"caption", source}}, contract.Origin())
		wire(t, r)
		if r.Output == nil {
			return
		}
		var out map[string]string
		if err := json.Unmarshal(r.Output, &out); err != nil || len(out) != 3 {
			t.Fatalf("%s: %v", r.Output, err)
		}
		if v := out["evidence_snippet"]; v != "Not specified" && !strings.Contains(collapse(source), collapse(v)) {
			t.Errorf("%q is not in %q", v, source)
		}
	})
}
