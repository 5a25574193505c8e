package nodeclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// loadingAfter is how long a provider may be silent before a caller who listens is told that the model loads. A model that is not there, and a
	// full queue, are said at once, and until then the run can still go elsewhere.
	loadingAfter = 300 * time.Millisecond
	// deltaSize is the most text of one event: escaped to six times its length it still fits a frame.
	deltaSize = 8 << 10
	// maxCorrelation bounds session_id for the same reason.
	maxCorrelation = 1 << 10
	maxReason      = 512
	// announcedSize is how much of an announced request has memory before it comes.
	announcedSize = 64 << 10
	// maxTypedMs is the longest deadline of a typed run, and the one of a run that has none.
	maxTypedMs = 600_000
)

// typedFault says why a node does not take a RunOpen of kind edge; "" if it does. What it would ask is the node's own to spell: method, path and
// headers mean nothing.
func typedFault(o *tunnel.RunOpen) string {
	kind := edge.Provider(o.Adapter)
	cloud := kind == kindGoals
	switch {
	case kind != edge.Ollama && kind != edge.OpenAI && !cloud:
		return "its adapter serves no typed runs here"
	case !o.Credit:
		return "a typed run takes a credit"
	case o.Model == "" && !cloud:
		return "a typed run names the provider's model"
	case len(o.SessionId) > maxCorrelation:
		return fmt.Sprintf("session_id is longer than %d bytes", maxCorrelation)
	case o.Body == tunnel.BodyNone, o.Body == tunnel.BodyLength && o.BodyLength > edge.MaxRequest:
		return fmt.Sprintf("a typed run has a request of at most %d bytes", edge.MaxRequest)
	}
	return ""
}

// typed is a run of kind edge: the body is a request as package edge reads it, the answer is what the model made of it, judged here.
//
//	read the request, gates, connect, open the lease, Accepted, ask, Head, events, judge, Terminal with the result
//
// Whatever the provider does ends in a completed run with a result. Refused is only what is known not to have run; failed, what is a fault of the
// gateway's or of this node's; canceled, what the gateway has canceled.
type typed struct {
	*run
	gates  edge.Gates
	ms     int                      // what is left of the deadline
	q      atomic.Pointer[question] // nil until the request was read
	used   atomic.Pointer[tunnel.Usage]
	events *edge.Events // nil: the caller does not listen
}

// serveTyped is serve for typed runs.
func (x *run) serveTyped(ctx context.Context, gates edge.Gates) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &typed{run: x, gates: gates, ms: maxTypedMs}
	if ms := x.Open.DeadlineMs; ms > 0 && ms < maxTypedMs {
		t.ms = int(ms)
	}
	ctx, stop := context.WithTimeoutCause(ctx, time.Duration(t.ms)*time.Millisecond, errDeadline)
	defer stop()
	unwatch := sync.OnceFunc(x.watchDeadline(ctx, t.timedOut))
	defer unwatch()
	body, err := t.readBody()
	switch {
	case ctx.Err() != nil:
		t.over(ctx, err)
		return
	case err != nil:
		t.end(tunnel.Failed, tunnel.CodeClientBody, err)
		return
	}
	req, refusal := readTyped(body, x.target.kind)
	if refusal != "" {
		t.refuse(elsewhere(tunnel.CodeBadRun, refusal)) // another node may know what this one does not
		return
	}
	if x.target.kind == kindGoals {
		unwatch() // the job is ended before the run is, and only then the secret: see goal
		t.goal(ctx, req)
		return
	}
	t.execute(ctx, req)
}

