package goals

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// jobsPath is where jobs are.
const jobsPath = "/api/v1/jobs/goal"

// Steps of a run, as details name them.
const (
	submission   = "submission"
	confirmation = "confirmation"
	poll         = "poll"
	cancellation = "cancellation"
)

// question is one logical request: what stays the same when it is asked again.
type question struct {
	step   string
	method string
	path   string
	body   []byte                // nil: none
	again  func(status int) bool // asked again after this status
	cut    bool                  // and after a failure of the network
}

// temporary are the statuses after which it is worth asking again. After most of them nobody knows whether the first request was carried out.
func temporary(status int) bool {
	switch status {
	case 408, 429, 500, 502, 503, 504:
		return true
	}
	return false
}

// notTaken is the one status that says that it was not.
func notTaken(status int) bool { return status == 429 }

// failure is a question that got no answer to use.
type failure struct {
	step   string
	code   string // for edge.Fail
	status int    // 0 for none
	err    error
}

func (f *failure) Error() string {
	if f.status != 0 {
		return fmt.Sprintf("%s: status %d", f.step, f.status)
	}
	return fmt.Sprintf("%s: %v", f.step, f.err)
}

func (f *failure) Unwrap() error { return f.err }

// ask asks until it is answered for good. Requests are sent with ctx; wait ends the pauses between them. A panic on the way is a failure like
// others: of what was thrown only the type is told, for it may hold anything. Its errors are *failure.
func ask(ctx, wait context.Context, d Doer, q question) (answer []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &failure{step: q.step, code: "internal", err: fmt.Errorf("a fault of ours: %T", p)}
		}
	}()
	key := ""
	if q.method != http.MethodGet {
		key = newKey()
	}
	for attempts := 1; ; attempts++ {
		body, resp, err := once(ctx, wait, d, q, key)
		f, failed := errors.AsType[*failure](err)
		if !failed {
			return body, nil
		}
		again := f.status != 0 && q.again(f.status) || f.status == 0 && q.cut && f.code == unreachable
		if !again || attempts == maxAttempts || !pause(wait, backoff(attempts, resp)) {
			return nil, err
		}
	}
}

// Codes, as edge has them.
const (
	unreachable   = "provider_unreachable"
	badResponse   = "bad_provider_response"
	providerError = "provider_error"
	noWorkflow    = "no_such_model"
)

// once asks once. Its errors are *failure.
func once(ctx, wait context.Context, d Doer, q question, key string) ([]byte, *adapter.Response, error) {
	r := &adapter.Request{Method: q.method, Path: q.path, Headers: []adapter.Header{{Name: "Accept", Value: "application/json"}}}
	if q.body != nil {
		r.Headers = append(r.Headers, adapter.Header{Name: "Content-Type", Value: "application/json"})
		r.Body, r.Length = &source{ctx: wait, r: bytes.NewReader(q.body)}, int64(len(q.body))
	}
	if key != "" {
		r.Headers = append(r.Headers, adapter.Header{Name: "Idempotency-Key", Value: key})
	}
	resp, err := d.Do(ctx, r)
	if err != nil {
		code := edge.TransportCode(err)
		if errors.Is(err, adapter.ErrBadResponse) {
			code = badResponse
		}
		return nil, nil, &failure{step: q.step, code: code, err: err}
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if code := edge.StatusCode(resp.Status); code != "" {
		if code == noWorkflow && q.step != submission { // the job is not there; the workflow was
			code = providerError
		}
		return nil, resp, &failure{step: q.step, code: code, status: resp.Status}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, edge.MaxJob+1))
	switch {
	case err != nil:
		return nil, resp, &failure{step: q.step, code: edge.TransportCode(err), err: err}
	case len(body) > edge.MaxJob:
		return nil, resp, &failure{step: q.step, code: badResponse, err: errLong}
	}
	return body, resp, nil
}

var errLong = fmt.Errorf("the answer is longer than %d bytes", edge.MaxJob)

// source is a body that cannot be begun any more once ctx is over, so that nothing is submitted for a run that has ended. One that was begun is
// sent to its end.
type source struct {
	ctx   context.Context
	r     *bytes.Reader
	begun bool
}

func (s *source) Read(p []byte) (int, error) {
	if !s.begun {
		if err := s.ctx.Err(); err != nil {
			return 0, err
		}
		s.begun = true
	}
	return s.r.Read(p)
}

// pause waits for d; false when ctx ends before. It does not begin a wait that ctx is known to cut short.
func pause(ctx context.Context, d time.Duration) bool {
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= d {
		return false
	}
	return sleep(ctx, d)
}

// newKey is a random UUID, version 4.
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
