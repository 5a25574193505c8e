package edge

import "slices"

// Answer is what a caller gets for a run: its result, and what became of the request on the way.
type Answer struct {
	RunID           string      `json:"run_id"`
	Session         string      `json:"session_id"`
	Placement       Placement   `json:"placement"`
	PlacementReason string      `json:"placement_reason"`
	Disposition     Disposition `json:"disposition"`
	IdempotencyKey  string      `json:"idempotency_key"`
	Result          ModelResult `json:"result"`
}

// NewAnswer completes a result. The key is that of the job, which a goal has in the cloud, and otherwise is the run itself.
func NewAnswer(runID, jobSpecID string, r *Request, d Decision, result ModelResult) (Answer, error) {
	if jobSpecID == "" {
		jobSpecID = runID
	}
	key, err := resultKey(jobSpecID, result)
	if err != nil {
		return Answer{}, err
	}
	return Answer{
		RunID: runID, Session: r.Session, Placement: d.Placement, PlacementReason: d.Reason,
		Disposition: result.Disposition(r.AcceptUncertain), IdempotencyKey: key, Result: result,
	}, nil
}

// JSON is the answer as a caller gets it, without a line break.
func (a Answer) JSON() ([]byte, error) { return plainJSON(a) }

// resultKey files a result: an answer is a completed job whose payload is the output, everything else a failed one with its reason. Evidence
// and latency do not take part; they say how the output came about.
func resultKey(jobSpecID string, r ModelResult) (string, error) {
	status, reason := "completed", (*string)(nil)
	switch why := string(r.DegradeReason); {
	case r.Status == Invalid:
		why = string(Invalid)
		status, reason = "failed", &why
	case r.Status == Unavailable:
		status, reason = "failed", &why
	}
	payload := []byte(`{}`)
	if r.Output != nil {
		payload = slices.Concat([]byte(`{"output":`), r.Output, []byte(`}`))
	}
	return IdempotencyKey(jobSpecID, status, reason, payload)
}
