package store

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// watchSilence is how long a subscription may be silent before it is asked whether it lives, and then to answer.
	watchSilence = time.Second
	// watchPause is how long after a subscription is lost the next one is tried.
	watchPause = 250 * time.Millisecond
)

// watches are the subscriptions of a store.
type watches struct {
	ctx  context.Context // ends with close
	stop context.CancelFunc

	mu     sync.Mutex
	closed bool // guarded by mu
	wg     sync.WaitGroup
}

func (w *watches) init() { w.ctx, w.stop = context.WithCancel(context.Background()) }

func (w *watches) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.stop()
	w.wg.Wait()
}

// Watch implements [Store]. What is published while a subscription is down is made up for by a message once it is up.
func (r *Redis) Watch(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	w := &r.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		close(out)
		return out
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(w.ctx, cancel)
	w.wg.Go(func() {
		defer cancel()
		defer stop()
		defer close(out)
		for ctx.Err() == nil {
			r.subscribe(ctx, out)
			select {
			case <-ctx.Done():
			case <-time.After(watchPause):
			}
		}
	})
	return out
}

// subscribe passes on messages until the subscription is lost or ctx ends.
func (r *Redis) subscribe(ctx context.Context, out chan<- struct{}) {
	if r.breaker.allow() != nil {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, r.budget)
	defer cancel()
	s := r.client.Load().Subscribe(bounded, r.channel)
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	for asked := false; ; {
		message, err := s.ReceiveTimeout(ctx, watchSilence)
		var timeout net.Error
		switch {
		case err == nil:
			asked = false
			if _, is := message.(*redis.Pong); is {
				continue
			}
			select {
			case out <- struct{}{}:
			default: // one is waiting to be read already
			}
		case !errors.As(err, &timeout) || !timeout.Timeout() || asked || s.Ping(ctx) != nil:
			return
		default:
			asked = true
		}
	}
}
