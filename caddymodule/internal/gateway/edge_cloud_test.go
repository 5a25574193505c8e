package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient/adapter/goals"
	"github.com/fairway-edge/fairway/tests/fakegoals"
	"github.com/fairway-edge/fairway/tunnel"
)

const goalBody = `{"operator":{"kind":"goal","workflow_id":"uw_demo"},"input":{"city":"Bern"}`

// clouded is a configuration with a profile of adapter goals, with a key, beside the local one.
func clouded(st *Settings) {
	st.Slots = []Slot{{Name: "s", Value: lease.NewValue([]byte(canary))}}
	st.Profiles = []Profile{
		{Name: "local", Adapter: "ollama", Target: "ollama"},
		{Name: "cloud", Adapter: "goals", Target: "cloud", Slot: "s", Header: "Authorization", Value: "Bearer {slot}"},
	}
}

// cloud joins a node whose target cloud is the fake.
func (r *rig) cloud(node string, f *fakegoals.Server) {
	r.t.Helper()
	a, err := goals.New("cloud", f.URL())
	if err != nil {
		r.t.Fatal(err)
	}
	r.join(node, a)
}

func newCloud(t testing.TB, message string) *fakegoals.Server {
	t.Helper()
	return fakegoals.Start(t, fakegoals.Options{Key: canary, Stages: []fakegoals.Stage{{Status: "completed", More: map[string]any{"agentMessage": message, "attemptId": "a-1"}}}})
}

// A goal runs in the cloud, with the key that the gateway lends, and the answer is the job's.
func TestTypedInTheCloud(t *testing.T) {
	t.Parallel()
	f := newCloud(t, "Booked.")
	audit := &audits{}
	r := newRigWith(t, Options{}, func(st *Settings) { clouded(st); st.Audit = audit.take })
	if a, resp := r.typed(goalBody + `}`); resp.StatusCode != 200 || a.Result.Status != edge.Unavailable || a.Result.DegradeReason != edge.ServerUnreachable || a.Placement != edge.Cloud {
		t.Errorf("without a target of adapter goals: %d %+v", resp.StatusCode, a)
	}
	r.cloud("n1", f)
	for _, placement := range []string{"", `,"placement":"auto"`, `,"placement":"cloud"`} {
		a, _ := r.typed(goalBody + placement + `}`)
		if a.Result.Status != edge.Success || string(a.Result.Output) != `"Booked."` || a.Placement != edge.Cloud || a.Result.ModelID != "uw_demo" || a.Result.ModelVersion != "a-1" {
			t.Fatalf("%s: %+v", placement, a)
		}
		job := edge.CitedJob(a.Result)
		if want, err := edge.NewAnswer("other", job, &edge.Request{}, edge.Decision{}, a.Result); err != nil || job == "" || a.IdempotencyKey != want.IdempotencyKey {
			t.Errorf("the key is not the job's: %+v", a)
		}
	}
	if f.Holds(canary) {
		t.Error("the key stands outside its header")
	}
	events := map[string]int{}
	for _, rec := range audit.all() {
		if rec.Slot != "s" || rec.Target != "cloud" || rec.Principal != "alice" {
			t.Errorf("%+v", rec)
		}
		events[rec.Event]++
	}
	if events["issued"] != 3 || events["opened"] != 3 || events["ended"] != 3 {
		t.Errorf("%v", events)
	}
	// The events of a run that is listened to end in the same result.
	_, text := r.do("POST", "/api/v1/edge/runs", goalBody+`,"stream":true}`)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) < 2 || !strings.Contains(lines[0], `"placement":"cloud"`) || !strings.Contains(lines[len(lines)-1], `"event":"result"`) || !strings.Contains(lines[len(lines)-1], "Booked.") {
		t.Errorf("%s", text)
	}
	for _, n := range r.hub.Fleet().Nodes() {
		if g := n.Targets[0]; n.Name != "n1" || g.Name != "cloud" || g.Adapter != "goals" || !g.Reachable || len(g.Models) != 0 || g.Credits.Granted == 0 || g.Credits.Free != g.Credits.Granted {
			t.Errorf("%+v", n)
		}
	}
}

