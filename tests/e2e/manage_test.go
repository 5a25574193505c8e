package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// manageable is a gateway that lets its caller manage nodes, with one node of two Ollamas.
func manageable(t *testing.T) (g *rig.Gateway, first, second *fakeollama.Server) {
	t.Helper()
	g = rig.NewGateway(t, rig.Options{Site: "\t\tmanage alice\n"})
	first = fakeollama.Start(t, fakeollama.Options{Models: []string{"t-echo", "both"}})
	second = fakeollama.Start(t, fakeollama.Options{Models: []string{"only2", "both"}})
	args := []string{"--target", "a-gpu=ollama:" + second.URL()}
	for _, e := range []string{"POST:/api/pull", "POST:/api/create", "POST:/api/copy", "DELETE:/api/delete", "HEAD:/api/blobs/*", "POST:/api/blobs/*"} {
		args = append(args, "--allow", e)
	}
	g.NodeOf("n1", first.URL(), args...)
	return g, first, second
}

// What a management call has made is there when the call ends, as it is at an Ollama: `ollama run` pulls and asks in one breath.
func TestNewModelsAreThereAtOnce(t *testing.T) {
	t.Parallel()
	g, _, _ := manageable(t)
	for i, c := range []struct{ path, body string }{
		{"/api/copy", `{"source":"t-echo","destination":"NAME"}`},
		{"/api/pull", `{"model":"NAME","stream":false}`},
		{"/api/pull", `{"model":"NAME"}`},
		{"/api/copy", `{"source":"t-echo","destination":"NAME"}`},
	} {
		name := fmt.Sprint("t-echo:new", i)
		if r, body := g.Do("POST", "/n/n1"+c.path, strings.ReplaceAll(c.body, "NAME", name)); r.StatusCode != 200 {
			t.Fatalf("%s: %d %s", c.path, r.StatusCode, body)
		}
		if r, body := g.Do("POST", "/api/chat", chat(name, "")); r.StatusCode != 200 {
			t.Errorf("after %s: %d %s", c.path, r.StatusCode, body)
		}
		if r, body := g.Do("DELETE", "/n/n1/api/delete", fmt.Sprintf(`{"model":%q}`, name)); r.StatusCode != 200 {
			t.Fatalf("%d %s", r.StatusCode, body)
		}
		if r, body := g.Do("POST", "/api/chat", chat(name, "")); r.StatusCode != 404 {
			t.Errorf("after delete: %d %s", r.StatusCode, body)
		}
	}
}

// Of a node's Ollamas one is managed: blobs, the create that uses them, and pulls go to the same store, and what is about a model goes to the one that has it.
func TestManagementOfTwoOllamas(t *testing.T) {
	t.Parallel()
	g, first, second := manageable(t)
	const blob = "a blob"
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(blob)))
	for i := range 4 {
		if r, body := g.Do("POST", "/n/n1/api/blobs/"+digest, blob); r.StatusCode != 201 && r.StatusCode != 200 {
			t.Fatalf("%d %s", r.StatusCode, body)
		}
		if r, _ := g.Do("HEAD", "/n/n1/api/blobs/"+digest, ""); r.StatusCode != 200 {
			t.Errorf("the blob is elsewhere: %d", r.StatusCode)
		}
		if r, body := g.Do("POST", "/n/n1/api/create", fmt.Sprintf(`{"model":"made%d","files":{"a":%q},"stream":false}`, i, digest)); r.StatusCode != 200 {
			t.Errorf("create: %d %s", r.StatusCode, body)
		}
		if r, body := g.Do("POST", "/n/n1/api/copy", fmt.Sprintf(`{"source":"only2","destination":"copy%d"}`, i)); r.StatusCode != 200 {
			t.Errorf("copy: %d %s", r.StatusCode, body)
		}
		if r, body := g.Do("DELETE", "/n/n1/api/delete", fmt.Sprintf(`{"model":"copy%d"}`, i)); r.StatusCode != 200 {
			t.Errorf("delete: %d %s", r.StatusCode, body)
		}
	}
	if r, body := g.Do("DELETE", "/n/n1/api/delete", `{"model":"both"}`); r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	asked := func(s *fakeollama.Server) (paths []string) {
		for _, rec := range s.Log() {
			if path := strings.TrimSuffix(rec.Path, digest); rec.Method != "GET" && !slices.Contains(paths, rec.Method+path) {
				paths = append(paths, rec.Method+path)
			}
		}
		slices.Sort(paths)
		return paths
	}
	if got := strings.Join(asked(first), " "); got != "DELETE/api/delete HEAD/api/blobs/ POST/api/blobs/ POST/api/create" {
		t.Errorf("the first was asked %s", got)
	}
	if got := strings.Join(asked(second), " "); got != "DELETE/api/delete POST/api/copy" {
		t.Errorf("the second was asked %s", got)
	}
	if r, body := g.Do("POST", "/n/n1/api/tags", "", "X-Fairway-Node", "n2"); r.StatusCode != 400 {
		t.Errorf("two nodes are named: %d %s", r.StatusCode, body)
	}
}

