//go:build unix && !solaris && !illumos && !aix

package nodeclient

import (
	"errors"
	"os"
	"syscall"
)

// lockExclusive locks f until it is closed or the process ends.
func lockExclusive(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
