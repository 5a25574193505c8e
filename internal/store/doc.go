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
// longer owns its sessions in the eyes of others.
//
// # What lasts
//
// [Memory] forgets sessions with the process, as the connections are gone too,
// and its numbers are floored by the clock. Revocations, drains and spent tokens
// are written to a [Persist] before the call that made them returns.
//
// # Implementations
//
// [NewMemory] is for one gateway process. A shared one is to pass the suite of
// package storetest, which is the interface's meaning in detail.
package store
