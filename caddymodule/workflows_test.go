package caddymodule

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakegoals"
)

const workflowKey = "ck-canary-0c9e4b7d21f85a36"

// cloudy is a gateway with an embedded node whose target cloud is the fake, and a file with
// its Caddyfile.
func cloudy(t *testing.T, f *fakegoals.Server, more string) (s *server, from []string) {
	t.Helper()
	s = newServer(t)
	secret := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(secret, []byte(workflowKey), 0o600); err != nil {
		t.Fatal(err)
	}
	app := "name gw1\naudit log\nembedded_node {\nollama off\ntarget cloud=goals:" + f.URL() + "\n}\n" +
		"slot key {\nvalue {file." + secret + "}\n}\nprofile cloud {\nadapter goals\ntarget cloud\nslot key\n}\n" + more
	in := string(caddyfile.Format([]byte(s.config(app, ""))))
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	s.mustLoad(in)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, body := s.do("GET", "http://"+s.admin+"/fairway/nodes", "")
		var nodes []fleet.NodeView
		if json.Unmarshal([]byte(body), &nodes) == nil && len(nodes) == 1 && nodes[0].State == "ready" && len(nodes[0].Targets) == 1 && nodes[0].Targets[0].Reachable {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no node is ready: %s", body)
		}
	}
	return s, []string{"--config", file, "--adapter", "caddyfile"}
}

func TestWorkflowCommands(t *testing.T) {
	f := fakegoals.Start(t, fakegoals.Options{Key: workflowKey, Stages: []fakegoals.Stage{{Status: "executing"}}, Workflows: []fakegoals.Workflow{
		{ID: "uw_a", Name: "Reads\x1b[31m invoices", Visibility: "private", Contract: map[string]any{
			"contract_id": "uw_a", "prompt_template": "Read.\u009b", "fields": []any{map[string]any{"name": "total"}},
		}},
		{ID: "uw_b", Name: "Books", Visibility: "public"},
	}})
	s, from := cloudy(t, f, "")
	s.do("POST", "http://"+s.http+"/api/v1/edge/runs", `{"operator":{"kind":"goal","workflow_id":"uw_a"},"deadline_ms":300}`)
	for _, c := range []struct{ args, want, says string }{
		{"list", "uw_a      Reads?[31m invoices  private     2026-08-02T10:00:00Z  -\n", ""},
		{"list --limit 1", "WORKFLOW", "There are more: --cursor after=1\n"},
		{"list --cursor after=1", "uw_b      Books  public", ""},
		{"list --visibility archived", "no workflows\n", ""},
		{"get uw_b", "uw_b      Books  public", ""},
		{"get uw_b --profile cloud", "uw_b", ""},
		{"get uw_a --json", `"itemVersion":3`, ""},
		{"list --json", `[{"call":"list","profile":"cloud","node":"embedded-gw1","run_id":"`, ""},
		{"runs uw_a --limit 3", "job-1  ", ""},
		{"export uw_a", "{\n  \"opaque\": \"uw_a\"\n}\n", "The document's schema version is 2.\n"},
		{"export uw_a --json", `"schema_version":"2"`, "The document's schema version is 2.\n"},
		{"contract uw_a --model-binding m --locale en", `"prompt_template": "Read.\u009b"`, ""},
		{"delete uw_a --yes", "uw_a     cloud    embedded-gw1\n", ""},
	} {
		code, out, errs, err := run(append(append([]string{"workflows"}, strings.Fields(c.args)...), from...)...)
		if code != 0 || !strings.Contains(out, c.want) || errs != c.says {
			t.Errorf("%s: %d, %v, %q, %q", c.args, code, err, out, errs)
		}
		if strings.HasSuffix(c.args, "--json") && json.Unmarshal([]byte(out), new([]map[string]any)) != nil {
			t.Errorf("%s: not an array of objects: %s", c.args, out)
		}
		if strings.HasPrefix(c.args, "contract") {
			if _, err := edge.ParseContract([]byte(out)); err != nil {
				t.Errorf("what is printed is no contract: %v", err)
			}
		}
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"get uw_a", 1, "there is no workflow uw_a of this key's owner"},
		{"delete uw_b --yes", 1, "uw_b is public: it can be archived, not deleted"},
		{"contract uw_b", 1, "no contract can be derived from workflow uw_b"},
		{"list --profile other", 1, "there is no profile"},
		{"delete uw_b", 2, "say --yes"},
		{"get", 2, "usage: fairway workflows get ID"},
		{"get x", 2, "not the id of a workflow"},
		{"runs uw_b --limit 51", 2, "parameter limit of runs is out of range"},
		{"list --visibility all", 2, "visibility"},
		{"list uw_a", 2, "usage: fairway workflows list"},
		{"rename uw_a", 2, "unknown command 'rename uw_a'"},
		{"", 2, "unknown command"},
	} {
		before := len(f.Log())
		code, out, _, err := run(append(append([]string{"workflows"}, strings.Fields(c.args)...), from...)...)
		if code != c.code || err == nil || !strings.Contains(err.Error(), c.want) || out != "" {
			t.Errorf("%s: %d, %v, %q", c.args, code, err, out)
		}
		if c.code == 2 && len(f.Log()) != before {
			t.Errorf("%s: the cloud was asked", c.args)
		}
	}
	if f.Count(fakegoals.Delete) != 2 || f.Holds(workflowKey) {
		t.Errorf("%d deletions", f.Count(fakegoals.Delete))
	}
	if code, body := s.do("GET", "http://"+s.admin+"/fairway/runs", ""); code != 200 || !strings.Contains(body, `"principal":"fairway:workflows"`) || strings.Contains(body, workflowKey) {
		t.Errorf("%d %s", code, body)
	}
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "", 200}, {"POST", "", 405}, {"GET", "/uw_b", 200}, {"PUT", "/uw_b", 405}, {"GET", "/uw_b/grounded-contract", 404}, {"GET", "/uw_b/runs?limit=0", 400},
		{"GET", "/..%2fuw_b", 400}, {"DELETE", "/uw_b/runs", 405}, {"GET", "?limit=1000", 400},
	} {
		if code, body := s.do(c.method, "http://"+s.admin+"/fairway/workflows"+c.path, ""); code != c.code || strings.Contains(body, workflowKey) {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, body)
		}
	}
}

