package edge

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestSchemasAreRemembered(t *testing.T) {
	t.Parallel()
	var m schemaMemory
	text := func(i int) []byte { return fmt.Appendf(nil, `{"const":%d}`, i) }
	for i := range 10 * maxRemembered {
		m.keep(text(i), &schema{text: text(i)})
		if s := m.find(text(0)); s == nil || string(s.text) != string(text(0)) {
			t.Fatalf("the one that is asked for is forgotten after %d", i)
		}
		if s := m.find(text(i)); s == nil || string(s.text) != string(text(i)) {
			t.Fatalf("%d is not found", i)
		}
		if n := len(m.newer) + len(m.older); n > 2*maxRemembered {
			t.Fatalf("%d are remembered", n)
		}
	}
	if m.find(text(1)) != nil {
		t.Error("nothing is ever forgotten")
	}
	big := []byte(strings.Repeat(" ", maxRememberedBytes/2+1))
	for i := range 10 {
		m.keep(append(big, text(i)...), &schema{})
	}
	if n := len(m.newer) + len(m.older); n > 2 {
		t.Errorf("%d large ones are remembered", n)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				if s := m.find(text(i)); s != nil && string(s.text) != string(text(i)) {
					t.Error("another schema's")
				}
				m.keep(text(i), &schema{text: text(i)})
			}
		})
	}
	all.Wait()
}
