package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

// What App.Audit may be besides the path of a file.
const (
	auditOff = "off"
	auditLog = "log"
)

// checkAudit wants an absolute path, so that a misspelt word makes no file.
func checkAudit(v string) error {
	if v == auditOff || v == auditLog || filepath.IsAbs(v) {
		return nil
	}
	return fmt.Errorf("'%s' is not known: want off, log or the absolute path of a file", v)
}

// provisionAudit gives the settings what takes audit records. It opens nothing.
func (a *App) provisionAudit() error {
	switch a.values.audit {
	case auditOff:
		return nil
	case auditLog:
		log := a.log.Named("audit")
		a.settings.Audit = func(r *gateway.AuditRecord) error {
			log.Info(auditMessage(r), auditFields(r)...)
			return nil
		}
		return nil
	}
	path := filepath.Clean(a.values.audit)
	made, _, err := auditFiles.LoadOrNew(path, func() (caddy.Destructor, error) { return &auditFile{path: path}, nil })
	if err != nil {
		return err
	}
	a.audit, a.kept = made.(*auditFile), true //nolint:errcheck // nothing else is in the pool
	a.settings.Audit = func(r *gateway.AuditRecord) error { return a.audit.record(r, a.log) }
	return nil
}

// auditFiles are the audit files of this process by path. Configs share them, so that
// a reload neither opens one twice nor loses a line.
var auditFiles = caddy.NewUsagePool()

const (
	// checkMoved is how often a file is looked for at its path: after that it is
	// written anew there, wherever a rotation has put the old one.
	checkMoved = time.Second
	// tellAgain is how often a failure to write is logged.
	tellAgain = time.Minute
)

// auditFile appends lines to a file. It is opened when the config starts, and again
// when it was moved away. Runs may end after the last config that wants it was
// cleaned up: then it is opened for their line alone.
type auditFile struct {
	path string

	mu      sync.Mutex
	file    *os.File  // guarded by mu; nil: not open
	unused  bool      // guarded by mu; no config has it any more
	torn    bool      // guarded by mu; the last line is not whole
	checked time.Time // guarded by mu; when it was looked for at its path
	told    time.Time // guarded by mu; when a failure was logged
}

// start opens the file, so that what is wrong with it fails the load.
func (f *auditFile) start() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open()
}

// open is called with mu held.
func (f *auditFile) open() error {
	if f.file != nil && time.Since(f.checked) >= checkMoved {
		f.checked = time.Now()
		if f.moved() {
			_ = f.file.Close() // each line was written whole
			f.file = nil
		}
	}
	if f.file != nil {
		return nil
	}
	if info, err := os.Stat(f.path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.path) // opening a pipe might wait for ever
	}
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f.file, f.torn, f.checked = file, endsTorn(f.path), time.Now()
	return nil
}

// endsTorn tells whether a file ends within a line, as a crash leaves it. One that
// cannot be read is taken for whole.
func endsTorn(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(-1, io.SeekEnd); err != nil {
		return false // it is empty
	}
	var last [1]byte
	n, _ := f.Read(last[:])
	return n == 1 && last[0] != '\n'
}

// moved tells whether another file, or none, is at the path now. With mu held.
func (f *auditFile) moved() bool {
	there, err := os.Stat(f.path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	ours, err := f.file.Stat()
	return err != nil || !os.SameFile(there, ours)
}

// record appends a line. Its error keeps the lease from being used, and is logged
// now and then.
func (f *auditFile) record(r *gateway.AuditRecord, log *zap.Logger) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err = f.append(append(line, '\n'))
	if now := time.Now(); err != nil && (f.told.IsZero() || now.Sub(f.told) >= tellAgain) {
		f.told = now
		log.Error("writing the audit file failed; no credential is lent until it can be written", zap.String("file", f.path), zap.Error(err))
	}
	return err
}

// append writes a line in one call: others may append to the same file. With mu held.
func (f *auditFile) append(line []byte) error {
	if err := f.open(); err != nil {
		return err
	}
	if f.torn {
		line = append([]byte("\n"), line...)
	}
	n, err := f.file.Write(line)
	f.torn = err != nil && (n > 0 || f.torn)
	if f.unused {
		err = errors.Join(err, f.file.Close())
		f.file = nil
	}
	return err
}

// Destruct implements caddy.Destructor.
func (f *auditFile) Destruct() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unused = true
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

func auditMessage(r *gateway.AuditRecord) string {
	if r.Lease == "" {
		return r.Event
	}
	return "lease " + r.Event
}

// auditFields are a record's, under the names that it has in JSON.
func auditFields(r *gateway.AuditRecord) []zap.Field {
	fields := []zap.Field{zap.String("time", r.Time.Format(time.RFC3339Nano)), zap.String("event", r.Event)} // the time as it is in a file
	text := func(name, v string) {
		if v != "" {
			fields = append(fields, zap.String(name, v))
		}
	}
	number := func(name string, v uint64) {
		if v != 0 {
			fields = append(fields, zap.Uint64(name, v))
		}
	}
	text("lease", r.Lease)
	text("run_id", r.Run)
	number("attempt", uint64(r.Attempt))
	text("principal", r.Principal)
	text("route", r.Route)
	text("profile", r.Profile)
	text("slot", r.Slot)
	number("slot_version", r.Version)
	text("node", r.Node)
	text("target", r.Target)
	text("origin", r.Origin)
	text("lane", r.Lane)
	number("generation", r.Generation)
	number("projection", r.Projection)
	text("outcome", r.Outcome)
	text("code", r.Code)
	if len(r.Subjects) > 0 {
		fields = append(fields, zap.Strings("subjects", r.Subjects))
	}
	return fields
}

var _ caddy.Destructor = (*auditFile)(nil)
