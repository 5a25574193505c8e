package gateway

import (
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/tunnel"
)

// unload reaches every target that has the model loaded; the answer is the first one's. Nobody has it: any holder says so itself.
func (x *exchange) unload(u *run) error {
	if u.want.Node != "" {
		return u.serve()
	}
	holders := x.h.hub.fleet.Holders(u.want.Model)
	if len(holders) == 0 {
		return u.serve()
	}
	var others sync.WaitGroup
	defer others.Wait()
	for _, h := range holders[1:] {
		want := u.want
		want.Node, want.Target = h.Node, h.Target
		others.Go(func() { x.unloadQuietly(want, u.body) })
	}
	u.want.Node, u.want.Target = holders[0].Node, holders[0].Target
	return u.serve()
}

// unloadQuietly sends the same request to one more node and drops its answer; its own account tells how it went.
func (x *exchange) unloadQuietly(want fleet.Want, body []byte) {
	acc := NewAccount()
	acc.Principal, acc.Route, acc.Endpoint, acc.Model, acc.Session = x.acc.Principal, x.acc.Route, x.acc.Endpoint, x.acc.Model, x.acc.Session
	w := &discard{header: http.Header{}}
	other := &exchange{h: x.h, w: w, r: x.r, rc: http.NewResponseController(w), acc: acc, match: x.match, principal: x.principal, request: x.request}
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // a panic value
			x.h.hub.log().Error("unloading on a further node", zap.Any("panic", p), zap.StackSkip("stack", 1))
			acc.end(tunnel.Failed, "internal", http.StatusInternalServerError)
		}
		x.h.hub.account(acc)
	}()
	o := other.newRun(body)
	o.want = want
	if err := o.serve(); err != nil {
		other.fail(err)
	}
}

// discard is a client that wants no answer.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) FlushError() error           { return nil }
