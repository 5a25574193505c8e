package ollama

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// What encoding/json makes of the bodies: the reference for eachMember and members.
type (
	runReference struct {
		Model     text      `json:"model"`
		Stream    flag      `json:"stream"`
		KeepAlive keepAlive `json:"keep_alive"`
		Prompt    content   `json:"prompt"`
		Messages  content   `json:"messages"`
		Input     content   `json:"input"`
	}
	namedReference struct {
		Model  text `json:"model"`
		Name   text `json:"name"`
		Stream flag `json:"stream"`
	}
	copyReference struct {
		Source      text `json:"source"`
		Destination text `json:"destination"`
	}
)

// reference is how a body was read before there was a scanner.
func reference(e *Endpoint, body []byte, v any) *Error {
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	var mismatch *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &mismatch):
		return badRequest("json: cannot unmarshal " + mismatch.Value + " into Go value of type " + cmp.Or(e.request, "object"))
	case !errors.As(err, &syntax):
		return badRequest(err.Error())
	case strings.HasSuffix(syntax.Error(), "after top-level value"):
		return ambiguous(syntax.Error())
	case syntax.Error() != "unexpected end of JSON input":
		return badRequest(syntax.Error())
	case len(trimSpace(body)) > 0:
		return badRequest("unexpected EOF")
	case e.Family == Native:
		return badRequest(MissingBodyText)
	}
	return badRequest("EOF")
}

// againstJSON reads body in both ways, as every kind of body, and compares all that later steps see of it.
func againstJSON(t *testing.T, e *Endpoint, body []byte) {
	t.Helper()
	same := func(what string, got, want any, gotErr, wantErr *Error) {
		t.Helper()
		switch {
		case (gotErr == nil) != (wantErr == nil), gotErr != nil && *gotErr != *wantErr:
			t.Fatalf("%s %.200q: refused with %v; by encoding/json with %v", what, body, gotErr, wantErr)
		case gotErr == nil && got != want:
			t.Fatalf("%s %.200q: read as %+v; by encoding/json as %+v", what, body, got, want)
		}
	}
	var run runBody
	var runRef runReference
	err, refErr := run.read(e, body), reference(e, body, &runRef)
	same("run", run, runBody(runRef), err, refErr)

	var named namedBody
	var namedRef namedReference
	err, refErr = named.read(e, body), reference(e, body, &namedRef)
	same("named", named, namedBody(namedRef), err, refErr)

	var copied copyBody
	var copiedRef copyReference
	err, refErr = copied.read(e, body), reference(e, body, &copiedRef)
	same("copy", copied, copyBody(copiedRef), err, refErr)
}

