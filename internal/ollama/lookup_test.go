package ollama

import (
	"net/http"
	"strings"
	"testing"
)

// concrete fills the parameter of a catalogue path.
func concrete(path string) (filled, param string) {
	brace := strings.IndexByte(path, '{')
	if brace < 0 {
		return path, ""
	}
	name, suffix, _ := strings.Cut(path[brace:], "}")
	param = map[string]string{"{model": "tiny:latest", "{digest": "sha256:" + strings.Repeat("0a", 32), "{key": "c3NoLWVk", "{run_id": "gs65n_fKKqJSSM-6VI5mWg"}[name]
	return path[:brace] + param + suffix, param
}

func TestEveryCatalogueRowIsReachable(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, row := range Endpoints() {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			path, param := concrete(row.Path)
			if path != row.Path && param == "" {
				t.Fatalf("no value for the parameter of %s", row.Path)
			}
			check := func(method, asked string) {
				m := Lookup(method, asked)
				if m.Status != http.StatusOK || m.Endpoint == nil {
					t.Fatalf("%s %s: status %d", method, asked, m.Status)
				}
				if m.Endpoint.Name != row.Name || m.Path != path || m.Param != param || m.Family != row.Family {
					t.Errorf("%s %s = %s %s %q %s, want %s %s %q %s", method, asked,
						m.Endpoint.Name, m.Path, m.Param, m.Family, row.Name, path, param, row.Family)
				}
			}
			check(row.Method, path)
			check(row.Method, "/"+path)
			check(row.Method, "///"+path)
			check(row.Method, path+"/")
			if row.Head {
				check(http.MethodHead, path)
			}
			for _, method := range []string{"PUT", "PATCH", "OPTIONS", "CONNECT", "TRACE", "get", ""} {
				m := Lookup(method, path)
				if row.Foreign {
					if m.Status != http.StatusNotFound || m != Lookup(row.Method, path).Unknown() {
						t.Errorf("%s %s: %+v", method, path, m)
					}
				} else if m.Status != http.StatusMethodNotAllowed || !strings.Contains(m.Allow, row.Method) {
					t.Errorf("%s %s: status %d, Allow %q", method, path, m.Status, m.Allow)
				}
			}
		})
		if names[row.Name] {
			t.Errorf("two rows are called %s", row.Name)
		}
		names[row.Name] = true
	}
}

func TestCatalogueIsConsistent(t *testing.T) {
	t.Parallel()
	for _, e := range Endpoints() {
		decodes := e.ModelIn != ModelNone && e.ModelIn != ModelPath && e.ModelIn != ModelMultipart
		switch {
		case e.Class == Management && e.Action != Pin && e.Action != Deny:
			t.Errorf("%s: management goes to a named node or nowhere", e.Name)
		case e.Foreign && (e.Class != Inference || e.Method != http.MethodPost || e.Since != "" || !strings.HasPrefix(e.Path, "/v1/")):
			t.Errorf("%s: other providers serve inference under /v1 alone, and know no version of Ollama", e.Name)
		case e.ServedBy("ollama") == e.Foreign || e.ServedBy("openai") != (e.Class == Inference && strings.HasPrefix(e.Path, "/v1/")) || e.ServedBy("goals"):
			t.Errorf("%s: served by the wrong adapters", e.Name)
		case e.Class == Inference && e.Action != Route:
			t.Errorf("%s: inference needs a node", e.Name)
		case e.StreamByDefault && (!e.Streams || e.Family != Native):
			t.Errorf("%s: only native endpoints stream by default", e.Name)
		case decodes && !strings.Contains(e.request, "."):
			t.Errorf("%s: no Go type for its errors", e.Name)
		case familyOf(e.Path) != e.Family:
			t.Errorf("%s: the path's family is %s", e.Name, familyOf(e.Path))
		case e.Since != "" && ParseVersion("0.0.1").AtLeast(ParseVersion(e.Since)):
			t.Errorf("%s: since %q is no version", e.Name, e.Since)
		}
	}
}

