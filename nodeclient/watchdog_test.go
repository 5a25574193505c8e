package nodeclient

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// A19: it sleeps first, tells of changes alone, tells again what was not taken, and outlives a look that fails.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		script := []struct {
			health Health
			err    error
		}{
			{Connected, nil}, {Connected, nil}, {"", broken}, {Connected, nil}, {Disconnected, nil}, {Disconnected, nil}, {Disconnected, nil}, {Degraded, nil}, {Connected, nil},
		}
		looks := 0
		start := time.Now()
		var told []Health
		var when []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		w := Watchdog{
			Interval: time.Second,
			Look: func(context.Context) (Health, error) {
				if looks == len(script) {
					cancel()
					return Disconnected, nil
				}
				looks++
				return script[looks-1].health, script[looks-1].err
			},
			Tell: func(_ context.Context, h Health) error {
				told, when = append(told, h), append(when, time.Since(start))
				if h == Disconnected && len(told) < 4 {
					return broken // twice
				}
				return nil
			},
		}
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		want := []Health{Connected, Disconnected, Disconnected, Disconnected, Degraded, Connected}
		if !slices.Equal(told, want) || !slices.Equal(when, []time.Duration{1e9, 5e9, 6e9, 7e9, 8e9, 9e9}) {
			t.Errorf("%v at %v", told, when)
		}
	})
	if err := (&Watchdog{}).Run(t.Context()); err == nil {
		t.Error("a watchdog without an interval runs")
	}
}

func TestHealthOf(t *testing.T) {
	t.Parallel()
	f := fakeollama.Start(t, fakeollama.Options{Models: []string{"tiny:latest"}})
	a := at(t, f.URL(), false)
	check := func(model string, want Health) {
		t.Helper()
		if h, err := HealthOf(t.Context(), a, model); h != want || err != nil {
			t.Errorf("%s: %s %v, want %s", model, h, err, want)
		}
	}
	check("tiny", Connected)
	check("other", Degraded)
	f.Down()
	check("tiny", Disconnected)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if h, err := HealthOf(ctx, a, "tiny"); err == nil {
		t.Errorf("a look that was broken off says %s", h)
	}
}
