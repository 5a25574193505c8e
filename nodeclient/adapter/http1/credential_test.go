package http1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

const canary = "canary-5f2a91c4d07be386"

// secret is a credential that remembers what was asked of it.
type secret struct {
	name  string
	line  []byte
	err   error
	onAsk func()

	asked, cleared atomic.Int32
	gone           chan struct{} // closed by the first Clear
}

func newSecret() *secret { return secretOf("Authorization", "Authorization: Bearer "+canary+"\r\n") }

func secretOf(name, line string) *secret {
	return &secret{name: name, line: []byte(line), gone: make(chan struct{})}
}

func (s *secret) Header() string { return s.name }

func (s *secret) Line() ([]byte, error) {
	if s.onAsk != nil {
		s.onAsk()
	}
	s.asked.Add(1)
	return s.line, s.err
}

func (s *secret) Clear() {
	clear(s.line)
	if s.cleared.Add(1) == 1 {
		close(s.gone)
	}
}

// doOwn sends r on a connection of its own.
func doOwn(ctx context.Context, a *Server, r *adapter.Request) (*adapter.Response, error) {
	c, err := a.Connect(ctx, true)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Do(ctx, r)
}

func with(r *adapter.Request, cred adapter.Credential) *adapter.Request {
	r.Credential = cred
	return r
}

func TestCredentialIsTheLastLine(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	for name, line := range map[string]string{
		"Authorization": "Bearer " + canary, "x-api-key": canary, "Api-Key": canary, "X-Their-Own": canary,
	} {
		cred := secretOf(name, name+": "+line+"\r\n")
		cred.onAsk = func() {
			if err := s.WaitStats(within(t, 5*time.Second), func(st fakeollama.Stats) bool { return st.Open > 0 }); err != nil {
				t.Error("the line was asked for without a connection")
			}
		}
		var others []adapter.Header // of the caller, in every spelling
		for _, n := range []string{"authorization", "X-API-KEY", "api_key", "x_their_own", strings.ToUpper(name), strings.ToLower(name)} {
			others = append(others, adapter.Header{Name: n, Value: "mine"})
		}
		resp, err := doOwn(t.Context(), a, with(chat(tinyChat, others...), cred))
		if err != nil || resp.Status != 200 {
			t.Fatal(resp, err)
		}
		io.Copy(io.Discard, resp.Body)
		log := s.Log()
		want := [][2]string{
			{"Host", s.Addr()}, {"Content-Type", "application/json"}, {"x_their_own", "mine"}, {"Connection", "close"},
			{"Content-Length", fmt.Sprint(len(tinyChat))}, {name, line},
		}
		if name == "X-Their-Own" { // known for a credential only now
			want = slices.Delete(want, 2, 3)
		}
		if got := log[len(log)-1].Headers; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: provider saw\n%q, want\n%q", name, got, want)
		}
		if cred.asked.Load() != 1 || cred.cleared.Load() == 0 {
			t.Errorf("%s: asked %d times, cleared %d times", name, cred.asked.Load(), cred.cleared.Load())
		}
	}
	if n := a.idle.len(); n != 0 {
		t.Errorf("%d connections in the pool", n)
	}
}

// tlsServer is a provider with a certificate that a trusts.
func tlsServer(t *testing.T, h http.HandlerFunc) *Server {
	t.Helper()
	ts := httptest.NewUnstartedServer(h)
	ts.Config.ErrorLog = log.New(io.Discard, "", 0)
	ts.StartTLS()
	t.Cleanup(ts.Close)
	a := newServer(t, ts.URL)
	a.tls.RootCAs = roots(ts)
	return a
}

func plainServer(t *testing.T, h http.HandlerFunc) *Server {
	t.Helper()
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	return newServer(t, ts.URL)
}

func roots(ts *httptest.Server) *x509.CertPool {
	return ts.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
}

