package conformance

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// pair is one Ollama and a gateway in front of it.
type pair struct {
	ollama *rig.Ollama
	g      *rig.Gateway
	node   *rig.Node
}

// makePair starts both. Env is for Ollama, NAME=VALUE; what begins with -- is a flag of the node, its value after a space.
func makePair(t testing.TB, o rig.Options, env ...string) pair {
	t.Helper()
	var flags, vars []string
	for _, e := range env {
		if strings.HasPrefix(e, "--") {
			flags = append(flags, strings.Fields(e)...)
		} else {
			vars = append(vars, e)
		}
	}
	p := pair{ollama: startOllama(t, vars...), g: rig.NewGateway(t, o)}
	waitAdmin(t, p.g)
	p.node = p.g.NodeOf("n1", p.ollama.URL, flags...)
	waitListed(t, p.g, "tiny:latest")
	return p
}

// startOllama starts one with a store of its own, whose runners end with it: they outlive an Ollama that is killed.
func startOllama(t testing.TB, env ...string) *rig.Ollama {
	t.Helper()
	o := rig.NewOllama(t, append([]string{"OLLAMA_MODELS=" + copyStore(t)}, env...)...)
	t.Cleanup(func() { _ = syscall.Kill(-o.Pid(), syscall.SIGKILL) })
	return o
}

// copyStore is rig.CopyModels with the files' times: /api/tags lists by them, and by chance where they are equal.
func copyStore(t testing.TB) string {
	t.Helper()
	to, from := rig.CopyModels(t), filepath.Join(os.Getenv(rig.OllamaDirEnv), "models")
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return os.Chtimes(filepath.Join(to, rel), info.ModTime(), info.ModTime())
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// waitNodeHas waits until a node offers all of these models.
func waitNodeHas(t testing.TB, g *rig.Gateway, node string, models ...string) {
	t.Helper()
	rig.Eventually(t, time.Minute, fmt.Sprintf("%s offers %v", node, models), func() bool {
		n := g.Node(node)
		if n == nil || len(n.Targets) == 0 {
			return false
		}
		for _, m := range models {
			if !slices.Contains(n.Targets[0].Models, m) {
				return false
			}
		}
		return true
	})
}

// newPair is a pair of the test's own.
func newPair(t *testing.T, env ...string) pair {
	t.Helper()
	needOllama(t)
	return makePair(t, rig.Options{NoKey: true}, env...)
}

// waitAdmin waits until the gateway takes nodes: its sites may answer before that.
func waitAdmin(t testing.TB, g *rig.Gateway) {
	t.Helper()
	rig.Eventually(t, 10*time.Second, "the gateway takes nodes", func() bool {
		var v any
		return g.AdminGet("/fairway/nodes", &v) == nil
	})
}

func waitListed(t testing.TB, g *rig.Gateway, model string) {
	t.Helper()
	rig.Eventually(t, time.Minute, model+" is listed", func() bool {
		_, body := g.Do("GET", "/api/tags", "")
		return strings.Contains(body, `"`+model+`"`)
	})
}

// both asks direct and gateway the same and returns what each said.
func (p pair) both(t *testing.T, r request) (direct, gateway answer) {
	t.Helper()
	return ask(t, http.DefaultTransport, p.ollama.URL, r), ask(t, http.DefaultTransport, p.g.URL(), r)
}

// same holds that direct and gateway answer r alike.
func (p pair) same(t *testing.T, r request) answer {
	t.Helper()
	d, g := p.both(t, r)
	if diff := d.diff(g); diff != "" {
		t.Errorf("%s %s %s\n%s", r.method, r.path, clip(r.body), diff)
	}
	return g
}

type request struct {
	name, method, path, body string
	header                   []string
	tests                    string // numbers of the checks that it covers
}

// answer is what a client can tell about one.
type answer struct {
	status  int
	head    string // headers and framing, without what the gateway changes on purpose
	body    string
	cut     error // how the body ended, if not well
	trailer http.Header
	raw     http.Header
}

// diff says how two answers differ; empty when a client cannot tell them apart.
func (a answer) diff(b answer) string {
	if a.status == b.status && a.head == b.head && normal(a.body) == normal(b.body) && (a.cut == nil) == (b.cut == nil) {
		return ""
	}
	show := func(x answer) string {
		return fmt.Sprintf("%d %s\n%s\n(ended: %v)", x.status, x.head, clip(normal(x.body)), x.cut)
	}
	return "direct  " + show(a) + "\ngateway " + show(b)
}

// ask sends r to base.
func ask(t *testing.T, c http.RoundTripper, base string, r request) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	a, err := try(ctx, c, base, r)
	if err != nil {
		t.Fatalf("%s %s%s: %v", r.method, base, r.path, err)
	}
	return a
}

// try is ask for a request that may get no answer.
func try(ctx context.Context, c http.RoundTripper, base string, r request) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, base+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	if r.method == http.MethodGet || r.method == http.MethodHead {
		req.Body, req.ContentLength = nil, 0
	}
	for i := 0; i+1 < len(r.header); i += 2 {
		req.Header.Set(r.header[i], r.header[i+1])
	}
	resp, err := c.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, head(resp), string(b), err, resp.Trailer, resp.Header}, nil
}

// ours are the headers that docs/conformance.md lists as differences, and those that belong to one connection.
var ours = []string{"X-Fairway-Run", "X-Fairway-Error", "X-Fairway-Node", "Date", "Server", "Alt-Svc", "Via", "Incremental", "Retry-After", "Connection", "Keep-Alive"}

// head is the answer's head as a client sees it. What both sides may differ in is left out, nothing else.
func head(r *http.Response) string {
	var out []string
	for name, values := range r.Header {
		v := strings.Join(values, "|")
		switch {
		case slices.Contains(ours, textproto.CanonicalMIMEHeaderKey(name)):
			continue
		case name == "Cache-Control":
			if v = strings.TrimSuffix(strings.TrimSuffix(v, "no-transform"), ", "); v == "" {
				continue
			}
		case name == "Content-Length":
			v = "known" // times and counters have no fixed width
		}
		out = append(out, name+": "+v)
	}
	slices.Sort(out)
	// HTTP/2 and HTTP/3 have no chunks: a length of its own is what counts.
	if r.ContentLength < 0 {
		out = append(out, "of no stated length")
	}
	return strings.Join(out, "; ")
}

// volatile members differ between any two answers of one server.
var volatile = regexp.MustCompile(`"(created_at|total_duration|load_duration|prompt_eval_duration|eval_duration|created|completed_at|expires_at|id|item_id|call_id|modified_at|request_id)":\s*("[^"]*"|[0-9.]+)`)

// normal makes two answers to one request comparable: what a server counts or invents anew is blanked, the rest stays byte for byte.
func normal(body string) string {
	return volatile.ReplaceAllString(body, `"$1":"*"`)
}

func clip(s string) string {
	if len(s) > 900 {
		return s[:900] + "…"
	}
	return s
}

func chat(model, prompt, more string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]%s}`, model, prompt, more)
}

func post(path, body string) request { return request{method: "POST", path: path, body: body} }
func get(path string) request        { return request{method: "GET", path: path} }
