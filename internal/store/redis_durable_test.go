package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// A revocation that no replica has is one that a failover may forget, and says so.
func TestRedisWaitsForReplica(t *testing.T) {
	t.Parallel()
	primary := startRedis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(primary.addr, ":")
	revoke := func(gw *gateway, subject string) (took time.Duration, err error) {
		t.Helper()
		err = said(func(ctx context.Context) error {
			begin := time.Now()
			_, err := gw.r.Revoke(ctx, []string{subject}, 0)
			took = time.Since(begin)
			return err
		})
		return took, err
	}
	// durably insists, also when the machine is too busy for the replica.
	durably := func(gw *gateway, subject string) {
		t.Helper()
		gw.insist(func(context.Context) error {
			_, err := revoke(gw, subject)
			if errors.Is(err, store.ErrNotDurable) {
				return store.ErrUnavailable
			}
			return err
		})
	}
	alone := open(t, primary.url(), "fw", "gw1").start()
	if _, err := revoke(alone, "slot:a"); err != nil {
		t.Fatalf("without a replica there is nothing to wait for: %v", err)
	}
	replica := startRedis(t, "--replicaof", host+" "+port)
	eventually(t, 20*time.Second, "the replica follows", func() bool {
		primary.do("set", "a", "b")
		return primary.do("wait", 1, 100) == "1"
	})

	alone.beat(store.VerdictOK) // finds the replica
	gw := open(t, primary.url(), "fw", "gw2").start()
	durably(alone, "slot:b")
	durably(gw, "slot:b")
	replica.freeze()
	for range 2 { // the second time it changes nothing, and is no more durable for that
		took, err := revoke(gw, "slot:c")
		if !errors.Is(err, store.ErrNotDurable) {
			t.Errorf("revoke: %v", err)
		}
		if took < 150*time.Millisecond {
			t.Errorf("waited %v", took)
		}
	}
	// It holds, and what need not wait does not.
	if err := gw.asked("slot:c"); !errors.Is(err, store.ErrRevoked) {
		t.Errorf("issue: %v", err)
	}
	begin := time.Now()
	for range 5 {
		_, err := gw.registered("n2")
		must(t, err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("five registrations took %v", took)
	}
	replica.thaw()
	durably(gw, "slot:c")
	replica.kill()
	eventually(t, 20*time.Second, "the replica is gone", func() bool { return primary.info("replication", "connected_slaves") == "0" })
	gw.beat(store.VerdictOK)
	if _, err := revoke(gw, "slot:d"); err != nil {
		t.Fatalf("revoke: %v", err)
	}
}
