package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// typedRun is one typed run: admitted by the gates, placed by a table, sent as a run of kind edge, and ended in exactly one answer. It has a goroutine of its own,
// run, for it may outlive its caller.
type typedRun struct {
	x      *exchange // of its own: no client behind it
	acc    *Account
	req    *edge.Request
	body   []byte // that goes to the node
	node   string // that it is for; empty: any
	in     edge.Input
	u      *run
	ctx    context.Context
	cancel context.CancelCauseFunc
	began  time.Time
	events *edge.Events // nil: nobody listens

	decision edge.Decision
	result   *edge.ModelResult // as the node gave it; run's alone
	heard    *edge.NodeEvents  // of the attempt under way; run's alone

	done   chan struct{}
	answer edge.Answer // set before done is closed

	mu   sync.Mutex
	left bool // guarded by mu; the caller has gone
}

// errTypedDeadline ends a typed run whose time is over.
var errTypedDeadline = fail(tunnel.CodeDeadlineExceeded, "the run's deadline has passed")

func newTypedRun(x *exchange, req *edge.Request, body []byte) *typedRun {
	acc := NewAccount()
	acc.Run, acc.Kind, acc.Started = x.acc.Run, "edge", x.acc.Started
	acc.Session, acc.Principal, acc.Route, acc.Endpoint, acc.Model = req.Session, x.principal, x.acc.Route, x.acc.Endpoint, req.Operator.Model
	nobody := &discard{header: http.Header{}}
	t := &typedRun{acc: acc, req: req, body: body, node: x.node, began: x.acc.Started, done: make(chan struct{})}
	t.x = &exchange{h: x.h, w: nobody, r: x.r, rc: http.NewResponseController(nobody), acc: acc, match: x.match, principal: x.principal}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// run executes the run to its answer.
func (t *typedRun) run() {
	hub := t.x.h.hub
	ctx, stop := context.WithDeadlineCause(t.ctx, t.began.Add(t.req.Deadline()), errTypedDeadline)
	t.acc.stoppable(t.cancel)
	defer func() {
		if p := recover(); p != nil {
			hub.log().Error("a typed run", zap.String("run", t.acc.Run), zap.Any("panic", p), zap.StackSkip("stack", 1))
			t.conclude(edge.Fail(t.origin(), tunnel.CodeInternal), tunnel.Failed, tunnel.CodeInternal)
		}
		stop()
		t.cancel(nil)
	}()
	t.conclude(t.execute(ctx))
}

// origin says what answers, and how long it took until now.
func (t *typedRun) origin() edge.Origin {
	o := t.req.Operator.Origin()
	if t.decision.Placement == edge.Cloud && t.req.Operator.Workflow != "" {
		o = edge.Origin{ModelID: t.req.Operator.Workflow, ModelVersion: edge.JobVersion}
	}
	o.Latency = time.Since(t.began)
	return o
}

// execute decides where the run goes, and takes it there.
func (t *typedRun) execute(ctx context.Context) (edge.ModelResult, tunnel.Outcome, string) {
	st := t.x.h.settings
	in, no := st.Gates.Admit(t.req)
	if no != nil {
		t.decision = t.place()
		return edge.Denied(t.origin(), no), tunnel.Failed, codeForbidden
	}
	if err := t.redact(in); err != nil {
		return t.failed(ctx, err)
	}
	t.decision = t.place()
	if t.events != nil {
		_ = t.events.Accepted(t.decision)
	}
	if t.decision.Code != "" {
		code := t.decision.Code
		if code == codeNoNode && t.unknown() {
			code = codeNoSuchModel
		}
		return edge.Fail(t.origin(), code), tunnel.Failed, code
	}
	if t.events != nil {
		_ = t.events.Progress(edge.Queued)
	}
	if err := t.send(ctx); err != nil {
		return t.failed(ctx, err)
	}
	return t.judged()
}

// redact puts the texts as the gates let them leave in the place of those that came.
func (t *typedRun) redact(in edge.Input) error {
	t.in = in
	same := len(in) == len(t.req.Input)
	for i := 0; same && i < len(in); i++ {
		same = in[i] == t.req.Input[i]
	}
	if same {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(t.body, &members); err != nil {
		return err
	}
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	members["input"] = raw
	t.body, err = json.Marshal(members)
	return err
}

// place asks the table.
func (t *typedRun) place() edge.Decision {
	op, st, f := t.req.Operator, t.x.h.settings, t.x.h.hub.fleet
	var state edge.State
	if op.Model != "" {
		for _, c := range f.Standing(&fleet.Want{Model: ollama.ModelKey(op.Model), Node: t.node, Filter: st.filters().typed}) {
			state.Candidates = append(state.Candidates, edge.Candidate{
				Capability: capability(c.Labels), Tier: tier(c.Labels), Ready: c.Ready, Warm: c.Loaded, Credits: c.Free,
			})
		}
	}
	state.CloudReady = f.Serves(&fleet.Want{Node: t.node, Filter: t.cloud()})
	return edge.Place(op.Demand(t.req.Placement, t.req.Deadline()), state)
}

// The labels by which a node says what it is good for; without them it has a language model of the middle tier.
const (
	labelCapability = "capability"
	labelTier       = "tier"
)

func capability(labels map[string]string) edge.Capability {
	if v := labels[labelCapability]; v != "" {
		return edge.Capability(v)
	}
	return edge.LLM
}

func tier(labels map[string]string) edge.Tier {
	if v := labels[labelTier]; v != "" {
		return edge.Tier(v)
	}
	return edge.Standard
}

// cloud is the filter of targets that run the operator's workflow.
func (t *typedRun) cloud() *fleet.Filter { return t.x.h.settings.cloud(t.req.Operator.Profile) }

// unknown reports whether nobody holds the model, now or lately.
func (t *typedRun) unknown() bool {
	if t.req.Operator.Model == "" || t.decision.Placement == edge.Cloud {
		return false
	}
	byOllama, byOpenAI := t.x.h.hub.fleet.HeldBy(ollama.ModelKey(t.req.Operator.Model))
	return !byOllama && !byOpenAI
}

// send offers the run to nodes until one takes it. It returns nil once a node has answered with a result.
func (t *typedRun) send(ctx context.Context) error {
	x := t.x
	u := x.newRun(t.body)
	u.ctx, u.cancel = ctx, t.cancel
	u.given = &tunnel.RunOpen{
		Run: t.acc.Run, Kind: tunnel.KindEdge, SessionId: t.req.Session, Method: http.MethodPost, Path: []byte(x.match.Path), Body: tunnel.BodyLength,
		BodyLength: uint64(len(t.body)), Credit: true,
	}
	u.answerer = t.hear
	u.want = fleet.Want{Credit: true, Node: t.node, Filter: t.cloud()}
	if t.decision.Placement == edge.Edge {
		u.want.Model, u.want.Filter = ollama.ModelKey(t.req.Operator.Model), x.h.settings.filters().typed
		u.want.Suits = t.suits
	}
	t.u = u
	deadline := time.Now().Add(x.h.opts.QueueWait)
	for u.attempt < maxAttempts {
		place, err := x.h.hub.fleet.Acquire(ctx, &u.want, fleet.Queue{Depth: x.h.opts.QueueDepth, Wait: time.Until(deadline)})
		if err != nil {
			return t.unplaced(err)
		}
		u.attempt++
		t.acc.bind(place, u.attempt)
		again, err := u.try(place)
		if !again {
			return err
		}
		u.want.Front = true
	}
	return fail(codeQueueFull, "server busy: every node refused the run")
}

// suits reports whether a node is good enough for the operator.
func (t *typedRun) suits(labels map[string]string) bool {
	d := t.req.Operator.Demand(t.req.Placement, 0)
	return d.Suits(capability(labels), tier(labels))
}

// unplaced says what no place means after refusals, in the words of who refused.
func (t *typedRun) unplaced(err error) error {
	if t.u.attempt > 0 && (errors.Is(err, fleet.ErrLeftOut) || errors.Is(err, fleet.ErrNoModel) || errors.Is(err, fleet.ErrNoNode)) {
		if a := t.u.answer; a != nil {
			if code := edge.StatusCode(int(a.Status)); code != "" {
				return fail(code, "the provider's own word")
			}
		}
		if t.u.code != "" {
			return fail(t.u.code, "refused by every node")
		}
	}
	return err
}

// failed makes the result of a run without an answer.
func (t *typedRun) failed(ctx context.Context, err error) (edge.ModelResult, tunnel.Outcome, string) {
	if errors.Is(context.Cause(ctx), errTypedDeadline) {
		return edge.TimedOut(t.origin(), t.req.DeadlineMS), tunnel.Failed, tunnel.CodeDeadlineExceeded
	}
	var f *failure
	if cause := context.Cause(ctx); errors.As(cause, &f) {
		err = f // a revocation, a shutdown, the caller
	}
	f = asFailure(err, t.x.match.Endpoint, t.req.Operator.Model)
	code, outcome := f.code, tunnel.Failed
	if f.code == tunnel.CodeCanceled {
		outcome = tunnel.Canceled
	}
	if f.inner != "" {
		code = f.inner
	}
	return edge.Fail(t.origin(), code), outcome, f.code
}

// hear takes in a node's answer.
func (t *typedRun) hear(r *tunnel.Run) (*tunnel.Refused, error) {
	t.heard = edge.NewNodeEvents(t.acc.Run)
	for {
		switch ev := r.Next(); ev.Kind {
		case tunnel.EventAccepted:
			t.u.accepted()
		case tunnel.EventHead:
			t.acc.head(http.StatusOK)
		case tunnel.EventData:
			if err := t.overhear(ev.Data); err != nil {
				r.Cancel(tunnel.CodeBadProvider)
				return nil, err
			}
		case tunnel.EventRefused:
			return ev.Refused, nil
		case tunnel.EventTerminal:
			return nil, t.ended(ev.Terminal)
		}
	}
}

// overhear passes a node's events on as this gateway's own.
func (t *typedRun) overhear(p []byte) error {
	events, err := t.heard.Feed(p)
	if err != nil {
		return fail(tunnel.CodeBadProvider, "the node's events could not be read")
	}
	for _, e := range events {
		if t.events == nil {
			continue
		}
		if e.State != "" {
			err = t.events.Progress(e.State)
		} else {
			err = t.events.Delta(e.Text)
		}
		if err != nil && !errors.Is(err, edge.ErrEnded) {
			return fail(tunnel.CodeCanceled, "the client went away: %v", err)
		}
	}
	return nil
}

// ended reads the result out of the terminal.
func (t *typedRun) ended(m *tunnel.Terminal) error {
	if m.Outcome != tunnel.Completed {
		return cut(t.u.ctx, m)
	}
	if m.Usage != nil {
		t.acc.InputTokens, t.acc.OutputTokens = m.Usage.InputTokens, m.Usage.OutputTokens
	}
	var r edge.ModelResult
	if len(m.Result) > edge.MaxNodeResult || r.UnmarshalJSON(m.Result) != nil {
		return fail(tunnel.CodeBadProvider, "the node's result could not be read")
	}
	t.result = &r
	return nil
}

// judged holds a node's result to the operator once more: what a node says is believed as far as it can be shown.
func (t *typedRun) judged() (edge.ModelResult, tunnel.Outcome, string) {
	r := *t.result
	why := ""
	switch {
	case t.decision.Placement == edge.Edge:
		why = t.req.Operator.Doubt(r, t.in)
	case r.Status == edge.Success && edge.CitedJob(r) == "": // what a workflow says is judged where it runs; but it ran as a job
		why = "success in the cloud without a job"
	}
	if why != "" {
		t.x.h.hub.log().Warn("a node's result is not what its input and operator allow", zap.String("run", t.acc.Run), zap.String("node", t.acc.Node), zap.String("why", why))
		return edge.Fail(t.origin(), tunnel.CodeBadProvider), tunnel.Failed, tunnel.CodeBadProvider
	}
	o := t.origin()
	r.LatencyMS = float64(o.Latency.Microseconds()) / 1000
	if r.Status == edge.Unavailable {
		code := tunnel.CodeBadProvider
		if r.DegradeReason == edge.DeadlineExceeded {
			code = tunnel.CodeDeadlineExceeded
		}
		return r, tunnel.Failed, code
	}
	return r, tunnel.Completed, ""
}

// conclude gives the run its one answer.
func (t *typedRun) conclude(r edge.ModelResult, outcome tunnel.Outcome, code string) {
	hub := t.x.h.hub
	job := ""
	if t.decision.Placement == edge.Cloud {
		job = edge.CitedJob(r)
	}
	if t.decision.Placement == "" {
		t.decision.Placement = edge.Edge
	}
	answer, err := edge.NewAnswer(t.acc.Run, job, t.req, t.decision, r)
	if err != nil {
		hub.log().Error("the answer of a typed run", zap.String("run", t.acc.Run), zap.Error(err))
		answer, _ = edge.NewAnswer(t.acc.Run, "", t.req, t.decision, edge.Fail(t.origin(), tunnel.CodeInternal))
		outcome, code = tunnel.Failed, tunnel.CodeInternal
	}
	t.answer = answer
	t.acc.end(outcome, code, http.StatusOK)
	if t.events != nil {
		_ = t.events.Result(answer)
	}
	hub.end(t.acc)
	t.mu.Lock()
	left := t.left
	close(t.done)
	t.mu.Unlock()
	hub.typed.done(t, t.req.OnDisconnect == edge.Detach)
	if left {
		hub.account(t.acc) // its caller's request was closed when he left
	}
}

// view is how the run stands.
func (t *typedRun) view() typedView {
	v := typedView{RunID: t.acc.Run, Session: t.req.Session, State: "queued", Started: t.began.UTC()}
	select {
	case <-t.done:
		a := t.answer
		v.State = "ended"
		v.typedEnd = &typedEnd{a.Placement, a.PlacementReason, a.Disposition, a.IdempotencyKey, a.Result}
	default:
		if t.acc.View().State == "running" {
			v.State = "running"
		}
	}
	return v
}
