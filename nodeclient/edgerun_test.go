package nodeclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// The operators of these tests. What the model says stands between ⟦ and ⟧ in the text.
const (
	schemaOperator   = `{"kind":"schema","model":"ours","prompt":"Read.","schema":{"type":"object","required":["a"],"properties":{"a":{"type":"string"}},"additionalProperties":false}}`
	contractOperator = `{"kind":"contract","model":"ours","contract":{"contract_id":"invoice","version":"7","prompt_template":"Read.",` +
		`"fields":[{"name":"number"},{"name":"kind","mode":"closed_set","allowed_values":["Invoice","Offer"]}]}}`
)

// request is the body of a typed run; more are further members.
func request(operator, text string, more ...string) string {
	quoted, _ := json.Marshal(text)
	members := append([]string{`"operator":` + operator, `"input":{"mail":` + string(quoted) + `}`, `"placement":"edge"`}, more...)
	return "{" + strings.Join(members, ",") + "}"
}

// typedRun opens a typed run and sends its body. The model is t-say unless change says otherwise.
func typedRun(t testing.TB, s *tunnel.Session, body string, change func(*tunnel.RunOpen)) *tunnel.Run {
	t.Helper()
	r := open(t, s, func(o *tunnel.RunOpen) {
		o.Kind, o.Method, o.Path, o.Model = tunnel.KindEdge, "", nil, "t-say"
		o.Body, o.BodyLength, o.DeadlineMs = tunnel.BodyLength, uint64(len(body)), 30_000
		if change != nil {
			change(o)
		}
	})
	if r.WriteBody([]byte(body)) == nil {
		_ = r.EndBody()
	}
	return r
}

// resultOf is the result of a typed run that has to have completed.
func resultOf(t testing.TB, res result) edge.ModelResult {
	t.Helper()
	if res.terminal.GetOutcome() != tunnel.Completed || !res.accepted || res.head.GetStatus() != 200 || res.terminal.GetSessionId() != "corr" {
		t.Fatalf("refused %v, terminal %v, head %v", res.refused, res.terminal, res.head)
	}
	if h := res.head.Headers; len(h) != 1 || h[0].Name != "Content-Type" || string(h[0].Value) != "application/x-ndjson" {
		t.Errorf("head %v", res.head)
	}
	var m edge.ModelResult
	if err := m.UnmarshalJSON(res.terminal.Result); err != nil {
		t.Fatalf("%v: %s", err, res.terminal.Result)
	}
	return m
}

func typedAsk(t testing.TB, s *tunnel.Session, body string, change func(*tunnel.RunOpen)) (edge.ModelResult, result) {
	t.Helper()
	res := collect(typedRun(t, s, body, change))
	return resultOf(t, res), res
}

// edgeNode is a node with an Ollama, which is the target ollama, and the same server as the OpenAI target v1.
func edgeNode(t testing.TB, o fakeollama.Options, change func(*Config)) (*fakeollama.Server, *Client, *tunnel.Session) {
	t.Helper()
	if o.Models == nil {
		o.Models = []string{"t-say:latest", "t-slowload:latest", "t-tick:latest", "t-errmid:latest", "t-longline:latest", "t-flood:latest"}
	}
	f := fakeollama.Start(t, o)
	g := newGateway(t)
	targets, err := Targets(f.URL(), []string{"v1=openai:" + f.URL()}, []string{"256"}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Identity: g.identity("n1"), Gateways: []string{g.addr}, Targets: targets}
	if change != nil {
		change(&cfg)
	}
	c, s, _ := g.node(cfg)
	return f, c, s
}

func atOpenAI(o *tunnel.RunOpen) { o.Adapter, o.Target = "openai", "v1" }

