package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/lease"
)

// keyed is a provider behind an API key: an Ollama whose inventory is open, and whose runs ask for the key.
type keyed struct {
	*httptest.Server
	mu    sync.Mutex
	key   string // guarded by mu
	asked int    // guarded by mu; runs
	good  int    // guarded by mu; of those, with the key
	hang  chan struct{}
}

func newKeyed(t testing.TB, key string) *keyed {
	t.Helper()
	k := &keyed{key: key, hang: make(chan struct{})}
	k.Server = httptest.NewServer(http.HandlerFunc(k.serve))
	t.Cleanup(func() { close(k.hang); k.Close() })
	return k
}

func (k *keyed) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/api/tags":
		_, _ = io.WriteString(w, `{"models":[{"name":"m:latest","model":"m:latest","modified_at":"2026-01-01T00:00:00Z","size":1,"digest":"aa"}]}`)
		return
	case "/api/ps":
		_, _ = io.WriteString(w, `{"models":[]}`)
		return
	case "/api/version":
		_, _ = io.WriteString(w, `{"version":"0.32.15"}`)
		return
	}
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	k.asked++
	ok := r.Header.Get("Authorization") == "Bearer "+k.key
	if ok {
		k.good++
	}
	k.mu.Unlock()
	if !ok {
		http.Error(w, `{"error":"unauthorized"}`, http.StatusUnauthorized)
		return
	}
	if strings.Contains(string(body), "echo-key") {
		w.Header().Set("X-Debug", "auth="+r.Header.Get("Authorization"))
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	if strings.Contains(string(body), "hang") {
		_, _ = io.WriteString(w, `{"model":"m","message":{"role":"assistant","content":"a"},"done":false}`+"\n")
		w.(http.Flusher).Flush()
		select {
		case <-k.hang:
		case <-r.Context().Done():
		}
		return
	}
	_, _ = io.WriteString(w, `{"model":"m","message":{"role":"assistant","content":"hi"},"done":true,"eval_count":1}`+"\n")
}

func (k *keyed) counts() (asked, good int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked, k.good
}

func (k *keyed) rekey(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key = key
}

// audits collects records.
type audits struct {
	mu   sync.Mutex
	recs []AuditRecord // guarded by mu
	err  error         // guarded by mu
}

func (a *audits) take(r *AuditRecord) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recs = append(a.recs, *r)
	return a.err
}

func (a *audits) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// events lists what was recorded, as event or event:code.
func (a *audits) events() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, r := range a.recs {
		e := r.Event
		if r.Code != "" {
			e += ":" + r.Code
		}
		out = append(out, e)
	}
	return strings.Join(out, " ")
}

func (a *audits) all() []AuditRecord {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]AuditRecord{}, a.recs...)
}

// slotted makes settings with one slot and one profile for the target "ollama".
func slotted(key string) func(*Settings) {
	return func(st *Settings) {
		st.Slots = []Slot{{Name: "s", Value: lease.NewValue([]byte(key))}}
		st.Profiles = []Profile{{Name: "p", Adapter: "ollama", Target: "ollama", Slot: "s", Header: "Authorization", Value: "Bearer {slot}"}}
	}
}

// leased is a rig whose one profile has a slot, with a node per provider.
func leased(t testing.TB, o Options, key string, providers ...*keyed) (*rig, *audits) {
	t.Helper()
	a := &audits{}
	r := newRigWith(t, o, func(st *Settings) {
		slotted(key)(st)
		st.Audit = a.take
	})
	for i, p := range providers {
		r.serve("n"+string(rune('1'+i)), p.URL, 4)
	}
	return r, a
}

// next starts a copy of the current settings, changed.
func (r *rig) next(change func(*Settings)) *Settings {
	r.t.Helper()
	was := r.st
	next := &Settings{
		Gateway: was.Gateway, TrustDomain: was.TrustDomain, Grace: was.Grace, Keys: was.Keys, Identity: was.Identity, Authority: was.Authority, JoinKey: was.JoinKey,
		Log: was.Log, Slots: was.Slots, Profiles: slices.Clone(was.Profiles), Audit: was.Audit, Advertise: was.Advertise,
	}
	change(next)
	if err := r.hub.Start(context.Background(), next); err != nil {
		r.t.Fatal(err)
	}
	return next
}

// reload starts a copy of the current settings, changed, and ends the ones before, as Caddy does.
func (r *rig) reload(change func(*Settings)) {
	r.t.Helper()
	next, old := r.next(change), r.st
	r.st = next
	h := r.handler(r.opts)
	r.now.Store(&h)
	r.hub.Stop(old)
}

