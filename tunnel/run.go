package tunnel

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// EventKind says what an Event holds.
type EventKind int

// What a node may say of a run, in the order in which it may.
const (
	EventAccepted EventKind = iota + 1 // the node is about to use the provider
	EventHead                          // the provider's head
	EventData                          // a piece of the provider's body
	EventRefused                       // the end: nothing ran
	EventTerminal                      // the end
)

// Event is the next thing that happened to a run.
type Event struct {
	Kind     EventKind
	Head     *Head
	Data     []byte // valid until the next call of Next
	FrameEnd bool   // Data ends its frame: what the provider wrote at once is complete, flush it
	Refused  *Refused
	Terminal *Terminal
}

// Run is the gateway's end of one run. One goroutine calls Next, one may write the body meanwhile, and anyone may call Cancel. Close
// must be called once the others have returned.
type Run struct {
	lane   *Lane
	stream *quic.Stream
	id     string
	rd     *wire.Reader
	src    eofReader
	bufs   *runBuffers
	out    []byte
	whole  bool // the body went out with the head

	state    EventKind // the last event other than data; 0 before any
	end      *Event    // set once: Refused or Terminal
	bytes    uint64    // of Data handed out
	canceled atomic.Pointer[string]
	ended    atomic.Bool // Refused or Terminal was read: a failing write means nothing
	wfail    atomic.Pointer[string]
}

type runBuffers struct {
	in  [32 << 10]byte // one read of a busy provider fits
	out []byte
}

var runPool = sync.Pool{New: func() any { return &runBuffers{out: make([]byte, 0, 2<<10)} }}

func newRun(l *Lane, stream *quic.Stream, id string) *Run {
	l.runs.Add(1)
	b := runPool.Get().(*runBuffers)
	r := &Run{lane: l, stream: stream, id: id, bufs: b, out: b.out, src: eofReader{r: stream}}
	r.rd = wire.NewReader(&r.src, b.in[:])
	return r
}

// eofReader remembers the end of a stream, so that Close need not ask again.
type eofReader struct {
	r   io.Reader
	eof bool
}

func (e *eofReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if errors.Is(err, io.EOF) {
		e.eof = true
	}
	return n, err
}

// ID returns the run's id.
func (r *Run) ID() string { return r.id }

// Whole reports whether OpenRun has sent the whole body.
func (r *Run) Whole() bool { return r.whole }

// Lane returns the lane that carries the run.
func (r *Run) Lane() *Lane { return r.lane }

// WriteBody sends p as Data frames. It waits for the node's flow control; without progress for StallTimeout the run ends as
// node_stalled. An error means that no more of the body is wanted or can be sent: stop writing, and let Next say why.
func (r *Run) WriteBody(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), wire.MaxData)
		r.out = wire.AppendHeader(r.out[:0], wire.TypeData, n)
		if n <= 1<<10 { // one write, likely one packet
			r.out = append(r.out, p[:n]...)
			if err := r.write(r.out); err != nil {
				return err
			}
		} else {
			if err := r.write(r.out); err != nil {
				return err
			}
			if err := r.write(p[:n]); err != nil {
				return err
			}
		}
		p = p[n:]
	}
	return nil
}

// EndBody says that the body is complete and closes the sending direction.
func (r *Run) EndBody() error {
	if err := r.write(wire.AppendHeader(r.out[:0], wire.TypeEnd, 0)); err != nil {
		return err
	}
	return r.stream.Close()
}

func (r *Run) write(p []byte) error {
	for len(p) > 0 {
		// Anew for every write, however short: one that has passed would fail the next at once.
		_ = r.stream.SetWriteDeadline(time.Now().Add(StallTimeout))
		n, err := r.stream.Write(p)
		p = p[n:]
		if errors.Is(err, os.ErrDeadlineExceeded) && n > 0 {
			continue // slow, but not stalled
		}
		if err != nil {
			r.failWrite(err)
			return err
		}
	}
	return nil
}

// failWrite notes a write that failed. The node may have stopped reading because it has answered; only a stall ends the run from here.
func (r *Run) failWrite(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) && !r.ended.Load() {
		code := CodeNodeStalled
		r.wfail.CompareAndSwap(nil, &code)
		r.stream.CancelRead(quic.StreamErrorCode(wire.StreamStalled))
	}
	r.stream.CancelWrite(quic.StreamErrorCode(wire.StreamDone))
}

// StopBody ends a WriteBody that another goroutine is in: the run has ended, or no more of the body is wanted.
func (r *Run) StopBody() { r.stream.CancelWrite(quic.StreamErrorCode(wire.StreamDone)) }

// Cancel resets both directions: the node stops the provider. code becomes the run's code, unless it has ended. The first call counts.
func (r *Run) Cancel(code string) {
	r.canceled.CompareAndSwap(nil, &code)
	r.reset(wire.StreamCancel)
}

func (r *Run) reset(code StreamCode) {
	r.stream.CancelWrite(quic.StreamErrorCode(code))
	r.stream.CancelRead(quic.StreamErrorCode(code))
}