func TestTypedRun(t *testing.T) {
	t.Parallel()
	_, _, s := edgeNode(t, fakeollama.Options{}, nil)
	const said = `{"number":"4711","kind":" INVOICE "}`
	text := "Invoice no 4711 of today ⟦" + said + "⟧"
	for name, change := range map[string]func(*tunnel.RunOpen){"ollama": nil, "openai": atOpenAI} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, stream), func(t *testing.T) {
				m, res := typedAsk(t, s, request(contractOperator, text, fmt.Sprintf(`"stream":%t`, stream)), change)
				if m.Status != edge.Success || string(m.Output) != `{"number":"4711","kind":"Invoice"}` || *m.Confidence != 1 || m.ModelID != "ours" ||
					m.ModelVersion != "7" || m.LatencyMS <= 0 || len(m.Evidence) != 2 || *m.Evidence[0].Offset != 11 || m.Evidence[0].Source != "mail" {
					t.Errorf("%+v", m)
				}
				if change == nil && (res.terminal.Usage.GetInputTokens() == 0 || res.terminal.Usage.GetOutputTokens() == 0) {
					t.Errorf("usage %v", res.terminal.Usage)
				}
				if !stream {
					if res.body != "" {
						t.Errorf("events for nobody: %q", res.body)
					}
					return
				}
				checkEvents(t, res, said)
			})
		}
	}
}

