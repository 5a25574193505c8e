package edge

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestFail(t *testing.T) {
	t.Parallel()
	tests := []struct {
		code   string
		reason DegradeReason
		detail string
	}{
		{"provider_unreachable", ServerUnreachable, "unreachable: provider_unreachable"},
		{"node_lost", ServerUnreachable, "unreachable: node_lost"},
		{"node_stalled", ServerUnreachable, "unreachable: node_stalled"},
		{"no_node", ServerUnreachable, "unreachable: no_node"},
		{"draining", ServerUnreachable, "unreachable: draining"},
		{"store_unavailable", ServerUnreachable, "unreachable: store_unavailable"},
		{"no_such_model", OtherError, "model_missing: no_such_model"},
		{"provider_busy", OtherError, "busy: provider_busy"},
		{"queue_full", OtherError, "busy: queue_full"},
		{"queue_timeout", OtherError, "busy: queue_timeout"},
		{"rate_limited", OtherError, "busy: rate_limited"},
		{"bad_provider_response", OtherError, "bad_response: bad_provider_response"},
		{"provider_error", OtherError, "bad_response: provider_error"},
		{"provider_refused", OtherError, "bad_response: provider_refused"},
		{"provider_locked", OtherError, "refused: provider_locked"},
		{Lent("provider_locked"), OtherError, "lease: credential_rejected"},
		{Lent("provider_refused"), OtherError, "bad_response: provider_refused"},
		{"credential_denied", OtherError, "lease: credential_denied"},
		{"credential_unavailable", OtherError, "lease: credential_unavailable"},
		{"lease_revoked", OtherError, "lease: lease_revoked"},
		{"lease_wrong_recipient", OtherError, "lease: lease_wrong_recipient"},
		{"lease_of_a_later_version", OtherError, "lease: lease_of_a_later_version"},
		{"forbidden", OtherError, "refused: forbidden"},
		{"canceled", OtherError, "canceled"},
		{"deadline_exceeded", DeadlineExceeded, "deadline: deadline_exceeded"},
		{"internal", OtherError, "internal"},
		{"", OtherError, "internal"},
		{"never heard of", OtherError, "internal"},
		{"lease_sk-SECRET", OtherError, "internal"},
		{"lease_" + strings.Repeat("x", 100), OtherError, "internal"},
	}
	for _, tt := range tests {
		t.Run(tt.code, func(t *testing.T) {
			t.Parallel()
			r := Fail(Origin{ModelID: "m"}, tt.code)
			if r.Status != Unavailable || r.DegradeReason != tt.reason || r.DegradeDetail != tt.detail {
				t.Errorf("got %s %s %q", r.Status, r.DegradeReason, r.DegradeDetail)
			}
			if r.Disposition(true) != Fallback {
				t.Error("accepted")
			}
			wire(t, r)
		})
	}
	if r := TimedOut(Origin{}, 50); r.DegradeReason != DeadlineExceeded || r.DegradeDetail != "deadline_ms=50 elapsed" {
		t.Errorf("got %+v", r)
	}
}

func TestEveryCodeHasOneClass(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, c := range classes {
		for _, code := range c.codes {
			if other, twice := seen[code]; twice {
				t.Errorf("%s is in %s and in %s", code, other, c.class)
			}
			seen[code] = c.class
			if !plainCode(code) {
				t.Errorf("%s is no code", code)
			}
		}
	}
}

func TestTransportCode(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"refused":        {dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "provider_unreachable"},
		"no such name":   {dial(&net.DNSError{Err: "no such host", IsNotFound: true}), "provider_unreachable"},
		"a black hole":   {dial(os.ErrDeadlineExceeded), "provider_unreachable"},
		"reset":          {fmt.Errorf("read: %w", syscall.ECONNRESET), "provider_unreachable"},
		"TLS":            {fmt.Errorf("handshake: %w", x509.UnknownAuthorityError{}), "provider_unreachable"},
		"mid-answer":     {io.ErrUnexpectedEOF, "provider_unreachable"},
		"the deadline":   {fmt.Errorf("post: %w", context.DeadlineExceeded), "deadline_exceeded"},
		"a cancellation": {fmt.Errorf("post: %w", context.Canceled), "canceled"},
		"no JSON":        {fmt.Errorf("chat: %w", error(badResponse)), "bad_provider_response"},
		"anything":       {errors.New("?"), "provider_unreachable"},
	} {
		if got := TransportCode(tt.err); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestStatusCode(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "", 204: "", 404: "no_such_model", 503: "provider_busy", 429: "provider_busy", 401: "provider_locked", 403: "provider_locked",
		400: "provider_refused", 413: "provider_refused", 422: "provider_refused", 500: "provider_error", 502: "provider_error", 302: "provider_error", 101: "provider_error", 0: "provider_error",
	} {
		if got := StatusCode(status); got != want {
			t.Errorf("%d: got %q, want %q", status, got, want)
		}
	}
}
