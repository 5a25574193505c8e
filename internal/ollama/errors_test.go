package ollama

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// row finds an endpoint by its name.
func row(t testing.TB, name string) *Endpoint {
	t.Helper()
	for i := range catalogue {
		if catalogue[i].Name == name {
			return &catalogue[i]
		}
	}
	t.Fatalf("no endpoint %s", name)
	return nil
}

func TestErrorBody(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		family  Family
		status  int
		code    string
		message string
		want    string
	}{
		{"native", Native, 503, "queue_full", "busy", `{"error":"busy"}`},
		{"native escapes as gin does", Native, 404, "", `model '<"é">' not found`, `{"error":"model '\u003c\"é\"\u003e' not found"}`},
		{"openai 400", OpenAI, 400, "", "m", `{"error":{"message":"m","type":"invalid_request_error","param":null,"code":null}}`},
		{"openai 404", OpenAI, 404, "no_such_model", "m", `{"error":{"message":"m","type":"not_found_error","param":null,"code":"no_such_model"}}`},
		{"openai 503", OpenAI, 503, "queue_full", "m", `{"error":{"message":"m","type":"api_error","param":null,"code":"queue_full"}}`},
		{"openai 401", OpenAI, 401, "", "m", `{"error":{"message":"m","type":"api_error","param":null,"code":null}}`},
		{"anthropic 400", Anthropic, 400, "", "m", `{"type":"error","error":{"type":"invalid_request_error","message":"m"}}`},
		{"anthropic 401", Anthropic, 401, "unauthorized", "m", `{"type":"error","error":{"type":"authentication_error","message":"m"}}`},
		{"anthropic 403", Anthropic, 403, "", "m", `{"type":"error","error":{"type":"permission_error","message":"m"}}`},
		{"anthropic 404", Anthropic, 404, "", "m", `{"type":"error","error":{"type":"not_found_error","message":"m"}}`},
		{"anthropic 429", Anthropic, 429, "", "m", `{"type":"error","error":{"type":"rate_limit_error","message":"m"}}`},
		{"anthropic 503", Anthropic, 503, "", "m", `{"type":"error","error":{"type":"overloaded_error","message":"m"}}`},
		{"anthropic 529", Anthropic, 529, "", "m", `{"type":"error","error":{"type":"overloaded_error","message":"m"}}`},
		{"anthropic 502", Anthropic, 502, "", "m", `{"type":"error","error":{"type":"api_error","message":"m"}}`},
		{"edge", Edge, 404, "run_not_found", "m", `{"error":"m","code":"run_not_found"}`},
		{"edge without code", Edge, 404, "", "m", `{"error":"m"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := string(tt.family.ErrorBody(tt.status, tt.code, tt.message)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestStreamError(t *testing.T) {
	t.Parallel()
	tests := []struct{ endpoint, want string }{
		{"chat", `{"error":"node lost"}` + "\n"},
		{"pull", `{"error":"node lost"}` + "\n"},
		{"v1.chat.completions", `data: {"error":{"message":"node lost","type":"api_error","param":null,"code":"node_lost"}}` + "\n\n"},
		{"v1.completions", `data: {"error":{"message":"node lost","type":"api_error","param":null,"code":"node_lost"}}` + "\n\n"},
		{"v1.messages", "event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"node lost"}}` + "\n\n"},
		{"v1.responses", "event: response.failed\n" + `data: {"type":"response.failed","response":{"object":"response","status":"failed","error":{"code":"node_lost","message":"node lost"},"output":[]}}` + "\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.endpoint, func(t *testing.T) {
			t.Parallel()
			e := row(t, tt.endpoint)
			if got := string(e.Family.StreamError(e, "node_lost", "node lost")); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			hostile := e.Family.StreamError(e, "", "a\n\ndata: [DONE]\n\n")
			if bytes.Contains(hostile, []byte("\ndata: [DONE]")) {
				t.Errorf("a message ends the stream: %q", hostile)
			}
		})
	}
	if got := string(Native.StreamError(nil, "", "x")); got != "{\"error\":\"x\"}\n" {
		t.Errorf("without an endpoint: %q", got)
	}
}

func TestUnknownPath(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, method, path, contentType, body string }{
		{"elsewhere", "GET", "/favicon.ico", "text/plain", "404 page not found"},
		{"native", "POST", "/api/nope", ContentTypeJSON, `{"error":"404 page not found: /api/nope"}`},
		{"one v1 too many", "GET", "/v1/api/tags", ContentTypeJSON, `{"error":{"message":"404 page not found: /v1/api/tags","type":"not_found_error","param":null,"code":null}}`},
		{"count_tokens", "POST", "/v1/messages/count_tokens", ContentTypeJSON, `{"type":"error","error":{"type":"not_found_error","message":"404 page not found: /v1/messages/count_tokens"}}`},
		{"edge", "POST", "/api/v1/edge/push", ContentTypeJSON, `{"error":"404 page not found: /api/v1/edge/push"}`},
		{"wrong method", "GET", "/api/chat", "text/plain", "405 method not allowed"},
		{"wrong method of v1", "GET", "/v1/messages", "text/plain", "405 method not allowed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := Lookup(tt.method, tt.path)
			if m.Endpoint != nil {
				m = m.Unknown()
			}
			contentType, body := UnknownPath(m, tt.path)
			if contentType != tt.contentType || string(body) != tt.body {
				t.Errorf("got %s %s", contentType, body)
			}
		})
	}
	long := "/api/" + strings.Repeat("x", 1<<20)
	if _, body := UnknownPath(Lookup("GET", long), long); len(body) > 400 || !json.Valid(body) {
		t.Errorf("a long path is repeated in %d bytes", len(body))
	}
}

func TestModelNotFound(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"generate":            "model 'Nope' not found",
		"chat":                "model 'Nope' not found",
		"v1.chat.completions": "model 'Nope' not found",
		"v1.messages":         "model 'Nope' not found",
		"embed":               `model "Nope" not found, try pulling it first`,
		"embeddings":          `model "Nope" not found, try pulling it first`,
		"v1.embeddings":       `model "Nope" not found, try pulling it first`,
		"show":                "model 'Nope:latest' not found",
		"v1.model":            "model 'Nope:latest' not found",
		"delete":              "model 'Nope' not found",
		"copy":                `model "Nope" not found`,
	} {
		if got := row(t, endpoint).ModelNotFound("Nope"); got != want {
			t.Errorf("%s: %s", endpoint, got)
		}
	}
}

func TestNamesOfKinds(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Native.String(): "native", OpenAI.String(): "openai", Anthropic.String(): "anthropic", Edge.String(): "edge", Family(9).String(): "unknown",
		Liveness.String(): "liveness", Inventory.String(): "inventory", Inference.String(): "inference", Management.String(): "management",
		Self.String(): "self", Deny.String(): "deny", ModelMultipart.String(): "multipart",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if EdgeRun.String() != "edge" {
		t.Error(EdgeRun)
	}
	if (&Error{Status: http.StatusTeapot, Message: "m"}).Error() != "m" {
		t.Error("an error is its message")
	}
}