// checkEvents checks that every frame holds whole lines, numbered on, and that the text is all there.
func checkEvents(t *testing.T, res result, said string) {
	t.Helper()
	var text strings.Builder
	var states []edge.RunState
	seq := 0
	for _, f := range res.frames {
		if !strings.HasSuffix(f, "\n") {
			t.Fatalf("a frame is no whole line: %q", f)
		}
		for line := range strings.Lines(f) {
			var e struct {
				Run     string `json:"run_id"`
				Session string `json:"session_id"`
				Seq     int    `json:"seq"`
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Seq != seq || e.Session != "corr" {
				t.Fatalf("event %d: %s (%v)", seq, line, err)
			}
			seq++
			events, err := edge.NewNodeEvents(e.Run).Feed([]byte(line))
			if err != nil || len(events) != 1 {
				t.Fatalf("%s: %v", line, err)
			}
			text.WriteString(events[0].Text)
			if events[0].State != "" {
				states = append(states, events[0].State)
			}
		}
	}
	if text.String() != said || len(states) == 0 || states[len(states)-1] != edge.Generating {
		t.Errorf("%q, %v", text.String(), states)
	}
}

// A04 and the rest of the table: what a model says, and what the run makes of it.
func TestTypedAnswers(t *testing.T) {
	t.Parallel()
	_, _, s := edgeNode(t, fakeollama.Options{}, nil)
	for _, tc := range []struct {
		name, operator, said string
		status               edge.Status
		reason               edge.DegradeReason
		output               string
	}{
		{"schema kept", schemaOperator, `{"a":"b"}`, edge.Success, "", `{"a":"b"}`},
		{"schema ignored", schemaOperator, `{"a":1}`, edge.Invalid, "", ""},
		{"a member too many", schemaOperator, `{"a":"b","c":2}`, edge.Invalid, "", ""},
		{"no JSON", schemaOperator, `Certainly! {"a":"b"}`, edge.Unavailable, edge.OutputUnparseable, ""},
		{"nothing", schemaOperator, ``, edge.Unavailable, edge.OutputUnparseable, ""},
		{"a field too many", contractOperator, `{"number":"4711","kind":"Offer","x":"y"}`, edge.Invalid, "", ""},
		{"one grounded", contractOperator, `{"number":"4711","kind":"Poem"}`, edge.Success, "", `{"number":"4711","kind":"Not specified"}`},
		{"invented", contractOperator, `{"number":"9999","kind":"Poem"}`, edge.Uncertain, "", `{"number":"Not specified","kind":"Not specified"}`},
	} {
		for _, stream := range []bool{false, true} {
			m, _ := typedAsk(t, s, request(tc.operator, "No 4711. ⟦"+tc.said+"⟧", fmt.Sprintf(`"stream":%t`, stream)), nil)
			if tc.name == "invented" { // what the model says stands in the text, which grounds it: say it in another way
				m, _ = typedAsk(t, s, request(strings.Replace(tc.operator, "Read.", "Read. ⟦"+strings.ReplaceAll(tc.said, `"`, `\"`)+"⟧", 1), "No 4711."), nil)
			}
			if m.Status != tc.status || m.DegradeReason != tc.reason || string(m.Output) != tc.output {
				t.Errorf("%s: %+v %s", tc.name, m, m.Output)
			}
		}
	}
}

func TestTypedRefusals(t *testing.T) {
	t.Parallel()
	f, c, s := edgeNode(t, fakeollama.Options{Models: []string{"t-say:latest"}}, nil)
	good := request(schemaOperator, `⟦{"a":"b"}⟧`)
	for _, tc := range []struct {
		name, body string
		change     func(*tunnel.RunOpen)
		code       string
	}{
		{"no credit taken", good, func(o *tunnel.RunOpen) { o.Credit = false }, "bad_run"},
		{"no model", good, func(o *tunnel.RunOpen) { o.Model = "" }, "bad_run"},
		{"no request", good, func(o *tunnel.RunOpen) { o.Body, o.BodyLength = tunnel.BodyNone, 0 }, "bad_run"},
		{"too long a request", "x", func(o *tunnel.RunOpen) { o.BodyLength = edge.MaxRequest + 1 }, "bad_run"},
		{"long correlation", good, func(o *tunnel.RunOpen) { o.SessionId = strings.Repeat("s", 2000) }, "bad_run"},
		{"no such target", good, func(o *tunnel.RunOpen) { o.Target = "other" }, "unknown_target"},
		{"other adapter", good, func(o *tunnel.RunOpen) { o.Adapter = "openai" }, "unknown_target"},
		{"other kind", good, func(o *tunnel.RunOpen) { o.Kind = 7 }, "unsupported_kind"},
		{"no JSON", "{", nil, "bad_run"},
		{"unknown member", request(schemaOperator, "x", `"x":1`), nil, "bad_run"},
		{"goal", `{"operator":{"kind":"goal","workflow_id":"uw_a"}}`, nil, "bad_run"},
		{"model not there", good, func(o *tunnel.RunOpen) { o.Model = "gone" }, "provider_answered"},
	} {
		res := collect(typedRun(t, s, tc.body, tc.change))
		if res.refused.GetCode() != tc.code || res.refused.GetRetry() != tunnel.RetryElsewhere {
			t.Errorf("%s: %v, terminal %v", tc.name, res.refused, res.terminal)
		}
		if tc.code == "provider_answered" && edge.StatusCode(int(res.refused.GetAnswer().GetStatus())) != "no_such_model" {
			t.Errorf("%s: answer %v", tc.name, res.refused.GetAnswer())
		}
	}
	f.SetBusy(true)
	if res := collect(typedRun(t, s, good, nil)); res.refused.GetCode() != "provider_answered" || res.refused.Answer.Status != 503 {
		t.Errorf("busy: %v %v", res.refused, res.terminal)
	}
	f.SetBusy(false)
	f.Down()
	if res := collect(typedRun(t, s, good, nil)); res.refused.GetCode() != "provider_unreachable" || res.refused.Retry != tunnel.RetryElsewhere || res.accepted {
		t.Errorf("refused connect: %v %v", res.refused, res.terminal)
	}
	if n := f.Stats().Exec; n != 0 {
		t.Errorf("%d inferences ran", n)
	}
	whole(t, c)
}

// whole checks that all credits come back.
func whole(t *testing.T, c *Client) {
	t.Helper()
	eventually(t, 2*time.Second, "all credits free", func() bool {
		for _, g := range c.Status().Targets {
			if g.Credits.Free != g.Credits.Granted {
				return false
			}
		}
		return c.Status().Runs == 0
	})
}

// A shorter body than was announced is the gateway's failure, and nothing of it runs.
func TestTypedBodyCutShort(t *testing.T) {
	t.Parallel()
	f, _, s := edgeNode(t, fakeollama.Options{}, nil)
	res := collect(typedRun(t, s, request(schemaOperator, "x"), func(o *tunnel.RunOpen) { o.BodyLength++ }))
	if res.terminal.GetOutcome() != tunnel.Failed || res.terminal.Code != tunnel.CodeClientBody || f.Stats().Exec != 0 {
		t.Errorf("%v %v", res.refused, res.terminal)
	}
}

func TestTypedNoCredit(t *testing.T) {
	t.Parallel()
	f, _, s := edgeNode(t, fakeollama.Options{}, func(cfg *Config) { cfg.Targets[0].PerModel, cfg.Targets[0].PerTarget = 1, 1 })
	if err := f.SetFault(fakeollama.Fault{Kind: "hang", Path: "/api/chat", Times: 1}); err != nil {
		t.Fatal(err)
	}
	first := typedRun(t, s, request(schemaOperator, "x"), nil)
	if ev := first.Next(); ev.Kind != tunnel.EventAccepted {
		t.Fatalf("%+v", ev)
	}
	if res := collect(typedRun(t, s, request(schemaOperator, "x"), nil)); res.refused.GetCode() != "node_busy" || !res.refused.NoCredit {
		t.Errorf("%v %v", res.refused, res.terminal)
	}
	first.Cancel(tunnel.CodeCanceled)
	_ = collect(first)
}

// A03: the result is there at most 100 ms after the deadline, and the provider's connection is closed then.
func TestTypedDeadline(t *testing.T) {
	t.Parallel()
	const ms = 200
	for _, tc := range []struct {
		name   string
		more   string
		change func(*tunnel.RunOpen)
		detail string
	}{
		{"left of the run", `"stream":false`, func(o *tunnel.RunOpen) { o.DeadlineMs = ms }, "deadline_ms=120000 elapsed"},
		{"of the request", `"deadline_ms":200`, nil, "deadline_ms=200 elapsed"},
		{"of the request alone", `"deadline_ms":200`, func(o *tunnel.RunOpen) { o.DeadlineMs = 0 }, "deadline_ms=200 elapsed"},
		{"streamed", `"stream":true,"deadline_ms":200`, nil, "deadline_ms=200 elapsed"},
	} {
		for _, model := range []string{"t-slowload", "t-tick"} {
			t.Run(tc.name+" "+model, func(t *testing.T) {
				t.Parallel()
				f, c, s := edgeNode(t, fakeollama.Options{}, nil)
				start := time.Now()
				m, _ := typedAsk(t, s, request(schemaOperator, "x", tc.more), func(o *tunnel.RunOpen) {
					o.Model = model
					if tc.change != nil {
						tc.change(o)
					}
				})
				if d := time.Since(start); d < ms*time.Millisecond || d > late(ms*time.Millisecond) {
					t.Errorf("the result came after %s", d)
				}
				if m.Status != edge.Unavailable || m.DegradeReason != edge.DeadlineExceeded || m.DegradeDetail != tc.detail {
					t.Errorf("%+v", m)
				}
				hungUp(t, f)
				whole(t, c)
			})
		}
	}
}

// late is the latest that a deadline may end a run: 100 ms after it, and somewhat more where the race detector slows everything down.
func late(deadline time.Duration) time.Duration { return deadline + 100*time.Millisecond + slack }

// hungUp waits until the provider has seen its only inference's caller leave.
func hungUp(t *testing.T, f *fakeollama.Server) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if _, err := f.Wait(ctx, func(r fakeollama.Record) bool { return r.Executed && r.ClientGone > 0 }); err != nil {
		t.Errorf("the provider works on: %v", err)
	}
}

