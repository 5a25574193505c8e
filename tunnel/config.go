package tunnel

import (
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// Times of a session. Sources: the measurements in docs/tunnel.md and the protocol page.
const (
	// HeartbeatInterval is how often each side beats.
	HeartbeatInterval = time.Second
	// SuspectAfter is the silence after which a session gets no new runs: three beats missed, and a quarter of one for jitter.
	SuspectAfter = 3*HeartbeatInterval + HeartbeatInterval/4
	// RedialAfter is the time without an echo after which a node gives a session up and dials again. QUIC's own
	// idle timeout cannot be relied on for that: after a freeze it may be 3 × PTO, well over a minute.
	RedialAfter = 10 * time.Second
	// PeerIdleTimeout ends a connection with another gateway on which nothing arrives: twice what makes it suspect, for runs wait at it.
	PeerIdleTimeout = 2 * SuspectAfter
	// IdleTimeout ends a connection on which nothing arrives.
	IdleTimeout = 15 * time.Second
	// keepAlive makes QUIC itself send something; it also keeps NAT bindings that outlive no heartbeat.
	keepAlive = 5 * time.Second
	// handshakeTimeout bounds the QUIC handshake's idle time.
	handshakeTimeout = 5 * time.Second
	// registerTimeout bounds the time from a finished handshake to Registered, and from there to Ready's probe of the providers.
	registerTimeout = 10 * time.Second
	// StallTimeout is how long a write may wait without progress.
	StallTimeout = 30 * time.Second
	// controlTimeout bounds one write on the control stream.
	controlTimeout = 10 * time.Second
	// probeTimeout is how long an incumbent has to answer when another instance of its node appears.
	probeTimeout = 2 * time.Second
)

// Bounds on what a peer may open or make us hold.
const (
	// nodeStreams is how many run streams a gateway may have open on one lane.
	nodeStreams = 512
	// gatewayStreams is how many streams a node may have open: the control stream and 16 of its own.
	gatewayStreams = 1 + 16
	// A stream window of 256 KiB gives 4 MB/s at 50 ms; the connection's holds eight stalled streams, so that a few slow
	// readers do not stop the others.
	initialStreamWindow = 512 << 10
	maxStreamWindow     = 6 << 20
	initialConnWindow   = 1 << 20
	maxConnWindow       = 48 << 20
	// windowBudget bounds what all connections of a process may grow their windows to, together.
	windowBudget = 1 << 30
	// initialPacket fits a path of MTU 1280 with IP and UDP headers (WireGuard and the like).
	initialPacket = 1200
	// maxHandshakes bounds the connections of a listener that have not registered yet.
	maxHandshakes = 1024
	// maxEnrolments bounds the enrolments that a listener answers at once.
	maxEnrolments = 64
	// retryAbove is the rate of new connections a second above which addresses are validated with a Retry first.
	retryAbove = 50
)

// windowsGrown counts the bytes by which receive windows of this process have grown beyond their initial size.
var windowsGrown atomic.Int64

// allowGrowth is quic.Config's AllowConnectionWindowIncrease. What a connection took is given back when it ends.
func allowGrowth(c *quic.Conn, delta uint64) bool {
	if windowsGrown.Add(int64(delta)) > windowBudget {
		windowsGrown.Add(-int64(delta))
		return false
	}
	afterConn(c, func() { windowsGrown.Add(-int64(delta)) })
	return true
}

func quicConfig(incomingStreams int64) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           handshakeTimeout,
		MaxIdleTimeout:                 IdleTimeout,
		KeepAlivePeriod:                keepAlive,
		MaxIncomingStreams:             incomingStreams,
		MaxIncomingUniStreams:          -1,
		InitialStreamReceiveWindow:     initialStreamWindow,
		MaxStreamReceiveWindow:         maxStreamWindow,
		InitialConnectionReceiveWindow: initialConnWindow,
		MaxConnectionReceiveWindow:     maxConnWindow,
		AllowConnectionWindowIncrease:  allowGrowth,
		InitialPacketSize:              initialPacket,
		Allow0RTT:                      false,
		EnableDatagrams:                false,
	}
}
