// Package hostile attacks a gateway over HTTP. Tests bear the numbers of the attack list in docs/threats.md; those on the node protocol
// (21 to 40) are in package tunnel, beside what they attack. After each the process is alive, other requests are served, and nothing that was not allowed has
// reached a provider.
package hostile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// target is one gateway for all attacks of this package.
type target struct {
	*rig.Gateway
	fake *fakeollama.Server
}

func newTarget(t *testing.T, o rig.Options) target {
	t.Helper()
	fake := fakeollama.Start(t, fakeollama.Options{})
	g := rig.NewGateway(t, o)
	g.NodeOf("n1", fake.URL(), "--credits", "64")
	tg := target{g, fake}
	rig.Eventually(t, 10*time.Second, "serves", func() bool { return tg.well() })
	t.Cleanup(func() {
		if !tg.well() {
			t.Error("after the attack the gateway does not serve")
		}
		for _, rec := range fake.Log() {
			if rec.Method == "DELETE" || rec.Path == "/api/pull" || rec.Path == "/api/create" || rec.Path == "/api/push" {
				t.Errorf("%s %s reached the provider", rec.Method, rec.Path)
			}
		}
	})
	return tg
}

func (g target) well() bool {
	r, _ := g.Do("POST", "/api/chat", chat("t-echo"))
	return r.StatusCode == 200
}

func chat(model string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}],"stream":false}`, model)
}

// raw sends bytes as they are and returns every status that came back, and all that did.
func (g target) raw(t *testing.T, request string) (statuses []int, all string) {
	t.Helper()
	var d net.Dialer
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(g.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	request = strings.ReplaceAll(strings.ReplaceAll(request, "\n", "\r\n"), "KEY", rig.Key)
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	br := bufio.NewReader(io.TeeReader(c, &buf))
	for {
		r, err := http.ReadResponse(br, nil)
		if err != nil {
			return statuses, buf.String()
		}
		statuses = append(statuses, r.StatusCode)
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Close {
			return statuses, buf.String()
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
	}
}

const hidden = "DELETE /api/delete HTTP/1.1\nHost: x\nContent-Length: 18\n\n{\"model\":\"t-gone\"}"

// Attacks 1 to 6, 9, 10: framing that two servers could read in two ways.
func TestAttacks01to06Framing(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{})
	show := `{"model":"t-echo"}`
	head := "POST /api/show HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\n"
	for _, tt := range []struct {
		name, request string
		first         []int // the first answer is one of these
	}{
		{"01 length and chunked", head + "Content-Length: 5\nTransfer-Encoding: chunked\n\n12\n" + show + "\n0\n\n" + hidden, []int{200, 400}},
		{"02 two lengths", head + "Content-Length: 18\nContent-Length: 5\n\n" + show + hidden, []int{400}},
		{"03 xchunked", head + "Transfer-Encoding: xchunked\n\n12\n" + show + "\n0\n\n", []int{400, 501}},
		{"03 two codings", head + "Transfer-Encoding: chunked\nTransfer-Encoding: identity\n\n12\n" + show + "\n0\n\n", []int{400, 501}},
		{"04 chunk size 0x12", head + "Transfer-Encoding: chunked\n\n0x12\n" + show + "\n0\n\n", []int{400}},
		{"04 chunk size of 2^68", head + "Transfer-Encoding: chunked\n\nfffffffffffffffff\n" + show + "\n0\n\n", []int{400}},
		{"05 space before the colon", head + "Content-Length : 18\n\n" + show, []int{400}},
		{"05 two hosts", "GET /api/tags HTTP/1.1\nHost: a\nHost: b\nAuthorization: Bearer KEY\n\n", []int{400}},
		{"05 a host with a fragment", "GET /api/tags HTTP/1.1\nHost: x/#\nAuthorization: Bearer KEY\n\n", []int{400}},
		{"06 a folded header", "GET /api/tags HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\nX-A: 1\n X-Fairway-Node: n1\n\n", []int{200, 400}},
		{"07 absolute form", "GET http://169.254.169.254/latest HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\n\n", []int{404}},
		{"09 CONNECT", "CONNECT 10.0.0.1:22 HTTP/1.1\nHost: 10.0.0.1:22\nAuthorization: Bearer KEY\n\n", []int{400, 404, 405}},
		{"09 h2c", "GET /api/tags HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n\n", []int{200, 400}},
		{"09 websocket", "GET /api/chat HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\nConnection: Upgrade\nUpgrade: websocket\n\n", []int{400, 405}},
		{"10 two credentials", "GET /api/tags HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\nAuthorization: Bearer x\n\n", []int{400}},
		{"11 Connection names a protected header", head + "Connection: Authorization\nContent-Length: 18\n\n" + show, []int{400}},
		{"11 Connection names our own", head + "Connection: X-Fairway-Run\nContent-Length: 18\n\n" + show, []int{400}},
		{"11 Connection names the length", head + "Connection: Content-Length\nContent-Length: 18\n\n" + show, []int{400}},
		{"13 early data", head + "Early-Data: 1\nContent-Length: 18\n\n" + show, []int{425}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			statuses, all := g.raw(t, tt.request)
			if len(statuses) == 0 || !contains(tt.first, statuses[0]) {
				t.Fatalf("%v %q", statuses, all)
			}
			for _, s := range statuses[1:] {
				if s < 400 {
					t.Errorf("a hidden request was answered: %v", statuses)
				}
			}
			if statuses[0] >= 500 && statuses[0] != 501 {
				t.Errorf("%v", statuses)
			}
		})
	}
}

func contains(list []int, n int) bool {
	for _, x := range list {
		if x == n {
			return true
		}
	}
	return false
}

// Attacks 8 and 18: paths and methods that could mean another endpoint further on. `//api/pull` is `/api/pull`, a 403.
func TestAttack08Paths(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{})
	for path, status := range map[string]int{
		"/api/chat/../pull": 404, "/api/%2e%2e/api/pull": 404, "/api%2fpull": 404, "//api/pull": 403, "/API/PULL": 404, "/api/pull;x": 404, "/api/./pull": 404,
		"/api/pull/": 403, "/api/pull%00": 404, "/api/pull%20": 404, "/v1/../api/pull": 404, "/api/blobs/../pull": 404, "/api/blobs/sha256:..%2f..%2fetc": 404,
		"/api/signout": 403, "/api/experimental/web_search": 403, "/api/push": 403, "/api/create": 403,
	} {
		statuses, all := g.raw(t, "POST "+path+" HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\nConnection: close\nContent-Length: 13\n\n{\"model\":\"x\"}")
		if len(statuses) != 1 || statuses[0] != status {
			t.Errorf("%s: %v, want %d\n%s", path, statuses, status, all)
		}
	}
	for _, req := range []string{"DELETE /api/chat", "PUT /api/chat", "GET /api/chat", "PATCH /api/show", "TRACE /api/tags", "POST /api/tags"} {
		if statuses, _ := g.raw(t, req+" HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\nConnection: close\n\n"); len(statuses) != 1 || statuses[0] != 405 {
			t.Errorf("%s: %v", req, statuses)
		}
	}
}

