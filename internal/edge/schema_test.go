package edge

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func compile(t testing.TB, raw string) (*schema, *FieldError) {
	t.Helper()
	n, refused := readJSON([]byte(raw), limits{bytes: maxSchema, depth: 64, values: 60000})
	if refused != nil {
		return nil, refused
	}
	return newSchema(n)
}

func mustCompile(t testing.TB, raw string) *schema {
	t.Helper()
	s, refused := compile(t, raw)
	if refused != nil {
		t.Fatalf("%.200s: %v", raw, refused)
	}
	return s
}

func checkText(t testing.TB, s *schema, raw string) string {
	t.Helper()
	n, refused := readJSON([]byte(raw), answerLimits)
	if refused != nil {
		t.Fatalf("%.100s: %v", raw, refused)
	}
	return s.check(n)
}

func TestSchemaChecks(t *testing.T) {
	t.Parallel()
	const tree = `{"$id":"convilyn://schemas/tree/v1","$schema":"https://json-schema.org/draft/2020-12/schema#","$ref":"#/$defs/node",
		"$defs":{"node":{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["name"],"additionalProperties":false}}}`
	tests := []struct{ name, schema, answer, wrong string }{
		{"anything", `true`, `{"a":1}`, ""},
		{"nothing", `false`, `1`, "the whole fails false"},
		{"empty", `{}`, `null`, ""},
		{"type", `{"type":"object"}`, `[]`, "the whole fails type"},
		{"a member", `{"properties":{"a":{"type":"integer"}}}`, `{"a":1.5}`, "a fails type"},
		{"an integer as a float", `{"properties":{"a":{"type":"integer"}}}`, `{"a":2.0}`, ""},
		{"a large integer", `{"const":9007199254740993}`, `9007199254740992`, "the whole fails const"},
		{"an entry", `{"items":{"properties":{"zone":{"enum":["a","b"]}}}}`, `[{"zone":"a"},{"zone":"c"}]`, "[1].zone fails enum"},
		{"missing", `{"required":["a"]}`, `{}`, "the whole fails required"},
		{"too many members", `{"additionalProperties":false}`, `{"x y":1}`, "the whole fails additionalProperties"},
		{"pattern", `{"properties":{"a":{"pattern":"^[A-Z]{2}[0-9]{4}$"}}}`, `{"a":"XX12345"}`, "a fails pattern"},
		{"pattern fits", `{"properties":{"a":{"pattern":"^\\p{L}+$"}}}`, `{"a":"éé"}`, ""},
		{"length in code points", `{"maxLength":2}`, `"éé"`, ""},
		{"a name", `{"propertyNames":{"maxLength":2}}`, `{"abc":1}`, "a member's name fails propertyNames"},
		{"recursive", tree, `{"name":"a","children":[{"name":"b","children":[{"name":"c"}]}]}`, ""},
		{"recursive, wrong deep down", tree, `{"name":"a","children":[{"name":"b","children":[{"name":5}]}]}`, "children[0].children[0].name fails type"},
		{"the first of many", `{"properties":{"b":{"type":"string"},"a":{"type":"string"},"c":{"type":"string"}}}`, `{"c":1,"b":1,"a":1}`, "a fails type"},
		{"of alternatives", `{"anyOf":[{"type":"string"},{"type":"null"}]}`, `5`, "the whole fails type"},
		{"uneven", `{"unevaluatedProperties":false,"allOf":[{"properties":{"a":true}}]}`, `{"a":1,"b":2}`, "b fails false"},
		{"unique", `{"uniqueItems":true}`, `[1,2,1.0]`, "the whole fails uniqueItems"},
		{"format is a note", `{"format":"date"}`, `"yesterday"`, ""},
		{"a name of its own", `{"x-order":[1],"type":"string"}`, `"a"`, ""},
		{"dependent", `{"dependentRequired":{"a":["b"]},"dependentSchemas":{"a":{"maxProperties":1}}}`, `{"a":1,"c":2}`, "the whole fails dependentRequired"},
		{"if", `{"if":{"properties":{"k":{"const":1}}},"then":{"required":["a"]},"else":{"required":["b"]}}`, `{"k":2}`, "the whole fails required"},
		{"prefix", `{"prefixItems":[{"type":"string"},{"type":"number"}],"items":false}`, `["a",1,2]`, "[2] fails false"},
		{"contains", `{"contains":{"const":1},"maxContains":1}`, `[1,1]`, "the whole fails maxContains"},
		{"a reference through an escaped name", `{"$defs":{"a/b~c":{"type":"string"}},"$ref":"#/$defs/a~1b~0c"}`, `5`, "the whole fails type"},
		{"a huge divisor", `{"multipleOf":1e-400}`, `3`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := mustCompile(t, tt.schema)
			for range 5 { // the library visits members in any order
				if wrong := checkText(t, s, tt.answer); wrong != tt.wrong {
					t.Fatalf("got %q, want %q", wrong, tt.wrong)
				}
			}
		})
	}
}

