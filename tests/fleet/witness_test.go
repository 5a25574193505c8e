package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// result is what a caller has seen of one request.
type result struct {
	id      string // that providers count by
	gateway string
	keyed   bool
	began   time.Time
	ended   time.Time
	run     string // the gateway's id; empty when no head came
	status  int    // 0: no head
	code    string
	left    bool // the caller went before the end
	whole   bool // the body came to a clean end
	done    bool // its last line says done
	failed  bool // its last line is an error
	odd     string
}

// call asks one request after another until stop is closed.
func (w *world) call(stop <-chan struct{}, n int, rnd *rand.Rand) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		r := w.ask(client, fmt.Sprintf("c%d-%d", n, i), rnd)
		w.mu.Lock()
		w.finished = append(w.finished, r)
		w.mu.Unlock()
		if r.status == 0 {
			time.Sleep(50 * time.Millisecond) // a gateway that is down refuses fast
		}
	}
}

func (w *world) ask(client *http.Client, id string, rnd *rand.Rand) *result {
	g := w.fleet.Gateways[rnd.IntN(len(w.fleet.Gateways))]
	r := &result{id: id, gateway: g.Opts.Name, keyed: rnd.IntN(2) == 0, began: time.Now()}
	model := "t-tick:open"
	if r.keyed {
		model = "t-tick:keyed"
	}
	lines := 1 + rnd.IntN(12)
	stream := rnd.IntN(4) > 0
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	body := chat(model, fmt.Sprintf(`,"stream":%t,"t_n":%d,"t_ms":%d`, stream, lines, rnd.IntN(25)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL()+"/api/chat", strings.NewReader(body))
	if err != nil {
		r.odd = err.Error()
		return r
	}
	req.Header.Set("Authorization", "Bearer "+rig.Key)
	req.Header.Set("X-Test-Id", id)
	defer func() { r.ended = time.Now() }()
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			r.odd = "no head within 90 s"
		}
		return r
	}
	defer resp.Body.Close()
	r.status, r.run, r.code = resp.StatusCode, resp.Header.Get("X-Fairway-Run"), resp.Header.Get("X-Fairway-Error")
	leave := -1
	if stream && rnd.IntN(8) == 0 {
		leave = rnd.IntN(lines)
	}
	br := bufio.NewReader(resp.Body)
	for n := 0; ; n++ {
		if n == leave {
			r.left = true
			return r
		}
		line, err := br.ReadString('\n')
		if strings.TrimSpace(line) != "" {
			if r.failed || r.done {
				r.odd = "bytes after the last line: " + line
			}
			r.done, r.failed = strings.Contains(line, `"done":true`), strings.HasPrefix(line, `{"error"`)
		}
		if err != nil {
			r.whole = errors.Is(err, io.EOF)
			if ctx.Err() != nil {
				r.odd = "no end within 90 s"
			}
			return r
		}
	}
}

// nothingRan are the codes after which no provider may have run the request.
var nothingRan = map[string]bool{
	"no_node": true, "queue_full": true, "queue_timeout": true, "no_such_model": true, "store_unavailable": true, "draining": true,
	"credential_unavailable": true,
}

// check joins the witnesses once nothing is in flight any more.
func (w *world) check() {
	w.quiet()
	ran := map[string]int{}
	for _, f := range append(append(w.keyed[:0:0], w.keyed...), w.open...) {
		for id, n := range f.Stats().ExecID {
			ran[id] += n
		}
	}
	outcomes := w.outcomes()
	kinds := map[string]int{}
	for _, r := range w.finished {
		kinds[r.kind()]++
		for _, no := range w.contradictions(r, ran[r.id], outcomes[r.run]) {
			w.t.Errorf("%s: %s at %s, %.3f to %.3f: %d %s, run %s, %d times at a provider, the gateway says %v", no, r.id, r.gateway, r.began.Sub(w.began).Seconds(),
				r.ended.Sub(w.began).Seconds(), r.status, r.code, r.run, ran[r.id], outcomes[r.run])
		}
	}
	w.leases()
	w.afterRevocation()
	w.t.Logf("%d requests: %v", len(w.finished), kinds)
	if kinds["complete"] < len(w.finished)/4 {
		w.t.Errorf("of %d requests %d came to an end", len(w.finished), kinds["complete"])
	}
}

// kind is how a request ended for its caller.
func (r *result) kind() string {
	switch {
	case r.left:
		return "left"
	case r.status == 0:
		return "no answer"
	case r.status != http.StatusOK:
		return fmt.Sprint(r.status, " ", r.code)
	case r.whole && r.done:
		return "complete"
	}
	return "cut"
}