const canary = "sk-canary-7f3b9d21"

func TestLeasedRun(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, p)
	for range 3 {
		if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 || !strings.Contains(body, `"done":true`) {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	if asked, good := p.counts(); asked != 3 || good != 3 {
		t.Errorf("%d asked, %d with the key", asked, good)
	}
	if got, want := a.events(), strings.TrimSpace(strings.Repeat("issued opened ended ", 3)); got != want {
		t.Errorf("audit %q, want %q", got, want)
	}
	rec := a.all()[0]
	if rec.Principal != "alice" || rec.Slot != "s" || rec.Version == 0 || rec.Node != "n1" || rec.Generation == 0 || rec.Lease == "" || rec.Lane == "" || rec.Profile != "p" || rec.Route != "default" {
		t.Errorf("%+v", rec)
	}
	if n := len(r.hub.Leases()); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if c := r.hub.LeaseCounts(); c["issued"] != 3 || c["opened"] != 3 {
		t.Errorf("%v", c)
	}
}

// A caller's own credential headers never reach the provider, whatever the slot's header is called.
func TestCallersCredentialsStayHere(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, _ := leased(t, Options{}, canary, p)
	resp, body := r.do("POST", "/api/chat", chat("m", ""), "Api-Key", "x", "X-Goog-Api-Key", "y", "Cookie", "z=1", "Proxy-Authorization", "Basic eA==")
	if resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
}

// Revoked means: refused at once, no provider is asked, also where another node could.
func TestRevokedSlot(t *testing.T) {
	t.Parallel()
	one, two := newKeyed(t, canary), newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, one, two)
	if resp, _ := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	v, err := r.hub.Revoke(t.Context(), store.Subject(store.SubjectSlot, "s"), false)
	if err != nil || !v.Applied || !v.Durable || v.Nodes != 2 || v.Acked != 2 {
		t.Fatalf("%+v %v", v, err)
	}
	before1, _ := one.counts()
	before2, _ := two.counts()
	for range 4 {
		resp, body := r.do("POST", "/api/chat", chat("m", ""))
		if resp.StatusCode != 403 || resp.Header.Get("X-Fairway-Error") != "credential_denied" || strings.Contains(body, "lease") {
			t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, body)
		}
	}
	after1, _ := one.counts()
	after2, _ := two.counts()
	if after1+after2 != before1+before2 {
		t.Errorf("providers were asked %d times after the revocation", after1+after2-before1-before2)
	}
	if !strings.Contains(a.events(), "revoked refused:lease_revoked") {
		t.Errorf("audit %q", a.events())
	}
	if v, err := r.hub.Revoke(t.Context(), store.Subject(store.SubjectSlot, "s"), true); err != nil || v.Revoked {
		t.Fatalf("%+v %v", v, err)
	}
	if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Errorf("after the undoing: %d %s", resp.StatusCode, body)
	}
}

// A revocation ends what runs, unless the slot says to let it.
func TestRevocationWhileStreaming(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		subject string
		drain   bool
		ends    bool
	}{
		{"slot", "slot:s", false, true}, {"slot that drains", "slot:s", true, false}, {"principal", "principal:alice", false, true},
		{"profile", "profile:p", false, true}, {"another slot", "slot:other", false, false}, {"another principal", "principal:bob", false, false},
		{"node", "node:n1", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newKeyed(t, canary)
			a := &audits{}
			r := newRigWith(t, Options{}, func(st *Settings) {
				slotted(canary)(st)
				st.Slots[0].Drain, st.Audit = tt.drain, a.take
			})
			r.serve("n1", p.URL, 4)
			req, _ := http.NewRequestWithContext(t.Context(), "POST", r.srv.URL+"/api/chat", strings.NewReader(chat("m", `,"x":"hang"`)))
			req.Header.Set("Authorization", "Bearer "+testKey)
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			if ls := r.hub.Leases(); len(ls) != 1 || ls[0].State != "opened" || ls[0].Slot != "s" {
				t.Fatalf("%+v", ls)
			}
			v, err := r.hub.Revoke(t.Context(), tt.subject, false)
			if err != nil || (v.Ended == 1) != tt.ends {
				t.Fatalf("%+v %v", v, err)
			}
			if !tt.ends {
				if len(r.hub.Leases()) != 1 {
					t.Error("the run was ended")
				}
				return
			}
			rest, err := io.ReadAll(resp.Body)
			if err == nil {
				t.Error("the cut answer looks whole")
			}
			if tt.name != "node" && !strings.Contains(string(rest), "may not be used") {
				t.Errorf("%q", rest)
			}
			wait(t, func() bool { return r.hub.InFlight() == 0 })
			if e := a.events(); !strings.Contains(e, "revoked") || !strings.Contains(e, "ended:") {
				t.Errorf("audit %q", e)
			}
		})
	}
}

