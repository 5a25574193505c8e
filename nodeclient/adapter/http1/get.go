package http1

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// maxGot bounds an answer that Get takes. A thousand models are about half a
// MiB of Ollama's /api/tags; the largest catalogue of a cloud is about 2 MiB.
const maxGot = 8 << 20

// Get asks for path, on a connection of its own so that it takes none from a
// run, and returns the whole answer: at most 8 MiB.
func (s *Server) Get(ctx context.Context, path string) (status int, body []byte, err error) {
	g, err := s.Fetch(ctx, path)
	return g.Status, g.Body, err
}

// Got is an answer that was read whole.
type Got struct {
	Status  int
	Headers []adapter.Header
	Body    []byte
}

// Fetch is Get with the headers of the answer.
func (s *Server) Fetch(ctx context.Context, path string) (Got, error) {
	x, err := s.connect(ctx, true)
	if err != nil {
		return Got{}, err
	}
	resp, err := x.Do(ctx, &adapter.Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return Got{}, fmt.Errorf("%s: %w", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxGot+1))
	if err != nil {
		return Got{}, fmt.Errorf("%s: %w", path, err)
	}
	if len(body) > maxGot {
		return Got{}, fmt.Errorf("%s: over %d bytes", path, maxGot)
	}
	return Got{resp.Status, resp.Headers, body}, nil
}
