package edge

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestReadJSONRefuses(t *testing.T) {
	t.Parallel()
	small := limits{bytes: 200, depth: 3, values: 10}
	tests := []struct{ name, raw, want string }{
		{"too long", `"` + strings.Repeat("x", 200) + `"`, "the document is longer than 200 bytes"},
		{"empty", " \n", "the document is empty"},
		{"not UTF-8", "\"\xc3\"", "the document is not valid UTF-8"},
		{"cut off", `{"a":[1`, "the document is not JSON: unexpected end of JSON input"},
		{"text after it", `{} x`, "the document is not JSON: invalid character 'x' after top-level value"},
		{"a trailing comma", `[1,]`, "the document is not JSON: invalid character ']' looking for beginning of value"},
		{"too deep", `[[[[]]]]`, "[0][0][0] is nested deeper than 3 levels"},
		{"too many values", `[1,2,3,4,5,6,7,8,9,10]`, "[9] has more than 10 values"},
		{"twice", `{"a":{"b":1,"b":2}}`, "a.b is given twice"},
		{"twice, once escaped", `{"b":1,"\u0062":2}`, "b is given twice"},
		{"half a pair", `{"a":"\ud83d"}`, "the document has half of a surrogate pair"},
		{"a low half first", `["\ude00\ud83d"]`, "the document has half of a surrogate pair"},
		{"half a pair as a name", `{"\uDBFFx":1}`, "the document has half of a surrogate pair"},
		{"a huge exponent", `{"a":[0,1e401]}`, "a[1] is a number out of range"},
		{"a huge negative exponent", `1e-401`, "the document is a number out of range"},
		{"an exponent that is no int", `1e99999999999999999999`, "the document is a number out of range"},
		{"infinite", `1e309`, "the document is a number out of range"},
		{"a long literal", strings.Repeat("9", 65), "the document is a number out of range"},
		{"a name that is no name", `{"a b":{"a":1,"a":1}}`, `["a b"].a is given twice`},
		{"a long name", `{"` + strings.Repeat("n", 150) + `":{"a":1,"a":1}}`, `["` + strings.Repeat("n", 40) + `…"].a is given twice`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			max := small
			if tt.name == "a long name" {
				max.bytes = 1000
			}
			n, refused := readJSON([]byte(tt.raw), max)
			if refused == nil || refused.Error() != tt.want {
				t.Errorf("got %+v, %v\nwant %s", n, refused, tt.want)
			}
		})
	}
}

func TestReadJSONKeeps(t *testing.T) {
	t.Parallel()
	const raw = ` {"z": [1, 2.50, -0, 1e3 ], "a":"\ud83d\ude00 \\ud83d \"", "n":null,"t":true, "f":false, "o": { } , "": [[]] } `
	n, refused := readJSON([]byte(raw), answerLimits)
	if refused != nil {
		t.Fatal(refused)
	}
	if !reflect.DeepEqual(n.keys, []string{"z", "a", "n", "t", "f", "o", ""}) {
		t.Errorf("order: %q", n.keys)
	}
	if got, want := string(n.compact()), `{"z":[1,2.50,-0,1e3],"a":"\ud83d\ude00 \\ud83d \"","n":null,"t":true,"f":false,"o":{},"":[[]]}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got := n.members["a"].text; got != `😀 \ud83d "` {
		t.Errorf("got %q", got)
	}
	if got := string(n.members["z"].raw); got != "[1, 2.50, -0, 1e3 ]" {
		t.Errorf("got %q", got)
	}
	for i, want := range []string{"null", "true", "false", `"x"`, "2.50"} {
		m, refused := readJSON([]byte(want), answerLimits)
		if refused != nil || string(m.compact()) != want {
			t.Errorf("%d: %v %s", i, refused, m.compact())
		}
	}
	values, bytes, depth := n.size()
	if values != 13 || bytes != 1+4+2+3+1+1+1+1+len(`😀 \ud83d "`)+1+1 || depth != 3 {
		t.Errorf("size %d %d %d", values, bytes, depth)
	}
}

// FuzzReadJSON compares with encoding/json: whatever is read has the same value there.
func FuzzReadJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"\ud83d\ude00"}],"c":null}`))
	f.Add([]byte(`[1e400,"\ud800"]`))
	f.Add([]byte("[-0.5e+3, \"\\u00e9\\/\\b\", true ,false\t,null , {} ,[]]\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		n, refused := readJSON(raw, answerLimits)
		if refused != nil {
			if refused.Error() == "" {
				t.Error("no reason")
			}
			if strings.Contains(refused.Problem, "is not JSON") && json.Valid(raw) {
				t.Errorf("%q is JSON, and refused: %v", raw, refused)
			}
			return
		}
		dec := json.NewDecoder(strings.NewReader(string(raw)))
		dec.UseNumber()
		var want any
		if err := dec.Decode(&want); err != nil {
			t.Fatalf("encoding/json refuses: %v", err)
		}
		if got := n.any(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %#v, want %#v", got, want)
		}
		again, refused := readJSON(n.compact(), answerLimits)
		if refused != nil || !reflect.DeepEqual(again.any(), want) {
			t.Errorf("compact form: %v", refused)
		}
	})
}