// The deadline holds also where nothing has been asked yet.
func TestTypedDeadlineBefore(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newPurse()
	p.dial = func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", adapter.ErrNotSent, context.Cause(ctx))
	}
	c, s, _ := g.node(Config{Identity: g.identity("n1"), Gateways: []string{g.addr}, Targets: []Target{{Adapter: p}}})
	short := func(o *tunnel.RunOpen) { o.Model, o.DeadlineMs = "tiny", 100 }
	start := time.Now()
	if m, _ := typedAsk(t, s, request(schemaOperator, "x"), short); m.DegradeReason != edge.DeadlineExceeded || time.Since(start) > late(100*time.Millisecond) {
		t.Errorf("while connecting: %+v after %s", m, time.Since(start))
	}
	r := open(t, s, func(o *tunnel.RunOpen) { o.Kind, o.Body = tunnel.KindEdge, tunnel.BodyStream; short(o) })
	start = time.Now()
	if m := resultOf(t, collect(r)); m.DegradeReason != edge.DeadlineExceeded || m.ModelID != "tiny" || m.DegradeDetail != "deadline_ms=100 elapsed" ||
		time.Since(start) > late(100*time.Millisecond) {
		t.Errorf("while the request is read: %+v", m)
	}
	whole(t, c)
}

func TestTypedCancel(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		for _, model := range []string{"t-slowload", "t-tick"} {
			t.Run(fmt.Sprint(model, stream), func(t *testing.T) {
				t.Parallel()
				f, c, s := edgeNode(t, fakeollama.Options{}, nil)
				r := typedRun(t, s, request(schemaOperator, "x", fmt.Sprintf(`"stream":%t`, stream)), func(o *tunnel.RunOpen) { o.Model = model })
				ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
				defer stop()
				if _, err := f.Wait(ctx, func(r fakeollama.Record) bool { return r.Executed }); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				r.Cancel(tunnel.CodeCanceled)
				eventually(t, 200*time.Millisecond+slack, "the credit is free", func() bool { c := c.Status().Targets[0].Credits; return c.Free == c.Granted })
				if res := collect(r); res.terminal.GetOutcome() != tunnel.Canceled {
					t.Errorf("%v after %s", res.terminal, time.Since(start))
				}
				hungUp(t, f)
			})
		}
	}
}

