package cases

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// writes follows a request at the fake and returns when each piece of its answer was written; the last one comes with the answer's end.
func (f *fleet) writes(ctx context.Context, id string) []time.Time {
	var at []float64
	var woke []time.Time
	for {
		var last float64
		if len(at) > 0 {
			last = at[len(at)-1]
		}
		rec, err := f.fake.Wait(ctx, func(r fakeollama.Record) bool { return r.ID == id && (r.LastWrite > last || r.End > 0) })
		if err != nil || rec.LastWrite == last {
			break
		}
		at, woke = append(at, rec.LastWrite), append(woke, time.Now())
	}
	// The fake counts from its own start, which is the earliest that any of the two allows.
	var start time.Time
	for i := range at {
		if s := woke[i].Add(-time.Duration(at[i] * float64(time.Second))); start.IsZero() || s.Before(start) {
			start = s
		}
	}
	out := make([]time.Time, len(at))
	for i := range at {
		out[i] = start.Add(time.Duration(at[i] * float64(time.Second)))
	}
	return out
}

// prompt sends a file of 20 tokens, one each 250 ms, and fails unless something arrives within 100 ms of each of the provider's writes.
func (f *fleet) prompt(t *testing.T, file string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	wrote := make(chan []time.Time, 1)
	go func() { wrote <- f.writes(ctx, t.Name()) }()
	r := f.send(t, file)
	if r.Status != 200 || r.Ended != complete {
		t.Fatalf("%d %s", r.Status, r.Ended)
	}
	w := <-wrote
	if len(w) < 20 || len(r.ReadAt) < 20 {
		t.Fatalf("%d writes, %d arrivals", len(w), len(r.ReadAt))
	}
	slack := within(100 * time.Millisecond)
	var worst time.Duration
	for i, at := range w[:20] {
		late := slack + 1
		for _, read := range r.ReadAt {
			if d := r.Start.Add(read).Sub(at); d > -10*time.Millisecond { // the first that came after it
				late = d
				break
			}
		}
		if worst = max(worst, late); late > slack {
			t.Errorf("token %d arrived %v after it was written", i, late)
		}
	}
	t.Logf("the slowest token took %v", worst)
}

// Not parallel: it measures.
func TestB01_Ticks(t *testing.T) {
	f := surface()
	t.Run("at once", func(t *testing.T) {
		for _, file := range []string{"B01_tick_ndjson", "B01_tick_sse"} {
			t.Run(file, func(t *testing.T) {
				t.Parallel()
				f.prompt(t, file)
				if rec := f.record(t); rec.Tokens != 20 {
					t.Errorf("%+v", rec)
				}
			})
		}
	})
}

// Not parallel: it measures.
func TestB02_Encode(t *testing.T) {
	f := newFleet(t, rig.Options{SiteLines: `	encode zstd gzip {
		minimum_length 1
		match {
			header Content-Type text/*
			header Content-Type application/json*
			header Content-Type application/x-ndjson*
		}
	}
`})
	t.Run("at once", func(t *testing.T) {
		for _, file := range []string{"B02_tick_gzip_ok_ndjson", "B02_tick_gzip_ok_sse"} {
			t.Run(file, func(t *testing.T) {
				t.Parallel()
				f.prompt(t, file)
			})
		}
	})
}

func TestB03_UTF8(t *testing.T) {
	t.Parallel()
	f := surface()
	for _, file := range []string{"B03_utf8_ndjson", "B03_utf8_sse"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := f.send(t, file)
			if rec := f.record(t); r.sha256() != rec.ExpectSHA256 {
				t.Errorf("%q", r.Body)
			}
			if strings.Contains(r.Body, "\uFFFD") || !strings.HasSuffix(r.Body, "\n") || r.Ended != complete {
				t.Errorf("%s %q", r.Ended, r.Body)
			}
		})
	}
}

