package e2e

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// A model that loads, or thinks, for longer than every usual idle time-out (60 s) is no failure, on any protocol.
func TestSilenceOf65Seconds(t *testing.T) {
	t.Parallel()
	g, _, _ := fleet(t, rig.Options{TLS: true})
	var wg sync.WaitGroup
	defer wg.Wait()
	for name, c := range clients(t, g) {
		for kind, body := range map[string]string{
			"before the head":   chat("t-slowload", `,"t_s":65`),
			"between two lines": chat("t-tick", `,"t_n":2,"t_ms":65000`),
		} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
				defer cancel()
				r, err := c.post(ctx, "/api/chat", body)
				if err != nil {
					t.Errorf("%s, %s: %v", name, kind, err)
					return
				}
				defer r.Body.Close()
				b, err := io.ReadAll(r.Body)
				if err != nil || r.StatusCode != 200 || !strings.Contains(string(b), `"done":true`) {
					t.Errorf("%s, %s: %d %v %q", name, kind, r.StatusCode, err, b)
				}
			})
		}
	}
}
