// Package lease is the permission to use one credential slot for one attempt of one run on one connection, once.
//
// A lease is a compact JWS (EdDSA) whose signed payload holds the scope and an HPKE box with the credential's header value:
//
//	header   {"alg":"EdDSA","kid":THUMBPRINT,"typ":"fairway-lease+jwt"}    constant per issuer key
//	payload  the claims of Claims, in their order, nothing else
//	box      enc ‖ ct: HPKE base mode to the node's session key;
//	         info binds the suite, the key, the node's leaf and the TLS exporter value of the lane,
//	         aad is the transcript of every claim but the box itself
//
// Base mode does not say who sealed: anyone who knows the node's public key could. That is why the signature covers the box, and why it is
// checked before anything else is believed. The node builds info and aad from its own view of the run, so a comparison that is missing in
// the code still fails in the AEAD.
//
// The life of a lease, and the file that holds each part:
//
//	Issuer.Issue       issue.go      scope → token, sealed for one lane
//	Opener.Check       open.go       every check that needs no secret, in the written order, before admission
//	Opener.Open        open.go       the changeable checks again, burn, open, into locked memory
//	Secret.Clear       secret.go     on every exit
//
// No sockets, no Caddy, no logging: bytes in, bytes out. Everything here that a token says is hostile until its signature holds.
package lease

import "time"

// Bounds. Sources: docs/security.md.
const (
	// MaxToken is the longest lease, in bytes: the longest value in base64 twice, and every other claim at its bound.
	MaxToken = 16 << 10
	// TTL is how long a lease may be opened. It covers queueing and opening, not the run.
	TTL = 15 * time.Second
	// maxTTL is the longest life that a node accepts.
	maxTTL = 60 * time.Second
	// leeway is the tolerance on nbf and iat; exp has none, the TTL is slack enough.
	leeway = 2 * time.Second
	// MaxValue is the longest header value, in bytes.
	MaxValue = 4096
	// maxReplay bounds the lease ids that a session remembers; a full memory refuses.
	maxReplay = 65536
)

// Code says why a lease was refused. It stands in logs, metrics and on the wire; callers of the gateway see only its Class.
type Code string

// Codes, in the order of the checks.
const (
	CodeMalformed        Code = "lease_malformed"
	CodeUnknownKey       Code = "lease_unknown_key"
	CodeBadSignature     Code = "lease_bad_signature"
	CodeWrongRecipient   Code = "lease_wrong_recipient"
	CodeStaleGeneration  Code = "lease_stale_generation"
	CodeWrongConnection  Code = "lease_wrong_connection"
	CodeTTLExcessive     Code = "lease_ttl_excessive"
	CodeNotYetValid      Code = "lease_not_yet_valid"
	CodeExpired          Code = "lease_expired"
	CodeMismatch         Code = "lease_mismatch"
	CodeStaleProjection  Code = "lease_stale_projection"
	CodeRevoked          Code = "lease_revoked"
	CodeDisabled         Code = "lease_disabled"
	CodeReplayed         Code = "lease_replayed"
	CodeReplayCacheFull  Code = "lease_replay_cache_full"
	CodeOpenFailed       Code = "lease_open_failed"
	CodePayloadInvalid   Code = "lease_payload_invalid"
	CodeClockUnavailable Code = "lease_clock_unavailable"
)

// Known reports whether c is one of the codes above: a peer can say anything.
func (c Code) Known() bool {
	switch c {
	case CodeMalformed, CodeUnknownKey, CodeBadSignature, CodeWrongRecipient, CodeStaleGeneration, CodeWrongConnection, CodeTTLExcessive,
		CodeNotYetValid, CodeExpired, CodeMismatch, CodeStaleProjection, CodeRevoked, CodeDisabled, CodeReplayed, CodeReplayCacheFull,
		CodeOpenFailed, CodePayloadInvalid, CodeClockUnavailable:
		return true
	}
	return false
}

// Error is a refusal.
type Error struct{ Code Code }

// Error implements error. It says nothing of the token.
func (e *Error) Error() string { return string(e.Code) }

func refuse(c Code) error { return &Error{c} }

// Class is what a caller of the gateway is told: three words, so that it learns nothing of the order of checks.
type Class string

// The classes, with the status that each has over HTTP.
const (
	Unavailable Class = "credential_unavailable" // 503
	Denied      Class = "credential_denied"      // 403
	Rejected    Class = "credential_rejected"    // 502
)

// Class returns the public class of a code.
func (c Code) Class() Class {
	switch c {
	case CodeExpired, CodeNotYetValid, CodeStaleGeneration, CodeStaleProjection, CodeClockUnavailable:
		return Unavailable
	case CodeRevoked, CodeDisabled:
		return Denied
	}
	return Rejected
}