// The credential is gone while the provider still thinks, and the request is
// whole whatever its body.
func TestCredentialIsClearedBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("abcdefgh", 40<<10)
	for name, start := range map[string]func(*testing.T, http.HandlerFunc) *Server{"tcp": plainServer, "tls": tlsServer} {
		for kind, r := range map[string]func() *adapter.Request{
			"none":    func() *adapter.Request { return &adapter.Request{Method: "GET", Path: "/v1/models"} },
			"small":   func() *adapter.Request { return chat(tinyChat) },
			"large":   func() *adapter.Request { return chat(big) },
			"unknown": func() *adapter.Request { r := chat(big); r.Length = -1; return r },
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				cred := newSecret()
				a := start(t, func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-cred.gone:
					case <-time.After(10 * time.Second):
						t.Error("not cleared")
					}
					n, _ := io.Copy(io.Discard, r.Body)
					fmt.Fprint(w, r.Header["Authorization"], n, r.Close)
				})
				req := r()
				size := 0
				if req.Body != nil {
					size = req.Body.(*strings.Reader).Len()
				}
				resp, err := doOwn(t.Context(), a, with(req, cred))
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				if want := fmt.Sprint([]string{"Bearer " + canary}, size, true); err != nil || string(got) != want {
					t.Errorf("provider saw %s, want %s (%v)", got, want, err)
				}
			})
		}
	}
}

func TestCredentialOfARequestThatIsNotSent(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	ended, end := context.WithCancel(t.Context())
	end()
	lost := newSecret()
	lost.err = errors.New("no memory")
	for name, tc := range map[string]struct {
		r      *adapter.Request
		shared bool
		used   bool
		ctx    context.Context
		asked  int32
	}{
		"shared connection": {r: with(chat(tinyChat), newSecret()), shared: true},
		"used connection":   {r: with(chat(tinyChat), newSecret()), used: true},
		"method":            {r: with(&adapter.Request{Method: "CONNECT", Path: "/"}, newSecret())},
		"header":            {r: with(chat(tinyChat, adapter.Header{Name: "X-A", Value: "a\r\n"}), newSecret())},
		"short body":        {r: with(&adapter.Request{Method: "POST", Path: "/", Body: strings.NewReader("ab"), Length: 3}, newSecret())},
		"failing source":    {r: with(&adapter.Request{Method: "POST", Path: "/", Body: failing{}, Length: 3}, newSecret())},
		"canceled":          {r: with(chat(tinyChat), newSecret()), ctx: ended},
		"no line":           {r: with(chat(tinyChat), lost), asked: 1},
		"second header":     {r: with(chat(tinyChat), secretOf("X-A", "X-A: "+canary+"\r\nX-B: c\r\n")), asked: 1},
		"end of head":       {r: with(chat(tinyChat), secretOf("X-A", "X-A: "+canary+"\r\n\r\n")), asked: 1},
		"lone LF":           {r: with(chat(tinyChat), secretOf("X-A", "X-A: "+canary+"\nX-B: c\r\n")), asked: 1},
		"NUL":               {r: with(chat(tinyChat), secretOf("X-A", "X-A: "+canary+"\x00\r\n")), asked: 1},
		"unended":           {r: with(chat(tinyChat), secretOf("X-A", "X-A: "+canary)), asked: 1},
		"other name":        {r: with(chat(tinyChat), secretOf("X-A", "X-B: "+canary+"\r\n")), asked: 1},
		"no value":          {r: with(chat(tinyChat), secretOf("X-A", "X-A: \r\n")), asked: 1},
		"empty line":        {r: with(chat(tinyChat), secretOf("X-A", "")), asked: 1},
		"framing":           {r: with(chat(tinyChat), secretOf("Content_Length", "Content_Length: "+canary+"\r\n"))},
		"host":              {r: with(chat(tinyChat), secretOf("Host", "Host: "+canary+"\r\n"))},
		"hop":               {r: with(chat(tinyChat), secretOf("Connection", "Connection: "+canary+"\r\n"))},
		"name":              {r: with(chat(tinyChat), secretOf("X A", "X A: "+canary+"\r\n"))},
		"no name":           {r: with(chat(tinyChat), secretOf("", ": "+canary+"\r\n"))},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			c, err := a.Connect(t.Context(), !tc.shared)
			if err != nil {
				t.Fatal(err)
			}
			if tc.used {
				c.Close()
			}
			_, err = c.Do(ctx, tc.r)
			if !errors.Is(err, adapter.ErrNotSent) || strings.Contains(err.Error(), canary) {
				t.Errorf("error %v", err)
			}
			cred := tc.r.Credential.(*secret)
			if cred.asked.Load() != tc.asked || cred.cleared.Load() == 0 || bytes.Contains(cred.line, []byte(canary)) {
				t.Errorf("asked %d times, want %d; cleared %d times", cred.asked.Load(), tc.asked, cred.cleared.Load())
			}
		})
	}
	if n := len(s.Log()); n != 0 {
		t.Errorf("provider saw %d requests", n)
	}
	if err := s.WaitStats(within(t, 5*time.Second), func(st fakeollama.Stats) bool { return st.Open == 0 }); err != nil {
		t.Errorf("connections stay open: %+v", s.Stats())
	}
}

