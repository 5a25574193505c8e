//go:build race

package goals

import "time"

// slack is how late a result may be; the race detector makes everything about ten times as slow.
const slack = 500 * time.Millisecond
