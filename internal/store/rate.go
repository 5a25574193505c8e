package store

import "time"

// rate limits the registrations of one node: a token bucket, counted in the time
// that it takes to fill. The zero value is a full one.
//
// It keeps prev+1 from outrunning the clock, on which the order of numbers rests
// after a loss of data, and a node that flaps from loading the fleet.
type rate struct {
	missing time.Duration // until the bucket is full, as of last
	last    time.Time
}

// take reports whether a registration is allowed at now, and counts it if so. A
// clock that was set back fills nothing, but counts on from where it is.
func (r *rate) take(now time.Time) bool {
	if past := now.Sub(r.last); past > 0 {
		r.missing = max(r.missing-past, 0)
	}
	r.last = now
	if r.missing+registerEvery > registerBurst*registerEvery {
		return false
	}
	r.missing += registerEvery
	return true
}
