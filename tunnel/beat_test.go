package tunnel

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
)

// A beat's echo says since when the gateway has read its clock: only of beats that were sent, and whose time is still known.
func TestSentAt(t *testing.T) {
	t.Parallel()
	b := beats{born: time.Now()}
	for _, echo := range []uint64{0, 1} {
		if _, ok := b.sentAt(echo); ok {
			t.Errorf("beat %d was not sent yet", echo)
		}
	}
	before := make([]time.Time, 3*beatsKept+1)
	for n := 1; n < len(before); n++ {
		before[n] = time.Now()
		if h := b.next(nil); h.Seq != uint64(n) || h.GatewayTimeNs != 0 {
			t.Fatalf("%v", h)
		}
	}
	last := uint64(len(before) - 1)
	for echo := last + 2; echo > 0; echo-- {
		at, ok := b.sentAt(echo)
		if known := echo <= last && echo > last-beatsKept; ok != known {
			t.Errorf("beat %d of %d: known %v", echo, last, ok)
		}
		if ok && (at.Before(before[echo]) || echo < last && at.After(before[echo+1])) {
			t.Errorf("beat %d: sent at %s", echo, at)
		}
	}
}

// The gateway's clock is read after what it echoes has come, however long that takes: a node takes it for no newer than it is.
func TestGatewayTimeIsReadAfterTheEcho(t *testing.T) {
	t.Parallel()
	b := beats{born: time.Now()}
	b.seen.Store(7)
	h := b.next(func() int64 { b.seen.Store(8); return 5 })
	if h.Echo != 7 || h.GatewayTimeNs != 5 {
		t.Errorf("echo %d, time %d", h.Echo, h.GatewayTimeNs)
	}
}

// What a node is told of the gateway's time holds: it was read between what it says and now.
func TestGatewayTimeIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type heard struct {
		ns    int64
		asked time.Time
		at    time.Time
	}
	got := make(chan heard, 16)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	start := time.Now()
	ns, err := Dial(ctx, DialConfig{
		Identity: identity(t, r.ca, pki.RoleNode, "n1"), Addr: r.ln.Addr().(*net.UDPAddr), Register: &Register{Node: "n1", Instance: newInstance()},
		Handler: handlerFunc(func(context.Context, *NodeRun) {}),
		Events:  Events{GatewayTime: func(ns int64, asked time.Time) { got <- heard{ns, asked, time.Now()} }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { ns.Close(CloseNone, ""); <-ns.Done() }()
	for range 2 {
		select {
		case h := <-got:
			if read := time.Unix(0, h.ns); h.asked.Before(start) || read.Before(h.asked.Add(-time.Millisecond)) || read.After(h.at.Add(time.Millisecond)) {
				t.Errorf("read at %s, asked for at %s, heard at %s", read, h.asked, h.at)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no beat")
		}
	}
}
