package lease

import (
	"errors"
	"fmt"
)

// pageSize is what a Secret holds: a value and what is written around it in a request head.
const pageSize = 16 << 10

// Secret is memory for one credential: outside the Go heap, locked and left out of core dumps where the system can (Linux), and cleared by
// Clear. It cannot be printed, formatted, marshalled or logged. Not safe for concurrent use.
type Secret struct {
	hidden
	page []byte // pageSize bytes from newPage
	n    int
}

// spare holds cleared pages: mapping, locking and unmapping one costs about 45 µs.
var spare = make(chan []byte, 64)

// NewSecret takes a page.
func NewSecret() (*Secret, error) {
	select {
	case p := <-spare:
		return &Secret{page: p}, nil
	default:
	}
	p, err := newPage()
	if err != nil {
		return nil, fmt.Errorf("taking memory for a credential: %w", err)
	}
	return &Secret{page: p}, nil
}

var errSecret = errors.New("a credential's memory is in use or too small")

func (s *Secret) set(value []byte) error {
	if s.n != 0 || len(value) > len(s.page) {
		return errSecret
	}
	s.n = len(carry(s.page[:0], value))
	return nil
}

// carry appends src to dst, which has room for it, byte by byte. A copy of the runtime's goes through the vector registers, and they keep what went through them
// until something else does; a signal before that writes them down on a stack that nobody clears. With a busy machine that was one copy in some thousand leases.
//
//go:noinline
func carry(dst, src []byte) []byte {
	n := len(dst)
	dst = dst[:n+len(src)]
	for i, c := range src {
		dst[n+i] = c
	}
	return dst
}

// scrub is called before and after what works on a value other than by carry: decryption, hashing. After it, it overwrites what that has left behind: the vector
// registers, and the frames on the stack below its caller. Before it, it sees to it that the stack need not grow for either: a stack that grows is copied, and
// nobody clears the one before. On amd64 a copy of just 256 bytes goes through all sixteen registers, and a longer one does not; elsewhere it does no harm.
func scrub() {
	var zero [4 << 10]byte
	move(zero[:256], zero[256:512])
}

// move is a copy that the compiler does not see through.
//
//go:noinline
func move(dst, src []byte) { copy(dst, src) }

// Append adds the value to dst, which must be memory that the caller clears, and never grows it.
func (s *Secret) Append(dst []byte) ([]byte, error) {
	if cap(dst)-len(dst) < s.n {
		return dst, errSecret
	}
	return carry(dst, s.page[:s.n]), nil
}

// Buffer returns the rest of the page, behind the value: memory of the same kind in which to write a request head.
func (s *Secret) Buffer() []byte { return s.page[s.n:s.n:len(s.page)] }

// Len returns the value's length in bytes.
func (s *Secret) Len() int { return s.n }

// Clear overwrites the page and gives it back; a few are kept for the next credentials. The Secret must not be used afterwards; a second call does nothing.
func (s *Secret) Clear() {
	if s.page == nil {
		return
	}
	clear(s.page)
	select {
	case spare <- s.page:
	default:
		freePage(s.page)
	}
	s.page, s.n = nil, 0
}

// Line returns "Header: value\r\n", written into the page behind the value. It fails when it does not fit.
func (s *Secret) Line(header string) ([]byte, error) {
	b := s.Buffer()
	if s.n == 0 || cap(b) < len(header)+s.n+4 {
		return nil, errSecret
	}
	b = append(append(b, header...), ": "...)
	return append(carry(b, s.page[:s.n]), "\r\n"...), nil
}