// Auto goes to the cloud only where no node can, and only with a workflow; and what a node says of a contract is still looked up again.
func TestTypedFallsToTheCloud(t *testing.T) {
	t.Parallel()
	f := newCloud(t, "said in the cloud")
	r := newRigWith(t, Options{}, clouded)
	r.cloud("n1", f)
	contract := func(id string) string {
		return `{"operator":{"kind":"contract","model":"m","contract":{"contract_id":"` + id + `","prompt_template":"p","fields":[{"name":"city"}]}},"input":{"note":"I live in Oslo."}`
	}
	if a, _ := r.typed(contract("uw_demo") + `}`); a.Placement != edge.Cloud || a.Result.Status != edge.Success || string(a.Result.Output) != `"said in the cloud"` {
		t.Errorf("no node has the model: %+v", a)
	}
	if a, _ := r.typed(contract("c") + `}`); a.Placement != edge.Edge || a.Result.Status != edge.Unavailable {
		t.Errorf("no workflow: %+v", a)
	}
	r.serve("n2", newThinker(t, `{"city":"Oslo"}`).URL, 4)
	if a, _ := r.typed(contract("uw_demo") + `,"placement":"edge"}`); a.Placement != edge.Edge || a.Result.Status != edge.Success || string(a.Result.Output) != `{"city":"Oslo"}` {
		t.Errorf("on the node: %+v", a)
	}
	if a, _ := r.typed(contract("uw_demo") + `,"placement":"cloud"}`); a.Placement != edge.Cloud || a.Result.Status != edge.Success {
		t.Errorf("as asked: %+v", a)
	}
	if resp, body := r.do("POST", "/api/v1/edge/runs", contract("c")+`,"placement":"cloud"}`); resp.StatusCode != 400 || !strings.Contains(body, "placement") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// The run's end at the gateway is the job's end in the cloud.
func TestTypedCloudCancel(t *testing.T) {
	t.Parallel()
	f := fakegoals.Start(t, fakegoals.Options{Key: canary, Stages: []fakegoals.Stage{{Status: "executing"}}})
	r := newRigWith(t, Options{}, clouded)
	r.cloud("n1", f)
	start := time.Now()
	a, _ := r.typed(goalBody + `,"deadline_ms":400}`)
	if took := time.Since(start); a.Result.DegradeReason != edge.DeadlineExceeded || took < 400*time.Millisecond || took > 2*time.Second {
		t.Errorf("%+v after %s", a, took)
	}
	f.Await(t, "the job is canceled", func() bool { return len(f.Jobs()) == 1 && f.Alive() == 0 })
	// By its run.
	done := make(chan edge.Answer, 1)
	go func() { a, _ := r.typed(goalBody + `}`); done <- a }()
	f.Await(t, "a job", func() bool { return len(f.Jobs()) == 2 })
	for _, v := range r.hub.Runs() {
		if v.State != "ended" {
			if resp, body := r.do("POST", "/api/v1/edge/runs/"+v.Run+"/cancel", ""); resp.StatusCode != 200 || !strings.Contains(body, `"state":"ended"`) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		}
	}
	if a := <-done; a.Result.Status != edge.Unavailable || !strings.Contains(a.Result.DegradeDetail, "canceled") {
		t.Errorf("%+v", a)
	}
	f.Await(t, "the second job is canceled", func() bool { return f.Alive() == 0 })
	// A revocation ends it, and nothing starts afterwards.
	go func() { a, _ := r.typed(goalBody + `}`); done <- a }()
	f.Await(t, "a job", func() bool { return len(f.Jobs()) == 3 })
	if _, err := r.hub.Revoke(context.Background(), lease.SlotSubject("s"), false); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.Result.Status != edge.Unavailable || !strings.Contains(a.Result.DegradeDetail, "lease") {
		t.Errorf("%+v", a)
	}
	f.Await(t, "the third job is canceled", func() bool { return f.Alive() == 0 })
	if a, _ := r.typed(goalBody + `}`); !strings.HasPrefix(a.Result.DegradeDetail, "lease: lease_revoked") || len(f.Jobs()) != 3 {
		t.Errorf("%+v", a)
	}
}

// Where a route has several profiles the run's own says which; one that is not there is no way to the cloud.
func TestTypedCloudProfiles(t *testing.T) {
	t.Parallel()
	one, two := newCloud(t, "one"), newCloud(t, "two")
	r := newRigWith(t, Options{}, func(st *Settings) {
		clouded(st)
		st.Profiles = append(st.Profiles, Profile{Name: "second", Adapter: "goals", Target: "second", Slot: "s", Header: "Authorization", Value: "Bearer {slot}"})
	})
	r.cloud("n1", one)
	a, err := goals.New("second", two.URL())
	if err != nil {
		t.Fatal(err)
	}
	r.join("n2", a)
	for profile, want := range map[string]string{"cloud": `"one"`, "second": `"two"`, "local": "", "none": ""} {
		got, _ := r.typed(strings.Replace(goalBody, `"uw_demo"`, `"uw_demo","profile":"`+profile+`"`, 1) + `}`)
		if string(got.Result.Output) != want || want == "" && got.Result.Status != edge.Unavailable {
			t.Errorf("%s: %+v %s", profile, got, got.Result.Output)
		}
	}
}

// call makes a call on workflows as the operator does.
func (r *rig) call(q WorkflowQuery) (*WorkflowAnswer, error) {
	return r.hub.Workflow(context.Background(), r.st, q)
}

func TestWorkflows(t *testing.T) {
	t.Parallel()
	f := fakegoals.Start(t, fakegoals.Options{Key: canary, Workflows: []fakegoals.Workflow{
		{ID: "uw_a", Name: "A", Visibility: "private", Contract: map[string]any{"contract_id": "uw_a"}}, {ID: "uw_b", Name: "B", Visibility: "public"},
	}})
	audit := &audits{}
	r := newRigWith(t, Options{}, func(st *Settings) { clouded(st); st.Audit = audit.take })
	if _, err := r.call(WorkflowQuery{Call: edge.ListWorkflows}); status(err) != 503 || !strings.Contains(err.Error(), "no node is connected with the target cloud") {
		t.Errorf("no node: %v", err)
	}
	r.cloud("n1", f)
	for _, tc := range []struct {
		q    WorkflowQuery
		want string // in the answer
	}{
		{WorkflowQuery{Call: edge.ListWorkflows, Params: map[string]string{"limit": "1"}}, `"cursor":"after=1"`},
		{WorkflowQuery{Call: edge.ListWorkflows, Params: map[string]string{"cursor": "after=1"}}, `"uw_b"`},
		{WorkflowQuery{Call: edge.GetWorkflow, Workflow: "uw_a", Profile: "cloud"}, `"itemVersion":3`},
		{WorkflowQuery{Call: edge.WorkflowRuns, Workflow: "uw_a", Params: map[string]string{"limit": "5"}}, `"items":[]`},
		{WorkflowQuery{Call: edge.ExportWorkflow, Workflow: "uw_a"}, `"opaque":"uw_a"`},
		{WorkflowQuery{Call: edge.WorkflowContract, Workflow: "uw_a"}, `"contract_id":"uw_a"`},
		{WorkflowQuery{Call: edge.DeleteWorkflow, Workflow: "uw_a"}, `"deleted":true`},
	} {
		a, err := r.call(tc.q)
		if err != nil || !strings.Contains(string(a.Body), tc.want) || a.Node != "n1" || a.Profile != "cloud" || (a.Version == "2") != (tc.q.Call == edge.ExportWorkflow) {
			t.Errorf("%+v: %v %+v", tc.q, err, a)
		}
	}
	for _, tc := range []struct {
		q      WorkflowQuery
		status int
		says   string
	}{
		{WorkflowQuery{Call: edge.GetWorkflow, Workflow: "uw_a"}, 404, "there is no workflow uw_a of this key's owner"},
		{WorkflowQuery{Call: edge.DeleteWorkflow, Workflow: "uw_b"}, 409, "uw_b is public"},
		{WorkflowQuery{Call: edge.WorkflowContract, Workflow: "uw_b"}, 409, "no contract can be derived"},
		{WorkflowQuery{Call: edge.GetWorkflow, Workflow: "../x"}, 400, "not the id of a workflow"},
		{WorkflowQuery{Call: "post"}, 400, "no such call"},
		{WorkflowQuery{Call: edge.ListWorkflows, Params: map[string]string{"limit": "999"}}, 400, "out of range"},
		{WorkflowQuery{Call: edge.ListWorkflows, Profile: "local"}, 404, `no profile "local" with the adapter goals: want one of cloud`},
	} {
		if _, err := r.call(tc.q); status(err) != tc.status || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v: %v", tc.q, err)
		}
	}
	keys := map[string]bool{}
	for _, rec := range f.Log() {
		if rec.Step == fakegoals.Delete {
			keys[rec.Header.Get("Idempotency-Key")] = true
		}
	}
	if len(keys) != 2 || keys[""] || f.Holds(canary) {
		t.Errorf("idempotency keys %v", keys)
	}
	for _, rec := range audit.all() {
		if rec.Principal != WorkflowsPrincipal || rec.Slot != "s" {
			t.Errorf("%+v", rec)
		}
	}
	found := 0
	for _, v := range r.hub.Runs() {
		if v.Principal == WorkflowsPrincipal && v.Kind == "tunnel" && v.Outcome == "completed" && v.Node == "n1" {
			found++
		}
	}
	if found != 10 { // those that the cloud answered
		t.Errorf("%d runs", found)
	}
	// Nobody else gets there: no caller's path leads to a goal-job API.
	before := len(f.Log())
	for _, path := range []string{edge.WorkflowsPath, edge.WorkflowsPath + "/uw_b", "/api/v1/jobs/goal"} {
		if resp, body := r.do("GET", path, ""); resp.StatusCode != 404 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	if len(f.Log()) != before {
		t.Error("a caller's request came through")
	}
}

func status(err error) int {
	var we *WorkflowError
	if !errors.As(err, &we) {
		return 0
	}
	return we.Status
}

// Trouble on the way, in plain words, and none of the cloud's own.
func TestWorkflowTrouble(t *testing.T) {
	t.Parallel()
	list := WorkflowQuery{Call: edge.ListWorkflows}
	for name, tc := range map[string]struct {
		o      fakegoals.Options
		fault  fakegoals.Fault
		change func(*Settings)
		status int
		says   string
	}{
		"wrong key":      {fakegoals.Options{Key: "other"}, fakegoals.Fault{}, clouded, 502, "does not take the credential in slot s (401)"},
		"no slot":        {fakegoals.Options{Key: "other"}, fakegoals.Fault{}, func(st *Settings) { st.Profiles = []Profile{{Name: "cloud", Adapter: "goals", Target: "cloud"}} }, 502, "profile cloud has no slot"},
		"server error":   {fakegoals.Options{}, fakegoals.Fault{Step: fakegoals.List, Kind: "status", Status: 500}, clouded, 502, "the cloud answered 500"},
		"too many":       {fakegoals.Options{}, fakegoals.Fault{Step: fakegoals.List, Kind: "status", Status: 429}, clouded, 503, "try again later"},
		"redirect":       {fakegoals.Options{}, fakegoals.Fault{Step: fakegoals.List, Kind: "redirect", To: "http://127.0.0.1:1"}, clouded, 502, "the cloud answered 307"},
		"cut":            {fakegoals.Options{}, fakegoals.Fault{Step: fakegoals.List, Kind: "cut"}, clouded, 502, "bad_provider_response"},
		"reset":          {fakegoals.Options{}, fakegoals.Fault{Step: fakegoals.List, Kind: "reset"}, clouded, 502, "provider_unreachable"},
		"not configured": {fakegoals.Options{}, fakegoals.Fault{}, slotted(canary), 404, "no profile has the adapter goals"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fakegoals.Start(t, tc.o)
			r := newRigWith(t, Options{}, tc.change)
			r.cloud("n1", f)
			if tc.fault.Kind != "" {
				f.SetFault(t, tc.fault)
			}
			if _, err := r.call(list); status(err) != tc.status || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), canary) {
				t.Errorf("%d %v", status(err), err)
			}
		})
	}
	t.Run("several", func(t *testing.T) {
		t.Parallel()
		r := newRigWith(t, Options{}, func(st *Settings) {
			clouded(st)
			st.Profiles = append(st.Profiles, Profile{Name: "second", Adapter: "goals", Target: "second"})
		})
		if _, err := r.call(list); status(err) != 400 || !strings.Contains(err.Error(), "say which, cloud or second") {
			t.Errorf("%v", err)
		}
	})
}

