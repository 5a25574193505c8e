package tunnel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// Handler executes runs on a node. ServeRun is called in a goroutine per run; its ctx ends when the gateway cancels or the session ends.
// It must end the run by Refuse or Finish; a run that it leaves open is finished as failed.
type Handler interface {
	ServeRun(ctx context.Context, r *NodeRun)
}

// NodeRun is the node's end of one run. Read and the sending methods may be used from two goroutines; each is for one at a time.
type NodeRun struct {
	// Open and Lease are what the gateway sent. Head is the SHA-256 of the RunOpen message as it came, of a leased run.
	Open  *RunOpen
	Lease []byte
	Head  [sha256.Size]byte

	session *NodeSession
	stream  *quic.Stream
	ctx     context.Context
	cancel  context.CancelCauseFunc
	rd      *wire.Reader
	bufs    *runBuffers

	// of the body that comes in
	readMu sync.Mutex
	piece  []byte // guarded by readMu
	eof    bool   // guarded by readMu
	closed bool   // guarded by readMu: the buffers have gone back

	// of what goes out
	mu    sync.Mutex
	out   []byte      // guarded by mu; frames that were not flushed
	state EventKind   // guarded by mu
	ended atomic.Bool // Refused or Terminal was written
	bytes uint64      // guarded by mu; of Data
	// guarded by mu: the timer that sends Accepted, nil before; and the bytes at the front of out that it is to send.
	late    *time.Timer
	waiting int
}

func newNodeRun(s *NodeSession, stream *quic.Stream) *NodeRun {
	b := runPool.Get().(*runBuffers)
	r := &NodeRun{session: s, stream: stream, bufs: b, out: b.out[:0]}
	r.rd = wire.NewReader(stream, b.in[:])
	// The write side's context ends on STOP_SENDING, with the connection, and when the run is over.
	r.ctx, r.cancel = context.WithCancelCause(stream.Context())
	return r
}

// open reads RunOpen. A gateway that opens a stream has already decided what to send.
func (r *NodeRun) open() error {
	_ = r.stream.SetReadDeadline(time.Now().Add(controlTimeout))
	t, p, _, err := r.rd.Next()
	if err != nil {
		return r.bad(err)
	}
	r.Open = new(RunOpen)
	if t != wire.TypeRunOpen {
		return r.bad(fmt.Errorf("%w: frame 0x%x where RunOpen is due", errOrder, uint64(t)))
	}
	if err := wire.Unmarshal(p, r.Open); err != nil {
		return r.bad(err)
	}
	if r.Open.Leased {
		r.Head = sha256.Sum256(p)
		t, p, _, err := r.rd.Next()
		if err != nil {
			return r.bad(err)
		}
		if t != wire.TypeLease {
			return r.bad(fmt.Errorf("%w: frame 0x%x where Lease is due", errOrder, uint64(t)))
		}
		r.Lease = append([]byte{}, p...)
	}
	_ = r.stream.SetReadDeadline(time.Time{})
	return nil
}

// bad resets a stream on which the gateway broke the protocol.
func (r *NodeRun) bad(err error) error {
	r.stream.CancelRead(quic.StreamErrorCode(wire.StreamProtocol))
	r.stream.CancelWrite(quic.StreamErrorCode(wire.StreamProtocol))
	return err
}

// Read reads the request body. It returns io.EOF after the gateway's End, and never before.
func (r *NodeRun) Read(p []byte) (int, error) {
	r.readMu.Lock()
	defer r.readMu.Unlock()
	for len(r.piece) == 0 {
		if r.eof {
			return 0, io.EOF
		}
		if r.closed {
			return 0, errEnded
		}
		t, b, _, err := r.rd.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // no End: the body is not complete
			}
			return 0, err
		}
		switch t {
		case wire.TypeData:
			r.piece = b
		case wire.TypeEnd:
			r.eof = true
		default:
			return 0, r.bad(fmt.Errorf("%w: frame 0x%x in a body", errOrder, uint64(t)))
		}
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// acceptDelay is how long Accepted may wait for the head, to go out with it: a provider that answers at once then costs one packet less
// (docs/adr/0006-accepted-with-the-head.md).
const acceptDelay = time.Millisecond

// Accept says that a connection to the provider stands and is about to be used. It goes out with what follows it within acceptDelay, or alone.
func (r *NodeRun) Accept() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended.Load() || r.state != 0 {
		return errEnded
	}
	r.out = wire.AppendHeader(r.out, wire.TypeAccepted, 0)
	r.state, r.waiting = EventAccepted, len(r.out)
	r.late = time.AfterFunc(acceptDelay, r.flushAccepted)
	return nil
}

