package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

const edgeRuns = "/api/v1/edge/runs"

// sayer is the fake model that says what its request has between ⟦ and ⟧.
const sayer = "t-say"

// edgeModels are those of the fakes here.
var edgeModels = []string{"t-say:latest", "t-tick:latest", "t-slowload:latest", "t-die:latest", "t-errmid:latest"}

// citySchema is what the schema operator of these tests asks for.
const citySchema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`

// ask is a typed run of a model with a schema, about one text; more are further members.
func ask(model, text, more string) string {
	return fmt.Sprintf(`{"operator":{"kind":"schema","model":%q,"prompt":"Which city?","schema":%s},"input":{"note":%s}%s}`, model, citySchema, quote(text), more)
}

// askFields is a typed run of a contract with two fields, of which one is a closed set; what the model says stands in the contract's prompt.
func askFields(says, text, more string) string {
	const fields = `[{"name":"total"},{"name":"currency","mode":"closed_set","allowed_values":["EUR","USD"]}]`
	return fmt.Sprintf(`{"operator":{"kind":"contract","model":%q,"contract":{"contract_id":"c1","version":"7","prompt_template":%s,"fields":%s}},"input":{"letter":%s}%s}`,
		sayer, quote("⟦"+says+"⟧"), fields, quote(text), more)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// edgeFleet is a gateway with one node on a fake Ollama of models for typed runs.
func edgeFleet(t *testing.T, o rig.Options, flags ...string) (*rig.Gateway, *rig.Node, *fakeollama.Server) {
	t.Helper()
	fake := fakeollama.Start(t, fakeollama.Options{Models: edgeModels})
	g := rig.NewGateway(t, o)
	n := g.NodeOf("n1", fake.URL(), append([]string{"--credits", credits}, flags...)...)
	waitModel(t, g, sayer)
	return g, n, fake
}

// typedRun asks for a run, which has to end in a 200 with one answer, and in nothing else.
func typedRun(t *testing.T, g *rig.Gateway, body string, header ...string) edge.Answer {
	t.Helper()
	r, text := g.Do("POST", edgeRuns, body, header...)
	if r.StatusCode != http.StatusOK {
		t.Errorf("%d %s", r.StatusCode, text)
		return edge.Answer{}
	}
	return readAnswer(t, text)
}

func readAnswer(t *testing.T, text string) (a edge.Answer) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Errorf("%v in %q", err, text)
	}
	return a
}

// edgeEvent is an event as a client reads it.
type edgeEvent struct {
	edge.Answer
	Event string
	Seq   int
	State string
	Text  string
	raw   []byte
}

// readEvents reads lines, or with sse server-sent events, to the end of the body, which may be a cut.
func readEvents(t *testing.T, body io.Reader, sse bool) (all []edgeEvent) {
	t.Helper()
	s := bufio.NewScanner(body)
	s.Buffer(nil, 4<<20)
	for s.Scan() {
		line := s.Bytes()
		if sse {
			data, ok := bytes.CutPrefix(line, []byte("data: "))
			if !ok {
				continue
			}
			line = data
		}
		e := edgeEvent{raw: bytes.Clone(line)}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Errorf("%v in %q", err, line)
		}
		if e.Seq != len(all) {
			t.Errorf("event %d has number %d", len(all), e.Seq)
		}
		all = append(all, e)
	}
	return all
}

// detail is a result in short.
func detail(a edge.Answer) string {
	r := a.Result
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Status, r.DegradeReason, r.DegradeDetail))
}

// edgeLate is how late a deadline may be: 100 ms, and more for programs under the race detector.
func edgeLate() time.Duration {
	if os.Getenv("FAIRWAY_RACE") != "" {
		return 500 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// startTyped asks without waiting for the answer. It returns the run's id once the run is under way, a way to go away, and what comes of it.
func startTyped(t *testing.T, g *rig.Gateway, body string) (run string, leave func(), answers <-chan edge.Answer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := plain(t, g)
	before := map[string]bool{}
	for _, r := range edgeRows(t, g) {
		before[r.Run] = true
	}
	out := make(chan edge.Answer, 1)
	go func() {
		defer close(out)
		r, err := c.post(ctx, edgeRuns, body)
		for range 3 {
			if err == nil || ctx.Err() != nil {
				break
			}
			r, err = c.post(ctx, edgeRuns, body) // a fresh connection may meet the listener that a reload closes: see TestReloadsUnderLoad
		}
		if err != nil {
			return
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body) // of events, all of them: who stops reading has gone away
		if err != nil {
			return
		}
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		var a edge.Answer
		if err := json.Unmarshal(lines[len(lines)-1], &a); err == nil {
			out <- a
		}
	}()
	rig.Eventually(t, 10*time.Second, "the run is under way", func() bool {
		for _, r := range edgeRows(t, g) {
			if !before[r.Run] && r.State == "running" {
				run = r.Run
			}
		}
		return run != ""
	})
	return run, cancel, out
}

// runRow is a row of /fairway/runs.
type runRow struct {
	Run     string `json:"run_id"`
	Session string `json:"session_id"`
	Kind    string
	Model   string
	Node    string
	State   string
	Outcome string
	Code    string
}

func edgeRows(t *testing.T, g *rig.Gateway) (rows []runRow) {
	t.Helper()
	if err := g.AdminGet("/fairway/runs", &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}
