package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// slowFleet is a gateway with a node whose provider answers when it is told to. Asked and gone count the requests that it gets, and those whose caller left.
func slowFleet(t *testing.T, o rig.Options) (g *rig.Gateway, asked, gone chan struct{}, answer func(string)) {
	t.Helper()
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	f := newFront(t, fake.Addr())
	g = rig.NewGateway(t, o)
	g.NodeOf("n1", f.url(), "--credits", credits)
	waitModel(t, g, sayer)
	came, left, say := make(chan struct{}, 100), make(chan struct{}, 100), make(chan string)
	f.set(func(c net.Conn) {
		came <- struct{}{}
		hungUp := make(chan struct{})
		go func() { defer close(hungUp); silence(c) }()
		select {
		case text := <-say:
			body := fmt.Sprintf(`{"model":"t-say","message":{"role":"assistant","content":%s},"done":true,"done_reason":"stop","prompt_eval_count":1,"eval_count":1}`, quote(text))
			write(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s\n", len(body)+1, body))
		case <-hungUp:
			left <- struct{}{}
		}
	})
	return g, came, left, func(text string) {
		t.Helper()
		select {
		case say <- text:
		case <-time.After(10 * time.Second):
			t.Fatal("the provider has no run to answer")
		}
	}
}

// within waits for what soon happens.
func within(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("not within 10s: %s", what)
	}
}

// view asks how a run stands, as the caller whose key it is.
func view(t *testing.T, g *rig.Gateway, run, key string) (status int, state string, a edge.Answer) {
	t.Helper()
	r, text := g.Do("GET", edgeRuns+"/"+run, "", "Authorization", "Bearer "+key)
	if r.StatusCode != 200 {
		return r.StatusCode, r.Header.Get("X-Fairway-Error"), a
	}
	var v struct {
		State   string
		Started time.Time
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%v in %s", err, text)
	}
	if d := time.Since(v.Started); d < 0 || d > time.Minute {
		t.Errorf("started %v", v.Started)
	}
	if v.State == "ended" {
		a = readAnswer(t, text)
	}
	return r.StatusCode, v.State, a
}

// A caller that goes away, in the middle of a run and of its events: as the run's policy says.
func TestEdgeDisconnect(t *testing.T) {
	t.Parallel()
	const bob = "sk-rig-bob-0123456789abcdef"
	g, asked, gone, say := slowFleet(t, rig.Options{Global: "\t\tkey bob " + bob + "\n"})
	quiet := func() {
		t.Helper()
		rig.Eventually(t, 5*time.Second, "nothing is in flight", func() bool { return g.Metric("fairway_runs_in_flight") == 0 })
	}
	start := func(more string) (run string, leave func(), answers <-chan edge.Answer) {
		t.Helper()
		run, leave, answers = startTyped(t, g, ask(sayer, "x", more))
		within(t, asked, "the provider is asked")
		return run, leave, answers
	}
	for _, stream := range []string{"", `,"stream":true`} {
		run, leave, _ := start(stream) // cancel is the default
		leave()
		within(t, gone, "the provider is told")
		quiet()
		if status, code, _ := view(t, g, run, rig.Key); status != 404 || code != "run_not_found" {
			t.Errorf("cancel: %d %s", status, code)
		}

		run, leave, _ = start(`,"on_disconnect":"drain"` + stream)
		leave()
		say(`{"city":"Bergen"}`)
		quiet()
		if status, code, _ := view(t, g, run, rig.Key); status != 404 || code != "run_not_found" {
			t.Errorf("drain: %d %s", status, code)
		}

		run, leave, _ = start(`,"on_disconnect":"detach","session_id":"later"` + stream)
		leave()
		if status, state, _ := view(t, g, run, rig.Key); status != 200 || state != "running" {
			t.Errorf("detach, under way: %d %s", status, state)
		}
		if err := g.Reload(); err != nil { // the run goes on over a reload …
			t.Fatal(err)
		}
		say(`{"city":"Oslo"}`)
		quiet()
		for range 2 {
			status, state, a := view(t, g, run, rig.Key)
			if status != 200 || state != "ended" || a.Result.Status != edge.Success || string(a.Result.Output) != `{"city":"Oslo"}` || a.Session != "later" || a.Disposition != edge.Accept {
				t.Errorf("detach: %d %s %+v", status, state, a)
			}
			if status, _, _ := view(t, g, run, bob); status != 404 {
				t.Errorf("someone else's: %d", status)
			}
			if err := g.Reload(); err != nil { // … and so does its result
				t.Fatal(err)
			}
		}
	}
	// Who stays has the answer, and with detach can fetch it again all the same.
	run, _, answers := start(`,"on_disconnect":"detach"`)
	say(`{"city":"Oslo"}`)
	first := <-answers
	if _, _, again := view(t, g, run, rig.Key); again.IdempotencyKey != first.IdempotencyKey || first.Result.Status != edge.Success {
		t.Errorf("%+v then %+v", first, again)
	}
	if len(gone) != 0 {
		t.Errorf("%d runs were cut that were to go on", len(gone))
	}
	// Each of the seven is one run in the counts, however its caller left.
	rig.Eventually(t, 5*time.Second, "every run is counted once", func() bool {
		return g.Metric("fairway_runs_total", `kind="edge"`, `outcome="completed"`) >= 5
	})
	outcomes := map[string]int{}
	for _, r := range edgeRows(t, g) {
		if r.Kind == "edge" && r.Model == sayer {
			outcomes[r.Outcome]++
		}
	}
	if outcomes["completed"] != 5 || outcomes["canceled"] != 2 || len(outcomes) != 2 {
		t.Errorf("%v", outcomes)
	}
}

