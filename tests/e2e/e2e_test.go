// Package e2e holds tests of whole fleets in child processes: what a user would notice.
package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// credits lets a node take more than one run of a model at once, where a test is not about that.
const credits = "64"

// fleet is a gateway with one node on a fake Ollama.
func fleet(t *testing.T, o rig.Options) (*rig.Gateway, *rig.Node, *fakeollama.Server) {
	t.Helper()
	fake := fakeollama.Start(t, fakeollama.Options{})
	g := rig.NewGateway(t, o)
	n := g.NodeOf("n1", fake.URL(), "--credits", credits)
	waitModel(t, g, "t-echo")
	return g, n, fake
}

func waitModel(t *testing.T, g *rig.Gateway, model string) {
	t.Helper()
	rig.Eventually(t, 10*time.Second, "model "+model+" is listed", func() bool {
		_, body := g.Do("GET", "/api/tags", "")
		return strings.Contains(body, `"`+model)
	})
}

func chat(model string, knobs string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}]%s}`, model, knobs)
}

// clients are ways to reach a gateway that has TLS.
func clients(t *testing.T, g *rig.Gateway) map[string]client {
	t.Helper()
	conf := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"} //nolint:gosec // a CA of the test's own
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", g.HTTPS))
	}
	h2 := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, DialContext: dial}
	h3 := &http3.Transport{TLSClientConfig: conf.Clone()}
	t.Cleanup(func() { h2.CloseIdleConnections(); _ = h3.Close() })
	h1 := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(h1.CloseIdleConnections)
	return map[string]client{
		"h1": {h1, g.URL()},
		"h2": {h2, fmt.Sprintf("https://localhost:%d", g.HTTPS)},
		"h3": {h3, fmt.Sprintf("https://localhost:%d", g.HTTPS)},
	}
}

type client struct {
	http.RoundTripper
	base string
}

func (c client) post(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+rig.Key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.RoundTrip(req)
}

// plain is a client of the plain site with connections of its own.
func plain(t *testing.T, g *rig.Gateway) client {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(tr.CloseIdleConnections)
	return client{tr, g.URL()}
}

// idle waits until nothing is in flight anywhere: credits back, the provider's connections closed.
func idle(t *testing.T, g *rig.Gateway, fake *fakeollama.Server) {
	t.Helper()
	rig.Eventually(t, 10*time.Second, "credits, runs and provider are idle", func() bool {
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
		return fake.Stats().Inflight == 0 && g.Metric("fairway_runs_in_flight") == 0
	})
}

// outcomes counts the runs that ended in a way.
func outcomes(g *rig.Gateway, outcome string) int {
	return int(g.Metric("fairway_runs_total", `outcome="`+outcome+`"`))
}

func readAll(t *testing.T, r *http.Response) string {
	t.Helper()
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v after %q", err, b)
	}
	return string(b)
}

// parallel runs f n times at once and waits.
func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
