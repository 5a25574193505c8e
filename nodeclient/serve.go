package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

// serveRun serves a run of v's session: admit, connect, open the lease, accept, ask, answer.
func (c *Client) serveRun(ctx context.Context, r *tunnel.NodeRun, v *vault) {
	defer c.recovered(r)
	a, refusal, after := c.admit(r, v)
	if refusal != nil {
		_ = r.Refuse(refusal)
		if after != nil {
			after()
		}
		return
	}
	c.runs.Add(1)
	a.target.runs.Add(1)
	// The credit is free before the gateway hears that the run has ended: it may send the next one at once. A canceled run's is free with
	// the cancellation, for then the gateway waits for nothing.
	release := sync.OnceFunc(func() {
		c.runs.Add(-1)
		a.target.runs.Add(-1)
		a.release()
		if a.endpoint == nil || a.endpoint.Class != ollama.Inventory {
			poke(a.target.soon) // what is loaded has changed
		}
	})
	defer release()
	defer context.AfterFunc(ctx, release)()
	x := &run{NodeRun: r, target: a.target, endpoint: a.endpoint, vault: v, lease: a.lease, start: time.Now(), release: release}
	if r.Open.Kind == tunnel.KindEdge {
		x.serveTyped(ctx, c.cfg.Gates)
		return
	}
	x.serve(ctx)
}

// run is one run that was admitted.
type run struct {
	*tunnel.NodeRun
	target   *target
	endpoint *ollama.Endpoint // nil at a goal-job API
	vault    *vault
	lease    *lease.Checked // nil: without a credential
	mark     lease.Mark     // of the credential, for the answer
	start    time.Time
	release  func() // gives the credit back; called before the run's last frame, again without effect
	body     requestBody

	connected, firstByte atomic.Uint64 // µs after start
}

var errDeadline = errors.New("the run's deadline has passed")

func (x *run) serve(ctx context.Context) {
	// Ends the provider's connection, and with it whatever the adapter still reads of the request.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if ms := x.Open.DeadlineMs; ms > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, time.Duration(min(ms, maxDeadlineMs))*time.Millisecond, errDeadline)
		defer stop()
		defer x.watchDeadline(ctx, func() { x.fail(ctx, nil) })()
	}
	conn, err := x.target.adapter.Connect(ctx, x.lease != nil)
	x.connected.Store(micros(x.start))
	if err != nil {
		x.unreachable(ctx, err)
		return
	}
	defer conn.Close()
	req := x.request()
	if x.lease != nil {
		secret, err := x.vault.open(x.lease)
		if err != nil {
			x.refuse(never(leaseCode(err), ""))
			return
		}
		defer secret.Clear()
		x.mark = secret.Mark()
		req.Credential = &injection{x.lease.Header(), secret}
	}
	if err := x.Accept(); err != nil {
		x.fail(ctx, err)
		return
	}
	resp, err := conn.Do(ctx, req)
	if err != nil {
		x.noAnswer(ctx, err)
		return
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	x.firstByte.Store(micros(x.start))
	x.answer(ctx, resp)
}

// injection is a credential as an adapter takes it.
type injection struct {
	header string
	*lease.Secret
}

func (i *injection) Header() string        { return i.header }
func (i *injection) Line() ([]byte, error) { return i.Secret.Line(i.header) }

// recovered ends a run after a fault of ours, so that it has its one terminal and the others go on. Of what was thrown the log gets the text only if
// it is the runtime's: any other may hold what the run had in hand, a prompt or a credential.
func (c *Client) recovered(r *tunnel.NodeRun) {
	if p := recover(); p != nil {
		text := fmt.Sprintf("%T", p)
		if e, ok := p.(runtime.Error); ok {
			text = e.Error()
		}
		c.log.Error("a fault in a run", zap.String("panic", text), zap.StackSkip("stack", 1))
		_ = r.Finish(&tunnel.Terminal{Outcome: tunnel.Failed, Code: tunnel.CodeInternal}) // of no effect if it has ended
	}
}

