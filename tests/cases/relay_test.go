package cases

import (
	"net"
	"sync"
	"testing"
)

// relay stands between a node and a gateway on UDP and misbehaves on command.
type relay struct {
	front *net.UDPConn
	wg    sync.WaitGroup

	mu      sync.Mutex
	to      *net.UDPAddr            // guarded by mu, as all below
	peers   map[string]*net.UDPConn // by the node's address: what the gateway sees of it
	seen    map[string]bool         // addresses that have sent
	drop    bool
	maxLen  int // longer packets are lost; 0 for none
	dropped int
	closed  bool
}

// newRelay forwards a port of loopback to addr until the test ends.
func newRelay(t testing.TB, addr string) *relay {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{front: front, to: to, peers: map[string]*net.UDPConn{}, seen: map[string]bool{}}
	r.wg.Go(r.up)
	t.Cleanup(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		front.Close()
		r.rebind()
		r.wg.Wait()
	})
	return r
}

// port is where nodes dial.
func (r *relay) port() int { return r.front.LocalAddr().(*net.UDPAddr).Port }

// set changes the relay's ways.
func (r *relay) set(f func(*relay)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

// rebind gives every node a new port towards the gateway, as a NAT does after its time-out.
func (r *relay) rebind() {
	r.set(func(r *relay) {
		for k, c := range r.peers {
			c.Close()
			delete(r.peers, k)
		}
	})
}

// sources counts the addresses that nodes have sent from.
func (r *relay) sources() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func (r *relay) lost(n int) bool {
	if r.drop || r.maxLen > 0 && n > r.maxLen {
		r.dropped++
		return true
	}
	return false
}

func (r *relay) up() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := r.front.ReadFromUDP(buf)
		if err != nil {
			return
		}
		if c := r.peer(from, n); c != nil {
			_, _ = c.Write(buf[:n])
		}
	}
}

// peer returns the socket that stands for a node; nil when the packet is lost.
func (r *relay) peer(from *net.UDPAddr, n int) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[from.String()] = true
	if r.closed || r.lost(n) {
		return nil
	}
	c := r.peers[from.String()]
	if c == nil {
		var err error
		if c, err = net.DialUDP("udp", nil, r.to); err != nil {
			return nil
		}
		r.peers[from.String()] = c
		r.wg.Go(func() { r.down(c, from) })
	}
	return c
}

func (r *relay) down(c *net.UDPConn, to *net.UDPAddr) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if isClosed(err) {
			return
		}
		if err != nil {
			continue // the gateway's port is closed just now: ICMP
		}
		r.mu.Lock()
		lost := r.lost(n)
		r.mu.Unlock()
		if !lost {
			_, _ = r.front.WriteToUDP(buf[:n], to)
		}
	}
}
