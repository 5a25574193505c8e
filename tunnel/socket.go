package tunnel

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// steadySocket is a UDP socket on which a send that fails for a moment's reason counts as a lost packet. quic-go takes any send error for the connection's end;
// a cable that is out for two seconds, an address that is being renewed or a full queue must cost no stream: the idle time-out and the heartbeat decide that. It embeds
// the socket itself, so that quic-go finds everything that it wants of one (GSO, ECN, buffer sizes).
type steadySocket struct{ *net.UDPConn }

func (s *steadySocket) WriteTo(p []byte, addr net.Addr) (int, error) {
	n, err := s.UDPConn.WriteTo(p, addr)
	if passing(err) {
		return len(p), nil
	}
	return n, err
}

// WriteMsgUDP is what quic-go sends with.
func (s *steadySocket) WriteMsgUDP(p, oob []byte, addr *net.UDPAddr) (int, int, error) {
	n, oobn, err := s.UDPConn.WriteMsgUDP(p, oob, addr)
	if passing(err) {
		return len(p), len(oob), nil
	}
	return n, oobn, err
}

// passing reports whether a send error says something of the moment rather than of the socket.
func passing(err error) bool {
	var sys *os.SyscallError
	if err == nil || !errors.As(err, &sys) {
		return false
	}
	var no syscall.Errno
	if !errors.As(sys.Err, &no) {
		return false
	}
	switch no {
	case syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.EPERM, syscall.ECONNREFUSED:
		return true
	}
	return false
}

// steady wraps a UDP socket; others, such as a test's, pass as they are.
func steady(c net.PacketConn) net.PacketConn {
	if u, ok := c.(*net.UDPConn); ok {
		return &steadySocket{u}
	}
	return c
}
