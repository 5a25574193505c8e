package goals

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakegoals"
)

// TestCloudMapping is row A06 of the checklist, and the table of the cloud placement.
func TestCloudMapping(t *testing.T) {
	t.Parallel()
	message := func(s string) fakegoals.Stage { return stage("completed", "agentMessage", s) }
	detail := map[string]any{"reason": "ITERATION_LIMIT", "limit": 12, "reached": 12}
	for name, tt := range map[string]struct {
		end    fakegoals.Stage
		status edge.Status
		reason edge.DegradeReason
		detail string
		output string
	}{
		"completed":            {booked, edge.Success, "", "", `"Booked."`},
		"partial":              {stage("partial", "agentMessage", "Half."), edge.Success, "", "", `"Half."`},
		"as it was said":       {message(" \"<a&b>\"\u2028\n"), edge.Success, "", "", `" \"<a&b>\"` + "\u2028" + `\n"`},
		"blank":                {message(" \t\r\n\u00a0\u3000\x1c"), edge.Uncertain, "", "the job is completed and says nothing", ""},
		"empty":                {message(""), edge.Uncertain, "", "the job is completed and says nothing", ""},
		"null":                 {stage("partial", "agentMessage", nil), edge.Uncertain, "", "the job is partial and says nothing", ""},
		"cancelled":            {stage("cancelled", "agentMessage", "Nearly."), edge.Uncertain, "", "the job stopped: cancelled", ""},
		"slots_pending":        {stage("slots_pending"), edge.Uncertain, "", "the job stopped: slots_pending", ""},
		"ready_with_preview":   {stage("ready_with_preview"), edge.Uncertain, "", "the job stopped: ready_with_preview", ""},
		"failed":               {stage("failed"), edge.Unavailable, edge.OtherError, "bad_response: provider_error: the job failed", ""},
		"failed at a ceiling":  {stage("failed", "errorCode", "ITERATION_LIMIT", "errorDetail", detail, "suggestedAction", "upgrade"), edge.Unavailable, edge.OtherError, "bad_response: provider_error: the job failed, ITERATION_LIMIT, limit 12, reached 12, suggested upgrade", ""},
		"null is not zero":     {stage("failed", "errorDetail", map[string]any{"reason": "TOKEN_BUDGET", "limit": nil, "reached": 0}), edge.Unavailable, edge.OtherError, "bad_response: provider_error: the job failed, TOKEN_BUDGET, reached 0", ""},
		"its words stay there": {stage("failed", "errorMessage", "for Bern", "errorCode", "for Bern", "suggestedAction", "Bern"), edge.Unavailable, edge.OtherError, "bad_response: provider_error: the job failed", ""},
		"too long":             {message(strings.Repeat("x", 1<<20)), edge.Unavailable, edge.OutputUnparseable, "the answer is too long", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server(t, tt.end)
			rep := drive(t.Context(), t, s.URL(), demo(0))
			r := rep.Result
			if r.Status != tt.status || r.DegradeReason != tt.reason || r.DegradeDetail != tt.detail || string(r.Output) != tt.output {
				t.Errorf("got %s %s %q %.60s", r.Status, r.DegradeReason, r.DegradeDetail, r.Output)
			}
			if r.ModelID != "uw_demo" || r.ModelVersion != "cloud" || rep.JobID != "job-1" || rep.NotSent || rep.err != nil {
				t.Errorf("%s %s, job %q, %v", r.ModelID, r.ModelVersion, rep.JobID, rep.err)
			}
			if (r.Status == edge.Success) != (len(r.Evidence) == 1) || s.Alive() != 0 || s.Count(fakegoals.Confirmation) != 0 {
				t.Errorf("%d pieces of evidence, %d jobs alive, %d confirmations", len(r.Evidence), s.Alive(), s.Count(fakegoals.Confirmation))
			}
		})
	}
}

// TestEvidence is row A07 for the cloud: a success cites its job, exactly.
func TestEvidence(t *testing.T) {
	t.Parallel()
	s := server(t, stage("executing"), stage("completed", "agentMessage", "Booked.", "attemptId", "attempt-7"))
	rep := drive(t.Context(), t, s.URL(), demo(0))
	b, err := json.Marshal(rep.Result.Evidence)
	if err != nil || string(b) != `[{"source":"convilyn://jobs/job-1","snippet":null,"offset":null}]` {
		t.Errorf("%s %v", b, err)
	}
	if rep.Result.ModelVersion != "attempt-7" {
		t.Errorf("version %s", rep.Result.ModelVersion)
	}
}

