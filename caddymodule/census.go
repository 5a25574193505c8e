package caddymodule

// census is what the hubs of this process have at one moment, for `status` and metrics.
type census struct {
	States   map[string]int // nodes, by state
	Sessions int
	Lanes    int
	InFlight int
	Waiting  int

	credits map[place]int
	fenced  map[string]uint64
	leases  map[string]uint64 // by result
	storeUp *bool             // nil without a shared store
}

// place is a target of a node.
type place struct{ node, target string }

func takeCensus(hubs []*sharedHub) census {
	c := census{States: map[string]int{}, credits: map[place]int{}, fenced: map[string]uint64{}, leases: map[string]uint64{}}
	for _, h := range hubs {
		c.add(h)
	}
	return c
}

func (c *census) add(h *sharedHub) {
	f := h.Fleet()
	c.InFlight += h.InFlight()
	c.Waiting += f.Waiting()
	for reason, n := range f.FencedCounts() {
		c.fenced[reason] += n
	}
	for result, n := range h.LeaseCounts() {
		if !leaseResults[result] {
			result = otherResult
		}
		c.leases[result] += n
	}
	if up, shared := h.storeUp(); shared {
		both := up && (c.storeUp == nil || *c.storeUp)
		c.storeUp = &both
	}
	for _, n := range f.OwnNodes() {
		c.States[n.State]++
		for _, s := range n.Sessions {
			c.Sessions++
			c.Lanes += s.Lanes
		}
		if len(n.Sessions) == 0 {
			continue
		}
		for _, t := range n.Targets {
			c.credits[place{n.Name, t.Name}] += t.Credits.Free
		}
	}
}
