package store_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/internal/store/storetest"
)

// acl is what the documentation tells operators to give the store's user.
const acl = "resetchannels ~{test-*}:* &{test-*}:* -@all +@read +@write +@scripting +@connection +@pubsub +info +wait +time"

// certificate makes a server's certificate for 127.0.0.1 and a pool that trusts it alone.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	pool = x509.NewCertPool()
	pool.AddCert(leaf)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return file(t, "redis.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		file(t, "redis.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))), pool
}

// Over TLS, as a user that may do no more than it must: the whole suite.
func TestRedisTLSAndACL(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	port := freePort(t)
	conf := file(t, "redis.conf", "user default off\nuser fairway on >p@ss/w:rd "+acl+"\n")
	startRedis(t, conf, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	url := func(user string) string { return "rediss://" + user + "@127.0.0.1:" + port + "/0" }
	trusted := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	const right = "fairway:p%40ss%2Fw%3Ard"
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		storetest.RunShared(t, func(t *testing.T, clock *storetest.Clock) store.Store {
			return openOptions(t, store.RedisOptions{URL: url(right), TLS: trusted, Prefix: namespace()}, patience, clock.Now)
		})
	})
	for _, tt := range []struct {
		name string
		o    store.RedisOptions
		want string
	}{
		{"no such user", store.RedisOptions{URL: url("default:geheim7"), TLS: trusted, Prefix: "test-x"}, "WRONGPASS"},
		{"wrong password", store.RedisOptions{URL: url("fairway:geheim7"), TLS: trusted, Prefix: "test-x"}, "WRONGPASS"},
		{"another's keys", store.RedisOptions{URL: url(right), TLS: trusted, Prefix: "geheim7"}, "permission"},
		{"a server nobody vouches for", store.RedisOptions{URL: url(right), Prefix: "test-x"}, "certificate"},
		{"plain", store.RedisOptions{URL: strings.Replace(url(right), "rediss:", "redis:", 1), Prefix: "test-x"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := store.NewRedisAt(tt.o, patience, nil)
			must(t, err)
			defer r.Close()
			_, err = r.Node(t.Context(), "n1")
			if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			for _, secret := range []string{"p@ss", "p%40", "w:rd", "geheim7"} {
				if strings.Contains(fmt.Sprint(err), secret) && tt.name != "another's keys" {
					t.Errorf("%v has a password in it", err)
				}
			}
		})
	}
}

func TestRedisOptions(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h":                                 "redis://h:6379/0",
		"redis://:pw@h:1/5":                         "redis://h:1/5",
		"rediss://u:pw@[::1]":                       "rediss://[::1]:6379/0",
		"redis://u:p%2Fw@10.0.0.5:6379/0":           "redis://10.0.0.5:6379/0",
		"redis-sentinel://a,b:7,[::1]:8/main":       "redis-sentinel://a:26379,b:7,[::1]:8/main/0",
		"rediss-sentinel://u:pw@a:1/my-master/2":    "rediss-sentinel://a:1/my-master/2",
		"":                                          "",
		"h:6379":                                    "",
		"http://h":                                  "",
		"redis+sentinel://h/m":                      "",
		"redis://":                                  "",
		"redis://geheim":                            "redis://geheim:6379/0",
		"redis://u:geheim@":                         "",
		"redis://u:geheim@h:0":                      "",
		"redis://u:geheim@h:70000":                  "",
		"redis://u:geheim@h:x":                      "",
		"redis://u:geh/eim@h":                       "",
		"redis://u:geh@eim@h":                       "",
		"redis://u:geh#eim@h":                       "",
		"redis://u:geheim%zz@h":                     "",
		"redis://u:geheim@h/x":                      "",
		"redis://u:geheim@h/0/1":                    "",
		"redis://u:geheim@h?skip_verify=true":       "",
		"redis://u:geheim@a,b":                      "",
		"redis://u:geheim@::1":                      "",
		"redis://u:geheim@[::1":                     "",
		"redis-sentinel://u:geheim@a,b":             "",
		"redis-sentinel://u:geheim@a,,b/m":          "",
		"redis-sentinel://u:geheim@a/m/x":           "",
		"redis://u:geheim@h\n":                      "",
		"redis-sentinel://u:geheim@a/geheim/geheim": "",
	} {
		o := store.RedisOptions{URL: url}
		r, err := store.NewRedis(o)
		if want == "" {
			if err == nil || strings.Contains(err.Error(), "geh") || strings.Contains(fmt.Sprintf("%v %+v %#v", o, o, o), "geh") {
				t.Errorf("%q: %v", url, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", url, err)
			continue
		}
		if got := fmt.Sprintf("%v %+v %#v", o, &o, o); got != want+" "+want+" "+want {
			t.Errorf("%q is %s, want %s", url, got, want)
		}
		must(t, r.Close())
	}
	for _, bad := range []string{"a b", "a{b}", "a:b", "é", strings.Repeat("x", 65)} {
		if _, err := store.NewRedis(store.RedisOptions{URL: "redis://h", Prefix: bad}); err == nil {
			t.Errorf("prefix %q was taken", bad)
		}
	}
}

// A server that would forget what fences is not used, however it is asked.
func TestRedisRefusesToBeForgotten(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	r := openOptions(t, store.RedisOptions{URL: s.url()}, patience, nil)
	if _, err := r.Epoch(t.Context(), "gw1"); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "maxmemory-policy") {
		t.Fatalf("%v", err)
	}
	s.do("config", "set", "maxmemory-policy", "noeviction")
	eventually(t, 20*time.Second, "the store is used", func() bool {
		_, err := r.Epoch(t.Context(), "gw1")
		return err == nil
	})
}

