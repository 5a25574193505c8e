package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

// fullRecord has every field set.
func fullRecord() *gateway.AuditRecord {
	return &gateway.AuditRecord{
		Time: time.Unix(1, 5).UTC(), Event: "opened", Lease: "l", Run: "r", Attempt: 2, Principal: "alice", Route: "default", Profile: "vllm", Slot: "openai",
		Version: 3, Node: "n1", Target: "vllm", Origin: "http://127.0.0.1:8000", Lane: "x", Generation: 4, Projection: 5, Outcome: "completed", Code: "c",
		Subjects: []string{"slot:openai"},
	}
}

// TestAuditFields compares what the log gets with what a file gets.
func TestAuditFields(t *testing.T) {
	t.Parallel()
	if v := reflect.ValueOf(*fullRecord()); true {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%s is not set in this test", v.Type().Field(i).Name)
			}
		}
	}
	for _, r := range []*gateway.AuditRecord{fullRecord(), {Time: time.Unix(1, 0).UTC(), Event: "revoked", Subjects: []string{"node:n1"}}} {
		enc := zapcore.NewMapObjectEncoder()
		for _, f := range auditFields(r) {
			f.AddTo(enc)
		}
		logged, err := json.Marshal(enc.Fields)
		if err != nil {
			t.Fatal(err)
		}
		filed, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fields(t, logged), fields(t, filed); !reflect.DeepEqual(got, want) {
			t.Errorf("the log has %v\nthe file %v", got, want)
		}
	}
	if a, b := auditMessage(fullRecord()), auditMessage(&gateway.AuditRecord{Event: "revoked"}); a != "lease opened" || b != "revoked" {
		t.Errorf("messages %q, %q", a, b)
	}
}

func newAuditFile(t *testing.T) *auditFile {
	t.Helper()
	f := &auditFile{path: filepath.Join(t.TempDir(), "audit.jsonl")}
	t.Cleanup(func() { _ = f.Destruct() })
	return f
}

// auditRecords reads the file's lines; each is a whole record.
func auditRecords(t *testing.T, path string) (out []gateway.AuditRecord) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var r gateway.AuditRecord
		if err := json.Unmarshal(line, &r); err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			t.Errorf("%v in line %q", err, line)
		}
		out = append(out, r)
	}
	return out
}

