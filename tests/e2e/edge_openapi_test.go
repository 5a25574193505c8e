package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// openAPI is docs/openapi.yaml, and what has been held to it.
type openAPI struct {
	doc      map[string]any
	compiler *jsonschema.Compiler

	mu    sync.Mutex
	seen  map[string]bool // "METHOD path status media"; guarded by mu
	kinds map[string]bool // statuses of results, kinds of events, states of views; guarded by mu
}

const openAPIName = "urn:fairway:openapi"

func loadOpenAPI(t *testing.T) *openAPI {
	t.Helper()
	text, err := os.ReadFile("../../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(openAPIName, doc); err != nil {
		t.Fatal(err)
	}
	return &openAPI{doc: doc.(map[string]any), compiler: c, seen: map[string]bool{}, kinds: map[string]bool{}}
}

// at finds a place in the document, and follows references on the way.
func (o *openAPI) at(t *testing.T, path ...string) (v map[string]any, pointer string) {
	t.Helper()
	v = o.doc
	for _, p := range path {
		next, ok := v[p].(map[string]any)
		if !ok {
			t.Fatalf("docs/openapi.yaml has nothing at %v (%s)", path, p)
		}
		v, pointer = next, pointer+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(p)
		for v["$ref"] != nil {
			ref := strings.TrimPrefix(v["$ref"].(string), "#/")
			v, pointer = o.at(t, strings.Split(ref, "/")...)
		}
	}
	return v, pointer
}

func (o *openAPI) schema(t *testing.T, pointer string) *jsonschema.Schema {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	s, err := o.compiler.Compile(openAPIName + "#" + pointer)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// holds validates a JSON text.
func (o *openAPI) holds(t *testing.T, pointer string, text []byte) {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Errorf("%v in %q", err, text)
		return
	}
	if err := o.schema(t, pointer).Validate(v); err != nil {
		t.Errorf("%s\n%v", text, err)
	}
	o.note(v)
}

func (o *openAPI) note(v any) {
	m, _ := v.(map[string]any)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range []string{"event", "state"} {
		if s, ok := m[name].(string); ok {
			o.kinds[name+" "+s] = true
		}
	}
	if r, ok := m["result"].(map[string]any); ok {
		o.kinds[fmt.Sprint("status ", r["status"])] = true
		o.kinds[fmt.Sprint("reason ", r["degrade_reason"])] = true
		o.kinds[fmt.Sprint("disposition ", m["disposition"])] = true
	}
}