// readBody reads the request, which the gateway has whole.
func (t *typed) readBody() ([]byte, error) {
	var buf bytes.Buffer
	if t.Open.Body == tunnel.BodyLength { // what is announced is taken for granted up to a size that costs nothing
		buf.Grow(int(min(t.Open.BodyLength, announcedSize)) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(io.LimitReader(t.NodeRun, edge.MaxRequest+1))
	body := buf.Bytes()
	switch {
	case err != nil:
		return nil, err
	case len(body) > edge.MaxRequest:
		return nil, fmt.Errorf("a request of more than %d bytes", edge.MaxRequest)
	case t.Open.Body == tunnel.BodyLength && uint64(len(body)) != t.Open.BodyLength:
		return nil, fmt.Errorf("a request of %d bytes where %d were announced", len(body), t.Open.BodyLength)
	}
	return body, nil
}

// readTyped reads a request that a target of some kind can execute, or says why it is none.
func readTyped(body []byte, kind string) (*edge.Request, string) {
	r, err := edge.ParseRequest(body)
	switch {
	case err != nil:
		return nil, err.Error()
	case kind == kindGoals && r.Operator.Workflow == "":
		return nil, "operator has no workflow in the cloud, which is all that this target runs"
	case kind != kindGoals && r.Operator.Kind == edge.KindGoal:
		return nil, "operator.kind is goal, which no provider of a node runs"
	}
	return r, ""
}

// execute asks the provider, once.
func (t *typed) execute(ctx context.Context, req *edge.Request) {
	q := newQuestion(req, t.Open.Model, t.target.kind, t.start)
	q.tally, q.lent = ollama.NewTally(t.endpoint), t.lease != nil
	ctx, stop := context.WithDeadlineCause(ctx, t.start.Add(req.Deadline()), errDeadline)
	defer stop()
	t.q.Store(q)
	defer t.watchDeadline(ctx, t.timedOut)()
	in, no := t.admitted(req)
	if no != nil {
		t.conclude(edge.Denied(q.origin(), no), no)
		return
	}
	q.in = in
	ask, err := q.request()
	if err != nil {
		t.conclude(q.fail(tunnel.CodeInternal), err)
		return
	}
	conn, err := t.target.adapter.Connect(ctx, t.lease != nil)
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
	if t.lease != nil {
		secret, err := t.vault.open(t.lease)
		if err != nil {
			t.refuse(never(leaseCode(err), ""))
			return
		}
		defer secret.Clear()
		t.mark = secret.Mark()
		ask.Credential = &injection{t.lease.Header(), secret}
	}
	if err := t.Accept(); err != nil {
		t.over(ctx, err)
		return
	}
	t.converse(ctx, q, conn, ask)
}

// admitted holds the request to this node's gates.
func (t *typed) admitted(req *edge.Request) (edge.Input, *edge.Denial) {
	gates := t.gates
	if gates.Tools == nil && req.Action != nil {
		gates.Tools = edge.Tools{req.Action.Tool} // which tools there are is the gateway's to say, unless this node's owner says it too
	}
	return gates.Admit(req)
}

// converse sends the request over a connection that stands, and ends the run with what comes.
func (t *typed) converse(ctx context.Context, q *question, conn adapter.Conn, ask *adapter.Request) {
	patience := func() bool { return true }
	if q.run.Stream {
		t.events = edge.NewEvents(t, edge.NDJSON, t.Open.Run, t.Open.SessionId)
		q.hear = t.delta
		if t.cold() {
			patience = time.AfterFunc(loadingAfter, func() { _ = t.progress(edge.Loading) }).Stop
		}
	}
	resp, err := conn.Do(ctx, ask)
	unsaid := patience() // no Head has gone out: the run may still be refused
	if err != nil {
		t.unanswered(ctx, q, err, unsaid)
		return
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	t.firstByte.Store(micros(t.start))
	if t.echoes(resp.Headers) {
		t.conclude(q.fail(tunnel.CodeBadProvider), errEcho)
		return
	}
	if unsaid && t.declined(resp.Status) {
		buf := pieces.Get().(*[pieceSize]byte)
		defer pieces.Put(buf)
		if _, whole := t.decline(resp, buf); whole {
			return
		}
	}
	if t.events != nil && edge.StatusCode(resp.Status) == "" {
		if err := t.progress(edge.Generating); err != nil {
			t.over(ctx, err)
			return
		}
	}
	resp.Body = &noted{resp.Body, t.target}
	o := q.read(resp)
	if n := q.tally.Usage(); n != (ollama.Usage{}) {
		t.used.Store(&tunnel.Usage{InputTokens: n.Input, OutputTokens: n.Output})
	}
	if isOver(ctx) || o.unsaid {
		t.over(ctx, o.err)
		return
	}
	t.conclude(o.result, o.err)
}

// noted is an answer of which it is noted that it goes on.
type noted struct {
	io.ReadCloser
	by *target
}

func (n *noted) Read(p []byte) (int, error) {
	m, err := n.ReadCloser.Read(p)
	if m > 0 {
		n.by.goesOn()
	}
	return m, err
}

// unanswered ends a run of which no head came.
func (t *typed) unanswered(ctx context.Context, q *question, err error, unsaid bool) {
	switch {
	case isOver(ctx):
		t.over(ctx, err)
	case unsaid && errors.Is(err, adapter.ErrNotSent):
		t.refuse(elsewhere(tunnel.CodeProviderUnreached, err.Error()))
	default:
		o := q.broken(err)
		t.conclude(o.result, o.err)
	}
}

// over ends a run whose context has ended, or that the gateway no longer takes.
func (t *typed) over(ctx context.Context, err error) {
	if errors.Is(context.Cause(ctx), errDeadline) {
		t.timedOut()
		return
	}
	t.end(tunnel.Canceled, tunnel.CodeCanceled, err)
}

// timedOut ends a run whose deadline has passed, whatever else goes on in it.
func (t *typed) timedOut() {
	if q := t.q.Load(); q != nil {
		t.conclude(q.timedOut(), errDeadline)
		return
	}
	by := edge.Origin{ModelID: t.Open.Model, Latency: time.Since(t.start)}
	t.conclude(edge.TimedOut(by, t.ms), errDeadline)
}

// typedHead is the head of every typed run's answer. It says nothing of the provider's.
func typedHead() *tunnel.Head {
	return &tunnel.Head{
		Status: http.StatusOK, Chunked: true, Headers: []*tunnel.Header{{Name: "Content-Type", Value: []byte(edge.NDJSON.ContentType())}},
	}
}

// conclude ends the run with a result; why, for the log, may be nil. Accepted and Head are said where they have not been: a run that completes has
// both. Only the first conclusion counts.
func (t *typed) conclude(r edge.ModelResult, why error) {
	raw, err := r.MarshalJSON()
	if err != nil || len(raw) > edge.MaxNodeResult {
		by := edge.Origin{Latency: time.Since(t.start)}
		if q := t.q.Load(); q != nil {
			by = q.origin()
		}
		why = errors.Join(why, err, fmt.Errorf("a result of %d bytes", len(raw)))
		if raw, err = edge.Fail(by, tunnel.CodeBadProvider).MarshalJSON(); err != nil { // the name of the model cannot be said
			raw, _ = edge.Fail(edge.Origin{}, tunnel.CodeBadProvider).MarshalJSON()
		}
	}
	_ = t.Accept()
	_ = t.SendHead(typedHead(), false)
	term := &tunnel.Terminal{Outcome: tunnel.Completed, Timings: t.timed(), Usage: t.used.Load(), Result: raw}
	if why != nil {
		term.Reason = reason(why)
	}
	t.finish(term)
}

// reason is an error as the gateway's log gets it: short, and fit for the wire whatever a provider said.
func reason(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}

// cold tells whether the provider has said that the model is not in its memory.
func (t *typed) cold() bool {
	s, model := t.target.view(), modelKey(t.Open.Model)
	return t.target.cadence.loads && s.reachable && !slices.ContainsFunc(s.Loaded, func(l adapter.Loaded) bool { return modelKey(l.Name) == model })
}

// progress sends an event that says how far the run has come, with the head before the first.
func (t *typed) progress(s edge.RunState) error {
	_ = t.SendHead(typedHead(), false) // of no effect after the first
	return t.events.Progress(s)
}

// delta sends text as the model says it, in events that fit a frame.
func (t *typed) delta(text string) error {
	for len(text) > deltaSize {
		cut := deltaSize
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		if err := t.events.Delta(text[:cut]); err != nil {
			return err
		}
		text = text[cut:]
	}
	return t.events.Delta(text)
}

// Write sends one event, as a frame of its own.
func (t *typed) Write(line []byte) (int, error) {
	if len(line) > tunnel.MaxData {
		return 0, fmt.Errorf("an event of %d bytes", len(line))
	}
	return len(line), t.SendData(line, true)
}
