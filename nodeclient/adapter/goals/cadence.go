package goals

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// How often a job is looked at, as the API's own client does it.
const (
	pollStart = time.Second
	pollCap   = 5 * time.Second
	pollStale = 3 // looks in a row that bring nothing new make the pause half as long again
)

// How a question is asked again.
const (
	maxAttempts = 5 // all together
	retryBase   = 200 * time.Millisecond
	retryCap    = 30 * time.Second
)

// cadence is the pause between two looks at a job. It grows and never shrinks again.
type cadence struct {
	pause time.Duration
	stale int
}

// next is the pause after a look.
func (c *cadence) next(news bool) time.Duration {
	if c.pause == 0 {
		c.pause = pollStart
	}
	if news {
		c.stale = 0
	} else if c.stale++; c.stale == pollStale {
		c.pause, c.stale = min(c.pause*3/2, pollCap), 0
	}
	return c.pause
}

// backoff is how long to wait after so many attempts: what the answer asks for in seconds, or twice as long each time, give or take a
// quarter.
func backoff(attempts int, resp *adapter.Response) time.Duration {
	if resp != nil {
		for _, h := range resp.Headers {
			if !strings.EqualFold(h.Name, "Retry-After") {
				continue
			}
			if s, err := strconv.ParseUint(h.Value, 10, 31); err == nil {
				return min(max(time.Duration(s)*time.Second, retryBase), retryCap) //nolint:gosec // 31 bits
			}
		}
	}
	d := min(retryBase<<min(attempts-1, 10), retryCap)
	return d - d/4 + rand.N(d/2+1)
}
