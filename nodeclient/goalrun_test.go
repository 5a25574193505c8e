package nodeclient

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/goals"
	"github.com/fairway-edge/fairway/tests/fakegoals"
	"github.com/fairway-edge/fairway/tunnel"
)

// stages are what a job goes through; its message is the last one's.
func stages(message string, statuses ...string) (out []fakegoals.Stage) {
	for i, s := range statuses {
		more := map[string]any{"progress": i}
		if i == len(statuses)-1 {
			more["agentMessage"] = message
		}
		out = append(out, fakegoals.Stage{Status: s, More: more})
	}
	return out
}

// goalNode is a node whose target cloud is a fake goal-job API.
func goalNode(t testing.TB, o fakegoals.Options) (*fakegoals.Server, *Client, *tunnel.Session) {
	t.Helper()
	f := fakegoals.Start(t, o)
	g := newGateway(t)
	targets, err := Targets("off", []string{"cloud=goals:" + f.URL()}, nil, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	c, s, _ := g.node(Config{Identity: g.identity("n1"), Gateways: []string{g.addr}, Targets: targets})
	return f, c, s
}

// atCloud makes a run one for the target of adapter goals, which has no models.
func atCloud(o *tunnel.RunOpen) { o.Adapter, o.Target, o.Model = kindGoals, "cloud", "" }

// goalRequest is the body of a run of the workflow that the fake has; more are further members.
func goalRequest(more ...string) string {
	members := append([]string{`"operator":{"kind":"goal","workflow_id":"uw_demo"}`, `"input":{"city":"Bern","note":""}`}, more...)
	return "{" + strings.Join(members, ",") + "}"
}

// sentKeys are the values of a header over all requests of the log but probes.
func sentKeys(f *fakegoals.Server, name string) (values []string) {
	for _, r := range f.Log() {
		if r.Step != fakegoals.List {
			values = append(values, strings.Join(r.Header.Values(name), ","))
		}
	}
	return values
}

func TestGoalRun(t *testing.T) {
	t.Parallel()
	f, c, s := goalNode(t, fakegoals.Options{Stages: stages("Booked.", "executing", "completed")})
	for _, stream := range []bool{false, true} {
		m, res := typedAsk(t, s, goalRequest(fmt.Sprintf(`"stream":%t`, stream)), atCloud)
		job := f.Jobs()[len(f.Jobs())-1].ID
		if m.Status != edge.Success || string(m.Output) != `"Booked."` || m.ModelID != "uw_demo" || len(m.Evidence) != 1 || m.Evidence[0].Source != "convilyn://jobs/"+job {
			t.Errorf("%+v %s", m, m.Output)
		}
		if events := strings.Count(res.body, `"event":"progress"`); stream != (events == 1) || stream && !strings.Contains(res.body, `"state":"generating"`) {
			t.Errorf("stream %t: %q", stream, res.body)
		}
	}
	for _, r := range f.Log() {
		if r.Step == fakegoals.Submission && string(r.Body) != `{"fileIds":[],"userWorkflowId":"uw_demo","slotAnswers":[{"slotId":"city","value":"Bern"}]}` {
			t.Errorf("%s", r.Body)
		}
		if r.Header.Get("Authorization") != "" {
			t.Errorf("%s came with a credential, and there was no lease", r.Step)
		}
	}
	if n := f.Count(fakegoals.Cancellation); n != 0 {
		t.Errorf("%d jobs that had ended were canceled", n)
	}
	whole(t, c)
}

// A contract that the cloud has as a workflow runs there as one.
func TestGoalOfAContract(t *testing.T) {
	t.Parallel()
	f, _, s := goalNode(t, fakegoals.Options{Stages: stages("4711", "completed")})
	contract := `{"operator":{"kind":"contract","model":"m","contract":{"contract_id":"uw_demo","prompt_template":"p","fields":[{"name":"number"}]}},"input":{"mail":"No 4711"}}`
	if m, _ := typedAsk(t, s, contract, atCloud); m.Status != edge.Success || m.ModelID != "uw_demo" || string(m.Output) != `"4711"` {
		t.Errorf("%+v %s", m, m.Output)
	}
	for name, body := range map[string]string{
		"a schema": request(schemaOperator, "x"), "a contract of its own": strings.Replace(contract, "uw_demo", "invoice", 1), "no JSON": "{",
	} {
		body = strings.Replace(body, `"placement":"edge"`, `"placement":"auto"`, 1)
		if res := collect(typedRun(t, s, body, atCloud)); res.refused.GetCode() != tunnel.CodeBadRun || res.refused.GetRetry() != tunnel.RetryElsewhere {
			t.Errorf("%s: %v %v", name, res.refused, res.terminal)
		}
	}
	if n := len(f.Jobs()); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

// What the cloud says of a job, and what the run makes of it.
func TestGoalEnds(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]edge.Status{
		"partial": edge.Success, "cancelled": edge.Uncertain, "slots_pending": edge.Uncertain, "ready_with_preview": edge.Uncertain, "failed": edge.Unavailable,
	} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			f, c, s := goalNode(t, fakegoals.Options{Stages: stages("Said.", status)})
			m, _ := typedAsk(t, s, goalRequest(), atCloud)
			if m.Status != want || want == edge.Unavailable && !strings.Contains(m.DegradeDetail, "the job failed") {
				t.Errorf("%+v", m)
			}
			f.Await(t, "no job is alive", func() bool { return f.Alive() == 0 })
			whole(t, c)
		})
	}
	t.Run("no such workflow", func(t *testing.T) {
		t.Parallel()
		_, _, s := goalNode(t, fakegoals.Options{Workflows: []fakegoals.Workflow{{ID: "uw_other"}}})
		if m, _ := typedAsk(t, s, goalRequest(), atCloud); m.DegradeReason != edge.OtherError || !strings.HasPrefix(m.DegradeDetail, "model_missing: ") {
			t.Errorf("%+v", m)
		}
	})
	t.Run("no key", func(t *testing.T) {
		t.Parallel()
		_, _, s := goalNode(t, fakegoals.Options{Key: "k"})
		if m, _ := typedAsk(t, s, goalRequest(), atCloud); !strings.HasPrefix(m.DegradeDetail, "refused: provider_locked: submission was answered 401") {
			t.Errorf("%+v", m)
		}
	})
}

