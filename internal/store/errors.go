package store

import "errors"

var (
	// ErrUnavailable wraps what kept a store from answering.
	ErrUnavailable = errors.New("store unavailable")
	// ErrInvalid is an argument that no store takes: a mistake of the caller.
	ErrInvalid = errors.New("invalid argument")
	// ErrStale says that the generation is not, or no longer, the current one of
	// the node at that gateway.
	ErrStale = errors.New("stale generation")
	// ErrStaleEpoch says that a later process goes by the gateway's name.
	ErrStaleEpoch = errors.New("stale gateway epoch")
	// ErrNotReady says that the session is current but not ready.
	ErrNotReady = errors.New("session is not ready")
	// ErrDisabled says that the node is revoked.
	ErrDisabled = errors.New("node is disabled")
	// ErrStaleProjection says that the projection is below min_pgn.
	ErrStaleProjection = errors.New("stale projection")
	// ErrRevoked says that something a lease would name is revoked.
	ErrRevoked = errors.New("revoked")
	// ErrRateLimited says that the node registers too often.
	ErrRateLimited = errors.New("too many registrations")
	// ErrWatermarkImplausible says that the node claims a generation too far ahead.
	ErrWatermarkImplausible = errors.New("implausible watermark")
	// ErrExhausted says that a number would reach 2^53.
	ErrExhausted = errors.New("number space exhausted")
	// ErrTokenSpent says that a join token has no use left.
	ErrTokenSpent = errors.New("join token is spent")
	// ErrTokenExpired says that a join token has ended.
	ErrTokenExpired = errors.New("join token has expired")
	// ErrFull says that a bounded record is full.
	ErrFull = errors.New("record is full")
	// ErrNotDurable says that a change holds but was not written.
	ErrNotDurable = errors.New("not written to storage")
)
