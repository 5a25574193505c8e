package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/internal/store"
)

func TestRedisServers(t *testing.T) {
	t.Parallel()
	const good = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
	for change, want := range map[string]string{
		"":                             "",
		"redis_version:7.0.15=>8.2.1":  "",
		"redis_version:7.0.15=>10.0.0": "",
		"redis_version:7.0.15=>6.2.19": "version",
		"redis_version:7.0.15=>":       "version",
		"role:master=>slave":           "replica",
		"role:master=>":                "replica",
		"maxmemory_policy:noeviction=>allkeys-lru": "", // no limit, so it evicts nothing
		"maxmemory_policy:noeviction=>":            "",
	} {
		info := good
		if field, value, ok := strings.Cut(change, "=>"); ok {
			name, _, _ := strings.Cut(field, ":")
			info = strings.Replace(info, field, name+":"+value, 1)
		}
		err := store.CheckServer(info)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", change, err, want)
		}
	}
	limited := strings.Replace(good, "maxmemory:0", "maxmemory:1000", 1)
	if err := store.CheckServer(limited); err != nil {
		t.Error(err)
	}
	if err := store.CheckServer(strings.Replace(limited, "noeviction", "volatile-ttl", 1)); err == nil || !strings.Contains(err.Error(), "volatile-ttl") {
		t.Error(err)
	}
}

// A server that is another one than before, or has other data, is doubted until it was told everything, from begin to end.
func TestRedisDoubt(t *testing.T) {
	t.Parallel()
	var p store.Primary
	doubted := func(want bool) {
		t.Helper()
		if err := p.Doubt(); (err != nil) != want || err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("doubt: %v, want %v", err, want)
		}
	}
	told := func() {
		t.Helper()
		must(t, p.Vouch(p.Episode()))
		doubted(false)
	}
	doubted(false)
	p.Met("a")
	first := p.Beat("data", "a")
	doubted(false)
	p.Met("a")
	if again := p.Beat("data", "a"); again != first {
		t.Fatalf("incarnation %s, then %s", first, again)
	}
	doubted(false)

	p.Met("b") // a failover
	doubted(true)
	second := p.Beat("data", "b")
	if second == first {
		t.Fatal("a failover does not show")
	}
	doubted(true)
	begun := p.Episode()
	p.Met("a") // while it is told, another connection leads back
	if err := p.Vouch(begun); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("vouch: %v", err)
	}
	doubted(true)
	third := p.Beat("data", "a")
	if third == first || third == second {
		t.Fatal("that it is back does not show")
	}
	told()

	if fourth := p.Beat("other data", "a"); fourth == third {
		t.Fatal("a flush does not show")
	}
	doubted(true)
	told()
	p.Beat("other data", "c") // a failover that no new connection has shown
	doubted(true)
	told()
}