// A05: whatever the provider does, the run completes with a result that says unavailable.
func TestTypedTrouble(t *testing.T) {
	t.Parallel()
	for kind, detail := range map[string]string{
		"close": "unreachable: provider_unreachable", "reset": "unreachable: provider_unreachable", "rst": "unreachable: provider_unreachable",
		"truncate": "", "unfinished": "", "short": "unreachable: provider_unreachable",
		"bighead": "bad_response: bad_provider_response", "badstatus": "bad_response: bad_provider_response", "garbage": "bad_response: bad_provider_response",
		"twolengths": "bad_response: bad_provider_response", "badheader": "bad_response: bad_provider_response", "switch": "bad_response: bad_provider_response",
		"500": "bad_response: provider_error", "redirect": "bad_response: provider_error", "early": "bad_response: provider_refused",
		"extra": "bad_response: bad_provider_response", "trailer": "bad_response: bad_provider_response",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f, c, s := edgeNode(t, fakeollama.Options{}, nil)
			for _, stream := range []bool{false, true} {
				for path, change := range map[string]func(*tunnel.RunOpen){"/api/chat": nil, "/v1/chat/completions": atOpenAI} {
					if err := f.SetFault(fakeollama.Fault{Kind: kind, Path: path, Times: 1, To: "http://127.0.0.1:1"}); err != nil {
						t.Fatal(err)
					}
					m, res := typedAsk(t, s, request(schemaOperator, `⟦{"a":"b"}⟧`, fmt.Sprintf(`"stream":%t`, stream)), change)
					if m.Status != edge.Unavailable || m.DegradeReason == "" || m.DegradeDetail == "" || detail != "" && m.DegradeDetail != detail {
						t.Errorf("%s, stream %t: %+v (%s)", path, stream, m, res.terminal.Reason)
					}
				}
			}
			whole(t, c)
		})
	}
	t.Run("an error in the stream", func(t *testing.T) {
		t.Parallel()
		_, _, s := edgeNode(t, fakeollama.Options{}, nil)
		m, _ := typedAsk(t, s, request(schemaOperator, "x", `"stream":true`), func(o *tunnel.RunOpen) { o.Model = "t-errmid" })
		if m.DegradeDetail != "bad_response: provider_error" {
			t.Errorf("%+v", m)
		}
	})
}

