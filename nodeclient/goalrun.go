package nodeclient

import (
	"context"
	"encoding/json"
	"errors"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/goals"
	"github.com/fairway-edge/fairway/tunnel"
)

// goalCaller is an adapter that runs goals.
type goalCaller interface {
	adapter.Adapter
	Caller(first adapter.Conn, credential func() adapter.Credential) goals.Doer
}

var _ goalCaller = (*goals.Adapter)(nil)

// goal executes a typed run at a goal-job API: its workflow becomes a job, which is waited for.
//
//	read the request, gates, connect, open the lease, Accepted, the job, Terminal with the result, the end of the job
//
// The run's end is not the job's: a run whose time is over, or that the gateway has canceled, has its terminal at once, and the job is canceled
// afterwards, with the run's own secret. That is why the secret stays open for up to goals.SettleTime longer, and why nothing but goals.Run watches
// the deadline here: its word on the run has to come before its return.
func (t *typed) goal(ctx context.Context, req *edge.Request) {
	q := newQuestion(req, "", t.target.kind, t.start)
	q.by = edge.Origin{ModelID: req.Operator.Workflow, ModelVersion: edge.JobVersion}
	t.q.Store(q)
	ctx, stop := context.WithDeadlineCause(ctx, t.start.Add(req.Deadline()), errDeadline)
	defer stop()
	in, no := t.admitted(req)
	if no != nil {
		t.conclude(edge.Denied(q.origin(), no), no)
		return
	}
	at := t.target.adapter.(goalCaller) // as addTarget has seen
	conn, err := at.Connect(ctx, t.lease != nil)
	t.connected.Store(micros(t.start))
	if err != nil {
		if isOver(ctx) {
			t.over(ctx, err)
			return
		}
		t.target.down(err)
		t.refuse(elsewhere(tunnel.CodeProviderUnreached, err.Error()))
		return
	}
	defer conn.Close()
	var credential func() adapter.Credential
	if t.lease != nil {
		secret, err := t.vault.open(t.lease)
		if err != nil {
			t.refuse(never(leaseCode(err), ""))
			return
		}
		defer secret.Clear() // after goals.Run, which needs it to end the job; also when that panics
		t.mark = secret.Mark()
		credential = func() adapter.Credential { return &shared{t.lease.Header(), secret} }
	}
	if err := t.Accept(); err != nil {
		t.over(ctx, err)
		return
	}
	goal := goals.Goal{Workflow: req.Operator.Workflow, Slots: in, Deadline: req.Deadline(), Lent: t.lease != nil}
	if req.Stream {
		t.events = edge.NewEvents(t, edge.NDJSON, t.Open.Run, t.Open.SessionId)
		goal.Progress = func(s edge.RunState) {
			t.firstByte.CompareAndSwap(0, micros(t.start))
			_ = t.progress(s) // a gateway that no longer listens has ended ctx
		}
	}
	if err := goals.Run(ctx, at.Caller(conn, credential), goal, func(o goals.Outcome) { t.deliver(ctx, q, o) }); err != nil {
		t.target.client.log.Warn("the end of a run's job is not known", zap.String("run", t.Open.Run), zap.String("target", t.target.name), zap.Error(err))
	}
}

// deliver ends the run, and frees its credit, with what became of the goal.
func (t *typed) deliver(ctx context.Context, q *question, o goals.Outcome) {
	switch {
	case isOver(ctx) && !errors.Is(context.Cause(ctx), errDeadline):
		t.over(ctx, nil)
	case o.NotSent && ctx.Err() == nil:
		t.refuse(elsewhere(tunnel.CodeProviderUnreached, o.Result.DegradeDetail))
	case t.repeats(o.Result):
		t.conclude(q.fail(tunnel.CodeBadProvider), errEcho)
	default:
		t.conclude(o.Result, nil)
	}
}

// repeats tells whether a result holds the run's credential, which a cloud that answers with what it was sent would put there.
func (t *typed) repeats(r edge.ModelResult) bool {
	var said string
	_ = json.Unmarshal(r.Output, &said) // a goal's output is a text or none
	return t.mark.In(said) || t.mark.In(r.ModelVersion)
}

// shared is the credential of a run that sends several requests, one after the other: each writes the line anew, and wipes only that. The secret itself is
// its run's to clear.
type shared struct {
	header string
	secret *lease.Secret
}

func (s *shared) Header() string        { return s.header }
func (s *shared) Line() ([]byte, error) { return s.secret.Line(s.header) }
func (s *shared) Clear() {
	b := s.secret.Buffer()
	clear(b[:cap(b)])
}

var _ adapter.Credential = (*shared)(nil)