// Attack 12: names that only the gateway may say.
func TestAttack12IdentityHeaders(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{})
	r, _ := g.Do("POST", "/api/chat", chat("t-echo"), "X-Fairway-Principal", "root", "x-fairway-run", "forged", "X-Fairway-Error", "x")
	if r.StatusCode != 200 || r.Header.Get("X-Fairway-Run") == "forged" || r.Header.Get("X-Fairway-Error") != "" {
		t.Fatalf("%d %v", r.StatusCode, r.Header)
	}
	statuses, _ := g.raw(t, "POST /api/chat HTTP/1.1\nHost: x\nX_Fairway_Principal: alice\nX-Fairway-Principal: alice\nConnection: close\nContent-Length: 2\n\n{}")
	if len(statuses) != 1 || statuses[0] != 401 {
		t.Fatalf("%v", statuses)
	}
	for _, rec := range g.fake.Log() {
		for _, h := range rec.Headers {
			if strings.HasPrefix(strings.ToLower(strings.ReplaceAll(h[0], "_", "-")), "x-fairway") {
				t.Errorf("%s reached the provider", h[0])
			}
		}
	}
}

// Attacks 14, 15: bodies that are too long, or grow.
func TestAttack14Bodies(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{Site: "\t\tmax_body 1MiB\n"})
	before := rig.Use(t, g.Pid()).RSS
	r, body := g.Do("POST", "/api/chat", `{"model":"t-echo","pad":"`+strings.Repeat("x", 2<<20)+`"}`)
	if r.StatusCode != 413 || !strings.HasPrefix(body, `{"error":`) {
		t.Errorf("declared: %d %s", r.StatusCode, body)
	}
	if r, _ := g.Upload("/api/chat", io.LimitReader(endless{}, 64<<20)); r.StatusCode != 413 {
		t.Errorf("undeclared: %d", r.StatusCode)
	}
	statuses, _ := g.raw(t, "POST /api/chat HTTP/1.1\nHost: x\nAuthorization: Bearer KEY\nContent-Length: 999999999999\n\n{}")
	if len(statuses) != 1 || statuses[0] != 413 {
		t.Errorf("declared and never sent: %v", statuses)
	}
	bomb := bytes.Repeat([]byte{0}, 1000)
	for _, enc := range []string{"gzip", "br", "deflate", "zstd, gzip", "zstd"} {
		if r, body := g.Do("POST", "/v1/chat/completions", string(bomb), "Content-Encoding", enc); r.StatusCode != 415 && r.StatusCode != 400 {
			t.Errorf("%s: %d %s", enc, r.StatusCode, body)
		}
	}
	if after := rig.Use(t, g.Pid()).RSS; after-before > 64<<10 && os.Getenv("FAIRWAY_RACE") == "" {
		t.Errorf("grew by %d KiB", after-before)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	return copy(p, bytes.Repeat([]byte("x"), min(len(p), 4096))), nil
}

