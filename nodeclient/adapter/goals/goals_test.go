package goals

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakegoals"
)

func TestNew(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"", "api.example.com", "127.0.0.1:8080", "ftp://h", "https://h/api", "https://k:v@h", "https://h?x"} {
		if a, err := New("cloud", origin); err == nil {
			t.Errorf("New(%q) = %s, want an error", origin, a.Origin())
		}
	}
	for origin, want := range map[string]string{"https://api.example.com": "https://api.example.com:443", "http://127.0.0.1:1/": "http://127.0.0.1:1"} {
		a, err := New("cloud", origin)
		if err != nil || a.Origin() != want || a.Target() != "cloud" || a.Kind() != "goals" {
			t.Errorf("%q: %+v %v", origin, a, err)
		}
	}
}

// A target is there when its API answers, with or without a key, and holds nothing.
func TestProbe(t *testing.T) {
	t.Parallel()
	probe := func(origin string, d time.Duration) error {
		a, err := New("cloud", origin)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		inv, err := a.Probe(ctx)
		if len(inv.Models)+len(inv.Loaded) != 0 || inv.Version != "" || inv.Skipped != nil || errors.Is(err, adapter.ErrUnauthorized) {
			t.Errorf("inventory %+v, %v", inv, err)
		}
		return err
	}
	for name, o := range map[string]fakegoals.Options{"open": {}, "locked": {Key: testKey}, "forbidden": {Forbidden: true}} {
		s := fakegoals.Start(t, o)
		if err := probe(s.URL(), 5*time.Second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r := s.Log()[0]; r.Target != "/api/v1/user_workflows?limit=1" || r.Header["Authorization"] != nil {
			t.Errorf("%s: %s %v", name, r.Target, r.Header)
		}
	}
	s := fakegoals.Start(t, fakegoals.Options{})
	for _, f := range []fakegoals.Fault{
		{Kind: "status", Status: 404}, {Kind: "status", Status: 500}, {Kind: "status", Status: 503}, {Kind: "redirect", To: "/"}, {Kind: "hang"},
		{Kind: "cut"}, {Kind: "garbage"},
	} {
		s.SetFault(t, f)
		if err := probe(s.URL(), 200*time.Millisecond); err == nil {
			t.Errorf("reachable with %+v", f)
		}
		s.ClearFaults()
	}
	if err := probe(fakegoals.Gone(t), 5*time.Second); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("refused: %v", err)
	}
}

// ask sends a request as a tunnel run does.
func tunnel(t *testing.T, a *Adapter, method, target string, body io.Reader) (*adapter.Response, string, error) {
	t.Helper()
	p := &purse{}
	c, err := a.Connect(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	resp, err := c.Do(t.Context(), &adapter.Request{Method: method, Path: target, Body: body, Length: -1, Credential: p.credential()})
	if p.cleared.Load() != 1 {
		t.Error("the credential was not cleared")
	}
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b), nil
}

func TestOwnWorkflows(t *testing.T) {
	t.Parallel()
	s := fakegoals.Start(t, fakegoals.Options{Key: testKey, Workflows: []fakegoals.Workflow{
		{ID: "uw_one", Name: "One", Visibility: "private", Contract: map[string]any{"contract_id": "uw_one"}}, {ID: "uw_two", Name: "Two", Visibility: "public"},
	}})
	a, err := New("cloud", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		call   edge.WorkflowCall
		id     string
		params map[string]string
		status int
		has    string
	}{
		{edge.ListWorkflows, "", nil, 200, `"workflowId":"uw_two"`},
		{edge.ListWorkflows, "", map[string]string{"visibility": "public", "limit": "1"}, 200, `"workflowId":"uw_two"`},
		{edge.ListWorkflows, "", map[string]string{"limit": "1"}, 200, `"cursor":"after=1"`},
		{edge.ListWorkflows, "", map[string]string{"cursor": "after=1"}, 200, `"workflowId":"uw_two"`},
		{edge.GetWorkflow, "uw_one", nil, 200, `"itemVersion":3`},
		{edge.GetWorkflow, "uw_none", nil, 404, `WORKFLOW_NOT_FOUND`},
		{edge.WorkflowRuns, "uw_one", map[string]string{"limit": "50"}, 200, `"items":[]`},
		{edge.ExportWorkflow, "uw_one", nil, 200, `"opaque":"uw_one"`},
		{edge.WorkflowContract, "uw_one", map[string]string{"model_binding": "hf.co/a/b:Q4 K"[:12], "locale": "de-CH"}, 200, `"contract_id"`},
		{edge.WorkflowContract, "uw_two", nil, 409, `CONTRACT_NOT_DERIVABLE`},
		{edge.DeleteWorkflow, "uw_two", nil, 409, `WORKFLOW_IS_PUBLIC_USE_ARCHIVE`},
		{edge.DeleteWorkflow, "uw_one", nil, 200, `deleted`},
	} {
		method, target, err := edge.WorkflowRequest(tt.call, tt.id, tt.params)
		if err != nil {
			t.Errorf("%s: %v", tt.call, err)
			continue
		}
		resp, body, err := tunnel(t, a, method, target, nil)
		if err != nil || resp.Status != tt.status || !strings.Contains(body, tt.has) {
			t.Errorf("%s %s: %+v %s %v", method, target, resp, body, err)
			continue
		}
		if tt.call == edge.ExportWorkflow && !strings.Contains(headerText(resp), "X-Export-Schema-Version: 2") {
			t.Errorf("headers %v", resp.Headers)
		}
	}
}

