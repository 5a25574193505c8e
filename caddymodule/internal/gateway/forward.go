package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// A run whose node has its session with another gateway is forwarded to that one, its holder. The entry gateway has the caller, the waiting, the account and the
// one outcome; the holder checks the session, lends what its own configuration has, and passes frames on.

// forwardWait is how long a forwarded run may wait here for its turn; then its own gateway looks around anew.
const forwardWait = 5 * time.Second

// maxForwardName bounds the names in a Forward, in bytes.
const maxForwardName = 256

// forward says for whom a run at place goes, for the gateway that holds the node.
func (u *run) forward(place *fleet.Place, p *Profile) *tunnel.Forward {
	f := &tunnel.Forward{Gateway: u.x.h.hub.cfg.Gateway, Principal: u.x.principal, Route: u.x.acc.Route, Node: place.Node(), Hop: 1}
	if p == nil {
		return f
	}
	f.Profile = p.Name
	if now := u.x.h.hub.lender.projection(); now != nil {
		f.Pgn, f.RouteRevision = now.pgn, now.route.Rev
		if b := now.profiles[p.Name]; b != nil {
			f.ProfileRevision = b.profile.Rev
		}
		f.ProfileDigest = now.objects["profile:"+p.Name]
	}
	return f
}

// forwarder executes the runs that one other gateway forwards.
type forwarder struct {
	hub  *Hub
	peer string
}

// ServeRun implements tunnel.Handler.
func (f *forwarder) ServeRun(ctx context.Context, r *tunnel.NodeRun) {
	w := &forwarded{hub: f.hub, in: r}
	no := w.check(ctx, f.peer)
	switch {
	case no != nil:
		_ = r.Refuse(no)
	case w.u == nil:
		w.tell(ctx)
	default:
		w.serve()
	}
}

// forwarded is one of them.
type forwarded struct {
	hub *Hub
	in  *tunnel.NodeRun
	x   *exchange // with no client behind it
	u   *run      // nil where the answer is this gateway's own
	p   *Profile  // that the entry gateway goes by; nil for none
}

func elsewhere(code, reason string) *tunnel.Refused {
	return &tunnel.Refused{Code: code, Retry: tunnel.RetryElsewhere, Reason: reason}
}

func never(code, reason string) *tunnel.Refused {
	return &tunnel.Refused{Code: code, Retry: tunnel.RetryNever, Reason: reason}
}

// check says why the run cannot be for this gateway, or makes it one of its own.
func (w *forwarded) check(ctx context.Context, peer string) *tunnel.Refused {
	o, st := w.in.Open, w.hub.Current()
	fw := o.Forward
	switch {
	case st == nil:
		return elsewhere(tunnel.CodeDraining, "no configuration is current")
	case fw == nil || fw.Gateway != peer || fw.Hop != 1:
		return never(tunnel.CodeBadRun, "not a run that this gateway has forwarded, or not its first hop")
	case !validRunID(o.Run) || o.Leased || len(fw.Principal)+len(fw.Route)+len(fw.Profile)+len(fw.Node) > maxForwardName:
		return never(tunnel.CodeBadRun, "names that are too long, or a lease")
	case o.Kind != tunnel.KindTunnel && o.Kind != tunnel.KindEdge:
		return never(tunnel.CodeUnsupportedKind, "")
	}
	r, err := http.NewRequestWithContext(ctx, o.Method, string(o.Path), http.NoBody)
	if err != nil {
		return never(tunnel.CodeBadRun, "method or path")
	}
	match := ollama.Lookup(o.Method, r.URL.EscapedPath())
	if o.Kind == tunnel.KindTunnel && o.Adapter == adapterGoals { // place sees to it that the target is one
		match = workflowMatch(o.Method, string(o.Path))
	}
	if match.Status != http.StatusOK || (match.Endpoint.Name == "edge.run") != (o.Kind == tunnel.KindEdge) {
		return never(tunnel.CodeNotAllowed, "no endpoint")
	}
	w.x = &exchange{h: NewHandler(w.hub, st, Options{Route: fw.Route}), r: r, acc: NewAccount(), match: match, principal: fw.Principal}
	if match.Endpoint.Name == typedGet || match.Endpoint.Name == typedCancel {
		return nil
	}
	if fw.Profile != "" || len(st.Profiles) > 0 {
		if w.p = st.profile(fw.Profile); w.p == nil {
			return elsewhere(tunnel.CodeUnknownTarget, "the profile is not in this gateway's configuration")
		}
	}
	x := w.x
	if o.Kind == tunnel.KindEdge {
		x.acc.Kind = "edge"
	}
	x.acc.Run, x.acc.Session, x.acc.Principal, x.acc.Route, x.acc.Model, x.acc.Endpoint = o.Run, o.SessionId, fw.Principal, fw.Route, o.Model, match.Endpoint.Name
	w.u = x.newRun(nil)
	w.u.attempt, w.u.given = o.Attempt, o
	return nil
}

