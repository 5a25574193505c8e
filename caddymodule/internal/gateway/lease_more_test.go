package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// crooked is a node that answers every run with what the test says, and is always preferred: it says that it has the model loaded.
type crooked struct {
	session *tunnel.NodeSession
	runs    atomic.Int32
	leases  sync.Map // tokens that came
	answer  atomic.Pointer[func(*tunnel.NodeRun)]
}

// crook joins one. Without a key it is one that opens no leases.
func (r *rig) crook(name string, key []byte, events tunnel.Events) *crooked {
	r.t.Helper()
	id, err := r.ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	c := &crooked{}
	reg := &tunnel.Register{Node: name, Instance: []byte(fmt.Sprintf("%016s", name)), Adapters: []*tunnel.Adapter{{Target: "ollama", Kind: "ollama"}}}
	if key != nil {
		reg.RecipientKey = &tunnel.RecipientKey{Seq: 1, Kem: uint32(lease.KEM), PublicKey: key, NotAfterMs: 3_600_000}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c.session, err = tunnel.Dial(ctx, tunnel.DialConfig{Identity: id, Addr: r.hub.Addr().(*net.UDPAddr), Register: reg, Handler: c, Events: events})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.session.Close(tunnel.CloseNone, ""); <-c.session.Done() })
	model := []*tunnel.Model{{Name: "m:latest", Json: []byte(`{"name":"m:latest","model":"m:latest"}`)}}
	err = c.session.Ready(ctx, []*tunnel.Target{{
		Name: "ollama", Adapter: "ollama", Reachable: true, Reset_: true, Origin: "http://127.0.0.1:1", Version: "0.32.15", Credits: &tunnel.Credits{PerModel: 64, PerTarget: 64},
		Models: model, Loaded: &tunnel.Loaded{Models: model},
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	wait(r.t, func() bool {
		for _, n := range r.hub.Fleet().Nodes() {
			if n.Name == name && n.State == "ready" && len(n.Targets) > 0 {
				return true
			}
		}
		return false
	})
	return c
}

func (c *crooked) ServeRun(_ context.Context, r *tunnel.NodeRun) {
	c.runs.Add(1)
	c.leases.Store(string(r.Lease), true)
	if f := c.answer.Load(); f != nil {
		(*f)(r)
	}
}

// answers says what the node answers from now on.
func (c *crooked) answers(f func(*tunnel.NodeRun)) { c.answer.Store(&f) }

func recipient(t testing.TB) []byte {
	t.Helper()
	k, err := lease.NewRecipient()
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

// Two nodes that could serve, and one of them refuses the lease, with every code that there is and some that there are not: the answer is one of three, the same
// to the byte for each of its codes; the exact code is in the audit; and nobody else is asked, whatever the node says of a retry.
func TestEveryLeaseRefusalFailsClosed(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, p)
	c := r.crook("n0", recipient(t), tunnel.Events{})
	seen := map[string]string{} // answer by class
	for _, tt := range []struct {
		code   lease.Code
		class  string
		status int
		noted  string
	}{
		{lease.CodeMalformed, "credential_rejected", 502, ""}, {lease.CodeUnknownKey, "credential_rejected", 502, ""}, {lease.CodeBadSignature, "credential_rejected", 502, ""},
		{lease.CodeWrongRecipient, "credential_rejected", 502, ""}, {lease.CodeStaleGeneration, "credential_unavailable", 503, ""},
		{lease.CodeWrongConnection, "credential_rejected", 502, ""}, {lease.CodeTTLExcessive, "credential_rejected", 502, ""},
		{lease.CodeNotYetValid, "credential_unavailable", 503, ""}, {lease.CodeExpired, "credential_unavailable", 503, ""},
		{lease.CodeMismatch, "credential_rejected", 502, ""}, {lease.CodeStaleProjection, "credential_unavailable", 503, ""},
		{lease.CodeRevoked, "credential_denied", 403, ""}, {lease.CodeDisabled, "credential_denied", 403, ""}, {lease.CodeReplayed, "credential_rejected", 502, ""},
		{lease.CodeReplayCacheFull, "credential_rejected", 502, ""}, {lease.CodeOpenFailed, "credential_rejected", 502, ""},
		{lease.CodePayloadInvalid, "credential_rejected", 502, ""}, {lease.CodeClockUnavailable, "credential_unavailable", 503, ""},
		{"lease_", "credential_rejected", 502, "lease_other"}, {"lease_revoked\n", "credential_rejected", 502, "lease_other"},
		{lease.Code("lease_" + strings.Repeat("x", 60<<10)), "credential_rejected", 502, "lease_other"},
	} {
		for _, retry := range []*tunnel.Refused{
			{Code: string(tt.code), Retry: tunnel.RetryNever, Reason: "because"}, {Code: string(tt.code), Retry: tunnel.RetryElsewhere},
			{Code: string(tt.code), Retry: tunnel.RetryElsewhere, NoCredit: true}, {Code: string(tt.code), Answer: &tunnel.Answer{Status: 200, Body: []byte("served")}},
		} {
			asked := c.runs.Load()
			c.answers(func(run *tunnel.NodeRun) { _ = run.Refuse(retry) })
			before := r.hub.LeaseCounts()
			resp, body := r.do("POST", "/api/chat", chat("m", ""))
			run := resp.Header.Get("X-Fairway-Run")
			if resp.StatusCode != tt.status || resp.Header.Get("X-Fairway-Error") != tt.class || (resp.Header.Get("Retry-After") != "") != (tt.status == 503) {
				t.Errorf("%.30q: %d %v %s", tt.code, resp.StatusCode, resp.Header, body)
			}
			resp.Header.Del("X-Fairway-Run")
			resp.Header.Del("Date")
			if all := fmt.Sprint(resp.StatusCode, resp.Header, body); seen[tt.class] == "" {
				seen[tt.class] = all
			} else if seen[tt.class] != all {
				t.Errorf("%.30q: the answer differs from another of its class:\n%s\n%s", tt.code, all, seen[tt.class])
			}
			noted := string(tt.code)
			if tt.noted != "" {
				noted = tt.noted
			}
			if got := a.of(run); got != "issued refused:"+noted {
				t.Errorf("%.30q: the audit says %q", tt.code, got)
			}
			if n := r.hub.LeaseCounts()[noted]; n != before[noted]+1 {
				t.Errorf("%.30q: counted %d times", tt.code, n-before[noted])
			}
			if n := c.runs.Load() - asked; n != 1 {
				t.Errorf("%.30q: the node was asked %d times", tt.code, n)
			}
		}
	}
	if asked, _ := p.counts(); asked != 0 {
		t.Errorf("the other node's provider was asked %d times", asked)
	}
	if len(seen) != 3 || len(r.hub.Leases()) != 0 {
		t.Errorf("%d classes, %d leases are open", len(seen), len(r.hub.Leases()))
	}
	tokens := 0
	c.leases.Range(func(k, _ any) bool { tokens++; return k != "" })
	if int32(tokens) != c.runs.Load() {
		t.Errorf("%d leases in %d runs: one was sent twice", tokens, c.runs.Load())
	}
	_ = c.session.Drain("", 0)
	wait(t, func() bool {
		resp, _ := r.do("POST", "/api/chat", chat("m", ""))
		return resp.StatusCode == 200
	})
}

// of lists what was recorded of a run.
func (a *audits) of(run string) string {
	var out []string
	for _, r := range a.all() {
		if r.Run != run {
			continue
		}
		e := r.Event
		if r.Code != "" {
			e += ":" + r.Code
		}
		out = append(out, e)
	}
	return strings.Join(out, " ")
}

// What comes between the sealing of a lease and its sending stops it: the node never sees the run.
func TestFenceBehindTheSeal(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		between func(*rig, *AuditRecord)
		class   string
		code    string
	}{
		"slot revoked":      {func(r *rig, _ *AuditRecord) { r.revokeNow("slot:s") }, "credential_denied", "lease_revoked"},
		"profile revoked":   {func(r *rig, _ *AuditRecord) { r.revokeNow("profile:p") }, "credential_denied", "lease_revoked"},
		"principal revoked": {func(r *rig, _ *AuditRecord) { r.revokeNow("principal:alice") }, "credential_denied", "lease_revoked"},
		"lease revoked":     {func(r *rig, rec *AuditRecord) { r.revokeNow("lease:" + rec.Lease) }, "credential_denied", "lease_revoked"},
		"projection raised": {func(r *rig, rec *AuditRecord) { r.hub.lender.view.Add(nil, rec.Projection+1) }, "credential_unavailable", "lease_stale_projection"},
		"too little time":   {func(r *rig, _ *AuditRecord) { r.pass(lease.TTL - leastLife + time.Second) }, "credential_unavailable", "lease_expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &audits{}
			var once sync.Once
			var r *rig
			ready := make(chan struct{})
			r = newRigWith(t, Options{}, func(st *Settings) {
				slotted(canary)(st)
				st.Audit = func(rec *AuditRecord) error {
					if rec.Event == "issued" {
						<-ready
						once.Do(func() { tt.between(r, rec) })
					}
					return a.take(rec)
				}
			})
			close(ready)
			c := r.crook("n0", recipient(t), tunnel.Events{})
			c.answers(func(run *tunnel.NodeRun) { _ = run.Accept() })
			resp, body := r.do("POST", "/api/chat", chat("m", ""))
			if resp.Header.Get("X-Fairway-Error") != tt.class {
				t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
			}
			if got := a.of(resp.Header.Get("X-Fairway-Run")); got != "issued refused:"+tt.code {
				t.Errorf("the audit says %q", got)
			}
			if n := c.runs.Load(); n != 0 {
				t.Errorf("the node was sent %d runs", n)
			}
			if n := len(r.hub.Leases()); n != 0 {
				t.Errorf("%d leases are open", n)
			}
		})
	}
}

