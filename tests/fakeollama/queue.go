package fakeollama

import (
	"context"
	"slices"
)

// gate admits Options.Parallel inferences of one model at once, the others in
// their order. It is simpler than Ollama, where only a load counts against the
// queue: here any waiting inference does.
type gate struct {
	running int
	waiting []chan struct{} // closed when admitted
}

// enter waits for a place; leave gives it back.
func (s *Server) enter(ctx context.Context, model string) (leave func(), err error) {
	if s.opts.Parallel <= 0 {
		return func() {}, nil
	}
	s.mu.Lock()
	g := s.gates[model]
	if g == nil {
		g = &gate{}
		s.gates[model] = g
	}
	leave = func() { s.leave(g) }
	if g.running < s.opts.Parallel {
		g.running++
		s.mu.Unlock()
		return leave, nil
	}
	if len(g.waiting) >= max(s.opts.MaxQueue, 0) {
		s.mu.Unlock()
		return nil, errQueueFull
	}
	turn := make(chan struct{})
	g.waiting = append(g.waiting, turn)
	s.changed()
	s.mu.Unlock()
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
		s.quit(g, turn)
		return nil, ctx.Err()
	}
}

func (s *Server) leave(g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(g.waiting) == 0 {
		g.running--
		return
	}
	close(g.waiting[0])
	g.waiting = g.waiting[1:]
}

// quit takes back a wait; a place that came just then is passed on.
func (s *Server) quit(g *gate, turn chan struct{}) {
	s.mu.Lock()
	i := slices.Index(g.waiting, turn)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		s.leave(g)
	}
}
