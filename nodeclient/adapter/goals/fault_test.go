package goals

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakegoals"
)

// TestFaults makes every kind of trouble at every step of a run. Each time there is one typed result, and the job has ended or the error says
// that it may not have.
func TestFaults(t *testing.T) {
	t.Parallel()
	const (
		cutOff = "unreachable: provider_unreachable"
		broken = "bad_response: bad_provider_response"
		failed = "bad_response: provider_error"
		refuse = "bad_response: provider_refused"
		busy   = "busy: provider_busy"
		denied = "lease: credential_rejected"
	)
	status := func(code int) fakegoals.Fault { return fakegoals.Fault{Kind: "status", Status: code} }
	kind := func(k string) fakegoals.Fault { return fakegoals.Fault{Kind: k} }
	elsewhere := fakegoals.Start(t, fakegoals.Options{})
	var wg sync.WaitGroup
	for _, tt := range []struct {
		fault  fakegoals.Fault
		detail string
		asked  int  // how often a poll or confirmation is asked
		lost   bool // a submission that may have made a job
	}{
		{status(400), refuse, 1, false},
		{status(401), denied, 1, false},
		{status(402), failed, 1, false},
		{status(403), denied, 1, false},
		{status(404), failed, 1, false}, // of a submission: the workflow
		{status(408), failed, 5, true},
		{status(409), failed, 1, false}, // of a confirmation: no failure
		{status(422), refuse, 1, false},
		{status(429), busy, 5, false},
		{status(500), failed, 5, true},
		{status(501), failed, 1, true},
		{status(502), failed, 5, true},
		{status(503), busy, 5, true},
		{status(504), failed, 5, true},
		{kind("close"), cutOff, 1, true},
		{kind("reset"), cutOff, 1, true},
		{kind("lost"), cutOff, 1, true},
		{kind("cut"), cutOff, 1, true},
		{kind("garbage"), broken, 1, true},
		{kind("bighead"), broken, 1, true},
		{fakegoals.Fault{Kind: "redirect", To: elsewhere.URL() + "/api/v1/jobs/goal"}, failed, 1, false},
		{kind("html"), broken, 1, true},
		{kind("empty"), broken, 1, true},
		{kind("list"), broken, 1, true},
		{kind("deep"), broken, 1, true},
		{kind("huge"), broken, 1, true},
		{kind("twice"), broken, 1, true},
		{kind("notutf8"), broken, 1, true},
	} {
		for _, step := range []string{fakegoals.Submission, fakegoals.Poll, fakegoals.Confirmation} {
			f := tt.fault
			f.Step = step
			name := step + " " + f.Kind + " " + itoa(f.Status)
			first := stage("executing")
			if step == fakegoals.Confirmation {
				first = stage("ready")
			}
			s := server(t, first, booked)
			s.SetFault(t, f)
			want, asked := tt.detail+": "+step, tt.asked
			answered := f.Status
			if f.Kind == "redirect" {
				answered = 307
			}
			if answered != 0 {
				want += " was answered " + itoa(answered)
			}
			switch {
			case step == fakegoals.Submission:
				if f.Status == 404 {
					want = strings.Replace(want, failed, "model_missing: no_such_model", 1)
				}
				if tt.lost {
					want += "; a job may be running"
				}
				if f.Status != 429 {
					asked = 1 // nobody knows whether it made a job
				}
			case step == fakegoals.Confirmation && (f.Status == 409 || slices.Contains([]string{"html", "empty", "list", "deep", "twice", "notutf8"}, f.Kind)):
				continue // what a confirmation is answered with does not matter, as long as it is a yes; see TestConfirmOnce
			}
			wg.Go(func() {
				rep := drive(t.Context(), t, s.URL(), demo(30*time.Second))
				if r := rep.Result; r.Status != edge.Unavailable || r.DegradeDetail != want {
					t.Errorf("%s: %s %q, want %q", name, r.Status, r.DegradeDetail, want)
				}
				if n := s.Count(step); n != asked {
					t.Errorf("%s: asked %d times, want %d", name, n, asked)
				}
				if rep.NotSent || rep.delivered == 1 && strings.HasPrefix(want, cutOff) != (rep.Result.DegradeReason == edge.ServerUnreachable) {
					t.Errorf("%s: not sent %t, reason %s", name, rep.NotSent, rep.Result.DegradeReason)
				}
				if step == fakegoals.Submission {
					if tt.lost != errors.Is(rep.err, errLost) || s.Count(fakegoals.Cancellation) != 0 || len(s.Jobs()) > 1 {
						t.Errorf("%s: %v, jobs %v", name, rep.err, s.Jobs())
					}
				} else if rep.err != nil || s.Alive() != 0 || s.Count(fakegoals.Cancellation) != 1 {
					t.Errorf("%s: %v, jobs %v", name, rep.err, s.Jobs())
				}
				if s.Holds(testKey) {
					t.Errorf("%s: the key stands elsewhere too", name)
				}
			})
		}
	}
	wg.Wait()
	if n := len(elsewhere.Log()); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func itoa(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// Trouble that passes costs nothing but time: what is safe to ask again is, with the same key.
func TestTroublePasses(t *testing.T) {
	t.Parallel()
	s := server(t, stage("ready"), booked)
	for _, f := range []fakegoals.Fault{
		{Step: fakegoals.Submission, Kind: "status", Status: 429, Times: 2},
		{Step: fakegoals.Poll, Kind: "status", Status: 502, Times: 2},
		{Step: fakegoals.Confirmation, Kind: "status", Status: 503, RetryAfter: "0", Times: 2},
	} {
		s.SetFault(t, f)
	}
	rep := drive(t.Context(), t, s.URL(), demo(30*time.Second))
	if rep.Result.Status != edge.Success || len(s.Jobs()) != 1 {
		t.Errorf("%+v, %d jobs", rep.Result, len(s.Jobs()))
	}
	keys := map[string]map[string]bool{}
	for _, r := range s.Log() {
		if keys[r.Step] == nil {
			keys[r.Step] = map[string]bool{}
		}
		keys[r.Step][r.Header.Get("Idempotency-Key")] = true
	}
	if s.Count(fakegoals.Submission) != 3 || len(keys[fakegoals.Submission]) != 1 || s.Count(fakegoals.Confirmation) != 3 || len(keys[fakegoals.Confirmation]) != 1 {
		t.Errorf("keys %v", keys)
	}
}

// The cloud's own no is what it says: a key that it does not take, a workflow that it does not have, a body that it does not like.
func TestTheServersOwnNo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o      fakegoals.Options
		detail string
	}{
		"another key":      {fakegoals.Options{Key: "ck-other"}, "lease: credential_rejected: submission was answered 401"},
		"a key in fetters": {fakegoals.Options{Key: testKey, Forbidden: true}, "lease: credential_rejected: submission was answered 403"},
		"no such workflow": {fakegoals.Options{Key: testKey, Workflows: []fakegoals.Workflow{{ID: "uw_other"}}}, "model_missing: no_such_model: submission was answered 404"},
	} {
		s := fakegoals.Start(t, tt.o)
		rep := drive(t.Context(), t, s.URL(), demo(0))
		if rep.Result.DegradeDetail != tt.detail || rep.err != nil || len(s.Log()) != 1 {
			t.Errorf("%s: %q, %v, %d requests", name, rep.Result.DegradeDetail, rep.err, len(s.Log()))
		}
	}
}

