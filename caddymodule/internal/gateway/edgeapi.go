package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// The typed runs of package edge over HTTP. A malformed request is a 400 that names the field; from there on the answer is a 200 with a result, whatever
// happens: offline-first for its caller, fail-closed inside.

const (
	// keepDetached is how long the answer of a detached run can be fetched, and keepAnswers of how many.
	keepDetached = 10 * time.Minute
	keepAnswers  = 1000
	// maxAnswer bounds one of these, in bytes of JSON.
	maxAnswer = 1 << 20
	// settleCancel is how long a cancel waits for its run to end.
	settleCancel = 5 * time.Second
)

// typedRuns are the typed runs of a hub: those that run, and the ended ones that can be fetched. Safe for concurrent use.
type typedRuns struct {
	now func() time.Time

	mu    sync.Mutex
	open  map[string]*typedRun // guarded by mu
	ended []*endedRun          // guarded by mu; the oldest first
}

// endedRun is a detached run's answer.
type endedRun struct {
	principal string
	view      typedView
	at        time.Time
}

// typedView is the answer to GET and to cancel; its JSON names are a contract. Once the run has ended it has all that the answer has.
type typedView struct {
	RunID   string    `json:"run_id"`
	Session string    `json:"session_id"`
	State   string    `json:"state"` // queued | running | ended
	Started time.Time `json:"started"`
	*typedEnd
}

type typedEnd struct {
	Placement       edge.Placement   `json:"placement"`
	PlacementReason string           `json:"placement_reason"`
	Disposition     edge.Disposition `json:"disposition"`
	IdempotencyKey  string           `json:"idempotency_key"`
	Result          edge.ModelResult `json:"result"`
}

func newTypedRuns() *typedRuns {
	return &typedRuns{now: time.Now, open: make(map[string]*typedRun)}
}

func (g *typedRuns) add(t *typedRun) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[t.acc.Run] = t
}

// done takes a run that has ended out, and with keep makes its answer one to fetch.
func (g *typedRuns) done(t *typedRun, keep bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, t.acc.Run)
	g.forget()
	if !keep {
		return
	}
	if raw, err := t.answer.JSON(); err != nil || len(raw) > maxAnswer {
		return
	}
	if len(g.ended) == keepAnswers {
		g.ended = append(g.ended[:0:0], g.ended[1:]...)
	}
	g.ended = append(g.ended, &endedRun{t.x.principal, t.view(), g.now()})
}

// forget drops what nobody has fetched in time. g.mu is held.
func (g *typedRuns) forget() {
	n := 0
	for n < len(g.ended) && g.now().Sub(g.ended[n].at) >= keepDetached {
		n++
	}
	g.ended = append(g.ended[:0:0], g.ended[n:]...)
}

// find returns the run that is open, or the view of one that ended, if it is the principal's.
func (g *typedRuns) find(run, principal string) (*typedRun, *typedView) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.open[run]; t != nil && t.x.principal == principal {
		return t, nil
	}
	g.forget()
	for _, e := range g.ended {
		if e.view.RunID == run && e.principal == principal {
			return nil, &e.view
		}
	}
	return nil, nil
}

// typed serves the endpoints of family edge.
func (x *exchange) typed() error {
	switch x.match.Endpoint.Name {
	case "edge.run":
		return x.typedRun()
	case typedGet, typedCancel:
		raw, err := x.standing(x.r.Context())
		if err != nil {
			return err
		}
		if raw == nil {
			raw = x.standingElsewhere()
		}
		if raw == nil {
			return fail(codeRunNotFound, "there is no run %s of this caller's", x.match.Param)
		}
		x.acc.endSelf(http.StatusOK)
		x.respond(http.StatusOK, ollama.ContentTypeJSON, raw)
		return nil
	}
	return fail(codeForbidden, "%s is not served by this gateway", x.match.Path)
}

// The endpoints that ask about a run, and end it.
const (
	typedGet    = "edge.get"
	typedCancel = "edge.cancel"
)

// standing tells how the run that the request names stands here, once it was canceled if that is asked; nil if the caller has none of that name at this gateway.
func (x *exchange) standing(ctx context.Context) ([]byte, error) {
	t, view := x.h.hub.typed.find(x.match.Param, x.principal)
	if t != nil {
		if x.match.Endpoint.Name == typedCancel {
			t.cancel(fail(tunnel.CodeCanceled, "canceled"))
			select {
			case <-t.done:
			case <-time.After(settleCancel):
			case <-ctx.Done():
			}
		}
		v := t.view()
		view = &v
	}
	if view == nil {
		return nil, nil
	}
	return json.Marshal(view)
}

