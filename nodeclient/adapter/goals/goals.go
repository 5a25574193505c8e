// Package goals is the adapter for the goal-job API of a cloud: a workflow, known by its uw_ id, is submitted as a job and runs there; the node
// waits for it. It also carries the calls on workflows of one's own.
//
//	goals.go    the adapter: origin, and what a tunnel run may ask
//	caller.go   the requests of one typed run, each with the run's credential
//	run.go      a goal from its submission to its result, and to the end of its job
//	ask.go      one question to the API: again where that is safe, bounded, told apart by how it failed
//	cadence.go  how often a job is looked at, and how long to wait for another try
//	probe.go    whether the API is there
//
// # One run
//
// [Run] submits the workflow, looks at the job until it ends, confirms it when it is ready, and hands on one typed result, whatever happened: the
// mapping is [edge.Job.Result]'s, and failures on the way are mapped like those of any provider. It submits and reads, and no more: redaction,
// budgets, retries of a job, cycles, tools and grounding are the cloud's own gates, and are not done a second time here.
//
// # A job is not left running
//
// Whoever stops waiting for a job ends it: a job that is alive is charged. So at a deadline, a cancellation, a failure half-way and a job
// that waits for a person nobody has here, the job is canceled, also when the caller's context is over, for at most [SettleTime]. That holds for
// a submission under way too: its answer is awaited so long, because without the job's id nothing can be canceled. The result does not wait
// for any of it. What could not be ended is [Run]'s error.
//
// # At most one job
//
// The API has a header Idempotency-Key and ignores it on the creation of jobs. So a submission is sent again only after a 429, which says that it was
// not taken. All else is safe to ask twice, and is asked up to five times.
//
// # The credential
//
// A run's requests are sent by a [Doer] of the caller's, and the API key is known to that alone. [Adapter.Caller] makes one of a function that
// gives the credential for each request in turn. The secret behind it must stay open until [Run] returns, which is at most SettleTime after the
// result, and is not asked for afterwards.
package goals

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/http1"
)

// Adapter is the goal-job API at one origin. Make it with New.
type Adapter struct{ *http1.Server }

// New makes the adapter of one target. origin is scheme://host[:port] with scheme http or https and nothing behind the port; without a port it
// is the scheme's. A key goes there, so the scheme has to be said.
func New(target, origin string) (*Adapter, error) {
	if origin != "" && !strings.Contains(origin, "://") {
		return nil, fmt.Errorf("origin of target %s: want https://host[:port], got no scheme", target)
	}
	s, err := http1.New(target, origin, "443")
	if err != nil {
		return nil, err
	}
	return &Adapter{s}, nil
}

// Kind is "goals".
func (a *Adapter) Kind() string { return "goals" }

// Connect implements adapter.Adapter, as http1's does.
func (a *Adapter) Connect(ctx context.Context, own bool) (adapter.Conn, error) {
	c, err := a.Server.Connect(ctx, own)
	if err != nil {
		return nil, err
	}
	return conn{c}, nil
}

// conn sends the calls on own workflows.
type conn struct{ adapter.Conn }

// errOutside is a fault of the gateway.
var errOutside = errors.New("only calls on own workflows are sent to a goal-job API")

// Do implements adapter.Conn. Nothing but a call on own workflows is sent, without a body: jobs are for typed runs.
func (c conn) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	if _, ok := edge.PermitWorkflow(r.Method, r.Path); !ok || r.Body != nil {
		c.Close()
		if r.Credential != nil {
			r.Credential.Clear()
		}
		return nil, fmt.Errorf("%w: %w", adapter.ErrNotSent, errOutside)
	}
	return c.Conn.Do(ctx, r)
}

var _ adapter.Adapter = (*Adapter)(nil)
