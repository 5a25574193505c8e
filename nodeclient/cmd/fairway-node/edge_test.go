package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

const invoice = `{"contract_id":"invoice","version":"7","prompt_template":"Read.","fields":[{"name":"number"},` +
	`{"name":"kind","mode":"closed_set","allowed_values":["Invoice","Offer"]}],"model_binding":"t-say"}`

// desk is a folder with files for edge run, and a provider.
type desk struct {
	t   *testing.T
	dir string
	f   *fakeollama.Server
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, dir: t.TempDir(), f: fakeollama.Start(t, fakeollama.Options{Models: []string{"t-say:latest", "t-slowload:latest"}})}
	d.write("invoice.json", invoice)
	d.write("wrapped.json", `{"grounded_contract":`+invoice+`}`)
	d.write("mail.txt", "Invoice no 4711 of today\n⟦{\"number\":\"4711\",\"kind\":\"INVOICE\"}⟧")
	d.write("op.json", `{"kind":"schema","prompt":"⟦{\"a\":1}⟧","schema":{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}}`)
	return d
}

func (d *desk) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// run runs the command with files of the desk for what begins with @. No state directory can be found, and no gateway.
func (d *desk) run(stdin string, args ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	env, out, errs := testEnv(map[string]string{"FAIRWAY_OLLAMA": d.f.URL(), "XDG_STATE_HOME": filepath.Join(d.dir, "invoice.json")})
	env.stdin = strings.NewReader(stdin)
	for i := range args {
		args[i] = strings.Replace(args[i], "@", d.dir+string(filepath.Separator), 1)
	}
	code = dispatch(env, append([]string{"edge"}, args...))
	return code, out.String(), errs.String()
}

func (d *desk) answer(out string) (a edge.Answer) {
	d.t.Helper()
	if err := json.Unmarshal([]byte(out), &a); err != nil || strings.Count(out, "\n") != 1 {
		d.t.Fatalf("%v: %s", err, out)
	}
	return a
}

func TestEdgeRun(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, args := range [][]string{
		{"run", "@invoice.json", "--input", "@mail.txt"},
		{"run", "--input=mail=@mail.txt", "@wrapped.json"},
		{"run", "@invoice.json", "--input", "mail=-"},
		{"run", "@invoice.json", "--input", "@mail.txt", "--model", "t-say:latest"},
		{"run", "@invoice.json", "--input", "@mail.txt", "--openai", d.f.URL() + "/v1"},
	} {
		text, _ := os.ReadFile(filepath.Join(d.dir, "mail.txt"))
		code, out, errs := d.run(string(text), append(args, "--json")...)
		a := d.answer(out)
		if code != exitOK || errs != "" || a.Disposition != edge.Accept || a.Placement != edge.Edge || string(a.Result.Output) != `{"number":"4711","kind":"Invoice"}` ||
			a.Result.Evidence[0].Source != "mail" || *a.Result.Evidence[0].Offset != 11 || len(a.RunID) != 22 || !strings.HasPrefix(a.IdempotencyKey, "idem:") {
			t.Errorf("%v: exit %d, %s%s", args, code, out, errs)
		}
	}
	for _, more := range [][]string{nil, {"--openai", d.f.URL()}} {
		code, out, errs := d.run("", append([]string{"run", "@op.json", "--model", "t-say", "--json"}, more...)...)
		if a := d.answer(out); code != exitOK || string(a.Result.Output) != `{"a":1}` || a.Result.ModelID != "t-say" {
			t.Errorf("operator: exit %d, %s%s", code, out, errs)
		}
	}
	d.write("bound.json", `{"kind":"contract","model":"other","contract":`+invoice+`}`)
	if code, out, errs := d.run("", "run", "@bound.json", "--model", "t-say", "--input", "@mail.txt"); code != exitOK {
		t.Errorf("operator of a contract: exit %d, %s%s", code, out, errs)
	}
	code, out, errs := d.run("", "run", "@invoice.json", "--input", "@mail.txt", "--warm-up")
	if code != exitOK || !strings.Contains(out, "\n  \"kind\": \"Invoice\"\n") || !strings.Contains(out, "success") || !strings.HasPrefix(errs, "warm-up: warm (") {
		t.Errorf("exit %d\n%s\n%s", code, out, errs)
	}
}

