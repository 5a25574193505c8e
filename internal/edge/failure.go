package edge

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// failure is a code as an error: what ends a run that has no answer.
type failure string

func (f failure) Error() string { return string(f) }

// Codes that this package gives itself; the others are those of the gateway, the tunnel and the leases.
const (
	codeDeadline    = "deadline_exceeded"
	codeCanceled    = "canceled"
	codeUnreachable = "provider_unreachable"
	codeNoModel     = "no_such_model"
	codeBusy        = "provider_busy"
	codeInternal    = "internal"
	codeRefused     = "provider_refused"    // it does not take the request: a schema that it cannot use, a model that cannot do it
	codeLocked      = "provider_locked"     // it asks for a credential, and the run has none
	codeRejected    = "credential_rejected" // it does not take the one that the run has, or the node does not

	badResponse    failure = "bad_provider_response" // not what the protocol says
	providerFailed failure = "provider_error"        // its own word for an error
)

// classes is the one table from codes to reasons. The class stands first in the detail, so that an application can tell a model that is missing
// from a queue that is full without knowing every code.
var classes = []struct {
	class  string
	reason DegradeReason
	codes  []string
}{
	{"deadline", DeadlineExceeded, []string{codeDeadline}},
	{"unreachable", ServerUnreachable, []string{
		codeUnreachable, "no_node", "node_lost", "node_replaced", "node_stalled", "draining", "stale_generation", "protocol_order", "unknown_target",
		"store_unavailable",
	}},
	{"model_missing", OtherError, []string{codeNoModel}},
	{"busy", OtherError, []string{codeBusy, "queue_full", "queue_timeout", "node_busy", "rate_limited"}},
	{"bad_response", OtherError, []string{string(badResponse), string(providerFailed), codeRefused, "provider_answered"}},
	{"lease", OtherError, []string{"credential_unavailable", "credential_denied", codeRejected}}, // and lease_…
	{"refused", OtherError, []string{"forbidden", "unauthorized", "not_allowed", "bad_run", "bad_request", "unsupported_kind", "client_body_error", codeLocked}},
	{"canceled", OtherError, []string{codeCanceled, "client_stalled"}},
	{"internal", OtherError, []string{codeInternal}},
}

// classOf gives a code's class and reason. What is no code counts as an internal fault, and is not repeated.
func classOf(code string) (class string, reason DegradeReason) {
	if strings.HasPrefix(code, "lease_") && plainCode(code) {
		return "lease", OtherError
	}
	for _, c := range classes {
		for _, known := range c.codes {
			if code == known {
				return c.class, c.reason
			}
		}
	}
	return "internal", OtherError
}

func plainCode(s string) bool {
	return len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' })
}

// Fail is the result of a run that got no answer, by the code of the gateway, the tunnel, a lease or [TransportCode]. Its detail is
// "class: code", and the class is one of unreachable, model_missing, busy, bad_response, lease, refused, canceled, internal. For a deadline
// use [TimedOut].
func Fail(o Origin, code string) ModelResult {
	class, reason := classOf(code)
	if class == "internal" {
		code = codeInternal
	}
	r := o.result(Unavailable)
	r.DegradeReason, r.DegradeDetail = reason, class
	if code != class {
		r.DegradeDetail += ": " + code
	}
	return r
}

// TimedOut is the result of a run whose deadline passed.
func TimedOut(o Origin, deadlineMS int) ModelResult {
	r := o.result(Unavailable)
	r.DegradeReason, r.DegradeDetail = DeadlineExceeded, fmt.Sprintf("deadline_ms=%d elapsed", deadlineMS)
	return r
}

// unparseable is the result of an answer that is no JSON.
func unparseable(o Origin, why string) ModelResult {
	r := o.result(Unavailable)
	r.DegradeReason, r.DegradeDetail = OutputUnparseable, short(why, maxDetail)
	return r
}

// TransportCode is the code of an error on the way to a provider: a connect that failed, a name that did not resolve, a handshake that broke, an answer that
// stopped. The deadline and the cancellation of the run's own context are told apart from the network's.
func TransportCode(err error) string {
	var own failure
	switch {
	case errors.As(err, &own):
		return string(own)
	case errors.Is(err, context.DeadlineExceeded):
		return codeDeadline
	case errors.Is(err, context.Canceled):
		return codeCanceled
	}
	return codeUnreachable // refused, no such name, a time-out, a reset, TLS, an end too soon: nobody there who answers
}

// StatusCode is the code of a provider's HTTP status that is no success, and "" of one that is. It is that of a run without a credential: see
// [Lent].
func StatusCode(status int) string {
	switch {
	case status >= 200 && status < 300:
		return ""
	case status == 404:
		return codeNoModel
	case status == 429, status == 503:
		return codeBusy
	case status == 401, status == 403:
		return codeLocked
	case status == 400, status == 413, status == 422:
		return codeRefused
	}
	return string(providerFailed)
}

// Lent is what a code of [StatusCode] means where a credential was lent for the run.
func Lent(code string) string {
	if code == codeLocked {
		return codeRejected
	}
	return code
}
