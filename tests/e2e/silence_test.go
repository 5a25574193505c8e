package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// A model that loads, or thinks, for longer than every usual idle time-out (60 s) is no failure, on any protocol.
func TestSilenceOf65Seconds(t *testing.T) {
	t.Parallel()
	g, _, _ := fleet(t, rig.Options{TLS: true})
	for name, c := range clients(t, g) {
		for kind, body := range map[string]string{
			"before the head":   chat("t-slowload", `,"t_s":65`),
			"between two lines": chat("t-tick", `,"t_n":2,"t_ms":65000`),
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
				defer cancel()
				r, err := c.post(ctx, "/api/chat", body)
				if err != nil {
					t.Fatal(err)
				}
				if got := readAll(t, r); r.StatusCode != 200 || !strings.Contains(got, `"done":true`) {
					t.Fatalf("%d %q", r.StatusCode, got)
				}
			})
		}
	}
}
