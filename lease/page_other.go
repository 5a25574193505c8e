//go:build !linux

package lease

// newPage takes ordinary memory: locking it and keeping it out of dumps is done on Linux only.
func newPage() ([]byte, error) { return make([]byte, pageSize), nil }

func freePage([]byte) {}
