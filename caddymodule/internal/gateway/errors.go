package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

// Codes of the gateway's own errors, as X-Fairway-Error and logs show them.
const (
	codeNoSuchModel    = "no_such_model"
	codeForbidden      = "forbidden"
	codeUnauthorized   = "unauthorized"
	codeQueueFull      = "queue_full"
	codeQueueTimeout   = "queue_timeout"
	codeNoNode         = "no_node"
	codeClientStalled  = "client_stalled"
	codeStoreUnavail   = "store_unavailable"
	codeBadRequest     = "bad_request"
	codeNodeRequired   = "node_required"
	codeUnsupportedEnc = "unsupported_encoding"
	codeTooEarly       = "too_early"
	codeBodyTooLarge   = "body_too_large"
	codeDraining       = "draining"
	codeNotFound       = "not_found"
	codeRunNotFound    = "run_not_found"
)

// statusClientGone is what logs show for a client that left, as other proxies do.
const statusClientGone = 499

// codes is the one table from codes to answers: status, and whether and after how many seconds trying again makes sense.
var codes = map[string]struct {
	status int
	retry  int
}{
	codeNoSuchModel:              {404, 0},
	codeForbidden:                {403, 0},
	codeUnauthorized:             {401, 0},
	codeQueueFull:                {503, 1},
	codeQueueTimeout:             {503, 1},
	codeNoNode:                   {503, 5},
	codeRunNotFound:              {404, 0},
	codeStoreUnavail:             {503, 5},
	codeDraining:                 {503, 5},
	codeClientStalled:            {statusClientGone, 0},
	codeBadRequest:               {400, 0},
	"ambiguous_body":             {400, 0},
	codeNodeRequired:             {400, 0},
	codeUnsupportedEnc:           {415, 0},
	codeTooEarly:                 {425, 0},
	codeBodyTooLarge:             {413, 0},
	tunnel.CodeNodeLost:          {502, 0},
	tunnel.CodeNodeReplaced:      {502, 0},
	tunnel.CodeNodeStalled:       {504, 0},
	tunnel.CodeDeadlineExceeded:  {504, 0},
	tunnel.CodeCanceled:          {statusClientGone, 0},
	tunnel.CodeProviderUnreached: {502, 0},
	tunnel.CodeBadProvider:       {502, 0},
	tunnel.CodeClientBody:        {400, 0},
	tunnel.CodeInternal:          {500, 0},
	"credential_unavailable":     {503, 5}, // the classes of package lease
	"credential_denied":          {403, 0},
	"credential_rejected":        {502, 0},
}

// failure is an answer of the gateway's own.
type failure struct {
	code    string
	message string
	status  int            // 0: by the table
	inner   string         // what the audit and the log say instead of code; "" for code itself
	outcome tunnel.Outcome // of the run; 0: failed
	ollamas bool           // Ollama would say the same: the body is its, to the byte
}

func (f *failure) Error() string { return f.code + ": " + f.message }

func fail(code, format string, args ...any) *failure {
	return &failure{code: code, message: fmt.Sprintf(format, args...)}
}

// asFailure maps every error of the pipeline to an answer.
func asFailure(err error, e *ollama.Endpoint, model string) *failure {
	var f *failure
	var oe *ollama.Error
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &oe):
		code := oe.Code
		if code == "" {
			code = codeBadRequest
		}
		return &failure{code: code, message: oe.Message, status: oe.Status, ollamas: code == codeBadRequest || code == codeNoSuchModel}
	case errors.Is(err, fleet.ErrNoModel):
		return noSuchModel(e, model)
	case errors.Is(err, fleet.ErrNoNode):
		return fail(codeNoNode, "no node that can serve this is connected")
	case errors.Is(err, fleet.ErrQueueFull):
		return fail(codeQueueFull, "server busy: too many requests are waiting")
	case errors.Is(err, fleet.ErrQueueTimeout):
		return fail(codeQueueTimeout, "server busy: no capacity came free in time")
	case errors.Is(err, fleet.ErrDraining):
		return fail(codeDraining, "the gateway is shutting down")
	case errors.Is(err, store.ErrUnavailable):
		return fail(codeStoreUnavail, "the gateway's store is unavailable")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fail(tunnel.CodeCanceled, "the client went away")
	}
	return fail(tunnel.CodeInternal, "internal error")
}

// noSuchModel says that nobody has the model, in Ollama's words.
func noSuchModel(e *ollama.Endpoint, model string) *failure {
	return &failure{code: codeNoSuchModel, message: e.ModelNotFound(model), ollamas: true}
}

// fail answers with an error in the shape of the path's family, or, when the head is out, cuts the answer.
func (x *exchange) fail(err error) {
	var own *failure
	if x.r.Context().Err() != nil && !errors.As(err, &own) {
		err = fail(tunnel.CodeCanceled, "the client went away") // over HTTP/3 the cause is QUIC's
	}
	f := asFailure(err, x.match.Endpoint, x.request.Model)
	entry := codes[f.code]
	status := f.status
	if status == 0 {
		status = entry.status
	}
	outcome := tunnel.Failed
	if f.outcome != 0 {
		outcome = f.outcome
	}
	x.acc.end(outcome, f.code, status)
	if x.started {
		panic(http.ErrAbortHandler)
	}
	if f.code == tunnel.CodeCanceled || f.code == codeClientStalled {
		x.w.WriteHeader(statusClientGone)
		return
	}
	head := x.w.Header()
	head.Set(headerError, f.code)
	if entry.retry > 0 {
		head.Set("Retry-After", strconv.Itoa(entry.retry))
	}
	code, ctype := f.code, ollama.ContentTypeJSON
	if f.ollamas {
		code = ""
	}
	body := x.match.Family.ErrorBody(status, code, f.message)
	if x.match.Family == ollama.Anthropic {
		body = append(bytes.TrimSuffix(body, []byte("}")), `,"request_id":"req_`+x.acc.Run+`"}`...)
	}
	if f.ollamas && x.rewritten(f) {
		ctype, body = "application/json", append(body, '\n')
		if x.request.Stream && (x.match.Endpoint.Name == "v1.responses" || x.match.Endpoint.Name == "v1.messages") {
			head.Set("Cache-Control", "no-cache")
		}
	}
	x.respond(status, ctype, body)
}

// rewritten reports whether f is an answer of Ollama's own API that its compatibility layer would rewrite; elsewhere the endpoint itself speaks,
// with another Content-Type and no line break.
func (x *exchange) rewritten(f *failure) bool {
	switch x.match.Family {
	case ollama.OpenAI:
		return f.code == codeNoSuchModel || f.message == ollama.InvalidNameText || f.message == ollama.ModelRequiredText
	case ollama.Anthropic:
		return f.code == codeNoSuchModel || f.message == ollama.InvalidNameText
	}
	return false
}