// revokeNow revokes in this gateway alone, as Revoke begins to.
func (r *rig) revokeNow(subject string) { r.hub.lender.view.Add([]string{subject}, 0) }

// pass moves the gateway's clocks on, as if time had passed.
func (r *rig) pass(d time.Duration) {
	c := r.hub.lender.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	read := c.read
	c.read = func() (time.Time, time.Duration) { wall, steady := read(); return wall.Add(d), steady + d }
}

// A gateway whose clock was set lends nothing for a lease's lifetime, and then does; what needs no lease goes on.
func TestClockStepPausesLending(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, p)
	c := r.hub.lender.clock
	c.mu.Lock()
	read := c.read
	c.read = func() (time.Time, time.Duration) { wall, steady := read(); return wall.Add(-time.Hour), steady }
	c.mu.Unlock()
	resp, body := r.do("POST", "/api/chat", chat("m", ""))
	if resp.StatusCode != 503 || resp.Header.Get("X-Fairway-Error") != "credential_unavailable" || !strings.HasSuffix(a.events(), "refused:lease_clock_unavailable") {
		t.Errorf("%d %v %s, audit %q", resp.StatusCode, resp.Header, body, a.events())
	}
	if resp, _ := r.do("GET", "/api/tags", ""); resp.StatusCode != 200 {
		t.Errorf("inventory: %d", resp.StatusCode)
	}
	if asked, _ := p.counts(); asked != 0 {
		t.Errorf("%d asked", asked)
	}
	r.pass(lease.TTL)
	wait(t, func() bool { // once the node has heard the time that the clock was set to
		resp, _ := r.do("POST", "/api/chat", chat("m", ""))
		return resp.StatusCode == 200
	})
}

