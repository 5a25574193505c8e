package goals

import (
	"context"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// Doer sends one request and returns once the head of the answer is in; [adapter.Conn] says what ctx governs, and which errors there are. Run
// calls it from one goroutine at a time.
type Doer interface {
	Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error)
}

// Caller sends the requests of one run: the first on a connection that was made before the lease was opened, the others each on one of its
// own. credential gives the line for one request; it is nil for a target without a key. Each one is cleared once its head was written,
// which must leave the run's secret as it is: that is the caller's to clear, after Run. Close first when the run is over; it does nothing if
// it was used.
func (a *Adapter) Caller(first adapter.Conn, credential func() adapter.Credential) Doer {
	if c, ok := first.(conn); ok {
		first = c.Conn
	}
	return &caller{a: a, first: first, credential: credential}
}

type caller struct {
	a          *Adapter
	first      adapter.Conn // nil once used
	credential func() adapter.Credential
}

func (c *caller) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	to := c.first
	c.first = nil
	if to == nil {
		var err error
		if to, err = c.a.Server.Connect(ctx, c.credential != nil); err != nil {
			return nil, err
		}
	}
	if c.credential != nil {
		with := *r
		with.Credential = c.credential()
		r = &with
	}
	return to.Do(ctx, r)
}
