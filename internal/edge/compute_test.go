package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const computePayloadText = `{"nonce":"n-1 \u00e9","required_anchors":["total","date"],"extractor_prompt":"Find them.","extractor_prompt_id":"uw_p",` +
	`"file_ids":["f1","f2"],"anchors_contract":{"max_value_chars":8,"missing_sentinel":"none"},"strategy":"client_delegated","later":{"x":[1]}}`

// A22: the payload is parsed, the nonce comes back, every anchor is there, and all of them are the sentinel where nothing could be asked.
func TestClientCompute(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"bare":     computePayloadText,
		"an entry": `{"interruptType":"client_compute","interruptId":"i1","status":"pending","payload":` + computePayloadText + `,"more":1}`,
	} {
		c, err := ParseCompute([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		in := Input{{"f2", "Total 12.50 on Monday the 3rd"}}
		r, err := c.Request("m", in, time.Second)
		if err != nil || r.Operator.Workflow != "" || r.Operator.Model != "m" || r.DeadlineMS != 1000 || len(c.Files) != 2 {
			t.Fatalf("%s: %v %+v", name, err, r)
		}
		for said, want := range map[string]string{
			`{"total":"12.50","date":"Monday"}`:        `{"total":"12.50","date":"Monday"}`,
			`{"total":"12.50"}`:                        `{"total":"12.50","date":"none"}`,
			`{"total":"99","date":"Monday the 3rd"}`:   `{"total":"none","date":"none"}`, // invented; longer than it may be
			`{"total":"12.50","date":"","extra":"12"}`: `{"total":"none","date":"none"}`, // invalid
			`no JSON`: `{"total":"none","date":"none"}`,
		} {
			got, err := c.Answer(r.Operator.Judge(Said{Text: said}, in, Origin{ModelID: "m", ModelVersion: "1"}))
			if want = `{"anchors":` + want + `,"nonce":"n-1 é"}`; err != nil || string(got) != want {
				t.Errorf("%s: %s: %s, want %s (%v)", name, said, got, want, err)
			}
		}
		for _, code := range []string{"provider_unreachable", "no_such_model", "internal"} {
			if got, err := c.Answer(Fail(Origin{}, code)); err != nil || string(got) != `{"anchors":{"total":"none","date":"none"},"nonce":"n-1 é"}` {
				t.Errorf("%s: %s %v", code, got, err)
			}
		}
	}
}

func TestClientComputeDefaults(t *testing.T) {
	t.Parallel()
	c, err := ParseCompute([]byte(`{"nonce":"n","required_anchors":["a"],"extractor_prompt":"p","file_ids":null,"anchors_contract":null}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := c.Answer(TimedOut(Origin{}, 1)); string(got) != `{"anchors":{"a":"Not specified"},"nonce":"n"}` {
		t.Errorf("%s", got)
	}
	if r, err := c.Request("m", Input{{"any name", "x"}}, time.Minute); err != nil || r.Operator.Tier != Standard {
		t.Errorf("%v", err)
	}
}

// The files that the step is about have to be here, or nobody answers it.
func TestClientComputeFiles(t *testing.T) {
	t.Parallel()
	c, err := ParseCompute([]byte(computePayloadText))
	if err != nil {
		t.Fatal(err)
	}
	free, err := ParseCompute([]byte(`{"nonce":"n","required_anchors":["a"],"extractor_prompt":"p"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		c     *Compute
		model string
		in    Input
		ms    int
		says  string
	}{
		{c, "m", nil, 1000, "file_ids names 2 files, and none of them is here"},
		{c, "m", Input{{"mail", "x"}}, 1000, "input.mail is not among file_ids"},
		{c, "m", Input{{"f1", "x"}, {"mail", "x"}}, 1000, "input.mail is not among file_ids"},
		{c, "", Input{{"f1", "x"}}, 1000, "model is required"},
		{c, "m", Input{{"f1", "x"}}, 0, "deadline_ms"},
		{c, "m", Input{{"f1", strings.Repeat("x", maxInput+1)}}, 1000, "is longer than"},
		{free, "m", nil, 1000, "there is nothing to look in"},
		{free, "m", make(Input, maxSources+1), 1000, "is not among"},
	} {
		_, err := tc.c.Request(tc.model, tc.in, time.Duration(tc.ms)*time.Millisecond)
		var field *FieldError
		if !errors.As(err, &field) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v, want %s", err, tc.says)
		}
	}
}

func TestClientComputeMistakes(t *testing.T) {
	t.Parallel()
	member := func(name, value string) string {
		m := map[string]json.RawMessage{"nonce": []byte(`"n"`), "required_anchors": []byte(`["a"]`), "extractor_prompt": []byte(`"p"`)}
		if m[name] = json.RawMessage(value); value == "" {
			delete(m, name)
		}
		b, _ := json.Marshal(m)
		return string(b)
	}
	many := `["a0"`
	for i := 1; i <= maxFields; i++ {
		many += fmt.Sprintf(`,"a%d"`, i)
	}
	for text, says := range map[string]string{
		member("nonce", ""): "nonce is required", member("nonce", "7"): "nonce is a number", member("nonce", `" "`): "nonce is empty",
		member("nonce", `"`+strings.Repeat("n", maxNonce+1)+`"`): "nonce is longer",
		member("required_anchors", ""):                           "required_anchors is required", member("required_anchors", `[]`): "has 0 entries",
		member("required_anchors", `["a","a"]`): "required_anchors[1] is given twice", member("required_anchors", `[1]`): "required_anchors[0] is a number",
		member("required_anchors", `["\u0007"]`): "is no name", member("required_anchors", many+"]"): "entries, not 1 to",
		member("extractor_prompt", ""): "extractor_prompt is required", member("file_ids", `"f"`): "file_ids is a string",
		member("strategy", `"server"`): "strategy is not client_delegated", member("anchors_contract", `{"max_valu_chars":1}`): "anchors_contract.max_valu_chars is not known",
		`{"interruptType":"approval","payload":{}}`: "interruptType is not client_compute", `{"interruptType":"client_compute"}`: "payload is required",
		`{"interruptType":"client_compute","status":"answered","payload":{}}`: "status is not pending", `{"interruptType":"client_compute","payload":{}}`: "payload.",
		`[]`: "a list, not an object", ``: "is empty", `{"nonce":"a","nonce":"b"}`: "nonce",
	} {
		if _, err := ParseCompute([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v, want %s", text, err, says)
		}
	}
}

// Whatever the payload, its answer is JSON with its nonce and its anchors, and nothing else.
func FuzzParseCompute(f *testing.F) {
	f.Add([]byte(computePayloadText))
	f.Add([]byte(`{"interruptType":"client_compute","payload":{"nonce":"n","required_anchors":["a","\u2028"],"extractor_prompt":"p"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCompute(data)
		if err != nil {
			var field *FieldError
			if !errors.As(err, &field) {
				t.Fatalf("%T", err)
			}
			return
		}
		raw, err := c.Answer(Fail(Origin{}, codeInternal))
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Anchors map[string]string
			Nonce   string
		}
		if err := json.Unmarshal(raw, &got); err != nil || got.Nonce != c.Nonce || len(got.Anchors) != len(c.contract.fields) {
			t.Fatalf("%v: %s", err, raw)
		}
		for _, fd := range c.contract.fields {
			if got.Anchors[fd.name] != c.contract.sentinel {
				t.Fatalf("%s in %s", fd.name, raw)
			}
		}
	})
}