// serve places the run and sends it, or refuses it.
func (w *forwarded) serve() {
	acc, u := w.u.x.acc, w.u
	if err := w.hub.begin(acc); err != nil {
		f := asFailure(err, u.x.match.Endpoint, "")
		_ = w.in.Refuse(elsewhere(f.code, f.message))
		return
	}
	defer w.hub.end(acc)
	defer u.cancel(nil)
	acc.stoppable(u.cancel)
	if err := w.body(); err != nil {
		_ = w.in.Refuse(never(tunnel.CodeClientBody, "the body did not come"))
		return
	}
	place, no := w.place()
	if no != nil {
		_ = w.in.Refuse(no)
		return
	}
	acc.bind(place, u.attempt)
	out, err := u.start(place)
	if err != nil {
		place.Release()
		if isStale(err) {
			w.hub.beatSoon()
		}
		_ = w.in.Refuse(refusalOf(u, err))
		return
	}
	w.relay(place, out)
}

// body reads a short body: it came with the head. A longer one is passed on as it comes.
func (w *forwarded) body() error {
	o := w.in.Open
	switch {
	case o.Body == tunnel.BodyNone, o.Body == tunnel.BodyLength && o.BodyLength == 0:
		return nil
	case o.Body == tunnel.BodyLength && o.BodyLength <= inlineBody:
		w.u.body = make([]byte, o.BodyLength)
		_, err := io.ReadFull(w.in, w.u.body)
		return err
	}
	w.u.upload = w.in
	return nil
}

// place takes a place at the very session that the entry gateway has chosen.
func (w *forwarded) place() (*fleet.Place, *tunnel.Refused) {
	o, u := w.in.Open, w.u
	model := o.Model
	if o.Kind == tunnel.KindEdge && model != "" {
		model = ollama.ModelKey(model) // it is the provider's own name
	}
	u.want = fleet.Want{Node: o.Forward.Node, Target: o.Target, Model: model, Credit: o.Credit, From: o.Forward.Gateway, Filter: anyTarget}
	place, err := w.hub.fleet.Acquire(u.ctx, &u.want, fleet.Queue{Depth: DefaultQueueDepth, Wait: forwardWait})
	switch {
	case errors.Is(err, fleet.ErrQueueFull), errors.Is(err, fleet.ErrQueueTimeout):
		no := elsewhere(tunnel.CodeNodeBusy, "")
		no.NoCredit = true
		return nil, no
	case errors.Is(err, fleet.ErrDraining):
		return nil, elsewhere(tunnel.CodeDraining, "")
	case err != nil:
		return nil, elsewhere(tunnel.CodeStaleGeneration, err.Error())
	}
	if no := w.fits(place); no != nil {
		place.Release()
		return nil, no
	}
	return place, nil
}

// anyTarget leaves the choice to the entry gateway: what may be used is checked by its profile.
var anyTarget = &fleet.Filter{Serves: func(fleet.Candidate) bool { return true }}