// watchDeadline calls passed, which is to send the terminal, when the deadline passes, even while a read of the request's body hangs: the terminal ends
// that read. The function returned waits until nothing of this runs any more.
func (x *run) watchDeadline(ctx context.Context, passed func()) func() {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		if errors.Is(context.Cause(ctx), errDeadline) {
			passed()
		}
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// maxDeadlineMs keeps a deadline within what time.Duration holds.
const maxDeadlineMs = uint64(24 * time.Hour / time.Millisecond)

func micros(since time.Time) uint64 { return uint64(max(time.Since(since).Microseconds(), 0)) } //nolint:gosec // not negative

// request is the run's request as the adapter takes it.
func (x *run) request() *adapter.Request {
	o := x.Open
	req := &adapter.Request{Method: o.Method, Path: string(o.Path), Headers: make([]adapter.Header, 0, len(o.Headers))}
	for _, h := range o.Headers {
		req.Headers = append(req.Headers, adapter.Header{Name: h.Name, Value: string(h.Value)})
	}
	x.body.src = x.NodeRun
	switch o.Body {
	case tunnel.BodyLength:
		req.Body, req.Length = &x.body, int64(min(o.BodyLength, 1<<62)) //nolint:gosec // bounded
	case tunnel.BodyStream:
		req.Body, req.Length = &x.body, -1
	}
	return req
}

// requestBody remembers how the gateway's body failed, to tell that from the provider's failures.
type requestBody struct {
	src io.Reader
	mu  sync.Mutex
	err error // guarded by mu
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.src.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
	}
	return n, err
}

func (b *requestBody) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// isOver tells whether ctx has ended. A dial takes its deadline from the clock and may notice it a moment before ctx does: that is no word about the
// provider.
func isOver(ctx context.Context) bool {
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// unreachable ends a run whose provider could not be connected: nothing ran.
func (x *run) unreachable(ctx context.Context, err error) {
	if isOver(ctx) {
		x.fail(ctx, err)
		return
	}
	x.target.down(err)
	x.refuse(elsewhere(tunnel.CodeProviderUnreached, err.Error()))
}

// noAnswer ends a run of which no head came.
func (x *run) noAnswer(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		x.fail(ctx, err)
	case x.body.failed() != nil:
		x.end(tunnel.Failed, tunnel.CodeClientBody, x.body.failed())
	case errors.Is(err, adapter.ErrNotSent):
		x.refuse(elsewhere(tunnel.CodeProviderUnreached, err.Error()))
	case errors.Is(err, adapter.ErrBadResponse):
		x.end(tunnel.Failed, tunnel.CodeBadProvider, err)
	default:
		x.end(tunnel.Failed, tunnel.CodeProviderUnreached, err)
	}
}

// fail ends a run that was canceled, by whatever ended its context, or that the gateway no longer takes.
func (x *run) fail(ctx context.Context, err error) {
	if errors.Is(context.Cause(ctx), errDeadline) {
		x.end(tunnel.Failed, tunnel.CodeDeadlineExceeded, errDeadline)
		return
	}
	x.end(tunnel.Canceled, tunnel.CodeCanceled, err)
}

// end writes the run's terminal. Only the first one counts.
func (x *run) end(outcome tunnel.Outcome, code string, err error) {
	t := &tunnel.Terminal{Outcome: outcome, Code: code, Timings: x.timed()}
	if err != nil {
		t.Reason = err.Error()
	}
	x.finish(t)
}

// finish ends the run with a terminal. An error means that it has ended, or that the gateway is gone: nobody is left to tell.
func (x *run) finish(t *tunnel.Terminal) {
	x.release()
	_ = x.Finish(t)
}

// refuse ends the run before anything ran.
func (x *run) refuse(f *tunnel.Refused) {
	x.release()
	_ = x.Refuse(f)
}

func (x *run) timed() *tunnel.Timings {
	return &tunnel.Timings{ConnectUs: x.connected.Load(), FirstByteUs: x.firstByte.Load(), TotalUs: micros(x.start)}
}
