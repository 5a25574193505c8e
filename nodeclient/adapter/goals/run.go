package goals

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

const (
	// DefaultDeadline is how long a run may take that does not say.
	DefaultDeadline = 120 * time.Second
	// idleTime is how long a job may show nothing new, neither status nor progress.
	idleTime = 60 * time.Second
	// SettleTime is how long after its result a run may go on to end its job.
	SettleTime = 5 * time.Second
)

// Goal is what a run asks for.
type Goal struct {
	Workflow string        // uw_…
	Slots    edge.Input    // empty ones are left out
	Deadline time.Duration // 0: DefaultDeadline
	Lent     bool          // a credential goes along
	// Progress, if not nil, is told each time that the job has come further, before the result is there.
	Progress func(edge.RunState)
}

// Outcome is what became of a run.
type Outcome struct {
	Result edge.ModelResult
	JobID  string // "" if none is known
	// NotSent says that nobody has seen the goal: the run may be given to another node.
	NotSent bool
}

var (
	errIdle = errors.New("the job shows nothing new")
	errLost = errors.New("the submission was not answered; a job may be running")
)

// Run runs a goal. It calls deliver exactly once, with the result, as soon as there is one: within a moment of the deadline or of the end of ctx.
// It returns when its job has ended or was canceled, at most SettleTime later; an error says that the job may still be running. D is not used
// after that.
func Run(ctx context.Context, d Doer, g Goal, deliver func(Outcome)) (err error) {
	r, stop := start(ctx, d, g)
	defer stop()
	settled := make(chan error, 1)
	settle := sync.OnceFunc(func() { go func() { settled <- r.settle() }() })
	defer func() { // also if deliver or Progress panics: who clears the secret must not be ahead of the cancellation
		settle()
		err = <-settled
	}()
	o := r.work()
	settle() // a slow receiver of the result keeps no job running
	deliver(o)
	return nil
}

// run is one goal under way. One goroutine at a time has it.
type run struct {
	d       Doer
	goal    Goal
	begin   time.Time
	ctx     context.Context // ends with the caller's, at the deadline, and when the job shows nothing new
	idle    *time.Timer     // ends ctx
	late    context.Context // for what must be brought to its end after ctx
	endLate context.CancelFunc

	answered  chan created // gets one; nil when it was taken out, or nothing was submitted
	job       edge.Job     // as it was seen last; zero until the submission was answered
	lost      bool         // there may be a job, and its id is not known
	confirmed bool
	cadence   cadence
	told      edge.RunState
}

type created struct {
	job edge.Job
	err error
}

func start(ctx context.Context, d Doer, g Goal) (r *run, stop func()) {
	if g.Deadline <= 0 {
		g.Deadline = DefaultDeadline
	}
	r = &run{d: d, goal: g, begin: time.Now()}
	r.late, r.endLate = context.WithCancel(context.WithoutCancel(ctx))
	timed, endTimed := context.WithTimeout(ctx, g.Deadline)
	bored, quit := context.WithCancelCause(timed)
	r.ctx = bored
	r.idle = time.AfterFunc(idleTime, func() { quit(errIdle) })
	return r, func() {
		r.idle.Stop()
		quit(nil)
		endTimed()
		r.endLate()
	}
}

// work waits for the job until there is a result.
func (r *run) work() Outcome {
	body, err := edge.GoalBody(r.goal.Workflow, r.goal.Slots)
	if err != nil {
		return Outcome{Result: edge.Fail(r.origin(), "bad_request"), NotSent: true}
	}
	answered := make(chan created, 1)
	r.answered = answered
	go func() { answered <- r.submit(body) }()
	select {
	case s := <-answered:
		if err := r.take(s); err != nil {
			return r.failed(err)
		}
	case <-r.ctx.Done():
		return r.over()
	}
	for news := true; ; {
		r.tell()
		switch r.job.Step() {
		case edge.JobEnded, edge.JobParked:
			return r.outcome(r.job.Result(r.origin()))
		case edge.JobReady:
			if err := r.confirm(); err != nil {
				return r.failed(err)
			}
		}
		if !sleep(r.ctx, r.cadence.next(news)) {
			return r.over()
		}
		job, err := r.look()
		if err != nil {
			return r.failed(err)
		}
		if news = job.Status != r.job.Status || job.Progress != r.job.Progress; news {
			r.idle.Reset(idleTime)
		}
		r.job = job
	}
}

// submit creates the job. It goes on after the end of ctx: whoever asked for a job must learn its id to end it.
func (r *run) submit(body []byte) (s created) {
	answer, err := ask(r.late, r.ctx, r.d, question{
		step: submission, method: http.MethodPost, path: jobsPath, body: body, again: notTaken,
	})
	if err != nil {
		return created{err: err}
	}
	s.job, s.err = read(submission, answer)
	return s
}

