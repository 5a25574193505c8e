package edge

import (
	"encoding/json"
	"time"
)

// Status says how a run ended. The set is closed.
type Status string

// The four statuses.
const (
	Success     Status = "success"     // there is an output, and it passed every check
	Uncertain   Status = "uncertain"   // the model ran, and nothing, or too little, of its answer holds
	Unavailable Status = "unavailable" // there was no answer: nothing could be reached, or not in time, or not readable
	Invalid     Status = "invalid"     // there was an answer that breaks the schema; it is discarded
)

// DegradeReason says why a run was unavailable. The set is closed; finer reasons stand in the detail.
type DegradeReason string

// The four reasons.
const (
	ServerUnreachable DegradeReason = "server_unreachable"
	DeadlineExceeded  DegradeReason = "deadline_exceeded"
	OutputUnparseable DegradeReason = "output_unparseable"
	OtherError        DegradeReason = "error"
)

// Disposition is what an application does with a result.
type Disposition string

// The two dispositions.
const (
	Accept   Disposition = "accept"
	Fallback Disposition = "fallback"
)

// Evidence is one thing that an output rests on.
//
// For a verbatim field Source names the input text, Snippet is the value, and Offset the place in that text where it begins, in Unicode code
// points. For a closed-set field, which rests on its author's list and not on a place in a text, Source names the field and Offset is nil.
// Of a job in the cloud Source is its citation and nothing else is known.
type Evidence struct {
	Source  string  `json:"source"`
	Snippet *string `json:"snippet"`
	Offset  *int    `json:"offset"`
}

// ModelResult is the only thing that a typed run ends in, whatever happened. It is a value: who has one shares it and changes nothing.
type ModelResult struct {
	Status        Status
	ModelID       string
	ModelVersion  string
	LatencyMS     float64
	Output        json.RawMessage // nil for none; never with unavailable and invalid
	Confidence    *float64        // 0 to 1: the share of fields that are grounded; nil where nothing had to be
	Evidence      []Evidence
	DegradeReason DegradeReason // "" for none; only with unavailable
	DegradeDetail string        // "" for none; never with success
}

// Origin says what made a result, and how long it took.
type Origin struct {
	ModelID      string
	ModelVersion string
	Latency      time.Duration
}

func (o Origin) result(s Status) ModelResult {
	r := ModelResult{Status: s, ModelID: o.ModelID, ModelVersion: o.ModelVersion, LatencyMS: float64(o.Latency.Microseconds()) / 1000}
	if r.ModelID == "" {
		r.ModelID = localModel
	}
	if r.ModelVersion == "" {
		r.ModelVersion = noVersion
	}
	r.LatencyMS = max(r.LatencyMS, 0)
	return r
}

// Succeeded is the result of a run whose output was checked where it was made, such as a job in the cloud.
func Succeeded(o Origin, output json.RawMessage, evidence ...Evidence) ModelResult {
	r := o.result(Success)
	r.Output, r.Evidence = output, evidence
	return r
}

// Doubtful is the result of a run that ended without an output to rely on. Detail may be empty.
func Doubtful(o Origin, detail string) ModelResult {
	r := o.result(Uncertain)
	r.DegradeDetail = short(detail, maxDetail)
	return r
}

// discarded is the result of a run whose answer broke the rule that detail names.
func discarded(o Origin, detail string) ModelResult {
	r := o.result(Invalid)
	r.DegradeDetail = short(detail, maxDetail)
	return r
}

// Disposition says whether the application may act on the result. It is total: whatever is no success, or an uncertain output that the caller
// asked for, is a fallback.
func (r ModelResult) Disposition(acceptUncertain bool) Disposition {
	switch {
	case r.Status == Success, r.Status == Uncertain && acceptUncertain && r.Output != nil:
		return Accept
	}
	return Fallback
}
