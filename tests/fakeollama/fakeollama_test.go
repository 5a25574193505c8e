package fakeollama

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// send sends a request and reads the answer; err is the body's.
func send(t *testing.T, s *Server, method, path, body string, hs ...string) (*http.Response, string, error) {
	t.Helper()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, rd)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(hs); i += 2 {
		req.Header.Set(hs[i], hs[i+1])
		if hs[i] == "Host" {
			req.Host = hs[i+1]
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

func TestRulesAndTexts(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Models: []string{"t-echo:latest", "hf.co/A/B:Q4"}, Version: "0.32.15"})
	for _, c := range []struct {
		method, path, body string
		hs                 []string
		status             int
		want               string
	}{
		{"GET", "/", "", nil, 200, "Ollama is running"},
		{"HEAD", "/", "", nil, 200, ""},
		{"GET", "/api/version", "", nil, 200, `{"version":"0.32.15"}`},
		{"GET", "/api/tags", "", nil, 200, `"name":"hf.co/A/B:Q4"`},
		{"GET", "/api/tags", "", []string{"Host", "llm.example.org"}, 403, ""},
		{"GET", "/api/tags", "", []string{"Host", "localhost:1234"}, 200, ""},
		{"GET", "/api/tags", "", []string{"Host", "10.1.2.3"}, 200, ""},
		{"GET", "/api/tags", "", []string{"Origin", "https://app.example.org"}, 403, ""},
		{"GET", "/api/tags", "", []string{"Origin", "null"}, 403, ""},
		{"GET", "/api/tags", "", []string{"Origin", "http://localhost:3000"}, 200, ""},
		{"OPTIONS", "/api/chat", "", nil, 204, ""},
		{"GET", "//api/tags", "", nil, 301, ""},
		{"POST", "/api/chat/", "{}", nil, 307, ""},
		{"GET", "/nope", "", nil, 404, "404 page not found"},
		{"GET", "/api/chat", "", nil, 405, "405 method not allowed"},
		{"GET", "/v1/models/t-echo", "", nil, 200, `"id":"t-echo"`},
		{"GET", "/v1/models/x", "", nil, 404, "model 'x:latest' not found"},
		{"POST", "/api/chat", "", nil, 400, `{"error":"missing request body"}`},
		{"POST", "/api/chat", `{"model":"t-echo","stream":"no"}`, nil, 400, "stream of type bool"},
		{"POST", "/api/chat", `{}`, nil, 400, `{"error":"model is required"}`},
		{"POST", "/api/generate", `{}`, nil, 404, `{"error":"model '' not found"}`},
		{"POST", "/api/chat", `{"model":"x","MODEL":"T-ECHO"}`, nil, 200, `"done_reason":"load"`},
		{"POST", "/api/generate", `{"model":"t-echo","keep_alive":0}`, nil, 200, `"done_reason":"unload"`},
		{"POST", "/api/embed", `{"model":"x"}`, nil, 404, `{"error":"model \"x\" not found, try pulling it first"}`},
		{"POST", "/api/embed", `{"model":"t-echo","input":"a"}`, nil, 200, `"embeddings":[[0.1,0.2]]`},
		{"POST", "/v1/embeddings", `{"model":"t-echo","input":"a"}`, nil, 200, `"object":"embedding"`},
		{"POST", "/api/show", `{"name":"x"}`, nil, 404, `{"error":"model 'x:latest' not found"}`},
		{"POST", "/api/show", `{"name":"t-echo"}`, nil, 200, `"capabilities":["completion"]`},
		{"POST", "/v1/chat/completions", `{"model":"x"}`, nil, 404, `"type":"not_found_error"`},
		{"POST", "/v1/messages", `{"model":"t-echo"}`, nil, 400, `{"error":{"message":"max_tokens`},
	} {
		resp, body, err := send(t, s, c.method, c.path, c.body, c.hs...)
		if err != nil || resp.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s %v: %v %s %v", c.method, c.path, c.body, c.hs, resp.StatusCode, body, err)
		}
	}
}