// A03 in the cloud: the result is there at most 100 ms after the deadline, and then the job is canceled.
func TestGoalDeadline(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]fakegoals.Fault{
		"the job works":             {},
		"the submission hangs":      {Step: fakegoals.Submission, Kind: "hang"},
		"the submission is slow":    {Step: fakegoals.Submission, Kind: "slow", Delay: time.Second},
		"a look hangs":              {Step: fakegoals.Poll, Kind: "hang"},
		"the cancellation is asked": {Step: fakegoals.Cancellation, Kind: "close", Times: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, c, s := goalNode(t, fakegoals.Options{Stages: stages("", "executing")})
			if fault.Kind != "" {
				f.SetFault(t, fault)
			}
			const ms = 1300
			start := time.Now()
			m, _ := typedAsk(t, s, goalRequest(fmt.Sprintf(`"deadline_ms":%d`, ms)), atCloud)
			if d := time.Since(start); d < ms*time.Millisecond || d > late(ms*time.Millisecond) {
				t.Errorf("the result came after %s", d)
			}
			if m.DegradeReason != edge.DeadlineExceeded || m.DegradeDetail != fmt.Sprintf("deadline_ms=%d elapsed", ms) {
				t.Errorf("%+v", m)
			}
			if fault.Kind != "hang" || fault.Step == fakegoals.Poll {
				f.Await(t, "the job is canceled", func() bool { return len(f.Jobs()) == 1 && f.Alive() == 0 })
			}
			whole(t, c)
		})
	}
}

