package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Value types of GGUF, version 3 (docs/gguf.md of ggml).
const (
	ggufUint32  = 4
	ggufInt32   = 5
	ggufFloat32 = 6
	ggufBool    = 7
	ggufString  = 8
	ggufArray   = 9

	ggufVersion   = 3
	ggufAlignment = 32
)

// spec is what one model differs in from another.
type spec struct {
	seed         uint64
	layers       int
	chatTemplate string // Jinja, inside the file
	pooling      uint32 // 0: generates text; 1: embeds by the mean
}

type tensor struct {
	name string
	dims []uint64
	data []float32
}

// encode writes the model as a GGUF file.
func (s spec) encode() []byte {
	v := newVocabulary(s.seed)
	meta := s.metadata(v)
	tensors := s.tensors(v)
	var b bytes.Buffer
	b.WriteString("GGUF")
	put(&b, uint32(ggufVersion), uint64(len(tensors)), uint64(meta.count))
	b.Write(meta.Bytes())
	offset := uint64(0)
	for _, t := range tensors {
		putString(&b, t.name)
		put(&b, uint32(len(t.dims)), t.dims, uint32(0), offset) // 0: F32
		offset += uint64(len(t.data)*4+ggufAlignment-1) / ggufAlignment * ggufAlignment
	}
	for _, t := range tensors {
		pad(&b)
		put(&b, t.data)
	}
	pad(&b)
	return b.Bytes()
}

func (s spec) metadata(v *vocabulary) *metadata {
	m := &metadata{}
	m.add("general.architecture", "llama")
	m.add("general.name", "tiny chain")
	m.add("general.basename", "tiny-chain")
	m.add("general.file_type", uint32(0))
	m.add("llama.block_count", uint32(s.layers))
	m.add("llama.context_length", uint32(maxCtx))
	m.add("llama.embedding_length", uint32(width))
	m.add("llama.feed_forward_length", uint32(ffWidth))
	m.add("llama.attention.head_count", uint32(heads))
	m.add("llama.attention.head_count_kv", uint32(heads))
	m.add("llama.rope.dimension_count", uint32(width/heads))
	m.add("llama.attention.layer_norm_rms_epsilon", float32(1e-5))
	m.add("llama.vocab_size", uint32(len(v.texts)))
	if s.pooling != 0 {
		m.add("llama.pooling_type", s.pooling)
	}
	m.add("tokenizer.ggml.model", "llama")
	m.add("tokenizer.ggml.pre", "default")
	m.add("tokenizer.ggml.tokens", v.texts)
	m.add("tokenizer.ggml.scores", v.scores)
	m.add("tokenizer.ggml.token_type", v.types)
	m.add("tokenizer.ggml.bos_token_id", uint32(beginID))
	m.add("tokenizer.ggml.eos_token_id", uint32(endID))
	m.add("tokenizer.ggml.unknown_token_id", uint32(unknownID))
	m.add("tokenizer.ggml.add_bos_token", true)
	m.add("tokenizer.ggml.add_eos_token", false)
	m.add("tokenizer.ggml.add_space_prefix", false)
	if s.chatTemplate != "" {
		m.add("tokenizer.chat_template", s.chatTemplate)
	}
	return m
}

func (s spec) tensors(v *vocabulary) []tensor {
	n := uint64(len(v.texts))
	ones := make([]float32, width)
	for i := range ones {
		ones[i] = 1
	}
	list := []tensor{{"token_embd.weight", []uint64{width, n}, flat(v.embed)}}
	for l := range s.layers {
		zero := func(name string, in, out uint64) {
			list = append(list, tensor{fmt.Sprintf("blk.%d.%s.weight", l, name), []uint64{in, out}, make([]float32, in*out)})
		}
		one := func(name string) {
			list = append(list, tensor{fmt.Sprintf("blk.%d.%s.weight", l, name), []uint64{width}, ones})
		}
		one("attn_norm")
		for _, part := range []string{"q", "k", "v", "output"} {
			zero("attn_"+part, width, width)
		}
		one("ffn_norm")
		zero("ffn_gate", width, ffWidth)
		zero("ffn_up", width, ffWidth)
		zero("ffn_down", ffWidth, width)
	}
	return append(list, tensor{"output_norm.weight", []uint64{width}, ones}, tensor{"output.weight", []uint64{width, n}, flat(v.output)})
}

func flat(rows [][]float32) []float32 {
	var all []float32
	for _, r := range rows {
		all = append(all, r...)
	}
	return all
}

// metadata is GGUF's list of keys and values.
type metadata struct {
	bytes.Buffer
	count int
}

func (m *metadata) add(key string, value any) {
	m.count++
	putString(&m.Buffer, key)
	switch x := value.(type) {
	case string:
		put(&m.Buffer, uint32(ggufString))
		putString(&m.Buffer, x)
	case uint32:
		put(&m.Buffer, uint32(ggufUint32), x)
	case float32:
		put(&m.Buffer, uint32(ggufFloat32), x)
	case bool:
		put(&m.Buffer, uint32(ggufBool), x)
	case []string:
		put(&m.Buffer, uint32(ggufArray), uint32(ggufString), uint64(len(x)))
		for _, s := range x {
			putString(&m.Buffer, s)
		}
	case []float32:
		put(&m.Buffer, uint32(ggufArray), uint32(ggufFloat32), uint64(len(x)), x)
	case []int32:
		put(&m.Buffer, uint32(ggufArray), uint32(ggufInt32), uint64(len(x)), x)
	default:
		panic(fmt.Sprintf("no GGUF type for %T", value))
	}
}

func put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		if err := binary.Write(b, binary.LittleEndian, v); err != nil {
			panic(err) // of fixed-size values into memory
		}
	}
}

func putString(b *bytes.Buffer, s string) {
	put(b, uint64(len(s)))
	b.WriteString(s)
}

func pad(b *bytes.Buffer) {
	for b.Len()%ggufAlignment != 0 {
		b.WriteByte(0)
	}
}