// take takes a submission's answer in.
func (r *run) take(s created) error {
	r.answered = nil
	if s.err != nil {
		r.lost = mayRun(s.err)
		return s.err
	}
	r.job = s.job
	r.idle.Reset(idleTime)
	return nil
}

// mayRun reports whether a submission that failed so may have made a job: unless nothing was sent, or the API said no.
func mayRun(err error) bool {
	f, ok := errors.AsType[*failure](err)
	switch {
	case !ok || errors.Is(err, adapter.ErrNotSent):
		return false
	case f.status == 0:
		return true
	}
	return f.status/100 == 5 || f.status == http.StatusRequestTimeout
}

// confirm sets a job going that is ready, once. A 409 says that it goes already.
func (r *run) confirm() error {
	if r.confirmed {
		return nil
	}
	r.confirmed = true
	_, err := ask(r.ctx, r.ctx, r.d, question{
		step: confirmation, method: http.MethodPost, path: jobsPath + "/" + r.job.ID + "/confirm", body: []byte("{}"), again: temporary,
	})
	if f, ok := errors.AsType[*failure](err); ok && f.status == http.StatusConflict {
		return nil
	}
	return err
}

// look asks how the job is.
func (r *run) look() (edge.Job, error) {
	answer, err := ask(r.ctx, r.ctx, r.d, question{
		step: poll, method: http.MethodGet, path: jobsPath + "/" + r.job.ID, again: temporary,
	})
	if err != nil {
		return edge.Job{}, err
	}
	job, err := read(poll, answer)
	if err == nil && job.ID != r.job.ID {
		err = &failure{step: poll, code: badResponse, err: errors.New("the answer is about another job")}
	}
	return job, err
}

func read(step string, answer []byte) (edge.Job, error) {
	job, err := edge.ParseJob(answer)
	if err != nil {
		return edge.Job{}, &failure{step: step, code: badResponse, err: err}
	}
	return job, nil
}

// settle brings the job to its end, whatever the run has come to.
func (r *run) settle() error {
	timer := time.AfterFunc(SettleTime, r.endLate)
	defer timer.Stop()
	if r.answered != nil {
		_ = r.take(<-r.answered) // comes when late ends, if not before
	}
	switch {
	case r.lost:
		return errLost
	case r.job.ID == "" || r.job.Step() == edge.JobEnded:
		return nil
	}
	_, err := ask(r.late, r.late, r.d, question{
		step: cancellation, method: http.MethodPost, path: jobsPath + "/" + r.job.ID + "/cancel", body: []byte("{}"), again: temporary, cut: true,
	})
	if f, ok := errors.AsType[*failure](err); ok && (f.status == http.StatusConflict || f.status == http.StatusNotFound) {
		return nil // it has ended by itself
	}
	if err != nil {
		return fmt.Errorf("job %s may still be running: %w", r.job.ID, err)
	}
	return nil
}

// tell hands the job's progress on.
func (r *run) tell() {
	if state := r.job.State(); r.goal.Progress != nil && state != r.told && r.job.Step() != edge.JobEnded {
		r.told = state
		r.goal.Progress(state)
	}
}

func (r *run) origin() edge.Origin {
	return edge.Origin{ModelID: r.goal.Workflow, ModelVersion: edge.JobVersion, Latency: time.Since(r.begin)}
}

func (r *run) outcome(result edge.ModelResult) Outcome {
	return Outcome{Result: result, JobID: r.job.ID}
}

// over is the outcome of a run whose time has come.
func (r *run) over() Outcome {
	switch {
	case errors.Is(context.Cause(r.ctx), errIdle):
		result := edge.TimedOut(r.origin(), int(idleTime.Milliseconds()))
		result.DegradeDetail = fmt.Sprintf("idle_ms=%d elapsed: the job shows nothing new", idleTime.Milliseconds())
		return r.outcome(result)
	case errors.Is(r.ctx.Err(), context.DeadlineExceeded):
		return r.outcome(edge.TimedOut(r.origin(), int(r.goal.Deadline.Milliseconds())))
	}
	return r.outcome(edge.Fail(r.origin(), "canceled"))
}

// failed is the outcome of a run that could not be brought to an end.
func (r *run) failed(err error) Outcome {
	if r.ctx.Err() != nil {
		return r.over()
	}
	f, _ := errors.AsType[*failure](err) // ask and read have no other errors
	code := f.code
	if r.goal.Lent {
		code = edge.Lent(code)
	}
	o := r.outcome(edge.Fail(r.origin(), code))
	o.Result.DegradeDetail += ": " + f.step
	if f.status != 0 {
		o.Result.DegradeDetail += fmt.Sprintf(" was answered %d", f.status)
	}
	if r.lost {
		o.Result.DegradeDetail += "; a job may be running"
	}
	o.NotSent = r.job.ID == "" && errors.Is(err, adapter.ErrNotSent)
	return o
}

// sleep waits for d; false when ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