// Runs and calls reach a cloud whose node is at another gateway, which lends the key; and that one passes nothing but the calls on to a goal-job API.
func TestCloudForwarded(t *testing.T) {
	t.Parallel()
	one, two, _ := twoPeers(t, clouded)
	f := newCloud(t, "Booked.")
	two.cloud("n2", f)
	wait(t, func() bool { v := row(one, "n2"); return v != nil && v.State == "ready" && len(v.Targets) > 0 })
	wait(t, func() bool {
		a, _ := one.typed(goalBody + `}`) // until the gateways' projections are known to one another
		return a.Result.Status == edge.Success && a.Placement == edge.Cloud
	})
	a, err := one.call(WorkflowQuery{Call: edge.GetWorkflow, Workflow: "uw_demo"})
	if err != nil || a.Node != "n2" || !json.Valid(a.Body) {
		t.Errorf("%v %+v", err, a)
	}
	if _, err := one.call(WorkflowQuery{Call: edge.DeleteWorkflow, Workflow: "uw_demo"}); err != nil || f.Count(fakegoals.Delete) != 1 {
		t.Errorf("%v", err)
	}
	if f.Holds(canary) {
		t.Error("the key stands outside its header")
	}
	for target, want := range map[string]int{
		edge.WorkflowsPath: 200, edge.WorkflowsPath + "/uw_a/runs?limit=2": 200, "/api/v1/jobs/goal": 404, "/api/chat": 404, edge.WorkflowsPath + "/uw_a/x": 404,
	} {
		if m := workflowMatch("GET", target); m.Status != want || (m.Endpoint != nil) != (want == 200) {
			t.Errorf("%s: %+v", target, m)
		}
	}
	w := &forwarded{hub: two.hub, in: &tunnel.NodeRun{Open: &tunnel.RunOpen{
		Run: "r", Kind: tunnel.KindTunnel, Adapter: "goals", Target: "cloud", Method: "POST", Path: []byte("/api/v1/jobs/goal"),
		Forward: &tunnel.Forward{Gateway: "gw1", Hop: 1, Node: "n2", Profile: "cloud"},
	}}}
	if no := w.check(context.Background(), "gw1"); no.GetCode() != tunnel.CodeNotAllowed {
		t.Errorf("%v", no)
	}
}

// What a node says of a run in the cloud is believed if it rests on a job: of nothing else could a workflow's answer come.
func TestCloudResultWithoutAJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	req, err := edge.ParseRequest([]byte(goalBody + `}`))
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]edge.Status{"convilyn://jobs/j1": edge.Success, "mail": edge.Unavailable, "": edge.Unavailable} {
		said := edge.Succeeded(req.Operator.Origin(), json.RawMessage(`"Booked."`))
		if source != "" {
			said.Evidence = []edge.Evidence{{Source: source}}
		}
		run := &typedRun{
			x: &exchange{h: NewHandler(r.hub, r.st, Options{})}, acc: NewAccount(), req: req, began: time.Now(), decision: edge.Decision{Placement: edge.Cloud}, result: &said,
		}
		if got, _, code := run.judged(); got.Status != want || (code == tunnel.CodeBadProvider) != (want == edge.Unavailable) || got.ModelID != "uw_demo" {
			t.Errorf("%q: %+v %s", source, got, code)
		}
	}
}
