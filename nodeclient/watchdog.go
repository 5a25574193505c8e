package nodeclient

import (
	"context"
	"errors"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// Health is what a watchdog sees of a provider.
type Health string

// The three healths.
const (
	Connected    Health = "connected"
	Degraded     Health = "degraded" // it answers, and the model that is asked for is not there
	Disconnected Health = "disconnected"
)

// Watchdog looks at something from time to time, and tells of changes.
type Watchdog struct {
	// Interval is the time between two looks, above 0. The first look comes after one.
	Interval time.Duration
	// Look is asked for the health. After an error nothing is known, and nothing is told.
	Look func(context.Context) (Health, error)
	// Tell hears of a change, the first health among them. After an error the same change is told again with the next look.
	Tell func(context.Context, Health) error
}

// Run watches until ctx ends, which is no error. Look and Tell are called from it alone.
func (w *Watchdog) Run(ctx context.Context) error {
	if w.Interval <= 0 {
		return errors.New("the interval of a watchdog is above 0")
	}
	tick := time.NewTicker(w.Interval)
	defer tick.Stop()
	var told Health
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := w.Look(ctx)
		if err != nil || now == told || ctx.Err() != nil {
			continue
		}
		if w.Tell(ctx, now) == nil {
			told = now
		}
	}
}

// HealthOf is the health of a provider for someone who needs a model of it.
func HealthOf(ctx context.Context, a adapter.Adapter, model string) (Health, error) {
	switch CheckModel(ctx, a, model).State {
	case ModelUnreachable:
		if ctx.Err() != nil {
			return "", ctx.Err() // the look was broken off
		}
		return Disconnected, nil
	case ModelMissing:
		return Degraded, nil
	}
	return Connected, nil
}
