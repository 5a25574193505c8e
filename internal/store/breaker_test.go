package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var probes []time.Time
		var told []string
		var answer error
		running := 0
		answers := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			answer = err
		}
		b := store.NewBreaker(func(context.Context) error {
			mu.Lock()
			if running++; running > 1 {
				t.Error("two probes at once")
			}
			probes = append(probes, time.Now())
			mu.Unlock()
			time.Sleep(300 * time.Millisecond) // as long as one may take
			mu.Lock()
			defer mu.Unlock()
			running--
			return answer
		}, func(up bool, err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(up, err))
		})
		down := errors.New("down")

		for range 10 { // never three in a row
			b.Failed(down)
			b.Failed(down)
			b.Succeeded()
		}
		if err := b.Allow(); err != nil {
			t.Fatal(err)
		}
		answers(errors.New("still down"))
		for range 5 {
			b.Failed(down)
		}
		opened := time.Now()
		if err := b.Allow(); err != down {
			t.Fatalf("allowed: %v", err)
		}
		time.Sleep(10 * time.Second)
		if err := b.Allow(); err == nil || err.Error() != "still down" {
			t.Fatalf("allowed: %v", err)
		}
		mu.Lock()
		last := opened
		for _, at := range probes {
			if at.Sub(last) > time.Second {
				t.Errorf("%v without a probe", at.Sub(last))
			}
			last = at
		}
		if first := probes[0].Sub(opened); first > 100*time.Millisecond || len(probes) < 10 {
			t.Errorf("%d probes, the first after %v", len(probes), first)
		}
		mu.Unlock()
		answers(nil)
		time.Sleep(time.Second)
		if err := b.Allow(); err != nil {
			t.Fatal(err)
		}
		b.Failed(down) // it has not proved itself
		if err := b.Allow(); err != down {
			t.Fatalf("allowed: %v", err)
		}
		time.Sleep(time.Second)
		b.Succeeded()
		b.Failed(down)
		b.Failed(down)
		if err := b.Allow(); err != nil {
			t.Fatal(err)
		}
		if want := []string{"false down", "true <nil>", "false down", "true <nil>"}; !slices.Equal(told, want) {
			t.Errorf("told %q", told)
		}
		answers(down)
		b.Failed(down)
		b.Close() // in the middle of probing
		n := len(probes)
		time.Sleep(10 * time.Second)
		if len(probes) != n {
			t.Error("probes go on")
		}
		for range 5 {
			b.Failed(down)
		}
		synctest.Wait()
	})
}
