package main

import (
	"fmt"
	"math/rand/v2"
)

// A chain model knows the next token by the last one alone. All attention and feed-forward weights are zero, so what the output layer
// sees is the embedding of the last token; the output row of a token is the sum of the embeddings of the tokens that it may follow. With
// ±1 embeddings of width 256 a follower scores 64 and any other token a few units, so the choice is the same at every temperature.
//
// Tokens that stand in no chain share one embedding, which leads into the chain "#plain". A prompt that ends in a trigger leads
// into the chain of that name.

const (
	width    = 256  // of an embedding
	heads    = 4    // of attention, unused by the zero weights
	ffWidth  = 32   // likewise
	maxCtx   = 8192 // declared context length
	sharpens = 0.25 // factor of the output rows
)

// Token types of GGUF's tokenizer.ggml.token_type.
const (
	typeNormal  = 1
	typeUnknown = 2
	typeControl = 3
	typeUser    = 4
	typeByte    = 6
)

// chain is one answer: what a prompt that ends in trigger is answered with.
type chain struct {
	trigger string
	words   []string
	endless bool
}

func chains() []chain {
	loop := make([]string, 100)
	for i := range loop {
		loop[i] = fmt.Sprintf("w%02d", i)
	}
	return []chain{
		{"#plain", []string{"The", "gateway", "picked", "this", "node", "and", "the", "tiny", "model", "answers", "with", "a", "fixed", "sentence", "."}, false},
		{"#loop", loop, true},
		{"#tool", []string{"<tool_call>", `{"name":`, `"get_weather",`, `"arguments":`, `{"city":`, `"Paris"}}`, "</tool_call>"}, false},
		{"#think", []string{"<think>", "First", "I", "consider", "your", "question", "</think>", "Result", "is", "forty-two", "!"}, false},
		{"#json", []string{`{"answer":`, "42,", `"unit":`, `"none"}`}, false},
		{"#utf8", []string{"日本", "語の", "文字", "🙂", "café", "ünïcode", "。"}, false},
	}
}

// vocabulary is the token table with both layers' rows.
type vocabulary struct {
	texts  []string
	types  []int32
	scores []float32
	embed  [][]float32
	output [][]float32
}

// Ids of the special tokens.
const (
	unknownID = 0
	beginID   = 1
	endID     = 2
)

const space = "▁" // how SentencePiece spells a blank

func newVocabulary(seed uint64) *vocabulary {
	rnd := rand.New(rand.NewPCG(seed, 0))
	random := func() []float32 {
		row := make([]float32, width)
		for i := range row {
			row[i] = float32(1 - 2*int(rnd.Uint32()&1))
		}
		return row
	}
	v := &vocabulary{}
	common := random()
	v.add("<unk>", typeUnknown, 0, common)
	v.add("<s>", typeControl, 0, common)
	v.add("</s>", typeControl, 0, common)
	for b := range 256 {
		v.add(fmt.Sprintf("<0x%02X>", b), typeByte, 0, common)
	}
	v.add(space, typeNormal, -1, common)
	for i, c := range chains() {
		last := v.words(c, random)
		first := last - len(c.words) + 1
		if c.endless {
			v.follow(first, v.embed[last])
		} else {
			v.follow(endID, v.embed[last])
		}
		v.follow(first, v.embed[v.add(c.trigger, typeUser, 0, random())])
		if i == 0 {
			v.follow(first, common)
		}
	}
	return v
}

// words adds a chain's words, each a token of its own that follows the one before, and returns the last one's id.
func (v *vocabulary) words(c chain, random func() []float32) int {
	id := -1
	for i, w := range c.words {
		if i > 0 && w != "</tool_call>" {
			w = space + w
		}
		next := v.add(w, typeNormal, -100, random())
		if i > 0 {
			v.follow(next, v.embed[id])
		}
		id = next
	}
	return id
}

func (v *vocabulary) add(text string, kind int32, score float32, embedding []float32) int {
	v.texts = append(v.texts, text)
	v.types = append(v.types, kind)
	v.scores = append(v.scores, score)
	v.embed = append(v.embed, embedding)
	v.output = append(v.output, make([]float32, width))
	return len(v.texts) - 1
}

// follow makes token id an answer to whatever has this embedding.
func (v *vocabulary) follow(id int, embedding []float32) {
	for i, e := range embedding {
		v.output[id][i] += sharpens * e
	}
}
