package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const smallBody = `{"model":"bench","messages":[{"role":"user","content":"Why is the sky blue? Answer in one sentence."}],"stream":false}`

func client(conns int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: conns, MaxIdleConns: conns, DisableCompression: true}}
}

func post(ctx context.Context, c *http.Client, url string, body io.Reader) (*http.Response, error) {
	return postTo(ctx, c, url+"/api/chat", body)
}

func postTo(ctx context.Context, c *http.Client, url string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	r, err := c.Do(req)
	if err == nil && r.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(r.Body, 300))
		r.Body.Close()
		return nil, fmt.Errorf("%s: %s", r.Status, b)
	}
	return r, err
}

// inRandomOrder visits every path once a round.
func inRandomOrder(paths []*path, f func(p *path) error) error {
	for range *rounds {
		order := slices.Clone(paths)
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, p := range order {
			if err := f(p); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

func benchJSON(ctx context.Context, b *bed, t *table) error {
	for _, c := range []int{1, 32, 256} {
		err := inRandomOrder(b.paths, func(p *path) error {
			rps, p50, p99, cpu, err := requests(ctx, p, c)
			t.add(fmt.Sprintf("small JSON, %d clients: requests/s", c), p.name, rps)
			t.add(fmt.Sprintf("small JSON, %d clients: p50 µs", c), p.name, p50)
			t.add(fmt.Sprintf("small JSON, %d clients: p99 µs", c), p.name, p99)
			if len(p.procs) > 0 {
				t.add(fmt.Sprintf("small JSON, %d clients: CPU µs a request", c), p.name, cpu)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func requests(ctx context.Context, p *path, conc int) (rps, p50, p99, cpu float64, err error) {
	c := client(conc)
	defer c.CloseIdleConnections()
	var wg sync.WaitGroup
	lat := make([][]time.Duration, conc)
	errs := make([]error, conc)
	begin := time.Now()
	end := begin.Add(time.Duration(*seconds * float64(time.Second)))
	warm := begin.Add(time.Duration(*seconds * 0.2 * float64(time.Second)))
	var cpu0 float64
	var measured atomic.Int64
	time.AfterFunc(time.Until(warm), func() { cpu0 = p.cpu() })
	for i := range conc {
		wg.Go(func() {
			for time.Now().Before(end) {
				start := time.Now()
				r, err := postTo(ctx, c, p.url+cmp.Or(p.at, "/api/chat"), strings.NewReader(cmp.Or(p.body, smallBody)))
				if err != nil {
					errs[i] = err
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				r.Body.Close()
				if start.After(warm) {
					lat[i] = append(lat[i], time.Since(start))
					measured.Add(1)
				}
			}
		})
	}
	wg.Wait()
	used := p.cpu() - cpu0
	for _, e := range errs {
		if e != nil {
			return 0, 0, 0, 0, e
		}
	}
	all := slices.Concat(lat...)
	slices.Sort(all)
	n := float64(measured.Load())
	return n / end.Sub(warm).Seconds(), us(at(all, 0.5)), us(at(all, 0.99)), used / n * 1e6, nil
}

func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func benchStreams(ctx context.Context, b *bed, t *table) error {
	for _, n := range []int{1, 200} {
		err := inRandomOrder(b.paths, func(p *path) error {
			delays, first, cpu, err := tokenStreams(ctx, p, n, 100)
			name := fmt.Sprintf("%d token streams at 20 ms: ", n)
			t.add(name+"delay a token p50 ms", p.name, ms(at(delays, 0.5)))
			t.add(name+"delay a token p99 ms", p.name, ms(at(delays, 0.99)))
			t.add(name+"time to first token p50 ms", p.name, ms(at(first, 0.5)))
			if len(p.procs) > 0 {
				t.add(name+"CPU µs a token", p.name, cpu/float64(n*100)*1e6)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tokenStreams opens n streams at once and returns every token's delay since the upstream wrote it, and the times to the first token.
func tokenStreams(ctx context.Context, p *path, n, count int) (delays, first []time.Duration, cpu float64, err error) {
	c := client(n)
	defer c.CloseIdleConnections()
	var mu sync.Mutex
	var wg sync.WaitGroup
	cpu0 := p.cpu()
	for range n {
		wg.Go(func() {
			own, ttft, e := oneStream(ctx, c, p.url, count)
			mu.Lock()
			defer mu.Unlock()
			if e != nil {
				err = e
				return
			}
			delays, first = append(delays, own...), append(first, ttft)
		})
	}
	wg.Wait()
	cpu = p.cpu() - cpu0
	slices.Sort(delays)
	slices.Sort(first)
	return delays, first, cpu, err
}

func oneStream(ctx context.Context, c *http.Client, url string, count int) (delays []time.Duration, ttft time.Duration, err error) {
	start := time.Now()
	r, err := post(ctx, c, url, strings.NewReader(fmt.Sprintf(`{"model":"bench","b_tokens":%d,"b_ms":20,"messages":[{"role":"user","content":"hi"}]}`, count)))
	if err != nil {
		return nil, 0, err
	}
	defer r.Body.Close()
	lines := 0
	for sc := bufio.NewScanner(r.Body); sc.Scan(); lines++ {
		now := time.Now()
		if lines == 0 {
			ttft = now.Sub(start)
		}
		var v struct {
			NS int64 `json:"ns"`
		}
		if json.Unmarshal(sc.Bytes(), &v) == nil && v.NS > 0 {
			delays = append(delays, time.Duration(now.UnixNano()-v.NS))
		}
	}
	if lines != count+1 {
		return nil, 0, fmt.Errorf("%d of %d lines", lines, count+1)
	}
	return delays, ttft, nil
}

func benchBulk(ctx context.Context, b *bed, t *table) error {
	const down, up, ups = 512, 32, 8 // MiB; uploads are ordinary request bodies, so several
	return inRandomOrder(b.paths, func(p *path) error {
		c := client(1)
		defer c.CloseIdleConnections()
		cpu0, start := p.cpu(), time.Now()
		r, err := post(ctx, c, p.url, strings.NewReader(fmt.Sprintf(`{"model":"bench","b_mib":%d,"messages":[{"role":"user","content":"hi"}]}`, down)))
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if err != nil || n != down<<20 {
			return fmt.Errorf("%d bytes: %w", n, err)
		}
		t.add("bulk down: MB/s", p.name, float64(n)/1e6/time.Since(start).Seconds())
		if len(p.procs) > 0 {
			t.add("bulk down: CPU s a GiB", p.name, (p.cpu()-cpu0)*1024/down)
		}
		body := append([]byte(`{"model":"bench","stream":false,"messages":[{"role":"user","content":"`), bytes.Repeat([]byte("x"), up<<20)...)
		body = append(body, `"}]}`...)
		cpu0, start = p.cpu(), time.Now()
		for range ups {
			r, err := post(ctx, c, p.url, bytes.NewReader(body))
			if err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
		t.add("bulk up: MB/s", p.name, float64(ups*len(body))/1e6/time.Since(start).Seconds())
		if len(p.procs) > 0 {
			t.add("bulk up: CPU s a GiB", p.name, (p.cpu()-cpu0)*1024/(up*ups))
		}
		return nil
	})
}