func TestTrickPathsAreUnknown(t *testing.T) {
	t.Parallel()
	tricks := []string{
		"/api/chat/../pull", "/api/./chat", "/./api/chat", "/../api/chat", "/api/%2e%2e/api/pull", "/api/%2E/chat",
		"/api%2fpull", "/api%2Fpull", "/%2fapi/pull", "/api/pull%2f", "/API/PULL", "/Api/chat", "/api/chat;x", "/api;x/chat",
		"/api//chat", "/api/chat//", "/api/%63hat", "/api/chat%20", "/api/chat%00", "/api/chat%", "/api/chat\\", "\\api\\chat",
		"/api/chat?x", "/api/chat#x", "api/chat", "*", ".", "..", "/.", "/..", "http://169.254.169.254/latest", "/latest",
		"/v1/api/tags", "/v1", "/v1/", "/api", "/api/", "/v1/messages/batches", "/v1/images/edits", "/v1/tokenize",
		"/v1/models//", "/v1/models//tiny", "/v1/models/tiny//", "/v1/models/.", "/v1/models/..", "/v1/models/../chat/completions",
		"/v1/models/a/../b", "/v1/models/a/./b", "/v1/models/a//b", "/v1/models/hf.co%2FFoo%2FBar", "/v1/models/hf.co%2fFoo",
		"/v1/models/%2e%2e", "/v1/models/a%2Eb", "/v1/models/a%252fb", "/v1/models/a%5Cb", "/v1/models/a\\b", "/v1/models/a;b",
		"/v1/models/a%3Bb", "/v1/models/a%00", "/v1/models/t%C3%AFny", "/v1/models/a%zz", "/v1/models/a%2", "/v1/models/a%20b",
		"/V1/models/tiny", "/api/blobs/", "/api/blobs", "/api/blobs/a/b", "/api/blobs/..", "/api/blobs/a%2fb", "/api/blobs/sha256%3A..%2f",
		"/api/user/keys", "/api/user/keys/a/b", "/api/v1/edge", "/api/v1/edge/runs/1/2", "/api/v1/edge/runs//cancel", "/api/v1/edge/runs/../cancel", "/api/v1/edge/runs/1/2/cancel", "/api/v1/edge/runs/1/cancel/cancel", "/api/v1/edge/runs/1%2fcancel", "/ollama/api/tags", "/k/TOKEN/api/tags",
	}
	for _, path := range tricks {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead, http.MethodDelete} {
			if m := Lookup(method, path); m.Status != http.StatusNotFound || m.Endpoint != nil || m.Param != "" {
				t.Errorf("%s %q: status %d, %+v", method, path, m.Status, m)
			}
		}
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method, path string
		status             int
		endpoint           string
		family             Family
		canonical, param   string
		allow              string
	}{
		{"prefix root without slash", "GET", "", 200, "root", Native, "/", "", ""},
		{"head of the root", "HEAD", "//", 200, "root", Native, "/", "", ""},
		{"post to tags", "POST", "/api/tags", 405, "", Native, "/api/tags", "", "HEAD, GET"},
		{"head of ps", "HEAD", "/api/ps", 405, "", Native, "/api/ps", "", "GET"},
		{"delete chat", "DELETE", "/api/chat", 405, "", Native, "/api/chat", "", "POST"},
		{"get a blob", "GET", "/api/blobs/sha256:00", 405, "", Native, "/api/blobs/sha256:00", "", "HEAD, POST"},
		{"get messages", "GET", "/v1/messages", 405, "", Anthropic, "/v1/messages", "", "POST"},
		{"get messages of an unknown kind", "GET", "/v1/messages/batches", 404, "", Anthropic, "/v1/messages/batches", "", ""},
		{"unknown of openai", "POST", "/v1/files", 404, "", OpenAI, "/v1/files", "", ""},
		{"unknown native", "POST", "/api/nope", 404, "", Native, "/api/nope", "", ""},
		{"edge", "POST", "/api/v1/edge/runs", 200, "edge.run", Edge, "/api/v1/edge/runs", "", ""},
		{"get edge", "GET", "/api/v1/edge/runs", 405, "", Edge, "/api/v1/edge/runs", "", "POST"},
		{"an edge run", "GET", "/api/v1/edge/runs/a-b_C1", 200, "edge.get", Edge, "/api/v1/edge/runs/a-b_C1", "a-b_C1", ""},
		{"cancel of one", "POST", "/api/v1/edge/runs/a-b_C1/cancel/", 200, "edge.cancel", Edge, "/api/v1/edge/runs/a-b_C1/cancel", "a-b_C1", ""},
		{"a run that is called cancel", "GET", "/api/v1/edge/runs/cancel", 200, "edge.get", Edge, "/api/v1/edge/runs/cancel", "cancel", ""},
		{"unknown of edge", "POST", "/api/v1/edge/push", 404, "", Edge, "/api/v1/edge/push", "", ""},
		{"not edge", "POST", "/api/v1/edges", 404, "", Native, "/api/v1/edges", "", ""},
		{"model with slashes", "GET", "/v1/models/hf.co/Foo/Bar-GGUF:Q4_K_M", 200, "v1.model", OpenAI, "/v1/models/hf.co/Foo/Bar-GGUF:Q4_K_M", "hf.co/Foo/Bar-GGUF:Q4_K_M", ""},
		{"encoded colon", "GET", "/v1/models/tiny%3Alatest", 200, "v1.model", OpenAI, "/v1/models/tiny:latest", "tiny:latest", ""},
		{"encoded colon of a digest", "HEAD", "/api/blobs/sha256%3a00", 200, "blobs.head", Native, "/api/blobs/sha256:00", "sha256:00", ""},
		{"models with trailing slash", "GET", "/v1/models/", 200, "v1.models", OpenAI, "/v1/models", "", ""},
		{"what vLLM adds", "POST", "/v1/rerank/", 200, "v1.rerank", OpenAI, "/v1/rerank", "", ""},
		{"another method of it", "GET", "/v1/rerank", 404, "", OpenAI, "/v1/rerank", "", ""},
		{"post to a model", "POST", "/v1/models/tiny", 405, "", OpenAI, "/v1/models/tiny", "", "GET"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := Lookup(tt.method, tt.path)
			name := ""
			if m.Endpoint != nil {
				name = m.Endpoint.Name
			}
			if m.Status != tt.status || name != tt.endpoint || m.Family != tt.family || m.Path != tt.canonical || m.Param != tt.param || m.Allow != tt.allow {
				t.Errorf("got %d %q %s %q %q %q", m.Status, name, m.Family, m.Path, m.Param, m.Allow)
			}
		})
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	for _, path := range []string{"/", "/api/chat", "//v1/chat/completions/", "/v1/models/hf.co/Foo/Bar", "/nope", "/api/blobs/sha256:00"} {
		if n := testing.AllocsPerRun(100, func() { Lookup("POST", path) }); n != 0 {
			t.Errorf("%s: %v allocations", path, n)
		}
	}
}

