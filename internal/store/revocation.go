package store

import "strings"

// SubjectKind is what can be revoked.
type SubjectKind string

const (
	SubjectSlot      SubjectKind = "slot"
	SubjectProfile   SubjectKind = "profile"
	SubjectNode      SubjectKind = "node"
	SubjectPrincipal SubjectKind = "principal"
	SubjectLease     SubjectKind = "lease"
)

// Subject is the spelling of a thing in the revoked set: KIND:NAME.
func Subject(kind SubjectKind, name string) string { return string(kind) + ":" + name }

// revokedNode is the node that a subject names.
func revokedNode(subject string) (node string, ok bool) {
	return strings.CutPrefix(subject, string(SubjectNode)+":")
}

// Publication is a numbered projection. Revisions is the caller's.
type Publication struct {
	PGN       uint64
	Revisions map[string]uint64 // by object
}

// Issue is a lease that a gateway is about to issue.
type Issue struct {
	Node       string
	Gateway    string
	Generation uint64
	PGN        uint64
	// Subjects are what the lease names: its slot, profile, principal. At most maxBatch.
	Subjects []string
}

// Revocations is what operators have taken out of use, at one moment. The slices are the caller's.
type Revocations struct {
	Subjects []string // sorted
	MinPGN   uint64
	Drained  []string // nodes, sorted
	Version  uint64   // see BeatResult.Revocations
}
