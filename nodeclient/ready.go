package nodeclient

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/tunnel"
)

// probedWithin is how old a probe may be at Ready: several gateways need not ask the same twice.
const probedWithin = time.Second

// makeReady probes the providers and offers them. A provider that does not answer is offered as unreachable: it may come later.
func (l *link) makeReady(ctx context.Context, s *tunnel.NodeSession, known told) error {
	l.c.probeAll(ctx)
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	frames := known.next(l.c.targets, s.Limits(), nil)
	if len(frames) == 0 {
		frames = append(frames, nil)
	}
	if err := s.Ready(ctx, frames[0]); err != nil {
		return err
	}
	for _, f := range frames[1:] {
		if err := s.Status(f); err != nil {
			return err
		}
	}
	return nil
}

// tell pushes what has changed since the gateway was last told, and what it is owed.
func (l *link) tell(s *tunnel.NodeSession, v *vault, known told) error {
	for _, f := range known.next(l.c.targets, s.Limits(), v.owed.due(v, time.Now())) {
		if err := s.Status(f); err != nil {
			return err
		}
	}
	return nil
}

// probeAll asks the providers that are not known to be there, all at once, for at most probeTimeout. What is known of the others is as old as
// their watch lets it be, and a busy one may be slow to say it again.
func (c *Client) probeAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, t := range c.targets {
		if t.view().reachable {
			continue
		}
		wg.Go(func() {
			t.probe(ctx, max(probedWithin, t.cadence.gap))
			if v := t.view(); !v.reachable && !v.withdrawn {
				c.log.Warn("target does not answer; it is offered once it does", zap.String("target", t.name), zap.String("origin", t.adapter.Origin()), zap.String("error", t.lastError()))
			}
		})
	}
	wg.Wait()
}
