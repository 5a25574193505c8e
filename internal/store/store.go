package store

import (
	"context"
	"time"
)

// Store is everything that gateways share. All methods are safe for concurrent
// use and each is atomic. A store that cannot be reached answers with an error
// that wraps [ErrUnavailable]: callers fail closed. An empty or oversized name
// is [ErrInvalid] anywhere.
type Store interface {
	Sessions
	Projections
	Drains
	Tokens
	Gateways

	// Reassert tells a store that may have lost data what a gateway knows: its sessions, the revocations, drains and
	// projection that it read last. What the store has and is newer stays; the rest it takes over under the old numbers.
	// Idempotent, and in any order with other gateways' calls. To be called when Beat returns another Incarnation than
	// before, and for sessions that it says are missing; until then a store that knows that it may have lost data refuses
	// Fence and Issue with ErrUnavailable. It counts as a beat; no verdict is VerdictMissing. ErrStaleEpoch.
	Reassert(ctx context.Context, a Assertion) (BeatResult, error)

	// Watch sends when revocations or drains may have changed, until ctx ends or the store is closed; then the channel is
	// closed. Several changes may be one message, and a message may be for nothing. It hastens what Beat tells anyway.
	Watch(ctx context.Context) <-chan struct{}

	// Close lets go of what the store holds. Calls after it are a mistake.
	Close() error
}

// Sessions says who holds a node. See the package comment for the rules.
type Sessions interface {
	// Epoch begins a gateway process: it allocates the number that the process
	// goes by and ends the sessions of earlier processes of that name. Once a
	// process, also when its configuration is reloaded.
	Epoch(ctx context.Context, gateway string) (uint64, error)

	// Register allocates a generation for a session in state registered.
	// Errors, in the order in which they are looked for: ErrDisabled,
	// ErrRateLimited (one a second per node, five at once),
	// ErrWatermarkImplausible, ErrStaleEpoch, ErrExhausted. With an error
	// nothing has changed but the rate.
	Register(ctx context.Context, r Registration) (generation uint64, err error)

	// Node tells who holds a node. An unknown one has a record without
	// instance and sessions.
	Node(ctx context.Context, node string) (NodeRecord, error)

	// Ready makes a session dispatchable, from registered or suspect. ErrDisabled,
	// ErrStale.
	Ready(ctx context.Context, node, gateway string, generation uint64) error

	// Suspect takes a ready session out of dispatch until Ready. A session that
	// is not ready yet stays as it is. ErrStale.
	Suspect(ctx context.Context, node, gateway string, generation uint64) error

	// Gone ends a session. ErrStale when it is over already or superseded, which
	// a caller that is cleaning up may ignore: nothing was changed.
	Gone(ctx context.Context, node, gateway string, generation uint64) error

	// Fence is nil only if the session is current and ready. ErrDisabled,
	// ErrStale, ErrNotReady, returned bare. It is on the path of every run. In a
	// shared store no session is ready whose gateway has not beaten for OwnerTTL.
	Fence(ctx context.Context, node, gateway string, generation uint64) error

	// Beat says that a gateway process lives, and learns in exchange which of
	// the sessions that it believes to hold it still does. They are all of its
	// sessions: one that is not among them, and has been registered for OwnerTTL, is
	// over (a Gone was lost). ErrStaleEpoch when a later process goes by its name.
	Beat(ctx context.Context, gateway string, epoch uint64, sessions []Held) (BeatResult, error)
}

// Projections numbers what gateways publish and remembers what is revoked.
type Projections interface {
	// Publish numbers a projection, given as its objects with a digest of each. The
	// one published last keeps its number, so gateways that load one file agree on
	// one, unless a revocation has raised min_pgn above it. An object's revision is
	// the number of the projection in which its digest last changed. At most 10,000
	// objects. An error that is ErrNotDurable means that the numbers hold, but a
	// restart may give others.
	Publish(ctx context.Context, objects map[string]string) (Publication, error)

	// Revoke adds subjects (see [Subject]) to the revoked set and raises min_pgn
	// to pgn, the least that is still good; 0 raises nothing. To cut off all that
	// was issued so far, pass the published pgn + 1 and publish anew. Idempotent.
	// A revoked node is disabled: its sessions end, no Register, Ready or Fence.
	// An error that is ErrNotDurable means that it holds now but a restart may
	// forget it; the same call again writes it.
	Revoke(ctx context.Context, subjects []string, pgn uint64) (minPGN uint64, err error)

	// Unrevoke takes subjects out of the set. min_pgn stays, and a node has to
	// register again.
	Unrevoke(ctx context.Context, subjects []string) error

	// Revocations is the set, min_pgn and the drained nodes at one moment.
	Revocations(ctx context.Context) (Revocations, error)

	// Issue is nil only if a lease may be issued: the session is current and ready, as Fence says it, the projection is not below min_pgn, and none of
	// the subjects is revoked; all at one moment. ErrDisabled, ErrStale, ErrNotReady, ErrStaleProjection, ErrRevoked, looked for in that
	// order, returned bare. It remembers nothing: the node burns the lease.
	Issue(ctx context.Context, i Issue) error

	// MinPGN is the least projection that leases may still be issued under.
	MinPGN(ctx context.Context) (uint64, error)
}

// Drains remembers which nodes an operator has taken out. It is about the node,
// not its sessions, and so survives its re-dial. Nothing here acts on it.
type Drains interface {
	Drain(ctx context.Context, node string, on bool) error
	Draining(ctx context.Context, node string) (bool, error)
}

// Tokens counts the uses of join tokens.
type Tokens interface {
	// RedeemToken takes one use of the token jti, which allows uses in all and
	// ends at expires. ErrTokenSpent when none is left, ErrTokenExpired when it
	// has ended by the store's clock. With any error no use was given.
	RedeemToken(ctx context.Context, jti string, uses int, expires time.Time) error
}
