package store

import "strings"

// SubjectKind is what can be revoked.
type SubjectKind string

const (
	SubjectSlot      SubjectKind = "slot"
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

// Revocations is the revoked set at one moment. The slice is the caller's.
type Revocations struct {
	Subjects []string // sorted
	MinPGN   uint64
	Version  uint64 // see BeatResult.Revocations
}
