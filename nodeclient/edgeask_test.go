package nodeclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

func parsed(t testing.TB, body string) *edge.Request {
	t.Helper()
	r, err := edge.ParseRequest([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// at is an Ollama, or with openai a server of OpenAI's API, at an address.
func at(t testing.TB, url string, openai bool) adapter.Adapter {
	t.Helper()
	ollamaURL, further := url, []string(nil)
	if openai {
		ollamaURL, further = "off", []string{"v1=openai:" + url}
	}
	targets, err := Targets(ollamaURL, further, nil, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	return targets[0].Adapter
}

// listener accepts connections, and does with them what a test wants; nil leaves them in silence.
func listener(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var open []net.Conn
		for {
			c, err := ln.Accept()
			if err != nil {
				break
			}
			if open = append(open, c); serve != nil {
				serve(c)
			}
		}
		for _, c := range open {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String()
}

// A05: the network is cut for real, in every way and at every step, and a typed result comes of it, within the deadline.
func TestOfflineFirst(t *testing.T) {
	t.Parallel()
	closed := listener(t, func(c net.Conn) { _ = c.Close() })
	silent := listener(t, nil)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.Addr().String()
	_ = gone.Close()
	half := listener(t, func(c net.Conn) { // an answer that begins, and then nothing more
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
	})
	cut := listener(t, func(c net.Conn) { // and one that breaks off
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"message\":")
		_ = c.Close()
	})
	noTLS := listener(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); _ = c.Close() })
	const unreachable, bad = "unreachable: provider_unreachable", "bad_response: bad_provider_response"
	for _, tc := range []struct {
		name, url string
		reason    edge.DegradeReason
		detail    string
	}{
		{"refused", "http://" + nobody, edge.ServerUnreachable, unreachable},
		{"no such name", "http://nobody.invalid:1", edge.ServerUnreachable, unreachable},
		{"closed at once", "http://" + closed, edge.ServerUnreachable, unreachable},
		{"black hole", "http://" + silent, edge.DeadlineExceeded, "deadline_ms=400 elapsed"},
		{"black hole behind TLS", "https://" + silent, edge.DeadlineExceeded, "deadline_ms=400 elapsed"},
		{"half an answer", "http://" + half, edge.DeadlineExceeded, "deadline_ms=400 elapsed"},
		{"cut answer", "http://" + cut, edge.ServerUnreachable, unreachable},
		{"no TLS", "https://" + noTLS, edge.ServerUnreachable, unreachable},
		{"another protocol", "http://" + listener(t, func(c net.Conn) { _, _ = io.WriteString(c, "220 mail\r\n"); _ = c.Close() }), edge.OtherError, bad},
	} {
		for _, openai := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, openai), func(t *testing.T) {
				t.Parallel()
				r := parsed(t, request(schemaOperator, "x", `"deadline_ms":400`))
				start := time.Now()
				m := Ask(t.Context(), at(t, tc.url, openai), r, edge.Gates{})
				if d := time.Since(start); d > late(400*time.Millisecond) {
					t.Errorf("it took %s", d)
				}
				if tc.name == "no such name" && m.DegradeReason == edge.DeadlineExceeded {
					t.Skip("the resolver here does not answer within the deadline")
				}
				if m.Status != edge.Unavailable || m.DegradeReason != tc.reason || m.DegradeDetail != tc.detail || m.LatencyMS <= 0 {
					t.Errorf("%+v", m)
				}
				if _, err := m.MarshalJSON(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	f := fakeollama.Start(t, fakeollama.Options{Models: []string{"ours:latest", "t-say:latest"}})
	for _, stream := range []string{"false", "true"} {
		r := parsed(t, request(strings.Replace(schemaOperator, "ours", "t-say", 1), `⟦{"a":"b"}⟧`, `"stream":`+stream))
		for _, openai := range []bool{false, true} {
			if m := Ask(t.Context(), at(t, f.URL(), openai), r, edge.Gates{}); m.Status != edge.Success || m.ModelID != "t-say" {
				t.Errorf("%+v", m)
			}
		}
	}
	f.SetBusy(true)
	if m := Ask(t.Context(), at(t, f.URL(), false), parsed(t, request(schemaOperator, "x")), edge.Gates{}); m.DegradeDetail != "busy: provider_busy" {
		t.Errorf("%+v", m)
	}
	r := parsed(t, request(strings.Replace(schemaOperator, "ours", "none", 1), "x"))
	if m := Ask(t.Context(), at(t, f.URL(), false), r, edge.Gates{}); m.DegradeDetail != "model_missing: no_such_model" {
		t.Errorf("%+v", m)
	}
	before := f.Stats().Exec
	if m := Ask(t.Context(), at(t, f.URL(), false), r, edge.Gates{Budget: edge.Budget{Tokens: 10}}); !strings.HasPrefix(m.DegradeDetail, "gate: budget") || f.Stats().Exec != before {
		t.Errorf("%+v", m)
	}
}

func TestAskCanceled(t *testing.T) {
	t.Parallel()
	f := fakeollama.Start(t, fakeollama.Options{Models: []string{"ours:latest"}})
	if err := f.SetFault(fakeollama.Fault{Kind: "hang"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = f.Wait(ctx, func(r fakeollama.Record) bool { return r.Executed })
		cancel()
	}()
	if m := Ask(ctx, at(t, f.URL(), false), parsed(t, request(schemaOperator, "x")), edge.Gates{}); m.DegradeDetail != "canceled" {
		t.Errorf("%+v", m)
	}
	hungUp(t, f)
}

// The retry gate: again only while nothing ran, and not for ever.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	refusal := fmt.Errorf("%w: refused", adapter.ErrNotSent)
	for name, tc := range map[string]struct {
		refusals int // of connects, before one works
		do       error
		dials    int
		asked    int32
		ok       bool
	}{
		"at once":           {dials: 1, asked: 1, ok: true},
		"the third time":    {refusals: 2, dials: 3, asked: 1, ok: true},
		"never":             {refusals: 9, dials: 3},
		"broken once asked": {do: errors.New("reset"), dials: 1, asked: 1},
		"not sent":          {do: refusal, dials: 3, asked: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPurse()
			dials := 0
			p.dial = func(context.Context) error {
				if dials++; dials <= tc.refusals {
					return refusal
				}
				return nil
			}
			p.purseDo(tc.do)
			m := Ask(t.Context(), p, parsed(t, request(schemaOperator, "x")), edge.Gates{})
			if (m.Status == edge.Success) != tc.ok || dials != tc.dials || p.asked.Load() != tc.asked {
				t.Errorf("%+v after %d dials, asked %d times", m, dials, p.asked.Load())
			}
		})
	}
}

// purseDo has it fail, or say {"a":"b"}.
func (p *purse) purseDo(err error) {
	p.do = func(context.Context, *adapter.Request, string) (*adapter.Response, error) {
		if err != nil {
			return nil, err
		}
		return reply(200, `{"message":{"content":"{\"a\":\"b\"}"},"done":true}`), nil
	}
}

func TestAskNeverPanics(t *testing.T) {
	t.Parallel()
	p := newPurse()
	p.dial = func(context.Context) error { panic("a fault") }
	if m := Ask(t.Context(), p, parsed(t, request(schemaOperator, "x")), edge.Gates{}); m.DegradeDetail != "internal" {
		t.Errorf("%+v", m)
	}
}

// A provider's own no is told from an answer that is none, and a lease is spoken of only where there was one.
func TestAskRefused(t *testing.T) {
	t.Parallel()
	for status, want := range map[int][2]string{
		400: {"bad_response: provider_refused", "bad_response: provider_refused"},
		401: {"refused: provider_locked", "lease: credential_rejected"},
		403: {"refused: provider_locked", "lease: credential_rejected"},
		500: {"bad_response: provider_error", "bad_response: provider_error"},
	} {
		url := "http://" + listener(t, func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n", status)
			_ = c.Close()
		})
		r := parsed(t, request(schemaOperator, "x"))
		for _, openai := range []bool{false, true} {
			if m := Ask(t.Context(), at(t, url, openai), r, edge.Gates{}); m.DegradeDetail != want[0] {
				t.Errorf("%d: %+v, want %s", status, m, want[0])
			}
		}
		q := newQuestion(r, "", "ollama", time.Now())
		q.lent = true
		if o := q.read(&adapter.Response{Status: status}); o.result.DegradeDetail != want[1] {
			t.Errorf("%d with a credential: %+v, want %s", status, o.result, want[1])
		}
	}
}
