package tunnel

import "github.com/fairway-edge/fairway/tunnel/wire"

// The messages of package wire, under the names by which the gateway and the node use them.
type (
	Register      = wire.Register
	Registered    = wire.Registered
	Adapter       = wire.Adapter
	Target        = wire.Target
	Credits       = wire.Credits
	Model         = wire.Model
	Loaded        = wire.Loaded
	Limits        = wire.Limits
	Ready         = wire.Ready
	Status        = wire.Status
	RunOpen       = wire.RunOpen
	Header        = wire.Header
	Refused       = wire.Refused
	Answer        = wire.Answer
	Head          = wire.Head
	Terminal      = wire.Terminal
	Usage         = wire.Usage
	Timings       = wire.Timings
	Outcome       = wire.Outcome
	Revoke        = wire.Revoke
	Projection    = wire.Projection
	Profile       = wire.Profile
	Route         = wire.Route
	IssuerKey     = wire.IssuerKey
	RecipientKey  = wire.RecipientKey
	EnrollRequest = wire.EnrollRequest
	PeerHello     = wire.PeerHello
	PeerNode      = wire.PeerNode
	Taken         = wire.Taken
	Forward       = wire.Forward
	PeerNodeState = wire.PeerNodeState
	CloseCode     = wire.CloseCode
	StreamCode    = wire.StreamCode
)

// Enumerations, likewise.
const (
	KindTunnel = wire.RunKind_RUN_KIND_TUNNEL
	KindEdge   = wire.RunKind_RUN_KIND_EDGE

	BodyNone   = wire.BodyMode_BODY_MODE_NONE
	BodyLength = wire.BodyMode_BODY_MODE_LENGTH
	BodyStream = wire.BodyMode_BODY_MODE_STREAM

	PeerReady    = wire.PeerNodeState_PEER_NODE_STATE_READY
	PeerSuspect  = wire.PeerNodeState_PEER_NODE_STATE_SUSPECT
	PeerDraining = wire.PeerNodeState_PEER_NODE_STATE_DRAINING
	PeerGone     = wire.PeerNodeState_PEER_NODE_STATE_GONE

	Completed = wire.Outcome_OUTCOME_COMPLETED
	Failed    = wire.Outcome_OUTCOME_FAILED
	Canceled  = wire.Outcome_OUTCOME_CANCELED

	RetryNever     = wire.Retry_RETRY_NEVER
	RetryElsewhere = wire.Retry_RETRY_ELSEWHERE
)

// Codes, likewise.
const (
	CloseNone             = wire.CloseNone
	CloseProtocol         = wire.CloseProtocol
	CloseVersion          = wire.CloseVersion
	CloseIdentityMismatch = wire.CloseIdentityMismatch
	CloseDuplicateNode    = wire.CloseDuplicateNode
	CloseReplaced         = wire.CloseReplaced
	CloseRevoked          = wire.CloseRevoked
	CloseDisabled         = wire.CloseDisabled
	CloseDraining         = wire.CloseDraining
	CloseStoreUnavailable = wire.CloseStoreUnavailable
	CloseWatermark        = wire.CloseWatermark
	CloseRateLimited      = wire.CloseRateLimited
	CloseSilent           = wire.CloseSilent
	CloseExpired          = wire.CloseExpired
	CloseIdentity         = wire.CloseIdentity
	CloseBadNodeID        = wire.CloseBadNodeID
	CloseInternal         = wire.CloseInternal

	StreamDone       = wire.StreamDone
	StreamCancel     = wire.StreamCancel
	StreamProtocol   = wire.StreamProtocol
	StreamStalled    = wire.StreamStalled
	StreamNotCurrent = wire.StreamNotCurrent

	CodeNodeLost          = wire.CodeNodeLost
	CodeNodeReplaced      = wire.CodeNodeReplaced
	CodeNodeStalled       = wire.CodeNodeStalled
	CodeCanceled          = wire.CodeCanceled
	CodeNodeBusy          = wire.CodeNodeBusy
	CodeDraining          = wire.CodeDraining
	CodeStaleGeneration   = wire.CodeStaleGeneration
	CodeUnknownTarget     = wire.CodeUnknownTarget
	CodeNotAllowed        = wire.CodeNotAllowed
	CodeProviderUnreached = wire.CodeProviderUnreached
	CodeBadProvider       = wire.CodeBadProvider
	CodeProviderAnswered  = wire.CodeProviderAnswered
	CodeDeadlineExceeded  = wire.CodeDeadlineExceeded
	CodeBadRun            = wire.CodeBadRun
	CodeClientBody        = wire.CodeClientBody
	CodeProtocolOrder     = wire.CodeProtocolOrder
	CodeUnsupportedKind   = wire.CodeUnsupportedRunKind
	CodeInternal          = wire.CodeInternal
)

// MaxData is the most bytes that one Data frame carries.
const MaxData = wire.MaxData
