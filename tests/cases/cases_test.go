// Package cases holds what people reported who exposed an Ollama through proxies, balancers and tunnels, as tests: one for each row of the table in
// README.md, named by area and number. Raw requests are in testdata, byte for byte.
//
// Rows that wait for minutes wait for about one by default, and for as long as the report says with FAIRWAY_LONG=1.
package cases

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// suite lends its life to fleets that several rows share.
type suite struct {
	testing.TB // nil: only what the rig calls is there
	mu         sync.Mutex
	ends       []func()
	failed     bool
}

var shared = &suite{}

func (s *suite) Helper()      {}
func (s *suite) Failed() bool { return false }
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
	dir, err := os.MkdirTemp("", "fairway-cases-")
	if err != nil {
		panic(err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestMain(m *testing.M) {
	flag.Parse()
	// Most rows wait for something; two at a time would take all day.
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(maxProcs) {
		n := "24"
		if raced {
			n = "8"
		}
		_ = flag.Set("test.parallel", n)
	}
	code := m.Run()
	for i := len(shared.ends) - 1; i >= 0; i-- {
		shared.ends[i]()
	}
	if shared.failed {
		code = 1
	}
	os.Exit(code)
}

// long is a time that reports speak of, or a shorter one that still is beyond every usual time-out.
func long(short, full time.Duration) time.Duration {
	if os.Getenv("FAIRWAY_LONG") != "" {
		return full
	}
	return short
}

// raced tells that the programs run under the race detector, which slows them by several times.
var raced = os.Getenv("FAIRWAY_RACE") != ""

// within is a bound on time, wider under the race detector.
func within(d time.Duration) time.Duration {
	if raced {
		return 3 * d
	}
	return d
}

// credits lets a node take more than one run of a model at once, where a row is not about that.
const credits = "64"

// fleet is a gateway with one node on a fake.
type fleet struct {
	*rig.Gateway
	node *rig.Node
	fake *fakeollama.Server
}

func newFleet(t testing.TB, o rig.Options, args ...string) *fleet {
	t.Helper()
	fake, err := fakeollama.Listen(fakeollama.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	f := &fleet{Gateway: newGateway(t, o), fake: fake}
	f.node = f.NodeOf("n1", fake.URL(), append([]string{"--credits", credits}, args...)...)
	waitModel(t, f.Gateway, "t-echo")
	return f
}

// newGateway starts a gateway and waits until it takes nodes: its sites may answer before that.
func newGateway(t testing.TB, o rig.Options) *rig.Gateway {
	t.Helper()
	g := rig.NewGateway(t, o)
	waitGateway(t, g)
	return g
}

func waitGateway(t testing.TB, g *rig.Gateway) {
	t.Helper()
	rig.Eventually(t, 10*time.Second, "the gateway takes nodes", func() bool {
		var v any
		return g.AdminGet("/fairway/nodes", &v) == nil
	})
}

// site is where the plain site listens.
func site(g *rig.Gateway) string { return fmt.Sprintf("127.0.0.1:%d", g.HTTP) }

// send sends a file of testdata; what the fake then sees has the test's name as its id.
func (f *fleet) send(t testing.TB, file string) *reply {
	t.Helper()
	return request{File: file, ID: t.Name()}.to(t, site(f.Gateway))
}

// records returns what the fake saw of the test's requests.
func (f *fleet) records(id string) (out []fakeollama.Record) {
	for _, r := range f.fake.Log() {
		if r.ID == id {
			out = append(out, r)
		}
	}
	return out
}

// record returns the one request of the test that the fake has seen.
func (f *fleet) record(t testing.TB) fakeollama.Record {
	t.Helper()
	got := f.records(t.Name())
	if len(got) != 1 {
		t.Fatalf("the provider saw %d requests", len(got))
	}
	return got[0]
}

// gone waits until the fake has noticed that the caller of id left, and returns how long that was after closed.
func (f *fleet) gone(t testing.TB, id string, closed time.Time) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within(5*time.Second))
	defer cancel()
	if _, err := f.fake.Wait(ctx, func(r fakeollama.Record) bool { return r.ID == id && r.ClientGone > 0 }); err != nil {
		t.Errorf("the provider goes on: %v", err)
	}
	return time.Since(closed)
}

// settled waits until nothing is in flight at the gateway and its nodes.
func settled(t testing.TB, g *rig.Gateway) {
	t.Helper()
	rig.Eventually(t, 10*time.Second, "credits and gauges are back", func() bool {
		var rows []rig.NodeRow
		if g.AdminGet("/fairway/nodes", &rows) != nil {
			return false
		}
		for _, n := range rows {
			for _, target := range n.Targets {
				if target.Credits.Free != target.Credits.Granted {
					return false
				}
			}
		}
		return g.Metric("fairway_runs_in_flight") == 0
	})
}

func outcomes(g *rig.Gateway, outcome string) int {
	return int(g.Metric("fairway_runs_total", `outcome="`+outcome+`"`))
}

// chat is the body of a chat request; knobs are further members.
func chat(model, knobs string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}]%s}`, model, knobs)
}

// client is one way to reach a gateway.
type client struct {
	http.RoundTripper
	base string
}

// plain is HTTP/1.1 with connections of its own.
func plain(t testing.TB, g *rig.Gateway) client {
	tr := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(tr.CloseIdleConnections)
	return client{tr, g.URL()}
}

// secure are HTTP/2 and HTTP/3, of a gateway with TLS.
func secure(t testing.TB, g *rig.Gateway) (h2, h3 client) {
	conf := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"} //nolint:gosec // a CA of the test's own
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", g.HTTPS))
	}
	two := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, DialContext: dial}
	three := &http3.Transport{TLSClientConfig: conf}
	t.Cleanup(func() { two.CloseIdleConnections(); _ = three.Close() })
	base := fmt.Sprintf("https://localhost:%d", g.HTTPS)
	return client{two, base}, client{three, base}
}

// do sends a request with the rig's key and does not read the answer's body.
func (c client) do(ctx context.Context, method, path string, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+rig.Key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.RoundTrip(req)
}

// ask sends a request, reads the answer and returns both; status 0 when there was none.
func (c client) ask(method, path, body string, header ...string) (int, string) {
	r, err := c.do(context.Background(), method, path, strings.NewReader(body), header...)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return r.StatusCode, string(b) + "\n[cut: " + err.Error() + "]"
	}
	return r.StatusCode, string(b)
}

// burst sends n requests, so many at once, and counts the answers by status.
func burst(n, at int, ask func(i int) int) map[int]int {
	var mu sync.Mutex
	out, work := map[int]int{}, make(chan int)
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for i := range work {
				s := ask(i)
				mu.Lock()
				out[s]++
				mu.Unlock()
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	return out
}

// abort posts a chat and leaves after its first lines.
func (c client) abort(body string, lines int) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := c.do(ctx, "POST", "/api/chat", strings.NewReader(body))
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	br := bufio.NewReader(r.Body)
	for range lines {
		if _, err := br.ReadString('\n'); err != nil {
			break
		}
	}
	cancel()
	return r.StatusCode
}

func waitModel(t testing.TB, g *rig.Gateway, model string) {
	t.Helper()
	rig.Eventually(t, 10*time.Second, "model "+model+" is listed", func() bool {
		_, body := g.Do("GET", "/api/tags", "")
		return strings.Contains(body, `"`+model)
	})
}

// errorText is the text of an error in the shape of Ollama's or OpenAI's API; empty when the body has neither.
func errorText(path, body string) string {
	if strings.HasPrefix(path, "/v1/") {
		var e struct {
			Error struct{ Message, Type string }
		}
		if json.Unmarshal([]byte(body), &e) != nil || e.Error.Type == "" {
			return ""
		}
		return e.Error.Message
	}
	var e struct{ Error string }
	_ = json.Unmarshal([]byte(body), &e) // what is no JSON has no error
	return e.Error
}

// isJSON tells whether an answer is labelled and formed as JSON.
func (r *reply) isJSON() bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") && json.Valid([]byte(r.Body))
}
