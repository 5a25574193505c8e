// Package fakegoals stands in for a cloud's goal-job API in tests: jobs that go from one status to the next as they are looked at, workflows of one's
// own, a key that is checked, and trouble on demand. It is built from what is known of that API and nothing else; where that says nothing, such as
// on the form of an error's body, a client must not rely on what is found here.
//
// Faithful in what hurts: Idempotency-Key is ignored when a job is created, a job that is ready waits for its confirmation without end, a job
// whose caller has gone stays alive, and cancellations are limited to ten in five minutes for one address.
//
//	fakegoals.go  the server: options, key, record of requests
//	jobs.go       jobs
//	workflows.go  workflows of one's own
//	faults.go     trouble
package fakegoals

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Options of a server. The zero value serves jobs of the workflow "uw_demo" to everyone.
type Options struct {
	Key          string     // requests without "Authorization: Bearer KEY" get a 401; "" lets everyone in
	Forbidden    bool       // the key is known, and may do nothing: 403
	TLS          bool       // behind a certificate that nobody trusts
	Stages       []Stage    // what every job goes through; nil: DefaultStages
	Workflows    []Workflow // nil: one, uw_demo
	IgnoreCancel bool       // cancellations are answered, and do nothing
}

// Record is what the server saw of one request.
type Record struct {
	Step   string // which call it is; "" for none
	Method string
	Target string // as on the wire
	Proto  string
	Header http.Header
	Body   []byte
	Status int // of the answer; 0 while there is none
	At     time.Time
}

// Server is one running fake. Its methods are safe for concurrent use.
type Server struct {
	opts Options
	http *httptest.Server
	done chan struct{} // closed at the end: what hangs lets go

	mu      sync.Mutex
	change  chan struct{} // guarded by mu: closed and replaced at each change
	log     []*Record     // guarded by mu
	jobs    []*job        // guarded by mu; in the order of their creation
	faults  []*Fault      // guarded by mu
	cancels []time.Time   // guarded by mu; of the last five minutes
	flows   []Workflow    // guarded by mu
}

// Start runs a server until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Stages == nil {
		o.Stages = DefaultStages
	}
	if o.Workflows == nil {
		o.Workflows = []Workflow{{ID: "uw_demo", Name: "Demo", Visibility: "private"}}
	}
	s := &Server{opts: o, done: make(chan struct{}), change: make(chan struct{}), flows: slices.Clone(o.Workflows)}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.EnableHTTP2 = true // a client that can is served so, as in a cloud: the record's Proto tells
	if o.TLS {
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// URL is the origin, scheme://host:port.
func (s *Server) URL() string { return s.http.URL }

// Close ends the server; its port refuses connections from then on.
func (s *Server) Close() {
	s.mu.Lock()
	select {
	case <-s.done:
		s.mu.Unlock()
		return
	default:
	}
	_ = s.http.Listener.Close() // first: whoever is let go by what follows finds nobody
	close(s.done)
	s.mu.Unlock()
	s.http.CloseClientConnections()
	s.http.Close()
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	rec := &Record{Step: step(r), Method: r.Method, Target: r.RequestURI, Proto: r.Proto, Header: r.Header.Clone(), Body: body, At: time.Now()}
	s.update(func() { s.log = append(s.log, rec) })
	if err != nil {
		return // the caller left in the middle of it
	}
	fault := s.fault(rec.Step)
	if fault != nil && fault.before(s, w, r) {
		return
	}
	a := s.answer(rec, r)
	s.update(func() { rec.Status = a.status })
	if fault != nil && fault.after(w, a) {
		return
	}
	a.write(w)
}

// answer carries a request out.
func (s *Server) answer(rec *Record, r *http.Request) answer {
	switch {
	case s.opts.Key != "" && !slices.Equal(rec.Header.Values("Authorization"), []string{"Bearer " + s.opts.Key}):
		return problem(http.StatusUnauthorized, "UNAUTHORIZED")
	case s.opts.Forbidden:
		return problem(http.StatusForbidden, "FORBIDDEN")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch rec.Step {
	case "":
		return problem(http.StatusNotFound, "NOT_FOUND")
	case Submission:
		return s.create(rec.Body)
	case Poll, Confirmation, Cancellation, Retry:
		return s.onJob(rec.Step, strings.Split(strings.TrimPrefix(r.URL.Path, jobsPath+"/"), "/")[0], rec.Body)
	}
	return s.onWorkflows(rec.Step, r)
}

// answer is an answer that has yet to be written.
type answer struct {
	status int
	header map[string]string
	body   []byte
}

func reply(status int, v any) answer {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a test's stage that is no JSON
	}
	return answer{status: status, body: b}
}

func problem(status int, code string) answer {
	return reply(status, map[string]any{"error": map[string]any{"code": code, "message": "as the code says"}})
}

func (a answer) write(w http.ResponseWriter) {
	for k, v := range a.header {
		w.Header().Set(k, v)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// update changes something and says so.
func (s *Server) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.change)
	s.change = make(chan struct{})
}

// Log returns the requests so far, in the order of their arrival.
func (s *Server) Log() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Record, len(s.log))
	for i, r := range s.log {
		out[i] = *r
	}
	return out
}

// Count returns how many requests of a step there were.
func (s *Server) Count(step string) (n int) {
	for _, r := range s.Log() {
		if r.Step == step {
			n++
		}
	}
	return n
}

// Await waits until cond holds; it is asked again at each change.
func (s *Server) Await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		if cond() {
			return
		}
		select {
		case <-change:
		case <-limit:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// Holds reports whether any request but its own header line had the key in it.
func (s *Server) Holds(key string) bool {
	for _, r := range s.Log() {
		if strings.Contains(r.Target, key) || bytes.Contains(r.Body, []byte(key)) {
			return true
		}
		for name, values := range r.Header {
			if name != "Authorization" && strings.Contains(strings.Join(values, " "), key) {
				return true
			}
		}
	}
	return false
}

// Gone returns an origin at which nobody listens.
func Gone(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}