// A revocation while the run waits in line: it is refused when its turn comes, and its provider never hears of it.
func TestRevocationWhileQueued(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	a := &audits{}
	r := newRigWith(t, Options{}, func(st *Settings) { slotted(canary)(st); st.Slots[0].Drain, st.Audit = true, a.take })
	r.serve("n1", p.URL, 1)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		req, _ := http.NewRequestWithContext(ctx, "POST", r.srv.URL+"/api/chat", strings.NewReader(chat("m", `,"x":"hang"`)))
		req.Header.Set("Authorization", "Bearer "+testKey)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	wait(t, func() bool { asked, _ := p.counts(); return asked == 1 })
	status := make(chan string, 1)
	go func() {
		resp, _ := r.do("POST", "/api/chat", chat("m", ""))
		status <- resp.Header.Get("X-Fairway-Error")
	}()
	wait(t, func() bool { return r.hub.Fleet().Waiting() == 1 })
	if _, err := r.hub.Revoke(t.Context(), "slot:s", false); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-first
	if got := <-status; got != "credential_denied" {
		t.Errorf("%q", got)
	}
	if asked, _ := p.counts(); asked != 1 {
		t.Errorf("the provider was asked %d times", asked)
	}
}

// A principal that is revoked is nobody.
func TestRevokedPrincipal(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, _ := leased(t, Options{}, canary, p)
	if _, err := r.hub.Revoke(t.Context(), "principal:alice", false); err != nil {
		t.Fatal(err)
	}
	_, wrong := r.do("GET", "/api/tags", "", "Authorization", "Bearer nonsense")
	if resp, body := r.do("GET", "/api/tags", ""); resp.StatusCode != 401 || body != wrong {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, _ := r.do("POST", "/api/chat", chat("m", ""), "Authorization", "Bearer sk-bob"); resp.StatusCode != 200 {
		t.Errorf("bob: %d", resp.StatusCode)
	}
}

// The value changes under load: no request fails, and the provider sees the new one from then on.
func TestRotationOfEverythingUnderLoad(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, p)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	n := 0
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, body := r.do("POST", "/api/chat", chat("m", ""))
				mu.Lock()
				n++
				if resp.StatusCode != 200 {
					failed[resp.Header.Get("X-Fairway-Error")+" "+body]++
				}
				mu.Unlock()
			}
		})
	}
	r.hub.turnKeys()
	for i := range 10 {
		time.Sleep((lease.Adoption + time.Second) / 10) // load: the new key signs before the end
		r.reload(func(st *Settings) {
			st.Slots = []Slot{{Name: "s", Value: lease.NewValue([]byte(canary)), Drain: i%2 == 0}, {Name: "unused", Value: lease.NewValue([]byte("x"))}}
		})
	}
	close(stop)
	wg.Wait()
	if len(failed) > 0 {
		t.Errorf("of %d: %v", n, failed)
	}
	versions := map[uint64]bool{}
	for _, rec := range a.all() {
		versions[rec.Version] = true
	}
	delete(versions, 0)
	if len(versions) != 1 {
		t.Errorf("the credential's version changed without it: %v", versions)
	}
	p.rekey("sk-next")
	r.reload(func(st *Settings) { st.Slots = []Slot{{Name: "s", Value: lease.NewValue([]byte("sk-next"))}} })
	if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Errorf("after the change of value: %d %s", resp.StatusCode, body)
	}
	if recs := a.all(); versions[recs[len(recs)-1].Version] {
		t.Error("another value, the same version")
	}
}

