package http1

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// canned answers every request for tinyChat with fixed bytes on a raw
// connection, so that the benchmark sees little but the client.
func canned(b *testing.B, answer string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	out := []byte(answer)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serveCanned(c, out)
		}
	}()
	return "http://" + ln.Addr().String()
}

func serveCanned(c net.Conn, answer []byte) {
	defer c.Close()
	buf, n := make([]byte, 4<<10), 0
	for {
		m, err := c.Read(buf[n:])
		if err != nil {
			return
		}
		if n += m; !bytes.HasSuffix(buf[:n], []byte(tinyChat)) {
			continue
		}
		if n = 0; !write(c, answer) {
			return
		}
	}
}

func write(w io.Writer, b []byte) bool {
	_, err := w.Write(b)
	return err == nil
}

var smallAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n" +
	"Content-Length: 400\r\n\r\n" + strings.Repeat("x", 400)

func BenchmarkSmall(b *testing.B) {
	a := newServer(b, canned(b, smallAnswer))
	b.ReportAllocs()
	buf := make([]byte, 64<<10)
	for b.Loop() {
		resp, err := do(b.Context(), a, chat(tinyChat))
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = resp.Body.Read(buf)
		}
		resp.Body.Close()
	}
}

// BenchmarkSmallHTTPClient is the same through net/http, for comparison.
func BenchmarkSmallHTTPClient(b *testing.B) {
	origin := canned(b, smallAnswer)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := http.Post(origin+"/api/chat", "application/json", strings.NewReader(tinyChat))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func BenchmarkDial(b *testing.B) {
	s := fakeollama.Start(b, fakeollama.Options{})
	a := newServer(b, s.URL())
	b.ReportAllocs()
	for b.Loop() {
		c, err := a.Connect(b.Context(), false)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// BenchmarkStreams reads 200 token streams at once; an iteration is one token of
// each.
func BenchmarkStreams(b *testing.B) {
	const streams = 200
	s := fakeollama.Start(b, fakeollama.Options{})
	if err := s.SetFault(fakeollama.Fault{Kind: "endless"}); err != nil {
		b.Fatal(err)
	}
	a := newServer(b, s.URL())
	bodies := make([]io.ReadCloser, streams)
	for i := range bodies {
		resp, err := do(b.Context(), a, chat(tinyChat))
		if err != nil {
			b.Fatal(err)
		}
		bodies[i] = resp.Body
	}
	b.ReportAllocs()
	buf := make([]byte, 4<<10)
	for b.Loop() {
		for _, body := range bodies {
			if _, err := body.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, body := range bodies {
		body.Close()
	}
}

func BenchmarkFlood(b *testing.B) {
	const size = 16 << 20
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 16777216\r\n\r\n" + strings.Repeat("F", size)
	a := newServer(b, canned(b, answer))
	b.SetBytes(size)
	b.ReportAllocs()
	buf := make([]byte, 64<<10)
	for b.Loop() {
		resp, err := do(b.Context(), a, chat(tinyChat))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParallel(b *testing.B) {
	a := newServer(b, canned(b, smallAnswer))
	bufs := sync.Pool{New: func() any { return make([]byte, 64<<10) }}
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		buf := bufs.Get().([]byte)
		for pb.Next() {
			resp, err := do(b.Context(), a, chat(tinyChat))
			if err != nil {
				b.Error(err)
				return
			}
			for err == nil {
				_, err = resp.Body.Read(buf)
			}
		}
	})
}