// fits checks that the session and the configuration here are those that the entry gateway went by.
func (w *forwarded) fits(place *fleet.Place) *tunnel.Refused {
	o, st := w.in.Open, w.u.x.h.settings
	switch p, ok := st.profileFor(place.Candidate()); {
	case place.Generation() != o.Generation:
		return elsewhere(tunnel.CodeStaleGeneration, "the node has another session")
	case !ok || place.Adapter != o.Adapter || p != w.p:
		return elsewhere(tunnel.CodeUnknownTarget, "this gateway's configuration has another profile for the target")
	case w.p == nil || w.p.Slot == "":
		return nil
	}
	fw, now := o.Forward, w.hub.lender.projection()
	if now == nil || now.profiles[w.p.Name] == nil || !now.agrees(fw) || fw.Pgn < w.hub.lender.view.MinPGN() {
		return never(string(lease.CodeStaleProjection), "the gateways' configurations differ")
	}
	return nil
}

// agrees reports whether the profile of a forwarded run is the same here. A revision is no measure of that: one that was changed and changed back has another, at
// the gateway that did so. A gateway of an earlier version tells nothing else.
func (p *projection) agrees(f *tunnel.Forward) bool {
	if f.ProfileDigest != "" {
		return f.ProfileDigest == p.objects["profile:"+f.Profile]
	}
	return f.ProfileRevision == p.profiles[f.Profile].profile.Rev && f.RouteRevision == p.route.Rev
}

// refusalOf is what the entry gateway is told of a run that could not be sent from here. Nothing ran.
func refusalOf(u *run, err error) *tunnel.Refused {
	var f *failure
	switch {
	case errors.As(err, &f) && isLeaseCode(f.inner):
		return never(f.inner, "")
	case errors.As(err, &f) && f.code == codeStoreUnavail:
		return elsewhere(codeStoreUnavail, "")
	case u.ctx.Err() != nil:
		return never(cancelCode(u.ctx), "")
	}
	return elsewhere(tunnel.CodeStaleGeneration, "")
}

// relay passes the answer on, frame by frame, and ends the run as it ended. The place is free before the entry gateway hears of the end.
func (w *forwarded) relay(place *fleet.Place, out *tunnel.Run) {
	u := w.u
	stop := context.AfterFunc(u.ctx, func() { out.Cancel(cancelCode(u.ctx)) })
	written := u.send(out)
	refused, t := w.frames(out)
	stop()
	out.StopBody()
	place.Release()
	if u.loan != nil {
		var err error
		if t != nil && t.Outcome != tunnel.Completed {
			err = cut(u.ctx, t)
		}
		u.loan.end(refused, err)
	}
	if refused != nil {
		if refused.NoCredit {
			place.Full()
		}
		_ = w.in.Refuse(refused)
		u.x.acc.end(tunnel.Failed, refused.Code, 0)
	} else {
		u.x.acc.end(t.Outcome, t.Code, 0)
		_ = w.in.Finish(&tunnel.Terminal{Outcome: t.Outcome, Code: t.Code, Usage: t.Usage, Timings: t.Timings, Trailers: t.Trailers, Reason: t.Reason, Result: t.Result})
	}
	<-written // Refuse and Finish have ended the reading of the body
	out.Close()
}

// frames passes on all but the last.
func (w *forwarded) frames(out *tunnel.Run) (*tunnel.Refused, *tunnel.Terminal) {
	for {
		var err error
		switch ev := out.Next(); ev.Kind {
		case tunnel.EventAccepted:
			if w.u.loan != nil {
				w.u.loan.accepted()
			}
			err = w.in.Accept()
		case tunnel.EventHead:
			err = w.in.SendHead(ev.Head, !out.Ready())
		case tunnel.EventData:
			if len(ev.Data) > 0 {
				err = w.in.SendData(ev.Data, !out.Ready())
			}
		case tunnel.EventRefused:
			return ev.Refused, nil
		case tunnel.EventTerminal:
			return nil, ev.Terminal
		}
		if err != nil {
			out.Cancel(tunnel.CodeCanceled) // the entry gateway has gone; what follows is the end
		}
	}
}

// validRunID reports whether s can be the id of a run: it goes into logs.
func validRunID(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// profile finds a profile by its name.
func (st *Settings) profile(name string) *Profile {
	for i := range st.Profiles {
		if st.Profiles[i].Name == name {
			return &st.Profiles[i]
		}
	}
	return nil
}

var _ tunnel.Handler = (*forwarder)(nil)
