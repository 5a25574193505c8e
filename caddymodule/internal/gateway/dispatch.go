package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// maxAttempts bounds how often one run is offered: each attempt but the last was refused by a node that had not run it.
const maxAttempts = 64

// staleWait is how long a run waits for a session that took it no more to be seen as ended.
const staleWait = 200 * time.Millisecond

// maxStale is how often a run finds a session over before it leaves the one that it found so out.
const maxStale = 3

// cancelCode is the code of a run whose context has ended: the cause's, where an abort gave one.
func cancelCode(ctx context.Context) string {
	var f *failure
	if errors.As(context.Cause(ctx), &f) {
		return cmp.Or(f.inner, f.code) // the entry gateway of a forwarded run tells its caller what may be told
	}
	return tunnel.CodeCanceled
}

// inlineBody is the most of a body that is written before the answer is read: it fits every initial window.
const inlineBody = 16 << 10

// run is a request on its way to a node.
type run struct {
	x       *exchange
	ctx     context.Context // ends with the client, or when the run is aborted: then its cause is a *failure
	cancel  context.CancelCauseFunc
	want    fleet.Want
	body    []byte
	upload  io.Reader // instead of body: streams, so there can be no second attempt once it was read from
	touched bool      // some of upload was read
	attempt uint32
	stale   int             // attempts that found their session over
	place   *fleet.Place    // of the attempt under way
	loan    *loan           // of the attempt under way; nil without a credential
	given   *tunnel.RunOpen // the run where it is not its caller's request as it came: another gateway has forwarded it, or it is typed
	// answerer takes in the answer; nil: it is copied to the caller.
	answerer func(*tunnel.Run) (*tunnel.Refused, error)
	answer   *tunnel.Answer // the last provider's, from a refusal
	code     string         // of the last refusal
}

func (x *exchange) newRun(body []byte) *run {
	u := &run{x: x, body: body}
	u.ctx, u.cancel = context.WithCancelCause(x.r.Context())
	return u
}

// serve admits the run, sends it, and goes on while nodes refuse it unrun.
func (u *run) serve() error {
	hub, acc := u.x.h.hub, u.x.acc
	if err := hub.begin(acc); err != nil {
		return err
	}
	defer hub.end(acc)
	defer u.cancel(nil)
	acc.stoppable(u.cancel)
	queue := fleet.Queue{Depth: u.x.h.opts.QueueDepth}
	deadline := time.Now().Add(u.x.h.opts.QueueWait) // of all waits together
	for u.attempt < maxAttempts {
		queue.Wait = time.Until(deadline)
		place, err := hub.fleet.Acquire(u.ctx, &u.want, queue)
		if err != nil {
			return u.unplaced(err)
		}
		u.attempt++
		acc.bind(place, u.attempt)
		again, err := u.try(place)
		if !again {
			return err
		}
		u.want.Front = true
	}
	return fail(codeQueueFull, "server busy: every node refused the request")
}

// unplaced says what no place means after refusals. What those who refused had to say stands in for "nobody is left", never for a wait that was too
// long or a gateway that drains.
func (u *run) unplaced(err error) error {
	if u.attempt == 0 || !errors.Is(err, fleet.ErrLeftOut) && !errors.Is(err, fleet.ErrNoModel) && !errors.Is(err, fleet.ErrNoNode) {
		return err
	}
	if u.answer != nil {
		return u.relay()
	}
	switch u.code {
	case "":
		return err
	case tunnel.CodeProviderUnreached:
		return fail(tunnel.CodeProviderUnreached, "no node could reach its provider")
	case tunnel.CodeNodeBusy:
		return fail(codeQueueFull, "server busy: every node refused the request")
	case codeStoreUnavail:
		return errStore
	}
	return fail(codeNoNode, "no node that can serve this is connected")
}

// relay gives the client the last provider's own word.
func (u *run) relay() error {
	a, x := u.answer, u.x
	if a.Status < 400 || a.Status > 599 || !answerHeaders(x.w.Header(), a.Headers) {
		return fail(tunnel.CodeBadProvider, "the provider's answer could not be read")
	}
	x.w.Header().Del("Content-Length")
	if a.Status == http.StatusServiceUnavailable {
		x.w.Header().Set("Retry-After", "1")
	}
	x.acc.end(tunnel.Failed, u.code, int(a.Status))
	x.respond(int(a.Status), "", a.Body)
	return nil
}

