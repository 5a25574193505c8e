package fakegoals

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// call asks the fake with the key, and gives the status and what the answer holds.
func call(t *testing.T, s *Server, key, method, target, body string) (int, http.Header, map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	r.Header.Set("Idempotency-Key", "the same each time")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s %s: %s: %v", method, target, b, err)
	}
	return resp.StatusCode, resp.Header, v
}

// TestRules holds the fake to what is known of the API.
func TestRules(t *testing.T) {
	t.Parallel()
	const submit = `{"fileIds":[],"userWorkflowId":"uw_demo","slotAnswers":null}`
	s := Start(t, Options{Key: "k", Stages: []Stage{{"ready", nil}, {"executing", nil}}})
	for _, tt := range []struct {
		key, line, body string
		status          int
		job             string // the status that the answer gives it
	}{
		{"", "POST /api/v1/jobs/goal", submit, 401, ""},
		{"other", "GET /api/v1/user_workflows", "", 401, ""},
		{"k", "POST /api/v1/jobs/goal", `{"fileIds":[],"userWorkflowId":"uw_demo","goalText":"both","slotAnswers":null}`, 422, ""},
		{"k", "POST /api/v1/jobs/goal", `{"userWorkflowId":"uw_demo"}`, 422, ""},
		{"k", "POST /api/v1/jobs/goal", `{"fileIds":[],"userWorkflowId":"uw_demo","slotAnswers":[{"id":"x"}]}`, 422, ""},
		{"k", "POST /api/v1/jobs/goal", strings.Replace(submit, "uw_demo", "uw_none", 1), 404, ""},
		{"k", "POST /api/v1/jobs/goal", submit, 201, "ready"},
		{"k", "POST /api/v1/jobs/goal", submit, 201, "ready"}, // the key of the request is ignored
		{"k", "GET /api/v1/jobs/goal/job-3", "", 404, ""},
		{"k", "GET /api/v1/jobs/goal/job-1", "", 200, "ready"}, // and stays so
		{"k", "GET /api/v1/jobs/goal/job-1", "", 200, "ready"},
		{"k", "POST /api/v1/jobs/goal/job-1/confirm", "", 422, ""},
		{"k", "POST /api/v1/jobs/goal/job-1/confirm", "{}", 202, ""},
		{"k", "POST /api/v1/jobs/goal/job-1/confirm", "{}", 409, ""},
		{"k", "GET /api/v1/jobs/goal/job-1", "", 200, "executing"},
		{"k", "POST /api/v1/jobs/goal/job-1/retry", `{"rerunMode":"fresh_rerun"}`, 409, ""},
		{"k", "POST /api/v1/jobs/goal/job-1/cancel", "{}", 200, "cancelled"},
		{"k", "POST /api/v1/jobs/goal/job-1/cancel", "{}", 409, ""},
		{"k", "POST /api/v1/jobs/goal/job-1/retry", `{"rerunMode":"another"}`, 422, ""},
		{"k", "POST /api/v1/jobs/goal/job-1/retry", `{"rerunMode":"retry_same_thread"}`, 200, "ready"},
		{"k", "GET /api/v1/user_workflows?limit=101", "", 422, ""},
		{"k", "GET /api/v1/anything", "", 404, ""},
	} {
		method, target, _ := strings.Cut(tt.line, " ")
		status, _, v := call(t, s, tt.key, method, target, tt.body)
		if status != tt.status || tt.job != "" && v["status"] != tt.job {
			t.Errorf("%s %s: %d %v", tt.line, tt.body, status, v)
		}
	}
	if jobs := s.Jobs(); len(jobs) != 2 || jobs[0].Attempts != 2 || s.Alive() != 2 {
		t.Errorf("jobs %v", jobs)
	}
	for i := range 10 {
		status, h, _ := call(t, s, "k", "POST", "/api/v1/jobs/goal/job-2/cancel", "{}")
		if limited := i >= 8; limited != (status == 429 && h.Get("Retry-After") != "") { // two were above
			t.Errorf("cancellation %d: %d", i+3, status)
		}
	}
}
