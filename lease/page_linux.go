package lease

import "golang.org/x/sys/unix"

// newPage maps anonymous memory, locked (best effort: a common limit is 8 MiB) and left out of core dumps. Memory of the Go heap could not
// be: the collector moves nothing, but copies on growth, and MADV_DONTDUMP needs whole pages.
func newPage() ([]byte, error) {
	p, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	_ = unix.Mlock(p)
	_ = unix.Madvise(p, unix.MADV_DONTDUMP)
	return p, nil
}

func freePage(p []byte) { _ = unix.Munmap(p) }