// try makes one attempt at place. again: nothing ran, and another node may.
func (u *run) try(place *fleet.Place) (again bool, err error) {
	defer place.Release()
	u.place = place
	r, err := u.start(place)
	if errors.Is(err, tunnel.ErrUnsettled) {
		u.leaveOut(place, tunnel.CodeStaleGeneration) // nothing was issued: another node may know more
		return true, nil
	}
	if errors.Is(err, tunnel.ErrGone) || errors.Is(err, fleet.ErrStale) || isStale(err) {
		u.outdated(place)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(u.ctx, func() { r.Cancel(cancelCode(u.ctx)) })
	defer stop()
	u.x.acc.attach(func() { _ = u.x.rc.SetWriteDeadline(time.Now()) })
	defer u.x.acc.attach(nil)
	written := u.send(r)
	refused, err := u.follow(r, written)
	if u.loan != nil {
		u.loan.end(refused, err)
	}
	if refused == nil {
		return false, err
	}
	return u.refused(place, refused)
}

// outdated waits a moment for a session that is over, or about to be, as far as it or its holder says. It is not left out: its node may be back under another
// generation, or the store may have to be told of it again.
func (u *run) outdated(place *fleet.Place) {
	u.code = tunnel.CodeStaleGeneration
	u.x.h.hub.beatSoon()
	select {
	case <-place.Lane().Session().Done():
	case <-time.After(staleWait):
	case <-u.ctx.Done():
	}
	if u.stale++; u.stale > maxStale {
		u.leaveOut(place, u.code) // it says that it is ready, and takes no stream
	}
}

// accepted notes that the node has taken the run.
func (u *run) accepted() {
	u.place.Accepted()
	if u.loan != nil {
		u.loan.accepted()
	}
}

// start opens the run at place, with a lease where its profile has a slot.
func (u *run) start(place *fleet.Place) (*tunnel.Run, error) {
	u.loan = nil
	var seal func([sha256.Size]byte) ([]byte, error)
	fence := func() error { return u.x.h.hub.fleet.Fence(u.ctx, place) }
	p, _ := u.x.h.settings.profileFor(place.Candidate())
	open := u.open(place)
	switch {
	case place.Peer() != "":
		open.Forward = u.forward(place, p) // whoever holds the session lends
	case p != nil && p.Slot != "":
		n, err := u.lend(place, p)
		if err != nil {
			return nil, err
		}
		u.loan, seal, fence = n, n.seal, n.fence
		open.Route, open.Profile, open.Projection = n.scope.Route.ID, n.scope.Profile.ID, n.scope.PGN
	}
	body := u.body
	if u.upload == nil && body == nil {
		body = []byte{}
	}
	r, err := place.Lane().OpenRun(u.ctx, open, body, seal, func() error {
		if err := context.Cause(u.ctx); err != nil {
			return err
		}
		return fence()
	})
	if err != nil && u.loan != nil && u.loan.issued.ID != "" {
		u.loan.drop(err)
	}
	return r, err
}

// follow copies the answer and releases r, also when the copy ends by a panic.
func (u *run) follow(r *tunnel.Run, written <-chan struct{}) (*tunnel.Refused, error) {
	defer func() {
		r.StopBody()
		if u.upload != nil {
			_ = u.x.rc.SetReadDeadline(time.Now()) // frees a read of a client that holds its upload open
		}
		<-written
		r.Close()
	}()
	if u.answerer != nil {
		return u.answerer(r)
	}
	return u.copy(r)
}

// refused decides what a refusal means for the run.
func (u *run) refused(place *fleet.Place, f *tunnel.Refused) (again bool, err error) {
	if f.Answer != nil {
		u.answer = f.Answer
	}
	u.code = f.Code
	if isLeaseCode(f.Code) {
		return false, leaseFailure(lease.Code(f.Code))
	}
	if f.Retry != tunnel.RetryElsewhere {
		if f.Code == tunnel.CodeNotAllowed {
			return false, fail(codeForbidden, "the node's owner does not allow %s %s", u.x.r.Method, u.x.match.Path)
		}
		return false, fail(tunnel.CodeBadProvider, "the node refused the request: %s", f.Code)
	}
	if u.touched {
		return false, fail(tunnel.CodeProviderUnreached, "the node could not take the upload")
	}
	if f.NoCredit {
		place.Full()
		return true, nil
	}
	if f.Code == tunnel.CodeStaleGeneration && place.Peer() != "" {
		u.outdated(place)
		return true, nil
	}
	u.leaveOut(place, f.Code)
	return true, nil
}

func (u *run) leaveOut(place *fleet.Place, code string) {
	if u.want.Out == nil {
		u.want.Out = make(map[fleet.TargetRef]bool)
	}
	u.want.Out[place.Ref()] = true
	u.code = code
}

// open makes the run's head for one attempt.
func (u *run) open(place *fleet.Place) *tunnel.RunOpen {
	x := u.x
	if g := u.given; g != nil {
		o := &tunnel.RunOpen{
			Run: g.Run, Attempt: u.attempt, Generation: place.Generation(), Kind: g.Kind, Adapter: place.Adapter, Target: place.Target, SessionId: g.SessionId,
			DeadlineMs: g.DeadlineMs, Method: g.Method, Path: g.Path, Headers: g.Headers, Body: g.Body, BodyLength: g.BodyLength, Model: g.Model, Credit: g.Credit,
		}
		if g.Forward == nil { // typed, of a caller's
			o.Model = place.Model
			if d, ok := u.ctx.Deadline(); ok {
				o.DeadlineMs = uint64(max(1, time.Until(d).Milliseconds())) //nolint:gosec // positive
			}
		}
		return o
	}
	path := x.match.Path
	if q := x.r.URL.RawQuery; q != "" && x.match.Endpoint.ModelIn != ollama.ModelMultipart { // a form server reads the query first
		path += "?" + q
	}
	o := &tunnel.RunOpen{
		Run: x.acc.Run, Attempt: u.attempt, Generation: place.Generation(), Kind: tunnel.KindTunnel,
		Adapter: place.Adapter, Target: place.Target, SessionId: x.acc.Session, Method: x.r.Method, Path: []byte(path), Headers: requestHeaders(x.r),
		Model: u.want.Model, Credit: u.want.Credit, Body: tunnel.BodyLength, BodyLength: uint64(len(u.body)),
	}
	switch {
	case u.upload != nil && x.r.ContentLength >= 0:
		o.BodyLength = uint64(x.r.ContentLength)
	case u.upload != nil:
		o.Body, o.BodyLength = tunnel.BodyStream, 0
	case len(u.body) == 0 && (x.r.Method == http.MethodGet || x.r.Method == http.MethodHead):
		o.Body = tunnel.BodyNone
	}
	return o
}

// send writes the body, beside the reading of the answer when it is long. The channel is closed when it no longer uses r.
func (u *run) send(r *tunnel.Run) <-chan struct{} {
	done := make(chan struct{})
	if r.Whole() {
		close(done)
		return done
	}
	if u.upload == nil && len(u.body) <= inlineBody {
		defer close(done)
		if r.WriteBody(u.body) == nil {
			_ = r.EndBody()
		}
		return done
	}
	go func() {
		defer close(done)
		if u.upload == nil {
			if r.WriteBody(u.body) == nil {
				_ = r.EndBody()
			}
			return
		}
		u.stream(r)
	}()
	return done
}

// stream passes an upload on as it comes.
func (u *run) stream(r *tunnel.Run) {
	buf := make([]byte, 32<<10)
	for {
		n, err := u.upload.Read(buf)
		if n > 0 {
			u.touched = true
			if r.WriteBody(buf[:n]) != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = r.EndBody()
			return
		}
		if err != nil {
			r.Cancel(tunnel.CodeClientBody)
			return
		}
	}
}

// firstByte starts the wait for the head that the first_byte option bounds.
func (u *run) firstByte(r *tunnel.Run) (stop func()) {
	d := u.x.h.opts.FirstByte
	if d == 0 {
		return func() {}
	}
	t := time.AfterFunc(d, func() { r.Cancel(tunnel.CodeDeadlineExceeded) })
	return func() { t.Stop() }
}

// cut makes the error of a run that its node ended before a head, or that was aborted here: then it is the abort's.
func cut(ctx context.Context, t *tunnel.Terminal) error {
	if f := (*failure)(nil); t.Outcome == tunnel.Canceled && errors.As(context.Cause(ctx), &f) {
		return f
	}
	switch t.Code {
	case tunnel.CodeCanceled:
		return fail(t.Code, "canceled")
	case tunnel.CodeDraining:
		return fail(t.Code, "the gateway is shutting down")
	case tunnel.CodeDeadlineExceeded:
		return fail(t.Code, "the provider did not answer in time")
	case tunnel.CodeNodeLost:
		return fail(t.Code, "the node was lost; it is not known whether the request ran")
	case tunnel.CodeNodeReplaced:
		return fail(t.Code, "the node reconnected; it is not known whether the request ran")
	case tunnel.CodeNodeStalled:
		return fail(t.Code, "the node stopped taking the request")
	case tunnel.CodeProviderUnreached:
		return fail(t.Code, "the provider closed the connection before it answered")
	case tunnel.CodeClientBody:
		return fail(t.Code, "the request body could not be read")
	case string(lease.Denied), string(lease.Unavailable), string(lease.Rejected): // of a forwarded run, which its holder has ended; an earlier version tells no more
		return fail(t.Code, "%s", leaseTexts[lease.Class(t.Code)])
	}
	if isLeaseCode(t.Code) {
		return leaseFailure(lease.Code(t.Code))
	}
	return fail(tunnel.CodeBadProvider, "the node could not finish the request (%s)", t.Code)
}
