//go:build !race

package nodeclient

import "time"

// slack is what times are allowed beyond their bound: none.
const slack = 0 * time.Millisecond
