package store_test

import (
	"math/rand/v2"
	"testing"

	"github.com/fairway-edge/fairway/internal/store/storetest"
)

// operations are inputs for Operate.
var operations = [][]byte{
	{0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 2, 0, 1, 0, 0, 0, 2, 1, 2, 0, 0, 0},
	{0, 1, 1, 1, 5, 200, 0, 0, 0, 1, 1, 1, 4, 1, 1, 1, 7, 1, 0, 9, 6, 1, 0, 0, 7, 1, 1, 0, 0, 1, 1, 1},
	{8, 1, 0, 0, 8, 1, 0, 0, 9, 1, 0, 0, 3, 1, 1, 1, 0, 0xf0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0},
	{0, 0, 0, 0, 2, 0, 0, 0, 5, 24, 0, 0, 10, 0, 0, 1, 5, 24, 0, 0, 10, 0, 0, 8, 12, 0, 0, 1, 11, 0, 0, 0, 12, 0, 0, 1},
	{0, 0, 0, 0, 0, 0, 1, 1, 12, 0, 0, 1, 12, 0, 1, 1, 7, 0, 0, 0, 7, 0, 1, 0, 12, 0, 1, 1, 10, 0, 1, 0},
}

func FuzzStoreOps(f *testing.F) {
	for _, data := range operations {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<10 {
			return // the model searches its whole log at every step
		}
		clock := storetest.NewClock()
		storetest.Operate(t, openMemory(t, clock, nil), clock, false, data)
	})
}

// FuzzRedisOps is FuzzStoreOps over Redis, where each operation is several round trips.
func FuzzRedisOps(f *testing.F) {
	for _, data := range operations {
		f.Add(data)
	}
	s := startRedis(f)
	r := openRedis(f, s.url(), storetest.NewClock())
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<8 {
			return
		}
		clock := storetest.NewClock()
		storetest.Operate(t, r.In(namespace(), clock.Now), clock, true, data)
	})
}

// Both stores against the model, at random. A failure prints the seed.
func TestModelAtRandom(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := openRedis(t, s.url(), storetest.NewClock())
	seed := rand.Uint64()
	for i := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, i))
		data := make([]byte, 4*200)
		for j := range data {
			data[j] = byte(random.Uint32())
		}
		t.Run("", func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Logf("seed %d, %d", seed, i)
				}
			}()
			clock := storetest.NewClock()
			storetest.Operate(t, openMemory(t, clock, nil), clock, false, data)
			clock = storetest.NewClock()
			storetest.Operate(t, r.In(namespace(), clock.Now), clock, true, data)
		})
	}
}