// SIGTERM: a run that ends within the grace gives its result; one that does not, one that waits, and one that nobody listens to, end typed and in time.
func TestEdgeSIGTERM(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	f := newFront(t, fake.Addr())
	g := rig.NewGateway(t, rig.Options{Grace: "3s"})
	g.NodeOf("n1", f.url(), "--credits", "4")
	waitModel(t, g, sayer)
	taken, release := make(chan struct{}), make(chan struct{})
	f.set(func(c net.Conn) {
		close(taken)
		<-release
		last := `{"model":"t-say","message":{"role":"assistant","content":"{\"city\":\"Oslo\"}"},"done":true,"done_reason":"stop"}` + "\n"
		write(c, chatHead+fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(last), last))
		silence(c)
	})
	_, _, quick := startTyped(t, g, ask(sayer, "x", ""))
	within(t, taken, "the provider is asked")
	f.set(silence)
	_, leave, _ := startTyped(t, g, ask("t-tick", "x", `,"on_disconnect":"detach"`))
	_, _, long := startTyped(t, g, ask("t-slowload", "x", ""))
	leave()
	for range 3 { // the credits are taken
		startTyped(t, g, ask("t-slowload", "x", ""))
	}
	queued := make(chan edge.Answer, 1)
	go func() { queued <- typedRun(t, g, ask("t-slowload", "x", "")) }()
	rig.Eventually(t, 5*time.Second, "one waits", func() bool {
		for _, r := range edgeRows(t, g) {
			if r.State == "queued" {
				return true
			}
		}
		return false
	})
	start := time.Now()
	g.Signal(syscall.SIGTERM)
	if got := detail(<-queued); got != "unavailable server_unreachable unreachable: draining" {
		t.Errorf("queued: %s", got)
	}
	close(release)
	if a := <-quick; detail(a) != "success" {
		t.Errorf("quick: %s", detail(a))
	}
	if got := detail(<-long); got != "unavailable server_unreachable unreachable: draining" {
		t.Errorf("long: %s", got)
	}
	if code := g.Exit(15 * time.Second); code != 0 {
		t.Errorf("exit %d", code)
	}
	if d := time.Since(start); d > 8*time.Second {
		t.Errorf("it took %v; the grace is 3 s", d)
	}
}

// A typed run is at the node that its caller names, as any other, if the caller may name one.
func TestEdgePinned(t *testing.T) {
	t.Parallel()
	g, _, fake := edgeFleet(t, rig.Options{Site: "\t\tmanage alice\n\t\texpose_node\n"})
	other := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	g.NodeOf("n2", other.URL(), "--credits", credits)
	rig.Eventually(t, 5*time.Second, "both have it", func() bool {
		_, list := g.Do("GET", "/n/n2/api/tags", "")
		return strings.Contains(list, sayer)
	})
	asked := func(f *fakeollama.Server) (n int) {
		for _, rec := range f.Log() {
			if rec.Path == "/api/chat" {
				n++
			}
		}
		return n
	}
	for range 4 {
		for _, pin := range [][]string{{edgeRuns, "X-Fairway-Node", "n2"}, {"/n/n2" + edgeRuns}} {
			r, text := g.Do("POST", pin[0], ask(sayer, `⟦{"city":"Oslo"}⟧`, ""), pin[1:]...)
			if r.StatusCode != 200 || r.Header.Get("X-Fairway-Node") != "n2" || detail(readAnswer(t, text)) != "success" {
				t.Errorf("%v: %d %v %s", pin, r.StatusCode, r.Header, text)
			}
		}
	}
	if asked(fake) != 0 || asked(other) < 8 {
		t.Errorf("n1 was asked %d times, n2 %d times", asked(fake), asked(other))
	}
	if r, text := g.Do("POST", edgeRuns, ask(sayer, `⟦{"city":"Oslo"}⟧`, ""), "X-Fairway-Node", "n3"); r.StatusCode != 200 || detail(readAnswer(t, text)) != "unavailable server_unreachable unreachable: no_node" {
		t.Errorf("a node that is not there: %d %v %s", r.StatusCode, r.Header, text)
	}
	plain, _, _ := edgeFleet(t, rig.Options{})
	if r, text := plain.Do("POST", edgeRuns, ask(sayer, "x", ""), "X-Fairway-Node", "n1"); r.StatusCode != 403 {
		t.Errorf("a caller who may not choose: %d %s", r.StatusCode, text)
	}
}