// Attacks 16, 17: bodies in which two readers could see two models, and names that are something else.
func TestAttack16Bodies(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{})
	execs := g.fake.Stats().Exec
	for _, body := range []string{
		`{"model":"t-echo","model":"t-gone","messages":[]}`, `{"Model":"t-echo","model":"t-gone","messages":[]}`, `{"model":"t-echo"} {"model":"t-gone"}`,
		`{"model":"t-echo"}garbage`, "\ufeff" + chat("t-echo"), strings.Repeat("[", 100000), `{"model":"t-echo","messages":` + strings.Repeat("[", 100000) + `}`,
		"{\"model\":\"t-echo\xff\"}", `{"model":["t-echo"]}`, `{"model":{"a":1}}`, ``, `null`, `"t-echo"`, `{"mod\u0065l":"t-gone","model":"t-echo","messages":[]}`,
	} {
		if r, answer := g.Do("POST", "/api/chat", body); r.StatusCode != 400 {
			t.Errorf("%.60q: %d %s", body, r.StatusCode, answer)
		}
	}
	for _, name := range []string{"169.254.169.254/library/x", "http://evil/x", "../../x", strings.Repeat("x", 5000), "", "a/b/c/d/e", "x:y:z", "x@sha256:aa"} {
		if r, answer := g.Do("POST", "/api/chat", chat(name)); r.StatusCode != 400 && r.StatusCode != 404 {
			t.Errorf("%.60q: %d %s", name, r.StatusCode, answer)
		}
	}
	if n := g.fake.Stats().Exec; n != execs {
		t.Errorf("%d of these ran", n-execs)
	}
}

// Attack 19: streams that are opened and reset as fast as one can. There is no limit to answer 429 by yet; what is taken comes back.
func TestAttack19RapidReset(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{TLS: true})
	const total = 10000
	goroutines := g.Metric("go_goroutines")
	for range 4 {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true} //nolint:gosec // a CA of the test's own
		work := make(chan struct{}, total/4)
		for range total / 4 {
			work <- struct{}{}
		}
		close(work)
		done := make(chan struct{})
		for range 50 {
			go func() {
				defer func() { done <- struct{}{} }()
				for range work {
					ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
					req, _ := http.NewRequestWithContext(ctx, "POST", fmt.Sprintf("https://localhost:%d/api/chat", g.HTTPS), strings.NewReader(chat("t-slowload")))
					req.Header.Set("Authorization", "Bearer "+rig.Key)
					if r, err := tr.RoundTrip(req); err == nil {
						r.Body.Close()
					}
					cancel()
				}
			}()
		}
		for range 50 {
			<-done
		}
		tr.CloseIdleConnections()
	}
	rig.Eventually(t, 20*time.Second, "everything is back", func() bool {
		row := g.Node("n1")
		return row != nil && row.Targets[0].Credits.Free == row.Targets[0].Credits.Granted && g.Metric("fairway_runs_in_flight") == 0 &&
			g.fake.Stats().Inflight == 0 && g.Metric("go_goroutines") < goroutines+100
	})
}

// Attack 20: wrong keys. The answer is constant, nothing of them is logged, and a key in the query is no key.
func TestAttack20Keys(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{})
	var first string
	for i := range 200 {
		key := fmt.Sprintf("sk-guess-%d", i)
		r, body := g.Do("POST", "/api/chat", chat("t-echo"), "Authorization", "Bearer "+key)
		if first == "" {
			first = body
		}
		if r.StatusCode != 401 || body != first {
			t.Fatalf("%d %s", r.StatusCode, body)
		}
	}
	if r, _ := g.Do("POST", "/api/chat?key="+rig.Key, chat("t-echo"), "Authorization", ""); r.StatusCode != 401 {
		t.Errorf("a key in the query: %d", r.StatusCode)
	}
	if strings.Contains(g.Log(), "sk-guess") {
		t.Error("guessed keys are logged")
	}
}

// Slow heads and bodies hold a connection, not a credit.
func TestSlowlorisHoldsNoCredit(t *testing.T) {
	t.Parallel()
	g := newTarget(t, rig.Options{})
	for range 100 {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://")) //nolint:noctx // loopback
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "POST /api/chat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+rig.Key+"\r\nContent-Length: 1000\r\n\r\n{\"model\":")
	}
	time.Sleep(300 * time.Millisecond)
	row := g.Node("n1")
	if c := row.Targets[0].Credits; c.Free != c.Granted {
		t.Errorf("%d of %d credits are held by bodies that do not come", c.Granted-c.Free, c.Granted)
	}
	if !g.well() {
		t.Error("others are not served")
	}
}
