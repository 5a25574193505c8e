// Package fakeollama stands in for Ollama in tests: its API, its rules for
// Host, Origin, paths and errors, no model, and trouble on demand.
//
// The model's name picks a behaviour (t-echo, t-tick, …; see modes.go) and
// t_* keys in the body, or in its options, are its knobs; a real Ollama ignores
// both. Faults (faults.go) break the protocol itself. Every request is recorded
// as it stood on the wire, and inferences are counted by model and by the
// request header X-Test-Id, so that a test can prove that nothing ran twice.
//
// A test starts one in its own process with Start; the command in
// tests/cmd/fakeollama is the same server as a child process, with the admin
// functions over HTTP on port+1000.
//
// It speaks HTTP/1.1 itself over net.Conn, because net/http would hide what the
// tests are about: the order and spelling of headers, half-closed and reset
// connections, broken framing.
package fakeollama

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
)

// DefaultModels are offered when Options.Models is nil.
var DefaultModels = []string{
	"t-echo:latest", "t-tick:latest", "t-slowload:latest", "t-die:latest", "t-longline:latest", "t-utf8:latest",
	"t-hop:latest", "t-flood:latest", "t-ctype:latest", "t-errmid:latest", "t-gone:latest",
	"hf.co/acme-lab/Tiny-T-GGUF:Q4_K_M",
}

// Options of a server. The zero value is an Ollama on a free port of 127.0.0.1.
type Options struct {
	Addr      string        // listen address; default a free port of 127.0.0.1
	Admin     string        // listen address of the admin functions; default none
	Models    []string      // nil: DefaultModels. A name that ends in -cloud is listed as a cloud stub
	Version   string        // default 0.0.0
	Digest    string        // of every model; default the SHA-256 of its name
	AnyHost   bool          // no Host check, as Ollama does beyond loopback
	IdleClose time.Duration // close connections idle for so long; 0 never, below 0 at once
	Parallel  int           // inferences at once per model; 0 unlimited
	MaxQueue  int           // inferences waiting per model before a 503; default 512
	Without   []string      // paths that this "old version" does not have
	Key       string        // a POST without "Authorization: Bearer KEY" gets a 401, as from a proxy in front; SetKey changes it
}

// Server is one running fake. Its methods are safe for concurrent use.
type Server struct {
	opts  Options
	addr  string
	start time.Time
	admin *http.Server
	wg    sync.WaitGroup // accept loops and connections

	mu     sync.Mutex
	state                // guarded by mu
	change chan struct{} // guarded by mu: closed and replaced at each change
}

// state is all that changes.
type state struct {
	listener  net.Listener // nil: refusing
	closed    bool
	links     map[*link]struct{}
	log       []*Record
	models    []string
	loaded    map[string]time.Time // by normalised name: expiry
	blobs     map[string]int64     // by digest: size
	tagsDelay time.Duration
	busy      bool
	faults    []*armedFault
	inflight  int
	execs     map[string]int // by model
	execIDs   map[string]int // by X-Test-Id
	gates     map[string]*gate
	key       string
}

// Start runs a server until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Listen runs a server until Close.
func Listen(o Options) (*Server, error) {
	if o.Addr == "" {
		port, err := freeport.Next() // not one that a connection may take while the server is down
		if err != nil {
			return nil, err
		}
		o.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	if o.Models == nil {
		o.Models = DefaultModels
	}
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	if o.MaxQueue == 0 {
		o.MaxQueue = 512
	}
	s := &Server{opts: o, addr: o.Addr, start: time.Now(), change: make(chan struct{})}
	s.state = state{
		links: map[*link]struct{}{}, models: append([]string(nil), o.Models...), loaded: map[string]time.Time{},
		blobs: map[string]int64{}, execs: map[string]int{}, execIDs: map[string]int{}, gates: map[string]*gate{}, key: o.Key,
	}
	if err := s.Up(); err != nil {
		return nil, err
	}
	if o.Admin != "" {
		if err := s.serveAdmin(o.Admin); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Addr is host:port.
func (s *Server) Addr() string { return s.addr }

// URL is the origin, http://host:port.
func (s *Server) URL() string { return "http://" + s.addr }

// Up accepts connections, after Down on the same port.
func (s *Server) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil || s.closed {
		return nil
	}
	ln, err := net.Listen("tcp", s.addr)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", s.addr, err)
	}
	s.addr, s.listener = ln.Addr().String(), ln
	s.wg.Go(func() { s.accept(ln) })
	return nil
}

// Down refuses connections and cuts those that are open, as a killed Ollama
// does.
func (s *Server) Down() {
	s.mu.Lock()
	ln := s.listener
	s.listener = nil
	links := make([]*link, 0, len(s.links))
	for l := range s.links {
		links = append(links, l)
	}
	s.mu.Unlock()
	if ln != nil {
		ln.Close()
	}
	for _, l := range links {
		l.reset()
	}
}

// Close ends the server and waits for everything it started.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.Down()
	if s.admin != nil {
		s.admin.Close()
	}
	s.wg.Wait()
}

func (s *Server) accept(ln net.Listener) {
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: a load test's own limit
			time.Sleep(5 * time.Millisecond)
			continue
		}
		l := newLink(s, nc)
		s.mu.Lock()
		if s.listener != ln {
			s.mu.Unlock()
			l.reset()
			continue
		}
		s.links[l] = struct{}{}
		s.changed()
		s.wg.Go(l.serve)
		s.mu.Unlock()
	}
}

// SetModels replaces what the server holds.
func (s *Server) SetModels(names ...string) {
	s.edit(func(st *state) { st.models = append([]string(nil), names...) })
}

// SetTagsDelay delays /api/tags and /api/ps.
func (s *Server) SetTagsDelay(d time.Duration) { s.edit(func(st *state) { st.tagsDelay = d }) }

// SetBusy answers every inference with Ollama's 503.
func (s *Server) SetBusy(on bool) { s.edit(func(st *state) { st.busy = on }) }

// SetKey changes the key that is asked for; "" for none.
func (s *Server) SetKey(key string) { s.edit(func(st *state) { st.key = key }) }

// Reset forgets log and counters, not models, blobs or faults.
func (s *Server) Reset() {
	s.edit(func(st *state) { st.log, st.execs, st.execIDs = nil, map[string]int{}, map[string]int{} })
}

func (s *Server) edit(f func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.state)
	s.changed()
}

// changed wakes the waiting. s.mu is held.
func (s *Server) changed() {
	close(s.change)
	s.change = make(chan struct{})
}
