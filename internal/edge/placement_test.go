package edge

import (
	"math/rand"
	"strings"
	"testing"
	"time"
)

func TestPlacementTable(t *testing.T) {
	t.Parallel()
	node := func(ready, warm bool, credits int) Candidate { return Candidate{LLM, Standard, ready, warm, credits} }
	warm, cold, busy, away := node(true, true, 1), node(true, false, 1), node(true, true, 0), node(false, true, 1)
	nodeRun := Demand{Capability: LLM, Tier: Standard, Deadline: 2 * time.Minute, Node: true}
	both, goal, hasty := nodeRun, Demand{Capability: LLM, Tier: Standard, Workflow: true}, nodeRun
	both.Workflow = true
	hasty.Workflow, hasty.Deadline = true, time.Second
	premium, vision := nodeRun, nodeRun
	premium.Tier, vision.Capability = Premium, OCR
	tests := []struct {
		name   string
		want   Placement
		demand Demand
		nodes  []Candidate
		cloud  bool
		place  Placement
		code   string
		reason string
	}{
		{"edge, ready", Edge, nodeRun, []Candidate{busy}, true, Edge, "", "edge: as asked for (llm, standard: of 1 nodes with the model 1 are good enough, 1 ready, 0 free, 0 warm)"},
		{"edge, never the cloud instead", Edge, both, nil, true, Edge, "no_node", "edge: as asked for, but no node is ready for it (llm, standard: of 0 nodes"},
		{"edge, away", Edge, nodeRun, []Candidate{away}, true, Edge, "no_node", "1 are good enough, 0 ready"},
		{"edge, a goal", Edge, goal, []Candidate{warm}, true, Edge, "bad_request", "a goal runs only in the cloud"},
		{"cloud", Cloud, both, []Candidate{warm}, true, Cloud, "", "cloud: as asked for"},
		{"cloud, never a node instead", Cloud, both, []Candidate{warm}, false, Cloud, "no_node", "no way to the cloud is ready"},
		{"cloud, no workflow", Cloud, nodeRun, []Candidate{warm}, true, Cloud, "bad_request", "no workflow there"},
		{"auto, warm", Auto, both, []Candidate{cold, warm}, true, Edge, "", "auto: a node has the model loaded and is free (llm, standard: of 2 nodes with the model 2 are good enough, 2 ready, 2 free, 1 warm)"},
		{"auto, cold, time enough", Auto, both, []Candidate{cold}, true, Edge, "", "it loads the model first"},
		{"auto, cold, in haste", Auto, hasty, []Candidate{cold}, true, Cloud, "", "the deadline is short"},
		{"auto, cold, in haste, no cloud", Auto, hasty, []Candidate{cold}, false, Edge, "", "it loads the model first"},
		{"auto, warm, in haste", Auto, hasty, []Candidate{warm}, true, Edge, "", "has the model loaded"},
		{"auto, busy", Auto, both, []Candidate{busy}, true, Cloud, "", "every node that could is busy"},
		{"auto, busy, no cloud", Auto, both, []Candidate{busy}, false, Edge, "", "it waits for one"},
		{"auto, busy, no workflow", Auto, nodeRun, []Candidate{busy}, true, Edge, "", "it waits for one"},
		{"auto, away", Auto, both, []Candidate{away}, true, Cloud, "", "no node is ready"},
		{"auto, nothing at all", Auto, both, nil, false, Edge, "no_node", "the cloud cannot take it"},
		{"auto, a goal", Auto, goal, []Candidate{warm}, true, Cloud, "", "auto: a goal runs only in the cloud"},
		{"auto, a goal, no cloud", Auto, goal, []Candidate{warm}, false, Cloud, "no_node", "no way there is ready"},
		{"auto, not good enough", Auto, premium, []Candidate{warm}, false, Edge, "no_node", "llm, premium: of 1 nodes with the model 0 are good enough"},
		{"auto, better than asked", Auto, nodeRun, []Candidate{{LLM, Premium, true, true, 1}}, false, Edge, "", "has the model loaded"},
		{"auto, not able", Auto, vision, []Candidate{warm}, false, Edge, "no_node", "ocr, standard"},
		{"auto, a tier that is none", Auto, nodeRun, []Candidate{{LLM, "best", true, true, 1}}, false, Edge, "no_node", "0 are good enough"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.demand.Placement = tt.want
			got := Place(tt.demand, State{tt.nodes, tt.cloud})
			if got.Placement != tt.place || got.Code != tt.code || !strings.Contains(got.Reason, tt.reason) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestPlacementTableIsDeterministic: the same nodes in any order, a thousand times, and a decision for everything.
func TestPlacementTableIsDeterministic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewSource(1))
	tiers := []Tier{Basic, Standard, Premium}
	for range 1000 {
		var nodes []Candidate
		for range rng.Intn(6) {
			nodes = append(nodes, Candidate{[]Capability{LLM, OCR}[rng.Intn(2)], tiers[rng.Intn(3)], rng.Intn(2) == 0, rng.Intn(2) == 0, rng.Intn(3) - 1})
		}
		d := Demand{[]Placement{Edge, Cloud, Auto}[rng.Intn(3)], LLM, tiers[rng.Intn(3)], time.Duration(rng.Intn(100)) * time.Second, rng.Intn(3) > 0, rng.Intn(2) == 0}
		s := State{nodes, rng.Intn(2) == 0}
		first := Place(d, s)
		if first.Placement != Edge && first.Placement != Cloud || first.Reason == "" || first.Code != "" && Fail(Origin{}, first.Code).DegradeDetail == "internal" {
			t.Fatalf("%+v %+v: %+v", d, s, first)
		}
		if first.Code == "" && (first.Placement == Edge && !d.Node || first.Placement == Cloud && (!s.CloudReady || !d.Workflow)) {
			t.Fatalf("%+v %+v: placed where it cannot run: %+v", d, s, first)
		}
		for range 5 {
			rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			if again := Place(d, s); again != first {
				t.Fatalf("%+v: %+v, then %+v", d, first, again)
			}
		}
	}
}

func TestOperatorDemand(t *testing.T) {
	t.Parallel()
	o := contractOperator(t)
	if got := o.Demand(Auto, time.Second); got != (Demand{Auto, LLM, Standard, time.Second, true, true}) {
		t.Errorf("contract of a workflow: %+v", got)
	}
	if got := schemaOperator(t, `true`).Demand(Edge, 0); got != (Demand{Edge, LLM, Standard, 0, true, false}) {
		t.Errorf("schema: %+v", got)
	}
}
