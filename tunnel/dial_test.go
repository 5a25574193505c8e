package tunnel

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
)

// A node that has a session with the gateway already finds that out before it registers.
func TestDialIsAcceptedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	taken := errors.New("taken")
	for _, want := range []error{taken, nil} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var proved pki.ID
		s, err := Dial(ctx, DialConfig{
			Identity: identity(t, r.ca, pki.RoleNode, "n1"), Addr: r.ln.Addr().(*net.UDPAddr), Register: &Register{Node: "n1", Instance: newInstance()},
			Accept: func(gateway pki.ID) error {
				proved = gateway
				return want
			},
		})
		registered := r.reg.generations() > 0
		if !errors.Is(err, want) || proved != r.gw.ID || registered != (want == nil) {
			t.Errorf("%v, want %v; gateway %s; registered: %v", err, want, proved, registered)
		}
		if s != nil {
			s.Close(CloseNone, "")
			<-s.Done()
		}
	}
}
