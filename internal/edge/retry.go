package edge

import (
	"math"
	"time"
)

// Retry decides whether a run that failed may be tried again, and when. The zero value has the defaults.
type Retry struct {
	MaxAttempts int           // all attempts together; default 3
	BaseDelay   time.Duration // before the second; default 50 ms
	Factor      float64       // from one delay to the next; default 2
	MaxDelay    time.Duration // default 5 s
}

func (g Retry) withDefaults() Retry {
	if g.MaxAttempts <= 0 {
		g.MaxAttempts = 3
	}
	if g.BaseDelay <= 0 {
		g.BaseDelay = 50 * time.Millisecond
	}
	if g.Factor < 1 {
		g.Factor = 2
	}
	if g.MaxDelay <= 0 {
		g.MaxDelay = 5 * time.Second
	}
	return g
}

// Next admits another attempt after so many, of which the last failed with a code, and says how long to wait first. Only the network may be
// tried again, only while it is certain that nothing ran, and never a credential: there is no other that would do instead.
func (g Retry) Next(attempts int, code string, nothingRan bool) (time.Duration, *Denial) {
	g = g.withDefaults()
	class, _ := classOf(code)
	switch {
	case class != "unreachable":
		return 0, &Denial{GateRetry, "the failure would be the same again"}
	case !nothingRan:
		return 0, &Denial{GateRetry, "nobody knows whether it ran"}
	case attempts >= g.MaxAttempts:
		return 0, &Denial{GateRetry, "all attempts are used up"}
	}
	delay := float64(g.BaseDelay) * math.Pow(g.Factor, float64(max(attempts-1, 0)))
	return time.Duration(min(delay, float64(g.MaxDelay))), nil
}

// Cycle stops a run, or a row of runs, that fails in the same way over and over. It counts by the failure's code, not by its text, which may
// differ each time. It is for one goroutine; the zero value has the default.
type Cycle struct {
	MaxConsecutive int // default 3

	last string
	row  int
}

// Failed notes a failure, and stops at the last that may follow on its like.
func (g *Cycle) Failed(code string) *Denial {
	if code != g.last {
		g.last, g.row = code, 0
	}
	most := g.MaxConsecutive
	if most <= 0 {
		most = 3
	}
	if g.row++; g.row >= most {
		return &Denial{GateCycle, "the same failure came too often in a row"}
	}
	return nil
}

// Succeeded notes that the row has ended.
func (g *Cycle) Succeeded() { g.last, g.row = "", 0 }
