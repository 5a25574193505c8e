package gateway

import (
	"errors"
	"net/http"
	"testing"

	"github.com/fairway-edge/fairway/internal/edge"
)

// cutOff is a connection that broke, before anything but a write has shown it.
type cutOff struct{ writes int }

func (*cutOff) Header() http.Header { return http.Header{} }
func (*cutOff) WriteHeader(int)     {}
func (c *cutOff) Write([]byte) (int, error) {
	c.writes++
	return 0, errors.New("broken pipe")
}

// An event that cannot be written ends a run that its caller's leaving ends, and no other.
func TestTypedListenerGone(t *testing.T) {
	t.Parallel()
	for policy, ends := range map[edge.OnDisconnect]bool{edge.Cancel: true, edge.Drain: false, edge.Detach: false} {
		w := &cutOff{}
		l := &listener{
			x: &exchange{w: w, rc: http.NewResponseController(w), acc: NewAccount()},
			t: &typedRun{req: &edge.Request{OnDisconnect: policy}},
		}
		events := edge.NewEvents(l, edge.NDJSON, "run", "")
		for range 2 {
			if err := events.Delta("x"); (err != nil) != ends {
				t.Errorf("%s: %v", policy, err)
			}
		}
		if !ends && w.writes != 1 {
			t.Errorf("%s: %d writes to who has gone", policy, w.writes)
		}
	}
}
