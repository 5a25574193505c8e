package edge

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Form is how events are written.
type Form int

// The two forms.
const (
	NDJSON Form = iota // one object a line
	SSE                // server-sent events: the name, and the object as data
)

// ContentType is the Content-Type of a body of events.
func (f Form) ContentType() string {
	if f == SSE {
		return "text/event-stream"
	}
	return "application/x-ndjson"
}

// FormFor picks the form by the request's Accept header: server-sent events for who asks for them by name, lines for everyone else.
func FormFor(accept string) Form {
	for part := range strings.SplitSeq(accept, ",") {
		mediaType, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream") {
			return SSE
		}
	}
	return NDJSON
}

// RunState is how far a run has come.
type RunState string

// The states that progress events name.
const (
	Queued     RunState = "queued"
	Loading    RunState = "loading"
	Generating RunState = "generating"
)

// ErrEnded is what a write after the result gets: exactly one result is the last event.
var ErrEnded = errors.New("the run's result has been written")

// Events writes the events of one run, numbered from 0, each in one Write. It may be used by several goroutines: an answer and a cancellation
// may both try to write the result, and the first does.
type Events struct {
	form    Form
	run     string
	session string

	mu    sync.Mutex
	w     io.Writer // guarded by mu
	seq   int       // guarded by mu
	ended bool      // guarded by mu
}

// NewEvents is for one run. W is not flushed; let its Write do that.
func NewEvents(w io.Writer, form Form, runID, session string) *Events {
	return &Events{form: form, run: runID, session: session, w: w}
}

type eventHead struct {
	Event   string `json:"event"`
	RunID   string `json:"run_id"`
	Session string `json:"session_id"`
	Seq     int    `json:"seq"`
}

// Accepted says where the run executes and why.
func (e *Events) Accepted(d Decision) error {
	return e.write("accepted", false, func(h eventHead) any {
		return struct {
			eventHead
			Placement Placement `json:"placement"`
			Reason    string    `json:"placement_reason"`
		}{h, d.Placement, d.Reason}
	})
}

// Progress says how far the run has come.
func (e *Events) Progress(s RunState) error {
	return e.write("progress", false, func(h eventHead) any {
		return struct {
			eventHead
			State RunState `json:"state"`
		}{h, s}
	})
}

// Delta hands on text as the model says it, unchecked: it is for a person to look at, not to act on.
func (e *Events) Delta(text string) error {
	return e.write("delta", false, func(h eventHead) any {
		return struct {
			eventHead
			Text string `json:"text"`
		}{h, text}
	})
}

// Result ends the events with the whole answer.
func (e *Events) Result(a Answer) error {
	return e.write("result", true, func(h eventHead) any {
		return struct {
			eventHead
			Placement       Placement   `json:"placement"`
			PlacementReason string      `json:"placement_reason"`
			Disposition     Disposition `json:"disposition"`
			IdempotencyKey  string      `json:"idempotency_key"`
			Result          ModelResult `json:"result"`
		}{h, a.Placement, a.PlacementReason, a.Disposition, a.IdempotencyKey, a.Result}
	})
}

// write encodes and writes one event. One that cannot be encoded leaves no gap in the numbers, and does not end the run.
func (e *Events) write(event string, last bool, body func(eventHead) any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return ErrEnded
	}
	line, err := plainJSON(body(eventHead{event, e.run, e.session, e.seq}))
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	if e.form == SSE {
		line = fmt.Appendf(nil, "event: %s\ndata: %s\n", event, line)
	}
	e.seq++
	e.ended = last
	_, err = e.w.Write(append(line, '\n'))
	return err
}
