package nodeclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Files of the state directory, beside the identity (package pki).
const (
	lockFile      = "lock"
	watermarkFile = "watermarks.json"
	socketFile    = "status.sock"
	portFile      = "status.port"
)

// StateError says that the state directory cannot be used.
type StateError struct {
	Dir string
	Err error
}

// Error implements error.
func (e *StateError) Error() string { return fmt.Sprintf("state directory %s: %v", e.Dir, e.Err) }

// Unwrap returns the cause.
func (e *StateError) Unwrap() error { return e.Err }

// errLocked is the cause when another process has the directory.
var errLocked = errors.New("another fairway-node is using it; stop that one, or give this one a --state-dir of its own")

// state is a state directory that this process has locked.
type state struct {
	dir  string
	lock *os.File
}

// openState makes dir if need be, mode 0700, and locks it against other processes.
func openState(dir string) (*state, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &StateError{Dir: dir, Err: err}
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &StateError{Dir: dir, Err: err}
	}
	if err := lockExclusive(f); err != nil {
		_ = f.Close()
		return nil, &StateError{Dir: dir, Err: err}
	}
	return &state{dir: dir, lock: f}, nil
}

// close gives the lock up; the file stays, since removing it would let two processes lock two files.
func (s *state) close() { _ = s.lock.Close() }

// write replaces a file of the directory whole, mode 0600.
func (s *state) write(name string, data []byte) error {
	path := filepath.Join(s.dir, name)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// probeSize is about twice what an identity takes.
const probeSize = 8 << 10

// checkWritable makes sure that an identity can be kept in dir: a file is written, put on disk and removed again. The error is a *StateError.
func checkWritable(dir string) error {
	f, err := os.CreateTemp(dir, "probe-*.tmp")
	if err != nil {
		return &StateError{Dir: dir, Err: err}
	}
	_, err = f.Write(make([]byte, probeSize))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return &StateError{Dir: dir, Err: err}
	}
	return nil
}

// watermarks are the highest generations that this node has had, by the gateway address that it was given: the name is known too late for
// Register. The zero value keeps them in memory alone.
type watermarks struct {
	mu    sync.Mutex
	state *state               // nil: memory alone
	marks map[string]watermark // guarded by mu
}

type watermark struct {
	Gateway    string `json:"gateway"`
	Generation uint64 `json:"generation"`
}

// open reads what an earlier process has kept.
func (w *watermarks) open(st *state) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = st
	path := filepath.Join(st.dir, watermarkFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &w.marks)
	}
	if err != nil {
		return &StateError{Dir: st.dir, Err: fmt.Errorf("reading %s: %w", watermarkFile, err)}
	}
	return nil
}

func (w *watermarks) of(addr string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.marks[addr].Generation
}

// raise keeps a generation that is higher than the one known. It is on disk before raise returns.
func (w *watermarks) raise(addr, gateway string, generation uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if generation <= w.marks[addr].Generation {
		return nil
	}
	if w.marks == nil {
		w.marks = make(map[string]watermark)
	}
	w.marks[addr] = watermark{Gateway: gateway, Generation: generation}
	if w.state == nil {
		return nil
	}
	data, err := json.Marshal(w.marks)
	if err != nil {
		return err
	}
	return w.state.write(watermarkFile, append(data, '\n'))
}