// contradictions are what the witnesses of one request do not agree on.
func (w *world) contradictions(r *result, ran int, outcomes []string) (out []string) {
	no := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if r.odd != "" {
		no("%s", r.odd)
	}
	if ran > 1 {
		no("ran twice")
	}
	if len(outcomes) > 1 {
		no("more than one outcome")
	}
	if r.run != "" && len(outcomes) == 0 && !w.killedIn(r) {
		no("no outcome")
	}
	outcome := ""
	if len(outcomes) == 1 {
		outcome = outcomes[0]
	}
	switch kind := r.kind(); {
	case r.left:
	case kind == "complete":
		if ran != 1 {
			no("complete, but no provider ran it")
		}
		if outcome != "" && outcome != "completed" {
			no("complete for its caller alone")
		}
	case r.status == http.StatusOK && r.whole && !r.failed:
		no("a cut answer looks whole")
	default:
		if outcome == "completed" {
			no("complete for the gateway alone")
		}
		if nothingRan[r.code] && ran > 0 {
			no("refused, and ran all the same")
		}
	}
	return out
}

// killedIn reports whether the gateway was killed while it had the request.
func (w *world) killedIn(r *result) bool {
	for _, o := range w.outages[r.gateway] {
		if r.began.Before(o.to) && r.ended.After(o.from.Add(-time.Second)) {
			return true
		}
	}
	return false
}

// quiet waits until every counter is back to zero.
func (w *world) quiet() {
	for _, g := range w.fleet.Gateways {
		rig.Eventually(w.t, 30*time.Second, g.Opts.Name+" has nothing in flight, and all credits", func() bool {
			if s := g.Status(); s == nil || s.Runs != 0 {
				return false
			}
			for _, n := range w.nodes {
				row := g.Node(n.Name)
				if row == nil || len(row.Targets) != 2 {
					return false
				}
				for _, t := range row.Targets {
					if t.Credits.Free != t.Credits.Granted || t.Credits.Granted == 0 {
						return false
					}
				}
			}
			return true
		})
	}
	for i := range w.keyed {
		rig.Eventually(w.t, 30*time.Second, "the providers have nothing in flight", func() bool {
			return w.keyed[i].Stats().Inflight == 0 && w.open[i].Stats().Inflight == 0
		})
	}
}

// lines reads the JSON lines of files.
func lines[T any](w *world, pattern string, each func(T)) {
	files, err := filepath.Glob(filepath.Join(w.dir, pattern))
	if err != nil || len(files) == 0 {
		w.t.Fatalf("no file is %s: %v", pattern, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			var v T
			if json.Unmarshal(s.Bytes(), &v) == nil { // a kill may have cut the last line
				each(v)
			}
		}
		f.Close()
	}
}

// outcomes are what the gateways say in their access logs, by run.
func (w *world) outcomes() map[string][]string {
	out := map[string][]string{}
	lines(w, "access-*.log", func(l struct {
		Run     string `json:"fairway_run"`
		Outcome string `json:"fairway_outcome"`
	}) {
		if l.Run != "" {
			out[l.Run] = append(out[l.Run], l.Outcome)
		}
	})
	return out
}

// leases sees that each was issued and opened at most once, and one at most for an attempt.
func (w *world) leases() {
	type step struct{ id, event string }
	seen, opened := map[step]int{}, map[string]int{}
	total := 0
	lines(w, "audit-*.jsonl", func(l struct {
		Event, Lease string
		Run          string `json:"run_id"`
		Attempt      int
	}) {
		switch l.Event {
		case "opened":
			total++
			opened[fmt.Sprint(l.Run, " ", l.Attempt)]++
			fallthrough
		case "issued", "ended":
			seen[step{l.Lease, l.Event}]++
		}
	})
	for s, n := range seen {
		if n > 1 {
			w.t.Errorf("lease %s was %s %d times", s.id, s.event, n)
		}
	}
	for attempt, n := range opened {
		if n > 1 {
			w.t.Errorf("run and attempt %s opened %d leases", attempt, n)
		}
	}
	if total == 0 {
		w.t.Error("no lease was ever opened")
	}
}

// afterRevocation sees that no provider behind the key was asked while the credential was revoked.
func (w *world) afterRevocation() {
	for i, f := range w.keyed {
		for _, r := range f.Log() {
			if !r.Executed {
				continue
			}
			at := f.Began().Add(time.Duration(r.At * float64(time.Second)))
			for _, s := range w.revoked {
				if at.After(s.from) && at.Before(s.to) {
					w.t.Errorf("provider %d ran %s %v after the revocation's bound", i+1, r.ID, at.Sub(s.from))
				}
			}
		}
	}
}