var errTypedTooLarge = fail(codeBodyTooLarge, "a typed run has a request of at most %d bytes", edge.MaxRequest)

// typedRun reads a request, runs it, and answers.
func (x *exchange) typedRun() error {
	if x.r.ContentLength > edge.MaxRequest {
		return errTypedTooLarge
	}
	body, release, err := x.readBody()
	if err != nil {
		return err
	}
	defer release()
	if len(body) > edge.MaxRequest {
		return errTypedTooLarge
	}
	req, err := edge.ParseRequest(body)
	if err != nil {
		var field *edge.FieldError
		if errors.As(err, &field) {
			return fail(codeBadRequest, "%s", field.Error())
		}
		return fail(codeBadRequest, "the request could not be read")
	}
	if x.node != "" {
		if err := x.mayChoose(); err != nil { // that it is not here is a result like any other
			return err
		}
	}
	if validSession(req.Session) && req.Session != "" {
		x.w.Header().Set(headerSession, req.Session)
	}
	t := newTypedRun(x, req, body)
	if err := x.h.hub.begin(t.acc); err != nil {
		return err
	}
	x.h.hub.typed.add(t)
	left := x.r.Context().Done()
	switch {
	case req.Stream:
		t.listen(x)
	case req.OnDisconnect == edge.Detach:
		x.announce() // who is cut off now must know what to ask for
	}
	go t.run()
	select {
	case <-t.done:
	case <-left:
		if left = nil; req.OnDisconnect == edge.Cancel {
			t.cancel(fail(tunnel.CodeCanceled, "the client went away"))
			<-t.done // soon: what it waits for ends with it
			break
		}
		if t.leave() {
			x.acc.handed = true // its account is closed where it ends
			x.acc.end(tunnel.Canceled, tunnel.CodeCanceled, statusClientGone)
			return nil
		}
		<-t.done
	}
	x.acc.adopt(t.acc)
	if left == nil || req.Stream {
		return nil
	}
	raw, err := t.answer.JSON()
	if err != nil {
		return err
	}
	if x.started {
		n, _ := x.w.Write(raw) // a client that left has been told what to ask for
		x.acc.wrote(raw[:n])
		return nil
	}
	if node := t.acc.View().Node; x.h.opts.ExposeNode && node != "" {
		x.w.Header().Set(headerNode, node)
	}
	x.respond(http.StatusOK, ollama.ContentTypeJSON, raw)
	return nil
}

// announce sends the head of a result that is to come, with the run's id.
func (x *exchange) announce() {
	x.w.Header().Set("Content-Type", ollama.ContentTypeJSON)
	x.begin()
}

// begin sends a head of status 200.
func (x *exchange) begin() {
	x.started = true
	x.acc.head(http.StatusOK)
	x.w.WriteHeader(http.StatusOK)
	_ = x.rc.Flush()
}

// listen begins a body of events.
func (t *typedRun) listen(x *exchange) {
	form := edge.FormFor(x.r.Header.Get("Accept"))
	h := x.w.Header()
	h.Set("Content-Type", form.ContentType())
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Incremental", "?1")
	x.begin()
	t.events = edge.NewEvents(&listener{x: x, t: t}, form, t.acc.Run, t.req.Session)
}

// listener writes events to the caller, until it has left.
type listener struct {
	x    *exchange
	t    *typedRun
	deaf bool // guarded by t.mu; a write has failed
}

// Write writes and flushes one event. A caller that does not read is gone; a write may show that before the request's context does. It fails only where
// that ends the run.
func (l *listener) Write(p []byte) (int, error) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.t.left || l.deaf {
		return len(p), nil // nobody listens, and the run does not care
	}
	_ = l.x.rc.SetWriteDeadline(time.Now().Add(clientStall))
	n, err := l.x.w.Write(p)
	if err == nil {
		err = l.x.rc.Flush()
	}
	_ = l.x.rc.SetWriteDeadline(time.Time{})
	l.x.acc.Bytes += uint64(n) //nolint:gosec // not negative
	l.x.acc.sent.Store(l.x.acc.Bytes)
	if err != nil && l.t.req.OnDisconnect != edge.Cancel {
		l.deaf = true
		return len(p), nil
	}
	return n, err
}

// leave notes that the caller has gone; false if the run has ended already.
func (t *typedRun) leave() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.done:
		return false
	default:
	}
	t.left = true
	return true
}
