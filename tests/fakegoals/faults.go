package fakegoals

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Kinds describes every kind of fault. Those "before" leave the request undone; after the others it was carried out, and the caller cannot know.
var Kinds = map[string]string{
	"status":   "before: Status, with RetryAfter if that is not empty",
	"slow":     "before: after Delay all goes on as if nothing had been",
	"hang":     "before: never answered",
	"close":    "before: the connection is closed without an answer",
	"reset":    "before: the connection is reset without an answer",
	"garbage":  "before: bytes that are not HTTP",
	"bighead":  "before: a head without end",
	"redirect": "before: 307 to To",
	"lost":     "the connection is closed without an answer",
	"stalled":  "never answered",
	"cut":      "the connection is closed in the middle of the answer",
	"html":     "a page in place of the answer",
	"empty":    "no body",
	"list":     "a list in place of the answer",
	"deep":     "lists in lists without end",
	"huge":     "the answer with a long tail of white space",
	"twice":    "the answer with its status given twice",
	"notutf8":  "the answer with bytes that are no text",
}

// Fault is trouble in place of an answer.
type Fault struct {
	Step       string // which call; "" any
	Kind       string // a key of Kinds
	Times      int    // how often; 0 always
	Status     int
	RetryAfter string
	To         string
	Delay      time.Duration
}

// SetFault arms a fault, behind those that are armed.
func (s *Server) SetFault(t testing.TB, f Fault) {
	t.Helper()
	if Kinds[f.Kind] == "" {
		t.Fatalf("no fault %q", f.Kind)
	}
	if f.Times == 0 {
		f.Times = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// ClearFaults takes all faults away.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

func (s *Server) fault(step string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if (f.Step == "" || f.Step == step) && f.Times != 0 {
			if f.Times > 0 {
				f.Times--
			}
			return f
		}
	}
	return nil
}

// before makes trouble in place of what was asked for; true if that was all.
func (f *Fault) before(s *Server, w http.ResponseWriter, r *http.Request) bool {
	switch f.Kind {
	case "status":
		a := problem(f.Status, "FAULT")
		if f.RetryAfter != "" {
			a.header = map[string]string{"Retry-After": f.RetryAfter}
		}
		a.write(w)
	case "slow":
		select {
		case <-time.After(f.Delay):
			return false
		case <-r.Context().Done():
		}
	case "hang":
		s.wait(r)
	case "close":
		hijack(w).Close()
	case "reset":
		reset(hijack(w))
	case "garbage":
		send(hijack(w), "SSH-2.0-OpenSSH_9.9\r\n\r\n\r\n")
	case "bighead":
		send(hijack(w), "HTTP/1.1 200 OK\r\n"+strings.Repeat("X-Fill: "+strings.Repeat("x", 1000)+"\r\n", 200))
	case "redirect":
		w.Header().Set("Location", f.To)
		w.WriteHeader(http.StatusTemporaryRedirect)
	default:
		return false
	}
	return true
}

// wait holds a request until its caller leaves or the server ends, and never answers.
func (s *Server) wait(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-s.done:
	}
	panic(http.ErrAbortHandler)
}

// after makes trouble of an answer; true if it was written, or is not to be.
func (f *Fault) after(w http.ResponseWriter, a answer) bool {
	switch f.Kind {
	case "lost":
		hijack(w).Close()
		return true
	case "stalled":
		c := hijack(w)
		defer c.Close()
		_, _ = io.Copy(io.Discard, c) // until the caller leaves, or the server ends
		return true
	case "cut":
		c := hijack(w)
		send(c, fmt.Sprintf("HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", a.status, len(a.body), a.body[:len(a.body)/2]))
		return true
	case "html":
		a.body = []byte("<html><body>Sign in to the network</body></html>")
	case "empty":
		a.body = nil
	case "list":
		a.body = append(append([]byte("["), a.body...), ']')
	case "deep":
		a.body = bytes.Repeat([]byte("["), 1<<20)
	case "huge":
		a.body = append(a.body, bytes.Repeat([]byte(" "), 8<<20)...)
	case "twice":
		a.body = append([]byte(`{"status":"completed",`), a.body[1:]...)
	case "notutf8":
		a.body = append([]byte("{\"x\":\"\xff\xfe\","), a.body[1:]...)
	default:
		return false
	}
	a.write(w)
	return true
}

func hijack(w http.ResponseWriter) net.Conn {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return c
}

func reset(c net.Conn) {
	if tc, ok := c.(*net.TCPConn); ok {
		_ = tc.SetLinger(0)
	}
	c.Close()
}

func send(c net.Conn, s string) {
	defer c.Close()
	_, _ = io.WriteString(c, s)
}