// An answer about another job is not taken for ours.
func TestAnswerAboutAnotherJob(t *testing.T) {
	t.Parallel()
	s := server(t, stage("executing"), stage("completed", "jobSpecId", "job-2", "agentMessage", "For another."))
	rep := drive(t.Context(), t, s.URL(), demo(0))
	if rep.Result.DegradeDetail != "bad_response: bad_provider_response: poll" || rep.Result.Output != nil {
		t.Errorf("%+v", rep.Result)
	}
}

// An id that is no id never becomes a path.
func TestHostileJobIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []any{"", "../user_workflows/uw_demo", "a b", "a\r\nX: y", "%2e%2e", "a/cancel", 7, nil, strings.Repeat("x", 129)} {
		s := server(t, stage("executing", "jobSpecId", id))
		rep := drive(t.Context(), t, s.URL(), demo(0))
		if !strings.HasPrefix(rep.Result.DegradeDetail, "bad_response: bad_provider_response") || len(s.Log()) != 1 {
			t.Errorf("%v: %q, %d requests", id, rep.Result.DegradeDetail, len(s.Log()))
		}
	}
}

// TestOfflineFirst is row A05 for the cloud: however the network is cut, a typed result, and word that nothing ran where that is known.
func TestOfflineFirst(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel answers, and nobody else ever does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	plain, secure := server(t, booked), fakegoals.Start(t, fakegoals.Options{TLS: true})
	for name, tt := range map[string]struct {
		origin   string
		deadline time.Duration
		notSent  bool
		codes    []edge.DegradeReason
	}{
		"refused":           {fakegoals.Gone(t), 0, true, []edge.DegradeReason{edge.ServerUnreachable}},
		"no such name":      {"https://goals.invalid", 8 * time.Second, true, []edge.DegradeReason{edge.ServerUnreachable}},
		"a black hole":      {"https://192.0.2.1", time.Second, false, []edge.DegradeReason{edge.ServerUnreachable, edge.DeadlineExceeded}},
		"nobody answers":    {"http://" + silent.Addr().String(), 300 * time.Millisecond, false, []edge.DegradeReason{edge.DeadlineExceeded}},
		"TLS with nobody":   {"https://" + silent.Addr().String(), 300 * time.Millisecond, false, []edge.DegradeReason{edge.DeadlineExceeded, edge.ServerUnreachable}},
		"a wrong name":      {secure.URL(), 0, true, []edge.DegradeReason{edge.ServerUnreachable}},
		"no TLS there":      {strings.Replace(plain.URL(), "http://", "https://", 1), 0, true, []edge.DegradeReason{edge.ServerUnreachable}},
		"TLS where none is": {strings.Replace(secure.URL(), "https://", "http://", 1), 0, false, []edge.DegradeReason{edge.ServerUnreachable, edge.OtherError}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := New("cloud", tt.origin)
			if err != nil {
				t.Fatal(err)
			}
			p := &purse{}
			var o Outcome
			n := 0
			begin := time.Now()
			_ = Run(t.Context(), a.Caller(nil, p.credential), demo(tt.deadline), func(got Outcome) { o, n = got, n+1 })
			ok := false
			for _, c := range tt.codes {
				ok = ok || o.Result.DegradeReason == c
			}
			if n != 1 || o.Result.Status != edge.Unavailable || !ok || tt.notSent && !o.NotSent {
				t.Errorf("%d results, %+v", n, o)
			}
			if d := time.Since(begin); d > tt.deadline+SettleTime+6*time.Second {
				t.Errorf("it took %v", d)
			}
			valid(t, o.Result)
		})
	}
}

// The server dies under a run: the result is there at once, and the error says what nobody can know.
func TestServerDies(t *testing.T) {
	t.Parallel()
	s := server(t, stage("executing"))
	s.SetFault(t, fakegoals.Fault{Step: fakegoals.Poll, Kind: "hang"})
	go func() {
		s.Await(t, "a poll", func() bool { return s.Count(fakegoals.Poll) > 0 })
		s.Close()
	}()
	rep := drive(context.WithoutCancel(t.Context()), t, s.URL(), demo(time.Minute))
	if rep.Result.DegradeReason != edge.ServerUnreachable || rep.NotSent || rep.err == nil {
		t.Errorf("%+v, %v", rep.Outcome, rep.err)
	}
}
