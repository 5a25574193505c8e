package edge

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"unicode/utf8"
)

// verbatimContract has verbatim fields a, b, c … of the given number, and caps.
func verbatimContract(t testing.TB, n int, caps string) *Contract {
	t.Helper()
	var fields []string
	for i := range n {
		fields = append(fields, fmt.Sprintf(`{"name":"%c"}`, 'a'+i))
	}
	c, err := ParseContract([]byte(`{"contract_id":"c","prompt_template":"p","fields":[` + strings.Join(fields, ",") + `],"anchors_contract":{` + caps + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func groundOne(t testing.TB, c *Contract, raw string, in Input) grounding {
	t.Helper()
	n, refused := readJSON([]byte(raw), answerLimits)
	if refused != nil {
		t.Fatal(refused)
	}
	return c.ground(n, in)
}

func TestGroundVerbatim(t *testing.T) {
	t.Parallel()
	const sentinel = "Not specified"
	in := Input{
		{"letter", "Dear Ms Ortiz,\n\nyour order  no. 4711 of\t3 May (貓 sofa) left Zürich.\nTotal: 9 €"},
		{"reply", "It never came.\u00a0Sent to\u2003Ulm? NULL\x00BYTE \x1cend"},
	}
	tests := []struct {
		name, said string // JSON
		want       string
		source     string
		offset     int
	}{
		{"as it stands", `"Ortiz"`, "Ortiz", "letter", 8},
		{"across a line break", `"Ms Ortiz, your order"`, "Ms Ortiz, your order", "letter", 5},
		{"other white space, and kept as said", `"order\nno.  4711"`, "order\nno.  4711", "letter", 21},
		{"trimmed", `" \t4711 \r\n"`, "4711", "letter", 32},
		{"another case", `"ortiz"`, sentinel, "", 0},
		{"not there", `"Ms Gray"`, sentinel, "", 0},
		{"across two texts", `"Total: 9 € It never came."`, sentinel, "", 0},
		{"no-break space", `"came. Sent to Ulm"`, "came. Sent to Ulm", "reply", 9},
		{"a separator of ASCII in the text", `"BYTE end"`, "BYTE end", "reply", 33},
		{"control characters are taken out", `"\u0007Zü\u0000rich\u009f\u007f"`, "Zürich", "letter", 60},
		{"and nothing is left", `"\u0000\u0001"`, sentinel, "", 0},
		{"a control character in the text stays", `"NULLBYTE"`, sentinel, "", 0},
		{"blank", `" \n"`, sentinel, "", 0},
		{"empty", `""`, sentinel, "", 0},
		{"the sentinel itself", `"Not specified"`, sentinel, "", 0},
		{"a number", `4711`, sentinel, "", 0},
		{"a boolean", `true`, sentinel, "", 0},
		{"null", `null`, sentinel, "", 0},
		{"a list", `["Ortiz"]`, sentinel, "", 0},
		{"one letter of a word", `"O"`, sentinel, "", 0},
		{"one letter in many words", `"e"`, sentinel, "", 0},
		{"two letters of a word", `"rt"`, sentinel, "", 0},
		{"two letters that are a word", `"Ms"`, "Ms", "letter", 5},
		{"a digit of a number", `"1"`, sentinel, "", 0},
		{"a digit that is a number", `"3"`, "3", "letter", 40},
		{"a short word later on", `"no"`, "no", "letter", 28},
		{"one sign", `"€"`, "€", "letter", 77},
		{"one character of a script without spaces", `"貓"`, "貓", "letter", 47},
		{"three letters of a word", `"üri"`, "üri", "letter", 61},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := groundOne(t, verbatimContract(t, 1, ""), `{"a":`+tt.said+`}`, in)
			if g.values[0] != tt.want {
				t.Fatalf("got %q, want %q", g.values[0], tt.want)
			}
			if tt.source == "" {
				if len(g.evidence) != 0 {
					t.Errorf("evidence for nothing: %+v", g.evidence)
				}
				return
			}
			e := g.evidence[0]
			if e.Source != tt.source || *e.Snippet != tt.want || *e.Offset != tt.offset {
				t.Errorf("evidence %q %q at %d, want %q at %d", e.Source, *e.Snippet, *e.Offset, tt.source, tt.offset)
			}
		})
	}
}

func TestGroundVerbatimFirstTextWins(t *testing.T) {
	t.Parallel()
	in := Input{{"z", "nothing"}, {"b", "see blue sky"}, {"a", "blue"}}
	g := groundOne(t, verbatimContract(t, 1, ""), `{"a":"blue"}`, in)
	if e := g.evidence[0]; e.Source != "b" || *e.Offset != 4 {
		t.Errorf("got %s at %d", e.Source, *e.Offset)
	}
}

func TestGroundVerbatimCaps(t *testing.T) {
	t.Parallel()
	const text = "one two three four five six seven eight nine ten ééééé"
	tests := []struct {
		name, caps, said string
		want             string
	}{
		{"as long as may be, in code points", `"max_value_chars":5`, `{"a":"ééééé"}`, "ééééé"},
		{"one longer", `"max_value_chars":4`, `{"a":"ééééé"}`, "Not specified"},
		{"a total that fits", `"max_total_chars":12,"missing_sentinel":"-"`, `{"a":"three","b":"four","c":"two"}`, "three four two"},
		{"the longest goes", `"max_total_chars":11,"missing_sentinel":"-"`, `{"a":"four","b":"three","c":"two"}`, "four - two"},
		{"of equals the first", `"max_total_chars":9,"missing_sentinel":"-"`, `{"a":"four","b":"five","c":"two"}`, "- five two"},
		{"until it fits", `"max_total_chars":4,"missing_sentinel":"-"`, `{"a":"four","b":"five","c":"two"}`, "- - -"},
		{"no longer than the sentinel stays", `"max_total_chars":1,"missing_sentinel":"none"`, `{"a":"three","b":"two","c":"four"}`, "none two four"},
		{"missing ones count", `"max_total_chars":8,"missing_sentinel":"none"`, `{"a":"three","b":7,"c":"x"}`, "none none none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := max(strings.Count(tt.want, " ")+1, 1)
			if strings.HasPrefix(tt.want, "Not") {
				n = 1
			}
			g := groundOne(t, verbatimContract(t, n, tt.caps), tt.said, Input{{"t", text}})
			if got := strings.Join(g.values, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			for _, e := range g.evidence {
				if !strings.Contains(tt.want, *e.Snippet) {
					t.Errorf("evidence of what is gone: %q", *e.Snippet)
				}
			}
		})
	}
}

func TestGroundClosedSet(t *testing.T) {
	t.Parallel()
	c, err := ParseContract([]byte(`{"contract_id":"c","prompt_template":"p","fields":[{"name":"a","mode":"closed_set",
		"allowed_values":["true","New York","3","0.5","100000000000000000000000","Straße","ΣΊΣΥΦΟΣ","İstanbul","office"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ said, want string }{
		{`"true"`, "true"}, {`true`, "true"}, {`"TRUE "`, "true"}, {`false`, ""},
		{`" new\n\tYORK"`, "New York"}, {`"NewYork"`, ""}, {`"New York!"`, ""},
		{`3`, "3"}, {`3.0`, "3"}, {`30e-1`, "3"}, {`"3.0"`, ""}, {`-3`, ""}, {`3.5`, ""},
		{`0.5`, "0.5"}, {`0.50`, "0.5"}, {`5e-1`, "0.5"}, {`".5"`, ""},
		{`100000000000000000000000`, "100000000000000000000000"},
		{`"STRASSE"`, "Straße"}, {`"strasse"`, "Straße"}, {`"STRAẞE"`, "Straße"},
		{`"σίσυφος"`, "ΣΊΣΥΦΟΣ"}, {`"σίσυφοσ"`, "ΣΊΣΥΦΟΣ"},
		{`"i̇STANBUL"`, "İstanbul"}, {`"istanbul"`, ""},
		{`"OﬃCE"`, "office"},
		{`null`, ""}, {`["true"]`, ""}, {`{"true":true}`, ""}, {`""`, ""}, {`"Not specified"`, ""},
	}
	for _, tt := range tests {
		want := tt.want
		if want == "" {
			want = "Not specified"
		}
		g := groundOne(t, c, `{"a":`+tt.said+`}`, nil)
		if g.values[0] != want || (len(g.evidence) == 1) != (tt.want != "") {
			t.Errorf("%s: got %q, evidence %d", tt.said, g.values[0], len(g.evidence))
		}
		for _, e := range g.evidence {
			if e.Source != "a" || *e.Snippet != want || e.Offset != nil {
				t.Errorf("%s: evidence %+v", tt.said, e)
			}
		}
	}
}

// TestGroundProperties: with texts and values at random, whatever is grounded is in its text at its offset, and what was cut from a text is found.
func TestGroundProperties(t *testing.T) {
	t.Parallel()
	letters := []string{"a", "b", "B", "é", "貓", "😀", " ", "  ", "\n", "\t \r\n", "\u00a0", "\u2028", "\x07", "\x1d", "7", ".", "ẞ", "e\u0301"}
	rng := rand.New(rand.NewSource(6))
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(letters[rng.Intn(len(letters))])
		}
		return b.String()
	}
	c := verbatimContract(t, 1, "")
	found, cut := 0, 0
	for range 20000 {
		in := Input{{"one", word(rng.Intn(40))}, {"two", word(rng.Intn(40))}}
		value := word(1 + rng.Intn(6))
		wasCut := rng.Intn(2) == 0
		if wasCut {
			runes := []rune(in[1].Text)
			from := rng.Intn(len(runes) + 1)
			value = string(runes[from : from+rng.Intn(len(runes)-from+1)])
		}
		g := c.ground(&node{kind: jsonObject, members: map[string]*node{"a": {kind: jsonText, text: value}}}, in)
		cleaned := collapse(clean(value))
		if wasCut && length(cleaned) >= shortValue && !strings.ContainsFunc(value, isControl) {
			if cut++; len(g.evidence) == 0 {
				t.Fatalf("%q was cut from %q and not found", value, in[1].Text)
			}
		}
		if len(g.evidence) == 0 {
			if g.values[0] != c.sentinel {
				t.Fatalf("%q without evidence", g.values[0])
			}
			continue
		}
		found++
		e := g.evidence[0]
		text := in[0].Text
		if e.Source == "two" {
			text = in[1].Text
		}
		rest := string([]rune(text)[*e.Offset:])
		if !strings.HasPrefix(collapse(rest), cleaned) || isSpace([]rune(rest)[0]) {
			t.Fatalf("%q is not at %d of %q", value, *e.Offset, text)
		}
		if *e.Snippet != g.values[0] || strings.ContainsFunc(g.values[0], isControl) || !utf8.ValidString(g.values[0]) {
			t.Fatalf("value %q, snippet %q", g.values[0], *e.Snippet)
		}
	}
	if found < 2000 || cut < 1000 {
		t.Errorf("only %d found, %d cut", found, cut)
	}
}

// TestFoldKeepsCasesTogether: every letter (none lies beyond the second plane) has the key of its upper, lower and title case, where those are one letter.
func TestFoldKeepsCasesTogether(t *testing.T) {
	t.Parallel()
	for r := rune(1); r < 0x20000; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		s := string(r)
		if got := fold(fold(s)); got != fold(s) {
			t.Errorf("%U: %q folds on to %q", r, fold(s), got)
		}
		if lower := strings.ToLower(s); lower != s && fold(lower) != fold(s) && r != 'İ' {
			t.Errorf("%U: %q and %q fold apart", r, s, lower)
		}
	}
}

func BenchmarkGround20000(b *testing.B) {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 20000/45+1)[:19980] + " needle at the end"
	c := verbatimContract(b, 10, "")
	n, refused := readJSON([]byte(`{"a":"needle","b":"needle at the","c":"the end","d":"at","e":"zz","f":"lazy dog. The","g":"dog","h":"not in there at all","i":"q","j":"quick"}`), answerLimits)
	if refused != nil {
		b.Fatal(refused)
	}
	for b.Loop() {
		if g := c.ground(n, Input{{"t", text}}); len(g.evidence) < 5 {
			b.Fatal(g)
		}
	}
}

// TestGroundMasked: where everything was taken out of a text, nothing was read.
func TestGroundMasked(t *testing.T) {
	t.Parallel()
	in, d := redaction(t, `\d+`).Apply(contractOperator(t), Input{{"a", "card 4711-0815 00 of Mia, 12€ 34"}})
	pass(t, d)
	for said, want := range map[string]string{
		"████": "", "████-████ ██": "", "██€ ██": "", "█": "", " ██ ": "",
		"card ████": "card ████", "██ of Mia": "██ of Mia",
	} {
		o := operatorOf(t, `{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"v"}]}}`)
		r := o.Judge(Said{Text: `{"v":"` + said + `"}`}, in, Origin{})
		if status := map[bool]Status{true: Uncertain, false: Success}[want == ""]; r.Status != status {
			t.Errorf("%s: %s, want %s", said, r.Status, status)
		}
		if want == "" {
			want = noValue
		}
		if string(r.Output) != `{"v":"`+want+`"}` {
			t.Errorf("%s: %s, want %s", said, r.Output, want)
		}
	}
}