func TestWorkflowsWithoutACloud(t *testing.T) {
	s := newServer(t)
	s.mustLoad(s.config(demoNode, ""))
	s.node()
	if code, _, _, err := run("workflows", "list", "--address", s.admin); code != 1 || err == nil || !strings.Contains(err.Error(), "no profile has the adapter goals") {
		t.Errorf("%d, %v", code, err)
	}
}

// Nothing is certain of what the cloud says.
func TestWorkflowTablesOfAnything(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`null`: "no workflows\n", `7`: "no workflows\n", `{"items":7}`: "no workflows\n", `{"items":[]}`: "no workflows\n", `"text"`: "no workflows\n",
		`{"items":[{"workflowId":{"a":1},"name":7,"visibility":true}]}`: "WORKFLOW  NAME  VISIBILITY  UPDATED  DESCRIPTION\n-         7     true        -        -\n",
	} {
		var out bytes.Buffer
		workflowTable(&out, []WorkflowView{{Call: "list", Answer: json.RawMessage(answer)}})
		if out.String() != want {
			t.Errorf("%s: %q", answer, out.String())
		}
	}
	for body, want := range map[string]string{"": "null", `{"a":1}`: `{"a":1}`, "a: 1\n": `"a: 1\n"`, "\xff": `"\ufffd"`} {
		if got := document([]byte(body)); string(got) != want {
			t.Errorf("%q: %s", body, got)
		}
	}
	var out bytes.Buffer
	printDocument(&out, []WorkflowView{{Answer: json.RawMessage("{\"a\":\"é\u202e\U000e0001\"}")}})
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["a"] != "é\u202e\U000e0001" || strings.ContainsAny(out.String(), "\u202e\U000e0001") {
		t.Errorf("%v %q", err, out.String())
	}
}
