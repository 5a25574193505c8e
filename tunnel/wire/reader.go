package wire

import (
	"errors"
	"fmt"
	"io"
)

// Reader reads the frames of a run stream. A Data frame's payload is handed out in pieces as it arrives, in the
// reader's own memory; every other frame whole. It never holds more than its buffer, whose size is fixed at
// first and grows once, to at most MaxHead, for a head that needs it. Not safe for concurrent use.
type Reader struct {
	r       io.Reader
	buf     []byte
	lo, hi  int   // unread bytes are buf[lo:hi]
	data    int   // bytes of the Data frame under way that were not handed out
	inData  bool  // a Data frame was begun and its end not reported
	skipped int   // unknown frames skipped
	err     error // sticky
}

// NewReader returns a Reader that uses buf, at least MaxHeader bytes.
func NewReader(r io.Reader, buf []byte) *Reader {
	return &Reader{r: r, buf: buf}
}

// Skipped tells how many frames of unknown, uncritical type were passed over.
func (r *Reader) Skipped() int { return r.skipped }

// Next returns the next frame or piece of one. The payload is valid until the next call. For TypeData, last tells
// whether the piece ends its frame; for others it is true. At a clean end between frames the error is
// io.EOF, inside one io.ErrUnexpectedEOF.
func (r *Reader) Next() (t Type, payload []byte, last bool, err error) {
	if r.err != nil {
		return 0, nil, false, r.err
	}
	t, payload, last, err = r.next()
	r.err = err
	return t, payload, last, err
}

// Ready reports whether Next would return without reading.
func (r *Reader) Ready() bool {
	if r.err != nil {
		return true
	}
	if r.inData {
		return r.data == 0 || r.lo < r.hi
	}
	t, length, n, err := ParseHeader(r.buf[r.lo:r.hi])
	switch {
	case err != nil:
		return true
	case n == 0:
		return false
	case t == TypeData:
		return length == 0 || r.lo+n < r.hi
	}
	return r.hi-r.lo >= n+length
}

func (r *Reader) next() (Type, []byte, bool, error) {
	for {
		if r.inData {
			return r.piece()
		}
		t, length, n, err := ParseHeader(r.buf[r.lo:r.hi])
		if err != nil {
			return 0, nil, false, err
		}
		if n == 0 {
			if err := r.fill(r.lo == r.hi); err != nil {
				return 0, nil, false, err
			}
			continue
		}
		if t == TypeData {
			r.lo += n
			r.data, r.inData = length, true
			continue
		}
		if err := r.whole(n + length); err != nil {
			return 0, nil, false, err
		}
		payload := r.buf[r.lo+n : r.lo+n+length]
		r.lo += n + length
		if _, known := Cap(t); !known {
			if r.skipped++; r.skipped > maxSkipped {
				return 0, nil, false, fmt.Errorf("%w: more than %d unknown frames", ErrFrame, maxSkipped)
			}
			continue
		}
		return t, payload, true, nil
	}
}

// piece hands out what has arrived of a Data frame.
func (r *Reader) piece() (Type, []byte, bool, error) {
	if r.data == 0 {
		r.inData = false
		return TypeData, nil, true, nil
	}
	if r.lo == r.hi {
		if err := r.fill(false); err != nil {
			return 0, nil, false, err
		}
	}
	n := min(r.data, r.hi-r.lo)
	p := r.buf[r.lo : r.lo+n]
	r.lo += n
	r.data -= n
	if r.data == 0 {
		r.inData = false
	}
	return TypeData, p, r.data == 0, nil
}

// whole makes sure that n bytes from lo on are in the buffer.
func (r *Reader) whole(n int) error {
	if n > len(r.buf) {
		grown := make([]byte, n)
		r.hi = copy(grown, r.buf[r.lo:r.hi])
		r.buf, r.lo = grown, 0
	}
	for r.hi-r.lo < n {
		if err := r.fill(false); err != nil {
			return err
		}
	}
	return nil
}

// fill reads at least one byte; between says that the reader stands between frames, where an end is clean.
func (r *Reader) fill(between bool) error {
	if r.lo == r.hi {
		r.lo, r.hi = 0, 0
	}
	if r.hi == len(r.buf) {
		r.hi = copy(r.buf, r.buf[r.lo:r.hi])
		r.lo = 0
	}
	for {
		n, err := r.r.Read(r.buf[r.hi:])
		r.hi += n
		if n > 0 {
			return nil // an error, if any, comes again
		}
		if err != nil {
			if errors.Is(err, io.EOF) && !between {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
}
