package tunnel

import (
	"bufio"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// control is one end of a control or enrolment stream: whole frames, one reader, any number of writers.
type control struct {
	stream controlStream
	r      *bufio.Reader
	frame  []byte // the reader's; reused between reads

	mu  sync.Mutex
	out []byte // guarded by mu
}

// controlStream is what a control uses of a *quic.Stream.
type controlStream interface {
	io.ReadWriter
	SetWriteDeadline(t time.Time) error
}

func newControl(s controlStream) *control {
	// Beats are the bulk of what comes; a small buffer keeps an idle node cheap.
	return &control{stream: s, r: bufio.NewReaderSize(s, 512)}
}

// send writes one frame. It fails after controlTimeout, or when the stream or connection has ended.
func (c *control) send(t wire.Type, m proto.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := wire.AppendMessage(c.out[:0], t, m)
	if err != nil {
		return err
	}
	if cap(b) <= 4<<10 {
		c.out = b // a beat's buffer is worth keeping, an inventory's is not
	}
	if err := c.stream.SetWriteDeadline(time.Now().Add(controlTimeout)); err != nil {
		return err
	}
	if _, err := c.stream.Write(b); err != nil {
		return fmt.Errorf("writing control frame 0x%x: %w", uint64(t), err)
	}
	return nil
}

// read returns the next frame; the payload is valid until the next read.
func (c *control) read() (wire.Type, []byte, error) {
	if cap(c.frame) > 4<<10 {
		c.frame = nil
	}
	t, p, err := wire.ReadFrame(c.r, func(b []byte) error { _, err := io.ReadFull(c.r, b); return err }, c.frame)
	if p != nil {
		c.frame = p
	}
	return t, p, err
}

// expect reads the next frame, which must be of type t, into m.
func (c *control) expect(t wire.Type, m proto.Message) error {
	got, p, err := c.read()
	if err != nil {
		return err
	}
	if got != t {
		return fmt.Errorf("%w: frame 0x%x where 0x%x is due", errOrder, uint64(got), uint64(t))
	}
	return wire.Unmarshal(p, m)
}