func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	chain := func(n int) string {
		return strings.Repeat(`{"allOf":[`, n) + `true` + strings.Repeat(`]}`, n)
	}
	var laughs strings.Builder // each of thirty applies the next twice
	laughs.WriteString(`{"$ref":"#/$defs/n0","$defs":{"n30":{"type":"string"}`)
	for i := range 30 {
		fmt.Fprintf(&laughs, `,"n%d":{"allOf":[{"$ref":"#/$defs/n%d"},{"$ref":"#/$defs/n%d"}]}`, i, i+1, i+1)
	}
	laughs.WriteString(`}}`)
	tests := []struct{ name, schema, want string }{
		{"no schema", `5`, "the document is a number, not a schema"},
		{"misspelt", `{"properties":{"a":{"typ":"string"}}}`, "properties.a.typ is no keyword of JSON Schema 2020-12"},
		{"an older keyword", `{"definitions":{}}`, "definitions is no keyword of JSON Schema 2020-12"},
		{"another dialect", `{"$schema":"http://json-schema.org/draft-07/schema#"}`, `$schema is not "https://json-schema.org/draft/2020-12/schema"`},
		{"dialect of a part", `{"properties":{"a":{"$schema":"urn:x"}}}`, `properties.a.$schema is not "https://json-schema.org/draft/2020-12/schema"`},
		{"from the network", `{"$ref":"https://example.com/s.json"}`, "$ref is not # or #/…: nothing is loaded from elsewhere"},
		{"from the disk", `{"items":{"$ref":"file:///etc/passwd"}}`, "items.$ref is not # or #/…: nothing is loaded from elsewhere"},
		{"relative", `{"$id":"file:///etc/","$ref":"passwd"}`, "$ref is not # or #/…: nothing is loaded from elsewhere"},
		{"the dialect itself", `{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, "$ref is not # or #/…: nothing is loaded from elsewhere"},
		{"a reference to nowhere", `{"properties":{"a":{"$ref":"#/$defs/b"}}}`, "properties.a.$ref names a place without a schema"},
		{"a reference to no schema", `{"required":["a"],"$ref":"#/required"}`, "$ref names a place without a schema"},
		{"by anchor", `{"$ref":"#a"}`, "$ref is not # or #/…: nothing is loaded from elsewhere"},
		{"escaped reference", `{"$ref":"#/%24defs/a"}`, "$ref is not # or #/…: nothing is loaded from elsewhere"},
		{"reference no string", `{"$ref":5}`, "$ref is a number, not a string"},
		{"an anchor", `{"$anchor":"a"}`, "$anchor is not supported: schemas are one document, and references are #/… in it"},
		{"dynamic", `{"$dynamicRef":"#a"}`, "$dynamicRef is not supported: schemas are one document, and references are #/… in it"},
		{"an id within", `{"items":{"$id":"urn:x"}}`, "items.$id is not supported: schemas are one document, and references are #/… in it"},
		{"an id no string", `{"$id":5}`, "$id is not supported: schemas are one document, and references are #/… in it"},
		{"without an end", `{"$ref":"#"}`, "the document applies itself to the same value, without an end"},
		{"without an end, by two", `{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"not":{"$ref":"#/$defs/a"}}}}`, "$defs.a applies itself to the same value, without an end"},
		{"look-ahead", `{"pattern":"(?=a)b"}`, "pattern is no regular expression that runs in linear time: invalid or unsupported Perl syntax"},
		{"a reference back", `{"properties":{"a":{"pattern":"(a)\\1"}}}`, "properties.a.pattern is no regular expression that runs in linear time: invalid escape sequence"},
		{"pattern of names", `{"patternProperties":{"(":true}}`, `patternProperties["("] is no regular expression that runs in linear time: missing closing )`},
		{"pattern no string", `{"pattern":[]}`, "pattern is a list, not a string"},
		{"a long pattern", `{"pattern":"` + strings.Repeat("a", maxPattern+1) + `"}`, "pattern is longer than 1024 bytes"},
		{"an unrolled pattern", `{"pattern":"(abcdef){1000}"}`, "pattern is too large a regular expression, repetitions unrolled"},
		{"many patterns", `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"pattern":"(abc){900}"},`, 10), ",") + `]}`, "allOf[4].pattern is one regular expression too many: together they are too large"},
		{"a bound that is no int", `{"maxLength":1.5}`, "maxLength is not a whole number from 0 to 1073741824"},
		{"a bound beyond", `{"minItems":1e300}`, "minItems is not a whole number from 0 to 1073741824"},
		{"a negative bound", `{"items":{"minItems":-1}}`, "items.minItems is not a whole number from 0 to 1073741824"},
		{"type unknown", `{"properties":{"a":{"type":"text"}}}`, `properties.a.type breaks the rules for "enum" of schemas`},
		{"enum no list", `{"enum":"a"}`, `enum breaks the rules for "type" of schemas`},
		{"dividing by zero", `{"multipleOf":0}`, `multipleOf breaks the rules for "exclusiveMinimum" of schemas`},
		{"required no list", `{"items":{"required":"a"}}`, `items.required breaks the rules for "type" of schemas`},
		{"properties no object", `{"properties":[]}`, "properties is a list, not an object"},
		{"allOf no list", `{"allOf":{}}`, "allOf is an object, not a list"},
		{"allOf empty", `{"allOf":[]}`, `allOf breaks the rules for "minItems" of schemas`},
		{"an entry no schema", `{"anyOf":[true,"x"]}`, "anyOf[1] is a string, not a schema"},
		{"items a list", `{"items":[{}]}`, "items is a list, not a schema"},
		{"exponential", laughs.String(), "the document applies too many schemas to one value"},
		{"a long row", `{"$defs":{"a":` + chain(25) + `,"b":{"$ref":"#/$defs/a/allOf/0"}},"allOf":[` + chain(28) + `]}`, ""},
		{"too many", `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{},`, maxSchemas), ",") + `]}`, "allOf[999] has more than 1000 schemas in it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, refused := compile(t, tt.schema)
			switch {
			case tt.want == "" && refused != nil, tt.want != "" && refused == nil:
				t.Fatalf("got %v, want %q", refused, tt.want)
			case refused != nil && refused.Error() != tt.want:
				t.Errorf("got  %s\nwant %s", refused, tt.want)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestSchemaLongRow: schemas that apply one another to one value, further than lists nest in JSON, by references.
func TestSchemaLongRow(t *testing.T) {
	t.Parallel()
	row := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/n0","$defs":{"end":true`)
		for i := range n {
			next := fmt.Sprintf("n%d", i+1)
			if i == n-1 {
				next = "end"
			}
			fmt.Fprintf(&b, `,"n%d":{"$ref":"#/$defs/%s"}`, i, next)
		}
		return b.String() + `}}`
	}
	if _, refused := compile(t, row(maxInPlace-2)); refused != nil {
		t.Error(refused)
	}
	if _, refused := compile(t, row(maxInPlace)); refused == nil || !strings.Contains(refused.Problem, "in a row") {
		t.Errorf("got %v", refused)
	}
}