// A cancellation by the gateway ends the run at once, frees its credit, and ends the job.
func TestGoalCancel(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		f, c, s := goalNode(t, fakegoals.Options{Stages: stages("", "executing")})
		r := typedRun(t, s, goalRequest(fmt.Sprintf(`"stream":%t`, stream)), atCloud)
		f.Await(t, "a job", func() bool { return len(f.Jobs()) == 1 })
		r.Cancel(tunnel.CodeCanceled)
		eventually(t, 200*time.Millisecond+slack, "the credit is free", func() bool { g := c.Status().Targets[0].Credits; return g.Free == g.Granted })
		if res := collect(r); res.terminal.GetOutcome() != tunnel.Canceled {
			t.Errorf("%v %v", res.refused, res.terminal)
		}
		f.Await(t, "the job is canceled", func() bool { return f.Alive() == 0 })
	}
}

// The loss of the session is a cancellation, too.
func TestGoalSessionLost(t *testing.T) {
	t.Parallel()
	f, _, s := goalNode(t, fakegoals.Options{Stages: stages("", "executing")})
	_ = typedRun(t, s, goalRequest(), atCloud)
	f.Await(t, "a job", func() bool { return len(f.Jobs()) == 1 })
	s.Close(tunnel.CloseNone, "")
	f.Await(t, "the job is canceled", func() bool { return f.Alive() == 0 })
}

// A05 in the cloud: whatever the network does at whichever step, the run ends in a result, or was never sent and may go elsewhere; no job that is known stays alive.
func TestGoalTrouble(t *testing.T) {
	t.Parallel()
	for _, step := range []string{fakegoals.Submission, fakegoals.Confirmation, fakegoals.Poll, fakegoals.Cancellation} {
		for _, kind := range []string{"close", "reset", "lost", "cut", "garbage", "bighead", "redirect", "html", "huge"} {
			t.Run(step+" "+kind, func(t *testing.T) {
				t.Parallel()
				f, c, s := goalNode(t, fakegoals.Options{Stages: stages("Said.", "ready", "slots_pending")})
				times := 0 // always
				if step == fakegoals.Cancellation {
					times = 1
				}
				f.SetFault(t, fakegoals.Fault{Step: step, Kind: kind, Times: times, To: "http://127.0.0.1:1"})
				m, res := typedAsk(t, s, goalRequest(`"deadline_ms":4000`), atCloud)
				switch {
				case m.Status == edge.Success, m.Status == edge.Invalid:
					t.Errorf("%+v", m)
				case step == fakegoals.Submission && (m.Status != edge.Unavailable || m.DegradeReason == edge.DeadlineExceeded):
					t.Errorf("%+v (%s)", m, res.terminal.Reason)
				}
				if step != fakegoals.Submission && step != fakegoals.Cancellation {
					f.Await(t, "no job is alive", func() bool { return f.Alive() == 0 })
				}
				whole(t, c)
			})
		}
	}
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		f, c, s := goalNode(t, fakegoals.Options{})
		f.Close()
		res := collect(typedRun(t, s, goalRequest(), atCloud))
		if res.refused.GetCode() != tunnel.CodeProviderUnreached || res.refused.GetRetry() != tunnel.RetryElsewhere || res.accepted {
			t.Errorf("%v %v", res.refused, res.terminal)
		}
		eventually(t, 2*time.Second, "the target is down", func() bool { return !c.targets[0].view().reachable })
		whole(t, c)
	})
}

