package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// The four statuses, as an application sees them: what it may act on, and on what that rests.
func TestEdgeStatuses(t *testing.T) {
	t.Parallel()
	g, _, fake := edgeFleet(t, rig.Options{})
	for _, tc := range []struct {
		name, body string
		want       string // status, reason and detail
		output     string
		evidence   string // SOURCE@OFFSET=SNIPPET, …
		accept     bool
	}{
		{"a schema that is met", ask(sayer, `⟦{"city":"Oslo"}⟧`, ""), "success", `{"city":"Oslo"}`, "", true},
		{"a fence and thoughts around it", ask(sayer, "⟦<think>hm</think>```json\n{\"city\":\"Oslo\"}\n```⟧", ""), "success", `{"city":"Oslo"}`, "", true},
		{"a schema that is broken", ask(sayer, `⟦{"city":7}⟧`, ""), "invalid  schema: city fails type", "", "", false},
		{"a member too many", ask(sayer, `⟦{"city":"Oslo","zip":"1"}⟧`, ""), "invalid  schema: the whole fails additionalProperties", "", "", false},
		{"no JSON", ask(sayer, `⟦Oslo⟧`, ""), "unavailable output_unparseable the answer is not JSON: invalid character 'O' looking for beginning of value", "", "", false},
		{"nothing", ask(sayer, `⟦⟧`, ""), "unavailable output_unparseable the answer is empty", "", "", false},
		{
			"a contract, all of it grounded", askFields(`{"total":"1 200,00","currency":" eur "}`, "Größe L. Summe: 1\n200,00 – danke", ""), "success",
			`{"total":"1 200,00","currency":"EUR"}`, "letter@16=1 200,00, currency@-=EUR", true,
		},
		{
			"a contract, in part", askFields(`{"total":"99","currency":"usd"}`, "The total is missing.", ""), "success",
			`{"total":"Not specified","currency":"USD"}`, "currency@-=USD", true,
		},
		{
			"a contract, invented", askFields(`{"total":"99","currency":"yen"}`, "The total is missing.", ""), "uncertain  no value is grounded",
			`{"total":"Not specified","currency":"Not specified"}`, "", false,
		},
		{
			"the same, where the caller takes that", askFields(`{"total":"99","currency":"yen"}`, "The total is missing.", `,"accept_uncertain":true`),
			"uncertain  no value is grounded", `{"total":"Not specified","currency":"Not specified"}`, "", true,
		},
		{"a contract with another's field", askFields(`{"sum":"99"}`, "99", ""), "invalid  schema: sum is no field of the contract", "", "", false},
		{"a model that nobody has", ask("nobody", "x", ""), "unavailable error model_missing: no_such_model", "", "", false},
		{"a provider that fails midway", ask("t-errmid", "x", ""), "unavailable error bad_response: provider_error", "", "", false},
		{"the cloud, which is not there", `{"operator":{"kind":"goal","workflow_id":"uw_1"},"placement":"cloud"}`, "unavailable server_unreachable unreachable: no_node", "", "", false},
		{"an action that nobody permits", ask(sayer, "x", `,"action":{"tool":"door","risk":"R0"}`), "unavailable error gate: tool: the tool is not on the list of permitted tools", "", "", false},
	} {
		for _, stream := range []string{"", `,"stream":true`} {
			body := strings.TrimSuffix(tc.body, "}") + stream + "}"
			r, text := g.Do("POST", edgeRuns, body)
			if r.StatusCode != 200 {
				t.Errorf("%s: %d %s", tc.name, r.StatusCode, text)
				continue
			}
			var a edge.Answer
			if stream == "" {
				a = readAnswer(t, text)
			} else {
				events := readEvents(t, strings.NewReader(text), false)
				a = events[len(events)-1].Answer
			}
			if got := detail(a); got != tc.want {
				t.Errorf("%s%s: %q, not %q", tc.name, stream, got, tc.want)
			}
			if string(a.Result.Output) != tc.output {
				t.Errorf("%s%s: %s", tc.name, stream, a.Result.Output)
			}
			if got := evidence(a.Result); got != tc.evidence {
				t.Errorf("%s%s: %s", tc.name, stream, got)
			}
			if (a.Disposition == edge.Accept) != tc.accept || a.RunID != r.Header.Get("X-Fairway-Run") || a.Result.LatencyMS <= 0 {
				t.Errorf("%s%s: %+v", tc.name, stream, a)
			}
		}
	}
	idle(t, g, fake)
}

