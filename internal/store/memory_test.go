package store_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/internal/store/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(t *testing.T, clock *storetest.Clock) store.Store { return openMemory(t, clock, nil) })
	})
	t.Run("with storage", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(t *testing.T, clock *storetest.Clock) store.Store { return openMemory(t, clock, newDisk()) })
	})
}

func openMemory(t testing.TB, clock *storetest.Clock, p store.Persist) *store.Memory {
	t.Helper()
	m, err := store.NewMemory(t.Context(), store.Options{Now: clock.Now, Persist: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A restart forgets sessions and nothing else.
func TestMemoryRestart(t *testing.T) {
	t.Parallel()
	clock, disk := storetest.NewClock(), newDisk()
	end := clock.Now().Add(time.Hour)
	one := openMemory(t, clock, disk)
	g, err := one.Register(t.Context(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i"})
	must(t, err)
	must(t, one.Drain(t.Context(), "n1", true))
	must(t, one.Drain(t.Context(), "n2", true))
	must(t, one.Drain(t.Context(), "n2", false))
	must(t, one.RedeemToken(t.Context(), "a", 1, end))
	must(t, one.RedeemToken(t.Context(), "b", 2, end))
	_, err = one.Revoke(t.Context(), []string{"slot:s", "node:bad"}, 77)
	must(t, err)

	clock.Advance(time.Second)
	two := openMemory(t, clock, disk)
	if r, err := two.Revocations(t.Context()); err != nil || !slices.Equal(r.Subjects, []string{"node:bad", "slot:s"}) || r.MinPGN != 77 {
		t.Errorf("revocations %+v, %v", r, err)
	}
	if _, err := two.Register(t.Context(), store.Registration{Node: "bad", Gateway: "gw1", Instance: "i"}); !errors.Is(err, store.ErrDisabled) {
		t.Errorf("disabled node: %v", err)
	}
	if is, _ := two.Draining(t.Context(), "n1"); !is {
		t.Error("drain forgotten")
	}
	if is, _ := two.Draining(t.Context(), "n2"); is {
		t.Error("undrain forgotten")
	}
	if err := two.RedeemToken(t.Context(), "a", 1, end); !errors.Is(err, store.ErrTokenSpent) {
		t.Errorf("spent token: %v", err)
	}
	must(t, two.RedeemToken(t.Context(), "b", 2, end))
	if err := two.RedeemToken(t.Context(), "b", 2, end); !errors.Is(err, store.ErrTokenSpent) {
		t.Errorf("spent token: %v", err)
	}
	if err := two.Fence(t.Context(), "n1", "gw1", g); err != store.ErrStale {
		t.Errorf("session of the process before: %v", err)
	}
	next, err := two.Register(t.Context(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i"})
	if err != nil || next <= g {
		t.Errorf("generation %d after %d: %v", next, g, err)
	}
}

// After a restart with a clock that was set back, the node's watermark and
// min_pgn keep the numbers rising.
func TestMemoryRestartClockBackwards(t *testing.T) {
	t.Parallel()
	clock, disk := storetest.NewClock(), newDisk()
	one := openMemory(t, clock, disk)
	g, err := one.Register(t.Context(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i"})
	must(t, err)
	objects := map[string]string{"slot:x": "a"}
	was, err := one.Publish(t.Context(), objects)
	must(t, err)
	_, err = one.Revoke(t.Context(), nil, was.PGN+1)
	must(t, err)
	clock.Advance(-time.Hour)
	two := openMemory(t, clock, disk)
	next, err := two.Register(t.Context(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Watermark: g})
	if err != nil || next != g+1 {
		t.Errorf("generation %d after %d: %v", next, g, err)
	}
	if p, err := two.Publish(t.Context(), objects); err != nil || p.PGN != was.PGN+1 || p.Revisions["slot:x"] != was.PGN {
		t.Errorf("%+v after %+v: %v", p, was, err)
	}
}

func TestMemoryStorageFails(t *testing.T) {
	t.Parallel()
	clock, disk := storetest.NewClock(), newDisk()
	m := openMemory(t, clock, disk)
	end := clock.Now().Add(time.Hour)
	must(t, m.Drain(t.Context(), "n2", true))
	disk.fail(errFull)
	if err := m.RedeemToken(t.Context(), "a", 1, end); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, errFull) {
		t.Errorf("redeem: %v", err)
	}
	if err := m.Drain(t.Context(), "n1", true); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("drain: %v", err)
	}
	if is, _ := m.Draining(t.Context(), "n1"); is {
		t.Error("a drain that was not written holds")
	}
	// A revocation holds at once, and says that it may be forgotten.
	least, err := m.Revoke(t.Context(), []string{"node:n1"}, 9)
	if !errors.Is(err, store.ErrNotDurable) || !errors.Is(err, errFull) || least != 9 {
		t.Errorf("revoke: %d, %v", least, err)
	}
	if r, _ := m.Node(t.Context(), "n1"); !r.Disabled {
		t.Error("the revocation does not hold")
	}
	if err := m.Unrevoke(t.Context(), []string{"node:n1"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("unrevoke: %v", err)
	}
	if r, _ := m.Node(t.Context(), "n1"); !r.Disabled {
		t.Error("an unrevocation that was not written holds")
	}
	disk.fail(nil)
	must(t, m.RedeemToken(t.Context(), "a", 1, end)) // no use was taken
	if _, err := m.Revoke(t.Context(), []string{"node:n1"}, 9); err != nil {
		t.Fatal(err) // nothing new, but now it is written
	}
	if r, _ := openMemory(t, clock, disk).Node(t.Context(), "n1"); !r.Disabled {
		t.Error("the revocation was never written")
	}
	saves := disk.saves()
	if _, err := m.Revoke(t.Context(), []string{"node:n1"}, 9); err != nil || disk.saves() != saves {
		t.Errorf("a repeated revocation was written again: %v", err)
	}
}

// What storage has but cannot be read stops the store from opening.
func TestMemoryOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"revocations.json", "drains.json", "tokens.json"} {
		for _, value := range []string{"", "{", "[]", `{"version":2,"data":{}}`, `{}`, `{"version":1,"data":7}`} {
			disk := newDisk()
			must(t, disk.Save(t.Context(), key, []byte(value)))
			if _, err := store.NewMemory(t.Context(), store.Options{Persist: disk}); err == nil {
				t.Errorf("opened with %s %q", key, value)
			}
		}
		disk := newDisk()
		disk.failLoad(key, fs.ErrPermission)
		if _, err := store.NewMemory(t.Context(), store.Options{Persist: disk}); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s cannot be read: %v", key, err)
		}
	}
}

func TestMemoryBounds(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	disk := newDisk()
	m := openMemory(t, clock, disk)
	for i := range 10 {
		batch := make([]string, 1000)
		for j := range batch {
			batch[j] = fmt.Sprintf("lease:%d-%d", i, j)
		}
		_, err := m.Revoke(t.Context(), batch, 0)
		must(t, err)
	}
	if _, err := m.Revoke(t.Context(), []string{"slot:one-more"}, 5); !errors.Is(err, store.ErrFull) {
		t.Fatalf("revoked set has no bound: %v", err)
	}
	must(t, m.Unrevoke(t.Context(), []string{"lease:0-0"}))
	_, err := m.Revoke(t.Context(), []string{"slot:one-more"}, 0)
	must(t, err)
	// Tokens that have ended make room.
	for i := range 50 {
		must(t, m.RedeemToken(t.Context(), fmt.Sprint("t", i), 1, clock.Now().Add(time.Minute)))
	}
	before := disk.size("tokens.json")
	clock.Advance(2 * time.Hour)
	must(t, m.RedeemToken(t.Context(), "last", 1, clock.Now().Add(time.Minute)))
	if after := disk.size("tokens.json"); after*10 > before {
		t.Fatalf("ended tokens stay: %d bytes, then %d", before, after)
	}
}
