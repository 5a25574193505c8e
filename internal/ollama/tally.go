package ollama

import (
	"bytes"
	"math"
)

// tallyTail is how much of an answer's end a Tally keeps. The counters stand in the last object of each family's answer, behind
// everything long (generate's context included).
const tallyTail = 8 << 10

// Usage is what a provider says it has counted. Zero where it says nothing.
type Usage struct {
	Input, Output uint64
}

// Tally watches an answer's body as it passes and remembers its end, which says how many tokens it took, or that the stream broke off with an
// error in it. It copies at most 8 KiB of what it sees at a time and parses nothing until asked. The zero value is not usable; not safe for
// concurrent use.
type Tally struct {
	input, output []byte   // member names, as `"name":`
	ends          []string // what the last line of a stream has in it, and no other
	tail          []byte
}

// NewTally returns a Tally for answers of e; nil, on which every method works and counts nothing, where e has no counters.
func NewTally(e *Endpoint) *Tally {
	if e == nil || e.Class != Inference {
		return nil
	}
	switch {
	case e.Family == Native:
		// The second for a last line whose head is longer ago than a Tally remembers.
		return &Tally{input: []byte(`"prompt_eval_count":`), output: []byte(`"eval_count":`), ends: []string{`"done":true`, `"total_duration":`}}
	case e.Family == Anthropic:
		return &Tally{input: []byte(`"input_tokens":`), output: []byte(`"output_tokens":`), ends: []string{`"type":"message_stop"`}}
	case e.Name == "v1.responses":
		return &Tally{
			input: []byte(`"input_tokens":`), output: []byte(`"output_tokens":`),
			ends: []string{`"type":"response.completed"`, `"type":"response.incomplete"`},
		}
	}
	return &Tally{input: []byte(`"prompt_tokens":`), output: []byte(`"completion_tokens":`), ends: []string{`data: [DONE]`}}
}

// Add takes in the next bytes of the body.
func (t *Tally) Add(p []byte) {
	if t == nil {
		return
	}
	if len(p) >= tallyTail {
		t.tail = append(t.tail[:0], p[len(p)-tallyTail:]...)
		return
	}
	if len(t.tail)+len(p) > 2*tallyTail {
		t.tail = append(t.tail[:0], t.tail[len(t.tail)-tallyTail:]...)
	}
	t.tail = append(t.tail, p...)
}

// Usage returns the counters that stand last in the body. A member name cannot be forged by what a model says: inside a JSON string its closing quote is escaped.
func (t *Tally) Usage() Usage {
	if t == nil {
		return Usage{}
	}
	return Usage{Input: lastNumber(t.tail, t.input), Output: lastNumber(t.tail, t.output)}
}

// Whole reports whether the body is a stream whose last line is there: nothing of the answer is missing. A member cannot be forged by what a model
// says, as in Usage; the line of OpenAI's end is no JSON.
func (t *Tally) Whole() bool {
	if t == nil || !bytes.HasSuffix(t.tail, []byte("\n")) {
		return false
	}
	end := bytes.TrimRight(t.tail, "\r\n")
	last := end[bytes.LastIndexByte(end, '\n')+1:]
	for _, mark := range t.ends {
		if bytes.Contains(last, []byte(mark)) {
			return true
		}
	}
	return false
}

// Broke reports whether the body ends in an error that the provider put into a stream: after a 200, where a status can no longer say it.
func (t *Tally) Broke() bool {
	if t == nil {
		return false
	}
	end := bytes.TrimRight(t.tail, "\r\n")
	last := end[bytes.LastIndexByte(end, '\n')+1:]
	last = bytes.TrimSpace(bytes.TrimPrefix(last, []byte("data:")))
	return bytes.HasPrefix(last, []byte(`{"error":`)) || bytes.HasPrefix(last, []byte(`{"type":"error"`)) ||
		bytes.HasPrefix(last, []byte(`{"type":"response.failed"`))
}

// lastNumber reads the unsigned integer behind the last occurrence of name; 0 when there is none or it does not fit.
func lastNumber(b, name []byte) uint64 {
	i := bytes.LastIndex(b, name)
	if i < 0 {
		return 0
	}
	var n uint64
	for _, c := range bytes.TrimLeft(b[i+len(name):], " ") {
		if c < '0' || c > '9' {
			break
		}
		if n > (math.MaxUint64-9)/10 {
			return 0
		}
		n = n*10 + uint64(c-'0')
	}
	return n
}