func evidence(r edge.ModelResult) string {
	var all []string
	for _, e := range r.Evidence {
		offset := "-"
		if e.Offset != nil {
			offset = fmt.Sprint(*e.Offset)
		}
		all = append(all, fmt.Sprintf("%s@%s=%s", e.Source, offset, *e.Snippet))
	}
	return strings.Join(all, ", ")
}

// A03: at a silent provider, at one that talks too long, and before a credit that does not come free, a run ends at its deadline and not 100 ms later.
// The tests that run in parallel wait until this one is over.
func TestDeadline(t *testing.T) {
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	g := rig.NewGateway(t, rig.Options{})
	g.NodeOf("n1", fake.URL(), "--credits", "1")
	waitModel(t, g, sayer)
	typedRun(t, g, ask(sayer, `⟦{"city":"Oslo"}⟧`, "")) // connections stand
	measure := func(what, body string, deadline time.Duration) {
		t.Helper()
		start := time.Now()
		a := typedRun(t, g, body)
		late := time.Since(start) - deadline
		if want := fmt.Sprintf("unavailable deadline_exceeded deadline_ms=%d elapsed", deadline.Milliseconds()); detail(a) != want {
			t.Errorf("%s: %s", what, detail(a))
		}
		if late < 0 || late > edgeLate() {
			t.Errorf("%s: %v late", what, late)
		}
		// What the result says of its time is its time.
		if d := time.Duration(a.Result.LatencyMS * float64(time.Millisecond)); d < deadline-time.Millisecond || d > deadline+edgeLate() {
			t.Errorf("%s: a latency of %v", what, d)
		}
	}
	for range 3 {
		measure("a silent provider", ask("t-slowload", "x", `,"deadline_ms":200`), 200*time.Millisecond)
		measure("one that goes on talking", ask("t-tick", "x", `,"deadline_ms":400`), 400*time.Millisecond)
		measure("hardly any time", ask("t-slowload", "x", `,"deadline_ms":1`), time.Millisecond)
	}
	_, leave, gone := startTyped(t, g, ask("t-slowload", "x", ""))
	for range 3 {
		measure("no credit", ask("t-slowload", "x", `,"deadline_ms":200`), 200*time.Millisecond)
	}
	leave()
	<-gone
	idle(t, g, fake)
}

