package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
)

// thinker is an Ollama whose one model answers as the test says.
type thinker struct {
	*httptest.Server
	mu     sync.Mutex
	says   string        // guarded by mu; the message's content
	asked  []string      // guarded by mu; bodies
	silent time.Duration // guarded by mu; before the answer
	gone   int           // guarded by mu; callers that left before it
}

func newThinker(t testing.TB, says string) *thinker {
	t.Helper()
	k := &thinker{says: says}
	k.Server = httptest.NewServer(http.HandlerFunc(k.serve))
	t.Cleanup(k.Close)
	return k
}

func (k *thinker) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/api/tags":
		_, _ = io.WriteString(w, `{"models":[{"name":"m:latest","model":"m:latest","modified_at":"2026-01-01T00:00:00Z","size":1,"digest":"aa"}]}`)
		return
	case "/api/ps":
		_, _ = io.WriteString(w, `{"models":[]}`)
		return
	case "/api/version":
		_, _ = io.WriteString(w, `{"version":"0.30.0"}`)
		return
	}
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	k.asked = append(k.asked, string(body))
	says, silent := k.says, k.silent
	k.mu.Unlock()
	select {
	case <-time.After(silent):
	case <-r.Context().Done():
		k.mu.Lock()
		k.gone++
		k.mu.Unlock()
		return
	}
	content, _ := json.Marshal(says)
	w.Header().Set("Content-Type", "application/json")
	if strings.Contains(string(body), `"stream":true`) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = fmt.Fprintf(w, `{"model":"m","message":{"role":"assistant","content":%s},"done":false}`+"\n", content)
		_, _ = io.WriteString(w, `{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","prompt_eval_count":7,"eval_count":3}`+"\n")
		return
	}
	_, _ = fmt.Fprintf(w, `{"model":"m","message":{"role":"assistant","content":%s},"done":true,"done_reason":"stop","prompt_eval_count":7,"eval_count":3}`+"\n", content)
}

func (k *thinker) set(says string, silent time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.says, k.silent = says, silent
}

func (k *thinker) requests() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.asked)
}

func (k *thinker) left() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gone
}

// typedBody is a request with a schema operator.
func typedBody(more string) string {
	return `{"operator":{"kind":"schema","model":"m","prompt":"which city?","schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}},"input":{"note":"I live in Oslo."}` + more + `}`
}

// typed asks, and reads the answer.
func (r *rig) typed(body string, header ...string) (edge.Answer, *http.Response) {
	r.t.Helper()
	resp, text := r.do("POST", "/api/v1/edge/runs", body, header...)
	var a struct {
		edge.Answer
	}
	if resp.StatusCode == 200 {
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			r.t.Fatalf("%v in %s", err, text)
		}
	}
	return a.Answer, resp
}