// The provider takes nothing: the end of the run ends the write, and the
// credential with it.
func TestCredentialOfAWriteThatHangs(t *testing.T) {
	t.Parallel()
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	t.Cleanup(cert.Close)
	for _, kind := range []string{"tcp", "tls"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			near, far := net.Pipe() // a write waits for its reader
			t.Cleanup(func() { far.Close() })
			a := newServer(t, "http://127.0.0.1:1")
			c := newConn(near, near)
			read := io.Reader(far)
			if kind == "tls" {
				a = newServer(t, "https://127.0.0.1:1")
				a.tls.RootCAs = roots(cert)
				client, server := tls.Client(near, a.tls), tls.Server(far, cert.TLS)
				go server.Handshake()
				if err := client.HandshakeContext(t.Context()); err != nil {
					t.Fatal(err)
				}
				c, read = newConn(client, near), server
			}
			ctx, cancel := context.WithCancel(t.Context())
			cred := newSecret()
			failed := make(chan error, 1)
			go func() {
				_, err := (&exchange{s: a, c: c, own: true}).Do(ctx, with(chat(tinyChat), cred))
				failed <- err
			}()
			if _, err := io.ReadFull(read, make([]byte, 1)); err != nil { // it is being written
				t.Fatal(err)
			}
			if cred.cleared.Load() != 0 {
				t.Error("cleared before it was written")
			}
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) || errors.Is(err, adapter.ErrNotSent) {
				t.Errorf("error %v", err)
			}
			if cred.cleared.Load() == 0 {
				t.Error("not cleared")
			}
		})
	}
}

func TestCredentialOfAWriteThatFails(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	c, err := newServer(t, s.URL()).Connect(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	c.(*exchange).c.shut()
	cred := newSecret()
	if _, err := c.Do(t.Context(), with(chat(tinyChat), cred)); !errors.Is(err, adapter.ErrNotSent) || strings.Contains(err.Error(), canary) {
		t.Errorf("error %v", err)
	}
	if cred.cleared.Load() == 0 {
		t.Error("not cleared")
	}
}

// A connection that carried a credential was nobody's before and is nobody's
// after.
func TestCredentialHasItsOwnConnection(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	for range 5 {
		ask(t, a, chat(tinyChat)) // leaves a connection in the pool
		resp, err := doOwn(t.Context(), a, with(chat(tinyChat), newSecret()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	byConn := map[int][]string{}
	for _, r := range s.Log() {
		byConn[r.Conn] = append(byConn[r.Conn], fmt.Sprint(r.Headers))
	}
	for _, requests := range byConn {
		if strings.Contains(strings.Join(requests, ""), canary) && len(requests) > 1 {
			t.Errorf("%d requests on a connection with a credential", len(requests))
		}
	}
}

// tap remembers the memory that was written from.
type tap struct {
	net.Conn
	mu   sync.Mutex
	from [][]byte // guarded by mu
}

func (c *tap) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.from = append(c.from, p)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// The line is written from the credential's own memory, and what else was
// written or read is memory without it, though the provider sends it back. Not
// parallel: it looks into buffers that others would use by then.
func TestNoBufferKeepsACredential(t *testing.T) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		r, err := http.ReadRequest(bufio.NewReader(far))
		if err != nil {
			return
		}
		said := r.Header.Get("Authorization")
		fmt.Fprintf(far, "HTTP/1.1 200 OK\r\nX-Echo: %s\r\nContent-Length: %d\r\n\r\n%s", said, len(said), said)
	}()
	wire := &tap{Conn: near}
	c := newConn(wire, wire)
	cred := newSecret()
	at := &cred.line[0]
	br := c.br
	x := &exchange{s: newServer(t, "http://127.0.0.1:1"), c: c, own: true}
	resp, err := x.Do(t.Context(), with(chat(tinyChat), cred))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(got), canary) {
		t.Fatalf("%q %v", got, err)
	}
	lines := 0
	for _, b := range wire.from {
		if &b[0] == at {
			lines++
		}
		if bytes.Contains(b[:cap(b)], []byte(canary)) {
			t.Errorf("a buffer holds it: %q", b)
		}
	}
	if lines != 1 || len(wire.from) != 3 {
		t.Errorf("%d writes, %d of them of the line", len(wire.from), lines)
	}
	read := reflect.ValueOf(br).Elem().FieldByName("buf").Bytes()
	if len(read) != readBuffer || bytes.Contains(read, []byte(canary)) {
		t.Errorf("the read buffer holds it: %q", bytes.TrimLeft(read, "\x00"))
	}
}

// Threat T16: a provider cannot send a credential on to somebody else.
func TestCredentialIsNotRedirected(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		other := fakeollama.Start(t, fakeollama.Options{})
		a := plainServer(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL()+r.URL.Path, status)
		})
		resp, err := doOwn(t.Context(), a, with(chat(tinyChat), newSecret()))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.Status != status || header(resp.Headers, "Location") != other.URL()+"/api/chat" {
			t.Errorf("status %d, headers %v", resp.Status, resp.Headers)
		}
		if n := len(other.Log()); n != 0 {
			t.Errorf("%d requests followed the redirect", n)
		}
	}
}