// Whatever goes wrong has a result, and exit code 1.
func TestEdgeRunUnavailable(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.write("invented.txt", "⟦{\"number\":1,\"kind\":\"Poem\"}⟧")
	d.write("many.txt", `⟦{"number":"4711","kind":"Offer","more":"4711"}⟧`)
	d.write("prose.txt", `⟦It is an invoice.⟧`)
	for _, tc := range []struct {
		name   string
		args   []string
		status edge.Status
		reason edge.DegradeReason
		says   string // on standard error
	}{
		{"uncertain", []string{"--input", "@invented.txt"}, edge.Uncertain, "", ""},
		{"invalid", []string{"--input", "@many.txt"}, edge.Invalid, "", ""},
		{"no JSON", []string{"--input", "@prose.txt"}, edge.Unavailable, edge.OutputUnparseable, ""},
		{"missing", []string{"--input", "@mail.txt", "--model", "none", "--warm-up"}, edge.Unavailable, edge.OtherError, "warm-up: missing: "},
		{"deadline", []string{"--input", "@mail.txt", "--model", "t-slowload", "--deadline", "100ms"}, edge.Unavailable, edge.DeadlineExceeded, ""},
		{"redacted name", []string{"--input", "x1234=@mail.txt", "--edge-redact", "[0-9]{4}"}, edge.Unavailable, edge.OtherError, ""},
		{"budget", []string{"--input", "@mail.txt", "--edge-budget", "1049"}, edge.Unavailable, edge.OtherError, ""},
		{"nobody", []string{"--input", "@mail.txt", "--ollama", "http://127.0.0.1:1", "--warm-up"}, edge.Unavailable, edge.ServerUnreachable, "warm-up: unreachable: "},
	} {
		code, out, errs := d.run("", append(append([]string{"run", "@invoice.json"}, tc.args...), "--json")...)
		a := d.answer(out)
		if code != exitFailed || a.Disposition != edge.Fallback || a.Result.Status != tc.status || a.Result.DegradeReason != tc.reason || !strings.HasPrefix(errs, tc.says) {
			t.Errorf("%s: exit %d, %s%s", tc.name, code, out, errs)
		}
	}
	if code, out, _ := d.run("", "run", "@invoice.json", "--input", "@invented.txt", "--accept-uncertain"); code != exitOK || !strings.Contains(out, "uncertain") {
		t.Errorf("accepted: exit %d, %s", code, out)
	}
	if code, out, _ := d.run("", "run", "@invoice.json", "--input", "@many.txt"); code != exitFailed || !strings.Contains(out, "schema: more is no field") {
		t.Errorf("for people: exit %d, %s", code, out)
	}
}