func headerText(r *adapter.Response) string {
	var b strings.Builder
	for _, h := range r.Headers {
		b.WriteString(http.CanonicalHeaderKey(h.Name) + ": " + h.Value + "\n")
	}
	return b.String()
}

// A tunnel run reaches own workflows and nothing else: no job is created by one, and nothing is sent with a body.
func TestTunnelReachesNothingElse(t *testing.T) {
	t.Parallel()
	s := fakegoals.Start(t, fakegoals.Options{})
	a, err := New("cloud", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"POST /api/v1/jobs/goal", "GET /api/v1/jobs/goal/job-1", "POST /api/v1/jobs/goal/job-1/cancel", "GET /", "GET /api/v1/user_workflows/",
		"POST /api/v1/user_workflows", "DELETE /api/v1/user_workflows", "GET /api/v1/user_workflows/%75w_demo", "GET /api/v1/user_workflows/uw_demo/../..",
	} {
		method, target, _ := strings.Cut(line, " ")
		if _, _, err := tunnel(t, a, method, target, nil); !errors.Is(err, adapter.ErrNotSent) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if _, _, err := tunnel(t, a, "GET", "/api/v1/user_workflows", strings.NewReader("{}")); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("with a body: %v", err)
	}
	if n := len(s.Log()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A caller without a key sends none, and shares connections with nobody's key.
func TestWithoutAKey(t *testing.T) {
	t.Parallel()
	s := fakegoals.Start(t, fakegoals.Options{Stages: []fakegoals.Stage{stage("executing"), booked}})
	a, err := New("cloud", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	_ = Run(t.Context(), a.Caller(nil, nil), demo(0), func(o Outcome) {
		if o.Result.Status != edge.Success {
			t.Errorf("%+v", o.Result)
		}
	})
	for _, r := range s.Log() {
		if r.Header["Authorization"] != nil {
			t.Errorf("%s with %v", r.Step, r.Header)
		}
	}
}

// A secret that is no longer there sends nothing.
func TestWithoutASecret(t *testing.T) {
	t.Parallel()
	s := server(t, booked)
	a, err := New("cloud", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	p := &purse{}
	p.shut.Store(true)
	err = Run(t.Context(), a.Caller(nil, p.credential), demo(0), func(o Outcome) {
		if o.Result.Status != edge.Unavailable || !o.NotSent {
			t.Errorf("%+v", o)
		}
	})
	if err != nil || len(s.Log()) != 0 {
		t.Errorf("%v, %d requests", err, len(s.Log()))
	}
}

// The cut in the middle of a long submission: a part of a body makes no job, and a typed result is the answer.
func TestSubmissionCutInTheMiddle(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_, _ = io.ReadFull(c, make([]byte, 100<<10))
			c.Close()
		}
	}()
	g := demo(10 * time.Second)
	g.Slots = edge.Input{{Name: "text", Text: strings.Repeat("x", 1<<20)}}
	rep := drive(t.Context(), t, "http://"+ln.Addr().String(), g)
	if rep.Result.DegradeReason != edge.ServerUnreachable || !errors.Is(rep.err, errLost) {
		t.Errorf("%+v %v", rep.Result, rep.err)
	}
}
