package store_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/internal/store/storetest"
)

// watched is a primary with two replicas and three Sentinels.
type watched struct {
	t         testing.TB
	servers   []*server // the first is the primary at first
	sentinels []*server
}

func startWatched(t testing.TB) *watched {
	t.Helper()
	w := &watched{t: t}
	primary := startRedis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(primary.addr)
	w.servers = append(w.servers, primary)
	for range 2 {
		w.servers = append(w.servers, startRedis(t, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0"))
	}
	for range 3 {
		conf := fmt.Sprintf("sentinel monitor main %s %s 2\nsentinel down-after-milliseconds main 60000\n"+
			"sentinel failover-timeout main 2000\nsentinel parallel-syncs main 2\n", host, port)
		w.sentinels = append(w.sentinels, startSentinel(t, conf))
	}
	eventually(t, 30*time.Second, "the Sentinels know each other and the replicas", func() bool {
		for _, s := range w.sentinels {
			if master := s.do("sentinel", "master", "main"); !strings.Contains(master, "num-slaves 2") && !strings.Contains(master, "num-slaves:2") ||
				!strings.Contains(master, "num-other-sentinels 2") && !strings.Contains(master, "num-other-sentinels:2") {
				return false
			}
		}
		return true
	})
	w.synced(primary, 2)
	return w
}

// synced waits until replicas have what the primary has.
func (w *watched) synced(primary *server, replicas int) {
	w.t.Helper()
	eventually(w.t, 30*time.Second, "replicas follow", func() bool {
		primary.do("set", "a", "b")
		return primary.do("wait", replicas, 100) == fmt.Sprint(replicas)
	})
}

func (w *watched) url() string {
	addrs := make([]string, len(w.sentinels))
	for i, s := range w.sentinels {
		addrs[i] = s.addr
	}
	return "redis-sentinel://" + strings.Join(addrs, ",") + "/main"
}

// patient sets how long a server may be silent: a busy machine is not a failover.
func (w *watched) patient(ms int) {
	for _, s := range w.sentinels {
		s.do("sentinel", "set", "main", "down-after-milliseconds", ms)
	}
}

// primary is who the Sentinels say it is, among those that live.
func (w *watched) primary(live ...*server) *server {
	w.t.Helper()
	var found *server
	eventually(w.t, 30*time.Second, "there is a primary", func() bool {
		c := redis.NewSentinelClient(&redis.Options{Addr: w.sentinels[0].addr})
		defer c.Close()
		addr, err := c.GetMasterAddrByName(context.Background(), "main").Result()
		if err != nil {
			return false
		}
		for _, s := range live {
			if s.addr == net.JoinHostPort(addr[0], addr[1]) && s.info("replication", "role") == "master" {
				found = s
			}
		}
		return found != nil
	})
	return found
}

// live is a gateway that does what gateways do: it beats, and tells a store that may have lost something what it knows.
type live struct {
	*gateway

	mu   sync.Mutex
	view store.Revocations // guarded by mu: as read last
	inc  string            // guarded by mu
}

func (l *live) once(ctx context.Context) error {
	b, err := l.r.Beat(ctx, l.name, l.e, []store.Held{{Node: "n1", Generation: l.g}})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inc != "" && l.inc != b.Incarnation || b.Verdicts[0] == store.VerdictMissing {
		b, err = l.r.Reassert(ctx, store.Assertion{
			Gateway: l.name, Epoch: l.e, Revocations: l.view,
			Sessions: []store.SessionClaim{{Node: "n1", Instance: "i", Generation: l.g, State: store.StateReady}},
		})
		if err != nil {
			return err
		}
	}
	l.inc = b.Incarnation
	if b.Revocations == l.view.Version {
		return nil
	}
	l.view, err = l.r.Revocations(ctx)
	return err
}

// The primary dies with writes that no replica has: registrations, and a revocation that was answered as not durable. No
// generation comes twice, and from the first call after it nothing revoked is issued.
func TestRedisFailover(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	suite := func(t *testing.T) {
		storetest.RunShared(t, func(t *testing.T, clock *storetest.Clock) store.Store { return openRedis(t, w.url(), clock) })
	}
	t.Run("suite before", suite)

	gateways := []*live{{gateway: open(t, w.url(), "fw", "gw1").start()}, {gateway: open(t, w.url(), "fw", "gw2").start()}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	changes := gateways[1].r.Watch(ctx)
	for _, gw := range gateways {
		gw.insist(gw.once)
	}

	for _, s := range w.servers[1:] {
		s.freeze() // what is written now no replica gets
	}
	gw := gateways[0]
	if err := gw.revoked(0, "slot:bad", "node:evil"); !errors.Is(err, store.ErrNotDurable) {
		t.Fatalf("revoke: %v", err)
	}
	eventually(t, 10*time.Second, "the other gateway hears of it", func() bool {
		select {
		case <-changes:
		default:
		}
		gateways[1].insist(gateways[1].once)
		return slices.Contains(gateways[1].view.Subjects, "slot:bad")
	})
	gw.insist(gw.once)
	var greatest uint64
	for range 4 {
		gw.insist(func(ctx context.Context) error {
			g, err := gw.r.Register(ctx, store.Registration{Node: "n2", Gateway: "gw1", Instance: "i", Epoch: gw.e})
			if errors.Is(err, store.ErrRateLimited) {
				return nil
			}
			greatest = max(greatest, g)
			return err
		})
	}

	// From here on each gateway asks for what is revoked as often as it can, and beats.
	for _, gw := range gateways {
		wg.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				err := gw.issue("slot:bad")
				if err == nil {
					t.Errorf("%s: a lease for a revoked slot", gw.name)
					return
				}
				if took := time.Since(begin); took > 2*promised {
					t.Errorf("%s: issue took %v", gw.name, took)
				}
				time.Sleep(time.Millisecond)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := gw.once(ctx); err != nil && !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: beat: %v", gw.name, err)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	w.patient(400)
	begin := time.Now()
	w.servers[0].kill()
	for _, s := range w.servers[1:] {
		s.thaw()
	}
	primary := w.primary(w.servers[1:]...)
	t.Logf("a new primary after %v", time.Since(begin))
	w.patient(60000)
	for _, gw := range gateways {
		eventually(t, 20*time.Second, gw.name+" issues again", func() bool { return gw.issue("slot:s") == nil })
		if err := gw.asked("slot:bad"); !errors.Is(err, store.ErrRevoked) {
			t.Errorf("%s: %v", gw.name, err)
		}
	}
	t.Logf("leases again after %v", time.Since(begin))
	gw.insist(func(ctx context.Context) error {
		g, err := gw.r.Register(ctx, store.Registration{Node: "n2", Gateway: "gw1", Instance: "i", Epoch: gw.e, Watermark: greatest})
		if err == nil && g <= greatest {
			t.Errorf("generation %d after %d", g, greatest)
		}
		return err
	})
	if _, err := gw.registered("evil"); !errors.Is(err, store.ErrDisabled) {
		t.Errorf("register: %v", err)
	}
	cancel()
	wg.Wait()
	w.synced(primary, 1)
	t.Run("suite after", suite)

	// Nobody answers any more, the Sentinels neither: the budget holds for asking them as well.
	all := append(slices.Clone(w.servers[1:]), w.sentinels...)
	prompt := false
	for range 3 {
		for _, s := range all {
			s.freeze()
		}
		prompt = gw.refused()
		for _, s := range all {
			s.thaw()
		}
		gw.recovers(time.Now())
		if prompt || t.Failed() {
			break
		}
	}
	if !prompt {
		t.Error("calls took too long")
	}
}

// Over TLS to the Sentinel and the server, with a password for each.
func TestRedisSentinelTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	tlsConf := "tls-cert-file " + cert + "\ntls-key-file " + key + "\ntls-ca-cert-file " + cert + "\ntls-auth-clients no\ntls-replication yes\n"
	port := freePort(t)
	startRedis(t, file(t, "redis.conf", tlsConf+"tls-port "+port+"\nrequirepass open-sesame\n"))
	sentinel := freePort(t)
	startSentinel(t, tlsConf+"tls-port "+sentinel+"\nrequirepass say-friend\nsentinel monitor main 127.0.0.1 "+port+" 1\nsentinel auth-pass main open-sesame\n")
	o := store.RedisOptions{
		URL: "rediss-sentinel://:open-sesame@127.0.0.1:" + sentinel + "/main", SentinelPassword: "say-friend", Prefix: namespace(),
		TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}
	r := openOptions(t, o, patience, nil)
	_, err := r.Epoch(t.Context(), "gw1")
	must(t, err)
	if _, err := r.Revoke(t.Context(), []string{"slot:a"}, 0); !errors.Is(err, store.ErrNotDurable) {
		t.Errorf("a revocation that no replica has: %v", err)
	}
	o.SentinelPassword = "say-foe"
	if _, err := openOptions(t, o, patience, nil).Epoch(t.Context(), "gw1"); !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "say-") || strings.Contains(err.Error(), "sesame") {
		t.Errorf("with a wrong password: %v", err)
	}
}
