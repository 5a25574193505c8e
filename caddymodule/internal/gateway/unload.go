package gateway

import (
	"net/http"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
)

// unload reaches every node that has the model loaded; the answer is the first one's. Nobody has it: any holder says so itself.
func (x *exchange) unload(u *run) error {
	nodes := x.h.hub.fleet.Holders(u.want.Model)
	if len(nodes) < 2 {
		if len(nodes) == 1 {
			u.want.Node = nodes[0]
		}
		return u.serve()
	}
	others, want := make(chan struct{}), u.want
	go func() {
		defer close(others)
		for _, n := range nodes[1:] {
			want.Node = n
			x.unloadQuietly(want, u.body)
		}
	}()
	defer func() { <-others }()
	u.want.Node = nodes[0]
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
			panic(p)
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