// Typed runs are in the lists, the access log and the metrics; what they were about is in none of them, and neither is a caller's correlation in a form
// that a terminal or a log would obey.
func TestEdgeIsSeenAndNotHeard(t *testing.T) {
	t.Parallel()
	words := []string{"promptword", "textword", "nameword", "outputword", "labelword", "reasonword"}
	odd := "\x1b[31m\r\nX-Evil: 1\x00\x7f\u2028\u202e☃\"<&>\\"
	g, n, fake := edgeFleet(t, rig.Options{SiteLines: "\tlog {\n\t\toutput stderr\n\t}\n", Global: "\t\tedge {\n\t\t\ttools door\n\t\t}\n"})
	contract := `{"contract_id":"c1","prompt_template":"promptword ⟦{\"a\":\"outputword\"}⟧","fields":[{"name":"a"},{"name":"b","mode":"closed_set","allowed_values":["labelword"]}]}`
	body := func(model, text, more string) string {
		return fmt.Sprintf(`{"operator":{"kind":"contract","model":%q,"contract":%s},"input":{"nameword":%s},"session_id":%s%s}`, model, contract, quote(text), quote(odd), more)
	}
	const action = `,"action":{"tool":"door","risk":"R2","authorization":{"operator":"ann","reason":"reasonword","approved":true}}`
	runs := map[string]string{}
	for name, body := range map[string]string{
		"success":     body(sayer, "textword outputword", action),
		"uncertain":   body(sayer, "textword", ""),
		"invalid":     strings.Replace(body(sayer, "textword outputword", ""), `{\"a\":`, `{\"outputword\":`, 1),
		"unavailable": strings.Replace(body(sayer, "textword", ""), `{\"a\":`, `outputword`, 1),
		"cut":         body("t-die", "textword", `,"stream":true`),
		"no model":    body("nobody", "textword", ""),
		"no approval": body(sayer, "textword", strings.Replace(action, "true", "false", 1)),
	} {
		r, text := g.Do("POST", edgeRuns, body)
		if r.StatusCode != 200 || r.Header.Get("X-Fairway-Session") != "" || r.Header.Get("X-Evil") != "" {
			t.Errorf("%s: %d %v %s", name, r.StatusCode, r.Header, text)
		}
		var a edge.Answer
		if strings.Contains(body, `"stream":true`) {
			events := readEvents(t, strings.NewReader(text), false)
			a = events[len(events)-1].Answer
		} else {
			a = readAnswer(t, text)
		}
		if a.Session != odd {
			t.Errorf("%s: the session came back as %q", name, a.Session)
		}
		if name != "cut" && name != "no model" && name != "no approval" && string(a.Result.Status) != name {
			t.Errorf("%s: %s", name, detail(a))
		}
		runs[a.RunID] = name
	}
	if r, text := g.Do("POST", edgeRuns, body(sayer, "textword", `,"textword":1`)); r.StatusCode != 400 {
		t.Errorf("%d %s", r.StatusCode, text)
	}
	if r, _ := g.Do("POST", edgeRuns, ask(sayer, "textword", `,"session_id":"plain one"`)); r.Header.Get("X-Fairway-Session") != "plain one" {
		t.Errorf("%v", r.Header)
	}
	idle(t, g, fake)

	listed := 0
	for _, r := range edgeRows(t, g) {
		if runs[r.Run] == "" {
			continue
		}
		listed++
		if r.Kind != "edge" || r.State != "ended" || r.Session != odd || runs[r.Run] == "success" && (r.Outcome != "completed" || r.Node != "n1" || r.Model != sayer) {
			t.Errorf("%s: %+v", runs[r.Run], r)
		}
	}
	if listed != len(runs) {
		t.Errorf("%d of %d runs are listed", listed, len(runs))
	}
	if n := g.Metric("fairway_runs_total", `kind="edge"`, `outcome="completed"`); n < 3 {
		t.Errorf("%v runs of kind edge are counted", n)
	}
	table, lines := g.Fairway("runs"), g.Fairway("runs", "--json")
	var rows []runRow
	if err := json.Unmarshal([]byte(lines), &rows); err != nil || len(rows) < len(runs) {
		t.Errorf("%v, %d rows", err, len(rows))
	}
	for run := range runs {
		if !strings.Contains(table, run) || !strings.Contains(g.Log(), `"fairway_run":"`+run+`"`) {
			t.Errorf("%s, %s is not in the table or not in the access log", run, runs[run])
		}
	}
	seen := map[string]string{"the table": table, "the gateway's log": g.Log(), "the node's log": n.Log()}
	for _, path := range []string{"/metrics", "/fairway/runs", "/fairway/nodes", "/fairway/status"} {
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", g.Admin, path)) //nolint:noctx // on loopback
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		seen[path] = string(b)
	}
	for where, text := range seen {
		for _, word := range append(words, "Which city") {
			if i := strings.Index(text, word); i >= 0 {
				t.Errorf("%s holds %q: …%s", where, word, text[max(0, i-200):min(len(text), i+100)])
			}
		}
		for _, raw := range []string{"\x1b[31m", "\x00", "\u202e", "\u2028", "\r"} {
			if strings.Contains(text, raw) && (where != "/fairway/runs" || raw < " ") {
				t.Errorf("%s holds %q as it came", where, raw)
			}
		}
	}
}

