package conformance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// runners are the llama-server children of an Ollama.
func runners(t *testing.T, o *rig.Ollama) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Skip("no /proc")
	}
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(o.Pid()) && fields[0] != "Z" {
			if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func signalRunners(t *testing.T, o *rig.Ollama, s syscall.Signal) {
	t.Helper()
	pids := runners(t, o)
	if len(pids) == 0 {
		t.Fatal("no runner")
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, s)
	}
}

// open starts a stream and returns it after its first line.
func open(t *testing.T, base string, r request) (*http.Response, *bufio.Reader) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, r.method, base+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	br := bufio.NewReader(resp.Body)
	if _, err := br.Peek(1); err != nil {
		t.Fatal(err)
	}
	return resp, br
}

// endless asks every family for a stream that never ends by itself.
func endless(model string) []request {
	return []request{
		post("/api/generate", fmt.Sprintf(`{"model":%q,"prompt":"#loop","options":{"num_predict":100000}}`, model)),
		post("/api/chat", chat(model, "#loop", `,"options":{"num_predict":100000}`)),
		post("/v1/chat/completions", chat(model, "#loop", `,"max_tokens":100000,"stream":true`)),
		post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"#loop","max_tokens":100000,"stream":true}`, model)),
		post("/v1/responses", fmt.Sprintf(`{"model":%q,"input":"#loop","max_output_tokens":100000,"stream":true}`, model)),
		post("/v1/messages", chat(model, "#loop", `,"max_tokens":100000,"stream":true`)),
	}
}

var (
	words  = regexp.MustCompile(`w\d\d|\d\d?w|w\d?| `)
	number = regexp.MustCompile(`"sequence_number":\d+`)
)

// Check 62: a runner that is killed mid-stream ends the client's stream as it ends one that is read directly.
func TestKilledRunner(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for _, r := range endless("tiny:slow") {
		end := func(base string) (last string, err error) {
			_, br := open(t, base, r)
			time.AfterFunc(100*time.Millisecond, func() { signalRunners(t, p.ollama, syscall.SIGKILL) })
			b, err := io.ReadAll(br)
			// How many tokens came is chance. The last line or event is not, nor is what kinds there were.
			events := strings.Split(strings.TrimRight(string(b), "\n"), map[bool]string{true: "\n", false: "\n\n"}[strings.HasPrefix(r.path, "/api/")])
			last = number.ReplaceAllString(normal(events[len(events)-1]), "*")
			if strings.Contains(string(b), "[DONE]") || strings.Contains(string(b), `"done":true`) || strings.Contains(string(b), "message_stop") || strings.Contains(string(b), "response.completed") {
				t.Errorf("%s: a cut answer looks complete: …%s", base, last)
			}
			return words.ReplaceAllString(last, ""), err
		}
		d, derr := end(p.ollama.URL)
		g, gerr := end(p.g.URL())
		if d != g || (derr == nil) != (gerr == nil) {
			t.Errorf("%s\ndirect  (%v) …%s\ngateway (%v) …%s", r.path, derr, d, gerr, g)
		}
	}
	for _, r := range []request{
		post("/api/generate", `{"model":"tiny:slow","prompt":"#loop","stream":false,"options":{"num_predict":100000}}`),
		post("/v1/chat/completions", chat("tiny:slow", "#loop", `,"max_tokens":100000`)),
		post("/v1/messages", chat("tiny:slow", "#loop", `,"max_tokens":100000`)),
	} {
		end := func(base string) answer {
			freed(t, p.ollama.URL, "tiny:slow") // loaded again
			time.AfterFunc(400*time.Millisecond, func() { signalRunners(t, p.ollama, syscall.SIGKILL) })
			return ask(t, http.DefaultTransport, base, r)
		}
		d, g := end(p.ollama.URL), end(p.g.URL())
		if diff := d.diff(g); diff != "" {
			t.Errorf("%s\n%s", r.path, diff)
		}
	}
	freed(t, p.g.URL(), "tiny:slow")
}

// Checks 67, 68: silence, before the head and in the middle, is waited through. Minutes of it: tests/cases B08 and tests/e2e.
func TestSilence(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	r := post("/api/generate", `{"model":"tiny:slow","prompt":"#loop","options":{"num_predict":40}}`)
	ask(t, http.DefaultTransport, p.ollama.URL, r)
	want := ask(t, http.DefaultTransport, p.ollama.URL, r)
	signalRunners(t, p.ollama, syscall.SIGSTOP)
	time.AfterFunc(3*time.Second, func() { signalRunners(t, p.ollama, syscall.SIGCONT) })
	start := time.Now()
	got := ask(t, http.DefaultTransport, p.g.URL(), r)
	if diff := want.diff(got); diff != "" || time.Since(start) < 2*time.Second {
		t.Errorf("before the head, after %v\n%s", time.Since(start), diff)
	}
	_, br := open(t, p.g.URL(), r)
	signalRunners(t, p.ollama, syscall.SIGSTOP)
	time.AfterFunc(3*time.Second, func() { signalRunners(t, p.ollama, syscall.SIGCONT) })
	b, err := io.ReadAll(br)
	if err != nil || normal(string(b)) != normal(want.body) {
		t.Errorf("in the middle: %v\n%s", err, clip(normal(string(b))))
	}
}

// Check 69: who reads slowly gets all of it, and holds up nobody.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	p := newPair(t, "OLLAMA_NUM_PARALLEL=2", "--credits 2")
	r := post("/api/generate", `{"model":"tiny","prompt":"#loop","options":{"num_predict":1500}}`)
	ask(t, http.DefaultTransport, p.ollama.URL, r)
	want := ask(t, http.DefaultTransport, p.ollama.URL, r)
	_, br := open(t, p.g.URL(), r)
	var got strings.Builder
	buf := make([]byte, 4<<10)
	for i := 0; ; i++ {
		n, err := br.Read(buf)
		got.Write(buf[:n])
		if err != nil {
			if err != io.EOF {
				t.Errorf("after %d bytes: %v", got.Len(), err)
			}
			break
		}
		if i == 3 {
			freed(t, p.g.URL(), "tiny")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if normal(got.String()) != normal(want.body) {
		t.Errorf("direct\n…%s\ngateway\n…%s", want.body[max(0, len(want.body)-500):], got.String()[max(0, got.Len()-500):])
	}
}

// Check 70: a hundred streams at once on one node, each whole and its own.
func TestHundredStreams(t *testing.T) {
	t.Parallel()
	p := newPair(t, "OLLAMA_NUM_PARALLEL=8", "OLLAMA_CONTEXT_LENGTH=256", "--credits 100")
	body := func(i int) request {
		return post("/api/generate", fmt.Sprintf(`{"model":"tiny","prompt":"#loop","options":{"num_ctx":256,"num_predict":%d}}`, 10+i%7))
	}
	ask(t, http.DefaultTransport, p.ollama.URL, body(0))
	want := map[int]string{}
	for i := range 7 {
		want[i] = normal(ask(t, http.DefaultTransport, p.ollama.URL, body(i)).body)
	}
	var wg sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	defer transport.CloseIdleConnections()
	for i := range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			a, err := try(ctx, transport, p.g.URL(), body(i))
			// A slot that had another prompt before may count its prompt otherwise.
			counts := regexp.MustCompile(`"prompt_eval_count":\d+`)
			if err != nil || a.cut != nil || a.status != 200 || counts.ReplaceAllString(normal(a.body), "") != counts.ReplaceAllString(want[i%7], "") {
				t.Errorf("%d: %v %v %d %s", i, err, a.cut, a.status, clip(a.body))
			}
		})
	}
	wg.Wait()
}

// Check 65: where Ollama's queue is full, its answer arrives as it is, in the family's shape; the gateway adds Retry-After.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	p := newPair(t, "OLLAMA_MAX_QUEUE=1", "OLLAMA_MAX_LOADED_MODELS=1", "--credits 8")
	// One model runs without end; two requests wait for another to be loaded: one is being placed, one is the queue.
	_, _ = open(t, p.ollama.URL, endless("tiny:slow")[0])
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 4 {
		wg.Go(func() {
			_, _ = try(ctx, http.DefaultTransport, p.ollama.URL, post("/api/chat", chat("tiny:jinja", "hi", "")))
		})
	}
	busy := post("/api/chat", chat("tiny:jinja", "hi", ""))
	rig.Eventually(t, 20*time.Second, "the queue is full", func() bool {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		a, err := try(ctx, http.DefaultTransport, p.ollama.URL, busy)
		return err == nil && a.status == 503
	})
	for _, r := range []request{
		busy, post("/v1/chat/completions", chat("tiny:jinja", "hi", "")), post("/v1/messages", chat("tiny:jinja", "hi", `,"max_tokens":5`)),
		post("/api/embed", `{"model":"tiny-embed","input":"a"}`),
	} {
		if a := p.same(t, r); a.status != 503 || a.raw.Get("Retry-After") == "" {
			t.Errorf("%s: %d %v %s", r.path, a.status, a.raw, a.body)
		}
	}
}

// Check 60: who leaves while queued, at the gateway or in Ollama, or while a model loads, leaves nothing behind that holds the slot.
func TestLeavingWhileWaiting(t *testing.T) {
	t.Parallel()
	p := newPair(t, "OLLAMA_MAX_LOADED_MODELS=1", "--credits 2")
	leave := func(r request, after time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		_, _ = try(ctx, http.DefaultTransport, p.g.URL(), r)
	}
	// While it loads.
	for _, after := range []time.Duration{20 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond} {
		leave(endless("tiny:slow")[0], after)
		leave(endless("tiny")[0], after)
	}
	freed(t, p.g.URL(), "tiny:slow")
	// Behind a stream: one waits in Ollama, for the slot or for another model to be loaded, two more at the gateway.
	first, _ := open(t, p.g.URL(), endless("tiny:slow")[0])
	var wg sync.WaitGroup
	for _, m := range []string{"tiny:slow", "tiny:slow", "tiny:slow", "tiny", "tiny", "tiny"} {
		wg.Go(func() { leave(endless(m)[1], time.Second) })
	}
	wg.Wait()
	first.Body.Close()
	freed(t, p.g.URL(), "tiny")
	freed(t, p.g.URL(), "tiny:slow")
	rig.Eventually(t, 10*time.Second, "no run is in flight", func() bool { return p.g.Metric("fairway_runs_in_flight") == 0 })
}

// Check 61: a client that closes its sending side is cancelled where Ollama would cancel it, and no more than that. Nodes never do that towards
// Ollama: nodeclient/adapter/http1, TestNoHalfClose.
func TestHalfClose(t *testing.T) {
	p := commonPair(t)
	for _, r := range []request{get("/api/tags"), post("/api/show", `{"model":"tiny"}`), get("/v1/models/tiny"), post("/api/chat", chat("nope", "hi", ""))} {
		t.Run(strings.Trim(r.path, "/"), func(t *testing.T) { // Ollama answers these all the same, unless it notices in time
			raw := rawPost(r.path, r.body)
			if r.method == "GET" {
				raw = "GET " + r.path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
			}
			d, g := wireHalf(t, p.ollama.URL, raw), wireHalf(t, p.g.URL(), raw)
			if d.status != 200 && d.status != 404 {
				t.Logf("Ollama noticed first: %d %s", d.status, d.body())
				return
			}
			if d.status != g.status || d.whole != g.whole {
				t.Errorf("direct %d whole %v %s\ngateway %d whole %v %s", d.status, d.whole, clip(d.body()), g.status, g.whole, clip(g.body()))
			}
		})
	}
	// Inference ends in an error there, and sometimes without an answer. Here it must not look like a success either.
	for _, r := range endless("tiny:slow") {
		if g := wireHalf(t, p.g.URL(), rawPost(r.path, r.body)); g.status == 200 && g.whole {
			t.Errorf("%s: cut, and looks whole: %s", r.path, clip(g.body()))
		}
	}
	freed(t, p.g.URL(), "tiny:slow")
}
