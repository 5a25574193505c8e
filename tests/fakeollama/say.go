package fakeollama

import (
	"encoding/json"
	"strings"
)

// sayPiece is how many characters a token of t-say has.
const sayPiece = 4

// say answers with what stands between ⟦ and ⟧ in a message, the last such text of the request: a test decides what the model says by what it
// asks, also where the request is made by someone else, such as a typed run. Without one it echoes.
func say(sp *speaker) error {
	said, found := "", false
	for _, raw := range sp.c.ask.Messages {
		var m struct{ Content string }
		if json.Unmarshal(raw, &m) != nil {
			continue
		}
		for rest := m.Content; ; found = true {
			_, after, ok := strings.Cut(rest, "⟦")
			text, next, closed := strings.Cut(after, "⟧")
			if !ok || !closed {
				break
			}
			said, rest = text, next
		}
	}
	if !found {
		return echo(sp)
	}
	for r := []rune(said); ; {
		n := min(sayPiece, len(r))
		if err := sp.say(string(r[:n])); err != nil { // an empty token for an empty text: a stream has a head
			return err
		}
		if r = r[n:]; len(r) == 0 {
			return sp.done()
		}
	}
}