// TestSchemaCostIsBounded: small schemas whose check would take ages on a small answer are refused, or their answers are.
func TestSchemaCostIsBounded(t *testing.T) {
	t.Parallel()
	deep := func(n int, name string) string {
		return strings.Repeat(`{"`+name+`":`, n) + `0` + strings.Repeat(`}`, n)
	}
	numbers := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, ",%d", i)
		}
		return `[` + strings.TrimPrefix(b.String(), ",") + `]`
	}
	tests := []struct{ name, schema, small, large string }{
		{"doubling by alternatives", `{"anyOf":[{"type":"string"},{"properties":{"a":{"$ref":"#"}},"required":["a"]},{"properties":{"a":{"$ref":"#"}},"minProperties":1}]}`,
			deep(3, "a"), deep(60, "a")},
		{"doubling by patterns, inside not", `{"not":{"patternProperties":{"a":{"$ref":"#/$defs/n"},"^a":{"$ref":"#/$defs/n"}}},
			"$defs":{"n":{"type":["object","string"],"patternProperties":{"a":{"$ref":"#/$defs/n"},"^a":{"$ref":"#/$defs/n"}}}}}`, deep(3, "a"), deep(60, "a")},
		{"doubling by entries", `{"prefixItems":[{"$ref":"#"}],"contains":{"$ref":"#"},"type":"array"}`, `[[["x"]]]`, strings.Repeat("[", 60) + `0` + strings.Repeat("]", 60)},
		{"a long enum for a long list", `{"items":{"enum":` + numbers(5000) + `}}`, `[4999,"x"]`, `[` + strings.TrimSuffix(strings.Repeat(`4998,`, 15000), ",") + `]`},
		{"a regular expression for a long text", `{"items":{"pattern":"(x*y?){1,400}z"}}`, `["xyz"]`, `["` + strings.Repeat("xy", 100000) + `"]`},
		{"unique", `{"uniqueItems":true,"items":{"uniqueItems":true}}`, `[[1],[2]]`, numbers(19000)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := mustCompile(t, tt.schema)
			start := time.Now()
			if wrong := checkText(t, s, tt.small); strings.Contains(wrong, "too large") {
				t.Errorf("small: %s", wrong)
			}
			if wrong := checkText(t, s, tt.large); !strings.Contains(wrong, "too large or too deep") {
				t.Errorf("large: %q", wrong)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestSchemaBearableIsQuick: what the bounds let through at their very edge, with every schema failing, takes a second and not a minute.
func TestSchemaBearableIsQuick(t *testing.T) {
	t.Parallel()
	s := mustCompile(t, `{"type":"object","anyOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`)
	var answer string
	for n := 1; n < 60; n++ {
		next := strings.Repeat(`{"a":`, n) + `0` + strings.Repeat(`}`, n)
		node, refused := readJSON([]byte(next), answerLimits)
		if refused != nil {
			t.Fatal(refused)
		}
		if _, ok := s.costs.of(node); !ok {
			break
		}
		answer = next
	}
	start := time.Now()
	if wrong := checkText(t, s, answer); wrong != "does not fit the schema" {
		t.Errorf("got %q", wrong)
	}
	numbers := mustCompile(t, `{"items":{"enum":[`+strings.Repeat(`1e-400,`, 100)+`2]}}`)
	if wrong := checkText(t, numbers, `[`+strings.Repeat(`3e300,`, 1000)+`3e300]`); wrong != "does not fit the schema" {
		t.Errorf("got %q", wrong)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestSchemaHonestCosts: schemas as people write them, with answers as models give them, are far from the bounds.
func TestSchemaHonestCosts(t *testing.T) {
	t.Parallel()
	s := mustCompile(t, `{"type":"object","properties":{"items":{"type":"array","items":{"$ref":"#/$defs/item"}},"total":{"type":"number","minimum":0}},
		"required":["items"],"additionalProperties":false,
		"$defs":{"item":{"type":"object","properties":{"sku":{"type":"string","pattern":"^[A-Z]{2}-[0-9]{1,8}$"},"qty":{"type":"integer","minimum":1},
		"unit":{"enum":["piece","kg","m","box","pallet","hour"]},"note":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["sku","qty"]}}}`)
	item := `{"sku":"AB-1234","qty":3,"unit":"box","note":null}`
	answer := `{"items":[` + strings.TrimSuffix(strings.Repeat(item+",", 1000), ",") + `],"total":12.5}`
	if wrong := checkText(t, s, answer); wrong != "" {
		t.Error(wrong)
	}
	n, _ := readJSON([]byte(answer), answerLimits)
	if cost, _ := s.costs.of(n); cost > maxVisits/3 {
		t.Errorf("an answer of %d bytes costs %d", len(answer), cost)
	}
}

func FuzzSchema(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"enum":["x",1,null]}}}`), []byte(`{"a":"x"}`))
	f.Add([]byte(`{"anyOf":[{"properties":{"a":{"$ref":"#"}}},{"not":{"$ref":"#/$defs/n"}}],"$defs":{"n":{"uniqueItems":true,"contains":{"minimum":3}}}}`), []byte(`{"a":[1,2,3,3]}`))
	f.Add([]byte(`{"patternProperties":{"^a.*":{"pattern":"(x|y){1,9}"}},"propertyNames":{"maxLength":4},"unevaluatedProperties":{"multipleOf":0.1}}`), []byte(`{"ab":"xyx","c":0.3}`))
	f.Add([]byte(`{"minimum":1e400,"enum":[1e-400]}`), []byte(`1e400`))
	f.Add([]byte(`{"if":{"type":"array"},"then":{"prefixItems":[true,false],"items":false},"dependentSchemas":{"a":{"$ref":"#/$defs/~1"}},"$defs":{"/":{}}}`), []byte(`[1]`))
	f.Fuzz(func(t *testing.T, rawSchema, rawAnswer []byte) {
		n, refused := readJSON(rawSchema, limits{bytes: 4096, depth: 64, values: 2000})
		if refused != nil {
			return
		}
		s, refused := newSchema(n)
		if refused != nil {
			if refused.Problem == "cannot be compiled" && testing.Verbose() {
				t.Logf("the compiler alone refuses %q", rawSchema)
			}
			return
		}
		answer, refused := readJSON(rawAnswer, limits{bytes: 4096, depth: 64, values: 2000})
		if refused != nil {
			return
		}
		wrong := s.check(answer)
		if wrong == "could not be checked" {
			t.Errorf("the library panicked on %q for %q", rawAnswer, rawSchema)
		}
		if !strings.Contains(wrong, "too large") {
			if fits := s.whole.Validate(answer.any()) == nil; fits != (wrong == "") {
				t.Errorf("%q for %q: %q, and alone fits: %v", rawAnswer, rawSchema, wrong, fits)
			}
		}
	})
}