// failing is a store that issues nothing.
type failing struct {
	store.Store
	err atomic.Pointer[error]
}

func (f *failing) Issue(ctx context.Context, i store.Issue) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return f.Store.Issue(ctx, i)
}

// Without the store no lease is issued, and no other node tried.
func TestStoreFailsClosed(t *testing.T) {
	t.Parallel()
	mem, err := store.NewMemory(context.Background(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{Store: mem}
	a := &audits{}
	p := newKeyed(t, canary)
	r := newRigOn(t, Options{}, f, func(st *Settings) { slotted(canary)(st); st.Audit = a.take })
	r.serve("n1", p.URL, 4)
	r.serve("n2", p.URL, 4)
	for _, tt := range []struct {
		err    error
		status int
		class  string
		code   string
	}{
		{store.ErrUnavailable, 503, "credential_unavailable", "lease_store_unavailable"}, {io.ErrUnexpectedEOF, 503, "credential_unavailable", "lease_store_unavailable"},
		{store.ErrRevoked, 403, "credential_denied", "lease_revoked"}, {store.ErrStaleProjection, 503, "credential_unavailable", "lease_stale_projection"},
	} {
		f.err.Store(&tt.err)
		resp, body := r.do("POST", "/api/chat", chat("m", ""))
		if resp.StatusCode != tt.status || resp.Header.Get("X-Fairway-Error") != tt.class {
			t.Errorf("%v: %d %v %s", tt.err, resp.StatusCode, resp.Header, body)
		}
		if got := a.of(resp.Header.Get("X-Fairway-Run")); got != "refused:"+tt.code {
			t.Errorf("%v: the audit says %q", tt.err, got)
		}
	}
	if asked, _ := p.counts(); asked != 0 {
		t.Errorf("%d asked", asked)
	}
	f.err.Store(nil)
	if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// A node that opens no leases, or does not acknowledge what they depend on, is sent none: its runs go to another.
func TestUnsettledNodesAreLentNothing(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, p)
	keyless := r.crook("n0", nil, tunnel.Events{})
	block, first := make(chan struct{}), true
	silent := r.crook("n9", recipient(t), tunnel.Events{Projection: func(*tunnel.Projection) error {
		if !first {
			<-block
		}
		first = false
		return nil
	}})
	t.Cleanup(func() { close(block) })
	r.reload(func(st *Settings) {
		st.Slots = append(st.Slots, Slot{Name: "unused", Value: lease.NewValue([]byte("x"))})
	})
	start := time.Now()
	resp, body := r.do("POST", "/api/chat", chat("m", ""))
	if resp.StatusCode != 200 || a.of(resp.Header.Get("X-Fairway-Run")) != "issued opened ended" {
		t.Errorf("%d %s, audit %q", resp.StatusCode, body, a.events())
	}
	if d := time.Since(start); d < settleTime || d > settleTime+5*time.Second {
		t.Errorf("served after %v", d)
	}
	if n := keyless.runs.Load() + silent.runs.Load(); n != 0 {
		t.Errorf("they were sent %d runs", n)
	}
	if asked, good := p.counts(); asked != 1 || good != 1 {
		t.Errorf("%d asked, %d with the key", asked, good)
	}
}

// One lease is revoked: its run ends, and the one beside it goes on.
func TestRevokeOneLease(t *testing.T) {
	t.Parallel()
	p := newKeyed(t, canary)
	r, a := leased(t, Options{}, canary, p)
	streams := map[string]*http.Response{} // by run
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", r.srv.URL+"/api/chat", strings.NewReader(chat("m", `,"x":"hang"`)))
		req.Header.Set("Authorization", "Bearer "+testKey)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		streams[resp.Header.Get("X-Fairway-Run")] = resp
	}
	ls := r.hub.Leases()
	if len(ls) != 2 {
		t.Fatalf("%+v", ls)
	}
	v, err := r.hub.Revoke(t.Context(), "lease:"+ls[0].Lease, false)
	if err != nil || v.Ended != 1 {
		t.Fatalf("%+v %v", v, err)
	}
	rest, err := io.ReadAll(streams[ls[0].Run].Body)
	if err == nil || !strings.Contains(string(rest), "may not be used") {
		t.Errorf("%v %q", err, rest)
	}
	wait(t, func() bool { return len(r.hub.Leases()) == 1 })
	if left := r.hub.Leases()[0]; left.Lease != ls[1].Lease {
		t.Errorf("%+v is left", left)
	}
	if got := a.of(ls[0].Run); !strings.HasPrefix(got, "issued opened ended:") {
		t.Errorf("the audit says %q", got)
	}
	if resp, body := r.do("POST", "/api/chat", chat("m", "")); resp.StatusCode != 200 {
		t.Errorf("the next lease: %d %s", resp.StatusCode, body)
	}
}
