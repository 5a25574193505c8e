package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// A20: four states are told apart, and what is wrong.
func TestWarmup(t *testing.T) {
	t.Parallel()
	f := fakeollama.Start(t, fakeollama.Options{Models: []string{"tiny:latest"}})
	a := at(t, f.URL(), false)
	check := func(name string, w Warmup, state WarmState, detail string) {
		t.Helper()
		if w.State != state || !strings.HasPrefix(w.Detail, detail) || (detail == "") != (w.Detail == "") {
			t.Errorf("%s: %+v", name, w)
		}
		if (w.LatencyMS != nil) != (state == Warm || state == ColdStarted) {
			t.Errorf("%s: latency %v", name, w.LatencyMS)
		}
	}
	check("there", WarmUp(t.Context(), a, "tiny"), Warm, "")
	if got := f.Stats().Loaded; len(got) != 1 {
		t.Errorf("loaded: %v", got)
	}
	check("missing", WarmUp(t.Context(), a, "other"), WarmMissing, "model_missing: ")
	check("openai", WarmUp(t.Context(), at(t, f.URL(), true), "tiny:latest"), Warm, "")
	check("openai, missing", WarmUp(t.Context(), at(t, f.URL(), true), "other"), WarmMissing, "model_missing: ")
	f.SetBusy(true)
	check("busy", WarmUp(t.Context(), a, "tiny"), ColdStarted, "busy: ")
	f.SetBusy(false)
	for kind, detail := range map[string]string{"reset": "unreachable: ", "garbage": "bad_response: ", "500": "bad_response: ", "short": "unreachable: "} {
		if err := f.SetFault(fakeollama.Fault{Kind: kind, Path: "/api/chat", Times: 1}); err != nil {
			t.Fatal(err)
		}
		check(kind, WarmUp(t.Context(), a, "tiny"), WarmUnreachable, detail)
	}
	if err := f.SetFault(fakeollama.Fault{Kind: "hang", Path: "/api/chat", Times: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	check("still loading", WarmUp(ctx, a, "tiny"), ColdStarted, "deadline: ")
	f.Down()
	check("nobody", WarmUp(t.Context(), a, "tiny"), WarmUnreachable, "unreachable: ")
}

func TestWarmupSlow(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/tags":
			_, _ = io.WriteString(w, `{"models":[{"name":"tiny:latest","model":"tiny:latest","size":1,"digest":"`+strings.Repeat("a", 64)+`"}]}`)
		case "/api/chat":
			body, _ := io.ReadAll(r.Body)
			if !strings.Contains(string(body), `"messages":[]`) || !strings.Contains(string(body), `"num_ctx":8192`) || strings.Contains(string(body), "format") {
				t.Errorf("%s", body)
			}
			time.Sleep(warmWithin + 50*time.Millisecond) // a model that loads
			_, _ = io.WriteString(w, `{"done":true}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	if w := WarmUp(t.Context(), at(t, s.URL, false), "tiny"); w.State != ColdStarted || w.Detail != "" || *w.LatencyMS < 1000 {
		t.Errorf("%+v", w)
	}
}

func TestCheckModel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		models []string
		err    error
		odd    error
		asked  string
		want   Presence
	}{
		"there":       {models: []string{"a:1", "tiny:latest"}, asked: "tiny:latest", want: ModelAvailable},
		"bare tag":    {models: []string{"tiny:latest"}, asked: "tiny", want: ModelAvailable},
		"other tag":   {models: []string{"tiny:latest"}, asked: "tiny:2", want: ModelMissing},
		"dashes":      {models: []string{"nomic-embed-text:latest"}, asked: "nomic-embed-text", want: ModelAvailable},
		"empty":       {asked: "tiny", want: ModelUnknown},
		"odd":         {models: []string{"a"}, odd: errors.New("entry 2"), asked: "tiny", want: ModelUnknown},
		"odd, there":  {models: []string{"tiny"}, odd: errors.New("entry 2"), asked: "tiny", want: ModelAvailable},
		"locked":      {err: fmt.Errorf("x: %w", adapter.ErrUnauthorized), asked: "tiny", want: ModelUnknown},
		"unreachable": {err: errors.New("refused"), asked: "tiny", want: ModelUnreachable},
	} {
		p := newProvider(tc.models...)
		p.inv.Skipped = tc.odd
		p.probe = func(context.Context) error { return tc.err }
		got := CheckModel(t.Context(), p, tc.asked)
		if got.State != tc.want || got.Model != tc.asked || (got.State != ModelAvailable) != (got.Detail != "") || tc.err == nil && len(got.KnownModels) != len(tc.models) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