// Two gateways: a run is forwarded to the one that holds the node, canceled there, cut there, and known to both.
func TestEdgeFleet(t *testing.T) {
	t.Parallel()
	fleet := rig.NewFleet(t, 2, rig.Options{})
	one, two := fleet.Gateways[0], fleet.Gateways[1]
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	n := two.NodeOf("n2", fake.URL(), "--credits", credits)
	waitModel(t, one, sayer)

	for _, stream := range []string{"", `,"stream":true`} {
		r, text := one.Do("POST", edgeRuns, ask(sayer, `⟦{"city":"Oslo"}⟧`, `,"session_id":"s"`+stream))
		events := readEvents(t, strings.NewReader(text), false)
		if a := events[len(events)-1].Answer; r.StatusCode != 200 || detail(a) != "success" || string(a.Result.Output) != `{"city":"Oslo"}` || a.Session != "s" {
			t.Errorf("%d %s", r.StatusCode, text)
		}
	}
	if a := typedRun(t, one, askFields(`{"total":"12","currency":"eur"}`, "It is 12 EUR.", "")); evidence(a.Result) != "letter@6=12, currency@-=EUR" {
		t.Errorf("%s %s", detail(a), evidence(a.Result))
	}
	start := time.Now()
	if a := typedRun(t, one, ask("t-slowload", "x", `,"deadline_ms":500`)); detail(a) != "unavailable deadline_exceeded deadline_ms=500 elapsed" || time.Since(start) > 500*time.Millisecond+edgeLate()+time.Second {
		t.Errorf("%s after %v", detail(a), time.Since(start))
	}

	run, _, answers := startTyped(t, one, ask("t-slowload", "x", ""))
	rig.Eventually(t, 5*time.Second, "it is seen where it executes, as what it is", func() bool {
		for _, r := range edgeRows(t, two) {
			if r.Run == run && r.Kind == "edge" && r.Node == "n2" {
				return true
			}
		}
		return false
	})
	for _, g := range fleet.Gateways {
		if r, text := g.Do("GET", edgeRuns+"/"+run, ""); r.StatusCode != 200 || !strings.Contains(text, `"running"`) {
			t.Errorf("asked at %s: %d %s", g.Opts.Name, r.StatusCode, text)
		}
	}
	if r, text := two.Do("POST", edgeRuns+"/"+run+"/cancel", ""); r.StatusCode != 200 || !strings.Contains(text, `"ended"`) {
		t.Errorf("at the other gateway, which has not started it: %d %s", r.StatusCode, text)
	}
	if got := detail(<-answers); got != "unavailable error canceled" {
		t.Errorf("%s", got)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	if err := fake.WaitStats(ctx, func(s fakeollama.Stats) bool { return s.Inflight == 0 }); err != nil {
		t.Error("the provider goes on")
	}

	// The node is killed under a run, and comes back: the run that it had is lost, and no other is.
	_, _, answers = startTyped(t, one, ask("t-slowload", "x", ""))
	rig.Eventually(t, 5*time.Second, "it runs", func() bool { return fake.Stats().Inflight == 1 })
	ran := fake.Execs("t-slowload")
	n.Kill()
	n.Restart()
	if a := <-answers; detail(a) != "unavailable server_unreachable unreachable: node_replaced" && detail(a) != "unavailable server_unreachable unreachable: node_lost" {
		t.Errorf("killed: %s", detail(a))
	}
	if now := fake.Execs("t-slowload"); now != ran {
		t.Errorf("it ran %d times more", now-ran)
	}
	rig.Eventually(t, 10*time.Second, "served again", func() bool {
		return typedRun(t, one, ask(sayer, `⟦{"city":"Oslo"}⟧`, `,"deadline_ms":2000`)).Result.Status == edge.Success
	})
	idle(t, one, fake)
	idle(t, two, fake)
}
