package cases

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// counting is an Ollama that counts the bytes of uploads as they come.
func counting(t *testing.T) (string, *atomic.Int64) {
	t.Helper()
	u, err := url.Parse(fakeollama.Start(t, fakeollama.Options{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	pass := httputil.NewSingleHostReverseProxy(u)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/blobs/") {
			r.Body = io.NopCloser(io.TeeReader(r.Body, count{&n}))
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, &n
}

// patient is an Ollama that takes its time for a chat and does not look at it, so that large bodies cost nothing here.
func patient(t *testing.T, wait time.Duration) string {
	t.Helper()
	u, err := url.Parse(fakeollama.Start(t, fakeollama.Options{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(u)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/chat" {
			pass.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(wait)
		_, _ = io.WriteString(w, `{"done":true}`)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

type count struct{ *atomic.Int64 }

func (c count) Write(p []byte) (int, error) { c.Add(int64(len(p))); return len(p), nil }

// uploads is a gateway whose node takes blobs.
func uploads(t *testing.T, provider string) *rig.Gateway {
	t.Helper()
	g := newGateway(t, rig.Options{TLS: true, Site: "\t\tmanage alice\n"})
	g.NodeOf("n1", provider, "--credits", credits, "--allow", "POST:/api/blobs/*")
	waitModel(t, g, "t-echo")
	return g
}

// onNode is a raw request to a management endpoint, addressed to node n1.
func onNode(raw []byte) string { return strings.Replace(string(raw), " /api/", " /n/n1/api/", 1) }

func TestB09_SlowUpload(t *testing.T) {
	t.Parallel()
	provider, got := counting(t)
	g := uploads(t, provider)
	blob := []byte(strings.Repeat("T", 3_000_000))
	took := long(75*time.Second, 150*time.Second)
	var seen []int64 // each second
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			seen = append(seen, got.Load())
		}
	})
	head := request{File: "B09_slow_upload_head"}.bytes(t, site(g))
	r := request{Bytes: onNode(head), Body: blob, Pace: 3_000_000 / int(took.Seconds()), Timeout: 2 * took}.to(t, site(g))
	if r.Status != 201 || r.Total < took-5*time.Second {
		t.Errorf("%d %s after %v", r.Status, r.Body, r.Total)
	}
	cancel()
	wg.Wait()
	if n := seen[len(seen)/2]; n < 1_000_000 || n > 2_000_000 {
		t.Errorf("half-way the provider had %d bytes", n)
	}
}

func TestC06_NoContentLength(t *testing.T) {
	t.Parallel()
	fake := fakeollama.Start(t, fakeollama.Options{})
	g := uploads(t, fake.URL())
	if r := (request{Bytes: onNode(request{File: "C06_chunked_blob"}.bytes(t, site(g)))}).to(t, site(g)); r.Status != 201 {
		t.Errorf("blob: %d %s", r.Status, r.Body)
	}
	if r := (request{File: "C06_chunked_chat", ID: "chunked"}).to(t, site(g)); r.Status != 200 {
		t.Errorf("chat: %d %s", r.Status, r.Body)
	}
	sum := sha256.Sum256([]byte(`{"model": "t-echo", "messages": [{"role": "user", "content": "hi"}], "stream": false}`))
	h2, h3 := secure(t, g)
	for name, c := range map[string]client{"h2": h2, "h3": h3} {
		blob := strings.Repeat(name, 500_000)
		digest := sha256.Sum256([]byte(blob))
		r, err := c.do(t.Context(), "POST", "/n/n1/api/blobs/sha256:"+hex.EncodeToString(digest[:]), io.MultiReader(strings.NewReader(blob)))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != 201 {
			t.Errorf("%s: %d %s", name, r.StatusCode, b)
		}
	}
	for _, rec := range fake.Log() {
		if rec.ID == "chunked" && rec.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("the provider got %q", rec.Head)
		}
	}
	if n := len(fake.Stats().Blobs); n != 3 {
		t.Errorf("%d blobs: %v", n, fmt.Sprint(fake.Stats().Blobs))
	}
}