func TestFamilies(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	for _, c := range []struct{ path, body, ctype, end string }{
		{"/api/chat", `{"model":"t-echo","messages":[{}]}`, ndjsonType, "}\n"},
		{"/api/generate", `{"model":"t-echo","prompt":"x","stream":false}`, jsonType, "}"},
		{"/v1/chat/completions", `{"model":"t-echo","messages":[{}],"stream":true,"stream_options":{"include_usage":true}}`, sseType, "data: [DONE]\n\n"},
		{"/v1/completions", `{"model":"t-echo","prompt":"x","stream":true}`, sseType, "data: [DONE]\n\n"},
		{"/v1/messages", `{"model":"t-echo","max_tokens":9,"stream":true}`, sseType, "data: {\"type\":\"message_stop\"}\n\n"},
		{"/v1/responses", `{"model":"t-echo","input":"x","stream":true}`, sseType, "\n\n"},
		{"/v1/messages", `{"model":"t-echo","max_tokens":9}`, jsonType, "}"},
		{"/v1/responses", `{"model":"t-echo","input":"x"}`, jsonType, "}"},
	} {
		resp, body, err := send(t, s, "POST", c.path, c.body)
		if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != c.ctype || !strings.HasSuffix(body, c.end) {
			t.Errorf("%s: %v %s %q", c.path, err, resp.Header.Get("Content-Type"), body)
		}
		for _, w := range []string{"one", "five"} {
			if !strings.Contains(body, w) {
				t.Errorf("%s lacks %q: %s", c.path, w, body)
			}
		}
	}
	if n := s.Execs("t-echo"); n != 8 {
		t.Errorf("%d inferences counted", n)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	ask := func(model, more string) (*http.Response, string, error) {
		return send(t, s, "POST", "/api/chat", `{"model":"`+model+`","messages":[{}]`+more+`}`)
	}
	if _, body, err := ask("t-tick", `,"t_n":4,"options":{"t_ms":5}`); err != nil || strings.Count(body, "\n") != 5 {
		t.Errorf("tick: %q %v", body, err)
	}
	if _, body, err := ask("t-die", ""); err == nil {
		t.Errorf("die ended well: %q", body)
	}
	if _, body, err := ask("t-longline", `,"t_bytes":100000`); err != nil || len(body) < 100000 {
		t.Errorf("longline: %d bytes, %v", len(body), err)
	}
	_, body, err := ask("t-utf8", "")
	sum := sha256.Sum256([]byte(body))
	if rec := last(s); err != nil || rec.ExpectSHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("utf8: %q %v", body, err)
	}
	if resp, _, err := ask("t-hop", ""); err != nil || resp.Header.Get("X-Hop") == "" {
		t.Errorf("hop: %v", err)
	}
	if _, body, err := ask("t-flood", `,"t_mb":1`); err != nil || len(body) < 900000 {
		t.Errorf("flood: %d bytes, %v", len(body), err)
	}
	if resp, _, err := ask("t-ctype", `,"t_ctype":"text/x"`); err != nil || resp.Header.Get("Content-Type") != "text/x" {
		t.Errorf("ctype: %v", err)
	}
	if _, body, err := ask("t-errmid", ""); err != nil || !strings.HasSuffix(body, `unexpected EOF"}`+"\n") {
		t.Errorf("errmid: %q %v", body, err)
	}
	if _, body, err := ask("t-slowload", `,"t_s":0.01`); err != nil || !strings.Contains(body, "five") {
		t.Errorf("slowload: %q %v", body, err)
	}
}

func last(s *Server) Record {
	log := s.Log()
	return log[len(log)-1]
}

