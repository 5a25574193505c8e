package store

import (
	"fmt"
	"time"
)

const (
	maxNumber = 1 << 53 // exclusive: doubles, and so Lua and JSON, are exact below
	maxName   = 256     // bytes in a node, gateway, instance, digest, jti or subject
	maxBatch  = 1000    // subjects in one call
	maxUses   = 1000    // of a join token
)

// allocate is the rule for every number; see the package comment.
func allocate(previous uint64, now time.Time, floor uint64) (uint64, error) {
	n := max(previous+1, floor, millis(now))
	if n >= maxNumber {
		return 0, ErrExhausted
	}
	return n, nil
}

// millis is the store's clock as a number. A clock before 1970 counts as 0.
func millis(t time.Time) uint64 { return uint64(max(t.UnixMilli(), 0)) }

// plausible tells whether a node can have been given watermark. Beyond a day
// ahead of the clock it can only if we gave it ourselves, before the clock was
// set back.
func plausible(watermark, previous uint64, now time.Time) bool {
	return watermark < maxNumber-1 && (watermark <= previous || watermark <= millis(now.Add(MaxWatermark)))
}

// named refuses names that no record should be kept under.
func named(what, name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%w: %s of %d bytes, want 1 to %d", ErrInvalid, what, len(name), maxName)
	}
	return nil
}

func checkGateway(gateway string, epoch uint64) error {
	if err := named("gateway", gateway); err != nil {
		return err
	}
	if epoch >= maxNumber {
		return fmt.Errorf("%w: epoch %d", ErrInvalid, epoch)
	}
	return nil
}

func checkRegistration(r Registration) error {
	if err := named("node", r.Node); err != nil {
		return err
	}
	if err := named("instance", r.Instance); err != nil {
		return err
	}
	return checkGateway(r.Gateway, r.Epoch)
}
