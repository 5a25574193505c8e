package lease

import (
	"maps"
	"slices"
	"sync"
)

// View is what one side knows to be revoked. It only grows, but for Remove and Replace. Safe for concurrent use; the zero value has nothing revoked.
type View struct {
	mu      sync.RWMutex
	revoked map[string]bool // guarded by mu; by subject
	min     uint64          // guarded by mu; least projection generation
}

// Subjects that can be revoked, as the store names them too.
func SlotSubject(name string) string      { return "slot:" + name }
func PrincipalSubject(name string) string { return "principal:" + name }
func NodeSubject(name string) string      { return "node:" + name }
func LeaseSubject(id string) string       { return "lease:" + id }
func ProfileSubject(name string) string   { return "profile:" + name }

// Add takes in revocations; the least projection never falls.
func (v *View) Add(subjects []string, minPGN uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.revoked == nil {
		v.revoked = make(map[string]bool)
	}
	for _, s := range subjects {
		v.revoked[s] = true
	}
	v.min = max(v.min, minPGN)
}

// Remove makes subjects good again.
func (v *View) Remove(subjects []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range subjects {
		delete(v.revoked, s)
	}
}

// Replace sets the revoked subjects: what is not among them is good again.
func (v *View) Replace(subjects []string, minPGN uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.revoked = make(map[string]bool, len(subjects))
	for _, s := range subjects {
		v.revoked[s] = true
	}
	v.min = max(v.min, minPGN)
}

// Subjects lists what is revoked, sorted.
func (v *View) Subjects() []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Sorted(maps.Keys(v.revoked))
}

// Revoked reports whether one of the subjects is revoked.
func (v *View) Revoked(subjects ...string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.ContainsFunc(subjects, func(s string) bool { return v.revoked[s] })
}

// MinPGN returns the least projection that is good.
func (v *View) MinPGN() uint64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.min
}

// check is steps 10 and 11.
func (v *View) check(c *claims) error {
	if c.Pgn < v.MinPGN() {
		return refuse(CodeStaleProjection)
	}
	if v.Revoked(LeaseSubject(c.Jti), PrincipalSubject(c.Sub), SlotSubject(c.Slt.ID), ProfileSubject(c.Prf.ID)) {
		return refuse(CodeRevoked)
	}
	return nil
}