// The four statuses, as a caller gets them; each is a 200.
func TestTypedRun(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	r := newRig(t, Options{})
	r.serve("n1", k.URL, 4)
	a, resp := r.typed(typedBody(`,"placement":"edge","session_id":"s\u0001é"`))
	if resp.StatusCode != 200 || a.Result.Status != edge.Success || string(a.Result.Output) != `{"city":"Oslo"}` || a.Disposition != edge.Accept {
		t.Fatalf("%d %+v", resp.StatusCode, a)
	}
	if a.RunID == "" || a.RunID != resp.Header.Get("X-Fairway-Run") || a.Session != "s\u0001é" || resp.Header.Get("X-Fairway-Session") != "" || !strings.HasPrefix(a.IdempotencyKey, "idem:") {
		t.Errorf("%+v %v", a, resp.Header)
	}
	if a.Placement != edge.Edge || a.PlacementReason == "" || a.Result.ModelID != "m" || a.Result.LatencyMS <= 0 {
		t.Errorf("%+v", a)
	}
	if accs := r.accounts(); len(accs) != 1 || accs[0].Kind != "edge" || accs[0].Outcome != "completed" || accs[0].Node != "n1" || accs[0].OutputTokens != 3 || accs[0].Run != a.RunID {
		t.Errorf("%+v", accs)
	}
	k.set(`{"city":7}`, 0)
	if a, _ := r.typed(typedBody("")); a.Result.Status != edge.Invalid || a.Disposition != edge.Fallback || a.Result.Output != nil {
		t.Errorf("against the schema: %+v", a)
	}
	k.set(`no json`, 0)
	if a, _ := r.typed(typedBody("")); a.Result.Status != edge.Unavailable || a.Result.DegradeReason != edge.OutputUnparseable {
		t.Errorf("no JSON: %+v", a)
	}
	contract := `{"operator":{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"city"}]}},"input":{"note":"I live in Oslo."}}`
	k.set(`{"city":"Oslo"}`, 0)
	if a, _ := r.typed(contract); a.Result.Status != edge.Success || len(a.Result.Evidence) != 1 || *a.Result.Evidence[0].Offset != 10 {
		t.Errorf("grounded: %+v", a)
	}
	k.set(`{"city":"Paris"}`, 0)
	if a, _ := r.typed(contract); a.Result.Status != edge.Uncertain || string(a.Result.Output) != `{"city":"Not specified"}` {
		t.Errorf("not grounded: %+v", a)
	}
	if a, _ := r.typed(strings.Replace(typedBody(""), `"model":"m"`, `"model":"nope"`, 1)); a.Result.Status != edge.Unavailable || a.Result.DegradeDetail != "model_missing: no_such_model" {
		t.Errorf("no such model: %+v", a)
	}
	resp, text := r.do("POST", "/api/v1/edge/runs", typedBody(`,"deadline_ms":0`))
	if resp.StatusCode != 400 || !strings.Contains(text, "deadline_ms") || resp.Header.Get("X-Fairway-Error") != "bad_request" {
		t.Errorf("malformed: %d %s", resp.StatusCode, text)
	}
	if resp, _ := r.do("POST", "/api/v1/edge/runs", typedBody(""), "Authorization", "Bearer nobody"); resp.StatusCode != 401 {
		t.Errorf("without a key: %d", resp.StatusCode)
	}
}

// A deadline ends the run where it runs, and its caller hears of it within 100 ms; the credit is free at once.
func TestTypedDeadline(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	r := newRig(t, Options{})
	r.serve("n1", k.URL, 1)
	k.set(`{"city":"Oslo"}`, time.Minute)
	begin := time.Now()
	a, _ := r.typed(typedBody(`,"deadline_ms":300`))
	if took := time.Since(begin); a.Result.Status != edge.Unavailable || a.Result.DegradeReason != edge.DeadlineExceeded || a.Result.DegradeDetail != "deadline_ms=300 elapsed" || took > slack(400*time.Millisecond) {
		t.Errorf("%+v after %v", a, took)
	}
	wait(t, func() bool { return k.left() == 1 })
	// One that waits for a credit is over in time, too.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := make(chan struct{})
	go func() { defer close(held); r.typedOf(ctx, typedBody("")) }()
	wait(t, func() bool { return r.hub.InFlight() == 1 })
	begin = time.Now()
	if a, _ := r.typed(typedBody(`,"deadline_ms":200`)); a.Result.DegradeReason != edge.DeadlineExceeded || time.Since(begin) > slack(300*time.Millisecond) {
		t.Errorf("%+v after %v", a, time.Since(begin))
	}
	begin = time.Now()
	cancel()
	<-held
	k.set(`{"city":"Oslo"}`, 0)
	if a, _ := r.typed(typedBody("")); a.Result.Status != edge.Success || time.Since(begin) > slack(300*time.Millisecond) {
		t.Errorf("%+v, %v after the cancel", a, time.Since(begin))
	}
}

