package fakeollama

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Record is what the server saw of one request. Times are seconds since the
// server started; 0 means that it did not happen.
type Record struct {
	At           float64     `json:"t"`
	Conn         int         `json:"conn"` // requests on one connection share it
	Method       string      `json:"method"`
	Target       string      `json:"target"` // as on the wire
	Path         string      `json:"path"`   // Target without its query
	Proto        string      `json:"proto"`
	Headers      [][2]string `json:"headers"` // in wire order and spelling
	Host         string      `json:"host"`
	Origin       string      `json:"origin,omitempty"`
	ID           string      `json:"id,omitempty"` // X-Test-Id
	Framing      string      `json:"framing"`      // none, chunked or "length N"
	Len          int64       `json:"len"`          // body bytes
	SHA256       string      `json:"sha256"`       // of the body
	Head         string      `json:"head"`         // the body's first 160 bytes
	BodyComplete bool        `json:"body_complete"`
	Model        string      `json:"model,omitempty"`
	Fault        string      `json:"fault,omitempty"`
	Executed     bool        `json:"executed"` // counted as an inference
	Status       int         `json:"status,omitempty"`
	Sent         int64       `json:"sent"` // answer body bytes written
	Tokens       int         `json:"toks,omitempty"`
	ExpectSHA256 string      `json:"expect_sha256,omitempty"` // of the answer's body, where a mode knows it
	LastWrite    float64     `json:"last_write,omitempty"`
	ClientGone   float64     `json:"client_gone,omitempty"` // the caller closed or half-closed before the end
	Err          string      `json:"err,omitempty"`
	End          float64     `json:"end,omitempty"`
}

// Header returns the values of a header in wire order; name as on the wire.
func (r Record) Header(name string) (values []string) {
	for _, h := range r.Headers {
		if equalFold(h[0], name) {
			values = append(values, h[1])
		}
	}
	return values
}

// Began is the moment from which Records count.
func (s *Server) Began() time.Time { return s.start }

// Stats are the server's gauges and counters.
type Stats struct {
	Models    []string         `json:"models"`
	TagsDelay float64          `json:"tags_delay"` // seconds
	Busy      bool             `json:"busy"`
	Down      bool             `json:"down"`
	Open      int              `json:"open"`     // connections
	Inflight  int              `json:"inflight"` // requests being answered
	Waiting   int              `json:"waiting"`  // of those, inferences in a queue
	Exec      int              `json:"exec"`     // inferences begun
	ExecModel map[string]int   `json:"exec_model"`
	ExecID    map[string]int   `json:"exec_id"`
	Blobs     map[string]int64 `json:"blobs"`
	Loaded    []string         `json:"loaded"`
}

// Log returns the requests so far, oldest first.
func (s *Server) Log() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Record, len(s.log))
	for i, r := range s.log {
		out[i] = *r
	}
	return out
}

// Stats returns the gauges and counters as they are now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Models: slices.Clone(s.models), TagsDelay: s.tagsDelay.Seconds(), Busy: s.busy, Down: s.listener == nil,
		Open: len(s.links), Inflight: s.inflight, ExecModel: maps.Clone(s.execs), ExecID: maps.Clone(s.execIDs),
		Blobs: maps.Clone(s.blobs), Loaded: slices.Sorted(maps.Keys(s.loaded)),
	}
	for _, n := range s.execs {
		st.Exec += n
	}
	for _, g := range s.gates {
		st.Waiting += len(g.waiting)
	}
	return st
}

// Execs counts the inferences begun with a model.
func (s *Server) Execs(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.execs[norm(model)]
}

// ExecsByID counts the inferences begun by requests with this X-Test-Id.
func (s *Server) ExecsByID(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.execIDs[id]
}

// Wait blocks until ok holds for a recorded request and returns that request,
// or until ctx ends.
func (s *Server) Wait(ctx context.Context, ok func(Record) bool) (Record, error) {
	for {
		s.mu.Lock()
		for _, r := range s.log {
			if ok(*r) {
				found := *r
				s.mu.Unlock()
				return found, nil
			}
		}
		change := s.change
		s.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return Record{}, ctx.Err()
		}
	}
}

// WaitStats blocks until ok holds for the server's gauges, or until ctx ends.
func (s *Server) WaitStats(ctx context.Context, ok func(Stats) bool) error {
	for {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		if ok(s.Stats()) {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// note changes a record.
func (s *Server) note(r *Record, f func(*Record)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(r)
	s.changed()
}

func (s *Server) now() float64 { return time.Since(s.start).Seconds() }

// executed counts an inference, once per request.
func (s *Server) executed(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Executed {
		return
	}
	r.Executed = true
	s.execs[norm(r.Model)]++
	if r.ID != "" {
		s.execIDs[r.ID]++
	}
	s.changed()
}