func TestRecord(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	nc, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	io.WriteString(nc, "POST /api/chat?q=1 HTTP/1.1\r\nx-B: 2\r\nHost: localhost\r\nX-a:1\r\nX-Test-Id: run7\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"12\r\n{\"model\":\"t-echo\"}\r\n0\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	r := last(s)
	want := [][2]string{{"x-B", "2"}, {"Host", "localhost"}, {"X-a", "1"}, {"X-Test-Id", "run7"}, {"Transfer-Encoding", "chunked"}}
	if fmt.Sprint(r.Headers) != fmt.Sprint(want) {
		t.Errorf("headers %q", r.Headers)
	}
	if r.Target != "/api/chat?q=1" || r.Path != "/api/chat" || r.Framing != "chunked" || r.Len != 18 || !r.BodyComplete || r.Head != `{"model":"t-echo"}` || !r.Executed {
		t.Errorf("record %+v", r)
	}
	if s.ExecsByID("run7") != 1 || s.Execs("T-ECHO:latest") != 1 || s.Stats().Exec != 1 {
		t.Errorf("stats %+v", s.Stats())
	}
	s.Reset()
	if len(s.Log()) != 0 || s.ExecsByID("run7") != 0 {
		t.Error("reset left something")
	}
}

// A peer that closes only its sending half counts as gone, and can read so.
func TestHalfCloseIsADisconnect(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	nc, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	body := `{"model":"t-slowload","messages":[{}]}`
	fmt.Fprintf(nc, "POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if _, err := s.Wait(within(t, 5*time.Second), func(r Record) bool { return r.Executed }); err != nil {
		t.Fatal(err)
	}
	nc.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil || resp.StatusCode != 499 {
		t.Fatal(resp, err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != `{"error":"request canceled"}` {
		t.Errorf("body %s", b)
	}
	if last(s).ClientGone == 0 {
		t.Error("not recorded")
	}
}

func TestIdleClose(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{IdleClose: 10 * time.Millisecond})
	nc, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	io.WriteString(nc, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	nc.SetReadDeadline(time.Now().Add(5 * time.Second))
	if b, err := io.ReadAll(nc); err != nil || !bytes.HasSuffix(b, []byte("Ollama is running")) {
		t.Errorf("%q %v", b, err)
	}
}

func TestParallelAndQueue(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Parallel: 2, MaxQueue: 1})
	var wg sync.WaitGroup
	slow := func() {
		wg.Go(func() {
			if resp, _, err := send(t, s, "POST", "/api/chat", `{"model":"t-tick","messages":[{}],"t_n":1,"t_ms":500}`); err != nil || resp.StatusCode != 200 {
				t.Errorf("%v %v", resp, err)
			}
		})
	}
	for range 3 {
		slow()
	}
	if err := s.WaitStats(within(t, 5*time.Second), func(st Stats) bool { return st.Exec == 2 && st.Waiting == 1 }); err != nil {
		t.Fatalf("%+v", s.Stats())
	}
	resp, body, err := send(t, s, "POST", "/api/chat", `{"model":"t-tick","messages":[{}]}`)
	if err != nil || resp.StatusCode != 503 || !strings.Contains(body, "please try again.  maximum pending") {
		t.Errorf("%v %s %v", resp.StatusCode, body, err)
	}
	if resp, _, err := send(t, s, "POST", "/api/chat", `{"model":"t-echo","messages":[{}]}`); err != nil || resp.StatusCode != 200 {
		t.Error("another model waited")
	}
	wg.Wait()
	if n := s.Execs("t-tick"); n != 3 {
		t.Errorf("%d ran", n)
	}
}

// A waiting request whose caller leaves neither runs nor blocks those behind.
func TestQueueForgetsTheGone(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Parallel: 1})
	leave, err := s.enter(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.enter(ctx, "m"); err == nil {
		t.Fatal("admitted")
	}
	leave()
	if leave, err = s.enter(within(t, time.Second), "m"); err != nil {
		t.Fatal(err)
	}
	leave()
}

func TestManagement(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Models: []string{"t-echo:latest"}})
	blob := strings.Repeat("b", 300000)
	sum := sha256.Sum256([]byte(blob))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	other := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"HEAD", "/api/blobs/" + digest, "", 404, ""},
		{"POST", "/api/create", `{"model":"made","files":{"a":"` + digest + `"}}`, 400, "not found"},
		{"POST", "/api/blobs/" + other, "x", 400, "digest mismatch"},
		{"POST", "/api/blobs/nonsense", "x", 400, "invalid digest"},
		{"POST", "/api/blobs/" + digest, blob, 201, ""},
		{"POST", "/api/blobs/" + digest, blob, 200, ""},
		{"HEAD", "/api/blobs/" + digest, "", 200, ""},
		{"POST", "/api/create", `{"model":"made","files":{"a":"` + digest + `"}}`, 200, `{"status":"success"}`},
		{"POST", "/api/copy", `{"source":"made","destination":"copied"}`, 200, ""},
		{"POST", "/api/copy", `{"source":"x","destination":"y"}`, 404, `model \"x\" not found`},
		{"POST", "/api/pull", `{"name":"pulled","stream":false}`, 200, `{"status":"success"}`},
		{"DELETE", "/api/delete", `{"name":"t-echo"}`, 200, ""},
		{"DELETE", "/api/delete", `{"name":"t-echo"}`, 404, "not found"},
	} {
		resp, body, err := send(t, s, c.method, c.path, c.body)
		if err != nil || resp.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %v %s %v", c.method, c.path, resp.StatusCode, body, err)
		}
	}
	if got := fmt.Sprint(s.Stats().Models); got != "[made:latest copied:latest pulled:latest]" {
		t.Errorf("models %s", got)
	}
}

func TestLoaded(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	send(t, s, "POST", "/api/chat", `{"model":"t-echo","messages":[{}],"keep_alive":"1h"}`)
	if _, body, _ := send(t, s, "GET", "/api/ps", ""); !strings.Contains(body, `"name":"t-echo:latest"`) || !strings.Contains(body, `"expires_at"`) {
		t.Errorf("ps %s", body)
	}
	send(t, s, "POST", "/api/chat", `{"model":"t-echo","keep_alive":0}`)
	if _, body, _ := send(t, s, "GET", "/api/ps", ""); body != `{"models":[]}` {
		t.Errorf("ps %s", body)
	}
}

