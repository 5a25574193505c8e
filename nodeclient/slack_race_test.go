//go:build race

package nodeclient

import "time"

// slack is what times are allowed beyond their bound: the race detector slows a machine down that runs other tests, too.
const slack = 300 * time.Millisecond
