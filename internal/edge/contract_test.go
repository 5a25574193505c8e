package edge

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func contractFile(t testing.TB, name string) *Contract {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "contract", name))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseContract(raw)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGoldenContract: the one contract that is known from its own system, what it derives, and what it makes of a raw answer.
func TestGoldenContract(t *testing.T) {
	t.Parallel()
	c := contractFile(t, "zones.json")
	if c.ID != "uw_"+strings.Repeat("a", 24) || c.Version != "3" || c.ModelBinding != "local-qwen3-4b" {
		t.Errorf("got %+v", c)
	}
	golden(t, "contract/zones.schema.json", c.schema())
	golden(t, "contract/zones.rules.txt", []byte(c.rules()))
	if want := `{"present":"Not specified","zone":"Not specified","evidence_snippet":"Not specified"}`; string(c.Missing()) != want {
		t.Errorf("missing: %s", c.Missing())
	}
	o, err := ContractOperator(c, "")
	if err != nil {
		t.Fatal(err)
	}
	if o.Model != "local-qwen3-4b" || o.Workflow != c.ID || o.Origin() != (Origin{ModelID: "local-qwen3-4b", ModelVersion: "3"}) {
		t.Errorf("operator %+v, %+v", o, o.Origin())
	}
	r := o.Judge(Said{Text: `{"present": true, "zone": " WINDOW "}`}, Input{{"caption", "A cat by the window."}}, o.Origin())
	if r.Status != Success || string(r.Output) != `{"present":"true","zone":"window","evidence_snippet":"Not specified"}` || len(r.Evidence) != 2 {
		t.Errorf("got %+v %s", r, r.Output)
	}
}

