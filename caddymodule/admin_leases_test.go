package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

const someLease = "AAAAAAAAAAAAAAAAAAAAAA"

func TestRevocationSubjects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body, want string // want: the subject, or a part of the error after a !
	}{
		{`{"slot":"openai"}`, "slot:openai"},
		{`{"node":"n1"}`, "node:n1"},
		{`{"principal":"alice@example.com"}`, "principal:alice@example.com"},
		{`{"principal":"CN=Älice, O=Example"}`, "principal:CN=Älice, O=Example"},
		{`{"lease":"` + someLease + `"}`, "lease:" + someLease},
		{`{}`, "!want one of slot, node, principal and lease"},
		{`{"slot":"a","node":"b"}`, "!want one of"},
		{`{"slot":"a","slot":""}`, "!want one of"},
		{`{"slot":"A"}`, "!slot \"A\" is not one: want lower-case letters"},
		{`{"node":"../x"}`, "!node \"../x\" is not one"},
		{`{"principal":"a\nb"}`, "!principal \"a\\nb\" is not one"},
		{`{"principal":"` + strings.Repeat("a", 201) + `"}`, "!want 1 to 200 printable bytes"},
		{`{"lease":"` + someLease + `A"}`, "!lease"},
		{`{"lease":"AAAAAAAAAAAAAAAAAAAAAB"}`, "!lease"}, // bits that no id has
		{`{"lease":"AAAAAAAAAAAAAAAAAAAA=="}`, "!lease"},
	} {
		var q revocation
		if err := json.Unmarshal([]byte(c.body), &q); err != nil {
			t.Fatal(err)
		}
		_, _, got, err := q.subject()
		if want, fails := strings.CutPrefix(c.want, "!"); fails != (err != nil) || fails && !strings.Contains(err.Error(), want) || !fails && got != want {
			t.Errorf("%s: got %s, %v, want %s", c.body, got, err, c.want)
		}
	}
}

func TestLeaseRoutes(t *testing.T) {
	t.Setenv("T_SLOT", canary)
	s := newServer(t)
	s.mustLoad(s.config(demoNode, ""))
	s.node()
	api := "http://" + s.admin + "/fairway"
	ask := func(method, path, body string, code int, want string) {
		t.Helper()
		if got, answer := s.do(method, api+path, body); got != code || !strings.Contains(answer, want) {
			t.Errorf("%s %s %s: got %d %s, want %d %s", method, path, body, got, answer, code, want)
		}
	}
	ask("GET", "/routes", "", 200, `[{"name":"default","principals":["*"],"profiles":[{"name":"demo","adapter":"ollama","target":"demo"}]}]`)
	s.mustLoad(s.config(demoNode+"slot key {\nvalue {env.T_SLOT}\n}\nprofile demo {\ntarget demo\n}\nprofile vllm {\nadapter openai\nslot key\nnodes a=b\n}\nkey alice "+hashPrefix+strings.Repeat("00", 32)+"\n", ""))
	ask("GET", "/routes", "", 200, `"profiles":[{"name":"demo","adapter":"ollama","target":"demo"},{"name":"vllm","adapter":"openai","target":"openai","slot":"key","nodes":{"a":"b"}}]`)
	ask("GET", "/leases", "", 200, `[]`)
	ask("POST", "/leases", "{}", 405, `want GET`)
	ask("GET", "/revocations", "", 200, `[]`)
	ask("PUT", "/revocations", "{}", 405, `want DELETE, GET, POST`)
	ask("POST", "/revocations", "", 400, `reading the request`)
	ask("POST", "/revocations", `{"slots":"key"}`, 400, `unknown field`)
	ask("POST", "/revocations", `{}`, 400, `want one of slot, node, principal and lease`)
	ask("POST", "/revocations", `{"lease":"short"}`, 400, `22 characters`)
	ask("POST", "/revocations", `{"slot":"`+strings.Repeat("a", maxRequest)+`"}`, 400, `reading the request`)
	for _, c := range []struct {
		body, subject string
		known         bool
	}{
		{`{"slot":"key"}`, "slot:key", true},
		{`{"slot":"kez"}`, "slot:kez", false},
		{`{"node":"n9"}`, "node:n9", false},
		{`{"principal":"alice"}`, "principal:alice", true},
		{`{"principal":"mallory"}`, "principal:mallory", false},
		{`{"lease":"` + someLease + `"}`, "lease:" + someLease, false},
	} {
		for _, method := range []string{"POST", "DELETE"} {
			code, body := s.do(method, api+"/revocations", c.body)
			var rows []RevokedView
			if err := json.Unmarshal([]byte(body), &rows); code != 200 || err != nil || len(rows) != 1 {
				t.Fatalf("%s %s: %d %s", method, c.body, code, body)
			}
			if v := rows[0]; v.Subject != c.subject || v.Revoked != (method == "POST") || v.Known != c.known || !v.Applied || !v.Durable {
				t.Errorf("%s %s: got %+v", method, c.body, v)
			}
			_, list := s.do("GET", api+"/revocations", "")
			if strings.Contains(list, `{"subject":"`+c.subject+`"}`) != (method == "POST") {
				t.Errorf("after %s %s: %s", method, c.body, list)
			}
		}
	}
	if _, metrics := s.do("GET", "http://"+s.admin+"/metrics", ""); !strings.Contains(metrics, `fairway_leases_total{result="issued"} 0`) ||
		!strings.Contains(metrics, `fairway_leases_total{result="lease_revoked"} 0`) {
		t.Error("metrics have no leases")
	}
}