// Data of another version's form is not touched.
func TestRedisRefusesAnotherForm(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	s.do("set", "{fw}:layout", "2")
	r := openOptions(t, store.RedisOptions{URL: s.url(), Prefix: "fw"}, patience, nil)
	if _, err := r.Epoch(t.Context(), "gw1"); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "another version") {
		t.Fatalf("%v", err)
	}
	if n := s.do("dbsize"); n != "1" {
		t.Errorf("%s keys", n)
	}
	other := openOptions(t, store.RedisOptions{URL: s.url(), Prefix: "other"}, patience, nil)
	_, err := other.Epoch(t.Context(), "gw1")
	must(t, err)
}

// The scripts go by the server's clock, in milliseconds, and by no other.
func TestRedisServerClock(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := openRedis(t, s.url(), nil)
	now := func() uint64 {
		var sec, us uint64
		if _, err := fmt.Sscanf(s.do("time"), "[%d %d]", &sec, &us); err != nil {
			t.Fatal(err)
		}
		return sec*1000 + us/1000
	}
	before := now()
	e, err := r.Epoch(t.Context(), "gw1")
	must(t, err)
	g, err := r.Register(t.Context(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: e})
	must(t, err)
	p, err := r.Publish(t.Context(), map[string]string{"a": "b"})
	must(t, err)
	after := now()
	for _, n := range []uint64{e, g, p.PGN} {
		if n < before || n > after {
			t.Errorf("number %d, want %d to %d", n, before, after)
		}
	}
}

// One shard of a cluster serves: all keys have one hash tag.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--cluster-enabled", "yes")
	s.do("cluster", "addslotsrange", 0, 16383)
	eventually(t, 20*time.Second, "the cluster is up", func() bool { return strings.Contains(s.do("cluster", "info"), "cluster_state:ok") })
	storetest.RunShared(t, func(t *testing.T, clock *storetest.Clock) store.Store { return openRedis(t, s.url(), clock) })
}

// What is kept is what lua/prelude.lua lists: nothing that would hurt if it were read.
func TestRedisKeys(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	gw := open(t, s.url(), "fw", "gw1").start()
	for name, call := range gw.everyCall() {
		if err := call(t.Context()); err != nil && !errors.Is(err, store.ErrStale) && !errors.Is(err, store.ErrTokenSpent) {
			t.Logf("%s: %v", name, err)
		}
	}
	must(t, gw.revoked(gw.pgn, "slot:z"))
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	defer c.Close()
	known := regexp.MustCompile(`^\{fw\}:(node:n\d|sessions:(gw1|other)|beats|epochs|revoked|min_pgn|drained|version|restored|pgn|objects|token:t|incarnation|layout)$`)
	seen := 0
	for scan := c.Scan(context.Background(), 0, "*", 100).Iterator(); scan.Next(context.Background()); {
		if seen++; !known.MatchString(scan.Val()) {
			t.Errorf("key %s", scan.Val())
		}
	}
	if seen < 12 {
		t.Errorf("%d keys: some are not looked at", seen)
	}
	// An hour after the end of a token, which is in an hour.
	if ttl, err := strconv.Atoi(s.do("pttl", "{fw}:token:t")); err != nil || ttl < 7_000_000 || ttl > 7_200_000 {
		t.Errorf("a token is remembered for %d ms, %v", ttl, err)
	}
	for i := range 3 {
		var subjects []string
		for j := range 1000 {
			subjects = append(subjects, fmt.Sprint("lease:", i, "-", j))
		}
		gw.insist(func(ctx context.Context) error { return gw.r.Unrevoke(ctx, subjects) })
	}
	if n := s.do("zcard", "{fw}:restored"); n != "1000" {
		t.Errorf("%s subjects taken back are remembered, want 1000", n)
	}
}