func TestEdgeMistakes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.write("list.json", `[]`)
	d.write("twice.json", strings.Replace(invoice, `"fields"`, `"version":"8","fields"`, 1))
	d.write("loose.json", strings.Replace(invoice, `"mode"`, `"Mode"`, 1))
	d.write("goal.json", `{"kind":"goal","workflow_id":"uw_a"}`)
	d.write("bytes.txt", "\xff")
	big := filepath.Join(d.dir, "big.txt")
	if err := os.WriteFile(big, bytes.Repeat([]byte("x"), 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	mail := []string{"--input", "@mail.txt"}
	for _, tc := range []struct {
		args []string
		says string
	}{
		{nil, "edge takes one of: run, answer, probe, watch"},
		{[]string{"walk"}, "edge takes one of"},
		{append([]string{"run"}, mail...), "one file"},
		{[]string{"run", "@invoice.json", "@invoice.json"}, "one file"},
		{[]string{"run", "@none.json"}, "none.json"},
		{[]string{"run", "@list.json"}, "JSON object"},
		{[]string{"run", "@mail.txt"}, "JSON object"},
		{[]string{"run", "@invoice.json"}, "input is required"},
		{append([]string{"run", "@twice.json"}, mail...), "version"},
		{append([]string{"run", "@loose.json"}, mail...), "operator.contract.fields[1]"},
		{[]string{"run", "@goal.json"}, "only in the cloud"},
		{[]string{"run", "@op.json"}, "operator.model is required"},
		{[]string{"run", "@invoice.json", "--input", "@none.txt"}, "none.txt"},
		{[]string{"run", "@invoice.json", "--input", "@bytes.txt"}, "UTF-8"},
		{[]string{"run", "@invoice.json", "--input", "@big.txt"}, "longer than"},
		{[]string{"run", "@invoice.json", "--input", "@mail.txt", "--input", "mail=@op.json"}, `"mail"`},
		{append([]string{"run", "@invoice.json", "--deadline", "0s"}, mail...), "1ms to 10m"},
		{append([]string{"run", "@invoice.json", "--ollama", "off"}, mail...), "no provider"},
		{append([]string{"run", "@invoice.json", "--ollama", "ftp://x"}, mail...), "scheme"},
		{append([]string{"run", "@invoice.json", "--ollama", "http://x", "--openai", "http://y"}, mail...), "one of them"},
		{append([]string{"run", "@invoice.json", "--edge-redact", "("}, mail...), "edge-redact"},
		{append([]string{"run", "@invoice.json", "--edge-budget", "1048"}, mail...), "edge-budget"},
		{append([]string{"run", "@invoice.json", "--walk"}, mail...), "usage: fairway-node edge run"},
		{[]string{"probe", "x"}, "flags only"},
		{[]string{"probe", "--vram-mb=-1"}, "0 or more"},
		{[]string{"watch"}, "--model"},
		{[]string{"watch", "--model", "m", "--interval", "0s"}, "more than 0"},
	} {
		if code, out, errs := d.run("", tc.args...); code != exitUsage || !strings.Contains(errs, tc.says) || out != "" {
			t.Errorf("%v: exit %d, want %q in\n%s%s", tc.args, code, tc.says, out, errs)
		}
	}
	if n := d.f.Stats().Exec; n != 0 {
		t.Errorf("%d inferences ran", n)
	}
	for _, args := range [][]string{{"help"}, {"run", "--help"}, {"probe", "--help"}} {
		if code, out, _ := d.run("", args...); code != exitOK || !strings.Contains(out, "usage: fairway-node edge") {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
}

// What a model says is printed so that a terminal obeys nothing of it.
func TestEdgePrintsPlainly(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.write("evil.txt", "\x1b]0;evil\x07 a\u202eb \u009b2J ⟦{\"number\":\"a\u202eb\",\"kind\":\"Offer\"}⟧")
	code, out, errs := d.run("", "run", "@invoice.json", "--input", "ev\u202eil=@evil.txt")
	if code != exitOK || strings.ContainsAny(out, "\x1b\u202e\u009b") || !strings.Contains(out, `a\u202e`) {
		t.Errorf("exit %d, %q %s", code, out, errs)
	}
}

func TestEdgeProbe(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	code, out, _ := d.run("", "probe", "--device-id", "d1", "--vram-mb", "8192")
	var m map[string]any
	if err := json.Unmarshal([]byte(out), &m); err != nil || code != exitOK || len(m) != 9 || m["device_id"] != "d1" || m["vram_mb"] != 8192.0 || m["media_store"] != nil {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}

// spoken is a writer that hands on what is written.
type spoken chan string

func (l spoken) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

func TestEdgeWatch(t *testing.T) {
	t.Parallel()
	f := fakeollama.Start(t, fakeollama.Options{Models: []string{"tiny:latest"}})
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(spoken)
	env := &environment{stdout: lines, stderr: os.Stderr, getenv: func(string) string { return "" }, ctx: ctx}
	done := make(chan int, 1)
	go func() {
		done <- dispatch(env, []string{"edge", "watch", "--model", "tiny", "--interval", "10ms", "--ollama", f.URL()})
	}()
	for _, step := range []struct {
		change func()
		want   string
	}{{func() {}, "connected"}, {func() { f.SetModels("other") }, "degraded"}, {f.Down, "disconnected"}} {
		step.change()
		select {
		case got := <-lines:
			if !strings.HasSuffix(got, " "+step.want+"\n") {
				t.Errorf("%q, want %s", got, step.want)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("nothing was said of %s", step.want)
		}
	}
	cancel()
	if code := <-done; code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// The node's own gates come from its flags.
func TestEdgeGatesOfTheNode(t *testing.T) {
	t.Parallel()
	env, _, _ := testEnv(map[string]string{"FAIRWAY_EDGE_TOOL": "mail,calendar"})
	s, err := read(env, "run", []string{"--edge-budget", "5000", "--edge-approve", "R0"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.gates()
	if err != nil || fmt.Sprint(g.Tools) != "[mail calendar]" || g.Budget.Tokens != 5000 || g.Approval.Check(edge.Action{Tool: "mail", Risk: edge.R1}) == nil {
		t.Errorf("%+v %v", g, err)
	}
	env, _, _ = testEnv(map[string]string{"FAIRWAY_EDGE_REDACT": `(\d{4}-){3}\d{2,4}` + "\n" + `a,b`})
	if s, err = read(env, "run", nil); err != nil || fmt.Sprintf("%q", s.edgeRedact) != `["(\\d{4}-){3}\\d{2,4}" "a,b"]` {
		t.Errorf("%q %v", s.edgeRedact, err)
	}
	env, _, _ = testEnv(nil)
	for _, args := range [][]string{{"--edge-budget", "1048"}, {"--edge-approve", "R2"}, {"--edge-redact", "("}} {
		if s, err = read(env, "run", args); err != nil {
			t.Fatal(err)
		}
		if _, err := s.gates(); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
