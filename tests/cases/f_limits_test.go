package cases

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// Leases, which would put another credential in its place, are not built yet.
func TestF07_KeyStaysHere(t *testing.T) {
	t.Parallel()
	f := surface()
	if r := f.send(t, "F07_auth"); r.Status != 200 {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	rec := f.record(t)
	if v := rec.Header("Authorization"); len(v) != 0 {
		t.Errorf("Authorization %q", v)
	}
	for _, h := range rec.Headers {
		if strings.Contains(h[1], rig.Key) {
			t.Errorf("%s holds the key", h[0])
		}
	}
}

// There are no rate limits yet; whom the log takes for the client is decided all the same.
func TestF08_ForgedAddress(t *testing.T) {
	t.Parallel()
	for name, trusted := range map[string]bool{"nobody trusted": false, "a trusted proxy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := rig.Options{SiteLines: "\tlog {\n\t\toutput stderr\n\t}\n"}
			if trusted {
				o.Globals = "\tservers {\n\t\ttrusted_proxies static 127.0.0.0/8\n\t\ttrusted_proxies_strict\n\t}\n"
			}
			f := newFleet(t, o)
			if r := f.send(t, "F08_xff"); r.Status != 200 {
				t.Fatalf("%d %s", r.Status, r.Body)
			}
			want := "127.0.0.1"
			if trusted {
				want = "203.0.113.9" // the right-most hop that is not trusted
			}
			var line string
			rig.Eventually(t, 3*time.Second, "the access line", func() bool {
				for l := range strings.Lines(f.Log()) {
					if strings.Contains(l, `"uri":"/api/show"`) && strings.Contains(l, "handled request") {
						line = l
						return true
					}
				}
				return false
			})
			var access struct {
				Request struct {
					ClientIP string `json:"client_ip"`
				}
			}
			if err := json.Unmarshal([]byte(line), &access); err != nil || access.Request.ClientIP != want {
				t.Errorf("client_ip %q, want %s: %v", access.Request.ClientIP, want, err)
			}
			for _, name := range []string{"X-Forwarded-For", "X-Real-IP", "Forwarded"} {
				for _, v := range f.record(t).Header(name) {
					t.Errorf("%s %q reached the provider", name, v)
				}
			}
			for l := range strings.Lines(f.Log()) {
				if strings.Contains(l, `"client_ip":"198.51.100.`) {
					t.Errorf("a forged address is taken for the client: %s", l)
				}
			}
		})
	}
}

// Not parallel: it would crowd out the others.
func TestF09_Images(t *testing.T) {
	f := newFleet(t, rig.Options{Sites: ""})
	c := plain(t, f.Gateway)
	for _, mb := range []int{15, 60} {
		image := strings.Repeat("iVBORw0K", mb*1_000_000/8)
		for _, path := range []string{"/api/chat", "/v1/chat/completions"} {
			s, body := c.ask("POST", path, `{"model":"t-echo","messages":[{"role":"user","content":"what is this","images":["`+image+`"]}]}`)
			if s != 200 { // 64 MiB is the default limit
				t.Errorf("%d MB to %s: %d %s", mb, path, s, body)
			}
		}
	}
	small := newFleet(t, rig.Options{Site: "\t\tmax_body 1MiB\n"})
	for path, head := range map[string]string{"/api/chat": "Content-Length: 60000000", "/v1/chat/completions": "Transfer-Encoding: chunked"} {
		body := bytes.Repeat([]byte("x"), 2<<20)
		if strings.HasPrefix(head, "T") {
			body = append([]byte("200000\r\n"), body...)
		}
		q := request{Bytes: "POST " + path + " HTTP/1.1\r\nHost: @@HOST@@\r\nAuthorization: Bearer @@KEY@@\r\n" + head + "\r\n\r\n", Body: body}
		r := q.to(t, site(small.Gateway))
		if r.Status != 413 || !r.isJSON() || errorText(path, r.Body) == "" || r.Total > 5*time.Second {
			t.Errorf("%s: %d %v %s after %v, %s", path, r.Status, r.Lines, r.Body, r.Total, r.Ended)
		}
	}
}

// All bodies together hold at most 512 MiB. A cgroup that would kill is not to be had everywhere, so the process is measured. Not parallel: it would
// crowd out the others.
func TestF10_ManyLargeBodies(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "512MiB")
	g := newGateway(t, rig.Options{})
	g.NodeOf("n1", patient(t, 5*time.Second), "--credits", credits)
	waitModel(t, g, "t-echo")
	c := plain(t, g)
	before := rig.Use(t, g.Pid()).RSS
	body := []byte(`{"model":"t-echo","stream":false,"messages":[{"role":"user","content":"` + strings.Repeat("x", 10_000_000) + `"}]}`)
	peak := make(chan int, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		most := 0
		for ctx.Err() == nil {
			most = max(most, rig.Use(t, g.Pid()).RSS)
			time.Sleep(50 * time.Millisecond)
		}
		peak <- most
	}()
	slowest := make(chan time.Duration, 1)
	time.AfterFunc(time.Second, func() {
		start := time.Now()
		if s, body := c.ask("POST", "/api/show", `{"model":"t-echo"}`); s != 200 {
			t.Errorf("a small request meanwhile: %d %s", s, body)
		}
		slowest <- time.Since(start)
	})
	got := burst(200, 200, func(int) int {
		head := "POST /api/chat HTTP/1.1\r\nHost: @@HOST@@\r\nAuthorization: Bearer @@KEY@@\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n"
		r := request{Bytes: head, Body: body, Timeout: 2 * time.Minute}.to(t, site(g))
		if r.Status != 200 && (r.Header.Get("Retry-After") == "" || errorText("/api/", r.Body) == "") {
			t.Errorf("%d %v %s: %s", r.Status, r.Lines, r.Body, r.Ended)
		}
		return r.Status
	})
	cancel()
	grew := <-peak - before
	t.Logf("%v, grew by %d MiB, a small request took %v", got, grew>>10, <-slowest)
	if got[200] == 0 || got[200]+got[503]+got[429] != 200 {
		t.Errorf("%v", got)
	}
	if grew > memory(768) {
		t.Errorf("grew by %d MiB", grew>>10)
	}
	if s, body := c.ask("POST", "/api/chat", chat("t-echo", "")); s != 200 {
		t.Errorf("afterwards: %d %s", s, body)
	}
}

func TestF11_NoRoles(t *testing.T) {
	t.Parallel()
	f := surface()
	for _, file := range []string{"F11_delete", "F11_pull", "F11_create", "F11_copy"} {
		if r := f.send(t, file); r.Status != 403 || !r.isJSON() || errorText("/api/", r.Body) == "" {
			t.Errorf("%s: %d %v %s", file, r.Status, r.Lines, r.Body)
		}
	}
	if n := len(f.records(t.Name())); n != 0 {
		t.Errorf("%d reached the node", n)
	}
	c := plain(t, f.Gateway)
	for _, ask := range [][3]string{{"GET", "/api/tags", ""}, {"POST", "/api/show", `{"model":"t-echo"}`}, {"POST", "/api/chat", chat("t-echo", "")}} {
		if s, body := c.ask(ask[0], ask[1], ask[2]); s != 200 {
			t.Errorf("%v: %d %s", ask, s, fmt.Sprint(body))
		}
	}
}
