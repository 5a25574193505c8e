// Package pki holds the identities of gateways and nodes: how they are named,
// issued, proved, renewed and kept on disk.
//
// # Names
//
// An identity is a SPIFFE id, [ID]: spiffe://TRUST-DOMAIN/ROLE/NAME, where ROLE
// is "gateway" or "node". It is the only name in a certificate, as its only URI
// SAN; subjects and DNS names mean nothing here. A node's NAME is the name that
// it registers under.
//
// # Certificates
//
//	root  (ten years, the operator's or the built-in CA's)
//	 └─ intermediate  (a year, renewed by the gateway: RenewIntermediate)
//	     └─ leaf  (30 days, renewed at two thirds: Identity.RenewAt)
//
// An [Authority] issues leaves. It asks for root, intermediate and key anew for
// every leaf, so that a renewed intermediate is used at once. A leaf never
// outlives what signed it. From a certificate request only the public key is
// taken: a node cannot ask for another name than the gateway means to give.
//
// [VerifyPeer] is the whole check of a peer, both ways: chain, validity, usage,
// one well-formed id, trust domain, role. It is meant for tls.Config's
// VerifyConnection with InsecureSkipVerify, because a SPIFFE id cannot be
// checked as a server name. What it refuses is a [VerifyError] with a reason
// that serves as a code on the wire and in metrics.
//
// # Joining
//
// A node joins with a join token, [MintJoinToken]: an EdDSA JWT that names the
// gateway, the node, and the hash of the CA's root key. The node reads it
// unverified ([ReadJoinToken]) and uses the hash to know the right root among
// what the gateway presents ([VerifyPinned]); the gateway verifies it
// ([VerifyJoinToken]) and has its uses counted by the store. Then the node sends
// a request ([NewCSR]) and gets a chain ([Authority.IssueCSR]).
//
// # Clocks
//
// A node's wall clock may be wrong. A token is judged on the gateway's clock
// alone. Certificates are judged on the clock of whoever checks them; for a slow
// clock leaves are back-dated by five minutes, and VerifyPeer takes one that
// becomes valid within [ClockSlack]. [CheckClock] says when to warn.
//
// # On disk
//
// [SaveIdentity] and [LoadIdentity] keep a node's identity in one file of its
// state directory. [LoadFiles] reads a gateway's from an existing PKI.
//
// Everything here is free of sockets and safe for concurrent use, save that two
// processes must not save into one state directory at once.
package pki
