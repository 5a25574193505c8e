package gateway

import (
	"context"
	"net"

	"go.uber.org/zap"
)

// embedded is a node that runs inside this process.
type embedded struct {
	key    string
	cancel context.CancelFunc
	done   chan struct{}
}

// ended reports whether the node has given up.
func (e *embedded) ended() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// embed makes e the node inside this process: kept when its key is the same, else the one before is stopped first. nil: none.
func (h *Hub) embed(e *Embedded) {
	h.mu.Lock()
	old, l := h.embedded, h.listener
	if old != nil && e != nil && old.key == e.Key && l != nil && !old.ended() {
		h.mu.Unlock()
		return
	}
	h.embedded = nil
	h.mu.Unlock()
	if old != nil {
		old.cancel()
		<-old.done
	}
	if e == nil || l == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &embedded{key: e.Key, cancel: cancel, done: make(chan struct{})}
	h.mu.Lock()
	h.embedded = n
	h.mu.Unlock()
	addr := dialable(l.Addr().(*net.UDPAddr)) //nolint:errcheck // a UDP listener's address
	go func() {
		defer close(n.done)
		if err := e.Run(ctx, addr); err != nil && ctx.Err() == nil {
			h.log().Error("the embedded node ended", zap.Error(err))
		}
	}()
}

// embeds reports whether name is that of this gateway's own node.
func (h *Hub) embeds(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.embedded != nil && name == EmbeddedPrefix+h.cfg.Gateway
}

// dialable turns a wildcard address into loopback.
func dialable(a *net.UDPAddr) *net.UDPAddr {
	if !a.IP.IsUnspecified() {
		return a
	}
	ip := net.IPv6loopback
	if a.IP.To4() != nil || len(a.IP) == net.IPv6len && a.IP.Equal(net.IPv6unspecified) {
		ip = net.IPv4(127, 0, 0, 1) // a dual-stack socket takes IPv4 too, and hosts without IPv6 exist
	}
	return &net.UDPAddr{IP: ip, Port: a.Port}
}
