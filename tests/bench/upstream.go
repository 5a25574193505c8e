package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// ask is what a request tells the upstream to do; a real Ollama would ignore the knobs.
type ask struct {
	Stream *bool `json:"stream"`
	Tokens int   `json:"b_tokens"` // lines of a stream
	MS     int   `json:"b_ms"`     // between two
	MiB    int   `json:"b_mib"`    // of a bulk answer
}

// upstream is a provider that costs as little as it can: Ollama's inventory, small JSON, stamped token streams, and bulk.
func upstream(addr string) error {
	mux := http.NewServeMux()
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			_, _ = io.WriteString(w, s)
		}
	}
	mux.HandleFunc("/", text("Ollama is running"))
	mux.HandleFunc("/api/version", text(`{"version":"0.32.15"}`))
	mux.HandleFunc("/api/tags", text(`{"models":[{"name":"bench:latest","model":"bench:latest","modified_at":"2026-01-01T00:00:00Z","size":1,"digest":"aa"}]}`))
	mux.HandleFunc("/api/ps", text(`{"models":[]}`))
	mux.HandleFunc("/api/chat", chat)
	mux.HandleFunc("/b/seen", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, seen.Load(), keyed.Load()) })
	return http.ListenAndServe(addr, mux) //nolint:gosec // a benchmark on loopback
}

var answer = []byte(`{"model":"bench","created_at":"2026-01-01T00:00:00Z","message":{"role":"assistant","content":"` +
	`The gateway picked this node and the tiny model answers with a fixed sentence ."},"done":true,"done_reason":"stop","prompt_eval_count":7,"eval_count":16}`)

// benchKey is the credential of the leased runs.
const benchKey = "sk-bench-0123456789abcdef0123456789abcdef"

// Requests so far, and those of them that came with the key.
var seen, keyed atomic.Int64

func chat(w http.ResponseWriter, r *http.Request) {
	seen.Add(1)
	if r.Header.Get("Authorization") == "Bearer "+benchKey {
		keyed.Add(1)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	head := body
	if len(head) > 512 {
		head = append(bytes.TrimRight(head[:512], `"x`), `"}`...) // of an upload only the knobs matter
	}
	var a ask
	_ = json.Unmarshal(head, &a)
	switch {
	case a.Tokens > 0:
		tokens(w, r, a)
	case a.MiB > 0:
		w.Header().Set("Content-Type", "application/x-ndjson")
		chunk := bytes.Repeat([]byte("x"), 32<<10)
		for range a.MiB * 32 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	default:
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if bytes.Contains(body, []byte(`"format":{`)) {
			_, _ = w.Write(typedAnswer)
			return
		}
		_, _ = w.Write(answer)
	}
}

// tokens sends lines that carry the time at which they were written.
func tokens(w http.ResponseWriter, r *http.Request, a ask) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	rc := http.NewResponseController(w)
	tick := time.NewTicker(time.Duration(max(a.MS, 1)) * time.Millisecond)
	defer tick.Stop()
	for range a.Tokens {
		if _, err := fmt.Fprintf(w, `{"model":"bench","created_at":"2026-01-01T00:00:00Z","message":{"role":"assistant","content":" word"},"done":false,"ns":%d}`+"\n", time.Now().UnixNano()); err != nil {
			return
		}
		_ = rc.Flush()
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = fmt.Fprintf(w, `{"model":"bench","done":true,"eval_count":%d}`+"\n", a.Tokens)
}