// A canceled run leaves the provider at once, and its credit serves the next one. Serial for the same reason.
func TestEdgeCancelFreesTheCredit(t *testing.T) {
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	g := rig.NewGateway(t, rig.Options{})
	g.NodeOf("n1", fake.URL(), "--credits", "1")
	waitModel(t, g, sayer)
	limit := 200 * time.Millisecond
	if edgeLate() > limit {
		limit = 5 * limit
	}
	for i, how := range []string{"cancel", "leave", "cancel", "leave"} {
		run, leave, answers := startTyped(t, g, ask("t-tick", "x", ""))
		rig.Eventually(t, 5*time.Second, "it runs", func() bool { return fake.Stats().Inflight == 1 })
		next := make(chan struct{})
		go func() {
			defer close(next)
			typedRun(t, g, ask("t-tick", "x", `,"deadline_ms":700`)) // waits for the one credit
		}()
		rig.Eventually(t, 5*time.Second, "the next one waits", func() bool {
			for _, r := range edgeRows(t, g) {
				if r.State == "queued" {
					return true
				}
			}
			return false
		})
		at := time.Now()
		if how == "leave" {
			leave()
			if _, ok := <-answers; ok {
				t.Error("an answer for someone who left")
			}
		} else {
			r, text := g.Do("POST", edgeRuns+"/"+run+"/cancel", "")
			if r.StatusCode != 200 || !strings.Contains(text, `"state":"ended"`) {
				t.Errorf("%d %s", r.StatusCode, text)
			}
			if got := detail(<-answers); got != "unavailable error canceled" {
				t.Errorf("%s", got)
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		left, err := fake.Wait(ctx, func(r fakeollama.Record) bool { return r.ClientGone > 0 && since(fake, r.ClientGone).After(at) })
		if err != nil {
			t.Fatal(err)
		}
		begun, err := fake.Wait(ctx, func(r fakeollama.Record) bool { return r.Path == "/api/chat" && since(fake, r.At).After(at) })
		stop()
		if err != nil {
			t.Fatal(err)
		}
		if d := since(fake, left.ClientGone).Sub(at); d > limit {
			t.Errorf("%d, %s: the provider was left after %v", i, how, d)
		}
		if d := since(fake, begun.At).Sub(at); d > limit {
			t.Errorf("%d, %s: the credit served the next run after %v", i, how, d)
		}
		<-next
	}
	idle(t, g, fake)
}

func since(fake *fakeollama.Server, seconds float64) time.Time {
	return fake.Began().Add(time.Duration(seconds * float64(time.Second)))
}

// Runs that are canceled at any moment, by their id, by their caller's leaving, or by both, end in exactly one result each, and leave nothing.
func TestEdgeCancelRaces(t *testing.T) {
	t.Parallel()
	g, _, fake := edgeFleet(t, rig.Options{})
	c := plain(t, g)
	const total = 120
	started := g.Metric("fairway_runs_total", `kind="edge"`)
	moments := make([]time.Duration, total)
	for i := range moments {
		moments[i] = time.Duration(rand.IntN(120_000)) * time.Microsecond
	}
	var mu sync.Mutex
	ends := map[string]int{}
	parallel(total, func(i int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		model := []string{sayer, "t-tick", "t-slowload", "t-die"}[i%4]
		r, err := c.post(ctx, edgeRuns, ask(model, `⟦{"city":"Oslo"}⟧`, `,"stream":true,"session_id":"same"`))
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Body.Close()
		run := r.Header.Get("X-Fairway-Run")
		var both sync.WaitGroup
		both.Go(func() {
			time.Sleep(moments[i]) // the moment is what is varied
			if i%3 == 0 {
				cancel()
			}
			if i%3 != 0 || i%2 == 0 {
				a, text := g.Do("POST", edgeRuns+"/"+run+"/cancel", "")
				var v struct {
					State  string
					Result *edge.ModelResult
				}
				if err := json.Unmarshal([]byte(text), &v); a.StatusCode != 404 && (err != nil || a.StatusCode != 200 || v.State != "ended" || v.Result == nil) {
					t.Errorf("%d %s", a.StatusCode, text)
				}
			}
		})
		events := readEvents(t, r.Body, false)
		both.Wait()
		results := 0
		for n, e := range events {
			if e.Event == "result" {
				results++
				if n != len(events)-1 || e.RunID != run {
					t.Errorf("result %d of %d events", n, len(events))
				}
				mu.Lock()
				ends[detail(e.Answer)]++
				mu.Unlock()
			}
		}
		if results > 1 || results == 0 && i%3 != 0 {
			t.Errorf("%d results", results)
		}
	})
	t.Logf("%v", ends)
	for how := range ends {
		switch how {
		case "success", "unavailable error canceled", "unavailable server_unreachable unreachable: provider_unreachable":
		default:
			t.Errorf("%d runs ended as %q", ends[how], how)
		}
	}
	idle(t, g, fake)
	rig.Eventually(t, 5*time.Second, "every run is counted once", func() bool {
		return g.Metric("fairway_runs_total", `kind="edge"`, `outcome=`)-started >= total
	})
	seen := map[string]int{}
	for _, r := range edgeRows(t, g) {
		if r.Kind == "edge" && r.Session == "same" {
			seen[r.Run]++
		}
	}
	if len(seen) != total {
		t.Errorf("%d runs are listed", len(seen))
	}
	if n := g.Metric("fairway_fenced_frames_total", "late_terminal"); n != 0 {
		t.Errorf("%v second terminals", n)
	}
	if s := g.Node("n1").State; s != "ready" {
		t.Errorf("the node is %s", s)
	}
}