func TestEveryFault(t *testing.T) {
	t.Parallel()
	for kind := range Faults {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := Start(t, Options{})
			if err := s.SetFault(Fault{Kind: kind, Times: 1, Path: "/api/chat", To: "http://127.0.0.1:9"}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			body := `{"model":"t-echo","messages":[{}]}`
			req, _ := http.NewRequestWithContext(ctx, "POST", s.URL()+"/api/chat", strings.NewReader(body))
			req.Close = true // what a fault leaves of the connection is not for the next request
			resp, err := client.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			fine := map[string]bool{"early": true, "500": true, "redirect": true, "interim": true, "trailer": true, "http10": true,
				"hostile": true, "badstatus": true, "switch": true, "extra": true, "closeheader": true, "echohead": true, "echotrailer": true}
			if (err == nil) != fine[kind] {
				t.Errorf("a stock client sees %v", err)
			}
			if _, err := s.Wait(within(t, 5*time.Second), func(r Record) bool { return r.Fault == kind }); err != nil {
				t.Error("not recorded")
			}
			if resp, _, err := send(t, s, "POST", "/api/chat", body); err != nil || resp.StatusCode != 200 {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestFaultByBody(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	resp, _, err := send(t, s, "POST", "/api/chat", `{"model":"t-echo","messages":[{}],"options":{"t_fault":"500"}}`)
	if err != nil || resp.StatusCode != 500 || s.Execs("t-echo") != 1 {
		t.Errorf("%v %v", resp, err)
	}
	if err := s.SetFault(Fault{Kind: "nonsense"}); err == nil {
		t.Error("unknown fault taken")
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Key: "k1"})
	ask := func(method, path, key string, want int) {
		t.Helper()
		body := ""
		if method == "POST" {
			body = `{"model":"t-echo","messages":[{}],"t_fault":"echohead"}`
		}
		req, _ := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
		if key != "" {
			req.Header.Set("Authorization", key)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want || want == 200 && method == "POST" && resp.Header.Get("X-Debug") != "auth="+key {
			t.Errorf("%s %s with %q: %d %v", method, path, key, resp.StatusCode, resp.Header)
		}
	}
	ask("POST", "/api/chat", "", 401)
	ask("POST", "/api/chat", "Bearer k2", 401)
	ask("POST", "/v1/chat/completions", "k1", 401)
	ask("POST", "/api/chat", "Bearer k1", 200)
	ask("GET", "/api/version", "", 200)
	ask("GET", "/v1/models", "", 200)
	if n := s.Execs("t-echo"); n != 1 {
		t.Errorf("%d ran", n)
	}
	s.SetKey("k2")
	ask("POST", "/api/chat", "Bearer k1", 401)
	ask("POST", "/api/chat", "Bearer k2", 200)
}

func TestDownAndUp(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	addr := s.Addr()
	s.Down()
	if _, _, err := send(t, s, "GET", "/", ""); err == nil {
		t.Error("answers while down")
	}
	if err := s.Up(); err != nil || s.Addr() != addr {
		t.Fatal(s.Addr(), err)
	}
	if resp, _, err := send(t, s, "GET", "/", ""); err != nil || resp.StatusCode != 200 {
		t.Error(err)
	}
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	s := Start(t, Options{Admin: addr})
	get := func(path string, v any) int {
		t.Helper()
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if v != nil {
			if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
				t.Fatal(err)
			}
		}
		return resp.StatusCode
	}
	var st Stats
	get("/set?models=a:latest,b:latest&tags_delay=0.01&busy=1&fault=500&fault_times=1&fault_path=/api/tags", &st)
	if len(st.Models) != 2 || st.TagsDelay != 0.01 || !st.Busy {
		t.Errorf("stats %+v", st)
	}
	if resp, _, _ := send(t, s, "GET", "/api/tags", ""); resp.StatusCode != 500 {
		t.Error("fault not armed")
	}
	if resp, body, _ := send(t, s, "POST", "/api/chat", `{"model":"a","messages":[{}]}`); resp.StatusCode != 503 {
		t.Errorf("not busy: %s", body)
	}
	var log []map[string]any
	if get("/log", &log); len(log) != 2 || log[1]["path"] != "/api/chat" || log[1]["body_complete"] != true {
		t.Errorf("log %v", log)
	}
	get("/reset", &st)
	if get("/log", &log); len(log) != 0 {
		t.Errorf("log %v", log)
	}
	get("/set?down=1&busy=0&fault=none", &st)
	if !st.Down || st.Busy {
		t.Errorf("stats %+v", st)
	}
	if get("/set?down=0", &st); st.Down {
		t.Errorf("stats %+v", st)
	}
	for _, bad := range []string{"/set?tags_delay=x", "/set?fault=x", "/set?fault=500&fault_times=x"} {
		if status := get(bad, nil); status != 400 {
			t.Errorf("%s: %d", bad, status)
		}
	}
}
