package edge

import "sync"

// Compiling a schema takes a hundred times as long as checking an answer against it, and an application asks with the same few schemas again and again. So the last ones
// are remembered, by their text to the byte: a schema is immutable, and what it means depends on nothing else.
const (
	maxRemembered      = 128       // schemas of one half
	maxRememberedBytes = 512 << 10 // of their texts
)

// schemaMemory remembers schemas in two halves: when the newer one is full it becomes the older one, and what was in that is forgotten unless it was asked for since.
// Safe for concurrent use.
type schemaMemory struct {
	mu    sync.Mutex
	newer map[string]*schema // guarded by mu
	older map[string]*schema // guarded by mu
	bytes int                // guarded by mu; of the newer half's texts
}

var remembered schemaMemory

// find returns the schema of a text, nil if it is not remembered.
func (m *schemaMemory) find(text []byte) *schema {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.newer[string(text)]; s != nil {
		return s
	}
	s := m.older[string(text)]
	if s != nil {
		m.put(string(text), s)
	}
	return s
}

func (m *schemaMemory) keep(text []byte, s *schema) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(string(text), s)
}

// put is called with mu held.
func (m *schemaMemory) put(text string, s *schema) {
	if m.newer == nil || len(m.newer) >= maxRemembered || m.bytes+len(text) > maxRememberedBytes {
		m.older, m.newer, m.bytes = m.newer, make(map[string]*schema), 0
	}
	if _, ok := m.newer[text]; !ok {
		m.bytes += len(text)
	}
	m.newer[text] = s
}
