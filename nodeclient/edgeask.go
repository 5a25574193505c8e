package nodeclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

// question is a typed run on its way through one provider: what is asked, and what makes a result of the answer.
type question struct {
	run      *edge.Request
	op       *edge.Operator // with the provider's name of the model
	in       edge.Input     // as the gates let it leave
	provider edge.Provider
	by       edge.Origin // under the caller's name of the model
	start    time.Time
	hear     func(delta string) error // nil: nobody listens
	tally    *ollama.Tally            // may be nil
	lent     bool                     // a credential goes along
}

// newQuestion asks a provider of some kind; model is its name for the model, or "" for the caller's.
func newQuestion(r *edge.Request, model, kind string, start time.Time) *question {
	q := &question{run: r, op: r.Operator, in: r.Input, provider: edge.Provider(kind), by: r.Operator.Origin(), start: start}
	if model != "" && model != q.op.Model {
		op := *q.op
		op.Model = model
		q.op = &op
	}
	return q
}

// chatPath is where a provider of some kind answers typed runs.
func chatPath(kind string) string {
	if edge.Provider(kind) == edge.OpenAI {
		return "/v1/chat/completions"
	}
	return "/api/chat"
}

// request is what the provider is sent.
func (q *question) request() (*adapter.Request, error) {
	body, err := q.op.ChatBody(q.provider, q.in, q.run.Stream)
	if err != nil {
		return nil, err
	}
	return post(chatPath(string(q.provider)), body), nil
}

func post(path string, body []byte) *adapter.Request {
	return &adapter.Request{
		Method: http.MethodPost, Path: path, Body: bytes.NewReader(body), Length: int64(len(body)),
		Headers: []adapter.Header{{Name: "Content-Type", Value: "application/json"}, {Name: "User-Agent", Value: "fairway-node"}},
	}
}

// origin says who answered, and how long it took until now.
func (q *question) origin() edge.Origin {
	by := q.by
	by.Latency = time.Since(q.start)
	return by
}

func (q *question) fail(code string) edge.ModelResult { return edge.Fail(q.origin(), code) }

// timedOut is the result once the deadline has passed.
func (q *question) timedOut() edge.ModelResult { return edge.TimedOut(q.origin(), q.run.DeadlineMS) }

// outcome is what became of an answer.
type outcome struct {
	result edge.ModelResult
	code   string // of the failure; "" where the model has answered
	err    error  // why, for the log; of hear, where heard
	unsaid bool   // nobody listens any more: err says why, and there is no result
}

// read makes the result of an answer whose head has come. It does not look at the run's context: the end of that shows as a broken answer.
func (q *question) read(resp *adapter.Response) outcome {
	if code := edge.StatusCode(resp.Status); code != "" {
		if q.lent {
			code = edge.Lent(code)
		}
		return q.failed(code, nil)
	}
	buf := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(buf)
	heard := edge.NewTranscript(q.provider, q.run.Stream)
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			q.tally.Add(buf[:n])
			delta, bad := heard.Feed(buf[:n])
			if bad != nil {
				return q.failed(edge.TransportCode(bad), bad)
			}
			if delta != "" && q.hear != nil {
				if err := q.hear(delta); err != nil {
					return outcome{err: err, unsaid: true}
				}
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return q.failed(edge.TransportCode(err), err)
		}
	}
	said, err := heard.End()
	if err != nil {
		return q.failed(edge.TransportCode(err), err)
	}
	return outcome{result: q.op.Judge(said, q.in, q.origin())}
}

func (q *question) failed(code string, err error) outcome {
	return outcome{result: q.fail(code), code: code, err: err}
}

// broken is the outcome of a request of which no head came.
func (q *question) broken(err error) outcome {
	if errors.Is(err, adapter.ErrBadResponse) {
		return q.failed(tunnel.CodeBadProvider, err)
	}
	return q.failed(edge.TransportCode(err), err)
}

// Ask executes a typed run at a provider of this machine, without a gateway and without any credential. Whatever happens, it ends in a result, and no
// later than the run's deadline; the end of ctx cancels it. What failed before anything ran is tried again as the retry gate has it.
func Ask(ctx context.Context, a adapter.Adapter, r *edge.Request, gates edge.Gates) (result edge.ModelResult) {
	q := newQuestion(r, "", a.Kind(), time.Now())
	defer func() {
		if recover() != nil { // a fault of ours, which is no reason to break the caller's
			result = q.fail(tunnel.CodeInternal)
		}
	}()
	in, no := gates.Admit(r)
	if no != nil {
		return edge.Denied(q.origin(), no)
	}
	q.in = in
	ctx, stop := context.WithTimeoutCause(ctx, r.Deadline(), errDeadline)
	defer stop()
	var row edge.Cycle
	for attempt := 1; ; attempt++ {
		o, nothingRan := q.attempt(ctx, a)
		if o.code == "" {
			return o.result
		}
		wait, no := edge.Retry{}.Next(attempt, o.code, nothingRan)
		if no != nil || row.Failed(o.code) != nil || !pause(ctx, wait) {
			return q.ended(ctx, o.result)
		}
	}
}

// ended prefers the end of the run's own time, or its cancellation, to what that looked like.
func (q *question) ended(ctx context.Context, otherwise edge.ModelResult) edge.ModelResult {
	switch {
	case !isOver(ctx):
		return otherwise
	case errors.Is(context.Cause(ctx), errDeadline):
		return q.timedOut()
	}
	return q.fail(tunnel.CodeCanceled)
}

// attempt asks once.
func (q *question) attempt(ctx context.Context, a adapter.Adapter) (o outcome, nothingRan bool) {
	// Ends the connection with the attempt.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	conn, err := a.Connect(ctx, false)
	if err != nil {
		return q.broken(err), true
	}
	defer conn.Close()
	req, err := q.request()
	if err != nil {
		return q.failed(tunnel.CodeInternal, err), true
	}
	resp, err := conn.Do(ctx, req)
	if err != nil {
		return q.broken(err), errors.Is(err, adapter.ErrNotSent)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	return q.read(resp), false
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
