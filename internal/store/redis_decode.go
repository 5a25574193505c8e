package store

import (
	"fmt"
	"strconv"
)

var errAnswer = fmt.Errorf("%w: a script answered what it never does", ErrUnavailable)

// number is the first of an answer.
func number(answer []any, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	d := decoder{rest: answer}
	n := d.number()
	return n, d.err
}

// decoder takes an answer apart.
type decoder struct {
	rest []any
	err  error
}

func (d *decoder) next() any {
	if len(d.rest) == 0 {
		d.err = errAnswer
		return nil
	}
	v := d.rest[0]
	d.rest = d.rest[1:]
	return v
}

func (d *decoder) text() string {
	s, ok := d.next().(string)
	if !ok {
		d.err = errAnswer
	}
	return s
}

func (d *decoder) number() uint64 {
	n, err := strconv.ParseUint(d.text(), 10, 64)
	if err != nil {
		d.err = errAnswer
	}
	return n
}

// count is a number that the server did not make a text of.
func (d *decoder) count() int64 {
	n, ok := d.next().(int64)
	if !ok {
		d.err = errAnswer
	}
	return n
}

var verdictOf = map[rune]Verdict{'o': VerdictOK, 's': VerdictSuperseded, 'm': VerdictMissing}

// verdicts appends those that a text has a letter for each of.
func (d *decoder) verdicts(out []Verdict) []Verdict {
	for _, letter := range d.text() {
		v, ok := verdictOf[letter]
		if !ok {
			d.err = errAnswer
		}
		out = append(out, v)
	}
	return out
}

func (d *decoder) texts() []string {
	list, ok := d.next().([]any)
	if !ok {
		d.err = errAnswer
	}
	out := make([]string, len(list))
	for i, v := range list {
		if out[i], ok = v.(string); !ok {
			d.err = errAnswer
		}
	}
	return out
}