// GET /v1/models/NAME says what the lists say: of the node that is named, and 503 while only somebody who is away has the model.
func TestOneModel(t *testing.T) {
	t.Parallel()
	g := rig.NewGateway(t, rig.Options{Site: "\t\tmanage alice\n"})
	one := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-echo", "library/tiny"}})
	n1 := g.NodeOf("n1", one.URL())
	g.NodeOf("n2", fakeollama.Start(t, fakeollama.Options{Models: []string{"other"}}).URL())
	rig.Eventually(t, 5*time.Second, "both are listed", func() bool {
		_, list := g.Do("GET", "/v1/models", "")
		return strings.Contains(list, "t-echo") && strings.Contains(list, "other")
	})
	for path, want := range map[string]int{
		"/v1/models/t-echo": 200, "/n/n1/v1/models/t-echo": 200, "/n/n2/v1/models/t-echo": 404, "/n/n2/v1/models/other": 200, "/n/n3/v1/models/other": 503,
		"/v1/models/nope": 404, "/v1/models/qwen3:cloud": 403, "/v1/models/tiny": 200, "/v1/models/library%2Ftiny": 404, "/v1/models/library/tiny": 200,
	} {
		if r, body := g.Do("GET", path, ""); r.StatusCode != want {
			t.Errorf("%s: %d, want %d: %s", path, r.StatusCode, want, body)
		}
	}
	n1.Kill()
	g.Fairway("drain", "n1")
	rig.Eventually(t, 10*time.Second, "it is away", func() bool {
		r, _ := g.Do("GET", "/v1/models/t-echo", "")
		return r.StatusCode == 503
	})
}

// The key in a path is in no answer.
func TestKeyInAPathIsNotRepeated(t *testing.T) {
	t.Parallel()
	g := rig.NewGateway(t, rig.Options{})
	for _, path := range []string{"/api/nothing", "/v1/nothing", "/v1/files", "/v1/messages/nothing", "/api/v1/edge/nothing", "/v1/models/a%2525b", "/nothing", "/api/chat", "/n/x/api/nothing"} {
		for _, method := range []string{"GET", "POST", "PATCH"} {
			r, body := g.Do(method, "/k/"+rig.Key+path, "", "Authorization", "")
			if strings.Contains(body, rig.Key) || strings.Contains(fmt.Sprint(r.Header), rig.Key) {
				t.Errorf("%s %s: %d %v %s", method, path, r.StatusCode, r.Header, body)
			}
		}
	}
}

// A client whose upload stalls, and who is still there, is told so.
func TestStalledUpload(t *testing.T) {
	t.Parallel()
	g := rig.NewGateway(t, rig.Options{Globals: "\tservers {\n\t\ttimeouts {\n\t\t\tread_body 1s\n\t\t}\n\t}\n"})
	for name, framing := range map[string]string{"length": "Content-Length: 1000\r\n\r\n", "chunked": "Transfer-Encoding: chunked\r\n\r\n9\r\n"} {
		for _, path := range []string{"/api/chat", "/v1/chat/completions", "/api/v1/edge/runs"} {
			t.Run(name+path, func(t *testing.T) {
				t.Parallel()
				c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(15 * time.Second))
				_, _ = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+rig.Key+"\r\nContent-Type: application/json\r\n"+framing+`{"model":`)
				answer, _ := io.ReadAll(c)
				if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "X-Fairway-Error: client_body_error") || !strings.Contains(string(answer), "did not come in time") {
					t.Errorf("%s", answer)
				}
			})
		}
	}
}