// A server that speaks no TLS where TLS is due has been sent nothing of the run.
func TestTypedTLSGarbage(t *testing.T) {
	t.Parallel()
	var heard atomic.Int32 // bytes of greetings
	addr := listener(t, func(c net.Conn) {
		n, _ := c.Read(make([]byte, 4096))
		heard.Add(int32(n))
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		_ = c.Close()
	})
	g := newGateway(t)
	targets, err := Targets("https://"+addr, nil, nil, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	_, s, _ := g.node(Config{Identity: g.identity("n1"), Gateways: []string{g.addr}, Targets: targets})
	if res := collect(typedRun(t, s, request(schemaOperator, "x"), nil)); res.refused.GetCode() != "provider_unreachable" || heard.Load() == 0 {
		t.Errorf("%v %v", res.refused, res.terminal)
	}
}

// A fault of ours ends the run, and nothing else.
func TestTypedFault(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("tiny")
	p.do = func(context.Context, *adapter.Request) (*adapter.Response, error) { panic("sk-canary") }
	c, s, _ := g.node(g.config(p))
	res := collect(typedRun(t, s, request(schemaOperator, "x"), func(o *tunnel.RunOpen) { o.Model = "tiny" }))
	if res.terminal.GetOutcome() != tunnel.Failed || res.terminal.Code != tunnel.CodeInternal || strings.Contains(res.terminal.String(), "canary") {
		t.Errorf("%v", res.terminal)
	}
	whole(t, c)
}

// A result has a bound of its own, below that of an answer.
func TestTypedLongResult(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("tiny")
	_, s, _ := g.node(g.config(p))
	for n, status := range map[int]edge.Status{190 << 10: edge.Success, 200 << 10: edge.Unavailable} {
		for _, stream := range []string{"false", "true"} {
			line, _ := json.Marshal(map[string]any{"message": map[string]string{"content": `{"a":"` + strings.Repeat("y", n) + `"}`}, "done": true})
			p.set(func(p *provider) { p.do = answers(200, string(line)+"\n") })
			m, res := typedAsk(t, s, request(schemaOperator, "x", `"stream":`+stream), func(o *tunnel.RunOpen) { o.Model = "tiny" })
			if m.Status != status || len(res.terminal.Result) > edge.MaxNodeResult || status == edge.Unavailable && m.DegradeDetail != "bad_response: bad_provider_response" {
				t.Errorf("%d bytes: %s %s", n, m.Status, m.DegradeDetail)
			}
		}
	}
}

// Bounds of what a provider says: of a line, of all of it, and of the time that it takes.
func TestTypedOversized(t *testing.T) {
	t.Parallel()
	f, c, s := edgeNode(t, fakeollama.Options{}, nil)
	for _, model := range []string{"t-longline", "t-flood"} {
		m := ending(t, typedRun(t, s, request(schemaOperator, "x", `"stream":true`), func(o *tunnel.RunOpen) { o.Model = model }))
		if m.DegradeDetail != "bad_response: bad_provider_response" {
			t.Errorf("%s: %+v", model, m)
		}
	}
	if err := f.SetFault(fakeollama.Fault{Kind: "endless", Path: "/api/chat", Times: 1}); err != nil {
		t.Fatal(err)
	}
	if m, _ := typedAsk(t, s, request(schemaOperator, "x", `"stream":true,"deadline_ms":300`), nil); m.DegradeReason != edge.DeadlineExceeded {
		t.Errorf("endless: %+v", m)
	}
	whole(t, c)
}

// Text of one read is cut into events that fit a frame, between characters, also where it is escaped to six times its length.
func TestTypedLongDelta(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	p := newProvider("tiny")
	long := strings.Repeat("\x01", 30_000) + strings.Repeat("貓", 5_000)
	line, _ := json.Marshal(map[string]any{"message": map[string]string{"content": long}, "done": true})
	p.do = func(context.Context, *adapter.Request) (*adapter.Response, error) {
		return reply(200, string(line)+"\n"), nil
	}
	_, s, _ := g.node(g.config(p))
	_, res := typedAsk(t, s, request(schemaOperator, "x", `"stream":true`), func(o *tunnel.RunOpen) { o.Model = "tiny" })
	if len(res.frames) < 5 {
		t.Errorf("%d frames", len(res.frames))
	}
	checkEvents(t, res, long)
}

func TestTypedGates(t *testing.T) {
	t.Parallel()
	redaction, err := edge.NewRedaction([]string{`[0-9]{4}`})
	if err != nil {
		t.Fatal(err)
	}
	const act = `"action":{"tool":"mail","risk":"R1"}`
	for _, tc := range []struct {
		name, more string
		gates      edge.Gates
		text       string
		want       string // the detail; "" for a success
	}{
		{"none", act, edge.Gates{}, "", ""},
		{"approval", `"action":{"tool":"mail","risk":"R2"}`, edge.Gates{}, "", "gate: action: R2 needs an approval"},
		{"tool", act, edge.Gates{Tools: edge.Tools{"other"}}, "", "gate: tool: the tool is not on the list of permitted tools"},
		{"listed tool", act, edge.Gates{Tools: edge.Tools{"mail"}}, "", ""},
		{"budget", act, edge.Gates{Budget: edge.Budget{Tokens: 1100}}, strings.Repeat("x", 1000), "gate: budget: the run would take more tokens than it may"},
		{"default budget", act, edge.Gates{}, strings.Repeat("x", 300_000), "gate: budget: the run would take more tokens than it may"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f, c, s := edgeNode(t, fakeollama.Options{}, func(cfg *Config) { cfg.Gates = tc.gates })
			m, _ := typedAsk(t, s, request(schemaOperator, tc.text+`⟦{"a":"b"}⟧`, tc.more), nil)
			if m.DegradeDetail != tc.want || (m.Status == edge.Success) != (tc.want == "") || (f.Stats().Exec == 1) != (tc.want == "") {
				t.Errorf("%+v; %d inferences", m, f.Stats().Exec)
			}
			whole(t, c)
		})
	}
	t.Run("redaction", func(t *testing.T) {
		t.Parallel()
		_, _, s := edgeNode(t, fakeollama.Options{}, func(cfg *Config) { cfg.Gates.Redaction = redaction })
		m, _ := typedAsk(t, s, request(contractOperator, `No 4711 ⟦{"number":"4711","kind":"Offer"}⟧`), nil)
		if m.Status != edge.Success || strings.Contains(string(m.Output), "4711") { // the model has not seen it, and says what it saw
			t.Errorf("%+v %s", m, m.Output)
		}
	})
}

