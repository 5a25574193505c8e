// Package store holds what the gateways of one fleet must agree on: who holds
// each node, under which number; which projection is out and what is revoked;
// which nodes are drained; which join tokens are spent.
//
// # Numbers
//
// Every number that fences something is allocated here by one rule:
//
//	max(previous + 1, the store's clock in Unix milliseconds, a floor)
//
// and stays under 2^53, so that Lua and JSON carry it exactly. The clock keeps
// numbers rising when the store has lost its data; the floor (a node's
// watermark, min_pgn) when the clock went backwards as well.
//
//	generation  per node; fences a session      Register
//	epoch       per gateway; fences a process   Epoch
//	pgn         one; fences a projection        Publish
//	min_pgn     one; a maximum, never falls     Revoke
//	version     one; of revocations and drains  Revoke, Unrevoke, Drain
//
// # Sessions
//
// A node has one instance (a process of it) and at most one session with each
// gateway. The counter and the instance are the node's; generation and state
// belong to (node, gateway). Registering the same instance at another gateway
// adds a session. Another instance that registers has won the duplicate rule,
// which the gateway applies before, by [Sessions.Node]: it raises the node's
// floor to its own generation, and every session of the old instance is over,
// wherever it was.
//
//	Register ─▶ registered ─Ready─▶ ready ◀─Ready─ Suspect ─▶ suspect
//	                └──────────── Gone ─▶ (no session)
//
// Every call after Register names the generation and changes nothing unless it
// is the current one of (node, gateway): that is the compare-and-swap that keeps
// a late event of an old session from touching the new one. [Sessions.Fence] is
// the same question without a change, last thing before a run is sent.
//
// Gateways beat, nodes do not. A gateway that has not beaten for [OwnerTTL] no
// longer owns its sessions in the eyes of others, and a shared store takes none of
// them for ready, until it beats again. A session that the beats of its gateway do
// not name is over.
//
// # What lasts
//
// [Memory] forgets sessions with the process, as the connections are gone too,
// and its numbers are floored by the clock. Revocations, drains and spent tokens
// are written to a [Persist] before the call that made them returns.
//
// [Redis] may lose anything: a server restarts empty, is flushed, or a replica
// takes over that lacks the last writes. So the store is not where truth lives,
// only where gateways agree on it. Each gateway keeps what it has read and done,
// and tells a store that may have lost something, by [Store.Reassert]: sessions
// under their old generations, revocations, drains, the projection. Whatever is
// told is merged so that the order does not matter: generations of a node rise
// through all its processes, so the greater one has won; the revoked set only
// grows, but for what was taken back since the view that is told; min_pgn is a
// maximum; the greater pgn is the later projection. Until it has been told, the
// store of each gateway refuses Fence and Issue.
//
// Spent join tokens are the exception: no gateway tells them again. A token that
// was spent can be used once more after a loss, until it ends.
//
// # Implementations
//
// [NewMemory] is for one gateway process. It does not ask for beats: its sessions
// end with it. [NewRedis] is for a fleet; every method is a script in lua/, whose
// prelude lists the keys. Both pass the suite of package storetest, which is the
// interface's meaning in detail, and are compared with its model.
package store