// check holds one answer to what the file says of its operation and status: headers, media type, body, or the events in it.
func (o *openAPI) check(t *testing.T, method, path string, r *http.Response, body string) {
	t.Helper()
	status, media := fmt.Sprint(r.StatusCode), r.Header.Get("Content-Type")
	documented, _ := o.at(t, "paths", path, strings.ToLower(method), "responses", status)
	headers, _ := documented["headers"].(map[string]any)
	for name := range headers {
		h, pointer := o.at(t, "paths", path, strings.ToLower(method), "responses", status, "headers", name)
		value := r.Header.Get(name)
		if value == "" {
			if h["required"] == true {
				t.Errorf("%s %s %s: no %s", method, path, status, name)
			}
			continue
		}
		o.holds(t, pointer+"/schema", []byte(quote(value)))
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Fairway-") && headers[name] == nil {
			t.Errorf("%s %s %s: %s is not documented", method, path, status, name)
		}
	}
	content, pointer := o.at(t, "paths", path, strings.ToLower(method), "responses", status, "content", media)
	pointer = strings.TrimSuffix(pointer, "/schema")
	switch {
	case content["x-item-schema"] == nil:
		o.holds(t, pointer+"/schema", []byte(body))
	default:
		events := readEvents(t, strings.NewReader(body), media == "text/event-stream")
		for i, e := range events {
			o.holds(t, pointer+"/x-item-schema", e.raw)
			if (e.Event == "result") != (i == len(events)-1) {
				t.Errorf("event %d of %d is %s", i, len(events), e.Event)
			}
		}
		if media == "text/event-stream" && strings.Count(body, "event: ") != len(events) {
			t.Errorf("%q", body)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen[method+" "+path+" "+status+" "+media] = true
}

// documented lists every answer that the file speaks of, but for those that no test can bring about at will.
func (o *openAPI) documented(t *testing.T) (all []string) {
	t.Helper()
	paths, _ := o.at(t, "paths")
	for path := range paths {
		item, _ := o.at(t, "paths", path)
		for method, op := range item {
			m, ok := op.(map[string]any)
			if !ok || m["responses"] == nil {
				continue
			}
			for status := range m["responses"].(map[string]any) {
				r, _ := o.at(t, "paths", path, method, "responses", status)
				for media := range r["content"].(map[string]any) {
					all = append(all, strings.ToUpper(method)+" "+path+" "+status+" "+media)
				}
			}
		}
	}
	return all
}

// The file describes the endpoints of typed runs, and no others.
func TestOpenAPIPathsAreTheCatalogues(t *testing.T) {
	t.Parallel()
	o := loadOpenAPI(t)
	var served, described []string
	for _, e := range ollama.Endpoints() {
		if e.Family == ollama.Edge && e.Action == ollama.Typed {
			served = append(served, e.Method+" "+e.Path)
		}
	}
	paths, _ := o.at(t, "paths")
	for path := range paths {
		item, _ := o.at(t, "paths", path)
		for method := range item {
			if method != "parameters" {
				described = append(described, strings.ToUpper(method)+" "+path)
			}
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if !slices.Equal(served, described) {
		t.Errorf("served    %v\ndescribed %v", served, described)
	}
	schemas, _ := o.at(t, "components", "schemas")
	for name := range schemas {
		o.schema(t, "/components/schemas/"+name)
	}
	if codes := schemas["Error"]; codes == nil {
		t.Error("no schema for errors")
	}
}

// Every answer that the file documents is given by a gateway and a node, and fits; so does every status, reason, event and state.
func TestOpenAPIHoldsTheServer(t *testing.T) {
	t.Parallel()
	o := loadOpenAPI(t)
	open := freeport.Get(t)
	g, _, _ := edgeFleet(t, rig.Options{Grace: "2s", Sites: fmt.Sprintf("http://127.0.0.1:%d {\n\tfairway {\n\t\tauth none\n\t}\n}\n", open)})
	const one, cancel = edgeRuns + "/{run_id}", edgeRuns + "/{run_id}/cancel"
	do := func(method, path, run, body string, header ...string) string {
		t.Helper()
		r, text := g.Do(method, strings.Replace(path, "{run_id}", run, 1), body, header...)
		o.check(t, method, path, r, text)
		return text
	}
	post := func(body string, header ...string) edge.Answer {
		t.Helper()
		return readAnswer(t, do("POST", edgeRuns, "", body, header...))
	}
	do("POST", edgeRuns, "", ask("t-slowload", "", `,"stream":true,"deadline_ms":600`)) // at first: long enough to be told that the model loads
	for _, tc := range []struct{ body, want string }{
		{ask(sayer, `⟦{"city":"Oslo"}⟧`, `,"session_id":"s"`), "success"},
		{askFields(`{"total":"120.00","currency":"eur"}`, "It is 120.00 altogether.", ""), "success"},
		{askFields(`{"total":"7","currency":"x"}`, "Nothing here.", `,"accept_uncertain":true`), "uncertain"},
		{ask(sayer, `⟦{"town":"Oslo"}⟧`, ""), "invalid"},
		{ask(sayer, `⟦Oslo, I think⟧`, ""), "unavailable output_unparseable"},
		{ask("t-slowload", "", `,"deadline_ms":100`), "unavailable deadline_exceeded"},
		{ask("nobody", "", ""), "unavailable error model_missing"},
		{`{"operator":{"kind":"goal","workflow_id":"uw_1"}}`, "unavailable server_unreachable unreachable: no_node"},
		{ask(sayer, "", `,"action":{"tool":"x","risk":"R0"}`), "unavailable error gate: tool"},
	} {
		a := post(tc.body)
		if !strings.HasPrefix(detail(a), tc.want) {
			t.Errorf("%s, not %s", detail(a), tc.want)
		}
		for _, accept := range []string{"", "text/event-stream"} {
			do("POST", edgeRuns, "", strings.TrimSuffix(tc.body, "}")+`,"stream":true}`, "Accept", accept)
		}
	}
	do("POST", edgeRuns, "", `{"operator":{}}`)
	do("POST", edgeRuns, "", strings.Repeat(" ", edge.MaxRequest+1))
	do("POST", edgeRuns, "", "{}", "Early-Data", "1")

	// A run that goes on without its caller, as GET and cancel see it: while it waits, while it runs, and once it has ended.
	run, leave, _ := startTyped(t, g, ask("t-slowload", "", `,"on_disconnect":"detach"`))
	leave()
	do("GET", one, run, "")
	do("POST", cancel, run, "")
	do("GET", one, run, "")
	do("POST", cancel, run, "")
	waiting := waitingRun(t, g)
	do("GET", one, waiting, "")
	do("POST", cancel, waiting, "")

	// The refusals that the three share.
	for _, op := range []struct{ method, path, wrong string }{{"POST", edgeRuns, "GET"}, {"GET", one, "POST"}, {"POST", cancel, "GET"}} {
		do(op.method, op.path, "x", "", "Authorization", "Bearer nobody")
		r, text := g.Do(op.wrong, strings.Replace(op.path, "{run_id}", "x", 1), "")
		o.check(t, op.method, op.path, r, text) // what another method gets is documented with the path's one operation
		if r.StatusCode != 405 || r.Header.Get("Allow") != op.method {
			t.Errorf("%s %s: %d, %q", op.wrong, op.path, r.StatusCode, r.Header.Get("Allow"))
		}
		req, err := http.NewRequestWithContext(t.Context(), op.method, fmt.Sprintf("http://127.0.0.1:%d%s", open, strings.Replace(op.path, "{run_id}", "x", 1)), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", "https://elsewhere.example")
		if r, err = http.DefaultTransport.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		o.check(t, op.method, op.path, r, readAll(t, r))
		if op.path != edgeRuns {
			do(op.method, op.path, "nothing", "")
		}
	}
	do("POST", cancel, "x", "", "Early-Data", "1")

	// The two other ways to show a key.
	do("POST", edgeRuns, "", ask(sayer, `⟦{"city":"Oslo"}⟧`, ""), "Authorization", "", "X-Api-Key", rig.Key)
	r, text := g.Do("POST", "/k/"+rig.Key+edgeRuns, ask(sayer, `⟦{"city":"Oslo"}⟧`, ""), "Authorization", "")
	o.check(t, "POST", edgeRuns, r, text)

	// At last, a gateway that is shutting down, on a connection that stands.
	r, text = lateRequest(t, g, ask(sayer, "", ""), func() { g.Signal(syscall.SIGTERM) })
	o.check(t, "POST", edgeRuns, r, text)
	if !strings.Contains(text, "draining") {
		t.Errorf("%d %s", r.StatusCode, text)
	}

	var unseen []string
	for _, d := range o.documented(t) {
		if !o.seen[d] {
			unseen = append(unseen, d)
		}
	}
	for _, k := range []string{
		"status success", "status uncertain", "status unavailable", "status invalid", "reason server_unreachable", "reason deadline_exceeded",
		"reason output_unparseable", "reason error", "disposition accept", "disposition fallback", "event accepted", "event progress", "event delta",
		"event result", "state queued", "state running", "state ended", "state loading", "state generating",
	} {
		if !o.kinds[k] {
			unseen = append(unseen, k)
		}
	}
	if len(unseen) > 0 {
		t.Errorf("documented, and not seen: %v", unseen)
	}
}

// lateRequest sends the head of a request and, once the gateway reads the body, stops it; the body comes when it takes no more connections.
func lateRequest(t *testing.T, g *rig.Gateway, body string, stop func()) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(c, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", edgeRuns, rig.Key, len(body)))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	br := bufio.NewReader(c)
	if r, err := http.ReadResponse(br, nil); err != nil || r.StatusCode != http.StatusContinue {
		t.Fatalf("%v %v", r, err)
	}
	stop()
	rig.Eventually(t, 5*time.Second, "the gateway takes no more connections", func() bool {
		d, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
		if err == nil {
			d.Close()
		}
		return err != nil
	})
	write(c, body)
	r, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r, readAll(t, r)
}

// waitingRun starts runs that nobody waits for until one has no credit left, and returns that one.
func waitingRun(t *testing.T, g *rig.Gateway) (run string) {
	t.Helper()
	ctx := t.Context()
	c := plain(t, g)
	for range 65 { // one more than the node takes
		go func() { finish(c.post(ctx, edgeRuns, ask("t-slowload", "", ""))) }()
	}
	rig.Eventually(t, 10*time.Second, "a run waits", func() bool {
		running := 0
		run = ""
		for _, r := range edgeRows(t, g) {
			switch {
			case r.State == "queued":
				run = r.Run
			case r.State == "running":
				running++
			}
		}
		return running == 64 && run != ""
	})
	return run
}

// What the file's schemas refuse is a 400; its examples are not, and nothing is worse than either.
func TestOpenAPIRequests(t *testing.T) {
	t.Parallel()
	o := loadOpenAPI(t)
	g := rig.NewGateway(t, rig.Options{}) // without a node each run ends at once
	const at = "/paths/~1api~1v1~1edge~1runs/post/requestBody/content/application~1json/"
	examples, _ := o.at(t, "paths", edgeRuns, "post", "requestBody", "content", "application/json", "examples")
	schema := o.schema(t, at+"schema")
	send := func(t *testing.T, doc any) (status int, text string) {
		t.Helper()
		body, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		r, text := g.Do("POST", edgeRuns, string(body))
		o.check(t, "POST", edgeRuns, r, text)
		return r.StatusCode, text
	}
	refused, accepted := 0, 0
	for _, name := range slices.Sorted(maps.Keys(examples)) {
		example := examples[name].(map[string]any)["value"]
		if err := schema.Validate(example); err != nil {
			t.Errorf("example %s: %v", name, err)
		}
		if status, text := send(t, example); status != 200 {
			t.Errorf("example %s: %d %s", name, status, text)
		}
		for what, doc := range mutations(example) {
			err := schema.Validate(doc)
			status, text := send(t, doc)
			switch {
			case err != nil && status != 400:
				body, _ := json.Marshal(doc)
				t.Errorf("example %s, %s: %d %s for\n%s, which the schema refuses: %v", name, what, status, text, body, err)
			case status == 400:
				refused++
			case status == 200:
				accepted++
			default:
				t.Errorf("example %s, %s: %d %s", name, what, status, text)
			}
		}
	}
	t.Logf("%d altered requests were refused, %d were not", refused, accepted)
	if refused < 100 || accepted < 20 {
		t.Error("the examples were hardly altered")
	}
	// By its field, each bound that the file gives.
	long := strings.Repeat("x", 70_000)
	for field, body := range map[string]string{
		"deadline_ms":          ask("m", "x", `,"deadline_ms":600001`),
		"placement":            ask("m", "x", `,"placement":"cloud"`),
		"session_id":           ask("m", "x", `,"session_id":"`+long[:257]+`"`),
		"on_disconnect":        ask("m", "x", `,"on_disconnect":"stay"`),
		"stream":               ask("m", "x", `,"stream":1`),
		"action.risk":          ask("m", "x", `,"action":{"tool":"t","risk":"R4"}`),
		"action.authorization": ask("m", "x", `,"action":{"tool":"t","risk":"R1","authorization":{"operator":"a"}}`),
		"operator.model":       ask(long[:513], "x", ""),
		"operator.prompt":      strings.Replace(ask("m", "x", ""), "Which city?", long, 1),
		"operator.kind":        `{"operator":{"kind":"chat"}}`,
		"operator.workflow_id": `{"operator":{"kind":"goal","workflow_id":"w1"}}`,
		"input":                `{"operator":{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"a"}]}}}`,
		"operator.contract.fields[0].allowed_values": `{"operator":{"kind":"contract","model":"m","contract":{"contract_id":"c","prompt_template":"p","fields":[{"name":"a","mode":"closed_set"}]}},"input":{"a":"b"}}`,
		"nonsense": ask("m", "x", `,"nonsense":1`),
	} {
		var doc any
		if err := json.Unmarshal([]byte(body), &doc); err != nil {
			t.Fatal(err)
		}
		if schema.Validate(doc) == nil {
			t.Errorf("%s: the schema takes it", field)
		}
		if status, text := send(t, doc); status != 400 || !strings.HasPrefix(text, `{"error":"`+field) {
			t.Errorf("%s: %d %s", field, status, text)
		}
	}
}

// mutations are copies of a document in each of which one place is another value, is missing, or has a member that nobody knows.
func mutations(doc any) map[string]any {
	out := map[string]any{}
	var visit func(v any, path string, rebuild func(any) any)
	visit = func(v any, path string, rebuild func(any) any) {
		for i, other := range []any{nil, true, json.Number("1.5"), json.Number("-1"), "x", "", []any{}, map[string]any{}} {
			out[fmt.Sprintf("%s as %d", path, i)] = rebuild(other)
		}
		switch v := v.(type) {
		case map[string]any:
			with := maps.Clone(v)
			with["zz"] = "x"
			out[path+" with zz"] = rebuild(with)
			for k, member := range v {
				less := maps.Clone(v)
				delete(less, k)
				out[path+" without "+k] = rebuild(less)
				visit(member, path+"."+k, func(other any) any {
					c := maps.Clone(v)
					c[k] = other
					return rebuild(c)
				})
			}
		case []any:
			for i, item := range v {
				visit(item, fmt.Sprintf("%s[%d]", path, i), func(other any) any {
					c := slices.Clone(v)
					c[i] = other
					return rebuild(c)
				})
			}
		}
	}
	visit(doc, "$", func(v any) any { return v })
	return out
}