// Of a goal-job API a tunnel run gets the calls on own workflows, and nothing else; a target of another adapter does not have them.
func TestWorkflowCalls(t *testing.T) {
	t.Parallel()
	f, c, s := goalNode(t, fakegoals.Options{})
	call := func(method, path string, change func(*tunnel.RunOpen)) result {
		return ask(t, s, func(o *tunnel.RunOpen) {
			atCloud(o)
			o.Method, o.Path, o.Credit, o.Body = method, []byte(path), false, tunnel.BodyNone
			if change != nil {
				change(o)
			}
		})
	}
	const base = "/api/v1/user_workflows"
	for _, path := range []string{base, base + "?limit=3", base + "/uw_demo", base + "/uw_demo/runs?limit=2", base + "/uw_demo/export"} {
		if res := call("GET", path, nil); res.head.GetStatus() != 200 || res.terminal.GetOutcome() != tunnel.Completed || !json.Valid([]byte(res.body)) {
			t.Errorf("%s: %v %v %s", path, res.refused, res.terminal, res.body)
		}
	}
	if res := call("GET", base+"/uw_none", nil); res.head.GetStatus() != 404 || res.terminal.GetOutcome() != tunnel.Completed {
		t.Errorf("unknown: %v %v", res.refused, res.terminal) // the answer, not a refusal
	}
	before := len(f.Log())
	for name, run := range map[string]func() result{
		"a job":           func() result { return call("POST", "/api/v1/jobs/goal", nil) },
		"a look at a job": func() result { return call("GET", "/api/v1/jobs/goal/job-1", nil) },
		"another method":  func() result { return call("PUT", base+"/uw_demo", nil) },
		"another path":    func() result { return call("GET", base+"/uw_demo/../../x", nil) },
		"an encoded path": func() result { return call("GET", base+"/uw_demo%2Fruns", nil) },
		"a parameter":     func() result { return call("GET", base+"?limit=1000", nil) },
		"chat":            func() result { return call("POST", "/api/chat", nil) },
		"tags":            func() result { return call("GET", "/api/tags", nil) },
		"a body":          func() result { return call("GET", base, func(o *tunnel.RunOpen) { o.Body = tunnel.BodyLength }) },
	} {
		if res := run(); res.refused.GetCode() != tunnel.CodeNotAllowed || res.refused.GetRetry() != tunnel.RetryNever {
			t.Errorf("%s: %v %v", name, res.refused, res.terminal)
		}
	}
	if n := len(f.Log()) - before; n != 0 {
		t.Errorf("%d requests came through", n)
	}
	if res := call("DELETE", base+"/uw_demo", nil); res.head.GetStatus() != 200 || f.Count(fakegoals.Delete) != 1 {
		t.Errorf("delete: %v %v", res.refused, res.terminal)
	}
	whole(t, c)
	g := newGateway(t)
	_, other, _ := g.node(g.config(newProvider("tiny")))
	if res := ask(t, other, func(o *tunnel.RunOpen) { o.Method, o.Path, o.Credit = "GET", []byte(base), false }); res.refused.GetCode() != tunnel.CodeNotAllowed {
		t.Errorf("at an Ollama: %v %v", res.refused, res.terminal)
	}
}

// spy is the adapter goals, and remembers the memory that each request's credential was written into.
type spy struct {
	*goals.Adapter
	mu    sync.Mutex
	lines [][]byte // guarded by mu; not copies
	panic string   // guarded by mu: the step before which to panic
}

func (p *spy) Caller(first adapter.Conn, credential func() adapter.Credential) goals.Doer {
	return &spying{p.Adapter.Caller(first, func() adapter.Credential { return &spied{credential(), p} }), p}
}

type spying struct {
	goals.Doer
	p *spy
}

func (d *spying) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	d.p.mu.Lock()
	bad := d.p.panic != "" && strings.HasSuffix(r.Path, d.p.panic)
	d.p.mu.Unlock()
	if bad {
		panic("sk-canary")
	}
	return d.Doer.Do(ctx, r)
}

type spied struct {
	adapter.Credential
	p *spy
}

func (c *spied) Line() ([]byte, error) {
	line, err := c.Credential.Line()
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.lines = append(c.p.lines, line)
	return line, err
}

