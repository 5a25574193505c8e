package tunnel

import (
	"errors"
	"fmt"

	"github.com/quic-go/quic-go"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// ErrGone says that a session or lane has ended; nothing was sent.
var ErrGone = errors.New("session is gone")

// ErrUDPBlocked says that no answer came to a dial: the usual cause is a firewall that drops UDP.
var ErrUDPBlocked = errors.New("no answer over UDP")

// ErrNotFairway says that the peer does not speak this protocol at that port.
var ErrNotFairway = errors.New("the peer does not speak fairway/1")

// CloseError says with which code a connection was closed, and by whom.
type CloseError struct {
	Code   CloseCode
	Reason string
	Remote bool // the peer closed it
}

// Error implements error.
func (e *CloseError) Error() string {
	if e.Reason == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Reason
}

// Final reports whether dialling again cannot help.
func (e *CloseError) Final() bool { return e.Remote && e.Code.Final() }

// refuse builds the error with which a Registrar turns a node away.
func refuse(code CloseCode, format string, args ...any) *CloseError {
	return &CloseError{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// TLS alerts that a gateway's check of a node's certificate gives (RFC 8446 section 6, RFC 9001 section 4.8).
const (
	cryptoError         = 0x100
	alertHandshake      = cryptoError + 40
	alertBadCertificate = cryptoError + 42
	alertExpired        = cryptoError + 45
	alertUnknown        = cryptoError + 46
	alertUnknownCA      = cryptoError + 48
	alertRequired       = cryptoError + 116
	alertNoProtocol     = cryptoError + 120
)

// classify turns what quic-go reports into this package's errors; others pass unchanged.
func classify(err error) error {
	var app *quic.ApplicationError
	if errors.As(err, &app) {
		return &CloseError{Code: CloseCode(app.ErrorCode), Reason: app.ErrorMessage, Remote: app.Remote}
	}
	var tr *quic.TransportError
	if errors.As(err, &tr) {
		switch tr.ErrorCode {
		case alertExpired:
			return &CloseError{Code: wire.CloseExpired, Reason: tr.Error(), Remote: tr.Remote}
		case alertBadCertificate, alertUnknown, alertUnknownCA, alertRequired, alertHandshake:
			return &CloseError{Code: wire.CloseIdentity, Reason: tr.Error(), Remote: tr.Remote}
		case alertNoProtocol:
			return fmt.Errorf("%w: %w", ErrNotFairway, err)
		}
	}
	var hs *quic.HandshakeTimeoutError
	var idle *quic.IdleTimeoutError
	if errors.As(err, &hs) || errors.As(err, &idle) {
		return fmt.Errorf("%w: %w", ErrUDPBlocked, err)
	}
	return err
}
