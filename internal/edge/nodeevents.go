package edge

import (
	"bytes"
	"encoding/json"
)

// Bounds of what a node sends of a run.
const (
	MaxNodeResult = 192 << 10 // bytes of a result
	maxNodeEvent  = 64 << 10  // bytes of an event's line: one frame of the tunnel
)

// NodeEvent is one event that a node sends while a run is under way: how far it has come, or, with no state, text as the model says it.
type NodeEvent struct {
	State RunState
	Text  string
}

// NodeEvents reads what a node sends of one run: lines as [Events] writes them, of progress and delta and of nothing else. It is for one goroutine.
type NodeEvents struct {
	run  string
	rest []byte // an unfinished line
}

// NewNodeEvents is for the events of one run.
func NewNodeEvents(runID string) *NodeEvents { return &NodeEvents{run: runID} }

// Feed takes the next bytes, split anywhere, and gives the events that they complete. An error is a code for [Fail].
func (r *NodeEvents) Feed(p []byte) ([]NodeEvent, error) {
	r.rest = append(r.rest, p...)
	var events []NodeEvent
	for {
		line, rest, ok := bytes.Cut(r.rest, []byte("\n"))
		if !ok {
			break
		}
		r.rest = rest
		e, err := r.event(line)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	if len(r.rest) > maxNodeEvent {
		return nil, badResponse
	}
	return events, nil
}

func (r *NodeEvents) event(line []byte) (NodeEvent, error) {
	var e struct {
		Event string   `json:"event"`
		RunID string   `json:"run_id"`
		State RunState `json:"state"`
		Text  string   `json:"text"`
	}
	if len(line) > maxNodeEvent || json.Unmarshal(line, &e) != nil || e.RunID != r.run {
		return NodeEvent{}, badResponse
	}
	switch {
	case e.Event == "delta":
		return NodeEvent{Text: e.Text}, nil
	case e.Event == "progress" && (e.State == Queued || e.State == Loading || e.State == Generating):
		return NodeEvent{State: e.State}, nil
	}
	return NodeEvent{}, badResponse
}