// TestIdemGolden is row A14 for jobs: a result of the cloud is filed under its job, so that a second delivery has the same key.
func TestIdemGolden(t *testing.T) {
	t.Parallel()
	s := server(t, booked)
	rep := drive(t.Context(), t, s.URL(), demo(0))
	want, err := edge.IdempotencyKey("job-1", "completed", nil, []byte(`{"output":"Booked."}`))
	if err != nil || want != "idem:039678e9c0c80e3397920ab92c4ad0b9465229dd5d07baa03e8c791e0c194d5a" {
		t.Fatal(want, err)
	}
	for _, run := range []string{"run-1", "run-2"} {
		a, err := edge.NewAnswer(run, rep.JobID, &edge.Request{}, edge.Decision{Placement: edge.Cloud}, rep.Result)
		if err != nil || a.IdempotencyKey != want {
			t.Errorf("%s: %s %v", run, a.IdempotencyKey, err)
		}
	}
}

// TestWire holds every request of a run to what the API takes.
func TestWire(t *testing.T) {
	t.Parallel()
	s := fakegoals.Start(t, fakegoals.Options{Key: testKey})
	var states []edge.RunState
	g := demo(0)
	g.Slots = edge.Input{{Name: "city", Text: "Bern <é>"}, {Name: "empty"}, {Name: "when", Text: " "}}
	g.Progress = func(state edge.RunState) { states = append(states, state) }
	rep := drive(t.Context(), t, s.URL(), g)
	if rep.Result.Status != edge.Success || rep.err != nil {
		t.Fatalf("%+v %v", rep.Result, rep.err)
	}
	var seen []string
	keys := map[string]bool{}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for _, r := range s.Log() {
		seen = append(seen, r.Method+" "+r.Target+" "+string(r.Body))
		if r.Proto != "HTTP/1.1" || fmt.Sprint(r.Header["Authorization"]) != "[Bearer "+testKey+"]" || r.Header.Get("Accept") != "application/json" {
			t.Errorf("%s: %s, %v", r.Step, r.Proto, r.Header)
		}
		key := r.Header.Get("Idempotency-Key")
		if mutates := r.Method != "GET"; mutates != uuid.MatchString(key) || mutates != (r.Header.Get("Content-Type") == "application/json") || mutates && keys[key] {
			t.Errorf("%s: key %q, content type %q", r.Step, key, r.Header.Get("Content-Type"))
		}
		keys[key] = true
	}
	look := "GET /api/v1/jobs/goal/job-1 "
	want := []string{
		`POST /api/v1/jobs/goal {"fileIds":[],"userWorkflowId":"uw_demo","slotAnswers":[{"slotId":"city","value":"Bern <é>"},{"slotId":"when","value":" "}]}`,
		look, look, `POST /api/v1/jobs/goal/job-1/confirm {}`, look, look, look,
	}
	if strings.Join(seen, "\n") != strings.Join(want, "\n") {
		t.Errorf("the wire had\n%s", strings.Join(seen, "\n"))
	}
	if fmt.Sprint(states) != "[queued generating]" {
		t.Errorf("progress %v", states)
	}
	if s.Holds(testKey) {
		t.Error("the key stands elsewhere too")
	}
}

func TestSlotsAllEmptyAreNull(t *testing.T) {
	t.Parallel()
	for _, slots := range []edge.Input{nil, {{Name: "city"}}} {
		s := server(t, booked)
		g := demo(0)
		g.Slots = slots
		drive(t.Context(), t, s.URL(), g)
		if got := string(s.Log()[0].Body); got != `{"fileIds":[],"userWorkflowId":"uw_demo","slotAnswers":null}` {
			t.Errorf("submitted %s", got)
		}
	}
}

