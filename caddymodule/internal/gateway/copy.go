package gateway

import (
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// clientStall is how long a write to the client may wait without progress.
const clientStall = tunnel.StallTimeout

// copy gives the run's answer to the client as it comes. It returns the node's refusal, or nil and how the run went wrong, if it did.
// It panics with http.ErrAbortHandler, after what can still be said to the client, when an answer is cut.
func (u *run) copy(r *tunnel.Run) (*tunnel.Refused, error) {
	stopWait := u.firstByte(r)
	defer stopWait()
	c := &copier{u: u, r: r}
	defer c.watch()()
	for {
		switch ev := r.Next(); ev.Kind {
		case tunnel.EventAccepted:
			u.accepted()
		case tunnel.EventHead:
			stopWait()
			if err := c.head(ev.Head); err != nil {
				r.Cancel(tunnel.CodeBadProvider)
				return nil, err
			}
		case tunnel.EventData:
			if err := c.data(ev.Data, ev.FrameEnd); err != nil {
				r.Cancel(tunnel.CodeCanceled)
				return nil, c.gone(err)
			}
		case tunnel.EventRefused:
			return ev.Refused, nil
		case tunnel.EventTerminal:
			return nil, c.finish(ev.Terminal)
		}
	}
}

// copier writes one answer.
type copier struct {
	u      *run
	r      *tunnel.Run
	status int
	stream bool // flush each frame
	family shape
	last   [2]byte // of the body, to know whether a line or event is complete
	stall  *time.Timer
}

// shape is what an error may be appended to.
type shape int

const (
	opaque shape = iota
	ndjson
	sse
)

// watch ends a write that makes no progress: its deadline is set into the past.
func (c *copier) watch() (stop func()) {
	c.stall = time.AfterFunc(time.Hour, func() {
		c.u.x.acc.stalled.Store(true)
		_ = c.u.x.rc.SetWriteDeadline(time.Now())
	})
	c.stall.Stop()
	return func() { c.stall.Stop() }
}

// head writes the provider's head. Streams go out at once: clients wait for it before the first token.
func (c *copier) head(h *tunnel.Head) error {
	x := c.u.x
	header := x.w.Header()
	if !answerHeaders(header, h.Headers) {
		return fail(tunnel.CodeBadProvider, "the provider's answer has a malformed header")
	}
	if x.h.opts.ExposeNode {
		header.Set(headerNode, x.acc.Node)
	}
	c.status, c.stream = int(h.Status), header.Get("Content-Length") == ""
	switch kind, _, _ := mime.ParseMediaType(header.Get("Content-Type")); {
	case kind == "application/x-ndjson":
		c.family = ndjson
	case kind == "text/event-stream":
		c.family = sse
	}
	if c.family != opaque {
		// Keep compressors out: they would hold tokens back.
		header.Set("Cache-Control", strings.TrimPrefix(header.Get("Cache-Control")+", no-transform", ", "))
		header.Set("Incremental", "?1")
	}
	if header.Get("Content-Type") == "" {
		header["Content-Type"] = nil // never sniffed
	}
	x.started = true
	x.acc.head(c.status)
	x.acc.tally = ollama.NewTally(x.match.Endpoint)
	x.w.WriteHeader(c.status)
	if c.stream {
		return c.flush()
	}
	return nil
}

// hasBody reports whether an answer of this status to this method has a body.
func (c *copier) hasBody() bool {
	return c.u.x.r.Method != http.MethodHead && c.status != http.StatusNoContent && c.status != http.StatusNotModified
}

func (c *copier) data(p []byte, frameEnd bool) error {
	if len(p) > 0 && !c.hasBody() {
		return http.ErrContentLength
	}
	if len(p) > 0 {
		c.stall.Reset(clientStall)
		n, err := c.u.x.w.Write(p)
		c.stall.Stop()
		c.u.x.acc.wrote(p[:n])
		if err != nil {
			return err
		}
		c.last[0], c.last[1] = c.last[1], p[len(p)-1]
		if len(p) > 1 {
			c.last[0] = p[len(p)-2]
		}
	}
	if frameEnd && c.stream {
		return c.flush()
	}
	return nil
}

func (c *copier) flush() error {
	c.stall.Reset(clientStall)
	err := c.u.x.rc.Flush()
	c.stall.Stop()
	return err
}

// gone says why the client's side failed.
func (c *copier) gone(err error) error {
	if c.u.x.acc.stalled.Load() {
		return fail(codeClientStalled, "the client stopped reading: %v", err)
	}
	if errors.Is(err, http.ErrContentLength) {
		return fail(tunnel.CodeBadProvider, "the provider sent more than it declared")
	}
	return fail(tunnel.CodeCanceled, "the client went away: %v", err)
}

// finish ends the answer as the run ended. A cut answer never looks complete: what can carry an error gets one, and the connection is
// aborted.
func (c *copier) finish(t *tunnel.Terminal) error {
	x := c.u.x
	if t.Outcome == tunnel.Completed {
		if declared := x.w.Header().Get("Content-Length"); declared != "" && declared != strconv.FormatUint(x.acc.Bytes, 10) && c.hasBody() {
			return fail(tunnel.CodeBadProvider, "the provider sent less than it declared")
		}
		trailers := http.Header{}
		if answerHeaders(trailers, t.Trailers) {
			for name, values := range trailers {
				x.w.Header()[http.TrailerPrefix+name] = values
			}
		}
		x.acc.complete(t)
		return nil
	}
	err := cut(c.u.ctx, t)
	if !x.started {
		return err
	}
	if c.whole() {
		// Nothing is missing but the node's own word: for the client the answer is complete, and nothing may follow it.
		x.acc.complete(t)
		return nil
	}
	if t.Code != tunnel.CodeCanceled || x.r.Context().Err() == nil {
		c.append(asFailure(err, x.match.Endpoint, ""))
	}
	return err
}

// whole reports whether the client has all of the answer, although the run did not end as completed.
func (c *copier) whole() bool {
	x := c.u.x
	if declared := x.w.Header().Get("Content-Length"); declared != "" {
		return c.hasBody() && declared == strconv.FormatUint(x.acc.Bytes, 10)
	}
	return c.family != opaque && x.acc.tally.Whole()
}

// append adds the error to a stream that was cut, after ending the line or event under way.
func (c *copier) append(f *failure) {
	if c.family == opaque {
		return
	}
	var lead string
	switch {
	case c.last[1] == 0:
	case c.family == ndjson && c.last[1] != '\n':
		lead = "\n"
	case c.family == sse && c.last[1] != '\n':
		lead = "\n\n"
	case c.family == sse && c.last[0] != '\n':
		lead = "\n"
	}
	x := c.u.x
	message := append([]byte(lead), x.match.Family.StreamError(x.match.Endpoint, f.code, f.message)...)
	_ = c.data(message, true)
}

// isStale reports that the store no longer knows the session as ready.
func isStale(err error) bool {
	return errors.Is(err, store.ErrStale) || errors.Is(err, store.ErrNotReady) || errors.Is(err, store.ErrDisabled)
}