func TestScannerAgainstJSON(t *testing.T) {
	t.Parallel()
	e := row(t, "chat")
	nested := func(open, end string, n int) string { return strings.Repeat(open, n) + strings.Repeat(end, n) }
	for _, body := range []string{
		`{}`, ` { } `, `{"":{}}`, `{"a":[]}`, `{"a":[{}],"b":{"c":[[],{}]}}`, `{"a":{"b":{"c":1},"d":[1,{"e":2},3]},"f":4}`,
		`{"a":[}`, `{"a":{]}`, `{"a":[1}`, `{"a":{"b":1]}`, `{"a":[1,]}`, `{"a":[,1]}`, `{"a":{"b":1,}}`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`, `{"a" 1}`, `{a:1}`, `{1:1}`,
		`{"a":{b:1}}`, `{"a":{"b"}}`, `{"a":{"b":}}`, `{"a":{"b" 1}}`, `{"a":{,}}`, `{"a":[1 2]}`, `{"a":{"b":1 "c":2}}`, `{"a":1}}`, `{"a":[1]]}`,
		`{"a":01}`, `{"a":-}`, `{"a":-0}`, `{"a":-01}`, `{"a":1.}`, `{"a":.1}`, `{"a":1.e1}`, `{"a":1e}`, `{"a":1e+}`, `{"a":1E-05}`, `{"a":+1}`, `{"a":0x1}`, `{"a":1_0}`, `{"a":NaN}`,
		`{"a":tru}`, `{"a":truex}`, `{"a":True}`, `{"a":nul`, `{"a":false,"b":null}`, `{"a":[true,false,null]}`,
		`{"a":"\u00e9\n\"\\\/"}`, `{"a":"\ug000"}`, `{"a":"\u0g00"}`, `{"a":"\u00g0"}`, `{"a":"\u000g"}`, `{"a":"\u000"}`, `{"a":"\u00"}`, `{"a":"\x"}`, `{"a":"\`, `{"a":"\u12`, `{"a":"\ud800"}`, `{"a":"\U0041"}`, `{"a":'b'}`,
		"{\"a\":\"\x00\"}", "{\"a\":\"tab\there\"}", "{\"a\":\"\x7f\x80\xff\"}", "{\"\xff\":1}", "{\"a\":\v1}", "{\"a\":\u00a01}", "\uFEFF{}", "{}\x00", "{} {}", "{}x",
		`{"a":` + nested("[", "]", maxNesting-1) + `}`, `{"a":` + nested("[", "]", maxNesting) + `}`,
		`{"a":` + nested(`{"b":`, `}`, maxNesting-1) + `}`, `{"a":` + nested(`[{"b":[`, `]}]`, 3000) + `}`, `{"a":` + nested(`[{"b":[`, `]}]`, 4000) + `}`,
		`{"a":` + strings.Repeat(`[],`, 3) + `}`, `{"a":[` + strings.Repeat(`{"b":[[]]},`, 5000) + `0]}`,
		`{"Model":"a"}`, `{"\u006D\u006f\u0044el":"a"}`, `{"\u212aeep_alive":0}`, `{"\u017fource":"a","de\u017ftination":"b"}`, `{"ſtream":true}`, `{"model\u0000":"a"}`, `{"model ":"a"}`,
		`{"\u0064\u0065\u0073\u0074\u0069\u006e\u0061\u0074\u0069\u006f\u006e":"a"}`, `{"` + strings.Repeat(`\u0064`, 12) + `":"a"}`, `{"\/":1,"model":"a"}`, `{"\ud83d\ude00":1}`,
		`{"model":"a","model":"b","messages":[0],"MESSAGES":"x","keep_alive":"0"}`, `null`, ` null `, `nullx`, `true`, `0`, `"model"`, `[]`, `[`, ``, ` `, `{`, `{"`, `{"model`, `{"model"`, `{"model":`,
	} {
		againstJSON(t, e, []byte(body))
	}
}

// TestScannerFindsEverySpecialByte puts each byte at each place of a string, for all ways in which the words fall.
func TestScannerFindsEverySpecialByte(t *testing.T) {
	t.Parallel()
	e := row(t, "chat")
	for length := range 45 {
		for at := range length {
			for _, c := range []byte{0, 1, 0x1f, ' ', '!', '"', '#', '[', '\\', ']', 0x7f, 0x80, 0xa2, 0xdc, 0xff} {
				value := []byte(strings.Repeat("x", length))
				value[at] = c
				againstJSON(t, e, append(append([]byte(`{"prompt":"`), value...), `","model":"a"}`...))
			}
		}
	}
}

// TestScannerAgainstJSONOnSoup draws bodies of pieces that all but fit together.
func TestScannerAgainstJSONOnSoup(t *testing.T) {
	t.Parallel()
	pieces := []string{
		`{`, `}`, `[`, `]`, `,`, `:`, `{"`, `":`, `,"`, `"`, `\`, `\u`, `006d`, `\"`, `\n`, `model`, `Model`, `name`, `stream`, `keep_alive`, `messages`, `K`, `0`, `-`, `1`, `.`, `e`, `+`,
		`true`, `false`, `null`, ` `, "\n", "\x00", "\xff", "é", `"model":"a"`, `"a":1`, `{}`, `[]`, `"x"`, `,"model":`, `{"model":"a"`,
	}
	rng := rand.New(rand.NewPCG(3, 4))
	e := row(t, "v1.chat.completions")
	accepted := 0
	for range 30_000 {
		body := []byte(`{`)
		if rng.IntN(8) == 0 {
			body = nil
		}
		for range 1 + rng.IntN(12) {
			body = append(body, pieces[rng.IntN(len(pieces))]...)
		}
		if rng.IntN(2) == 0 {
			body = append(body, '}')
		}
		if json.Valid(body) {
			accepted++
		}
		againstJSON(t, e, body)
	}
	if accepted < 150 {
		t.Errorf("only %d of the bodies were JSON", accepted)
	}
}

func FuzzDecodeAgainstJSON(f *testing.F) {
	for _, body := range []string{
		`{"model":"tiny","messages":[{"role":"user","content":"hi","images":["iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"]}],"stream":false,"options":{"seed":-1.5e3}}`,
		`{"MODEL":"a","m\u006fdel":null,"keep_alive":"0s","name":"b","prompt":"\ud83d\ude00\n"}`, `{"source":"a","destination":"b"} `, `{"a":[[],{},[{"b":[true,false,null]}]]}`,
		"{\"input\":[\"\x7f\xff\u2028\"],\"\u212Aeep_alive\":0}", `null`, `[]`, ``, `{"model":"tiny"}{}`,
	} {
		f.Add(true, []byte(body))
		f.Add(false, []byte(body))
	}
	f.Fuzz(func(t *testing.T, native bool, body []byte) {
		name := "chat"
		if !native {
			name = "v1.chat.completions"
		}
		againstJSON(t, row(t, name), body)
	})
}
