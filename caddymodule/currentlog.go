package caddymodule

import (
	"go.uber.org/zap/zapcore"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

// currentLog writes to the logger of the hub's settings of the moment.
type currentLog struct {
	hub    *gateway.Hub
	fields []zapcore.Field
}

func (l *currentLog) core() zapcore.Core {
	if st := l.hub.Current(); st != nil {
		return st.Log.Core()
	}
	return zapcore.NewNopCore()
}

// Enabled implements zapcore.LevelEnabler.
func (l *currentLog) Enabled(level zapcore.Level) bool { return l.core().Enabled(level) }

// With implements zapcore.Core.
func (l *currentLog) With(fields []zapcore.Field) zapcore.Core {
	return &currentLog{hub: l.hub, fields: append(l.fields[:len(l.fields):len(l.fields)], fields...)}
}

// Check implements zapcore.Core. The core of the moment is asked, because it may
// filter by the logger's name.
func (l *currentLog) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	e.LoggerName = "fairway." + e.LoggerName
	return l.core().With(l.fields).Check(e, ce)
}

// Write implements zapcore.Core.
func (l *currentLog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	return l.core().With(l.fields).Write(e, fields)
}

// Sync implements zapcore.Core.
func (l *currentLog) Sync() error { return l.core().Sync() }

var _ zapcore.Core = (*currentLog)(nil)
