package goals

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// memory is the API without a network, for tests of time. Each request takes the time that delay gives, or its context's end.
type memory struct {
	delay func() time.Duration
	reply func(step string, n int) (status int, body string)

	mu    sync.Mutex
	start time.Time
	log   []string // guarded by mu: step and time
	count map[string]int
	busy  bool // guarded by mu
	alive bool // guarded by mu: there is a job
	over  bool // guarded by mu: Run has returned
	fault string

	retryAfter string
}

func newMemory(reply func(step string, n int) (int, string)) *memory {
	return &memory{reply: reply, start: time.Now(), count: map[string]int{}, delay: func() time.Duration { return 0 }}
}

func stepOf(r *adapter.Request) string {
	switch {
	case r.Method == http.MethodGet:
		return poll
	case strings.HasSuffix(r.Path, "/confirm"):
		return confirmation
	case strings.HasSuffix(r.Path, "/cancel"):
		return cancellation
	}
	return submission
}

// Do implements Doer.
func (m *memory) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	step := stepOf(r)
	m.mu.Lock()
	if m.busy || m.over {
		m.fault = step + " beside another request, or after the end"
	}
	m.busy = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.busy = false
		m.mu.Unlock()
	}()
	if r.Body != nil {
		if _, err := io.ReadAll(r.Body); err != nil {
			return nil, fmt.Errorf("%w: %w", adapter.ErrNotSent, err)
		}
	}
	if d := m.delay(); !sleep(ctx, d/2) {
		return nil, context.Cause(ctx)
	}
	status, body := m.answer(step)
	if d := m.delay(); !sleep(ctx, d/2) {
		return nil, context.Cause(ctx)
	}
	return &adapter.Response{Status: status, Headers: []adapter.Header{{Name: "retry-after", Value: m.retryAfter}}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func (m *memory) answer(step string) (status int, body string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count[step]++
	m.log = append(m.log, fmt.Sprintf("%s %.1f", step, time.Since(m.start).Seconds()))
	status, body = m.reply(step, m.count[step])
	if status/100 == 2 {
		switch {
		case step == submission:
			m.alive = true
		case step == cancellation, strings.Contains(body, `"completed"`):
			m.alive = false
		}
	}
	return status, body
}

func (m *memory) living() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.alive
}

func jobJSON(status string, progress int) string {
	b, err := json.Marshal(map[string]any{"jobSpecId": "job-1", "status": status, "progress": progress, "agentMessage": "Booked."})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestCadence: 1 s, half as long again after each three looks that bring nothing new, 5 s at most; and a minute without anything new is the end.
func TestCadence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(func(string, int) (int, string) { return 201, jobJSON("executing", 0) })
		var got Outcome
		if err := Run(t.Context(), m, demo(10*time.Minute), func(o Outcome) { got = o }); err != nil {
			t.Error(err)
		}
		want := "submission 0.0, poll 1.0, poll 2.0, poll 3.0, poll 4.5, poll 6.0, poll 7.5, poll 9.8, poll 12.0, poll 14.2, " +
			"poll 17.6, poll 21.0, poll 24.4, poll 29.4, poll 34.4, poll 39.4, poll 44.4, poll 49.4, poll 54.4, poll 59.4, cancellation 60.0"
		if log := strings.Join(m.log, ", "); log != want {
			t.Errorf("looked at\n%s, want\n%s", log, want)
		}
		if r := got.Result; r.DegradeReason != edge.DeadlineExceeded || r.DegradeDetail != "idle_ms=60000 elapsed: the job shows nothing new" || r.LatencyMS != 60000 {
			t.Errorf("%+v", r)
		}
	})
}

// A job that moves is looked at each second and may take as long as the run; the deadline then ends it to the moment.
func TestMovingJobIsNotIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(func(_ string, n int) (int, string) { return 200, jobJSON("executing", n) })
		var got Outcome
		if err := Run(t.Context(), m, demo(150500*time.Millisecond), func(o Outcome) { got = o }); err != nil {
			t.Error(err)
		}
		if m.count[poll] != 150 || got.Result.DegradeDetail != "deadline_ms=150500 elapsed" || got.Result.LatencyMS != 150500 || m.alive {
			t.Errorf("%d looks, %+v", m.count[poll], got.Result)
		}
	})
}

// A change of status is news too, and the default deadline is two minutes.
func TestDefaultDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(func(_ string, n int) (int, string) {
			return 200, jobJSON([]string{"analyzing", "queued", "a_status_of_a_later_version"}[n%3], 0)
		})
		var got Outcome
		_ = Run(t.Context(), m, demo(0), func(o Outcome) { got = o })
		if got.Result.DegradeDetail != "deadline_ms=120000 elapsed" || m.count[poll] < 119 {
			t.Errorf("%+v, %d looks", got.Result, m.count[poll])
		}
	})
}

// TestRetryTimes: 0.2 s, twice as long each time, a quarter more or less; what the answer says in seconds wins, up to 30 s; a date says
// nothing.
func TestRetryTimes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		after       string
		least, most time.Duration // of four pauses
	}{
		{"", 2250 * time.Millisecond, 3750 * time.Millisecond},
		{"Sun, 06 Nov 1994 08:49:37 GMT", 2250 * time.Millisecond, 3750 * time.Millisecond},
		{"-1", 2250 * time.Millisecond, 3750 * time.Millisecond},
		{"99999999999999999999", 2250 * time.Millisecond, 3750 * time.Millisecond},
		{"2", 8 * time.Second, 8 * time.Second},
		{"0", 800 * time.Millisecond, 800 * time.Millisecond},
		{"3", 12 * time.Second, 12 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(func(string, int) (int, string) {
				return 429, ""
			})
			m.retryAfter = tt.after
			var got Outcome
			if err := Run(t.Context(), m, demo(10*time.Minute), func(o Outcome) { got = o }); err != nil {
				t.Error(err)
			}
			took := time.Since(m.start)
			if took < tt.least || took > tt.most || m.count[submission] != 5 || got.Result.DegradeDetail != "busy: provider_busy: submission was answered 429" {
				t.Errorf("Retry-After %q: %d requests in %v, %+v", tt.after, m.count[submission], took, got.Result)
			}
		})
	}
}

