package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// A typed run is known to the gateway that took it. Asked for one that it does not know, a gateway asks the others, for its callers know one endpoint and not which
// gateway answered them. Nothing of it is in the store: a result is the caller's text.

const (
	// askElsewhere is how long another gateway may take to tell how a run stands, beyond what a cancel waits for.
	askElsewhere = 2 * time.Second
	// maxStanding bounds what it tells, in bytes: more is not kept of any run.
	maxStanding = maxAnswer + 64<<10
)

// standingElsewhere asks every gateway of the fleet at once, and returns the one answer there can be; nil if there is none.
func (x *exchange) standingElsewhere() []byte {
	sessions := x.h.hub.peers.serving()
	if len(sessions) == 0 {
		return nil
	}
	within := askElsewhere
	if x.match.Endpoint.Name == typedCancel {
		within += settleCancel
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), within)
	defer cancel()
	answers := make(chan []byte, len(sessions))
	var asked sync.WaitGroup
	for _, s := range sessions {
		asked.Go(func() {
			if raw := x.askPeer(ctx, s); raw != nil {
				answers <- raw
			}
		})
	}
	go func() {
		asked.Wait()
		close(answers)
	}()
	return <-answers
}

// askPeer asks one gateway, in the caller's name.
func (x *exchange) askPeer(ctx context.Context, s *tunnel.Session) []byte {
	open := &tunnel.RunOpen{
		Run: x.acc.Run, Attempt: 1, Kind: tunnel.KindTunnel, Method: x.r.Method, Path: []byte(x.match.Path), Body: tunnel.BodyNone,
		Forward: &tunnel.Forward{Gateway: x.h.hub.cfg.Gateway, Principal: x.principal, Route: x.acc.Route, Hop: 1},
	}
	r, err := s.Lane().OpenRun(ctx, open, []byte{}, nil, func() error { return nil })
	if err != nil {
		return nil
	}
	defer r.Close()
	defer context.AfterFunc(ctx, func() { r.Cancel(tunnel.CodeCanceled) })()
	var raw []byte
	for {
		switch ev := r.Next(); ev.Kind {
		case tunnel.EventData:
			if raw = append(raw, ev.Data...); len(raw) > maxStanding {
				r.Cancel(tunnel.CodeBadProvider)
				return nil
			}
		case tunnel.EventRefused:
			return nil
		case tunnel.EventTerminal:
			if ev.Terminal.Outcome != tunnel.Completed || len(raw) == 0 {
				return nil
			}
			return raw
		}
	}
}

// serving returns the sessions of the gateways that take runs from this one; p may be nil: there are no others then.
func (p *peers) serving() []*tunnel.Session {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*tunnel.Session, 0, len(p.in))
	for _, s := range p.in {
		if s.State() == tunnel.StateReady {
			out = append(out, s)
		}
	}
	return out
}

// tell answers another gateway's question.
func (w *forwarded) tell(ctx context.Context) {
	raw, err := w.x.standing(ctx)
	if err != nil || raw == nil {
		_ = w.in.Refuse(never(codeRunNotFound, ""))
		return
	}
	if w.in.Accept() != nil {
		return
	}
	_ = w.in.SendHead(&tunnel.Head{Status: http.StatusOK, Headers: []*tunnel.Header{{Name: "Content-Type", Value: []byte(ollama.ContentTypeJSON)}}}, false)
	for len(raw) > 0 {
		n := min(len(raw), tunnel.MaxData)
		if w.in.SendData(raw[:n], false) != nil {
			break // what follows is the end
		}
		raw = raw[n:]
	}
	_ = w.in.Finish(&tunnel.Terminal{Outcome: tunnel.Completed})
}
