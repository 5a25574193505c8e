package tunnel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// Lane is one QUIC connection of a Session. Safe for concurrent use.
type Lane struct {
	session *Session
	conn    *quic.Conn
	runs    atomic.Int64
	bind    sync.Once
	binding Binding // after bind
	bindErr error   // after bind
}

// Session returns the session that the lane belongs to.
func (l *Lane) Session() *Session { return l.session }

// Runs tells how many runs are open on the lane.
func (l *Lane) Runs() int { return int(l.runs.Load()) }

// Binding is what ties a lease to one connection.
type Binding struct {
	// Exporter is the TLS exporter value "EXPORTER-Channel-Binding" (RFC 9266), 32 bytes.
	Exporter []byte
	// Gateway and Node are the SHA-256 of the two leaves.
	Gateway, Node [sha256.Size]byte
}

// binding takes the values from one end of a connection.
func binding(c *quic.Conn, own []byte) (exporter []byte, ownHash, peerHash [sha256.Size]byte, err error) {
	cs := c.ConnectionState().TLS
	exporter, err = cs.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return nil, ownHash, peerHash, fmt.Errorf("exporting keying material: %w", err)
	}
	if len(cs.PeerCertificates) == 0 {
		return nil, ownHash, peerHash, errors.New("the peer has no certificate")
	}
	return exporter, sha256.Sum256(own), sha256.Sum256(cs.PeerCertificates[0].Raw), nil
}

// Binding returns the lane's binding. The gateway's leaf is the one that was current at the first call; a lane that was made under an earlier
// one is left by its node before that expires.
func (l *Lane) Binding() (Binding, error) {
	l.bind.Do(func() {
		id, err := l.session.st.Identity()
		if err != nil {
			l.bindErr = err
			return
		}
		l.binding.Exporter, l.binding.Gateway, l.binding.Node, l.bindErr = binding(l.conn, id.Certificate.Leaf.Raw)
	})
	return l.binding, l.bindErr
}

// lostCode is the run code for a stream that the lane's end cut.
func (l *Lane) lostCode() string {
	var ce *CloseError
	if errors.As(classify(context.Cause(l.conn.Context())), &ce) && !ce.Remote && ce.Code == CloseReplaced {
		return CodeNodeReplaced
	}
	return CodeNodeLost
}

// wholeBody is the longest body that goes out in one write with its run's head, in bytes: with the head it fits two packets.
const wholeBody = 2 << 10

// OpenRun opens a run. seal, unless nil, makes the lease; it is given the SHA-256 of the RunOpen message as the node will see it. fence is called
// under the session's send lock, last thing before the first byte; when one of the two fails its error is returned. body, when it is not nil, is the whole
// body; a short one is sent at once with the head, and Run.Whole tells so.
//
// An error from OpenRun means that nothing was sent, so the run may go elsewhere; ErrGone says that the session has ended. From a nil error on, the
// Run tells how it went, and must be closed.
func (l *Lane) OpenRun(ctx context.Context, open *RunOpen, body []byte, seal func(head [sha256.Size]byte) ([]byte, error), fence func() error) (*Run, error) {
	stream, err := l.stream(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %w", ErrGone, classify(err))
	}
	r := newRun(l, stream, open.Run)
	open.Leased = seal != nil
	if err = r.head(open, seal); err == nil {
		r.whole = body != nil && len(body) <= wholeBody
		if r.whole {
			if len(body) > 0 {
				r.out = wire.AppendData(r.out, body)
			}
			r.out = wire.AppendHeader(r.out, wire.TypeEnd, 0)
		}
		err = l.first(r, fence)
	}
	if err != nil {
		r.reset(wire.StreamDone)
		r.Close()
		return nil, err
	}
	return r, nil
}

// head writes RunOpen and the lease to what goes out first.
func (r *Run) head(open *RunOpen, seal func([sha256.Size]byte) ([]byte, error)) (err error) {
	if r.out, err = wire.AppendMessage(r.out[:0], wire.TypeRunOpen, open); err != nil || seal == nil {
		return err
	}
	_, _, n, err := wire.ParseHeader(r.out)
	if err != nil {
		return err
	}
	lease, err := seal(sha256.Sum256(r.out[n:]))
	if err != nil {
		return err
	}
	if len(lease) > wire.MaxLease {
		return fmt.Errorf("lease of %d bytes, at most %d", len(lease), wire.MaxLease)
	}
	r.out = append(wire.AppendHeader(r.out, wire.TypeLease, len(lease)), lease...)
	return nil
}

// first fences and sends the first bytes of r, as one step against the session's end.
func (l *Lane) first(r *Run, fence func() error) error {
	s := l.session
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if s.stopped {
		return ErrGone
	}
	if st := s.State(); st != StateReady {
		return fmt.Errorf("%w: %s", ErrGone, st)
	}
	if fence != nil {
		if err := fence(); err != nil {
			return err
		}
	}
	// A head that fits a packet never waits; a longer one waits for the node's flow control, under the lock, so not for long: a node that takes
	// not even heads holds up all of its runs, and is given up.
	_ = r.stream.SetWriteDeadline(time.Now().Add(controlTimeout))
	if _, err := r.stream.Write(r.out); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			go s.Close(wire.CloseSilent, "the node takes no runs") // Close wants the lock that we hold
		}
		r.failWrite(err)
	} else if r.whole {
		_ = r.stream.Close()
	}
	return nil
}

// stream opens a stream, at once where the node's limit allows; else it waits for one, but not for ever.
func (l *Lane) stream(ctx context.Context) (*quic.Stream, error) {
	s, err := l.conn.OpenStream()
	var limit *quic.StreamLimitReachedError
	if err == nil || !errors.As(err, &limit) {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	return l.conn.OpenStreamSync(ctx)
}
