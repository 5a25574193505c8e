package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkSmallJSON is a whole run, client to provider and back, all in one process; for profiles rather than for figures to quote.
func BenchmarkSmallJSON(b *testing.B) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		switch r.URL.Path {
		case "/api/tags":
			_, _ = io.WriteString(w, `{"models":[{"name":"bench:latest","model":"bench:latest","modified_at":"2026-01-01T00:00:00Z","size":1,"digest":"aa"}]}`)
		case "/api/ps":
			_, _ = io.WriteString(w, `{"models":[]}`)
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"model":"bench","message":{"role":"assistant","content":"hi"},"done":true,"eval_count":1}`)
		}
	}))
	defer upstream.Close()
	r := newRig(b, Options{})
	r.serve("n1", upstream.URL, 1024)
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.ReportAllocs()
	b.SetParallelism(16)
	begin := cpuTime(b)
	defer func() { b.ReportMetric(float64((cpuTime(b)-begin).Microseconds())/float64(b.N), "cpu-µs/op") }()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			req, _ := http.NewRequestWithContext(context.Background(), "POST", r.srv.URL+"/api/chat", strings.NewReader(chat("bench", `,"stream":false`)))
			req.Header.Set("Authorization", "Bearer "+testKey)
			resp, err := c.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 {
				b.Error(resp.Status)
				return
			}
		}
	})
}

// cpuTime is what this process has used; on a shared machine it says more than the clock does.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