// typedOf asks with a context, and drops the answer.
func (r *rig) typedOf(ctx context.Context, body string) {
	req, _ := http.NewRequestWithContext(ctx, "POST", r.srv.URL+"/api/v1/edge/runs", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+testKey)
	if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// leave begins a run at r, and is gone once its provider is asked.
func (r *rig) leave(k *thinker, policy string) (run string) {
	r.t.Helper()
	known := map[string]bool{}
	for _, v := range r.hub.Runs() {
		known[v.Run] = true
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	asked := k.requests()
	go func() { defer close(done); r.typedOf(ctx, typedBody(`,"on_disconnect":"`+policy+`"`)) }()
	wait(r.t, func() bool {
		for _, v := range r.hub.Runs() {
			if v.State == "running" && !known[v.Run] {
				run = v.Run
			}
		}
		return run != "" && k.requests() > asked
	})
	cancel()
	<-done
	return run
}

// slack widens a bound under the race detector.
func slack(d time.Duration) time.Duration {
	if raceEnabled {
		return 5 * d
	}
	return d
}

// Events come in order, and exactly one result ends them.
func TestTypedEvents(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	r := newRig(t, Options{})
	r.serve("n1", k.URL, 4)
	for accept, kind := range map[string]string{"": "application/x-ndjson", "text/event-stream": "text/event-stream"} {
		resp, text := r.do("POST", "/api/v1/edge/runs", typedBody(`,"stream":true,"session_id":"x"`), "Accept", accept)
		if resp.Header.Get("Content-Type") != kind {
			t.Errorf("%v", resp.Header)
		}
		var events []string
		seq := 0
		for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
			line, ok := strings.CutPrefix(s.Text(), "data: ")
			if kind == "text/event-stream" && !ok {
				continue
			}
			var e struct {
				Event   string `json:"event"`
				RunID   string `json:"run_id"`
				Session string `json:"session_id"`
				Seq     int    `json:"seq"`
				Text    string `json:"text"`
				Result  *edge.ModelResult
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Seq != seq || e.RunID != resp.Header.Get("X-Fairway-Run") || e.Session != "x" {
				t.Fatalf("%s: %v", s.Text(), err)
			}
			seq++
			events = append(events, e.Event)
			if e.Event == "result" && (e.Result == nil || e.Result.Status != edge.Success) {
				t.Errorf("%s", line)
			}
		}
		all := strings.Join(events, " ")
		if !strings.HasPrefix(all, "accepted progress") || !strings.HasSuffix(all, "delta result") || strings.Count(all, "result") != 1 {
			t.Errorf("%s", all)
		}
	}
	// Also where there is nothing to run on.
	resp, text := r.do("POST", "/api/v1/edge/runs", strings.Replace(typedBody(`,"stream":true`), `"model":"m"`, `"model":"nope"`, 1))
	if resp.StatusCode != 200 || strings.Count(text, `"event":"result"`) != 1 || !strings.Contains(text, "model_missing") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// A caller that leaves cancels its run, lets it end, or fetches its result later: as it said.
func TestTypedDisconnect(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	r := newRig(t, Options{})
	r.serve("n1", k.URL, 4)
	k.set(`{"city":"Oslo"}`, 500*time.Millisecond)
	before := k.left()
	run := r.leave(k, "cancel")
	wait(t, func() bool { return k.left() == before+1 && r.hub.InFlight() == 0 })
	if resp, _ := r.do("GET", "/api/v1/edge/runs/"+run, ""); resp.StatusCode != 404 || resp.Header.Get("X-Fairway-Error") != "run_not_found" {
		t.Errorf("a canceled run: %d", resp.StatusCode)
	}
	run = r.leave(k, "drain")
	wait(t, func() bool { return r.hub.InFlight() == 0 })
	if k.left() != before+1 {
		t.Error("the drained run was canceled")
	}
	if resp, _ := r.do("GET", "/api/v1/edge/runs/"+run, ""); resp.StatusCode != 404 {
		t.Errorf("a drained run: %d", resp.StatusCode)
	}
	run = r.leave(k, "detach")
	if _, text := r.do("GET", "/api/v1/edge/runs/"+run, ""); !strings.Contains(text, `"state":"running"`) {
		t.Errorf("%s", text)
	}
	if resp, _ := r.do("GET", "/api/v1/edge/runs/"+run, "", "Authorization", "Bearer sk-bob"); resp.StatusCode != 404 {
		t.Errorf("someone else's: %d", resp.StatusCode)
	}
	wait(t, func() bool { return r.hub.InFlight() == 0 })
	resp, text := r.do("GET", "/api/v1/edge/runs/"+run, "")
	var v struct {
		State  string
		Result edge.ModelResult
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil || resp.StatusCode != 200 || v.State != "ended" || v.Result.Status != edge.Success {
		t.Errorf("%d %s %v", resp.StatusCode, text, err)
	}
	ended := 0
	for _, a := range r.accounts() {
		if a.Run == run {
			ended++
		}
	}
	if ended != 1 {
		t.Errorf("the detached run was accounted for %d times", ended)
	}
	r.hub.typed.mu.Lock()
	r.hub.typed.now = func() time.Time { return time.Now().Add(keepDetached) }
	r.hub.typed.mu.Unlock()
	if resp, _ := r.do("GET", "/api/v1/edge/runs/"+run, ""); resp.StatusCode != 404 {
		t.Errorf("after its time: %d", resp.StatusCode)
	}
}

// Who detaches learns the run's id before there is a result: the connection may end at any time.
func TestTypedDetachTellsTheRun(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	r := newRig(t, Options{})
	r.serve("n1", k.URL, 4)
	k.set(`{"city":"Oslo"}`, time.Second)
	req, _ := http.NewRequestWithContext(t.Context(), "POST", r.srv.URL+"/api/v1/edge/runs", strings.NewReader(typedBody(`,"on_disconnect":"detach"`)))
	req.Header.Set("Authorization", "Bearer "+testKey)
	begin := time.Now()
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	run := resp.Header.Get("X-Fairway-Run")
	if d := time.Since(begin); d > 900*time.Millisecond || run == "" {
		t.Errorf("after %v: run %q", d, run)
	}
	if _, text := r.do("GET", "/api/v1/edge/runs/"+run, ""); strings.Contains(text, `"ended"`) || !strings.Contains(text, run) {
		t.Errorf("%s", text)
	}
	var a edge.Answer
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || a.RunID != run || a.Result.Status != edge.Success || resp.Header.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Errorf("%+v, %v, %v", a, err, resp.Header)
	}
}

// Cancel names one run, and ends that one alone.
func TestTypedCancel(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	r := newRig(t, Options{})
	r.serve("n1", k.URL, 8)
	k.set(`{"city":"Oslo"}`, time.Minute)
	answers := make(chan edge.Answer, 4)
	for range 4 {
		go func() {
			a, _ := r.typed(typedBody(`,"session_id":"same"`))
			answers <- a
		}()
	}
	var runs []string
	wait(t, func() bool {
		runs = nil
		for _, v := range r.hub.Runs() {
			if v.State == "running" {
				runs = append(runs, v.Run)
			}
		}
		return len(runs) == 4 && k.requests() == 4
	})
	if resp, _ := r.do("POST", "/api/v1/edge/runs/same/cancel", ""); resp.StatusCode != 404 {
		t.Errorf("a session is no run: %d", resp.StatusCode)
	}
	if resp, _ := r.do("POST", "/api/v1/edge/runs/"+runs[0]+"/cancel", "", "Authorization", "Bearer sk-bob"); resp.StatusCode != 404 {
		t.Errorf("someone else's: %d", resp.StatusCode)
	}
	resp, text := r.do("POST", "/api/v1/edge/runs/"+runs[0]+"/cancel", "")
	if resp.StatusCode != 200 || !strings.Contains(text, `"state":"ended"`) || !strings.Contains(text, "canceled") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if a := <-answers; a.RunID != runs[0] || a.Result.Status != edge.Unavailable || a.Result.DegradeDetail != "canceled" {
		t.Errorf("%+v", a)
	}
	if n := r.hub.InFlight(); n != 3 {
		t.Errorf("%d run on", n)
	}
	for _, run := range runs[1:] {
		r.do("POST", "/api/v1/edge/runs/"+run+"/cancel", "")
	}
	wait(t, func() bool { return k.left() == 4 && r.hub.InFlight() == 0 })
}

// The gates: a run that may not be is one that was never asked for at a provider.
func TestTypedGates(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	redact, err := edge.NewRedaction([]string{`\d{4}-\d{4}`})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigWith(t, Options{}, func(st *Settings) {
		st.Gates = edge.Gates{Redaction: redact, Budget: edge.Budget{Tokens: 3000}, Tools: edge.Tools{"mail"}}
	})
	r.serve("n1", k.URL, 4)
	secret := strings.Replace(typedBody(""), "I live in Oslo.", "I live in Oslo, card 1234-5678.", 1)
	if a, _ := r.typed(secret); a.Result.Status != edge.Success {
		t.Errorf("%+v", a)
	}
	k.mu.Lock()
	if len(k.asked) != 1 || strings.Contains(k.asked[0], "1234") || !strings.Contains(k.asked[0], "Oslo") {
		t.Errorf("the provider was sent %q", k.asked)
	}
	k.mu.Unlock()
	for name, body := range map[string]string{
		"redaction": strings.Replace(typedBody(""), "which city?", "1234-5678?", 1),
		"budget":    strings.Replace(typedBody(""), "I live in", strings.Repeat("far away ", 4000), 1),
		"tool":      typedBody(`,"action":{"tool":"shell","risk":"R0"}`),
		"action":    typedBody(`,"action":{"tool":"mail","risk":"R2"}`),
	} {
		if a, _ := r.typed(body); a.Result.Status != edge.Unavailable || !strings.HasPrefix(a.Result.DegradeDetail, "gate: "+name) {
			t.Errorf("%s: %+v", name, a)
		}
	}
	k.mu.Lock()
	if len(k.asked) != 1 {
		t.Errorf("the provider was asked %d times", len(k.asked))
	}
	k.mu.Unlock()
	if a, _ := r.typed(typedBody(`,"action":{"tool":"mail","risk":"R2","authorization":{"operator":"ann","reason":"asked","approved":true}}`)); a.Result.Status != edge.Success {
		t.Errorf("approved: %+v", a)
	}
}

// A lease that is refused is a result that says so, and no other node is asked.
func TestTypedLease(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, _ := leased(t, Options{}, canary, p, newKeyed(t, canary))
	body := typedBody("")
	if a, _ := r.typed(body); a.Result.DegradeReason != edge.OutputUnparseable && a.Result.Status != edge.Success && a.Result.Status != edge.Invalid {
		t.Errorf("%+v", a) // what the provider says is no JSON: it was asked, with its key
	}
	if r.hub.LeaseCounts()["opened"] != 1 {
		t.Errorf("%v", r.hub.LeaseCounts())
	}
	if _, err := r.hub.Revoke(t.Context(), "slot:s", false); err != nil {
		t.Fatal(err)
	}
	if a, resp := r.typed(body); resp.StatusCode != 200 || a.Result.Status != edge.Unavailable || a.Result.DegradeReason != edge.OtherError || a.Result.DegradeDetail != "lease: lease_revoked" {
		t.Errorf("%d %+v", resp.StatusCode, a)
	}
	if r.hub.LeaseCounts()["opened"] != 1 {
		t.Errorf("%v", r.hub.LeaseCounts())
	}
}

// Typed runs are forwarded as any other.
func TestTypedForwarded(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	one, two, _ := twoPeers(t)
	two.serve("n2", k.URL, 2)
	one.sees("n2")
	a, _ := one.typed(typedBody(""))
	if a.Result.Status != edge.Success || string(a.Result.Output) != `{"city":"Oslo"}` {
		t.Errorf("%+v", a)
	}
	k.set("", time.Minute)
	begin := time.Now()
	if a, _ := one.typed(typedBody(`,"deadline_ms":300`)); a.Result.DegradeReason != edge.DeadlineExceeded || time.Since(begin) > slack(400*time.Millisecond) {
		t.Errorf("%+v after %v", a, time.Since(begin))
	}
	wait(t, func() bool { return k.left() == 1 })
}

// A typed run can be asked about, fetched and canceled at every gateway of the fleet, by its caller alone.
func TestTypedAskedElsewhere(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	one, two, _ := twoPeers(t)
	two.serve("n2", k.URL, 4)
	one.sees("n2")
	wait(t, func() bool { return len(two.hub.peers.serving()) == 1 && len(one.hub.peers.serving()) == 1 })
	ask := func(r *rig, method, path string, header ...string) (state string, status edge.Status, code int) {
		t.Helper()
		resp, text := r.do(method, "/api/v1/edge/runs/"+path, "", header...)
		var v struct {
			State  string
			Result edge.ModelResult
		}
		if resp.StatusCode == 200 {
			if err := json.Unmarshal([]byte(text), &v); err != nil && v.State == "ended" {
				t.Errorf("%s: %v", text, err)
			}
		} else if resp.Header.Get("X-Fairway-Error") != "run_not_found" {
			t.Errorf("%v %s", resp.Header, text)
		}
		return v.State, v.Result.Status, resp.StatusCode
	}
	for name, c := range map[string]struct{ taken, asked *rig }{"at the node's": {two, one}, "forwarded": {one, two}} {
		k.set(`{"city":"Oslo"}`, time.Second)
		run := c.taken.leave(k, "detach")
		if state, _, code := ask(c.asked, "GET", run); state != "running" || code != 200 {
			t.Errorf("%s: %q, %d", name, state, code)
		}
		if _, _, code := ask(c.asked, "GET", run, "Authorization", "Bearer sk-bob"); code != 404 {
			t.Errorf("%s: someone else's: %d", name, code)
		}
		if _, _, code := ask(c.asked, "POST", run+"/cancel", "Authorization", "Bearer sk-bob"); code != 404 {
			t.Errorf("%s: someone else's is canceled: %d", name, code)
		}
		wait(t, func() bool { return c.taken.hub.InFlight() == 0 })
		if state, status, _ := ask(c.asked, "GET", run); state != "ended" || status != edge.Success {
			t.Errorf("%s: %q, %q", name, state, status)
		}
		k.set(`{"city":"Oslo"}`, time.Minute)
		left := k.left()
		run = c.taken.leave(k, "detach")
		if state, status, _ := ask(c.asked, "POST", run+"/cancel"); state != "ended" || status != edge.Unavailable {
			t.Errorf("%s: canceled: %q, %q", name, state, status)
		}
		wait(t, func() bool { return k.left() == left+1 && c.taken.hub.InFlight() == 0 })
	}
	if _, _, code := ask(one, "GET", "no-such-run"); code != 404 {
		t.Errorf("unknown: %d", code)
	}
	for _, r := range []*rig{one, two} { // questions are no runs of the gateway that answers them
		for _, v := range r.hub.Runs() {
			if v.Kind != "edge" {
				t.Errorf("%s lists %+v", r.st.Gateway, v)
			}
		}
	}
}

// A thousand runs with one session id are a thousand runs.
func TestTypedRunsAreIndependent(t *testing.T) {
	t.Parallel()
	k := newThinker(t, `{"city":"Oslo"}`)
	r := newRig(t, Options{QueueDepth: 2000})
	r.serve("n1", k.URL, 64)
	var mu sync.Mutex
	ids, keys := map[string]bool{}, map[string]bool{}
	var all sync.WaitGroup
	slots := make(chan struct{}, 100)
	for range 1000 {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			a, _ := r.typed(typedBody(`,"session_id":"same"`))
			mu.Lock()
			defer mu.Unlock()
			ids[a.RunID], keys[a.IdempotencyKey] = true, true
			if a.Result.Status != edge.Success || a.Session != "same" {
				t.Errorf("%+v", a)
			}
		})
	}
	all.Wait()
	if len(ids) != 1000 || len(keys) != 1000 {
		t.Errorf("%d runs, %d keys", len(ids), len(keys))
	}
}
