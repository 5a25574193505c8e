package store

import (
	"context"
	"fmt"
	"time"
)

const (
	// maxTokens bounds the spent tokens that are remembered. Only a gateway can
	// mint one that gets here.
	maxTokens = 10_000
	// tokenGrace is how long beyond its end a token is remembered, so that a
	// clock that is set back does not make it good again.
	tokenGrace = time.Hour
)

// tokensDoc is the join tokens that were redeemed, by jti.
type tokensDoc struct {
	Tokens map[string]spentToken `json:"tokens"`
}

type spentToken struct {
	Used    int       `json:"used"`
	Expires time.Time `json:"expires"`
}

// RedeemToken implements [Tokens]. The use is counted in storage first: if that
// fails, none was given.
func (m *Memory) RedeemToken(ctx context.Context, jti string, uses int, expires time.Time) error {
	if err := checkToken(jti, uses); err != nil {
		return err
	}
	err := m.tokens.change(ctx, func(d *tokensDoc) (*tokensDoc, error) {
		now := m.now()
		if !now.Before(expires) {
			return nil, ErrTokenExpired
		}
		spent := d.Tokens[jti]
		if spent.Used >= uses {
			return nil, ErrTokenSpent
		}
		next := &tokensDoc{Tokens: make(map[string]spentToken, len(d.Tokens)+1)}
		for id, t := range d.Tokens {
			if now.Before(t.Expires.Add(tokenGrace)) {
				next.Tokens[id] = t
			}
		}
		next.Tokens[jti] = spentToken{Used: spent.Used + 1, Expires: expires.UTC()}
		if len(next.Tokens) > maxTokens {
			return nil, ErrFull
		}
		return next, nil
	})
	if err != nil {
		return fmt.Errorf("redeem join token %s: %w", jti, err)
	}
	return nil
}

func checkToken(jti string, uses int) error {
	if err := named("jti", jti); err != nil {
		return err
	}
	if uses < 1 || uses > maxUses {
		return fmt.Errorf("%w: %d uses, want 1 to %d", ErrInvalid, uses, maxUses)
	}
	return nil
}
