package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// Other credentials are taken only if the server takes them, and at once, also by a store that has given the server up.
func TestRedisRenew(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	users := func(password string) {
		s.do("acl", "setuser", "fairway", "reset", "on", ">"+password, "~*", "&*", "+@all")
	}
	users("old")
	with := func(password string) store.RedisOptions {
		return store.RedisOptions{URL: strings.Replace(s.url(), "redis://", "redis://fairway:"+password+"@", 1), Prefix: namespace()}
	}
	o := with("old")
	changes := make(chan bool, 10)
	o.Changed = func(up bool, _ error) { changes <- up }
	r := openOptions(t, o, patience, nil)
	ask := func() error {
		_, err := r.Node(context.Background(), "n1")
		if errors.Is(err, store.ErrUnavailable) {
			return err
		}
		return nil
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := r.Renew(t.Context(), with("wrong")); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("a wrong password: %v", err)
	}
	for range 5 {
		if err := ask(); err != nil {
			t.Fatalf("after a password that was refused: %v", err)
		}
	}

	must(t, r.Renew(t.Context(), o))
	users("new")
	s.do("client", "kill", "user", "fairway")
	for end := time.Now().Add(10 * time.Second); len(changes) == 0; {
		if ask() == nil && time.Now().After(end) {
			t.Fatal("it still works with the old password")
		}
	}
	if up := <-changes; up {
		t.Fatal("it is up")
	}
	must(t, r.Renew(t.Context(), o)) // those in use: nothing to try
	if err := r.Renew(t.Context(), with("wrong")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a wrong password: %v", err)
	}
	must(t, r.Renew(t.Context(), with("new")))
	if err := ask(); err != nil {
		t.Errorf("the first call after a password that is right: %v", err)
	}
	if up := <-changes; !up {
		t.Error("it is down again")
	}
}
