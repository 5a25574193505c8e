package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Nodes that hold different models under one name: what /api/show tells is of the one that /api/tags lists, each time, and a node that is named tells of its own.
func TestShowIsOfTheListedModel(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Manage: []string{"*"}})
	for i, digest := range []string{"aa", "bb"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			switch q.URL.Path {
			case "/api/tags":
				_, _ = fmt.Fprintf(w, `{"models":[{"name":"m:latest","model":"m:latest","modified_at":"2026-01-0%dT00:00:00Z","size":1,"digest":%q}]}`, i+1, digest)
			case "/api/ps":
				_, _ = io.WriteString(w, `{"models":[]}`)
			case "/api/version":
				_, _ = io.WriteString(w, `{"version":"0.32.15"}`)
			default:
				_, _ = io.WriteString(w, `{"template":"of `+digest+`"}`)
			}
		}))
		t.Cleanup(srv.Close)
		r.serve("n"+digest, srv.URL, 1)
	}
	if _, body := r.do("GET", "/api/tags", ""); !strings.Contains(body, `"digest":"bb"`) || strings.Contains(body, `"aa"`) {
		t.Fatalf("the newest is not what is listed: %s", body)
	}
	for range 6 {
		if resp, body := r.do("POST", "/api/show", `{"model":"m"}`); resp.StatusCode != 200 || body != `{"template":"of bb"}` {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	for _, digest := range []string{"aa", "bb"} {
		if resp, body := r.do("POST", "/api/show", `{"model":"m"}`, "X-Fairway-Node", "n"+digest); resp.StatusCode != 200 || body != `{"template":"of `+digest+`"}` {
			t.Errorf("of n%s: %d %s", digest, resp.StatusCode, body)
		}
	}
}