func TestB04_LongLine(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	gw, node := rig.Use(t, f.Pid()).RSS, rig.Use(t, f.node.Pid()).RSS
	for file, n := range map[string]int{"B04_longline_4m": 4 << 20, "B04_longline_32m_sse": 32 << 20} {
		r := f.send(t, file)
		if got := strings.Count(r.Body, "A"); r.Status != 200 || r.Ended != complete || got != n || !strings.Contains(r.Body, strings.Repeat("A", n)) {
			t.Errorf("%s: %d %s: %d of %d", file, r.Status, r.Ended, got, n)
		}
	}
	if a, b := rig.Use(t, f.Pid()).RSS-gw, rig.Use(t, f.node.Pid()).RSS-node; a > memory(64) || b > memory(64) {
		t.Errorf("grew by %d and %d KiB", a, b)
	}
}

// A node killed in the middle of an answer: tests/e2e, TestKilledNode.
func TestB05_DieMidStream(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{TLS: true})
	failed := outcomes(f.Gateway, "failed")
	lies := []string{`"done":true`, `"finish_reason":"stop"`, "[DONE]"}
	for _, file := range []string{"B05_die_ndjson", "B05_die_sse"} {
		r := f.send(t, file)
		// An error line inside and a broken transfer: either tells the client.
		if r.Status != 200 || r.Ended == complete && !strings.Contains(r.Body, `"error"`) {
			t.Errorf("%s: %d %s %q", file, r.Status, r.Ended, r.Body)
		}
		for _, lie := range lies {
			if strings.Contains(r.Body, lie) {
				t.Errorf("%s: a cut answer says %s", file, lie)
			}
		}
	}
	h2, h3 := secure(t, f.Gateway)
	for _, c := range []client{h2, h3} {
		r, err := c.do(t.Context(), "POST", "/api/chat", strings.NewReader(chat("t-die", "")))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err == nil && !strings.Contains(string(b), `{"error":`) || strings.Contains(string(b), lies[0]) {
			t.Errorf("%s: looks complete: %v %q", r.Proto, err, b)
		}
	}
	rig.Eventually(t, 3*time.Second, "four runs are counted as failed", func() bool { return outcomes(f.Gateway, "failed") == failed+4 })
}

func TestB06_ErrorInStream(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	const said = "an error was encountered while running the model: unexpected EOF"
	for _, file := range []string{"B06_errmid_ndjson", "B06_errmid_sse"} {
		t.Run(file, func(t *testing.T) {
			failed := outcomes(f.Gateway, "failed")
			r := f.send(t, file)
			lines := strings.Split(strings.TrimSpace(r.Body), "\n")
			if r.Status != 200 || r.Ended != complete || !strings.Contains(lines[len(lines)-1], said) {
				t.Errorf("%d %s %q", r.Status, r.Ended, r.Body)
			}
			if f.record(t); int64(len(r.Body)) != f.record(t).Sent { // one request, every byte of its answer
				t.Errorf("%d bytes of %d", len(r.Body), f.record(t).Sent)
			}
			rig.Eventually(t, 3*time.Second, "it is counted as failed", func() bool { return outcomes(f.Gateway, "failed") == failed+1 })
		})
	}
}

func TestB07_LongAnswer(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	q := request{File: "B07_tick_400s", Timeout: long(90*time.Second, 450*time.Second)}
	n := 400
	if os.Getenv("FAIRWAY_LONG") == "" {
		n = 75
		raw := strings.Replace(string(q.bytes(t, site(f.Gateway))), `"t_n": 400, `, `"t_n":  75, `, 1)
		q.File, q.Bytes = "", raw
	}
	r := q.to(t, site(f.Gateway))
	if r.Status != 200 || r.Ended != complete || len(r.At) != n+1 {
		t.Errorf("%d %s: %d lines of %d in %v", r.Status, r.Ended, len(r.At), n, r.Total)
	}
}