func TestContractDefaults(t *testing.T) {
	t.Parallel()
	c := contractFile(t, "wrapped.json")
	if c.ID != "invoice" || c.Version != "1" || c.maxValueChars != 2000 || c.maxTotalChars != 20000 || c.sentinel != "Not specified" {
		t.Errorf("got %+v", c)
	}
	if len(c.fields) != 2 || c.fields[1].mode != verbatim {
		t.Errorf("fields %+v", c.fields)
	}
	if _, err := ContractOperator(c, ""); err == nil {
		t.Error("no model, and no error")
	}
	if o, err := ContractOperator(c, "tiny"); err != nil || o.Model != "tiny" || o.Workflow != "" {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestContractVersion(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{`"7b"`: "7b", `12`: "12", `null`: "1", `""`: "1"} {
		c, err := ParseContract([]byte(`{"contract_id":"c","version":` + raw + `,"prompt_template":"p","fields":[{"name":"a"}]}`))
		if err != nil || c.Version != want {
			t.Errorf("%s: %+v %v", raw, c, err)
		}
	}
}

func TestContractRefuses(t *testing.T) {
	t.Parallel()
	const head = `{"contract_id":"c","prompt_template":"p",`
	fields := func(f string) string { return head + `"fields":[` + f + `]}` }
	caps := func(c string) string { return head + `"anchors_contract":` + c + `,"fields":[{"name":"a"}]}` }
	closedSet := func(v string) string { return fields(`{"name":"a","mode":"closed_set","allowed_values":` + v + `}`) }
	many := func(n int, f string) string { return strings.TrimSuffix(strings.Repeat(f+",", n), ",") }
	tests := []struct{ name, raw, want string }{
		{"no object", `[]`, "the document is a list, not an object"},
		{"no id", `{"prompt_template":"p","fields":[{"name":"a"}]}`, "contract_id is required"},
		{"null id", `{"contract_id":null,"prompt_template":"p","fields":[{"name":"a"}]}`, "contract_id is required"},
		{"id no string", `{"contract_id":7,"prompt_template":"p","fields":[{"name":"a"}]}`, "contract_id is a number, not a string"},
		{"blank id", `{"contract_id":" ","prompt_template":"p","fields":[{"name":"a"}]}`, "contract_id is empty"},
		{"no prompt", `{"contract_id":"c","fields":[{"name":"a"}]}`, "prompt_template is required"},
		{"null prompt", `{"contract_id":"c","prompt_template":null,"fields":[{"name":"a"}]}`, "prompt_template is required"},
		{"long prompt", `{"contract_id":"c","prompt_template":"` + strings.Repeat("x", maxPrompt+1) + `","fields":[{"name":"a"}]}`, "prompt_template is longer than 65536 bytes"},
		{"version a list", head + `"version":[],"fields":[{"name":"a"}]}`, "version is not a string"},
		{"version a fraction", head + `"version":1.5,"fields":[{"name":"a"}]}`, "version is not a string"},
		{"binding no string", head + `"model_binding":{},"fields":[{"name":"a"}]}`, "model_binding is an object, not a string"},
		{"no fields", head + `"x":1}`, "fields is required"},
		{"fields no list", head + `"fields":{"a":{}}}`, "fields is an object, not a list"},
		{"empty fields", fields(``), "fields has 0 entries, not 1 to 128"},
		{"too many fields", fields(many(maxFields+1, `{"name":"a"}`)), "fields has 129 entries, not 1 to 128"},
		{"a field is no object", fields(`"a"`), "fields[0] is a string, not an object"},
		{"no name", fields(`{}`), "fields[0].name is required"},
		{"a name with a bell", fields(`{"name":"a\u0007"}`), "fields[0].name has control characters or more than 128"},
		{"name twice", fields(`{"name":"a"},{"name":"b"},{"name":"a"}`), "fields[2].name is given twice"},
		{"unknown mode", fields(`{"name":"a","mode":"fuzzy"}`), "fields[0].mode is not one of verbatim, closed_set"},
		{"misspelt member", fields(`{"name":"a","allowed_value":["x"]}`), "fields[0].allowed_value is not known here"},
		{"verbatim with values", fields(`{"name":"a","allowed_values":["x"]}`), "fields[0].allowed_values belongs to mode closed_set"},
		{"closed set without", fields(`{"name":"a","mode":"closed_set"}`), "fields[0].allowed_values is required with mode closed_set"},
		{"closed set empty", closedSet(`[]`), "fields[0].allowed_values is required with mode closed_set"},
		{"values a string", closedSet(`"abc"`), "fields[0].allowed_values is a string, not a list"},
		{"an empty value", closedSet(`["x"," \t"]`), "fields[0].allowed_values[1] is empty"},
		{"a null value", closedSet(`["x",null]`), "fields[0].allowed_values[1] is null, not a string"},
		{"a boolean value", closedSet(`[true]`), "fields[0].allowed_values[0] is a boolean, not a string"},
		{"values collide", closedSet(`["New York","x"," new  york"]`), "fields[0].allowed_values[2] reads as an earlier one"},
		{"values collide by folding", closedSet(`["Straße","STRASSE"]`), "fields[0].allowed_values[1] reads as an earlier one"},
		{"collides with the sentinel", closedSet(`["not  SPECIFIED"]`), "fields[0].allowed_values[0] reads as the sentinel for a missing value"},
		{"collides with its own sentinel", head + `"anchors_contract":{"missing_sentinel":"none"},"fields":[{"name":"a","mode":"closed_set","allowed_values":["None"]}]}`,
			"fields[0].allowed_values[0] reads as the sentinel for a missing value"},
		{"a long value", closedSet(`["` + strings.Repeat("x", maxLabel+1) + `"]`), "fields[0].allowed_values[0] is longer than 256 characters"},
		{"too many values", closedSet(`[` + many(maxLabels+1, `"x"`) + `]`), "fields[0].allowed_values has more than 256 entries"},
		{"caps no object", caps(`5`), "anchors_contract is a number, not an object"},
		{"misspelt cap", caps(`{"max_value_char":5}`), "anchors_contract.max_value_char is not known here"},
		{"negative cap", caps(`{"max_value_chars":-1}`), "anchors_contract.max_value_chars is not a whole number from 0 to 200000"},
		{"fractional cap", caps(`{"max_total_chars":1.0}`), "anchors_contract.max_total_chars is not a whole number from 0 to 400000"},
		{"other values", caps(`{"value_type":"number"}`), `anchors_contract.value_type is not "string"`},
		{"a sentinel with an escape", caps(`{"missing_sentinel":"\u001b[2J"}`), "anchors_contract.missing_sentinel is blank, has control characters or more than 128"},
		{"wrapped", `{"grounded_contract":` + fields(`{}`) + `}`, "grounded_contract.fields[0].name is required"},
		{"wrapped, no object", `{"grounded_contract":"x"}`, "grounded_contract is a string, not an object"},
		{"wrapped in itself", `{"grounded_contract":{"grounded_contract":` + fields(`{"name":"a"}`) + `}}`, "grounded_contract.contract_id is required"},
		{"id twice", `{"contract_id":"c","contract_id":"d"}`, "contract_id is given twice"},
		{"too long", head + `"x":"` + strings.Repeat("x", maxContract) + `"}`, "the document is longer than 262144 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := ParseContract([]byte(tt.raw))
			var fe *FieldError
			if !errors.As(err, &fe) || err.Error() != tt.want {
				t.Errorf("got %+v, %v\nwant %s", c, err, tt.want)
			}
		})
	}
}

// TestContractSchemaIsASchema: what is derived has to compile and to admit the contract's own output.
func TestContractSchemaIsASchema(t *testing.T) {
	t.Parallel()
	c, err := ParseContract([]byte(`{"contract_id":"c","prompt_template":"p","fields":[{"name":"a \"b\"\\"},{"name":"<z>","mode":"closed_set","allowed_values":["x\u2028","é<"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	n, refused := readJSON(c.schema(), answerLimits)
	if refused != nil {
		t.Fatal(refused)
	}
	s, refused := newSchema(n)
	if refused != nil {
		t.Fatal(refused)
	}
	for raw, fits := range map[string]bool{
		`{"a \"b\"\\":"anything","<z>":"é<"}`: true, `{"a \"b\"\\":"anything","<z>":"e"}`: false, `{"<z>":"é<"}`: false,
		`{"a \"b\"\\":"","<z>":"é<","more":""}`: false, `{"a \"b\"\\":5,"<z>":"é<"}`: false,
	} {
		n, refused := readJSON([]byte(raw), answerLimits)
		if refused != nil {
			t.Fatal(refused)
		}
		if wrong := s.check(n); (wrong == "") != fits {
			t.Errorf("%s: %q", raw, wrong)
		}
	}
}

func FuzzParseContract(f *testing.F) {
	for _, name := range []string{"zones.json", "wrapped.json"} {
		raw, err := os.ReadFile(filepath.Join("testdata", "contract", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"contract_id":"c","version":3,"prompt_template":"p","fields":[{"name":"a","mode":"closed_set","allowed_values":["İ","ß"]}],"anchors_contract":{"max_value_chars":1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseContract(raw)
		if err != nil {
			if c != nil {
				t.Error("a contract and an error")
			}
			return
		}
		for _, doc := range [][]byte{c.schema(), c.Missing()} {
			if !json.Valid(doc) {
				t.Errorf("derived %q", doc)
			}
		}
		n, refused := readJSON(c.Missing(), answerLimits)
		if refused != nil || len(n.keys) != len(c.fields) {
			t.Errorf("the output has %d members for %d fields: %v", len(n.keys), len(c.fields), refused)
		}
	})
}