// What asks for more time than there is gets its no at once; nobody waits for a moment that will not come.
func TestRetryAfterBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(func(string, int) (int, string) {
			return 429, ""
		})
		m.retryAfter = "3600"
		var got Outcome
		_ = Run(t.Context(), m, demo(20*time.Second), func(o Outcome) { got = o })
		if time.Since(m.start) != 0 || got.Result.DegradeDetail != "busy: provider_busy: submission was answered 429" {
			t.Errorf("%v, %+v", time.Since(m.start), got.Result)
		}
		// With more time, 30 s are the most.
		m.start = time.Now()
		_ = Run(t.Context(), m, demo(40*time.Second), func(o Outcome) { got = o })
		if d := time.Since(m.start); d != 30*time.Second {
			t.Errorf("%v", d)
		}
	})
}

// TestSettleIsBounded: a cloud that answers nothing more costs the result nothing and the run five seconds.
func TestSettleIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(func(string, int) (int, string) { return 200, jobJSON("executing", 0) })
		m.delay = func() time.Duration {
			if m.count[poll] == 0 {
				return 0
			}
			return time.Hour
		}
		var at time.Duration
		err := Run(t.Context(), m, demo(7*time.Second), func(Outcome) { at = time.Since(m.start) })
		if at != 7*time.Second || time.Since(m.start) != 7*time.Second+SettleTime || err == nil || !strings.Contains(err.Error(), "job-1") {
			t.Errorf("result after %v, end after %v, %v", at, time.Since(m.start), err)
		}
	})
}

// A receiver of the result that is slow, or that panics, keeps no job running.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(func(string, int) (int, string) { return 200, jobJSON("executing", 0) })
		func() {
			defer func() {
				if recover() == nil || m.living() {
					t.Errorf("the job is alive: %t", m.living())
				}
			}()
			_ = Run(t.Context(), m, demo(time.Second), func(Outcome) {
				time.Sleep(time.Minute)
				if m.living() {
					t.Error("the job is alive while the result is taken")
				}
				panic("a fault of the caller")
			})
		}()
	})
}

// A fault on our side at any step is a result too, takes no other run along, and leaves no job.
func TestFaultsOfOurs(t *testing.T) {
	t.Parallel()
	for _, step := range []string{submission, poll, confirmation, cancellation, "progress"} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(func(s string, _ int) (int, string) {
				if s == step {
					panic("sk-what-was-in-hand")
				}
				return 200, jobJSON("ready", 0)
			})
			g := demo(30 * time.Second)
			g.Progress = func(edge.RunState) {
				if step == "progress" {
					panic("a fault of the caller")
				}
			}
			var got Outcome
			var err error
			func() {
				defer func() {
					if thrown := recover() != nil; thrown != (step == "progress") {
						t.Errorf("%s: panicked %t", step, thrown)
					}
				}()
				err = Run(t.Context(), m, g, func(o Outcome) { got = o })
			}()
			if m.living() != (step == cancellation) {
				t.Errorf("%s: the job is alive: %t", step, m.living())
			}
			text := fmt.Sprint(err, got.Result.DegradeDetail)
			if strings.Contains(text, "sk-what") || step != "progress" && step != cancellation && !strings.HasPrefix(got.Result.DegradeDetail, "internal") {
				t.Errorf("%s: %s", step, text)
			}
			if (err != nil) != (step == submission || step == cancellation) {
				t.Errorf("%s: %v", step, err)
			}
		})
	}
}

// TestCancelRaces ends runs at every moment, in every mixture of slow answers. Each has exactly one result, no request is beside another or after
// the end, and of what the run learned of no job is left.
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	const rounds = 2000
	ends := map[edge.Status]int{}
	for i := range rounds {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(func(step string, n int) (int, string) {
				switch {
				case step == submission && rand.N(4) == 0:
					return 429, ""
				case step == submission:
					return 201, jobJSON("ready", 0)
				case step == poll && n > 2:
					return 200, jobJSON("completed", 100)
				case step == poll:
					return 200, jobJSON("executing", n)
				case step == cancellation && rand.N(4) == 0:
					return 503, ""
				}
				return 202, "{}"
			})
			m.delay = func() time.Duration { return rand.N(600 * time.Millisecond) }
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			defer time.AfterFunc(rand.N(6*time.Second), cancel).Stop()
			results := 0
			err := Run(ctx, m, demo(1+rand.N(6*time.Second)), func(o Outcome) {
				results++
				ends[o.Result.Status]++
			})
			m.mu.Lock()
			m.over = true
			defer m.mu.Unlock()
			if results != 1 || m.fault != "" || err == nil && m.alive || errors.Is(err, errLost) {
				t.Errorf("round %d: %d results, %q, alive %t, %v; %v", i, results, m.fault, m.alive, err, m.log)
			}
		})
	}
	if ends[edge.Success] == 0 || ends[edge.Unavailable] == 0 {
		t.Errorf("too narrow: %v", ends)
	}
}