// TestSilenceOf65Seconds of tests/e2e does it over h1, h2 and h3.
func TestB08_SlowLoad(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	wait := long(80*time.Second, 330*time.Second)
	for _, file := range []string{"B08_slowload_330_stream", "B08_slowload_330_nostream"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			raw := string(request{File: file}.bytes(t, site(f.Gateway)))
			if wait < 330*time.Second {
				raw = strings.Replace(raw, `"t_s": 330`, `"t_s":  80`, 1)
			}
			r := request{Bytes: raw, Timeout: wait + 20*time.Second}.to(t, site(f.Gateway))
			if r.Status != 200 || r.Ended != complete || !strings.Contains(r.Body, `"done":true`) || r.First < wait-time.Second {
				t.Errorf("%d %s %q after %v", r.Status, r.Ended, r.Body, r.First)
			}
		})
	}
	t.Run("limited", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, rig.Options{Site: "\t\tfirst_byte 2s\n"})
		r := f.send(t, "B10_slowload_120")
		if r.Status != 504 || !r.isJSON() || r.Header.Get("X-Fairway-Error") != "deadline_exceeded" || r.Total > 4*time.Second {
			t.Errorf("%d %v %s after %v", r.Status, r.Lines, r.Body, r.Total)
		}
		f.gone(t, t.Name(), time.Now())
	})
}

func TestB10_StopWhileLoading(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{TLS: true})
	for name, rst := range map[string]bool{"FIN": false, "RST": true} {
		id := t.Name() + name
		r := request{File: "B10_slowload_120", ID: id, CloseAfter: 2 * time.Second, RST: rst}.to(t, site(f.Gateway))
		if d := f.gone(t, id, r.Closed); r.Ended != byTest || d > within(2*time.Second) {
			t.Errorf("%s: %s, stopped after %v", name, r.Ended, d)
		}
	}
	h2, _ := secure(t, f.Gateway)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if r, err := h2.do(ctx, "POST", "/api/chat", strings.NewReader(body(t, "B10_slowload_120")), "X-Test-Id", t.Name()+"h2"); err == nil {
		t.Errorf("an answer: %d", r.StatusCode)
		r.Body.Close()
	}
	if d := f.gone(t, t.Name()+"h2", time.Now()); d > within(2*time.Second) {
		t.Errorf("h2: stopped after %v", d)
	}
	settled(t, f.Gateway)
	if n := outcomes(f.Gateway, "failed"); n != 0 || f.Node("n1").State != "ready" {
		t.Errorf("%d failed, the node is %s", n, f.Node("n1").State)
	}
}

// 3,000 of them: tests/e2e, TestThousandsOfAbortsLeaveNothing.
func TestB11_ClosedTab(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	base := f.fake.Stats().Open
	r := request{File: "B11_tick_60s", ID: t.Name(), CloseAfterLines: 3}.to(t, site(f.Gateway))
	if d := f.gone(t, t.Name(), r.Closed); r.Ended != byTest || d > within(time.Second) {
		t.Errorf("%s, stopped after %v", r.Ended, d)
	}
	c := plain(t, f.Gateway)
	if got := burst(200, 40, func(int) int { return c.abort(chat("t-tick", `,"t_n":600,"t_ms":100`), 3) }); got[200] != 200 {
		t.Errorf("%v", got)
	}
	settled(t, f.Gateway)
	rig.Eventually(t, 5*time.Second, "the provider's connections are closed", func() bool {
		s := f.fake.Stats()
		return s.Inflight == 0 && s.Open <= base+2
	})
}

func TestB12_AbortsAreNoErrors(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{SiteLines: "\tlog {\n\t\toutput stderr\n\t}\n"})
	c := plain(t, f.Gateway)
	if got := burst(100, 20, func(int) int { return c.abort(chat("t-tick", `,"t_n":200,"t_ms":50`), 1) }); got[200] != 100 {
		t.Errorf("%v", got)
	}
	settled(t, f.Gateway)
	if n := outcomes(f.Gateway, "canceled"); n != 100 {
		t.Errorf("%d counted as canceled", n)
	}
	if n := outcomes(f.Gateway, "failed"); n != 0 {
		t.Errorf("%d counted as failed", n)
	}
	rig.Eventually(t, 3*time.Second, "the access log says so 100 times", func() bool {
		return strings.Count(f.Log(), `"fairway_outcome":"canceled"`) >= 100
	})
	if s := f.Node("n1").State; s != "ready" {
		t.Errorf("the node is %s", s)
	}
	if status, body := c.ask("POST", "/api/chat", chat("t-echo", "")); status != 200 {
		t.Errorf("afterwards: %d %s", status, body)
	}
}
