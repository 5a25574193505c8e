package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
)

func TestPassingSendErrors(t *testing.T) {
	t.Parallel()
	sys := func(no syscall.Errno) error { return &net.OpError{Op: "write", Err: os.NewSyscallError("sendmsg", no)} }
	for _, tt := range []struct {
		err     error
		passing bool
	}{
		{nil, false}, {io.EOF, false}, {net.ErrClosed, false}, {errors.New("x"), false},
		{sys(syscall.ENETUNREACH), true}, {sys(syscall.EHOSTUNREACH), true}, {sys(syscall.ENETDOWN), true}, {sys(syscall.EADDRNOTAVAIL), true},
		{sys(syscall.ENOBUFS), true}, {sys(syscall.EPERM), true},
		// Segmentation offload and packet sizes are quic-go's to judge.
		{sys(syscall.EIO), false}, {sys(syscall.EMSGSIZE), false}, {sys(syscall.EINVAL), false}, {sys(syscall.EBADF), false},
	} {
		if passing(tt.err) != tt.passing {
			t.Errorf("%v", tt.err)
		}
	}
}

// quic-go must still find a socket that it can use segmentation offload on: without it bulk costs twice the CPU.
func TestSocketKeepsOffload(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Getenv("QUIC_GO_DISABLE_GSO") != "" {
		return
	}
	r := newRig(t)
	_, s := r.node("n1", echo)
	if !s.lane.conn.ConnectionState().GSO {
		t.Error("no GSO at the gateway")
	}
}
