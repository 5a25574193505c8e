// Package tunnel is one session between a gateway and a node, both ends: identities are checked, a generation is given, and runs
// travel over QUIC from the gateway to the node that dialled in. It carries bytes and outcomes, and knows nothing of Ollama, credentials or
// routing. wire/PROTOCOL.md is the specification; this page is the map of the code.
//
// # Model
//
//	Listener ── Session ── Lane ── Run          the gateway's end
//	               ║         ║       ║
//	     Dial ── NodeSession ════ NodeRun       the node's end
//
// A session is one process of a node, registered with one gateway, under one generation. A lane is one QUIC connection of it: the first carries
// control and runs, and is the only one so far. A run is one request on a stream of its own, opened by the gateway.
//
// The package decides nothing about fleets. Who may register, and what is known of nodes afterwards, is the [Registrar]'s (the fleet, over its
// store); what a run does at the node is the [Handler]'s; who may join is the [Enroller]'s.
//
// # Protocol flow
//
//	node: QUIC handshake, ALPN fairway/1, both certificates     VerifyConnection on both sides (tls.go)
//	node: opens the control stream, Register                    session.go: checkRegister, Registrar.Register
//	gateway: Registered{generation}                             dial.go: refuses one at or under its watermark
//	both: Heartbeat each second                                 beat.go
//	node: Ready{targets}                                        nodesession.go
//	gateway: ReadyAck, then Registrar.Ready                     from here OpenRun may choose the session
//	node: Status on each change
//
//	gateway: opens a stream; under the send lock: is the session still ready? fence()? then RunOpen, body, End     lane.go, run.go
//	node: Refused                                               nothing ran; may go elsewhere
//	   or Accepted, Head, Data…, Terminal                       noderun.go
//
//	gateway: Drain → node: Draining                             open runs finish
//	either: CONNECTION_CLOSE with a code of package wire        the session is gone; its runs are node_lost
//
// Enrolment (enroll.go) is a connection of its own, ALPN fairway-enroll/1, on the same socket.
//
// # Goroutines, and who ends them
//
//	Listener      accept; one per connection                    Close closes connections, then the socket, and waits for all
//	Session       serve (reads control) is the connection's; beat   end with the control lane; serve waits for beat
//	Run           none: the caller's; after Close at most one that reads on for 2 s
//	NodeSession   read, beat, accept, one per run               end with the connection; Done is closed after all of them
//
// No function of this package blocks without a bound: writes have deadlines, waits a context.
//
// # Invariants
//
// By the numbers of the specification; each names what holds it here.
//
//  1. No RunOpen to a node that is not ready: Lane.first checks under Session.sendMu, which Session.Close takes to end the session.
//  2. An old generation changes nothing: RunOpen and Ready repeat the number, the Registrar compares sessions by identity.
//  3. One terminal outcome: Run.finish stores the first, Run.Next returns it for ever; NodeRun.last is one compare-and-swap.
//  4. One request a run attempt: the Handler's part; here, a run that was accepted is never offered again.
//  5. A cut stream never looks whole: Read returns io.EOF only after End, a completed Terminal must count the bytes that came.
//  6. Bounded memory: caps before allocation (package wire), windows and streams (config.go), bounds on Register, one rate for control messages.
//  7. No secrets: only Lease and a join token hold one, and neither is logged.
package tunnel
