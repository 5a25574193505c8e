package edge

import (
	"net/url"
	gopath "path"
	"strings"
	"testing"
)

func TestPermitWorkflow(t *testing.T) {
	t.Parallel()
	const base = "/api/v1/user_workflows"
	for line, want := range map[string]WorkflowCall{
		"GET " + base: ListWorkflows,
		"GET " + base + "?visibility=archived&limit=100&cursor=eyJ%2B%2F%3D": ListWorkflows,
		"GET " + base + "/uw_a-B_9":                                                  GetWorkflow,
		"GET " + base + "/uw_a/runs?limit=50":                                        WorkflowRuns,
		"GET " + base + "/uw_a/export":                                               ExportWorkflow,
		"GET " + base + "/uw_a/grounded-contract?model_binding=qwen3%3A4b&locale=de": WorkflowContract,
		"DELETE " + base + "/uw_a":                                                   DeleteWorkflow,

		"POST " + base:                                         "",
		"PUT " + base + "/uw_a":                                "",
		"get " + base:                                          "",
		"DELETE " + base:                                       "",
		"DELETE " + base + "/uw_a/runs":                        "",
		"HEAD " + base:                                         "",
		"GET " + base + "/":                                    "",
		"GET /" + base:                                         "",
		"GET http://x" + base:                                  "",
		"GET " + base + "x":                                    "",
		"GET " + base + "_uw/uw_a":                             "",
		"GET " + base + "/uw_a/":                               "",
		"GET " + base + "/uw_a//runs":                          "",
		"GET " + base + "/uw_a/runs/":                          "",
		"GET " + base + "/uw_a/Runs":                           "",
		"GET " + base + "/uw_a/runs/x":                         "",
		"GET " + base + "/uw_a/archive":                        "",
		"GET " + base + "/uw_":                                 "",
		"GET " + base + "/wf_a":                                "",
		"GET " + base + "/..":                                  "",
		"GET " + base + "/uw_a/..":                             "",
		"GET " + base + "/uw_a/../../jobs/goal/job-1":          "",
		"GET " + base + "/uw_a%2Fruns":                         "",
		"GET " + base + "/%75w_a":                              "",
		"GET " + base + "/uw_a;x":                              "",
		"GET " + base + "/uw_a#x":                              "",
		"GET " + base + "/uw_a?":                               "",
		"GET " + base + "/uw_a?limit=1":                        "",
		"GET " + base + "?limit=0":                             "",
		"GET " + base + "?limit=101":                           "",
		"GET " + base + "?limit=07":                            "",
		"GET " + base + "?limit=+7":                            "",
		"GET " + base + "?limit=7&limit=8":                     "",
		"GET " + base + "?Limit=7":                             "",
		"GET " + base + "?%6Cimit=7":                           "",
		"GET " + base + "?limit":                               "",
		"GET " + base + "?&limit=7":                            "",
		"GET " + base + "?visibility=everyone":                 "",
		"GET " + base + "?cursor=":                             "",
		"GET " + base + "?cursor=a+b":                          "",
		"GET " + base + "?cursor=a%20b":                        "",
		"GET " + base + "?cursor=%0d%0ax":                      "",
		"GET " + base + "?cursor=%41":                          "",
		"GET " + base + "?cursor=%2b":                          "",
		"GET " + base + "?cursor=a/b":                          "",
		"GET " + base + "?cursor=" + strings.Repeat("x", 2049): "",
		"GET " + base + "/uw_a/runs?limit=51":                  "",
		"GET " + base + "/uw_a/grounded-contract?locale=../x":  "",
		"GET " + base + "/uw_" + strings.Repeat("x", 200):      "",
		"GET " + base + "/uw_a/export?x=1":                     "",
		"GET /api/v1/jobs/goal/job-1":                          "",
		"GET ":                                                 "",
		"GET " + base + "?limit=7?limit=7":                     "",
	} {
		method, target, _ := strings.Cut(line, " ")
		if got, ok := PermitWorkflow(method, target); got != want || ok != (want != "") {
			t.Errorf("%.120s: %q %t, want %q", line, got, ok, want)
		}
	}
}

// Every request that can be made is permitted, as the call that it was made for.
func TestWorkflowRequest(t *testing.T) {
	t.Parallel()
	all := map[string]string{
		"visibility": "public", "limit": "50", "cursor": "a+b/c=?&#%", "model_binding": "hf.co/a/b:Q4_K_M", "locale": "zh-Hant-TW",
	}
	for _, c := range workflowCalls {
		id := ""
		if c.id {
			id = "uw_a"
		}
		params := map[string]string{}
		for _, p := range c.params {
			params[p.name] = all[p.name]
		}
		method, target, err := WorkflowRequest(c.call, id, params)
		if err != nil {
			t.Errorf("%s: %v", c.call, err)
			continue
		}
		if got, ok := PermitWorkflow(method, target); got != c.call || !ok {
			t.Errorf("%s: %s %s is %q", c.call, method, target, got)
		}
		u, err := url.ParseRequestURI(target)
		if err != nil || len(u.Query()) != len(params) {
			t.Errorf("%s: %s is read as %v, %v", c.call, target, u, err)
		}
		for name, v := range params {
			if got := u.Query().Get(name); got != v {
				t.Errorf("%s: %s arrives as %q", c.call, name, got)
			}
		}
	}
	for name, tt := range map[string]struct {
		call   WorkflowCall
		id     string
		params map[string]string
	}{
		"no call":            {"archive", "uw_a", nil},
		"no id":              {GetWorkflow, "", nil},
		"an id to a list":    {ListWorkflows, "uw_a", nil},
		"no workflow's id":   {DeleteWorkflow, "../x", nil},
		"another's":          {GetWorkflow, "uw_a", map[string]string{"limit": "1"}},
		"unknown parameter":  {ListWorkflows, "", map[string]string{"x\r\ny": "1"}},
		"out of range":       {WorkflowRuns, "uw_a", map[string]string{"limit": "51"}},
		"empty":              {ListWorkflows, "", map[string]string{"cursor": ""}},
		"with a line's end":  {ListWorkflows, "", map[string]string{"cursor": "a\nb"}},
		"not a locale":       {WorkflowContract, "uw_a", map[string]string{"locale": "de/CH"}},
		"a long model's tag": {WorkflowContract, "uw_a", map[string]string{"model_binding": strings.Repeat("x", 513)}},
	} {
		if method, target, err := WorkflowRequest(tt.call, tt.id, tt.params); err == nil {
			t.Errorf("%s: %s %s", name, method, target)
		}
	}
}

func FuzzPermitWorkflow(f *testing.F) {
	for _, s := range []string{
		"/api/v1/user_workflows", "/api/v1/user_workflows/uw_a/runs?limit=5", "/api/v1/user_workflows?cursor=a%2Bb&limit=7",
		"/api/v1/user_workflows/uw_a/../../jobs/goal", "/api/v1/user_workflows/uw_a%2f..",
	} {
		f.Add("GET", s)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if _, ok := PermitWorkflow(method, target); !ok {
			return
		}
		u, err := url.ParseRequestURI(target)
		if err != nil || u.Host != "" || gopath.Clean(u.Path) != u.Path || u.EscapedPath() != u.Path || !strings.HasPrefix(u.Path, WorkflowsPath) {
			t.Errorf("%s %q is permitted, and read as %+v, %v", method, target, u, err)
		}
		if method != "GET" && method != "DELETE" || strings.ContainsAny(target, " \r\n\t#\\") {
			t.Errorf("%q %q is permitted", method, target)
		}
	})
}
