package lease

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// hidden is embedded by what must never be shown: every way of printing, marshalling or logging gives the same word.
type hidden struct{}

// Format prints the same word for every verb.
func (hidden) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// String hides the value.
func (hidden) String() string { return redacted }

// GoString hides the value.
func (hidden) GoString() string { return redacted }

// MarshalJSON hides the value.
func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText hides the value.
func (hidden) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue hides the value.
func (hidden) LogValue() slog.Value { return slog.StringValue(redacted) }

// Value is a credential as the gateway keeps it: bytes that cannot be printed, formatted, marshalled or logged. The zero Value is empty.
type Value struct {
	hidden
	b []byte
}

// NewValue takes b over.
func NewValue(b []byte) Value { return Value{b: b} }

// Bytes returns the value itself; it must not be changed.
func (v Value) Bytes() []byte { return v.b }
