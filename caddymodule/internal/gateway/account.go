package gateway

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// Account is one request's story, for the log line, metrics and `caddy fairway runs`. The goroutine that serves the request writes it; others read it
// through View. The exported fields may be read once Serve has returned.
type Account struct {
	Run, Session, Principal, Route, Endpoint string
	// User is who a Caddy authentication handler says is calling; set before Serve.
	User       string
	Kind       string // tunnel | edge
	Model      string // as the catalogue spells it
	Node       string
	Target     string
	Adapter    string
	Generation uint64
	Attempts   int
	Outcome    string // completed | failed | canceled
	Code       string
	Status     int
	Started    time.Time
	Queued     time.Duration
	FirstByte  time.Duration
	Total      time.Duration
	Bytes      uint64 // of the body written to the client
	// InputTokens and OutputTokens are what the provider counted.
	InputTokens, OutputTokens uint64
	// UsageMismatch: the node's count is not the one seen in the bytes.
	UsageMismatch bool

	mu      sync.Mutex              // held where a field changes that View shows
	state   string                  // queued | running | ended; guarded by mu
	cancel  context.CancelCauseFunc // guarded by mu
	aborted *failure                // guarded by mu; why the run is to end
	unblock func()                  // guarded by mu
	attempt int                     // guarded by mu; counts attach
	begun   bool                    // it was a run: guarded by Hub.mu until Serve returns
	handed  bool                    // the run goes on without its caller, and has an account of its own
	stalled atomic.Bool
	sent    atomic.Uint64 // Bytes, for View
	tally   *ollama.Tally
	token   string // from the path; never shown
}

// NewAccount begins a request's account and gives it its run id: 128 random bits.
func NewAccount() *Account {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Account{Run: base64.RawURLEncoding.EncodeToString(id[:]), Kind: "tunnel", Started: time.Now(), state: "queued"}
}

// bind notes where the run goes.
func (a *Account) bind(p *fleet.Place, attempt uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Node, a.Target, a.Adapter, a.Generation = p.Node(), p.Target, p.Adapter, p.Generation()
	a.Queued += p.Queued
	a.Attempts = int(attempt)
	a.state = "running"
}

// stoppable gives abort what ends the run, wherever it stands. An abort that came before ends it at once.
func (a *Account) stoppable(cancel context.CancelCauseFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel = cancel
	if a.aborted != nil {
		cancel(a.aborted)
	}
}

// attach gives abort what frees a write to a client that does not read; nil once nothing is written any more.
func (a *Account) attach(unblock func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unblock = unblock
	a.attempt++
}

// lastWords is how long a run that is aborted may still write its error to the client.
const lastWords = 500 * time.Millisecond

// abort ends the run with f, whether it waits, is being sent or is under way.
func (a *Account) abort(f *failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.aborted = f
	if a.cancel != nil {
		a.cancel(f)
	}
	attempt := a.attempt
	time.AfterFunc(lastWords, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.attempt == attempt && a.unblock != nil { // else its connection may serve another request by now
			a.unblock()
		}
	})
}

func (a *Account) head(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Status, a.FirstByte = status, time.Since(a.Started)
}

func (a *Account) wrote(p []byte) {
	a.Bytes += uint64(len(p))
	a.sent.Store(a.Bytes)
	a.tally.Add(p)
}

// complete ends a run that its node completed. An error that the provider put into its stream makes it failed all the same.
func (a *Account) complete(t *tunnel.Terminal) {
	seen := a.tally.Usage()
	a.InputTokens, a.OutputTokens = seen.Input, seen.Output
	a.UsageMismatch = t.Usage != nil && (t.Usage.InputTokens != seen.Input || t.Usage.OutputTokens != seen.Output)
	if a.tally.Broke() {
		a.end(tunnel.Failed, tunnel.CodeBadProvider, a.Status)
		return
	}
	a.end(tunnel.Completed, "", a.Status)
}

// endSelf ends a request that the gateway answered alone.
func (a *Account) endSelf(status int) { a.end(tunnel.Completed, "", status) }

// end gives the run its one outcome; the first call counts, and it reports whether this was it.
func (a *Account) end(outcome tunnel.Outcome, code string, status int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Outcome != "" {
		return false
	}
	switch {
	case outcome == tunnel.Completed:
		a.Outcome = "completed"
	case outcome == tunnel.Canceled, code == tunnel.CodeCanceled, code == codeClientStalled:
		a.Outcome = "canceled"
	default:
		a.Outcome = "failed"
	}
	a.Code, a.Status, a.state, a.Total = code, status, "ended", time.Since(a.Started)
	return true
}

// adopt takes over what another account, which has ended, says of its run: the request was that run.
func (a *Account) adopt(run *Account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Session, a.Kind, a.Model, a.Node, a.Target, a.Adapter, a.Generation = run.Session, run.Kind, run.Model, run.Node, run.Target, run.Adapter, run.Generation
	a.Attempts, a.Outcome, a.Code, a.Status, a.state = run.Attempts, run.Outcome, run.Code, run.Status, run.state
	a.Queued, a.FirstByte, a.Total, a.InputTokens, a.OutputTokens, a.begun = run.Queued, run.FirstByte, run.Total, run.InputTokens, run.OutputTokens, true
}

// RunView is one row of `caddy fairway runs`; its JSON names are a contract.
type RunView struct {
	Run         string    `json:"run_id"`
	Session     string    `json:"session_id"`
	Principal   string    `json:"principal"`
	Route       string    `json:"route"`
	Kind        string    `json:"kind"`
	Model       string    `json:"model"`
	Node        string    `json:"node"`
	Generation  uint64    `json:"generation"`
	State       string    `json:"state"`
	Outcome     string    `json:"outcome"`
	Code        string    `json:"code"`
	Started     time.Time `json:"started"`
	QueuedMS    float64   `json:"queued_ms"`
	FirstByteMS float64   `json:"first_byte_ms"`
	Bytes       uint64    `json:"bytes"`
}

// View returns the account as it stands.
func (a *Account) View() RunView {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := RunView{
		Run: a.Run, Session: a.Session, Principal: a.Principal, Route: a.Route, Kind: a.Kind, Model: a.Model, Node: a.Node, Generation: a.Generation,
		State: a.state, Outcome: a.Outcome, Code: a.Code, Started: a.Started, QueuedMS: ms(a.Queued), FirstByteMS: ms(a.FirstByte),
	}
	v.Bytes = a.sent.Load()
	return v
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
