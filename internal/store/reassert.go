package store

import (
	"fmt"
)

// check refuses what no store would take, before anything is changed.
func (a *Assertion) check() error {
	if err := checkGateway(a.Gateway, a.Epoch); err != nil {
		return err
	}
	if a.Revocations.MinPGN >= maxNumber || a.Publication.PGN >= maxNumber {
		return fmt.Errorf("%w: min_pgn %d, pgn %d", ErrInvalid, a.Revocations.MinPGN, a.Publication.PGN)
	}
	if len(a.Revocations.Subjects) > maxRevoked || len(a.Revocations.Drained) > maxDrained {
		return fmt.Errorf("%w: %d subjects, %d drained nodes", ErrInvalid, len(a.Revocations.Subjects), len(a.Revocations.Drained))
	}
	for _, s := range a.Revocations.Subjects {
		if err := named("subject", s); err != nil {
			return err
		}
	}
	for _, n := range a.Revocations.Drained {
		if err := named("node", n); err != nil {
			return err
		}
	}
	for _, c := range a.Sessions {
		if err := c.check(); err != nil {
			return err
		}
	}
	if a.Publication.PGN == 0 {
		return nil
	}
	if err := checkObjects(a.Objects); err != nil {
		return err
	}
	for name := range a.Objects {
		if r := a.Publication.Revisions[name]; r == 0 || r > a.Publication.PGN {
			return fmt.Errorf("%w: revision %d of object %s in projection %d", ErrInvalid, r, name, a.Publication.PGN)
		}
	}
	return nil
}

func (c *SessionClaim) check() error {
	if err := named("node", c.Node); err != nil {
		return err
	}
	if err := named("instance", c.Instance); err != nil {
		return err
	}
	switch c.State {
	case StateRegistered, StateReady, StateSuspect:
	default:
		return fmt.Errorf("%w: state %q", ErrInvalid, c.State)
	}
	if c.Generation == 0 || c.Generation >= maxNumber {
		return fmt.Errorf("%w: generation %d", ErrInvalid, c.Generation)
	}
	return nil
}
