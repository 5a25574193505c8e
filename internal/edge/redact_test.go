package edge

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

func operatorOf(t *testing.T, operator string) *Operator {
	t.Helper()
	r, err := ParseRequest([]byte(`{"operator":` + operator + `,"input":{"a":"x"}}`))
	if err != nil {
		t.Fatal(err)
	}
	return r.Operator
}

// TestGateRedactionOwnWords: whatever of an operator is sent to a provider passes the gate, also where JSON spells it with escapes.
func TestGateRedactionOwnWords(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`^secret\d+$`)
	for name, operator := range map[string]string{
		"contract": `{"kind":"contract","model":"secret1","contract":{"contract_id":"c","prompt_template":"secret2",
			"fields":[{"name":"secret3"},{"name":"k","mode":"closed_set","allowed_values":["secret4","secret5"]}],
			"anchors_contract":{"missing_sentinel":"secret6"}}}`,
		"schema": `{"kind":"schema","model":"secret1","prompt":"secret2","schema":{"title":"secret3","description":"secret4","x-note":{"secret5":["secret6"]},
			"properties":{"secret7":{"enum":["secret8",{"secret9":"secret10"}]},"b":{"const":"secret11","default":"secret12","pattern":"secret13"}},
			"$defs":{"secret14":{"examples":["secret15"],"$comment":"secret16"}},"required":["secret17"],"patternProperties":{"secret18":{}}}}`,
	} {
		o := operatorOf(t, operator)
		pass(t, second(redaction(t, `secret0|Answer with|JSON Schema`).Apply(o, nil)))
		for _, p := range []Provider{Ollama, OpenAI} {
			body, err := o.ChatBody(p, Input{{"a", "x"}}, false)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, s := range sent(t, body) {
				for _, w := range regexp.MustCompile(`secret\d+`).FindAllString(s, -1) {
					seen[w] = true
				}
			}
			if want := strings.Count(operator, "secret"); len(seen) != want {
				t.Errorf("%s for %s: %d of %d words are sent", name, p, len(seen), want)
			}
			for w := range seen {
				if !secret.MatchString(w) {
					t.Fatal(w)
				}
				deny(t, second(redaction(t, `^`+w+`$|\b`+w+`\b`).Apply(o, nil)), GateRedaction, "own words")
			}
		}
	}
}

// TestGateRedactionEscapes: a pattern is about what the words say, not how JSON spells them.
func TestGateRedactionEscapes(t *testing.T) {
	t.Parallel()
	escaped := `the \"Kestrel\" \\ file\nof \u004dia`
	for name, operator := range map[string]string{
		"a prompt":        `{"kind":"schema","model":"m","prompt":"` + escaped + `","schema":{}}`,
		"a description":   `{"kind":"schema","model":"m","prompt":"p","schema":{"items":{"description":"` + escaped + `"}}}`,
		"an enum":         `{"kind":"schema","model":"m","prompt":"p","schema":{"enum":["` + escaped + `"]}}`,
		"a member":        `{"kind":"schema","model":"m","prompt":"p","schema":{"properties":{"` + escaped + `":{}}}}`,
		"a label":         `{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"k","mode":"closed_set","allowed_values":["` + escaped + `"]}]}}`,
		"a contract's":    `{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"` + escaped + `","fields":[{"name":"k"}]}}`,
		"a model's name":  `{"kind":"schema","model":"` + escaped + `","prompt":"p","schema":{}}`,
		"a field's name":  `{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"` + strings.ReplaceAll(escaped, `\n`, " ") + `"}]}}`,
		"a sentinel":      `{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"k"}],"anchors_contract":{"missing_sentinel":"` + strings.ReplaceAll(escaped, `\n`, " ") + `"}}}`,
		"a named pattern": `{"kind":"schema","model":"m","prompt":"p","schema":{"patternProperties":{"` + strings.ReplaceAll(escaped, `\\`, "") + `":{}}}}`,
	} {
		o := operatorOf(t, operator)
		for _, p := range []string{`"Kestrel"`, `the "`, `file\sof`, `Mia`} {
			if _, no := redaction(t, p).Apply(o, nil); no == nil {
				t.Errorf("%s: %s was let through", name, p)
			}
		}
	}
	// Numbers and caps are the author's, too.
	for _, operator := range []string{
		`{"kind":"schema","model":"m","prompt":"p","schema":{"enum":[47110815]}}`,
		`{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"k"}],"anchors_contract":{"max_value_chars":4711}}}`,
		`{"kind":"goal","workflow_id":"uw_4711"}`,
	} {
		deny(t, second(redaction(t, `4711`).Apply(operatorOf(t, operator), nil)), GateRedaction, "own words")
	}
}

func second(_ Input, d *Denial) *Denial { return d }

// sent gives every string of a body, the names of members among them.
func sent(t *testing.T, body []byte) []string {
	t.Helper()
	if !json.Valid(body) {
		t.Fatalf("no JSON: %s", body)
	}
	n, refused := readJSON(body, requestLimits)
	if refused != nil {
		t.Fatal(refused)
	}
	return n.appendTexts(nil)
}
