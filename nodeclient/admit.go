package nodeclient

import (
	"net/http"
	"sync"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// maxPlaces is how many runs without a credit (show, load, unload, management) a node takes at once, so that they never wait behind a long
// answer (DECISIONS.md, 7).
const maxPlaces = 8

// credits are the inference runs that a target takes at once. Safe for concurrent use.
type credits struct {
	perModel, perTarget int

	mu     sync.Mutex
	used   map[string]int  // guarded by mu; by model
	total  int             // guarded by mu
	hungry map[*vault]bool // guarded by mu: sessions of which a run was refused, and whose gateways were not told since that there is room
}

func newCredits(perModel, perTarget int) *credits {
	return &credits{perModel: perModel, perTarget: perTarget, used: make(map[string]int), hungry: make(map[*vault]bool)}
}

// take takes one credit, if there is one.
func (c *credits) take(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used[model] >= c.perModel || c.total >= c.perTarget {
		return false
	}
	c.used[model]++
	c.total++
	return true
}

// give returns a credit, and the sessions whose gateways are to hear of it: all that wait, since the node cannot know which of them still has a run for it.
func (c *credits) give(model string) (tell []*vault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.used[model]--; c.used[model] == 0 {
		delete(c.used, model)
	}
	for v := range c.hungry {
		tell = append(tell, v)
	}
	clear(c.hungry)
	return tell
}

// refused notes, once the refusal is on its way, that the gateway of v takes the target for full. It reports whether a credit of model has become free
// meanwhile, so that it must be told now.
func (c *credits) refused(model string, v *vault) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used[model] >= c.perModel || c.total >= c.perTarget {
		c.hungry[v] = true
		return false
	}
	return true
}

// roomFor reports whether the target has a free credit; if not, the gateway of v waits for the next one.
func (c *credits) roomFor(v *vault) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= c.perTarget {
		c.hungry[v] = true
		return false
	}
	return true
}

// forget drops a session that has ended.
func (c *credits) forget(v *vault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.hungry, v)
}

func (c *credits) inUse() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// modelKey is the name under which credits of a model are counted: tiny and tiny:latest are one.
func modelKey(model string) string {
	if n, err := ollama.ParseName(model); err == nil {
		return n.Key()
	}
	return model
}

// admission is a run that was let in.
type admission struct {
	target   *target
	lease    *lease.Checked   // nil: without a credential
	endpoint *ollama.Endpoint // nil at a goal-job API, which the catalogue knows nothing of
	release  func()
}

// admit decides at once whether the node takes a run. after, if not nil, is to be called once the refusal has been written.
func (c *Client) admit(r *tunnel.NodeRun, v *vault) (a admission, refusal *tunnel.Refused, after func()) {
	o := r.Open
	t := c.targetFor(o)
	switch {
	case o.Kind != tunnel.KindTunnel && o.Kind != tunnel.KindEdge:
		return a, elsewhere(tunnel.CodeUnsupportedKind, "this node knows no runs of that kind"), nil
	case t == nil:
		return a, elsewhere(tunnel.CodeUnknownTarget, "no such target here"), nil
	}
	a.target = t
	if o.Kind == tunnel.KindEdge {
		if fault := typedFault(o); fault != "" {
			return a, elsewhere(tunnel.CodeBadRun, fault), nil
		}
	}
	var allowed bool
	if a.endpoint, allowed = c.permits(t, o); !allowed {
		return a, never(tunnel.CodeNotAllowed, "this node's owner does not allow it"), nil
	}
	if r.Lease != nil {
		// Before the credit: a bad lease never takes capacity. It is opened once the provider is connected.
		k, err := v.check(r, t)
		if err != nil {
			return a, never(leaseCode(err), ""), nil
		}
		a.lease = k
	}
	if !o.Credit {
		if c.places.Add(1) > maxPlaces {
			c.places.Add(-1)
			return a, elsewhere(tunnel.CodeNodeBusy, "too many runs without a credit"), nil
		}
		a.release = func() { c.places.Add(-1) }
		return a, nil, nil
	}
	model := modelKey(o.Model)
	if !t.credits.take(model) {
		f := elsewhere(tunnel.CodeNodeBusy, "no credit is free")
		f.NoCredit = true
		return a, f, func() {
			if t.credits.refused(model, v) {
				v.owed.add(t)
			}
		}
	}
	a.release = func() {
		for _, waits := range t.credits.give(model) {
			waits.owed.add(t)
		}
	}
	return a, nil, nil
}

// permits says whether a run may ask what it asks for, and which endpoint that is. Of a goal-job API a tunnel run may ask what the closed list of calls on
// own workflows has, without a body: jobs are for typed runs.
func (c *Client) permits(t *target, o *tunnel.RunOpen) (*ollama.Endpoint, bool) {
	method, path := o.Method, string(o.Path)
	switch {
	case t.kind != kindGoals && o.Kind == tunnel.KindEdge:
		method, path = http.MethodPost, chatPath(t.kind)
	case t.kind == kindGoals && o.Kind == tunnel.KindEdge:
		return nil, true
	case t.kind == kindGoals:
		_, ok := edge.PermitWorkflow(method, path)
		return nil, ok && o.Body == tunnel.BodyNone
	}
	e := c.allow.permits(method, path)
	return e, e != nil
}

func (c *Client) targetFor(o *tunnel.RunOpen) *target {
	for _, t := range c.targets {
		if t.name == o.Target && t.kind == o.Adapter && !t.view().withdrawn {
			return t
		}
	}
	return nil
}

func elsewhere(code, reason string) *tunnel.Refused {
	return &tunnel.Refused{Code: code, Retry: tunnel.RetryElsewhere, Reason: reason}
}

func never(code, reason string) *tunnel.Refused {
	return &tunnel.Refused{Code: code, Retry: tunnel.RetryNever, Reason: reason}
}
