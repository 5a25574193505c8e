package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

// Presence says whether a provider holds a model.
type Presence string

// The four answers. Unknown is that of a provider whose list is empty, unreadable in parts, or not for everyone: it is never taken for missing.
const (
	ModelAvailable   Presence = "available"
	ModelMissing     Presence = "missing"
	ModelUnreachable Presence = "unreachable"
	ModelUnknown     Presence = "unknown"
)

// Availability is what a look at a provider's list says of a model. It decides nothing: a run is asked for all the same.
type Availability struct {
	State       Presence `json:"state"`
	Model       string   `json:"model"`
	Detail      string   `json:"detail,omitempty"`
	KnownModels []string `json:"known_models"`
}

// CheckModel looks for a model in a provider's list. A name of Ollama without a tag is that with the tag latest.
func CheckModel(ctx context.Context, a adapter.Adapter, model string) Availability {
	ctx, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	inv, err := a.Probe(ctx)
	out := Availability{State: ModelUnknown, Model: model, KnownModels: []string{}}
	for _, m := range inv.Models {
		out.KnownModels = append(out.KnownModels, m.Name)
	}
	same := func(name string) bool { return name == model }
	if edge.Provider(a.Kind()) == edge.Ollama {
		key := modelKey(model)
		same = func(name string) bool { return modelKey(name) == key }
	}
	switch {
	case errors.Is(err, adapter.ErrUnauthorized):
		out.Detail = "the provider lists its models only for a credential"
	case err != nil:
		out.State, out.Detail = ModelUnreachable, err.Error()
	case slices.ContainsFunc(out.KnownModels, same):
		out.State = ModelAvailable
	case len(out.KnownModels) == 0:
		out.Detail = "the provider lists no model"
	case inv.Skipped != nil:
		out.Detail = "the provider's list has entries that cannot be read: " + inv.Skipped.Error()
	default:
		out.State, out.Detail = ModelMissing, fmt.Sprintf("the provider holds %d models, and not this one", len(out.KnownModels))
	}
	return out
}

// WarmState says how far a model is from its first answer.
type WarmState string

// The four states.
const (
	Warm            WarmState = "warm"         // it is in memory, and answers at once
	ColdStarted     WarmState = "cold_started" // it was loaded just now, or still is being loaded
	WarmUnreachable WarmState = "unreachable"  // there is no provider, or it went away, or cannot load the model
	WarmMissing     WarmState = "missing"      // the provider is there and does not hold the model
)

// warmWithin is how fast a provider answers that had nothing to load.
const warmWithin = time.Second

// Warmup is what became of a warm-up. Detail begins with a class where something is wrong: unreachable, model_missing, busy, bad_response, deadline.
type Warmup struct {
	State     WarmState `json:"state"`
	LatencyMS *float64  `json:"latency_ms"` // nil where nothing was loaded
	Detail    string    `json:"detail,omitempty"`
}

// WarmUp has a provider load a model, and says how that went. It waits no longer than ctx lives; a provider goes on loading after that. One that has
// no word for it, as of adapter openai, is warm once it was seen to be there.
func WarmUp(ctx context.Context, a adapter.Adapter, model string) Warmup {
	switch there := CheckModel(ctx, a, model); there.State {
	case ModelUnreachable:
		return Warmup{State: WarmUnreachable, Detail: "unreachable: " + there.Detail}
	case ModelMissing:
		return Warmup{State: WarmMissing, Detail: "model_missing: " + there.Detail}
	}
	if edge.Provider(a.Kind()) != edge.Ollama {
		return Warmup{State: Warm, LatencyMS: new(float64)}
	}
	start := time.Now()
	err := load(ctx, a, model)
	took := float64(time.Since(start).Microseconds()) / 1000
	w := Warmup{State: Warm, LatencyMS: &took}
	switch {
	case err == nil:
		if took > float64(warmWithin.Milliseconds()) {
			w.State = ColdStarted
		}
		return w
	case isOver(ctx):
		w.State, w.Detail = ColdStarted, "deadline: the provider is there, and still loads the model"
		return w
	}
	// The class is that of a run which failed in the same way.
	w.Detail = edge.Fail(edge.Origin{}, loadCode(err)).DegradeDetail
	switch class, _, _ := strings.Cut(w.Detail, ":"); class {
	case "model_missing":
		return Warmup{State: WarmMissing, Detail: w.Detail}
	case "busy":
		w.State = ColdStarted // it is there, and not for us yet
		return w
	}
	return Warmup{State: WarmUnreachable, Detail: w.Detail}
}

// statusError is an answer that is no success.
type statusError string

func (e statusError) Error() string { return string(e) }

func loadCode(err error) string {
	var status statusError
	switch {
	case errors.As(err, &status):
		return string(status)
	case errors.Is(err, adapter.ErrBadResponse):
		return tunnel.CodeBadProvider
	}
	return edge.TransportCode(err)
}

// load asks for the model and for no word of it.
func load(ctx context.Context, a adapter.Adapter, model string) error {
	body, err := edge.LoadBody(model)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	conn, err := a.Connect(ctx, false)
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := conn.Do(ctx, post(chatPath(a.Kind()), body))
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if code := edge.StatusCode(resp.Status); code != "" {
		return statusError(code)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxWhole+1))
	if err == nil && n > maxWhole {
		return statusError(tunnel.CodeBadProvider)
	}
	return err
}