// flushAccepted sends Accepted alone, and leaves what has gathered behind it.
func (r *NodeRun) flushAccepted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended.Load() || r.waiting == 0 {
		return
	}
	_ = r.write(r.out[:r.waiting]) // a failure shows where the next frame is written
	r.out = append(r.out[:0], r.out[r.waiting:]...)
	r.waiting = 0
}

// SendHead sends the provider's head; with flush false it waits for the next frame that is flushed.
func (r *NodeRun) SendHead(h *Head, flush bool) error {
	return r.send(EventAccepted, EventHead, message(wire.TypeHead, h), flush)
}

// SendData sends p, at most MaxData bytes, as one Data frame: the gateway flushes after it. Without progress for ten times StallTimeout
// the run ends: the gateway, which knows the client, is expected to give up long before.
func (r *NodeRun) SendData(p []byte, flush bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != EventHead || r.ended.Load() {
		return errEnded
	}
	r.bytes += uint64(len(p))
	if len(r.out)+len(p) <= 16<<10 {
		r.out = wire.AppendData(r.out, p)
		if flush {
			return r.flush()
		}
		return nil
	}
	r.out = wire.AppendHeader(r.out, wire.TypeData, len(p))
	if err := r.flush(); err != nil {
		return err
	}
	return r.write(p)
}

// Refuse ends the run: nothing ran. After a head it is too late.
func (r *NodeRun) Refuse(f *Refused) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == EventHead {
		return errEnded
	}
	return r.last(EventRefused, message(wire.TypeRefused, f))
}

// Finish ends the run; Bytes and SessionId are filled in. Only the first call of Finish or Refuse counts.
func (r *NodeRun) Finish(t *Terminal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Bytes, t.SessionId = r.bytes, r.Open.SessionId
	if r.state == 0 && !r.ended.Load() {
		// A Terminal follows Accepted: a run that failed before is one that nobody could have run.
		r.out = wire.AppendHeader(r.out, wire.TypeAccepted, 0)
	}
	return r.last(EventTerminal, message(wire.TypeTerminal, t))
}

// last writes the run's last frame and closes the send side. It never resets it: a reset may drop what is not acknowledged yet.
// r.mu is held.
func (r *NodeRun) last(kind EventKind, frame func([]byte) ([]byte, error)) error {
	if !r.ended.CompareAndSwap(false, true) {
		return errEnded
	}
	r.state = kind
	var err error
	if r.out, err = frame(r.out); err != nil {
		return r.bad(err)
	}
	err = r.flush()
	_ = r.stream.Close()
	r.stream.CancelRead(quic.StreamErrorCode(wire.StreamDone))
	return err
}

func message(t wire.Type, m proto.Message) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) { return wire.AppendMessage(b, t, m) }
}

// send appends a frame that may only come in state from, and moves to state to.
func (r *NodeRun) send(from, to EventKind, frame func([]byte) ([]byte, error), flush bool) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended.Load() || r.state != from {
		return errEnded
	}
	if r.out, err = frame(r.out); err != nil {
		return err
	}
	r.state = to
	if flush {
		return r.flush()
	}
	return nil
}

// flush writes what has gathered; r.mu is held.
func (r *NodeRun) flush() error {
	if r.waiting > 0 {
		r.late.Stop()
		r.waiting = 0
	}
	err := r.write(r.out)
	r.out = r.out[:0]
	return err
}

func (r *NodeRun) write(p []byte) error {
	for len(p) > 0 {
		// Anew for every write, however short: one that has passed would fail the next at once.
		_ = r.stream.SetWriteDeadline(time.Now().Add(10 * StallTimeout))
		n, err := r.stream.Write(p)
		p = p[n:]
		if errors.Is(err, os.ErrDeadlineExceeded) && n > 0 {
			continue
		}
		if err != nil {
			r.stream.CancelWrite(quic.StreamErrorCode(wire.StreamStalled))
			return err
		}
	}
	return nil
}

// abort cancels the run from this side of the wire; its handler sees its context end.
func (r *NodeRun) abort(cause error) {
	r.cancel(cause)
	r.stream.CancelRead(quic.StreamErrorCode(wire.StreamDone))
}

// close releases the stream after the handler.
func (r *NodeRun) close() {
	if r.Open != nil && !r.ended.Load() {
		t := &Terminal{Outcome: Failed, Code: CodeBadRun, Reason: "the handler left the run open"}
		if r.ctx.Err() != nil {
			t.Outcome, t.Code = Canceled, CodeCanceled
		}
		_ = r.Finish(t)
	}
	r.cancel(errEnded)
	r.stream.CancelRead(quic.StreamErrorCode(wire.StreamDone)) // ends a Read that is under way
	r.readMu.Lock()
	defer r.readMu.Unlock()
	r.closed = true
	if cap(r.out) <= 8<<10 {
		r.bufs.out = r.out[:0]
	}
	runPool.Put(r.bufs)
	r.bufs, r.rd, r.piece = nil, nil, nil
}
