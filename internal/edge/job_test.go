package edge

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseJob(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":          ``,
		"no JSON":          `<html>`,
		"a list":           `[]`,
		"null":             `null`,
		"cut":              `{"jobSpecId":"job-1","status":"exec`,
		"no id":            `{"status":"queued"}`,
		"no status":        `{"jobSpecId":"job-1"}`,
		"null id":          `{"jobSpecId":null,"status":"queued"}`,
		"a number as id":   `{"jobSpecId":7,"status":"queued"}`,
		"a path as id":     `{"jobSpecId":"a/../b","status":"queued"}`,
		"dots as id":       `{"jobSpecId":"..","status":"queued"}`,
		"encoded id":       `{"jobSpecId":"%2e","status":"queued"}`,
		"a long id":        `{"jobSpecId":"` + strings.Repeat("x", 129) + `","status":"queued"}`,
		"a line in status": `{"jobSpecId":"job-1","status":"queued\nx"}`,
		"status a number":  `{"jobSpecId":"job-1","status":1}`,
		"a message list":   `{"jobSpecId":"job-1","status":"queued","agentMessage":["x"]}`,
		"given twice":      `{"jobSpecId":"job-1","status":"queued","status":"completed"}`,
		"half a pair":      `{"jobSpecId":"job-1","status":"completed","agentMessage":"\ud800"}`,
		"not UTF-8":        "{\"jobSpecId\":\"job-1\",\"status\":\"completed\",\"agentMessage\":\"\xff\"}",
		"deep":             `{"jobSpecId":"job-1","status":"queued","x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
		"many":             `{"jobSpecId":"job-1","status":"queued","x":[` + strings.Repeat("1,", 30000) + `1]}`,
		"long":             `{"jobSpecId":"job-1","status":"queued"}` + strings.Repeat(" ", MaxJob),
		"two":              `{"jobSpecId":"job-1","status":"queued"}{}`,
	} {
		if j, err := ParseJob([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, j)
		} else if strings.Contains(err.Error(), "job-1") {
			t.Errorf("%s: the error repeats the answer: %v", name, err)
		}
	}
	// What is not needed is not insisted on.
	j, err := ParseJob([]byte(`{"jobSpecId":"job_1-A","status":"executing","progress":"much","attemptId":7,"errorCode":{},"errorDetail":[],"suggestedAction":null,"new":{"x":[1]}}`))
	if err != nil || j.ID != "job_1-A" || j.Step() != JobWorks || j.State() != Generating || len(j.failure) != 0 || j.Result(Origin{ModelID: "uw_x"}).ModelVersion != "cloud" {
		t.Errorf("%+v %v", j, err)
	}
}

// TestCloudMapping is row A06: all thirteen statuses, what they ask for and what they come to. The adapter's own test goes through the wire.
func TestCloudMapping(t *testing.T) {
	t.Parallel()
	for status, tt := range map[string]struct {
		step   JobStep
		result Status // of a job that says something
	}{
		"draft": {JobWorks, ""}, "created": {JobWorks, ""}, "analyzing": {JobWorks, ""}, "slots_pending": {JobParked, Uncertain},
		"ready": {JobReady, ""}, "ready_with_preview": {JobParked, Uncertain}, "confirmed": {JobWorks, ""}, "queued": {JobWorks, ""},
		"executing": {JobWorks, ""}, "completed": {JobEnded, Success}, "partial": {JobEnded, Success}, "failed": {JobEnded, Unavailable},
		"cancelled": {JobEnded, Uncertain}, "of_a_later_version": {JobWorks, ""},
	} {
		j, err := ParseJob([]byte(`{"jobSpecId":"job-1","status":"` + status + `","agentMessage":"x","attemptId":"a-1","errorCode":"E_1"}`))
		if err != nil || j.Step() != tt.step {
			t.Errorf("%s: step %d, %v", status, j.Step(), err)
		}
		if tt.result == "" {
			continue
		}
		r := j.Result(Origin{ModelID: "uw_x"})
		if r.Status != tt.result || r.ModelID != "uw_x" || r.ModelVersion != "a-1" {
			t.Errorf("%s: %+v", status, r)
		}
		wire(t, r)
	}
	if len(jobSteps) != 13 {
		t.Errorf("%d statuses", len(jobSteps))
	}
}

func TestGoalBody(t *testing.T) {
	t.Parallel()
	if _, err := GoalBody("wf_x", nil); err == nil {
		t.Error("another's workflow")
	}
	b, err := GoalBody("uw_x", Input{{"b", "2"}, {"", ""}, {"a", "<\u2028>"}})
	if want := "{\"fileIds\":[],\"userWorkflowId\":\"uw_x\",\"slotAnswers\":[{\"slotId\":\"b\",\"value\":\"2\"},{\"slotId\":\"a\",\"value\":\"<\\u2028>\"}]}"; err != nil || string(b) != want {
		t.Errorf("%s %v", b, err)
	}
}

func FuzzParseJob(f *testing.F) {
	for _, s := range []string{
		`{"jobSpecId":"job-1","status":"completed","agentMessage":"Booked.","attemptId":"a-1"}`,
		`{"jobSpecId":"job-1","status":"failed","errorCode":"X","errorDetail":{"reason":"TOKEN_BUDGET","limit":1e3,"reached":null},"suggestedAction":"retry"}`,
		`{"jobSpecId":"job-1","status":"ready","progress":10.5}`,
		`{"jobSpecId":"job-1","status":"partial","agentMessage":"\u0000\u001f\ud83d\ude00\u2028"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		j, err := ParseJob(data)
		if err != nil {
			return
		}
		if !JobID(j.ID) || strings.ContainsAny(j.ID, "/.%?# \r\n") {
			t.Fatalf("id %q", j.ID)
		}
		if step := j.Step(); step != JobEnded && step != JobParked {
			return
		}
		r := j.Result(Origin{ModelID: "uw_x"})
		b, err := json.Marshal(r)
		if err != nil || !utf8.Valid(b) {
			t.Fatalf("%q became no result: %v", data, err)
		}
		var again ModelResult
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if r.Status == Success {
			var said string
			if err := json.Unmarshal(r.Output, &said); err != nil || said != j.message {
				t.Fatalf("%q was said, %s handed on", j.message, r.Output)
			}
		}
	})
}
