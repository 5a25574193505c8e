package tunnel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/fairway-edge/fairway/tunnel/wire"
)

// maxDue bounds the announcements that a node has not acknowledged; one that lets more gather is given up.
const maxDue = 64

// announcements are what a gateway has told a node that leases depend on: issuer keys, projections, revocations. Each is acknowledged, in the order in which it
// was sent, and until all are the session is unsettled.
type announcements struct {
	mu      sync.Mutex
	due     []announced   // guarded by mu; sent, not acknowledged, oldest first
	keys    uint64        // guarded by mu; last IssuerKeys
	revoked uint64        // guarded by mu; last Revoke
	settled chan struct{} // guarded by mu; closed when due becomes empty; nil while nobody waits
}

// announced is what acknowledges an announcement.
type announced struct {
	ack    wire.Type
	number uint64
}

// ErrUnsettled says that a node has not acknowledged what it was told, in time.
var ErrUnsettled = errors.New("the node has not acknowledged what leases depend on")

// AnnounceKeys replaces the issuer keys from which the node takes leases; at most two.
func (s *Session) AnnounceKeys(keys []*IssuerKey) error {
	return s.announce(wire.TypeIssuerKeys, func(a *announcements) (proto.Message, announced) {
		a.keys++
		return &wire.IssuerKeys{Seq: a.keys, Keys: keys}, announced{wire.TypeIssuerKeysAck, a.keys}
	})
}

// AnnounceProjection tells the node what is published. The numbers of one session must rise.
func (s *Session) AnnounceProjection(p *Projection) error {
	return s.announce(wire.TypeProjection, func(*announcements) (proto.Message, announced) {
		return p, announced{wire.TypeProjectionAck, p.Pgn}
	})
}

// AnnounceRevoked adds to what the node knows to be revoked, or with reset replaces it. At most a few thousand subjects: a frame's bound.
func (s *Session) AnnounceRevoked(subjects []string, minPGN uint64, reset bool) error {
	return s.announce(wire.TypeRevoke, func(a *announcements) (proto.Message, announced) {
		a.revoked++
		return &Revoke{Seq: a.revoked, Objects: subjects, MinPgn: minPGN, Reset_: reset}, announced{wire.TypeRevokeAck, a.revoked}
	})
}

func (s *Session) announce(t wire.Type, next func(*announcements) (proto.Message, announced)) error {
	a := &s.told
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.due) == maxDue {
		go s.Close(wire.CloseSilent, "the node acknowledges nothing")
		return ErrUnsettled
	}
	m, ack := next(a)
	a.due = append(a.due, ack) // before the answer can come
	return s.ctl.send(t, m)
}

// acknowledged takes in an answer, which must be to the oldest announcement.
func (s *Session) acknowledged(t wire.Type, number uint64) error {
	a := &s.told
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.due) == 0 || a.due[0] != (announced{t, number}) {
		return fmt.Errorf("%w: acknowledgement 0x%x of %d, which is not due", errOrder, uint64(t), number)
	}
	a.due = a.due[1:]
	if len(a.due) == 0 && a.settled != nil {
		close(a.settled)
		a.settled = nil
	}
	return nil
}

// Unsettled tells how many announcements the node has not acknowledged.
func (s *Session) Unsettled() int {
	s.told.mu.Lock()
	defer s.told.mu.Unlock()
	return len(s.told.due)
}

// Settle waits until the node has acknowledged everything that it was told. Its errors are ErrGone and ctx's.
func (s *Session) Settle(ctx context.Context) error {
	for {
		s.told.mu.Lock()
		if len(s.told.due) == 0 {
			s.told.mu.Unlock()
			return nil
		}
		if s.told.settled == nil {
			s.told.settled = make(chan struct{})
		}
		settled := s.told.settled
		s.told.mu.Unlock()
		select {
		case <-settled:
		case <-s.done:
			return ErrGone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Recipient returns the key that leases of this session are sealed for now; nil when the node has none.
func (s *Session) Recipient() *RecipientKey { return s.recipient.Load() }

// maxRecipientKey is the longest public key that a node may announce, in bytes: X-Wing's, the longest that HPKE has in use, rounded up.
const maxRecipientKey = 2 << 10

// recipientKey takes in a node's next key. It replaces the one before, and leases under that one stay good for as long as the node keeps it.
func (s *Session) recipientKey(p []byte) error {
	k := new(RecipientKey)
	if err := wire.Unmarshal(p, k); err != nil {
		return err
	}
	return s.takeRecipient(k)
}

func (s *Session) takeRecipient(k *RecipientKey) error {
	old := s.recipient.Load()
	switch {
	case len(k.PublicKey) > maxRecipientKey:
		return fmt.Errorf("%w: recipient key of %d bytes", wire.ErrFrame, len(k.PublicKey))
	case old != nil && k.Seq <= old.Seq:
		return fmt.Errorf("%w: recipient key %d after %d", errOrder, k.Seq, old.Seq)
	case old != nil && string(old.PublicKey) == string(k.PublicKey):
		return fmt.Errorf("%w: recipient key %d is the one before", errOrder, k.Seq)
	}
	if err := s.st.Registrar.Recipient(s, k); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrFrame, err)
	}
	s.recipient.Store(k)
	return nil
}

// acks reads the number that an acknowledgement is of.
func acks(t wire.Type, p []byte) (uint64, error) {
	switch t {
	case wire.TypeProjectionAck:
		var m wire.ProjectionAck
		err := wire.Unmarshal(p, &m)
		return m.Pgn, err
	case wire.TypeRevokeAck:
		var m wire.RevokeAck
		err := wire.Unmarshal(p, &m)
		return m.Seq, err
	default:
		var m wire.IssuerKeysAck
		err := wire.Unmarshal(p, &m)
		return m.Seq, err
	}
}
