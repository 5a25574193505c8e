package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxAttempts bounds the attempts that are remembered, of all tokens.
const maxAttempts = 1000

// attempts are the names under which a use of a token may have been taken, as the server never said. The next call for the
// token goes by such a name first, which takes no second use.
type attempts struct {
	mu   sync.Mutex
	lost map[string][]string // guarded by mu: by jti
	n    int                 // guarded by mu
}

// take gives a lost attempt's name, or a new one.
func (a *attempts) take(jti string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := a.lost[jti]
	if len(names) == 0 {
		return newName()
	}
	a.n--
	if a.lost[jti] = names[1:]; len(names) == 1 {
		delete(a.lost, jti)
	}
	return names[0]
}

// lose remembers an attempt. When there are too many, tokens of old outages lose a use.
func (a *attempts) lose(jti, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost == nil || a.n >= maxAttempts {
		a.lost, a.n = map[string][]string{}, 0
	}
	a.lost[jti] = append(a.lost[jti], name)
	a.n++
}

// RedeemToken implements [Tokens]. The use of a call that has failed with ErrUnavailable goes to the next one for that
// token through this store.
func (r *Redis) RedeemToken(ctx context.Context, jti string, uses int, expires time.Time) error {
	if err := checkToken(jti, uses); err != nil {
		return err
	}
	attempt := r.attempts.take(jti)
	_, _, err := r.callDurably(ctx, false, opRedeem, jti, uses, max(expires.UnixMilli(), 0), tokenGrace.Milliseconds(), attempt)
	if errors.Is(err, ErrUnavailable) {
		r.attempts.lose(jti, attempt)
	}
	if err != nil {
		return fmt.Errorf("redeem join token %s: %w", jti, err)
	}
	return nil
}
