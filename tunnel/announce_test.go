package tunnel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// dialWith dials with events, and is ready.
func (r *rig) dialWith(name string, first *RecipientKey, e Events) (*NodeSession, *Session) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ns, err := Dial(ctx, DialConfig{
		Identity: identity(r.t, r.ca, pki.RoleNode, name), Addr: r.ln.Addr().(*net.UDPAddr), Events: e,
		Register: &Register{Node: name, Instance: newInstance(), RecipientKey: first},
		Handler:  handlerFunc(func(_ context.Context, run *NodeRun) { _ = run.Finish(&Terminal{Outcome: Canceled}) }),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { ns.Close(CloseNone, ""); <-ns.Done() })
	if err := ns.Ready(ctx, nil); err != nil {
		r.t.Fatal(err)
	}
	return ns, <-r.reg.ready
}

// What leases depend on arrives in order, and the session is settled once the node has said so.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	var got []string
	note := func(format string, args ...any) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf(format, args...))
		return nil
	}
	r.reg.mu.Lock()
	r.reg.registered = func(s *Session) { _ = s.AnnounceKeys([]*IssuerKey{{Thumbprint: "a"}}) }
	r.reg.mu.Unlock()
	_, s := r.dialWith("n1", &RecipientKey{Seq: 1, PublicKey: key(1)}, Events{
		Keys:       func(k []*IssuerKey) error { return note("keys %d %s", len(k), k[0].Thumbprint) },
		Projection: func(p *Projection) error { return note("projection %d", p.Pgn) },
		Revoke:     func(r *Revoke) error { return note("revoke %d %v %d %v", r.Seq, r.Objects, r.MinPgn, r.Reset_) },
	})
	if k := s.Recipient(); k == nil || k.Seq != 1 || !bytes.Equal(k.PublicKey, key(1)) {
		t.Errorf("recipient %v", k)
	}
	for _, err := range []error{
		s.AnnounceProjection(&Projection{Pgn: 7}), s.AnnounceRevoked([]string{"slot:s"}, 7, true), s.AnnounceRevoked(nil, 8, false), s.AnnounceProjection(&Projection{Pgn: 9}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Settle(ctx); err != nil || s.Unsettled() != 0 {
		t.Fatalf("%v, %d unsettled", err, s.Unsettled())
	}
	mu.Lock()
	defer mu.Unlock()
	want := []string{"keys 1 a", "projection 7", "revoke 1 [slot:s] 7 true", "revoke 2 [] 8 false", "projection 9"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A node that is slow to acknowledge leaves its session unsettled, and one that never does is given up.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	block := make(chan struct{})
	_, s := r.dialWith("n1", &RecipientKey{Seq: 1, PublicKey: key(1)}, Events{Projection: func(*Projection) error { <-block; return nil }})
	if err := s.AnnounceProjection(&Projection{Pgn: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Settle(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	var err error
	for i := uint64(2); err == nil && i < 2*maxDue; i++ {
		err = s.AnnounceProjection(&Projection{Pgn: i})
	}
	if !errors.Is(err, ErrUnsettled) {
		t.Errorf("%v", err)
	}
	close(block)
	<-s.Done()
	if err := s.Settle(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("after the end: %v", err)
	}
}

// An event that the node refuses ends its session: it must not serve under what it does not take.
func TestAnnouncementRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ns, s := r.dialWith("n1", nil, Events{Keys: func([]*IssuerKey) error { return errors.New("not pinned") }})
	if err := s.AnnounceKeys(nil); err != nil {
		t.Fatal(err)
	}
	<-ns.Done()
	<-s.Done()
}

// Attack 37, of a session: keys that roll back, repeat, are malformed, or are too long close it; so do acknowledgements of nothing.
func TestAttack37SessionKeys(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		t wire.Type
		m proto.Message
	}{
		"seq back":            {wire.TypeRecipientKey, &RecipientKey{Seq: 4, PublicKey: key(2)}},
		"seq again":           {wire.TypeRecipientKey, &RecipientKey{Seq: 5, PublicKey: key(2)}},
		"the same key":        {wire.TypeRecipientKey, &RecipientKey{Seq: 6, PublicKey: key(1)}},
		"no key":              {wire.TypeRecipientKey, &RecipientKey{Seq: 6}},
		"long":                {wire.TypeRecipientKey, &RecipientKey{Seq: 6, PublicKey: make([]byte, maxRecipientKey+1)}},
		"short":               {wire.TypeRecipientKey, &RecipientKey{Seq: 6, PublicKey: key(1)[:31]}},
		"unasked projection":  {wire.TypeProjectionAck, &wire.ProjectionAck{Pgn: 1}},
		"unasked revocation":  {wire.TypeRevokeAck, &wire.RevokeAck{Seq: 1}},
		"unasked issuer keys": {wire.TypeIssuerKeysAck, &wire.IssuerKeysAck{Seq: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ns, s := r.dialWith("n1", &RecipientKey{Seq: 5, PublicKey: key(1)}, Events{})
			if err := ns.ctl.send(tt.t, tt.m); err != nil {
				t.Fatal(err)
			}
			select {
			case <-s.Done():
			case <-time.After(5 * time.Second):
				t.Fatal("the session goes on")
			}
			if k := s.Recipient(); k.Seq != 5 {
				t.Errorf("recipient %d", k.Seq)
			}
		})
	}
	r := newRig(t)
	ns, s := r.dialWith("n1", &RecipientKey{Seq: 5, PublicKey: key(1)}, Events{})
	if err := ns.AnnounceRecipient(&RecipientKey{Seq: 6, PublicKey: key(2)}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); s.Recipient().Seq != 6; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the next key was not taken")
		}
	}
}

// A leased run's head is hashed the same at both ends, and a body that goes out with it arrives whole.
func TestLeasedRunAndWholeBody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type seen struct {
		head  [sha256.Size]byte
		lease string
		body  int
	}
	got := make(chan seen, 1)
	_, s := r.node("n1", func(_ context.Context, run *NodeRun) {
		n, buf := 0, make([]byte, 512)
		for {
			k, err := run.Read(buf)
			n += k
			if err != nil {
				break
			}
		}
		got <- seen{run.Head, string(run.Lease), n}
		_ = run.Accept()
		_ = run.Finish(&Terminal{Outcome: Failed, Code: CodeBadProvider})
	})
	for _, size := range []int{0, 1, wholeBody, wholeBody + 1} {
		body := make([]byte, size)
		var head [sha256.Size]byte
		run, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: fmt.Sprint("r", size), Generation: s.Generation(), Body: BodyLength, BodyLength: uint64(size)}, body,
			func(h [sha256.Size]byte) ([]byte, error) { head = h; return []byte("token"), nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		if whole := size <= wholeBody; run.Whole() != whole {
			t.Fatalf("%d bytes: whole is %v", size, run.Whole())
		} else if !whole && (run.WriteBody(body) != nil || run.EndBody() != nil) {
			t.Fatal("the body could not be written")
		}
		for run.Next().Kind != EventTerminal {
		}
		run.Close()
		if g := <-got; g.head != head || g.lease != "token" || g.body != size {
			t.Errorf("%d bytes: %+v, head %x", size, g, head)
		}
	}
	failed := errors.New("no")
	if _, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: "x", Generation: s.Generation()}, nil, func([sha256.Size]byte) ([]byte, error) { return nil, failed }, nil); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	if _, err := s.Lane().OpenRun(t.Context(), &RunOpen{Run: "y", Generation: s.Generation()}, nil, func([sha256.Size]byte) ([]byte, error) { return make([]byte, wire.MaxLease+1), nil }, nil); err == nil {
		t.Error("a lease over its bound was sent")
	}
}
