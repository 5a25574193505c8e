package demo

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

func post(path, body string) *adapter.Request {
	return &adapter.Request{Method: "POST", Path: path, Body: strings.NewReader(body), Length: int64(len(body))}
}

func do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	c, err := New().Connect(ctx, false)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Do(ctx, r)
}

func answered(t *testing.T, r *adapter.Request) (*adapter.Response, string) {
	t.Helper()
	resp, err := do(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func contentType(r *adapter.Response) string {
	for _, h := range r.Headers {
		if h.Name == "Content-Type" {
			return h.Value
		}
	}
	return ""
}

// said joins the words of an answer in any of the shapes.
func said(t *testing.T, body string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(body), "\n") {
		line = strings.TrimPrefix(line, "data: ")
		if line == "" || line == "[DONE]" {
			continue
		}
		var o struct {
			Response string
			Message  struct{ Content string }
			Choices  []struct {
				Text           string
				Delta, Message struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		out.WriteString(o.Response + o.Message.Content)
		for _, c := range o.Choices {
			out.WriteString(c.Text + c.Delta.Content + c.Message.Content)
		}
	}
	return out.String()
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ path, body, ctype, end string }{
		"chat":              {"/api/chat", `{"model":"demo","messages":[{}]}`, "application/x-ndjson", "}\n"},
		"chat null":         {"/api/chat", `{"model":"DEMO:latest","messages":[{}],"stream":null}`, "application/x-ndjson", "}\n"},
		"chat whole":        {"/api/chat", `{"model":"demo","messages":[{}],"stream":false}`, "application/json; charset=utf-8", "}"},
		"generate":          {"/api/generate", `{"model":"library/demo","prompt":"x"}`, "application/x-ndjson", "}\n"},
		"generate whole":    {"/api/generate", `{"model":"demo","prompt":"x","stream":false}`, "application/json; charset=utf-8", "}"},
		"v1 chat":           {"/v1/chat/completions", `{"model":"demo","messages":[{}]}`, "application/json; charset=utf-8", "}"},
		"v1 chat stream":    {"/v1/chat/completions", `{"model":"demo","messages":[{}],"stream":true,"stream_options":{"include_usage":true}}`, "text/event-stream", "data: [DONE]\n\n"},
		"completion":        {"/v1/completions", `{"model":"demo","prompt":"x"}`, "application/json; charset=utf-8", "}"},
		"completion stream": {"/v1/completions", `{"model":"demo","prompt":"x","stream":true}`, "text/event-stream", "data: [DONE]\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				resp, body := answered(t, post(c.path, c.body))
				if resp.Status != 200 || contentType(resp) != c.ctype || !strings.HasSuffix(body, c.end) {
					t.Errorf("status %d, %s, ends in %q", resp.Status, contentType(resp), body[max(0, len(body)-20):])
				}
				if got := said(t, body); got != text {
					t.Errorf("said %q", got)
				}
				if took := time.Since(begin); took != time.Duration(len(words))*pace {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

func TestLastLineCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, body := answered(t, post("/api/generate", `{"model":"demo","prompt":"x","options":{"num_predict":3}}`))
		lines := strings.Split(strings.TrimSpace(body), "\n")
		var last struct {
			Done          bool
			DoneReason    string `json:"done_reason"`
			EvalCount     int    `json:"eval_count"`
			TotalDuration int64  `json:"total_duration"`
		}
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
			t.Fatal(err)
		}
		if len(lines) != 4 || !last.Done || last.DoneReason != "length" || last.EvalCount != 3 || last.TotalDuration != (3*pace).Nanoseconds() {
			t.Errorf("%d lines, last %+v", len(lines), last)
		}
	})
}

func TestLoadAndUnload(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{`{"model":"demo"}`: "load", `{"model":"demo","keep_alive":0}`: "unload"} {
		for _, path := range []string{"/api/chat", "/api/generate"} {
			resp, got := answered(t, post(path, body))
			if resp.Status != 200 || contentType(resp) != "application/json; charset=utf-8" || !strings.Contains(got, `"done_reason":"`+want+`"`) {
				t.Errorf("%s %s: %d %s", path, body, resp.Status, got)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/api/chat", ``, 400, `{"error":"missing request body"}`},
		{"/api/chat", `{`, 400, `{"error":"unexpected EOF"}`},
		{"/api/chat", `{}`, 400, `{"error":"model is required"}`},
		{"/api/chat", `{"model":"llama3"}`, 404, `{"error":"model 'llama3' not found"}`},
		{"/api/show", `{"model":"x"}`, 404, `{"error":"model 'x' not found"}`},
		{"/v1/completions", `{"model":"x"}`, 404, `"type":"not_found_error"`},
		{"/v1/messages", `{"model":"demo"}`, 404, `{"error":{"message":"the demo has no /v1/messages; an Ollama on a node serves it","type":"not_found_error"},"type":"error"}`},
		{"/api/embed", `{"model":"demo"}`, 404, `{"error":"the demo has no /api/embed; an Ollama on a node serves it"}`},
	} {
		resp, body := answered(t, post(c.path, c.body))
		if resp.Status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s", c.path, c.body, resp.Status, body)
		}
	}
	if resp, body := answered(t, post("/api/show", `{"name":"demo"}`)); resp.Status != 200 || !strings.Contains(body, "no model runs") {
		t.Errorf("show: %d %s", resp.Status, body)
	}
}

// The gateway takes the demo's entry for what it claims to be: one of Ollama's.
func TestInventory(t *testing.T) {
	t.Parallel()
	inv, err := New().Probe(t.Context())
	if err != nil || len(inv.Models) != 1 {
		t.Fatal(inv, err)
	}
	m, err := ollama.ParseModel(inv.Models[0].JSON)
	if err != nil || m.Name != inv.Models[0].Name || len(m.Digest) != 64 || m.Remote || m.ModifiedAt.IsZero() {
		t.Errorf("%+v %v", m, err)
	}
	again, _ := New().Probe(t.Context())
	if string(again.Models[0].JSON) != string(inv.Models[0].JSON) {
		t.Error("two demos list different entries")
	}
}

// The end of ctx, and Close, end the answer's goroutine; synctest fails if one
// stays.
func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := do(ctx, post("/api/chat", `{"model":"demo","messages":[{}]}`))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, context.Canceled) {
			t.Errorf("read: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		resp, err := do(t.Context(), post("/api/chat", `{"model":"demo","messages":[{}]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*pace)
		defer cancel()
		if _, err := do(ctx, post("/api/chat", `{"model":"demo","messages":[{}],"stream":false}`)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before the head: %v", err)
		}
	})
}

func TestConnIsForOneRequest(t *testing.T) {
	t.Parallel()
	c, err := New().Connect(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := c.Do(t.Context(), post("/api/show", `{}`)); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("Do after Close: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New().Connect(ctx, false); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("Connect after the end: %v", err)
	}
}

// credential counts how often it was cleared.
type credential struct{ asked, cleared int }

func (c *credential) Header() string        { return "Authorization" }
func (c *credential) Line() ([]byte, error) { c.asked++; return nil, nil }
func (c *credential) Clear()                { c.cleared++ }

func TestTheDemoTakesNoCredential(t *testing.T) {
	t.Parallel()
	c, err := New().Connect(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time the connection is used
		cred := new(credential)
		r := post("/api/chat", `{"model":"demo","messages":[{}]}`)
		r.Credential = cred
		if _, err := c.Do(t.Context(), r); !errors.Is(err, adapter.ErrNotSent) || cred.asked != 0 || cred.cleared == 0 {
			t.Errorf("%v, asked %d times, cleared %d times", err, cred.asked, cred.cleared)
		}
		c.Close()
	}
}
