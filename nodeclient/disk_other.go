//go:build !linux && !darwin

package nodeclient

// diskBytes is not known here.
func diskBytes(string) uint64 { return 0 }
