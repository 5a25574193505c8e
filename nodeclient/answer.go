package nodeclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	pieceSize = 32 << 10 // one read of a provider, one Data frame
	// maxWhole is the longest answer that is sent in one write: a head, its body and the terminal in few packets.
	maxWhole = 16 << 10
	// maxAnswer bounds a provider's answer that travels in a Refused.
	maxAnswer = 16 << 10
)

var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// answer passes the provider's answer on.
func (x *run) answer(ctx context.Context, resp *adapter.Response) {
	buf := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(buf)
	if x.echoes(resp.Headers) {
		x.end(tunnel.Failed, tunnel.CodeBadProvider, errEcho)
		return
	}
	var body io.Reader = resp.Body
	if x.declined(resp.Status) {
		n, whole := x.decline(resp, buf)
		if whole {
			return
		}
		// Too long for a refusal, or cut: an answer like any other.
		body = io.MultiReader(bytes.NewReader(bytes.Clone(buf[:n])), resp.Body)
	}
	length, known := contentLength(resp.Headers)
	whole := known && length <= maxWhole
	head := &tunnel.Head{Status: uint32(resp.Status), Headers: headers(resp.Headers), Chunked: !known && resp.Body != http.NoBody} //nolint:gosec // 200 to 599
	if err := x.SendHead(head, !whole); err != nil {
		x.fail(ctx, err)
		return
	}
	x.copy(ctx, resp, body, buf[:], !whole)
}

var errEcho = errors.New("the head of the answer repeats the credential")

// echoes tells whether headers of an answer hold the credential that the run was given.
func (x *run) echoes(hs []adapter.Header) bool {
	return slices.ContainsFunc(hs, func(h adapter.Header) bool { return x.mark.In(h.Value) || x.mark.In(h.Name) })
}

// declined tells whether a status says, on an endpoint that any node could serve, that this provider did not run the request: it does not
// hold the model, or its queue is full.
func (x *run) declined(status int) bool {
	return x.endpoint != nil && x.endpoint.Action == ollama.Route && (status == http.StatusNotFound || status == http.StatusServiceUnavailable)
}

// decline refuses the run with the provider's own answer, which must be whole and short; otherwise it returns what it has read of it into buf.
func (x *run) decline(resp *adapter.Response, buf *[pieceSize]byte) (n int, whole bool) {
	if resp.Status == http.StatusNotFound {
		poke(x.target.at) // the inventory was wrong
	}
	n, err := io.ReadFull(resp.Body, buf[:maxAnswer+1])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && complete(resp) {
		x.refuseWith(resp, buf[:n])
		return n, true
	}
	return n, false
}

// complete tells whether a body that gave io.ErrUnexpectedEOF to io.ReadFull was read to its end: ReadFull says the same of a short body and
// of a cut one, and Body.Read repeats what it said.
func complete(resp *adapter.Response) bool {
	var one [1]byte
	_, err := resp.Body.Read(one[:])
	return errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
}

// refuseWith hands the provider's own answer to the gateway, for the case that no other node takes the run.
func (x *run) refuseWith(resp *adapter.Response, body []byte) {
	f := elsewhere(tunnel.CodeProviderAnswered, "the provider answered "+strconv.Itoa(resp.Status))
	f.Answer = &tunnel.Answer{Status: uint32(resp.Status), Headers: headers(resp.Headers), Body: bytes.Clone(body)} //nolint:gosec // 200 to 599
	x.refuse(f)
}

// copy sends the body, one frame for each read, so that what the provider wrote at once arrives at once.
func (x *run) copy(ctx context.Context, resp *adapter.Response, body io.Reader, buf []byte, flush bool) {
	tally := ollama.NewTally(x.endpoint)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			x.target.goesOn()
			tally.Add(buf[:n])
			if err := x.SendData(buf[:n], flush); err != nil {
				x.fail(ctx, err)
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if x.endpoint != nil && x.endpoint.Changes && resp.Status < 300 {
				x.vault.announce(ctx, x.target)
			}
			x.completed(resp, tally.Usage())
			return
		case ctx.Err() != nil:
			x.fail(ctx, err)
			return
		default:
			x.end(tunnel.Failed, tunnel.CodeBadProvider, err)
			return
		}
	}
}

// completed ends a run whose answer has passed whole. The gateway counts the tokens too, from the bytes that it saw.
func (x *run) completed(resp *adapter.Response, used ollama.Usage) {
	t := &tunnel.Terminal{Outcome: tunnel.Completed, Timings: x.timed()}
	if used != (ollama.Usage{}) {
		t.Usage = &tunnel.Usage{InputTokens: used.Input, OutputTokens: used.Output}
	}
	if resp.Trailers != nil && !x.echoes(resp.Trailers()) {
		t.Trailers = headers(resp.Trailers())
	}
	x.finish(t)
}

func headers(hs []adapter.Header) []*tunnel.Header {
	out := make([]*tunnel.Header, 0, len(hs))
	for _, h := range hs {
		out = append(out, &tunnel.Header{Name: h.Name, Value: []byte(h.Value)})
	}
	return out
}

// contentLength returns the length that the provider has declared.
func contentLength(hs []adapter.Header) (int64, bool) {
	for _, h := range hs {
		if strings.EqualFold(h.Name, "Content-Length") {
			n, err := strconv.ParseInt(h.Value, 10, 64)
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}
