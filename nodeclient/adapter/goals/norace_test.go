//go:build !race

package goals

import "time"

// slack is how late a result may be.
const slack = 100 * time.Millisecond