// Next waits for the next event. After a Refused or Terminal it returns that again. It never fails: a stream that ends otherwise is a
// Terminal that says failed or canceled, with its code.
func (r *Run) Next() Event {
	if r.end != nil {
		return *r.end
	}
	t, p, last, err := r.rd.Next()
	if err != nil {
		return r.cut(err)
	}
	ev, ok := r.take(t, p, last)
	if !ok {
		r.reset(wire.StreamProtocol)
		r.lane.session.st.Registrar.Fenced("protocol_order")
		return r.finish(Event{Kind: EventTerminal, Terminal: &Terminal{Outcome: Failed, Code: CodeProtocolOrder, Reason: "frames out of order or malformed"}})
	}
	if ev.Kind == EventRefused || ev.Kind == EventTerminal {
		return r.finish(ev)
	}
	if ev.Kind != EventData {
		r.state = ev.Kind
	}
	return ev
}

// Ready reports whether Next would return at once.
func (r *Run) Ready() bool { return r.end != nil || r.rd.Ready() }

// take turns a frame into an event; false when it is malformed or out of order.
func (r *Run) take(t wire.Type, p []byte, last bool) (Event, bool) {
	switch t {
	case wire.TypeAccepted:
		return Event{Kind: EventAccepted}, r.state == 0
	case wire.TypeHead:
		h := new(Head)
		ok := r.state == EventAccepted && wire.Unmarshal(p, h) == nil && h.Status >= 200 && h.Status <= 599
		return Event{Kind: EventHead, Head: h}, ok
	case wire.TypeData:
		r.bytes += uint64(len(p))
		return Event{Kind: EventData, Data: p, FrameEnd: last}, r.state == EventHead
	case wire.TypeRefused:
		f := new(Refused)
		ok := (r.state == 0 || r.state == EventAccepted) && wire.Unmarshal(p, f) == nil
		return Event{Kind: EventRefused, Refused: f}, ok
	case wire.TypeTerminal:
		m := new(Terminal)
		ok := r.state != 0 && wire.Unmarshal(p, m) == nil && r.plausible(m)
		return Event{Kind: EventTerminal, Terminal: m}, ok
	}
	return Event{}, false
}

// plausible checks a Terminal: an outcome that exists, completed only after a head, and the bytes that were sent.
func (r *Run) plausible(m *Terminal) bool {
	switch m.Outcome {
	case Completed:
		return r.state == EventHead && m.Bytes == r.bytes
	case Failed, Canceled:
		return true
	}
	return false
}

func (r *Run) finish(ev Event) Event {
	r.ended.Store(true)
	r.end = &ev
	return ev
}

// cut makes the Terminal of a stream that ended without one.
func (r *Run) cut(err error) Event {
	t := &Terminal{Outcome: Failed, Code: CodeNodeLost, Reason: err.Error()}
	if code := r.canceled.Load(); code != nil {
		t.Outcome, t.Code = Canceled, *code
		return r.finish(Event{Kind: EventTerminal, Terminal: t})
	}
	if code := r.wfail.Load(); code != nil {
		t.Code = *code
		return r.finish(Event{Kind: EventTerminal, Terminal: t})
	}
	if errors.Is(err, wire.ErrFrame) || errors.Is(err, wire.ErrUnknownCritical) {
		r.reset(wire.StreamProtocol)
		t.Code = CodeProtocolOrder
		return r.finish(Event{Kind: EventTerminal, Terminal: t})
	}
	select {
	case <-r.lane.conn.Context().Done():
		t.Code = r.lane.lostCode()
	default:
	}
	return r.finish(Event{Kind: EventTerminal, Terminal: t})
}

// Close releases the stream. Without an end so far the run is canceled. What comes after the end is dropped and counted.
func (r *Run) Close() {
	if r.end == nil {
		r.Cancel(CodeCanceled)
	}
	r.stream.CancelWrite(quic.StreamErrorCode(wire.StreamDone)) // no effect after EndBody
	r.lane.runs.Add(-1)
	if r.end == nil || r.src.eof {
		r.release()
		return
	}
	go r.drain()
}

// drain reads on to the end of the stream, so that the node's last frames are acknowledged rather than reset.
func (r *Run) drain() {
	_ = r.stream.SetReadDeadline(time.Now().Add(probeTimeout))
	for {
		if _, _, _, err := r.rd.Next(); err != nil {
			break
		}
		r.lane.session.st.Registrar.Fenced("late_frame")
	}
	r.release()
}

func (r *Run) release() {
	if r.src.eof && r.end != nil {
		// Frames behind the end that were already in the buffer.
		for {
			if _, _, _, err := r.rd.Next(); err != nil {
				break
			}
			r.lane.session.st.Registrar.Fenced("late_frame")
		}
	}
	r.stream.CancelRead(quic.StreamErrorCode(wire.StreamDone))
	if cap(r.out) <= 8<<10 {
		r.bufs.out = r.out[:0]
	}
	runPool.Put(r.bufs)
	r.bufs, r.rd = nil, nil
}