// Threat T16. net/http asks the environment once a process and never for
// loopback, so the test uses another name of this machine, and makes sure that
// a client which heeds the environment would have used the proxy.
func TestProxyOfTheEnvironmentIsIgnored(t *testing.T) {
	s := fakeollama.Start(t, fakeollama.Options{})
	proxy := fakeollama.Start(t, fakeollama.Options{})
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL())
	}
	t.Setenv("NO_PROXY", "")
	t.Setenv("no_proxy", "")
	_, port, _ := net.SplitHostPort(s.Addr())
	origin := "http://0.0.0.0:" + port
	if c, err := net.Dial("tcp", "0.0.0.0:"+port); err != nil {
		t.Skipf("0.0.0.0 is nobody here: %v", err)
	} else {
		c.Close()
	}
	r, _ := http.NewRequest("GET", origin, nil)
	if u, err := http.ProxyFromEnvironment(r); err != nil || u == nil {
		t.Fatalf("this test shows nothing: proxy %v, %v", u, err)
	}
	resp, err := doOwn(t.Context(), newServer(t, origin), with(chat(tinyChat), newSecret()))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Status != 200 || len(s.Log()) != 1 || len(proxy.Log()) != 0 {
		t.Errorf("status %d; provider saw %d requests, proxy %d", resp.Status, len(s.Log()), len(proxy.Log()))
	}
}

// What is taken for a line, a server reads as one header of that name.
func FuzzCredentialLine(f *testing.F) {
	f.Add("Authorization", "Authorization: Bearer x\r\n")
	f.Add("X-A", "X-A: a\r\nTransfer-Encoding: chunked\r\n")
	f.Add("Content_Length", "Content_Length: 3\r\n")
	f.Fuzz(func(t *testing.T, name, raw string) {
		cred := secretOf(name, raw)
		line, err := lineOf(cred)
		if err != nil {
			return
		}
		r := with(chat(tinyChat, adapter.Header{Name: name, Value: "mine"}), cred)
		head, err := appendHead(nil, "127.0.0.1:11434", r, true)
		if err != nil {
			t.Fatal(err)
		}
		br := bufio.NewReader(io.MultiReader(bytes.NewReader(head), bytes.NewReader(line), strings.NewReader("\r\n")))
		req, err := http.ReadRequest(br)
		if err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		got := req.Header[http.CanonicalHeaderKey(name)]
		if len(got) != 1 || !strings.Contains(raw, got[0]) || br.Buffered() != 0 || req.ContentLength != int64(len(tinyChat)) || !req.Close {
			t.Errorf("server reads %q, close %v, length %d, %d bytes more", got, req.Close, req.ContentLength, br.Buffered())
		}
	})
}
