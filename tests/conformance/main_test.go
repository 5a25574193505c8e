package conformance

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/fairway-edge/fairway/tests/rig"
)

// suite lends its life to what several tests share.
type suite struct {
	testing.TB // nil: only what the rig calls is there
	mu         sync.Mutex
	ends       []func()
	failed     bool
}

var whole = &suite{}

func (s *suite) Helper()      {}
func (s *suite) Failed() bool { return s.failed }
func (s *suite) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}
func (s *suite) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (s *suite) Errorf(format string, args ...any) { s.failed = true; s.Logf(format, args...) }
func (s *suite) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (s *suite) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
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

// common is the pair of all tests that leave it as they found it.
var common = sync.OnceValue(func() pair { return makePair(whole, rig.Options{NoKey: true, TLS: true}) })

func commonPair(t *testing.T) pair {
	t.Helper()
	needOllama(t)
	return common()
}
