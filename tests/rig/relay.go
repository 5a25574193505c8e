package rig

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// Relay stands between nodes and a gateway on UDP, and misbehaves on command. Safe for concurrent use.
type Relay struct {
	front *net.UDPConn
	to    *net.UDPAddr
	wg    sync.WaitGroup

	mu     sync.Mutex
	ways   Ways                    // guarded by mu
	peers  map[string]*net.UDPConn // guarded by mu; by the node's address: what the gateway sees of it
	seen   map[string]bool         // guarded by mu; addresses that have sent
	closed bool                    // guarded by mu
}

// Ways are how a relay treats packets.
type Ways struct {
	Drop   bool          // every packet is lost
	MaxLen int           // longer packets are lost; 0 for none
	Lost   int           // counts what was lost
	Late   time.Duration // packets to nodes come so much later; as long as it grows they keep their order
	Tap    func([]byte)  // sees every packet, one at a time
}

// NewRelay forwards a port of loopback to addr until the test ends.
func NewRelay(t testing.TB, addr string) *Relay {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{front: front, to: to, peers: map[string]*net.UDPConn{}, seen: map[string]bool{}}
	r.wg.Go(r.up)
	t.Cleanup(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		front.Close()
		r.Rebind()
		r.wg.Wait()
	})
	return r
}

// Port is where nodes dial.
func (r *Relay) Port() int { return r.front.LocalAddr().(*net.UDPAddr).Port }

// By is the gateway as nodes find it by a relay.
func (g *Gateway) By(r *Relay) *Gateway {
	far := *g
	far.UDP = r.Port()
	return &far
}

// Set changes the relay's ways.
func (r *Relay) Set(f func(*Ways)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.ways)
}

// Rebind gives every node a new port towards the gateway, as a NAT does after its time-out.
func (r *Relay) Rebind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, c := range r.peers {
		c.Close()
		delete(r.peers, k)
	}
}

// Sources counts the addresses that nodes have sent from.
func (r *Relay) Sources() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// passes tells what becomes of a packet. r.mu is held.
func (w *Ways) passes(packet []byte) bool {
	if w.Tap != nil {
		w.Tap(packet)
	}
	if w.Drop || w.MaxLen > 0 && len(packet) > w.MaxLen {
		w.Lost++
		return false
	}
	return true
}

func (r *Relay) up() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := r.front.ReadFromUDP(buf)
		if err != nil {
			return
		}
		if c := r.peer(from, buf[:n]); c != nil {
			_, _ = c.Write(buf[:n])
		}
	}
}

// peer returns the socket that stands for a node; nil when the packet is lost.
func (r *Relay) peer(from *net.UDPAddr, packet []byte) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[from.String()] = true
	if r.closed || !r.ways.passes(packet) {
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

func (r *Relay) down(c *net.UDPConn, to *net.UDPAddr) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the gateway's port is closed just now: ICMP
		}
		r.mu.Lock()
		passes, late := r.ways.passes(buf[:n]), r.ways.Late
		r.mu.Unlock()
		switch {
		case !passes:
		case late > 0:
			packet := bytes.Clone(buf[:n])
			time.AfterFunc(late, func() { _, _ = r.front.WriteToUDP(packet, to) }) // of no effect once the relay is closed
		default:
			_, _ = r.front.WriteToUDP(buf[:n], to)
		}
	}
}
