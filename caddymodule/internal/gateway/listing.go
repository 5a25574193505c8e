package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// Some providers list their models only for a credential. Their node has none, so the gateway asks, through the node and with a lease, as for any run.
const (
	listEvery   = time.Minute // each costs three lines of the audit
	listLook    = 250 * time.Millisecond
	listTimeout = 10 * time.Second
	listAtOnce  = 4
	maxListing  = 8 << 20
	// lister is the principal of these runs; no key can name it.
	lister = "fairway:inventory"
)

// listings asks locked targets what they hold. Goroutines: one that looks, and at most listAtOnce that ask; all end with ctx.
type listings struct {
	hub *Hub
	at  chan struct{} // one element per listing under way

	mu    sync.Mutex
	tried map[fleet.TargetRef]*attempt // guarded by mu
}

// attempt is what is known of asking one target.
type attempt struct {
	busy bool
	next time.Time
	wait time.Duration // after the next failure
	said string        // the failure that was logged last
}

// list runs until ctx ends.
func (h *Hub) list(ctx context.Context) {
	l := &listings{hub: h, at: make(chan struct{}, listAtOnce), tried: map[fleet.TargetRef]*attempt{}}
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(listLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, t := range l.due(h.fleet.Locked(), time.Now()) {
			wg.Go(func() {
				l.at <- struct{}{}
				defer func() { <-l.at }()
				l.done(t, l.ask(ctx, t))
			})
		}
	}
}

// due selects the targets to ask now, and forgets those that are gone.
func (l *listings) due(locked []fleet.LockedTarget, now time.Time) (out []fleet.LockedTarget) {
	l.mu.Lock()
	defer l.mu.Unlock()
	here := make(map[fleet.TargetRef]bool, len(locked))
	for _, t := range locked {
		ref := fleet.TargetRef{Node: t.Node, Target: t.Target, Generation: t.Generation}
		here[ref] = true
		a := l.tried[ref]
		if a == nil {
			a = &attempt{wait: time.Second}
			l.tried[ref] = a
		}
		if !a.busy && !now.Before(a.next) {
			a.busy = true
			out = append(out, t)
		}
	}
	for ref, a := range l.tried {
		if !here[ref] && !a.busy {
			delete(l.tried, ref)
		}
	}
	return out
}

// done notes how asking went, and logs a new trouble once.
func (l *listings) done(t fleet.LockedTarget, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.tried[fleet.TargetRef{Node: t.Node, Target: t.Target, Generation: t.Generation}]
	a.busy = false
	if err == nil {
		a.next, a.wait, a.said = time.Now().Add(listEvery), time.Second, ""
		return
	}
	a.next = time.Now().Add(a.wait)
	a.wait = min(2*a.wait, listEvery)
	if text := err.Error(); text != a.said {
		a.said = text
		l.hub.log().Warn("a provider that asks for a credential could not be asked for its models", zap.String("node", t.Node), zap.String("target", t.Target), zap.Error(err))
	}
}

// ask lists one target's models.
func (l *listings) ask(ctx context.Context, t fleet.LockedTarget) error {
	st := l.hub.Current()
	if st == nil {
		return nil
	}
	p, ok := st.profileFor(fleet.Candidate{Node: t.Node, Labels: t.Labels, Adapter: t.Adapter, Target: t.Target})
	if !ok || p == nil || p.Slot == "" {
		return fmt.Errorf("no profile with a slot is for adapter %s and target %s", t.Adapter, t.Target)
	}
	path := "/v1/models"
	if t.Adapter == "ollama" {
		path = "/api/tags"
	}
	status, body, err := l.hub.get(ctx, st, t, path)
	switch {
	case err != nil:
		return err
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("the provider answers %d: it does not take the credential in slot %s", status, p.Slot)
	case status != http.StatusOK:
		return fmt.Errorf("the provider answers %d to GET %s", status, path)
	}
	models, err := entries(body)
	if err != nil {
		return err
	}
	return l.hub.fleet.Learn(t.Node, t.Generation, t.Target, models)
}

// entries reads a listing of either kind: the entries of /v1/models stand under data, those of /api/tags under models.
func entries(body []byte) ([]*tunnel.Model, error) {
	var list struct{ Data, Models []json.RawMessage }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("reading the provider's list of models: %w", err)
	}
	var out []*tunnel.Model
	for _, raw := range append(list.Data, list.Models...) {
		var name struct{ ID, Name string }
		if err := json.Unmarshal(raw, &name); err != nil || name.ID == "" && name.Name == "" {
			continue // one bad entry does not hide the others
		}
		if name.ID == "" {
			name.ID = name.Name
		}
		out = append(out, &tunnel.Model{Name: name.ID, Json: raw})
	}
	return out, nil
}

// get asks one target as a run of the gateway's own.
func (h *Hub) get(ctx context.Context, st *Settings, t fleet.LockedTarget, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, nil, err
	}
	w := &answerBuffer{header: http.Header{}}
	x := &exchange{
		h: NewHandler(h, st, Options{}), w: w, r: r, rc: http.NewResponseController(w), acc: NewAccount(), principal: lister, match: ollama.Lookup(http.MethodGet, path),
	}
	x.acc.Principal, x.acc.Route = lister, DefaultRoute
	u := x.newRun(nil)
	u.want = fleet.Want{Node: t.Node, Target: t.Target, Filter: &fleet.Filter{Serves: func(fleet.Candidate) bool { return true }}}
	err = u.serve()
	if err == nil && w.over {
		err = fmt.Errorf("the provider's list of models is over %d bytes", maxListing)
	}
	return w.status, w.body.Bytes(), err
}

// answerBuffer is an http.ResponseWriter in memory, bounded.
type answerBuffer struct {
	header http.Header
	status int
	body   bytes.Buffer
	over   bool
}

func (w *answerBuffer) Header() http.Header              { return w.header }
func (w *answerBuffer) WriteHeader(status int)           { w.status = status }
func (w *answerBuffer) FlushError() error                { return nil }
func (w *answerBuffer) SetWriteDeadline(time.Time) error { return nil }
func (w *answerBuffer) SetReadDeadline(time.Time) error  { return nil }
func (w *answerBuffer) Write(p []byte) (int, error) {
	if w.body.Len()+len(p) > maxListing {
		w.over = true
		return 0, http.ErrContentLength
	}
	return w.body.Write(p)
}