func FuzzRequestPath(f *testing.F) {
	for _, path := range []string{
		"/", "", "//api/chat", "/api/chat/", "/api/chat/../pull", "/api/%2e%2e/api/pull", "/api%2fpull", "/API/PULL", "/api/pull;x",
		"/v1/models/hf.co/Foo/Bar", "/v1/models/tiny%3Alatest", "/v1/models/%2e%2e/x", "/v1/models/a%252fb", "/api/blobs/sha256%3a00", "/v1/models//",
	} {
		f.Add("POST", path)
		f.Add("GET", path)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		m := Lookup(method, path)
		if m.Status != http.StatusOK {
			if m.Endpoint != nil || m.Status == http.StatusMethodNotAllowed && m.Allow == "" {
				t.Fatalf("%q %q: %+v", method, path, m)
			}
			return
		}
		pattern, _, dynamic := strings.Cut(m.Endpoint.Path, "{")
		switch {
		case !dynamic && m.Path != pattern:
			t.Fatalf("%q became %q, not %q", path, m.Path, pattern)
		case dynamic && (m.Path != pattern+m.Param || m.Param == ""):
			t.Fatalf("%q became %q with %q", path, m.Path, m.Param)
		case method != m.Endpoint.Method && (method != http.MethodHead || !m.Endpoint.Head):
			t.Fatalf("method %q became %q", method, m.Endpoint.Method)
		case strings.ContainsAny(m.Path, "%;\\?# "), strings.Contains(m.Path, "//"):
			t.Fatalf("%q became %q", path, m.Path)
		}
		for _, segment := range strings.Split(m.Path, "/") {
			if segment == "." || segment == ".." {
				t.Fatalf("%q became %q", path, m.Path)
			}
		}
		if again := Lookup(method, m.Path); again.Path != m.Path || again.Endpoint != m.Endpoint {
			t.Fatalf("%q is not canonical: %q", m.Path, again.Path)
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	for _, path := range []string{"/api/chat", "//v1/chat/completions/", "/v1/models/hf.co/Foo/Bar", "/v1/models/tiny%3Alatest", "/nope"} {
		b.Run(strings.ReplaceAll(path, "/", "_"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Lookup(http.MethodPost, path)
			}
		})
	}
}
