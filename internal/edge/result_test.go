package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

// golden compares with a file, which -update writes.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	got = append(bytes.TrimSuffix(got, []byte("\n")), '\n')
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n got %s\nwant %s", name, got, want)
	}
}

func testResults() map[string]ModelResult {
	by := Origin{ModelID: "qwen3:4b", ModelVersion: "0"}
	return map[string]ModelResult{
		"success": {
			Status: Success, ModelID: "qwen3:4b", ModelVersion: "3", LatencyMS: 12.3, Confidence: ptr(1.0),
			Output: json.RawMessage(`{"present":"true","zone":"window","evidence_snippet":"貓 <on> the sill"}`),
			Evidence: []Evidence{
				{Source: "present", Snippet: ptr("true")}, {Source: "zone", Snippet: ptr("window")},
				{Source: "caption", Snippet: ptr("貓 <on> the sill"), Offset: ptr(4)},
			},
		},
		"uncertain": {
			Status: Uncertain, ModelID: localModel, ModelVersion: noVersion, Output: json.RawMessage(`{"number":"Not specified"}`), Confidence: ptr(0.0),
			DegradeDetail: "no value is grounded",
		},
		"unavailable": TimedOut(Origin{"qwen3:4b", "0", 50125 * time.Microsecond}, 50),
		"invalid":     discarded(Origin{by.ModelID, by.ModelVersion, 7 * time.Millisecond}, "schema: zone fails enum"),
		"cloud": Succeeded(Origin{"uw_abc", "cloud", 4100 * time.Millisecond}, json.RawMessage(`"Booked."`),
			Evidence{Source: "convilyn://jobs/job-1"}),
	}
}

// TestModelResultWire holds the exact names, in the exact form, both ways.
func TestModelResultWire(t *testing.T) {
	t.Parallel()
	for name, want := range testResults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := plainJSON(want)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "result/"+name+".json", raw)
			var got ModelResult
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("read back\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestModelResultClosedSets(t *testing.T) {
	t.Parallel()
	if got := []Status{Success, Uncertain, Unavailable, Invalid}; !reflect.DeepEqual(got, []Status{"success", "uncertain", "unavailable", "invalid"}) {
		t.Error(got)
	}
	reasons := []DegradeReason{ServerUnreachable, DeadlineExceeded, OutputUnparseable, OtherError}
	if !reflect.DeepEqual(reasons, []DegradeReason{"server_unreachable", "deadline_exceeded", "output_unparseable", "error"}) {
		t.Error(reasons)
	}
}

