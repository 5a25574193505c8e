package fakeollama

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// errBroken ends a connection that was broken on purpose.
var errBroken = errors.New("broken on purpose")

// Fault is trouble in place of an answer. A body asks for one itself with
// t_fault (a Kind) and t_to.
type Fault struct {
	Kind  string // a key of Faults
	Path  string // only requests of this path; "" every one
	Times int    // how often; 0 until ClearFaults
	To    string // redirect: origin to point at
}

// Faults describes every kind of fault.
var Faults = map[string]string{
	"hang":        "read the request, never answer",
	"close":       "read the request, close without an answer",
	"reset":       "read the request, reset without an answer",
	"early":       "answer 413 before the body is read, then close",
	"500":         "500 with Ollama's error body",
	"endless":     "tokens until the caller leaves",
	"rst":         "two tokens, then a connection reset",
	"truncate":    "two tokens, then a close inside a chunk",
	"unfinished":  "two tokens, then a close without the last chunk",
	"short":       "a close before Content-Length bytes",
	"redirect":    "307 to the same path at another origin",
	"interim":     "100 and 103 before a normal answer",
	"trailer":     "an answer with declared trailers",
	"http10":      "an HTTP/1.0 answer that ends with the connection",
	"hostile":     "an answer with headers that must not reach an app",
	"bighead":     "a head without end",
	"badstatus":   "status 999",
	"switch":      "101 without being asked",
	"garbage":     "bytes that are not HTTP",
	"twolengths":  "two different Content-Length lines",
	"badheader":   "a header line without a colon",
	"extra":       "bytes after the end of the answer",
	"closeheader": "a complete answer with Connection: close",
	"echohead":    "an answer whose head repeats the request's Authorization",
	"echotrailer": "an answer whose trailer does",
}

type armedFault struct {
	Fault
	left int // below 0: no limit
}

// SetFault arms a fault, behind those that are armed.
func (s *Server) SetFault(f Fault) error {
	if _, ok := Faults[f.Kind]; !ok {
		return fmt.Errorf("no fault %q", f.Kind)
	}
	left := f.Times
	if left == 0 {
		left = -1
	}
	s.edit(func(st *state) { st.faults = append(st.faults, &armedFault{f, left}) })
	return nil
}

// ClearFaults disarms all.
func (s *Server) ClearFaults() { s.edit(func(st *state) { st.faults = nil }) }

// takeFault finds the fault of a request and counts it.
func (st *state) takeFault(path string) *Fault {
	i := slices.IndexFunc(st.faults, func(f *armedFault) bool { return f.Path == "" || f.Path == path })
	if i < 0 {
		return nil
	}
	f := st.faults[i]
	if f.left--; f.left == 0 {
		st.faults = slices.Delete(st.faults, i, i+1)
	}
	return &f.Fault
}

// knobFault reads a fault from the body.
func knobFault(body []byte) *Fault {
	if !bytes.Contains(body, []byte(`"t_fault"`)) {
		return nil
	}
	var a ask
	if json.Unmarshal(body, &a.knobs) != nil || json.Unmarshal(body, &a) != nil {
		return nil
	}
	f := &Fault{Kind: a.text("fault", ""), To: a.text("to", "")}
	if _, ok := Faults[f.Kind]; !ok {
		return nil
	}
	return f
}

func (f *Fault) early() bool { return f != nil && f.Kind == "early" }

// wire is what the faults that are bytes alone write before they close.
var wire = map[string]string{
	"badstatus":  "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
	"switch":     "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: odd\r\n\r\n",
	"garbage":    "SSH-2.0-OpenSSH_9.9\r\n",
	"twolengths": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
	"badheader":  "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
	"short":      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"done\":",
	"http10":     "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"done\":true}",
	"truncate":   chunkedHead + "2\r\n{}\r\n2\r\n{}\r\nff\r\n{\"mod",
	"unfinished": chunkedHead + "2\r\n{}\r\n2\r\n{}\r\n",
	"close":      "",
}

const chunkedHead = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"

// run answers with the fault. An error ends the connection.
func (f *Fault) run(c *call) error {
	c.s.note(c.rec, func(r *Record) { r.Fault = f.Kind })
	if f.Kind == "early" {
		body := `{"error":"too large"}`
		return c.raw(fmt.Sprintf("HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	if f.Kind == "redirect" {
		return c.head(http.StatusTemporaryRedirect, 0, header{"Location", f.To + c.rec.Target})
	}
	var a ask
	_ = json.Unmarshal(c.body, &a) // a body that names no model is counted under none
	c.ask = a
	c.s.note(c.rec, func(r *Record) { r.Model = a.Model })
	c.s.executed(c.rec)
	if raw, ok := wire[f.Kind]; ok {
		if err := c.raw(raw); err != nil {
			return err
		}
		return errBroken
	}
	return f.act(c)
}

// act runs the faults that take more than bytes.
func (f *Fault) act(c *call) error {
	switch f.Kind {
	case "hang":
		<-c.ctx.Done()
		return c.ctx.Err()
	case "reset":
		c.link.reset()
		return errBroken
	case "500":
		return c.fail(http.StatusInternalServerError, "llama runner process has terminated: exit status 2")
	case "endless", "rst":
		return f.babble(c)
	case "interim":
		if err := c.raw("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"); err != nil {
			return err
		}
		return c.json(200, object{"done": true})
	case "trailer":
		return c.raw("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Sum: 7\r\n\r\n")
	case "echohead":
		return c.whole(200, []byte("{}"), contentType("application/json"), header{"X-Debug", "auth=" + strings.Join(c.rec.Header("Authorization"), " ")})
	case "echotrailer":
		return c.raw("HTTP/1.1 200 OK\r\nTrailer: X-Debug\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Debug: " +
			strings.Join(c.rec.Header("Authorization"), " ") + "\r\n\r\n")
	case "closeheader":
		return c.whole(200, []byte("{}"), header{"Connection", "close"})
	case "extra":
		return c.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
	case "hostile":
		return c.whole(200, []byte(`{"done":true}`), contentType("application/json"),
			header{"Connection", "X-Nominated, keep-alive"}, header{"X-Nominated", "1"}, header{"Keep-Alive", "timeout=1"},
			header{"Access-Control-Allow-Origin", "*"}, header{"Access-Control-Allow-Credentials", "true"},
			header{"X-Fairway-Node", "forged"}, header{"Set-Cookie", "session=evil"}, header{"Upgrade", "h2c"},
			header{"Proxy-Authenticate", "Basic"}, header{"X-Long", strings.Repeat("x", 4096)})
	case "bighead":
		if err := c.raw("HTTP/1.1 200 OK\r\n"); err != nil {
			return err
		}
		for {
			if err := c.raw("X-More: " + strings.Repeat("y", 1000) + "\r\n"); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("no fault %q", f.Kind)
}

// babble streams tokens, for ever or until the reset.
func (f *Fault) babble(c *call) error {
	sp := newSpeaker(c)
	sp.stream = true
	for i := 0; ; i++ {
		if f.Kind == "rst" && i == 2 {
			c.link.reset()
			return errBroken
		}
		if err := sp.say(fmt.Sprintf("w%d ", i)); err != nil {
			return err
		}
		if err := c.pause(10 * time.Millisecond); err != nil {
			return err
		}
	}
}