// A reload that removes the slot ends its runs and nobody else's.
func TestReloadRemovesASlot(t *testing.T) {
	t.Parallel()
	p, q := newKeyed(t, canary), newKeyed(t, "other")
	r := newRigWith(t, Options{}, func(st *Settings) {
		st.Slots = []Slot{{Name: "s", Value: lease.NewValue([]byte(canary))}, {Name: "t", Value: lease.NewValue([]byte("other"))}}
		st.Profiles = []Profile{
			{Name: "p", Adapter: "ollama", Target: "ollama", Slot: "s", Header: "Authorization", Value: "Bearer {slot}", Nodes: map[string]string{"k": "n1"}},
			{Name: "q", Adapter: "ollama", Target: "ollama", Slot: "t", Header: "Authorization", Value: "Bearer {slot}", Nodes: map[string]string{"k": "n2"}},
		}
	})
	r.serveLabeled("n1", p.URL, 6, map[string]string{"k": "n1"})
	r.serveLabeled("n2", q.URL, 6, map[string]string{"k": "n2"})
	var streams []*http.Response
	for range 8 {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", r.srv.URL+"/api/chat", strings.NewReader(chat("m", `,"x":"hang"`)))
		req.Header.Set("Authorization", "Bearer "+testKey)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		streams = append(streams, resp)
	}
	of := map[string]int{}
	for _, l := range r.hub.Leases() {
		of[l.Slot]++
	}
	if of["s"] == 0 || of["s"]+of["t"] != 8 {
		t.Fatalf("%v", of)
	}
	r.reload(func(st *Settings) { st.Slots, st.Profiles = st.Slots[1:], st.Profiles[1:] })
	wait(t, func() bool { return len(r.hub.Leases()) == of["t"] })
	for _, l := range r.hub.Leases() {
		if l.Slot != "t" {
			t.Errorf("%+v", l)
		}
	}
	if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Errorf("the other slot: %d %s", resp.StatusCode, body)
	}
	_ = streams
}

// The label "node" is the node's proven name: a node that calls itself so by a label of its own gets nothing.
func TestProfileForOneNode(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r := newRigWith(t, Options{}, func(st *Settings) {
		slotted(canary)(st)
		st.Profiles[0].Nodes = map[string]string{"node": "n1", "zone": "a"}
	})
	r.serveLabeled("n2", p.URL, 4, map[string]string{"node": "n1", "zone": "a"})
	if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 404 {
		t.Errorf("n2 by its own word: %d %s", resp.StatusCode, body)
	}
	r.serveLabeled("n1", p.URL, 4, map[string]string{"zone": "a"})
	if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Errorf("n1: %d %s", resp.StatusCode, body)
	}
	if asked, _ := p.counts(); asked != 1 {
		t.Errorf("%d asked", asked)
	}
}

// An answer whose head repeats the credential goes no further.
func TestEchoOfTheCredential(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, _ := leased(t, Options{}, canary, p)
	resp, body := r.do("POST", "/api/chat", chat("m", `,"x":"echo-key"`))
	if resp.StatusCode != 502 || strings.Contains(body, canary) || resp.Header.Get("X-Debug") != "" || resp.Header.Get("X-Fairway-Error") != "bad_provider_response" {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
}

// Where the audit cannot be written no lease is issued; what needs none goes on.
func TestAuditFailsClosed(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, p)
	a.fail(io.ErrShortWrite)
	resp, _ := r.do("POST", "/api/chat", chat("m", ""))
	if resp.StatusCode != 503 || resp.Header.Get("X-Fairway-Error") != "credential_unavailable" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if asked, _ := p.counts(); asked != 0 {
		t.Errorf("%d asked", asked)
	}
	if resp, _ := r.do("GET", "/api/tags", ""); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
	a.fail(nil)
	if resp, _ := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
}

// A clock that is set stops issuing for one lifetime: nodes may still count by the old time.
func TestClockStep(t *testing.T) {
	t.Parallel()
	wall, steady := time.Now(), time.Duration(0)
	steps := make(chan time.Duration, 8)
	c := newClock(func() (time.Time, time.Duration) { return wall, steady }, func(d time.Duration) { steps <- d })
	pass := func(d time.Duration) { wall, steady = wall.Add(d), steady+d }
	pass(time.Minute)
	if !c.steady() || c.Now().Sub(wall).Abs() > time.Millisecond {
		t.Error("time alone is a step")
	}
	wall = wall.Add(time.Second) // a small correction
	if !c.steady() || c.Now().Sub(wall).Abs() < time.Second/2 {
		t.Error("a correction is a step")
	}
	for _, d := range []time.Duration{time.Hour, -time.Hour} {
		wall = wall.Add(d)
		if c.steady() || c.Now().Sub(wall).Abs() > time.Millisecond {
			t.Errorf("a step of %v is not seen", d)
		}
		if by := <-steps; (by > 0) != (d > 0) {
			t.Errorf("a step of %v is told as %v", d, by)
		}
		pass(lease.TTL - 1)
		if c.steady() {
			t.Error("steady too soon")
		}
		pass(1)
		if !c.steady() {
			t.Errorf("not steady a lifetime after a step of %v", d)
		}
	}
}

func wait(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("it did not come about in 10 s")
}
