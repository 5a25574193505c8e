package store

import "time"

const (
	// OwnerTTL is how long after its last beat a gateway still owns its sessions.
	OwnerTTL = 6 * time.Second
	// MaxWatermark is how far ahead of the store's clock a node's watermark may
	// be. Further, and a hostile node could use up its number space unseen.
	MaxWatermark = 24 * time.Hour

	registerEvery = time.Second // sustained registrations per node
	registerBurst = 5           // and at once
)

// Registration is a node process asking to be one session of a gateway.
type Registration struct {
	Node      string // the node's name
	Gateway   string // the gateway's name
	Instance  string // the node process: 128 random bits in some text form
	Watermark uint64 // the greatest generation that the node has seen; 0 for none
	Epoch     uint64 // the gateway process, from Epoch
}

// State of a session in the store.
type State string

const (
	StateRegistered State = "registered" // may not be dispatched to yet
	StateReady      State = "ready"
	StateSuspect    State = "suspect" // was ready, has missed beats
)

// NodeRecord is a node as the store sees it at one moment.
type NodeRecord struct {
	Node       string
	Instance   string // which process holds the node or held it last; empty: none yet
	Generation uint64 // the greatest one allocated
	Floor      uint64 // the least one that can be current
	Disabled   bool   // revoked
	Draining   bool
	Sessions   []Session // of Instance, by gateway name
}

// Owned tells whether a session of the node is owned by a gateway that beats: the
// incumbent of the duplicate rule, which is then asked whether it lives.
func (r NodeRecord) Owned() bool {
	for _, s := range r.Sessions {
		if s.Owned() {
			return true
		}
	}
	return false
}

// Session is a node's with one gateway.
type Session struct {
	Gateway    string
	Generation uint64
	State      State
	// BeatAge is how long ago, on the store's clock, the gateway last beat, or
	// registered this session if that was later. Never negative.
	BeatAge time.Duration
}

// Owned tells whether the session's gateway has beaten within OwnerTTL.
func (s Session) Owned() bool { return s.BeatAge < OwnerTTL }

// Held is a session that a gateway believes to hold.
type Held struct {
	Node       string
	Generation uint64
}

// Verdict is what the store says of a Held.
type Verdict string

const (
	VerdictOK         Verdict = "ok"
	VerdictSuperseded Verdict = "superseded" // a later generation is current, or the node is disabled: close
	VerdictMissing    Verdict = "missing"    // the store knows nothing of it
)

// BeatResult answers a beat.
type BeatResult struct {
	// Incarnation is a random name of the store's data. Another one than before
	// means that data was lost, or may have been: see Reassert.
	Incarnation string
	// Revocations is the version of the revoked set and the drained nodes; it rises
	// with every change, within one incarnation. A gateway that sees another one than
	// before reads Revocations.
	Revocations uint64
	// Verdicts are in the order of the sessions asked about.
	Verdicts []Verdict
}

// Assertion is what a gateway knows, for a store that may have lost it.
type Assertion struct {
	Gateway  string
	Epoch    uint64
	Sessions []SessionClaim // of the gateway, those that may be missing

	// Revocations is as it was read last. What was taken back since then, by its Version, is not revived.
	Revocations Revocations
	// Objects and Publication are what Publish was given and has answered; none if Publication.PGN is 0.
	Objects     map[string]string
	Publication Publication
}

// SessionClaim is a session as its gateway knows it.
type SessionClaim struct {
	Node       string
	Instance   string
	Generation uint64
	State      State
}
