package nodeclient

import "golang.org/x/sys/unix"

// memoryBytes is the machine's memory; 0 if unknown.
func memoryBytes() uint64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return uint64(s.Totalram) * uint64(s.Unit) //nolint:unconvert // a uint32 on 32-bit machines
}
