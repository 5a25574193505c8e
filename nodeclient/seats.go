package nodeclient

import (
	"errors"
	"sync"

	"github.com/fairway-edge/fairway/internal/pki"
)

// errTaken says that another link has a session with the gateway that has answered.
var errTaken = errors.New("this gateway has a session by another address")

// seats hold which link has the session with each gateway. A second one of the same process would replace the first, so whoever dials takes the seat of the
// gateway that its certificate proves, before it registers. Safe for concurrent use.
type seats struct {
	mu      sync.Mutex
	holder  map[pki.ID]*link // guarded by mu
	refused map[pki.ID]error // guarded by mu; gateways that refuse this node for good, and how they said so
	changed chan struct{}    // guarded by mu; closed when a seat becomes free
}

func newSeats() *seats {
	return &seats{holder: make(map[pki.ID]*link), refused: make(map[pki.ID]error), changed: make(chan struct{})}
}

// take gives l the seat of a gateway. The error is errTaken, or the gateway's refusal as it was heard at another address.
func (s *seats) take(gateway pki.ID, l *link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refused[gateway]; err != nil {
		return &FinalError{Err: err, said: true}
	}
	if h := s.holder[gateway]; h != nil && h != l {
		return errTaken
	}
	s.holder[gateway] = l
	return nil
}

// release frees the seat if it is l's.
func (s *seats) release(gateway pki.ID, l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder[gateway] != l {
		return
	}
	delete(s.holder, gateway)
	close(s.changed)
	s.changed = make(chan struct{})
}

// refuse remembers that a gateway refuses this node for good.
func (s *seats) refuse(gateway pki.ID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[gateway] = err
}

// refuses tells whether a gateway does.
func (s *seats) refuses(gateway pki.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused[gateway] != nil
}

// of returns the link that has a gateway's seat, or nil.
func (s *seats) of(gateway pki.ID) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder[gateway]
}

// watch returns a channel that is closed when the next seat becomes free.
func (s *seats) watch() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