// TestAnswered: a storage that hangs hangs no admin route.
func TestAnswered(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := answered(func() (int, error) { <-release; return 1, nil }, ctx.Done()); err != errSlow { //nolint:errorlint // itself
		t.Errorf("got %v", err)
	}
	if n, err := answered(func() (int, error) { return 1, nil }, nil); n != 1 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

// adminWith answers every request with rows, and tells what was asked.
func adminWith(t *testing.T, rows string) (address string, asked func() string) {
	t.Helper()
	var last string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		last = r.Method + " " + r.URL.Path + " " + body.String()
		_, _ = w.Write([]byte(rows))
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), func() string { return last }
}

func TestRevokeCommand(t *testing.T) {
	for _, c := range []struct {
		args, row string
		code      int
		asked     string
		out, err  string // parts of standard output, and of error and standard error
	}{
		{
			"--slot openai", `{"subject":"slot:openai","revoked":true,"applied":true,"durable":true,"nodes":2,"acked":2,"ended":3,"known":true}`,
			0, `POST /fairway/revocations {"slot":"openai"}`, "slot:openai  revoked  true     true     2           2      3", "",
		},
		{
			"--node n1 --undo", `{"subject":"node:n1","revoked":false,"applied":true,"durable":true,"known":true}`,
			0, `DELETE /fairway/revocations {"node":"n1"}`, "node:n1  good", "",
		},
		{
			"--principal alice --json", `{"subject":"principal:alice","revoked":true,"applied":true,"durable":false,"known":true}`,
			1, `POST /fairway/revocations {"principal":"alice"}`, `[{"subject":"principal:alice"`, "principal:alice is revoked now, but it is not in storage: after a restart of the gateway it would be good again",
		},
		{
			"--slot openai --undo", `{"subject":"slot:openai","revoked":false,"applied":true,"durable":false,"known":true}`,
			1, `DELETE /fairway/revocations {"slot":"openai"}`, "good", "slot:openai is good now, but it is not in storage: after a restart of the gateway it would be revoked again",
		},
		{
			"--lease " + someLease, `{"subject":"lease:` + someLease + `","revoked":true,"applied":false,"durable":false,"known":true}`,
			1, `POST /fairway/revocations {"lease":"` + someLease + `"}`, "revoked  false", "was not changed",
		},
		{
			"--slot opneai", `{"subject":"slot:opneai","revoked":true,"applied":true,"durable":true,"nodes":3,"acked":1}`,
			0, `POST /fairway/revocations {"slot":"opneai"}`, "slot:opneai", "knows nothing that is called slot:opneai now; was it misspelt?\n2 of 3 nodes have not confirmed yet",
		},
	} {
		address, asked := adminWith(t, "["+c.row+"]")
		code, out, notes, err := run(append(strings.Fields("revoke "+c.args), "--address", address)...)
		if err != nil {
			notes += err.Error()
		}
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(notes, c.err) || c.err == "" && notes != "" || asked() != c.asked {
			t.Errorf("revoke %s: %d, asked %s\n%s\n%s", c.args, code, asked(), out, notes)
		}
	}
	for args, want := range map[string]string{
		"":                       "want one of --slot, --node, --principal and --lease",
		"--undo":                 "want one of",
		"--slot a --node b":      "want one of",
		"--slot A":               "want lower-case letters",
		"--lease short":          "22 characters",
		"--slot a extra":         "usage: fairway revoke",
		"--slot":                 "needs an argument",
		"--profile a":            "unknown flag",
		"--principal a --node=b": "want one of",
	} {
		if code, out, _, err := run(strings.Fields("revoke " + args)...); code != 2 || out != "" || !strings.Contains(err.Error(), want) {
			t.Errorf("revoke %s: %d, %v, want %s", args, code, err, want)
		}
	}
}

func TestLeaseTables(t *testing.T) {
	raw, err := json.Marshal([]gateway.LeaseView{{Lease: someLease, Run: "r1", Principal: "al\x1bice", Slot: "openai", Version: 3, Node: "n1", State: "opened"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ command, rows, want string }{
		{"leases", string(raw), someLease + "  opened"},
		{"leases", string(raw), "al?ice"},
		{"leases", "[]", "no leases"},
		{"leases --json", string(raw), string(raw)},
		{"revocations", `[{"subject":"slot:openai"}]`, "REVOKED\nslot:openai\n"},
		{"revocations", "[]", "nothing is revoked"},
		{"routes", `[{"name":"default","principals":["*"],"profiles":[{"name":"a","adapter":"openai","target":"vllm","slot":"s","nodes":{"y":"2","x":"1"}},{"name":"b"}]}]`, "default  *           a        openai   vllm    s     x=1 y=2"},
		{"routes", `[{"name":"default","principals":["*"],"profiles":[]}]`, "default  *           -"},
	} {
		address, _ := adminWith(t, c.rows)
		if code, out, _, err := run(append(strings.Fields(c.command), "--address", address)...); code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: %d, %v\n%s", c.command, code, err, out)
		}
	}
}

// TestLeaseMetricIsBounded compares the metric's values with the codes in the source.
func TestLeaseMetricIsBounded(t *testing.T) {
	t.Parallel()
	want := map[string]bool{"issued": true, "opened": true}
	for file, pattern := range map[string]string{
		"../lease/lease.go":         `(?m)^\tCode\w+ +Code = "(\w+)"`,
		"internal/gateway/lease.go": `(?m)^\tcodeLease\w+ +lease\.Code = "(\w+)"`,
	} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindAllSubmatch(src, -1)
		if len(found) < 3 {
			t.Errorf("only %d codes in %s", len(found), file)
		}
		for _, m := range found {
			want[string(m[1])] = true
		}
	}
	if !maps.Equal(leaseResults, want) {
		t.Errorf("results are %v\nwant %v", leaseResults, want)
	}
}
