package nodeclient

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// Leases for the key before are good as long as one can be under way, and not longer.
func TestRecipientKeyTurns(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	first := b.s.Recipient()
	turn := func(after time.Duration) {
		t.Helper()
		if err := b.v.turn(b.v.since.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	// old leases are sealed to the first key, for runs that are still to come.
	old := func(name string) func() result {
		o := &tunnel.RunOpen{
			Run: name, Attempt: 1, Generation: b.s.Generation(), Kind: tunnel.KindTunnel, Adapter: "ollama", Target: "ollama",
			Method: "POST", Path: []byte("/api/chat"), Model: "tiny", Credit: true, Route: "default", Profile: "p", Projection: pgn, Body: tunnel.BodyLength, Leased: true,
		}
		scope := l.scope(b.s, o)
		scope.Request = head(t, o)
		issued, err := l.issuer.Issue(&scope, first.PublicKey, []byte(credential))
		if err != nil {
			t.Fatal(err)
		}
		return func() result {
			return collect(l.lend(b.s, lent{open: func(r *tunnel.RunOpen) { r.Run = name }, token: func([]byte) []byte { return issued.Token }}))
		}
	}
	one, two, three := old("run-old-1"), old("run-old-2"), old("run-old-3")
	turn(recipientLife - 1)
	if k := b.v.key(); k.Seq != first.Seq {
		t.Errorf("key %d before its time", k.Seq)
	}
	turn(recipientLife)
	eventually(t, 5*time.Second, "the next key", func() bool { return b.s.Recipient().Seq == first.Seq+1 })
	if k := b.s.Recipient(); string(k.PublicKey) == string(first.PublicKey) || time.Duration(k.NotAfterMs)*time.Millisecond != recipientLife+recipientAfter {
		t.Errorf("%v", k)
	}
	paid(t, "the key before", p, one(), 1)
	paid(t, "the new key", p, collect(l.lend(b.s, lent{})), 2)
	turn(recipientAfter)
	paid(t, "the key before, at its last moment", p, two(), 3)
	turn(recipientAfter + 1)
	p.asked.Store(0)
	refused(t, "the key before, too late", p, three(), lease.CodeWrongRecipient)
	p.paid.Store(0)
	paid(t, "the new key", p, collect(l.lend(b.s, lent{})), 1)
	if recipientAfter < lease.TTL+maxDoubt {
		t.Error("a key is dropped before its leases")
	}
}

// Every key turns under load, and no run notices.
func TestRotationUnderLoadOnANode(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, func(v *vault) { v.life = 50 * time.Millisecond })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	runs, failed := 0, map[string]int{}
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				res := collect(l.lend(b.s, lent{}))
				mu.Lock()
				if runs++; res.terminal.GetOutcome() != tunnel.Completed {
					failed[fmt.Sprint(res.refused, res.terminal)]++
				}
				mu.Unlock()
			}
		})
	}
	if err := l.issuer.Rotate(); err != nil { // the new one signs later; it is announced meanwhile
		t.Fatal(err)
	}
	if err := b.s.AnnounceKeys(l.announced()[1:]); err != nil {
		t.Fatal(err)
	}
	for range 15 {
		time.Sleep(60 * time.Millisecond) // load
		if err := b.v.turn(time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if len(failed) > 0 || runs < 20 {
		t.Errorf("of %d: %v", runs, failed)
	}
	if seq := b.v.key().Seq; seq < 10 {
		t.Errorf("only %d keys", seq)
	}
	settle(t, b.s)
}

// What a gateway may announce is bounded, and out of order it ends the session: a node does not serve under what it does not take.
func TestVaultBounds(t *testing.T) {
	t.Parallel()
	c, err := New(newLender(t).purseConfig(newPurse()))
	if err != nil {
		t.Fatal(err)
	}
	vault := func() *vault {
		v, err := c.newVault(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	v := vault()
	for _, p := range []*tunnel.Projection{
		{Pgn: 5, Profiles: make([]*tunnel.Profile, maxProfiles+1)}, {Pgn: 5, Routes: make([]*tunnel.Route, maxProfiles+1)},
	} {
		if v.publish(p) == nil {
			t.Errorf("%d profiles and %d routes are taken", len(p.Profiles), len(p.Routes))
		}
	}
	if err := v.publish(published(5)); err != nil {
		t.Error(err)
	}
	for _, n := range []uint64{0, 4, 5} {
		if v.publish(published(n)) == nil {
			t.Errorf("projection %d after 5", n)
		}
	}
	for n := uint64(6); n < 100; n++ {
		if err := v.publish(published(n)); err != nil {
			t.Error(err)
		}
	}
	if n := len(v.projections); n != maxProjections || v.projections[0].Pgn != 99-maxProjections+1 {
		t.Errorf("%d projections, from %d", n, v.projections[0].Pgn)
	}
	subjects := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = lease.SlotSubject(fmt.Sprint("s", i))
		}
		return out
	}
	v = vault()
	if err := v.revoke(&tunnel.Revoke{Objects: subjects(maxRevoked)}); err != nil {
		t.Error(err)
	}
	if v.revoke(&tunnel.Revoke{Objects: subjects(1)}) == nil {
		t.Error("one more than is remembered")
	}
	if !v.view.Revoked(lease.SlotSubject("s0")) {
		t.Error("what was revoked is no more")
	}
	if err := v.revoke(&tunnel.Revoke{Objects: subjects(1), Reset_: true}); err != nil {
		t.Errorf("anew: %v", err)
	}
	if v.view.Revoked(lease.SlotSubject("s1")) || !v.view.Revoked(lease.SlotSubject("s0")) {
		t.Error("not what was said anew")
	}

	l := newLender(t)
	for name, announce := range map[string]func(*tunnel.Session) error{
		"a projection again": func(s *tunnel.Session) error { return s.AnnounceProjection(published(pgn)) },
		"three keys":         func(s *tunnel.Session) error { return s.AnnounceKeys(make([]*tunnel.IssuerKey, 3)) },
		"another's name": func(s *tunnel.Session) error {
			keys := l.announced()
			keys[0].Thumbprint, keys[1].Thumbprint = keys[1].Thumbprint, keys[0].Thumbprint
			return s.AnnounceKeys(keys)
		},
		"a short key": func(s *tunnel.Session) error {
			return s.AnnounceKeys([]*tunnel.IssuerKey{{Thumbprint: "x", PublicKey: []byte("short")}})
		},
	} {
		b := l.borrow(newPurse(), nil)
		if err := announce(b.s); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.node.Done():
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the session goes on", name)
		}
	}
}
