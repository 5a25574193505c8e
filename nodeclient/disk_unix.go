//go:build linux || darwin

package nodeclient

import "golang.org/x/sys/unix"

// diskBytes is the size of the file system at path; 0 if unknown.
func diskBytes(path string) uint64 {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil || s.Bsize <= 0 {
		return 0
	}
	return s.Blocks * uint64(s.Bsize) //nolint:gosec,unconvert // above 0; its type differs by system
}
