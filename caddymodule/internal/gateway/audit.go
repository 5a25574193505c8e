package gateway

import "time"

// AuditRecord is one step in the life of a lease; its JSON names are a contract. It holds no secret. With the run's line in the access log it shares
// the run's id.
type AuditRecord struct {
	Time       time.Time `json:"time"`
	Event      string    `json:"event"` // issued | opened | refused | ended | revoked | restored
	Lease      string    `json:"lease,omitempty"`
	Run        string    `json:"run_id,omitempty"`
	Attempt    uint32    `json:"attempt,omitempty"`
	Principal  string    `json:"principal,omitempty"`
	Route      string    `json:"route,omitempty"`
	Profile    string    `json:"profile,omitempty"`
	Slot       string    `json:"slot,omitempty"`
	Version    uint64    `json:"slot_version,omitempty"` // of the credential in the slot
	Node       string    `json:"node,omitempty"`
	Target     string    `json:"target,omitempty"`
	Origin     string    `json:"origin,omitempty"`
	Lane       string    `json:"lane,omitempty"` // what the lease is bound to: a hash of the lane's exporter value
	Generation uint64    `json:"generation,omitempty"`
	Projection uint64    `json:"projection,omitempty"`
	Outcome    string    `json:"outcome,omitempty"`  // of the run
	Code       string    `json:"code,omitempty"`     // why, exactly
	Subjects   []string  `json:"subjects,omitempty"` // of a revocation
}

// LeaseView is one row of `caddy fairway leases`: a lease whose run is open. Its JSON names are a contract.
type LeaseView struct {
	Lease      string    `json:"lease"`
	Run        string    `json:"run_id"`
	Principal  string    `json:"principal"`
	Route      string    `json:"route"`
	Profile    string    `json:"profile"`
	Slot       string    `json:"slot"`
	Version    uint64    `json:"slot_version"`
	Node       string    `json:"node"`
	Target     string    `json:"target"`
	Generation uint64    `json:"generation"`
	Projection uint64    `json:"projection"`
	State      string    `json:"state"` // issued | opened
	Issued     time.Time `json:"issued"`
}

// RevokeView answers a revocation; its JSON names are a contract.
type RevokeView struct {
	Subject string `json:"subject"`
	Revoked bool   `json:"revoked"` // false: undone
	Applied bool   `json:"applied"` // this gateway goes by it
	Durable bool   `json:"durable"` // a restart will not forget it
	Nodes   int    `json:"nodes"`   // that were told
	Acked   int    `json:"acked"`   // of these, that have said so within the wait
	Ended   int    `json:"ended"`   // runs that were canceled
}