// R4: runs are independent, also with one correlation.
func TestTypedParallel(t *testing.T) {
	t.Parallel()
	const n = 200
	f, c, s := edgeNode(t, fakeollama.Options{}, nil)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			body := request(schemaOperator, fmt.Sprintf(`⟦{"a":"run %d"}⟧`, i), fmt.Sprintf(`"stream":%t,"session_id":"corr"`, i%2 == 0))
			res := collect(typedRun(t, s, body, nil))
			var m edge.ModelResult
			if err := m.UnmarshalJSON(res.terminal.GetResult()); err != nil || string(m.Output) != fmt.Sprintf(`{"a":"run %d"}`, i) {
				t.Errorf("run %d: %v %v %s", i, res.refused, res.terminal, m.Output)
			}
		})
	}
	wg.Wait()
	if got := f.Execs("t-say"); got != n {
		t.Errorf("%d inferences", got)
	}
	whole(t, c)
}

// A caller who listens hears that the model loads, unless it is loaded.
func TestTypedLoading(t *testing.T) {
	t.Parallel()
	f, c, s := edgeNode(t, fakeollama.Options{}, nil)
	listen := func() string {
		r := typedRun(t, s, request(schemaOperator, "x", `"stream":true,"deadline_ms":900`), func(o *tunnel.RunOpen) { o.Model = "t-slowload" })
		return collect(r).body
	}
	if body := listen(); !strings.Contains(body, `"state":"loading"`) || strings.Contains(body, "generating") {
		t.Errorf("cold: %q", body)
	}
	eventually(t, 5*time.Second, "the model is known to be loaded", func() bool { return len(c.targets[0].view().Loaded) > 0 })
	if body := listen(); body != "" {
		t.Errorf("loaded: %q", body)
	}
	// After that it is too late to go elsewhere: what the provider says then is the result.
	if err := f.SetFault(fakeollama.Fault{Kind: "hang", Path: "/api/chat", Times: 1}); err != nil {
		t.Fatal(err)
	}
	r := typedRun(t, s, request(schemaOperator, "x", `"stream":true`), nil)
	eventually(t, 5*time.Second, "it hangs", func() bool { return c.Status().Runs == 1 })
	for r.Next().Kind != tunnel.EventData {
	}
	f.Down()
	if m := ending(t, r); m.DegradeDetail != "unreachable: provider_unreachable" {
		t.Errorf("%+v", m)
	}
}

// ending is the result of a run whose events do not matter.
func ending(t *testing.T, r *tunnel.Run) (m edge.ModelResult) {
	t.Helper()
	defer r.Close()
	ev := r.Next()
	for ev.Kind != tunnel.EventTerminal && ev.Kind != tunnel.EventRefused {
		ev = r.Next()
	}
	if err := m.UnmarshalJSON(ev.Terminal.GetResult()); err != nil {
		t.Fatalf("%v: %v %v", err, ev.Terminal, ev.Refused)
	}
	return m
}

