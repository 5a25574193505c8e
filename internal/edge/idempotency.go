package edge

import (
	"crypto/sha256"
	"encoding/hex"
)

// keyLimits bound the payload of an idempotency key.
var keyLimits = limits{bytes: maxAnswer + 64<<10, depth: maxAnswerDepth + 2, values: maxAnswerValues + 1000}

// IdempotencyKey is what a result is filed under wherever it arrives twice: "idem:" and the SHA-256 of the job, the status in which it
// ended, the reason (nil for none) and a JSON payload. It is a matter of content alone: the order of members and the white space between
// tokens make no difference, and no clock of the machine that ran it takes part. Who receives a result derives the key again.
func IdempotencyKey(jobSpecID, runStatus string, terminalReason *string, payload []byte) (string, error) {
	n, refused := readJSON(payload, keyLimits)
	if refused != nil {
		return "", under("payload", refused)
	}
	b := append(appendString([]byte(`{"job_spec_id":`), jobSpecID), `,"payload":`...)
	b = appendCanonical(b, n)
	b = appendString(append(b, `,"run_status":`...), runStatus)
	b = append(b, `,"terminal_reason":`...)
	if terminalReason == nil {
		b = append(b, "null"...)
	} else {
		b = appendString(b, *terminalReason)
	}
	sum := sha256.Sum256(append(b, '}'))
	return "idem:" + hex.EncodeToString(sum[:]), nil
}