func TestAuditFileAppends(t *testing.T) {
	t.Parallel()
	f := newAuditFile(t)
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	const writers, lines = 8, 50
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range lines {
				r := fullRecord()
				r.Run = fmt.Sprint(w, "-", i)
				if err := f.record(r, zap.NewNop()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, r := range auditRecords(t, f.path) {
		seen[r.Run] = true
	}
	if len(seen) != writers*lines {
		t.Errorf("%d records, want %d", len(seen), writers*lines)
	}
	if last := auditRecords(t, f.path)[0]; fmt.Sprint(last.Subjects) != "[slot:openai]" || !last.Time.Equal(fullRecord().Time) {
		t.Errorf("got %+v", last)
	}
}

// TestAuditFileMoves is a rotation from outside.
func TestAuditFileMoves(t *testing.T) {
	t.Parallel()
	f := newAuditFile(t)
	write := func() {
		t.Helper()
		if err := f.record(fullRecord(), zap.NewNop()); err != nil {
			t.Fatal(err)
		}
	}
	later := func() { f.checked = time.Now().Add(-checkMoved) }
	write()
	old := f.path + ".1"
	if err := os.Rename(f.path, old); err != nil {
		t.Fatal(err)
	}
	f.checked = time.Now().Add(time.Hour) // not looked at yet
	write()
	if n := len(auditRecords(t, old)); n != 2 {
		t.Errorf("%d records in the moved file, want 2", n)
	}
	later()
	write()
	if n := len(auditRecords(t, f.path)); n != 1 {
		t.Errorf("%d records in the new file, want 1", n)
	}
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	later()
	write()
	if n := len(auditRecords(t, f.path)); n != 1 {
		t.Errorf("%d records after the file was removed, want 1", n)
	}
	before := f.file
	later()
	write()
	if f.file != before {
		t.Error("a file that was not moved was opened again")
	}
}

// TestAuditFileFails: the caller learns of it, people once a minute, and a torn line
// spoils no other.
func TestAuditFileFails(t *testing.T) {
	t.Parallel()
	f := newAuditFile(t)
	core, logs := observer.New(zap.ErrorLevel)
	log := zap.New(core)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full")
	}
	f.file, f.checked = full, time.Now().Add(time.Hour)
	for range 3 {
		if err := f.record(fullRecord(), log); err == nil {
			t.Error("a record that was not written is taken for safe")
		}
	}
	if n := logs.Len(); n != 1 {
		t.Errorf("logged %d times", n)
	}
	f.told = time.Now().Add(-tellAgain)
	if err := f.record(fullRecord(), log); err == nil || logs.Len() != 2 {
		t.Errorf("a minute later: %v, logged %d times", err, logs.Len())
	}
	_ = full.Close()
	f.file = nil
	if err := os.WriteFile(f.path, []byte(`{"event":"iss`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	f.torn = true // as a disk that fills up within a line leaves it
	if err := errors.Join(f.record(fullRecord(), log), f.record(fullRecord(), log)); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(string(raw), "\n"); len(lines) != 4 || lines[0] != `{"event":"iss` || json.Unmarshal([]byte(lines[1]), new(gateway.AuditRecord)) != nil {
		t.Errorf("got %q", lines)
	}
}

// TestAuditFileAfterACrash: a line that another process left unfinished spoils no
// record, and a whole one gets no empty line after it.
func TestAuditFileAfterACrash(t *testing.T) {
	t.Parallel()
	for before, want := range map[string]int{"": 1, "{}\n": 2, `{"event":"iss`: 2, `{"event":"issued"}`: 2} {
		f := newAuditFile(t)
		if err := os.WriteFile(f.path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.record(fullRecord(), zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(f.path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
		if last := lines[len(lines)-1]; len(lines) != want || json.Unmarshal([]byte(last), new(gateway.AuditRecord)) != nil {
			t.Errorf("after %q: got %q", before, lines)
		}
	}
}

// TestAuditFileAfterItsConfigs: a run that ends after the last config still has its
// line, and no descriptor stays open.
func TestAuditFileAfterItsConfigs(t *testing.T) {
	t.Parallel()
	f := newAuditFile(t)
	if err := errors.Join(f.start(), f.Destruct(), f.record(fullRecord(), zap.NewNop()), f.record(fullRecord(), zap.NewNop())); err != nil {
		t.Fatal(err)
	}
	if n := len(auditRecords(t, f.path)); n != 2 || f.file != nil {
		t.Errorf("%d records, open %t", n, f.file != nil)
	}
}

func TestAuditOfConfigs(t *testing.T) {
	s := newServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "audit.jsonl")
	with := func(audit string) string { return s.config(demoNode+audit, "") }
	open := func() int {
		n, _ := auditFiles.References(file)
		return n
	}
	if err := validate(t, with("audit "+file)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil || open() != 0 {
		t.Error("validate opens the file")
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none", "audit.jsonl"): "audit: open " + dir + "/none/audit.jsonl: no such file",
		dir: "audit: " + dir + " is not a regular file",
	} {
		if err := s.load(with("audit " + path)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
	t.Setenv("T_AUDIT", dir)
	s.mustLoad(with("audit {env.T_AUDIT}/x/../audit.jsonl"))
	s.node()
	audit := liveHubs()[0].Current().Audit
	if err := audit(fullRecord()); err != nil || open() != 1 || len(auditRecords(t, file)) != 1 {
		t.Errorf("%v, %d configs have the file", err, open())
	}
	s.mustLoad(with("audit " + file))
	if err := errors.Join(audit(fullRecord()), liveHubs()[0].Current().Audit(fullRecord())); err != nil || open() != 1 || len(auditRecords(t, file)) != 3 {
		t.Errorf("after a reload: %v, %d configs have the file, %d records", err, open(), len(auditRecords(t, file)))
	}
	s.mustLoad(with("audit off"))
	if open() != 0 || liveHubs()[0].Current().Audit != nil {
		t.Errorf("audit off: %d configs have the file", open())
	}
}

func TestAuditLog(t *testing.T) {
	s := newServer(t)
	logs := filepath.Join(t.TempDir(), "caddy.log")
	s.mustLoad(strings.Replace(s.config(demoNode, ""), "{\n", "{\nlog audit {\noutput file "+logs+"\ninclude fairway.audit\n}\n", 1))
	if err := liveHubs()[0].Current().Audit(fullRecord()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(logs)
	if err != nil {
		t.Fatal(err)
	}
	got := fields(t, bytes.TrimSpace(raw))
	if got["logger"] != "fairway.audit" || got["level"] != "info" || got["msg"] != "lease opened" || got["slot_version"] != 3. || got["run_id"] != "r" {
		t.Errorf("got %v", got)
	}
}