func TestModelResultRefuses(t *testing.T) {
	t.Parallel()
	const good = `{"status":"success","model_id":"m","model_version":"1","latency_ms":1,"output":{}}`
	if err := json.Unmarshal([]byte(good), new(ModelResult)); err != nil {
		t.Fatal(err)
	}
	with := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	un := func(more string) string {
		return `{"status":"unavailable","model_id":"m","model_version":"1","latency_ms":1` + more + `}`
	}
	tests := []struct{ name, raw, field string }{
		{"null", `null`, ""},
		{"a bare string", `"done"`, ""},
		{"unknown member", with(`"output"`, `"outputs":1,"output"`), "outputs"},
		{"status of another case", with("success", "Success"), "status"},
		{"no status", with(`"status":"success",`, ""), "status"},
		{"no model", with(`"model_id":"m",`, ""), "model_id"},
		{"empty model", with(`"m"`, `""`), "model_id"},
		{"null version", with(`"1"`, `null`), "model_version"},
		{"no latency", with(`,"latency_ms":1`, ""), "latency_ms"},
		{"negative latency", with(`"latency_ms":1`, `"latency_ms":-1`), "latency_ms"},
		{"latency as text", with(`"latency_ms":1`, `"latency_ms":"1"`), "latency_ms"},
		{"infinite latency", with(`"latency_ms":1`, `"latency_ms":1e309`), "latency_ms"},
		{"NaN", with(`"latency_ms":1`, `"latency_ms":NaN`), ""},
		{"success without output", with(`,"output":{}`, ""), "output"},
		{"success with null", with(`{}`, `null`), "output"},
		{"success with a reason", with(`{}`, `{},"degrade_reason":"error"`), "degrade_reason"},
		{"success with a detail", with(`{}`, `{},"degrade_detail":"x"`), "degrade_detail"},
		{"confidence above 1", with(`{}`, `{},"confidence":1.01`), "confidence"},
		{"confidence below 0", with(`{}`, `{},"confidence":-0.1`), "confidence"},
		{"member twice", with(`{}`, `{},"status":"success"`), "status"},
		{"evidence without source", with(`{}`, `{},"evidence":[{"source":"a"},{"snippet":"x"}]`), "evidence[1].source"},
		{"evidence with more", with(`{}`, `{},"evidence":[{"source":"a","page":1}]`), "evidence[0].page"},
		{"offset below 0", with(`{}`, `{},"evidence":[{"source":"a","offset":-1}]`), "evidence[0].offset"},
		{"offset with a fraction", with(`{}`, `{},"evidence":[{"source":"a","offset":1.5}]`), "evidence[0].offset"},
		{"evidence is no list", with(`{}`, `{},"evidence":{}`), "evidence"},
		{"too much evidence", with(`{}`, `{},"evidence":[`+strings.Repeat(`{"source":"a"},`, maxEvidence)+`{"source":"a"}]`), "evidence"},
		{"unknown reason", un(`,"degrade_reason":"busy"`), "degrade_reason"},
		{"unavailable with output", un(`,"output":1`), "output"},
		{"unavailable with confidence", un(`,"confidence":0`), "confidence"},
		{"unavailable with evidence", un(`,"evidence":[{"source":"a"}]`), "evidence"},
		{"a detail that goes on", un(`,"degrade_detail":"` + strings.Repeat("x", maxDetail+2) + `"`), "degrade_detail"},
		{"invalid with a reason", strings.Replace(un(`,"degrade_reason":"error"`), "unavailable", "invalid", 1), "degrade_reason"},
		{"output too deep", with(`{}`, strings.Repeat("[", 90)+strings.Repeat("]", 90)), ""},
		{"text after it", good + ` {}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := ModelResult{Status: "untouched"}
			err := r.UnmarshalJSON([]byte(tt.raw))
			var fe *FieldError
			if !errors.As(err, &fe) {
				t.Fatalf("got %v", err)
			}
			if tt.field != "" && fe.Field != tt.field {
				t.Errorf("names %q, want %q: %v", fe.Field, tt.field, err)
			}
			if r.Status != "untouched" {
				t.Error("half of it was taken")
			}
		})
	}
}

func TestModelResultDoesNotEncodeNonsense(t *testing.T) {
	t.Parallel()
	base := testResults()["success"]
	for name, spoil := range map[string]func(r *ModelResult){
		"status":        func(r *ModelResult) { r.Status = "maybe" },
		"no model":      func(r *ModelResult) { r.ModelID = "" },
		"bad version":   func(r *ModelResult) { r.ModelVersion = "\xff" },
		"NaN":           func(r *ModelResult) { r.LatencyMS = math.NaN() },
		"infinite":      func(r *ModelResult) { r.LatencyMS = math.Inf(1) },
		"confidence":    func(r *ModelResult) { r.Confidence = ptr(math.NaN()) },
		"no output":     func(r *ModelResult) { r.Output = nil },
		"null output":   func(r *ModelResult) { r.Output = json.RawMessage(" null") },
		"no JSON":       func(r *ModelResult) { r.Output = json.RawMessage("{") },
		"long output":   func(r *ModelResult) { r.Output = json.RawMessage(`"` + strings.Repeat("x", maxAnswer) + `"`) },
		"evidence":      func(r *ModelResult) { r.Evidence = []Evidence{{}} },
		"offset":        func(r *ModelResult) { r.Evidence = []Evidence{{Source: "a", Offset: ptr(-1)}} },
		"snippet":       func(r *ModelResult) { r.Evidence = []Evidence{{Source: "a", Snippet: ptr("\xff")}} },
		"reason":        func(r *ModelResult) { r.DegradeReason = OtherError },
		"unknown":       func(r *ModelResult) { r.DegradeReason = "busy" },
		"detail":        func(r *ModelResult) { r.DegradeDetail = "x" },
		"invalid keeps": func(r *ModelResult) { r.Status = Invalid },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := base
			spoil(&r)
			if raw, err := json.Marshal(r); err == nil {
				t.Errorf("encoded as %s", raw)
			}
		})
	}
}

func TestOriginHasDefaults(t *testing.T) {
	t.Parallel()
	r := Fail(Origin{Latency: -time.Second}, "node_lost")
	if r.ModelID != "edge-local" || r.ModelVersion != "0" || r.LatencyMS != 0 {
		t.Errorf("got %+v", r)
	}
	if long := Doubtful(Origin{}, strings.Repeat("é", 2*maxDetail)); long.check() != nil {
		t.Error(long.check())
	}
}

func TestDisposition(t *testing.T) {
	t.Parallel()
	out := json.RawMessage(`{}`)
	tests := []struct {
		status Status
		output json.RawMessage
		opted  bool
		want   Disposition
	}{
		{Success, out, false, Accept}, {Success, out, true, Accept},
		{Uncertain, out, false, Fallback}, {Uncertain, out, true, Accept},
		{Uncertain, nil, false, Fallback}, {Uncertain, nil, true, Fallback},
		{Unavailable, nil, false, Fallback}, {Unavailable, nil, true, Fallback},
		{Invalid, nil, false, Fallback}, {Invalid, nil, true, Fallback},
		{"unheard of", out, true, Fallback},
	}
	for _, tt := range tests {
		if got := (ModelResult{Status: tt.status, Output: tt.output}).Disposition(tt.opted); got != tt.want {
			t.Errorf("%s, output %s, opted in %v: got %s", tt.status, tt.output, tt.opted, got)
		}
	}
}

func FuzzModelResult(f *testing.F) {
	for _, r := range testResults() {
		raw, err := plainJSON(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r ModelResult
		if r.UnmarshalJSON(raw) != nil {
			return
		}
		again, err := plainJSON(r)
		if err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		var back ModelResult
		if err := back.UnmarshalJSON(again); err != nil {
			t.Fatalf("written but not read: %v", err)
		}
		if third, err := plainJSON(back); err != nil || !bytes.Equal(third, again) {
			t.Errorf("not stable: %s, %s, %v", again, third, err)
		}
	})
}
