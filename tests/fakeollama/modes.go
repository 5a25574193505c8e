package fakeollama

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// modes are the behaviours by model name: t-NAME, any tag. Every other model
// echoes. Knobs, with their defaults:
//
//	t-echo      five tokens at once
//	t-tick      t_n=20 tokens, one every t_ms=250
//	t-slowload  silent for t_s=90 seconds, then echo
//	t-die       three tokens, then a connection reset
//	t-longline  one token of t_bytes=4194304
//	t-utf8      every character cut in the middle by a write
//	t-hop       hop-by-hop headers that must not travel
//	t-flood     t_mb=100 megabytes as fast as they are read
//	t-ctype     JSON under t_ctype, "application/json; charset=utf-8"
//	t-errmid    two tokens, then an error inside the stream
//	t-say       what stands between ⟦ and ⟧ in the request
var modes = map[string]func(*speaker) error{
	"echo": echo, "tick": tick, "slowload": slowLoad, "die": die, "longline": longLine,
	"utf8": splitUTF8, "hop": hop, "flood": flood, "ctype": ctype, "errmid": errMid, "say": say,
}

func behaviour(model string) func(*speaker) error {
	base, _, _ := strings.Cut(norm(model), ":")
	if name, ok := strings.CutPrefix(base, "t-"); ok && modes[name] != nil {
		return modes[name]
	}
	return echo
}

func (sp *speaker) say(tokens ...string) error {
	for _, t := range tokens {
		if err := sp.token(t); err != nil {
			return err
		}
	}
	return nil
}

func echo(sp *speaker) error {
	if err := sp.say("one ", "two ", "three ", "four ", "five"); err != nil {
		return err
	}
	return sp.done()
}

func tick(sp *speaker) error {
	pace := time.Duration(sp.c.ask.number("ms", 250) * float64(time.Millisecond))
	for i := range int(sp.c.ask.number("n", 20)) {
		if err := sp.say(fmt.Sprintf("w%d ", i)); err != nil {
			return err
		}
		if err := sp.c.pause(pace); err != nil {
			return err
		}
	}
	return sp.done()
}

func slowLoad(sp *speaker) error {
	if err := sp.c.pause(time.Duration(sp.c.ask.number("s", 90) * float64(time.Second))); err != nil {
		return err
	}
	return echo(sp)
}

func die(sp *speaker) error {
	for i := range 3 {
		if err := sp.say(fmt.Sprintf("w%d ", i)); err != nil {
			return err
		}
		if err := sp.c.pause(100 * time.Millisecond); err != nil {
			return err
		}
	}
	sp.c.link.reset()
	return errBroken
}

func longLine(sp *speaker) error {
	if err := sp.say(strings.Repeat("A", int(sp.c.ask.number("bytes", 4<<20)))); err != nil {
		return err
	}
	return sp.done()
}

func splitUTF8(sp *speaker) error {
	if err := sp.head(); err != nil {
		return err
	}
	var raw []byte
	for _, t := range []string{"清風", "🌍", "ü世界", "—"} {
		raw = append(raw, sp.f.token(t)...)
	}
	raw = append(raw, sp.f.end()...)
	sum := sha256.Sum256(raw)
	sp.c.s.note(sp.c.rec, func(r *Record) { r.ExpectSHA256 = hex.EncodeToString(sum[:]) })
	for len(raw) > 0 {
		n := 1
		for n < len(raw) && raw[n] < utf8.RuneSelf {
			n++
		}
		n = min(n+1, len(raw)) // one byte into the next character
		if err := sp.c.write(raw[:n]); err != nil {
			return err
		}
		if err := sp.c.pause(30 * time.Millisecond); err != nil {
			return err
		}
		raw = raw[n:]
	}
	return sp.c.end()
}

func hop(sp *speaker) error {
	return sp.c.whole(200, encode(map[string]any{"model": sp.c.ask.Model, "done": true}), contentType("application/json"),
		header{"Connection", "keep-alive, X-Hop"}, header{"Keep-Alive", "timeout=5"},
		header{"X-Hop", "must-not-travel"}, header{"Proxy-Connection", "keep-alive"})
}

func flood(sp *speaker) error {
	sp.stream = true
	if err := sp.head(); err != nil {
		return err
	}
	frame := sp.f.token(strings.Repeat("F", 65000))
	for range int(sp.c.ask.number("mb", 100) * 1e6 / float64(len(frame))) {
		if err := sp.c.write(frame); err != nil {
			return err
		}
	}
	return sp.done()
}

func ctype(sp *speaker) error {
	body := encode(map[string]any{"model": sp.c.ask.Model, "done": true,
		"message": map[string]string{"role": "assistant", "content": "hi"}})
	return sp.c.whole(200, body, contentType(sp.c.ask.text("ctype", jsonType)))
}

const midStreamError = "an error was encountered while running the model: unexpected EOF"

func errMid(sp *speaker) error {
	if !sp.stream {
		return sp.c.fail(500, midStreamError)
	}
	if err := sp.say("w0 ", "w1 "); err != nil {
		return err
	}
	if err := sp.c.write(sp.f.failure(midStreamError)); err != nil {
		return err
	}
	return sp.c.end()
}
