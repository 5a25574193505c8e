package edge

import (
	"fmt"
	"time"
)

// Placement says where a run executes: as asked for, or as decided.
type Placement string

// The placements. A decision is never [Auto].
const (
	Edge  Placement = "edge"  // a provider at a node
	Cloud Placement = "cloud" // a workflow in the cloud
	Auto  Placement = "auto"
)

// coldStart is how long a model may take to load on a small device (about 70 s were seen). A run with a shorter deadline that could go to the
// cloud does not wait for one.
const coldStart = 60 * time.Second

// Demand is what a run asks of a place.
type Demand struct {
	Placement  Placement
	Capability Capability
	Tier       Tier
	Deadline   time.Duration
	Node       bool // a node can run it: everything but a goal
	Workflow   bool // the cloud has a workflow for it
}

// Demand is what the operator asks for, placed as the caller wants it.
func (o *Operator) Demand(p Placement, deadline time.Duration) Demand {
	return Demand{
		Placement: p, Capability: o.Capability, Tier: o.Tier, Deadline: deadline,
		Node: o.Kind != KindGoal, Workflow: o.Workflow != "",
	}
}

// Candidate is a node that has a model for the run.
type Candidate struct {
	Capability Capability
	Tier       Tier
	Ready      bool // may be dispatched to
	Warm       bool // the model is loaded
	Credits    int  // free
}

// State is what a placement is decided by: nothing else counts, and in particular no model is asked.
type State struct {
	Candidates []Candidate
	CloudReady bool // a target of adapter goals is ready
}

// Decision is where a run executes, and why. Code is set where it cannot execute there; it is a code for [Fail].
type Decision struct {
	Placement Placement
	Reason    string // names no node
	Code      string
}

// survey counts the candidates by how far they are from running it.
type survey struct{ nodes, capable, ready, free, warm int }

func (s State) survey(d Demand) survey {
	n := survey{nodes: len(s.Candidates)}
	for _, c := range s.Candidates {
		if c.Capability != d.Capability || !c.Tier.meets(d.Tier) {
			continue
		}
		n.capable++
		if !c.Ready {
			continue
		}
		n.ready++
		if c.Credits <= 0 {
			continue
		}
		n.free++
		if c.Warm {
			n.warm++
		}
	}
	return n
}

// rows is the table: the first row whose condition holds decides. The reason is completed by what was counted.
var rows = []struct {
	when   func(d Demand, n survey, cloud bool) bool
	place  Placement
	code   string
	reason string
}{
	{func(d Demand, _ survey, cloud bool) bool { return d.Placement == Cloud && cloud }, Cloud, "", "as asked for"},
	{func(d Demand, _ survey, _ bool) bool { return d.Placement == Cloud && !d.Workflow }, Cloud, "bad_request", "as asked for, but the run has no workflow there"},
	{func(d Demand, _ survey, _ bool) bool { return d.Placement == Cloud }, Cloud, "no_node", "as asked for, but no way to the cloud is ready"},
	{func(d Demand, _ survey, _ bool) bool { return d.Placement == Edge && !d.Node }, Edge, "bad_request", "as asked for, but a goal runs only in the cloud"},
	{func(d Demand, n survey, _ bool) bool { return d.Placement == Edge && n.ready > 0 }, Edge, "", "as asked for"},
	{func(d Demand, _ survey, _ bool) bool { return d.Placement == Edge }, Edge, "no_node", "as asked for, but no node is ready for it"},
	{func(d Demand, _ survey, cloud bool) bool { return !d.Node && cloud }, Cloud, "", "a goal runs only in the cloud"},
	{func(d Demand, _ survey, _ bool) bool { return !d.Node }, Cloud, "no_node", "a goal runs only in the cloud, and no way there is ready"},
	{func(_ Demand, n survey, _ bool) bool { return n.warm > 0 }, Edge, "", "a node has the model loaded and is free"},
	{func(d Demand, n survey, cloud bool) bool { return n.free > 0 && cloud && d.Deadline < coldStart }, Cloud, "", "every free node would have to load the model first, and the deadline is short"},
	{func(_ Demand, n survey, _ bool) bool { return n.free > 0 }, Edge, "", "a node is free; it loads the model first"},
	{func(_ Demand, n survey, cloud bool) bool { return n.ready > 0 && cloud }, Cloud, "", "every node that could is busy"},
	{func(_ Demand, n survey, _ bool) bool { return n.ready > 0 }, Edge, "", "every node that could is busy; it waits for one"},
	{func(_ Demand, _ survey, cloud bool) bool { return cloud }, Cloud, "", "no node is ready for it"},
	{func(Demand, survey, bool) bool { return true }, Edge, "no_node", "no node is ready for it, and the cloud cannot take it"},
}

// Place decides where a run executes. Equal demands and states give equal decisions, in whatever order the candidates stand.
func Place(d Demand, s State) Decision {
	n := s.survey(d)
	cloud := s.CloudReady && d.Workflow
	for _, row := range rows {
		if !row.when(d, n, cloud) {
			continue
		}
		reason := fmt.Sprintf("%s: %s", d.Placement, row.reason)
		if d.Node && d.Placement != Cloud {
			reason += fmt.Sprintf(" (%s, %s: of %d nodes with the model %d are good enough, %d ready, %d free, %d warm)",
				d.Capability, d.Tier, n.nodes, n.capable, n.ready, n.free, n.warm)
		}
		return Decision{Placement: row.place, Reason: reason, Code: row.code}
	}
	panic("edge: the last row always holds")
}
