//go:build linux || darwin

package http1

import "syscall"

// alive reports whether an idle connection is open and silent. It peeks at the
// socket without waiting (about a microsecond): nothing to read is good; an
// end, an error, or bytes that no request asked for are not.
func alive(c *conn) bool {
	if c.sys == nil {
		return true
	}
	quiet := false
	err := c.sys.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		quiet = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	})
	return err == nil && quiet
}