// A leased run opens its lease as a tunnel run does, and one sealed for another kind is refused.
func TestTypedLease(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	body := request(schemaOperator, "x")
	said := reply(200, `{"message":{"content":"{\"a\":\"b\"}"},"done":true}`)
	p.change(func(p *purse) {
		p.do = func(_ context.Context, r *adapter.Request, _ string) (*adapter.Response, error) {
			if asked, err := io.ReadAll(r.Body); err != nil || r.Path != "/api/chat" || !strings.Contains(string(asked), `"format":{"type":"object"`) {
				t.Errorf("%s %s %v", r.Path, asked, err)
			}
			if r.Credential != nil {
				r.Credential.Clear()
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			return said, nil
		}
	})
	typedOpen := func(o *tunnel.RunOpen) {
		o.Kind, o.Method, o.Path, o.SessionId, o.DeadlineMs = tunnel.KindEdge, "", nil, "corr", 10_000
	}
	res := collect(l.lend(b.s, lent{open: typedOpen, scope: func(s *lease.Scope) { s.Kind = "edge" }, body: body}))
	paid(t, "a typed run", p, res, 1)
	if m := resultOf(t, res); m.Status != edge.Success {
		t.Errorf("%+v", m)
	}
	// The head of the answer repeats the credential.
	p.change(func(*purse) {
		said = reply(200, `{"message":{"content":"{\"a\":\"b\"}"},"done":true}`)
		said.Headers = append(said.Headers, adapter.Header{Name: "X-Debug", Value: credential})
	})
	res = collect(l.lend(b.s, lent{open: typedOpen, scope: func(s *lease.Scope) { s.Kind = "edge" }, body: body}))
	if m := resultOf(t, res); m.DegradeDetail != "bad_response: bad_provider_response" || strings.Contains(res.terminal.String(), "canary") {
		t.Errorf("%+v %v", m, res.terminal)
	}
	p.asked.Store(0)
	refused(t, "a lease of a tunnel run", p, collect(l.lend(b.s, lent{open: typedOpen, body: body})), lease.CodeMismatch)
	// The request cannot be read: the lease stays closed.
	res = collect(l.lend(b.s, lent{open: typedOpen, scope: func(s *lease.Scope) { s.Kind = "edge" }, body: "{}"}))
	if res.refused.GetCode() != tunnel.CodeBadRun || p.asked.Load() != 0 {
		t.Errorf("%v %v", res.refused, res.terminal)
	}
}

// A provider that is not there leaves the lease closed and the run to others.
func TestTypedLeaseUnreachable(t *testing.T) {
	t.Parallel()
	l := newLender(t)
	p := newPurse()
	b := l.borrow(p, nil)
	p.set(func(p *provider) {
		p.connect = fmt.Errorf("%w: %w", adapter.ErrNotSent, &net.OpError{Op: "dial", Err: errors.New("refused")})
	})
	res := collect(l.lend(b.s, lent{
		open:  func(o *tunnel.RunOpen) { o.Kind = tunnel.KindEdge },
		scope: func(s *lease.Scope) { s.Kind = "edge" }, body: request(schemaOperator, "x"),
	}))
	if res.refused.GetCode() != tunnel.CodeProviderUnreached || res.refused.Retry != tunnel.RetryElsewhere || res.accepted {
		t.Errorf("%v %v", res.refused, res.terminal)
	}
}

// A run has one end, whatever comes at the same time: its answer, its deadline, its cancellation.
func TestTypedRaces(t *testing.T) {
	t.Parallel()
	const n = 300
	_, c, s := edgeNode(t, fakeollama.Options{}, nil)
	var wg sync.WaitGroup
	var ends [3]atomic.Int32
	for i := range n {
		wg.Go(func() {
			body := request(schemaOperator, `⟦{"a":"`+strings.Repeat("b", i)+`"}⟧`, fmt.Sprintf(`"stream":%t,"deadline_ms":%d`, i%2 == 0, 1+i%40))
			r := typedRun(t, s, body, nil)
			if i%3 == 0 {
				time.AfterFunc(time.Duration(i%20)*time.Millisecond, func() { r.Cancel(tunnel.CodeCanceled) })
			}
			res := collect(r)
			var m edge.ModelResult
			switch {
			case res.terminal.GetOutcome() == tunnel.Canceled && i%3 == 0:
				ends[0].Add(1)
			case res.terminal.GetOutcome() != tunnel.Completed || m.UnmarshalJSON(res.terminal.Result) != nil:
				t.Errorf("run %d: %v %v", i, res.refused, res.terminal)
			case m.Status == edge.Success:
				ends[1].Add(1)
			case m.DegradeReason == edge.DeadlineExceeded:
				ends[2].Add(1)
			default:
				t.Errorf("run %d: %+v", i, m)
			}
		})
		if i%16 == 15 {
			wg.Wait()
		}
	}
	wg.Wait()
	t.Logf("canceled %d, answered %d, timed out %d", ends[0].Load(), ends[1].Load(), ends[2].Load())
	whole(t, c)
}