// Slots of a size that does not fit beside the head travel whole.
func TestLongSlots(t *testing.T) {
	t.Parallel()
	s := server(t, booked)
	g := demo(0)
	g.Slots = edge.Input{{Name: "text", Text: strings.Repeat("\u00e9\n", 300<<10)}}
	if rep := drive(t.Context(), t, s.URL(), g); rep.Result.Status != edge.Success || len(s.Log()[0].Body) < 1<<20 {
		t.Errorf("%+v after %d bytes", rep.Result, len(s.Log()[0].Body))
	}
}

func TestOnlyOwnWorkflowsAreSubmitted(t *testing.T) {
	t.Parallel()
	s := server(t, booked)
	for _, id := range []string{"", "uw_", "wf_demo", "uw_a/../b", "uw_\"}", "UW_demo", "uw_" + strings.Repeat("x", 200)} {
		rep := drive(t.Context(), t, s.URL(), Goal{Workflow: id})
		if rep.Result.DegradeDetail != "refused: bad_request" || !rep.NotSent {
			t.Errorf("%q: %+v", id, rep.Outcome)
		}
	}
	if n := len(s.Log()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A ready job is confirmed once, however long it takes to notice; a 409 says that somebody else was faster.
func TestConfirmOnce(t *testing.T) {
	t.Parallel()
	s := server(t, stage("ready"), stage("ready", "progress", 1), booked)
	rep := drive(t.Context(), t, s.URL(), demo(2500*time.Millisecond))
	if n := s.Count(fakegoals.Confirmation); n != 1 || rep.Result.DegradeReason != edge.DeadlineExceeded || s.Alive() != 0 {
		t.Errorf("%d confirmations, %+v, %d alive", n, rep.Result, s.Alive())
	}
	s = server(t, stage("ready"), booked)
	s.SetFault(t, fakegoals.Fault{Step: fakegoals.Confirmation, Kind: "status", Status: 409})
	rep = drive(t.Context(), t, s.URL(), demo(1500*time.Millisecond))
	if rep.Result.DegradeReason != edge.DeadlineExceeded || s.Count(fakegoals.Poll) == 0 {
		t.Errorf("a 409 ended the run: %+v", rep.Result)
	}
}

// TestRunsIndependent: as many jobs as runs, though they ask the same.
func TestRunsIndependent(t *testing.T) {
	t.Parallel()
	s := server(t, stage("executing"), booked)
	var wg sync.WaitGroup
	var mu sync.Mutex
	jobs := map[string]bool{}
	for range 100 {
		wg.Go(func() {
			rep := drive(t.Context(), t, s.URL(), demo(20*time.Second))
			if rep.Result.Status != edge.Success {
				t.Errorf("%+v", rep.Result)
			}
			mu.Lock()
			jobs[rep.JobID] = true
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(jobs) != 100 || len(s.Jobs()) != 100 {
		t.Errorf("%d jobs for 100 runs, %d seen", len(jobs), len(s.Jobs()))
	}
}

// TestDeadline is row A03: the result comes with the deadline, and the job is not left running, whatever the run was waiting for.
func TestDeadline(t *testing.T) {
	t.Parallel()
	const deadline = 1300 * time.Millisecond
	var wg sync.WaitGroup
	for name, tt := range map[string]struct {
		first string // the status that the submission is answered with
		fault fakegoals.Fault
		left  string // of what cannot be ended, for the error
	}{
		"never ends":           {first: "executing"},
		"poll hangs":           {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Poll, Kind: "hang"}},
		"poll is slow":         {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Poll, Kind: "slow", Delay: time.Minute}},
		"confirmation hangs":   {first: "ready", fault: fakegoals.Fault{Step: fakegoals.Confirmation, Kind: "hang"}},
		"submission is slow":   {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Submission, Kind: "slow", Delay: 2 * time.Second}},
		"submission hangs":     {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Submission, Kind: "hang"}, left: "a job may be running"},
		"cancellation is busy": {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Cancellation, Kind: "status", Status: 503, Times: 2}},
		"cancellation is cut":  {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Cancellation, Kind: "reset", Times: 2}},
		"cancellation is lost": {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Cancellation, Kind: "lost", Times: 1}},
		"cancellation hangs":   {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Cancellation, Kind: "hang"}, left: "job job-1 may still be running"},
		"cancellation refused": {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Cancellation, Kind: "status", Status: 403}, left: "job job-1 may still be running"},
		"cancellation limited": {first: "executing", fault: fakegoals.Fault{Step: fakegoals.Cancellation, Kind: "status", Status: 429, RetryAfter: "300"}, left: "job job-1 may still be running"},
	} {
		s := server(t, stage(tt.first), stage("executing"))
		if tt.fault.Kind != "" {
			s.SetFault(t, tt.fault)
		}
		wg.Go(func() {
			rep := drive(t.Context(), t, s.URL(), demo(deadline))
			if r := rep.Result; r.Status != edge.Unavailable || r.DegradeReason != edge.DeadlineExceeded || r.DegradeDetail != "deadline_ms=1300 elapsed" {
				t.Errorf("%s: %s %s %q", name, r.Status, r.DegradeReason, r.DegradeDetail)
			}
			if rep.took < deadline || rep.took > deadline+slack {
				t.Errorf("%s: the result took %v", name, rep.took)
			}
			if tt.left == "" && (rep.err != nil || s.Alive() != 0) || tt.left != "" && (rep.err == nil || !strings.Contains(rep.err.Error(), tt.left)) {
				t.Errorf("%s: %d jobs alive, %v", name, s.Alive(), rep.err)
			}
		})
	}
	wg.Wait()
}

