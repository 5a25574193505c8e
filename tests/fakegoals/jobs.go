package fakegoals

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

const jobsPath = "/api/v1/jobs/goal"

// The calls on jobs.
const (
	Submission   = "submission"
	Poll         = "poll"
	Confirmation = "confirmation"
	Cancellation = "cancellation"
	Retry        = "retry"
)

// Stage is what a job is until it is looked at: the status, and further members of its JSON.
type Stage struct {
	Status string
	More   map[string]any // such as progress, agentMessage, errorCode
}

// DefaultStages lead to a success by way of a confirmation.
var DefaultStages = []Stage{
	{"created", nil}, {"analyzing", map[string]any{"progress": 5}}, {"ready", map[string]any{"progress": 10}}, {"confirmed", nil},
	{"queued", nil}, {"executing", map[string]any{"progress": 40, "attemptId": "attempt-7"}},
	{"completed", map[string]any{"progress": 100, "attemptId": "attempt-7", "agentMessage": "Booked."}},
}

// Job is a job as it stands.
type Job struct {
	ID       string
	Status   string
	Attempts int // by retries
}

type job struct {
	Job
	at int // its stage
}

// Jobs returns all jobs, in the order of their creation.
func (s *Server) Jobs() []Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Job, len(s.jobs))
	for i, j := range s.jobs {
		out[i] = j.Job
	}
	return out
}

// Alive returns how many jobs have not ended: those that are charged for nobody.
func (s *Server) Alive() (n int) {
	for _, j := range s.Jobs() {
		if !ended(j.Status) {
			n++
		}
	}
	return n
}

func ended(status string) bool {
	return slices.Contains([]string{"completed", "partial", "failed", "cancelled"}, status)
}

// waits tells the statuses that a look does not change.
func waits(status string) bool {
	return ended(status) || status == "ready" || status == "ready_with_preview" || status == "slots_pending"
}

// step names the call that a request is.
func step(r *http.Request) string {
	if r.Method+" "+r.URL.Path == "POST "+jobsPath {
		return Submission
	}
	rest, ok := strings.CutPrefix(r.URL.Path, jobsPath+"/")
	if !ok {
		return workflowStep(r)
	}
	_, verb, _ := strings.Cut(rest, "/")
	return map[string]string{
		"GET ": Poll, "POST confirm": Confirmation, "POST cancel": Cancellation, "POST retry": Retry,
	}[r.Method+" "+verb]
}

// create makes a job, whatever the Idempotency-Key. The caller holds mu.
func (s *Server) create(body []byte) answer {
	var in struct {
		FileIDs        []string         `json:"fileIds"`
		WorkflowID     string           `json:"workflowId"`
		UserWorkflowID string           `json:"userWorkflowId"`
		GoalText       string           `json:"goalText"`
		SlotAnswers    []map[string]any `json:"slotAnswers"`
		LLMConfigID    string           `json:"llmConfigId"`
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return problem(http.StatusUnprocessableEntity, "INVALID_BODY")
	}
	sources := 0
	for _, v := range []string{in.WorkflowID, in.UserWorkflowID, in.GoalText} {
		if v != "" {
			sources++
		}
	}
	if sources != 1 || in.FileIDs == nil {
		return problem(http.StatusUnprocessableEntity, "INVALID_BODY")
	}
	for _, slot := range in.SlotAnswers {
		id, _ := slot["slotId"].(string)
		if _, ok := slot["value"]; !ok || id == "" || len(slot) != 2 {
			return problem(http.StatusUnprocessableEntity, "INVALID_SLOT")
		}
	}
	if in.UserWorkflowID != "" && !slices.ContainsFunc(s.flows, func(w Workflow) bool { return w.ID == in.UserWorkflowID }) {
		return problem(http.StatusNotFound, "WORKFLOW_NOT_FOUND")
	}
	j := &job{Job: Job{ID: fmt.Sprintf("job-%d", len(s.jobs)+1), Status: s.opts.Stages[0].Status, Attempts: 1}}
	s.jobs = append(s.jobs, j)
	return reply(http.StatusCreated, s.show(j))
}

// onJob carries a call on a job out. The caller holds mu.
func (s *Server) onJob(step, id string, body []byte) answer {
	i := slices.IndexFunc(s.jobs, func(j *job) bool { return j.ID == id })
	if i < 0 {
		return problem(http.StatusNotFound, "JOB_NOT_FOUND")
	}
	j := s.jobs[i]
	switch step {
	case Poll:
		if !waits(j.Status) {
			s.advance(j)
		}
		return reply(http.StatusOK, s.show(j))
	case Confirmation:
		if string(bytes.TrimSpace(body)) != "{}" {
			return problem(http.StatusUnprocessableEntity, "INVALID_BODY")
		}
		if !strings.HasPrefix(j.Status, "ready") {
			return problem(http.StatusConflict, "NOT_READY")
		}
		s.advance(j)
		return reply(http.StatusAccepted, map[string]any{"jobSpecId": j.ID, "accepted": true})
	case Cancellation:
		return s.cancel(j)
	}
	return s.retry(j, body)
}

func (s *Server) advance(j *job) {
	if j.at+1 < len(s.opts.Stages) {
		j.at++
		j.Status = s.opts.Stages[j.at].Status
	}
}

const (
	cancelWindow = 300 * time.Second
	cancelLimit  = 10
)

func (s *Server) cancel(j *job) answer {
	now := time.Now()
	s.cancels = slices.DeleteFunc(s.cancels, func(t time.Time) bool { return now.Sub(t) > cancelWindow })
	if len(s.cancels) >= cancelLimit {
		a := problem(http.StatusTooManyRequests, "RATE_LIMITED")
		a.header = map[string]string{"Retry-After": "300"}
		return a
	}
	s.cancels = append(s.cancels, now)
	switch {
	case ended(j.Status):
		return problem(http.StatusConflict, "JOB_HAS_ENDED")
	case !s.opts.IgnoreCancel:
		j.Status = "cancelled"
	}
	return reply(http.StatusOK, s.show(j))
}

func (s *Server) retry(j *job, body []byte) answer {
	var in struct {
		RerunMode string `json:"rerunMode"`
		Reason    string `json:"reason"`
	}
	if json.Unmarshal(body, &in) != nil || in.RerunMode != "retry_same_thread" && in.RerunMode != "fresh_rerun" || len(in.Reason) > 512 {
		return problem(http.StatusUnprocessableEntity, "INVALID_BODY")
	}
	if !ended(j.Status) {
		return problem(http.StatusConflict, "JOB_IS_ALIVE")
	}
	j.at, j.Status = 0, s.opts.Stages[0].Status
	j.Attempts++
	return reply(http.StatusOK, s.show(j))
}

// show is a job's JSON.
func (s *Server) show(j *job) map[string]any {
	v := map[string]any{
		"progress": 0, "itemVersion": j.at + 1, "attemptId": nil, "pendingSlots": []any{}, "pendingInterrupts": []any{},
		"agentMessage": nil, "errorMessage": nil, "errorCode": nil, "errorDetail": nil, "suggestedAction": "none", "aMemberOfALaterVersion": true,
	}
	maps.Copy(v, s.opts.Stages[j.at].More)
	if _, set := v["jobSpecId"]; !set {
		v["jobSpecId"] = j.ID
	}
	v["status"] = j.Status
	return v
}
