package store_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/internal/store/storetest"
)

var namespaces atomic.Int64

// namespace is a prefix that no other test has.
func namespace() string { return fmt.Sprintf("test-%d", namespaces.Add(1)) }

// patience is the budget of tests that are not about it: the machine may be busy.
const patience = 10 * time.Second

// openRedis opens an empty store on the test's clock, or, without one, on the server's.
func openRedis(t testing.TB, url string, clock *storetest.Clock) *store.Redis {
	t.Helper()
	var now func() time.Time
	if clock != nil {
		now = clock.Now
	}
	return openOptions(t, store.RedisOptions{URL: url, Prefix: namespace()}, patience, now)
}

func openOptions(t testing.TB, o store.RedisOptions, budget time.Duration, now func() time.Time) *store.Redis {
	t.Helper()
	r, err := store.NewRedisAt(o, budget, now)
	must(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	storetest.RunShared(t, func(t *testing.T, clock *storetest.Clock) store.Store { return openRedis(t, s.url(), clock) })
}