// TestCancelEndsTheJob: the caller leaves at any step; the job ends with it, in time that is bounded.
func TestCancelEndsTheJob(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		step string
		kind string
	}{
		{fakegoals.Submission, "slow"}, {fakegoals.Poll, "hang"}, {fakegoals.Confirmation, "hang"}, {fakegoals.Confirmation, "stalled"},
	} {
		t.Run(tt.step+" "+tt.kind, func(t *testing.T) {
			t.Parallel()
			s := server(t, stage("ready"), stage("executing"))
			if tt.step == fakegoals.Poll {
				s = server(t, stage("executing"))
			}
			s.SetFault(t, fakegoals.Fault{Step: tt.step, Kind: tt.kind, Delay: 300 * time.Millisecond})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var left time.Time
			go func() {
				s.Await(t, tt.step, func() bool { return s.Count(tt.step) > 0 })
				left = time.Now()
				cancel()
			}()
			var gone time.Duration
			a, err := New("cloud", s.URL())
			if err != nil {
				t.Fatal(err)
			}
			var o Outcome
			err = Run(ctx, a.Caller(nil, (&purse{}).credential), demo(time.Minute), func(got Outcome) { o, gone = got, time.Since(left) })
			if o.Result.DegradeDetail != "canceled" || o.Result.DegradeReason != edge.OtherError || gone > slack {
				t.Errorf("%+v after %v", o.Result, gone)
			}
			if err != nil || len(s.Jobs()) != 1 || s.Jobs()[0].Status != "cancelled" {
				t.Errorf("%v, jobs %v", err, s.Jobs())
			}
			for _, r := range s.Log() {
				if r.Step == fakegoals.Cancellation && (string(r.Body) != "{}" || r.Target != "/api/v1/jobs/goal/job-1/cancel") {
					t.Errorf("canceled with %s %s", r.Target, r.Body)
				}
			}
		})
	}
}

// A run whose caller has gone before it began submits nothing.
func TestCanceledBeforeItBegan(t *testing.T) {
	t.Parallel()
	s := server(t, booked)
	a, err := New("cloud", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	first, err := a.Connect(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = Run(ctx, a.Caller(first, (&purse{}).credential), demo(0), func(o Outcome) {
		if o.Result.DegradeDetail != "canceled" {
			t.Errorf("%+v", o.Result)
		}
	})
	if err != nil || len(s.Log()) != 0 {
		t.Errorf("%v, %d requests", err, len(s.Log()))
	}
}

// A cancellation that is answered and ignored is not repeated: the API takes ten in five minutes.
func TestCancellationIgnored(t *testing.T) {
	t.Parallel()
	s := fakegoals.Start(t, fakegoals.Options{Key: testKey, Stages: []fakegoals.Stage{stage("executing")}, IgnoreCancel: true})
	rep := drive(t.Context(), t, s.URL(), demo(100*time.Millisecond))
	if s.Count(fakegoals.Cancellation) != 1 || rep.err != nil || rep.returned > 2*time.Second {
		t.Errorf("%d cancellations, %v, %v", s.Count(fakegoals.Cancellation), rep.err, rep.returned)
	}
}