// wiped waits until the node has let go of its runs, sees that all of that memory is zero, and says how many lines there were.
func (p *spy) wiped(t *testing.T, b *borrower) int {
	t.Helper()
	eventually(t, goals.SettleTime+5*time.Second, "the run has let go", func() bool { return b.node.Runs() == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, line := range p.lines {
		if slices.ContainsFunc(line, func(b byte) bool { return b != 0 }) {
			t.Errorf("the memory of request %d still holds %d bytes", i+1, len(line))
		}
	}
	return len(p.lines)
}

const cloudKey = "sk-canary-5a8e2f07c4d1"

// goalLender is a lender, a goal-job API that asks for its credential, and a node between the two.
func goalLender(t *testing.T, header string, o fakegoals.Options) (*lender, *fakegoals.Server, *spy, *borrower) {
	t.Helper()
	f := fakegoals.Start(t, o)
	l := newLender(t)
	l.origin = f.URL()
	a, err := goals.New("cloud", f.URL())
	if err != nil {
		t.Fatal(err)
	}
	p := &spy{Adapter: a}
	b := l.borrowAs(Config{Identity: l.identity("n1"), Gateways: []string{l.addr}, Targets: []Target{{Adapter: p, PerModel: 4}}}, nil)
	more := published(pgn + 1)
	more.Profiles[0].Adapter, more.Profiles[0].Target, more.Profiles[0].Header = kindGoals, "cloud", header
	if err := b.s.AnnounceProjection(more); err != nil {
		t.Fatal(err)
	}
	settle(t, b.s)
	return l, f, p, b
}

// goalLease is a leased run of a goal.
func goalLease(header, body string) lent {
	return lent{
		body: body,
		open: func(o *tunnel.RunOpen) {
			atCloud(o)
			o.Kind, o.Method, o.Path, o.SessionId, o.DeadlineMs, o.Projection = tunnel.KindEdge, "", nil, "corr", 20_000, pgn+1
		},
		scope: func(s *lease.Scope) { s.Kind, s.Header, s.PGN = "edge", header, pgn+1 },
	}
}

// C19 in the cloud: every request of the job has the key, in its header and nowhere else, and afterwards nothing of it is left in the memory that it was in.
func TestGoalLease(t *testing.T) {
	t.Parallel()
	l, f, p, b := goalLender(t, "Authorization", fakegoals.Options{Key: cloudKey, Stages: stages("Said.", "ready", "completed")})
	res := collect(l.lend(b.s, goalLease("Authorization", goalRequest())))
	if m := resultOf(t, res); m.Status != edge.Success || strings.Contains(res.terminal.String()+res.body, "canary") {
		t.Errorf("%+v %v", m, res.terminal)
	}
	if n := p.wiped(t, b); n != 3 || n != len(sentKeys(f, "Authorization")) { // submission, confirmation, one look
		t.Errorf("%d credentials, %q", n, sentKeys(f, "Authorization"))
	}
	if f.Holds(cloudKey) {
		t.Error("the key stands elsewhere, too")
	}
	for _, r := range f.Log() {
		if r.Step == fakegoals.List && r.Header.Get("Authorization") != "" {
			t.Error("a probe has the key")
		}
	}
	// The same lease kind as a tunnel run's is none.
	how := goalLease("Authorization", goalRequest())
	how.scope = func(s *lease.Scope) { s.PGN = pgn + 1 }
	if res := collect(l.lend(b.s, how)); res.refused.GetCode() != string(lease.CodeMismatch) {
		t.Errorf("%v %v", res.refused, res.terminal)
	}
	// The cloud has to be there before the lease is opened, and a slot that is revoked opens none.
	revoke(t, b.s, 0, lease.SlotSubject("s"))
	before := len(f.Log())
	if res := collect(l.lend(b.s, goalLease("Authorization", goalRequest()))); res.refused.GetCode() != string(lease.CodeRevoked) || res.accepted {
		t.Errorf("revoked: %v %v", res.refused, res.terminal)
	}
	if n := len(f.Log()) - before; n != 0 {
		t.Errorf("revoked: %d requests", n)
	}
}

// The header is the profile's.
func TestGoalLeaseHeader(t *testing.T) {
	t.Parallel()
	l, f, p, b := goalLender(t, "X-Api-Key", fakegoals.Options{Stages: stages("Said.", "completed")})
	l.value = cloudKey
	if m := resultOf(t, collect(l.lend(b.s, goalLease("X-Api-Key", goalRequest())))); m.Status != edge.Success {
		t.Errorf("%+v", m)
	}
	if got := sentKeys(f, "X-Api-Key"); !slices.Equal(got, []string{cloudKey}) || strings.Join(sentKeys(f, "Authorization"), "") != "" {
		t.Errorf("%q", f.Log()[len(f.Log())-1].Header)
	}
	p.wiped(t, b)
}

// Whatever ends the run, the job is ended with the run's own key, and then the memory is wiped: at a deadline, a cancellation, a fault of ours.
func TestGoalLeaseEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body string
		do   func(t *testing.T, f *fakegoals.Server, p *spy, r *tunnel.Run)
		ends func(t *testing.T, res result)
	}{
		"deadline": {goalRequest(`"deadline_ms":300`), nil, func(t *testing.T, res result) {
			if m := resultOf(t, res); m.DegradeReason != edge.DeadlineExceeded {
				t.Errorf("%+v", m)
			}
		}},
		"cancel": {goalRequest(), func(t *testing.T, f *fakegoals.Server, _ *spy, r *tunnel.Run) {
			f.Await(t, "a job", func() bool { return len(f.Jobs()) == 1 })
			r.Cancel(tunnel.CodeCanceled)
		}, func(t *testing.T, res result) {
			if res.terminal.GetOutcome() != tunnel.Canceled {
				t.Errorf("%v %v", res.refused, res.terminal)
			}
		}},
		"panic": {goalRequest(), func(t *testing.T, f *fakegoals.Server, p *spy, _ *tunnel.Run) {
			f.Await(t, "a job", func() bool { return len(f.Jobs()) == 1 })
			p.mu.Lock()
			p.panic = "job-1" // the look at it
			p.mu.Unlock()
		}, func(t *testing.T, res result) {
			if m := resultOf(t, res); !strings.HasPrefix(m.DegradeDetail, "internal") || strings.Contains(res.terminal.String(), "canary") {
				t.Errorf("%+v", m)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, f, p, b := goalLender(t, "Authorization", fakegoals.Options{Key: cloudKey, Stages: stages("", "executing")})
			r := l.lend(b.s, goalLease("Authorization", tc.body))
			if tc.do != nil {
				tc.do(t, f, p, r)
			}
			tc.ends(t, collect(r))
			f.Await(t, "the job is canceled", func() bool { return len(f.Jobs()) == 1 && f.Alive() == 0 })
			if n := p.wiped(t, b); n < 2 {
				t.Errorf("%d credentials", n)
			}
			whole(t, b.Client)
		})
	}
}

// A cloud that repeats the key in what it says gets no result through.
func TestGoalRepeatsTheKey(t *testing.T) {
	t.Parallel()
	l, _, _, b := goalLender(t, "Authorization", fakegoals.Options{Key: cloudKey, Stages: stages("Your key is "+cloudKey+" !", "completed")})
	res := collect(l.lend(b.s, goalLease("Authorization", goalRequest())))
	if m := resultOf(t, res); m.DegradeDetail != "bad_response: bad_provider_response" || strings.Contains(res.terminal.String(), "canary") {
		t.Errorf("%+v %v", m, res.terminal)
	}
}

// An adapter that calls itself goals and runs none is a mistake of whoever made the configuration.
func TestGoalTargetThatIsNone(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	if _, err := New(Config{Identity: g.identity("n1"), Gateways: []string{g.addr}, Targets: []Target{{Adapter: pretender{newProvider()}}}}); err == nil {
		t.Error("it was taken")
	}
}

type pretender struct{ *provider }

func (pretender) Kind() string { return kindGoals }

// A node that stops ends the jobs of its runs before it has stopped.
func TestGoalNodeStops(t *testing.T) {
	t.Parallel()
	f := fakegoals.Start(t, fakegoals.Options{Stages: stages("", "executing")})
	g := newGateway(t)
	targets, err := Targets("off", []string{"cloud=goals:" + f.URL()}, nil, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	_, s, stop := g.node(Config{Identity: g.identity("n1"), Gateways: []string{g.addr}, Targets: targets, Grace: -1})
	_ = typedRun(t, s, goalRequest(), atCloud)
	f.Await(t, "a job", func() bool { return len(f.Jobs()) == 1 })
	f.SetFault(t, fakegoals.Fault{Step: fakegoals.Cancellation, Kind: "slow", Delay: 300 * time.Millisecond})
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := f.Alive(); n != 0 {
		t.Errorf("%d jobs are alive", n)
	}
}
