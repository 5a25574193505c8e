package wire

import "fmt"

// CloseCode is the application error code of a closed connection. PROTOCOL.md has the table.
type CloseCode uint64

// Codes with which either side closes a connection.
const (
	CloseNone             CloseCode = 0x00 // orderly end: a process stops
	CloseProtocol         CloseCode = 0x01 // a message malformed or out of its state
	CloseVersion          CloseCode = 0x02 // no common protocol version; final for the node
	CloseIdentityMismatch CloseCode = 0x03 // Register names another node than the leaf; final
	CloseDuplicateNode    CloseCode = 0x04 // another instance of this node is alive
	CloseReplaced         CloseCode = 0x05 // a newer session of the same node took over
	CloseRevoked          CloseCode = 0x06 // the node is revoked; final
	CloseDisabled         CloseCode = 0x07 // the node is disabled; final
	CloseDraining         CloseCode = 0x08 // the gateway goes; dial another
	CloseStoreUnavailable CloseCode = 0x09 // the gateway cannot register nodes now
	CloseWatermark        CloseCode = 0x0a // watermark_implausible; final
	CloseRateLimited      CloseCode = 0x0b // too many registrations
	CloseSilent           CloseCode = 0x0c // no heartbeat echo
	CloseExpired          CloseCode = 0x0d // the leaf's lifetime is over
	CloseIdentity         CloseCode = 0x0e // the peer's certificate has the wrong role, domain or form; final
	CloseBadNodeID        CloseCode = 0x0f // a reserved or malformed name; final
	CloseInternal         CloseCode = 0x10 // a fault of the closing side
)

var closeNames = map[CloseCode]string{
	CloseNone: "closed", CloseProtocol: "protocol_error", CloseVersion: "unsupported_version",
	CloseIdentityMismatch: "identity_mismatch", CloseDuplicateNode: "duplicate_node", CloseReplaced: "node_replaced",
	CloseRevoked: "revoked", CloseDisabled: "disabled", CloseDraining: "draining", CloseStoreUnavailable: "store_unavailable",
	CloseWatermark: "watermark_implausible", CloseRateLimited: "rate_limited", CloseSilent: "silent", CloseExpired: "expired",
	CloseIdentity: "bad_identity", CloseBadNodeID: "bad_node_id", CloseInternal: "internal",
}

// String returns the code's name as logs and `fairway-node status` show it.
func (c CloseCode) String() string {
	if s, ok := closeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("code_%d", uint64(c))
}

// Final reports whether a node that was closed with c must not dial again by itself: nothing but a person can mend it.
func (c CloseCode) Final() bool {
	switch c {
	case CloseVersion, CloseIdentityMismatch, CloseRevoked, CloseDisabled, CloseWatermark, CloseIdentity, CloseBadNodeID:
		return true
	}
	return false
}

// StreamCode is the application error code of a reset or stopped stream.
type StreamCode uint64

// Codes with which a direction of a run stream is reset or stopped.
const (
	StreamDone       StreamCode = 0x00 // nothing more is wanted: the run has ended
	StreamCancel     StreamCode = 0x01 // the gateway cancels the run
	StreamProtocol   StreamCode = 0x02 // a frame malformed or out of order
	StreamStalled    StreamCode = 0x03 // no progress for 30 s with data waiting
	StreamNotCurrent StreamCode = 0x04 // the session is not current or not ready
	StreamInternal   StreamCode = 0x05 // a fault of the resetting side
)

// Run codes that the protocol itself gives to Terminal and Refused. INTERFACES of the gateway has the rest.
const (
	CodeNodeLost           = "node_lost"            // the stream ended without a Terminal
	CodeNodeReplaced       = "node_replaced"        // a newer session took over
	CodeNodeStalled        = "node_stalled"         // no progress for 30 s with data waiting
	CodeCanceled           = "canceled"             // the gateway canceled
	CodeProtocolOrder      = "protocol_order"       // frames out of order
	CodeNodeBusy           = "node_busy"            // no credit
	CodeDraining           = "draining"             // the node takes no new runs
	CodeStaleGeneration    = "stale_generation"     // RunOpen of another generation than the session's
	CodeUnknownTarget      = "unknown_target"       // no such target at this node
	CodeNotAllowed         = "not_allowed"          // method and path are not on the node's allow-list
	CodeProviderUnreached  = "provider_unreachable" // the connect failed, or the connection broke before a head
	CodeBadProvider        = "bad_provider_response"
	CodeProviderAnswered   = "provider_answered" // refused with the provider's own answer
	CodeDeadlineExceeded   = "deadline_exceeded"
	CodeBadRun             = "bad_run" // a RunOpen that the node cannot use
	CodeClientBody         = "client_body_error"
	CodeUnsupportedRunKind = "unsupported_kind"
	CodeInternal           = "internal" // a fault of the node's own
)
