package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/internal/store/storetest"
)

const benchNodes = 1000

func BenchmarkFence(b *testing.B) {
	m, generations := fleet(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			n := i % benchNodes
			if err := m.Fence(b.Context(), nodeNames[n], "gw1", generations[n]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkRegister(b *testing.B) {
	clock := storetest.NewClock()
	m := openMemory(b, clock, nil)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		clock.Advance(time.Second)
		if _, err := m.Register(b.Context(), store.Registration{Node: nodeNames[i%benchNodes], Gateway: "gw1", Instance: "i"}); err != nil {
			b.Fatal(err)
		}
	}
}

// The fence is on the path of every run.
func TestFenceAllocatesNothing(t *testing.T) {
	m, generations := fleet(t)
	ctx := t.Context()
	for want, generation := range map[error]uint64{nil: generations[0], store.ErrStale: 1} {
		got := testing.AllocsPerRun(100, func() {
			if err := m.Fence(ctx, nodeNames[0], "gw1", generation); err != want {
				t.Errorf("fence: %v, want %v", err, want)
			}
		})
		if got != 0 {
			t.Errorf("%v allocations", got)
		}
	}
}

// nodeNames are as long as a name may be.
var nodeNames = func() (names [benchNodes]string) {
	for i := range names {
		names[i] = fmt.Sprintf("node-%058d", i)
	}
	return names
}()

func fleet(t testing.TB) (*store.Memory, [benchNodes]uint64) {
	t.Helper()
	m := openMemory(t, storetest.NewClock(), nil)
	var generations [benchNodes]uint64
	for i, name := range nodeNames {
		g, err := m.Register(t.Context(), store.Registration{Node: name, Gateway: "gw1", Instance: "i"})
		must(t, err)
		must(t, m.Ready(t.Context(), name, "gw1", g))
		generations[i] = g
	}
	return m, generations
}
