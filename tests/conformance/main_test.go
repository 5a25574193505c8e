package conformance

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/fairway-edge/fairway/tests/rig"
)

// suite lends its life to what several tests share. What goes wrong while it is made fails the test that asked first.
type suite struct {
	testing.TB // of that test
	mu         sync.Mutex
	ends       []func()
	failed     bool
}

var whole = &suite{}

func (s *suite) Failed() bool { return s.failed || s.TB.Failed() }
func (s *suite) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}
func (s *suite) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (s *suite) Errorf(format string, args ...any) { s.failed = true; s.Logf(format, args...) }
func (s *suite) TempDir() string {
	dir, err := os.MkdirTemp("", "fairway-conformance-")
	if err != nil {
		panic(err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	for i := len(whole.ends) - 1; i >= 0; i-- {
		whole.ends[i]()
	}
	if whole.failed {
		code = 1
	}
	os.Exit(code)
}

// needOllama skips a test where there is no real Ollama.
func needOllama(t *testing.T) {
	t.Helper()
	if os.Getenv(rig.OllamaDirEnv) == "" {
		t.Skipf("%s is not set: build one with tests/conformance/ollama.sh", rig.OllamaDirEnv)
	}
}

// shared makes a thing once for all tests that leave it as they found it.
type shared[T any] struct {
	once sync.Once
	make func(testing.TB) T
	done bool
	it   T
}

func (s *shared[T]) of(t *testing.T) T {
	t.Helper()
	s.once.Do(func() {
		whole.TB = t
		s.it = s.make(whole)
		s.done = true
	})
	if !s.done {
		t.Fatal("what several tests share could not be made: see the first one's failure")
	}
	return s.it
}

var common = &shared[pair]{make: func(t testing.TB) pair { return makePair(t, rig.Options{NoKey: true, TLS: true}) }}

func commonPair(t *testing.T) pair {
	t.Helper()
	needOllama(t)
	return common.of(t)
}
