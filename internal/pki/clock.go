package pki

import "time"

const (
	// ClockSlack is how long before its validity a certificate is already taken.
	// A node whose clock is 15 minutes slow must be able to join, and the gateway
	// it joins may have made its CA a moment ago. An authority dates nothing into
	// the future, so being early gives nobody anything.
	ClockSlack = 20 * time.Minute
	// clockWarning is the skew beyond which a person should look: what leaves are
	// back-dated by.
	clockWarning = backdate
)

// CheckClock compares the peer's clock with ours, both read at the same moment
// as nearly as the caller can. skew is remote − local: positive where ours is
// slow. warn is set beyond five minutes either way; the caller warns once,
// showing both clocks. A skew is never by itself a reason to refuse.
func CheckClock(remote, local time.Time) (skew time.Duration, warn bool) {
	skew = remote.Sub(local)
	return skew, skew > clockWarning || skew < -clockWarning
}
