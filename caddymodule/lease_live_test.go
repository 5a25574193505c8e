package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// TestLeasedRun takes a credential from its file to the provider, and looks at what is
// told of it: the audit, the commands, the metric. Then the slot is revoked.
func TestLeasedRun(t *testing.T) {
	provider := fakeollama.Start(t, fakeollama.Options{})
	s, dir := newServer(t), t.TempDir()
	audit := filepath.Join(dir, "audit.jsonl")
	s.mustLoad(s.config("name gw1\nembedded_node {\nollama "+provider.URL()+"\n}\n"+
		"slot key {\nvalue {file."+secretFile(t, canary+"\n")+"}\n}\nprofile local {\nslot key\nheader X-Api-Key \"Token {slot}\"\n}\naudit "+audit+"\n", ""))
	s.node()
	generate := func() (int, string) {
		return s.do("POST", "http://"+s.http+"/api/generate", `{"model":"t-echo","prompt":"hi","stream":false}`)
	}
	if code, body := generate(); code != 200 || strings.Contains(body, "CANARY") {
		t.Fatalf("%d %s", code, body)
	}
	var got []string
	for _, rec := range provider.Log() {
		for _, h := range rec.Headers {
			if strings.EqualFold(h[0], "X-Api-Key") {
				got = append(got, rec.Target+" "+h[1])
			}
		}
	}
	if len(got) != 1 || got[0] != "/api/generate Token "+canary {
		t.Errorf("the provider got %q", got)
	}
	command := func(args string, code int, want string) {
		t.Helper()
		got, out, _, err := run(append(strings.Fields(args), "--address", s.admin)...)
		if got != code || !strings.Contains(out, want) {
			t.Errorf("%s: %d, %v\n%s", args, got, err, out)
		}
	}
	command("leases", 0, "no leases")
	command("routes", 0, "local    ollama   ollama  key")
	command("revoke --slot key", 0, "slot:key  revoked  true     true")
	command("revocations", 0, "slot:key")
	if code, body := generate(); code != 403 {
		t.Errorf("with a revoked slot: %d %s", code, body)
	}
	command("revoke --slot key --undo", 0, "slot:key  good")
	if code, body := generate(); code != 200 {
		t.Errorf("with the slot back: %d %s", code, body)
	}
	var events []string
	for _, r := range auditRecords(t, audit) {
		events = append(events, r.Event)
		if r.Lease != "" && (r.Slot != "key" || r.Version == 0 || r.Principal != "anonymous" || r.Node != "embedded-gw1" || r.Run == "") {
			t.Errorf("a record says %+v", r)
		}
	}
	if all := strings.Join(events, " "); !strings.HasPrefix(all, "issued opened ended revoked") || !strings.HasSuffix(all, "restored issued opened ended") {
		t.Errorf("the audit has %s", all)
	}
	_, metrics := s.do("GET", "http://"+s.admin+"/metrics", "")
	for _, want := range []string{`result="issued"} 2`, `result="opened"} 2`, `result="lease_revoked"} 1`} {
		if !strings.Contains(metrics, "fairway_leases_total{"+want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	raw, err := os.ReadFile(audit)
	if err != nil || strings.Contains(string(raw), "CANARY") {
		t.Errorf("the credential stands in the audit, or %v", err)
	}
}
