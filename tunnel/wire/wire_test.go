package wire

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"
)

// vectors are frames that another implementation must read and write the same.
var vectors = []struct {
	name  string
	hex   string
	t     Type
	m     proto.Message
	empty proto.Message
}{
	{"Accepted", "4b00", TypeAccepted, nil, nil},
	{"End", "4700", TypeEnd, nil, nil},
	{"ReadyAck of generation 7", "07020807", TypeReadyAck, &ReadyAck{Generation: 7}, &ReadyAck{}},
	{"Cancel of run abc", "25050a03616263", TypeCancel, &Cancel{Run: "abc"}, &Cancel{}},
	{"Head 200 with one header", "4d1108c80112 0c0a04412d42 43120443616665", TypeHead, &Head{Status: 200, Headers: []*Header{{Name: "A-BC", Value: []byte("Cafe")}}}, &Head{}},
	{"Refused, elsewhere, no credit", "490f0a096e6f64655f6275737910012801", TypeRefused, &Refused{Code: "node_busy", Retry: Retry_RETRY_ELSEWHERE, NoCredit: true}, &Refused{}},
	{"Terminal completed after 5 bytes", "4f0408014005", TypeTerminal, &Terminal{Outcome: Outcome_OUTCOME_COMPLETED, Bytes: 5}, &Terminal{}},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		want := unhex(t, v.hex)
		var got []byte
		if v.m == nil {
			got = AppendHeader(nil, v.t, 0)
		} else {
			var err error
			if got, err = AppendMessage(nil, v.t, v.m); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: wrote %x, want %x", v.name, got, want)
		}
		ty, p, _, err := NewReader(bytes.NewReader(want), make([]byte, 64)).Next()
		if err != nil || ty != v.t {
			t.Errorf("%s: read %#x, %v", v.name, ty, err)
			continue
		}
		if v.m != nil && (Unmarshal(p, v.empty) != nil || !proto.Equal(v.empty, v.m)) {
			t.Errorf("%s: read %v", v.name, v.empty)
		}
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, hex string
		err       error
	}{
		{"overlong type", "cd00" + "00", ErrFrame},
		{"varint of six bytes", "cbffffffffff01", ErrFrame},
		{"length over the cap of data", "45818004", ErrFrame},
		{"length of 2^32-1", "4dffffffff0f", ErrFrame},
		{"payload where there is none", "4b0161", ErrFrame},
		{"lease over 16 KiB", "43818001", ErrFrame},
		{"unknown critical", "7f00", ErrUnknownCritical},
		{"cut in a header", "4d", io.ErrUnexpectedEOF},
		{"cut in a payload", "4d0508", io.ErrUnexpectedEOF},
		{"cut in data", "450561", io.ErrUnexpectedEOF},
		{"clean end", "", io.EOF},
	} {
		r := NewReader(bytes.NewReader(unhex(t, tt.hex)), make([]byte, 64))
		var err error
		for err == nil {
			_, _, _, err = r.Next()
		}
		if !errors.Is(err, tt.err) {
			t.Errorf("Reader, %s: %v, want %v", tt.name, err, tt.err)
		}
		if _, _, _, again := r.Next(); !errors.Is(again, tt.err) {
			t.Errorf("Reader, %s: the error is not sticky: %v", tt.name, again)
		}
		br := bufio.NewReader(bytes.NewReader(unhex(t, tt.hex)))
		_, _, err = ReadFrame(br, func(b []byte) error { _, err := io.ReadFull(br, b); return err }, nil)
		if !errors.Is(err, tt.err) {
			t.Errorf("ReadFrame, %s: %v, want %v", tt.name, err, tt.err)
		}
	}
}

func TestUnknownUncriticalIsSkippedAndBounded(t *testing.T) {
	t.Parallel()
	skip := AppendHeader(nil, 0x7e, 3)
	skip = append(skip, "abc"...)
	r := NewReader(bytes.NewReader(append(bytes.Clone(skip), 0x4b, 0)), make([]byte, 64))
	if ty, _, _, err := r.Next(); err != nil || ty != TypeAccepted || r.Skipped() != 1 {
		t.Fatalf("%#x %v %d", ty, err, r.Skipped())
	}
	r = NewReader(bytes.NewReader(bytes.Repeat(skip, 1000)), make([]byte, 64))
	if _, _, _, err := r.Next(); !errors.Is(err, ErrFrame) {
		t.Fatalf("endless skipping: %v", err)
	}
}

func TestDataComesInPiecesWithItsEdges(t *testing.T) {
	t.Parallel()
	var stream []byte
	want := [][]byte{bytes.Repeat([]byte("a"), 10), nil, bytes.Repeat([]byte("b"), MaxData), []byte("c")}
	for _, p := range want {
		stream = AppendData(stream, p)
	}
	for name, src := range map[string]io.Reader{
		"at once": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream)), "error with data": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := NewReader(src, make([]byte, 4096))
		for i, w := range want {
			var got []byte
			for {
				ty, p, last, err := r.Next()
				if err != nil || ty != TypeData {
					t.Fatalf("%s: %#x %v", name, ty, err)
				}
				got = append(got, p...)
				if last {
					break
				}
			}
			if !bytes.Equal(got, w) {
				t.Fatalf("%s: frame %d has %d bytes, want %d", name, i, len(got), len(w))
			}
		}
		if _, _, _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestHeartbeatDrawsAStatelessReset(t *testing.T) {
	t.Parallel()
	b, err := AppendMessage(nil, TypeHeartbeat, &Heartbeat{Seq: 1, Padding: make([]byte, MinHeartbeat)})
	if err != nil || len(b) < MinHeartbeat {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
}

// FuzzFrameDecode: however bytes are cut, both readers agree, take no more memory than the caps, and what was read can be written again.
func FuzzFrameDecode(f *testing.F) {
	for _, v := range vectors {
		f.Add(unhex(f, v.hex), 7)
	}
	f.Add(AppendData(AppendHeader(nil, TypeAccepted, 0), []byte("hello")), 1)
	f.Add([]byte{0x7e, 0x01, 0x00, 0x4b, 0x00}, 2)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step < 1 || step > 64 {
			step = 1
		}
		r := NewReader(&stepReader{in, step}, make([]byte, 256))
		var out []byte
		var data []byte
		for {
			ty, p, last, err := r.Next()
			if err != nil {
				break
			}
			if limit, known := Cap(ty); !known || uint64(len(p)) > limit {
				t.Fatalf("frame %#x of %d bytes came through", ty, len(p))
			}
			if ty == TypeData {
				if data = append(data, p...); last {
					out, data = AppendData(out, data), nil
				}
				continue
			}
			out = append(AppendHeader(out, ty, len(p)), p...)
		}
		if len(r.buf) > MaxHeader+max(MaxControl, MaxUnknown) {
			t.Fatalf("the buffer grew to %d", len(r.buf))
		}
		if r.Skipped() == 0 && !bytes.HasPrefix(in, out) {
			t.Fatalf("read %x, wrote %x", in, out)
		}
		br := bufio.NewReader(bytes.NewReader(in))
		for {
			if _, _, err := ReadFrame(br, func(b []byte) error { _, err := io.ReadFull(br, b); return err }, nil); err != nil {
				break
			}
		}
	})
}

// stepReader hands out at most n bytes at a time.
type stepReader struct {
	b []byte
	n int
}

func (s *stepReader) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.n)], s.b)
	s.b = s.b[n:]
	return n, nil
}

func BenchmarkReader(b *testing.B) {
	frames := bytes.Repeat(AppendData(nil, bytes.Repeat([]byte("x"), 120)), 100)
	buf := make([]byte, 32<<10)
	b.SetBytes(int64(len(frames)))
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(bytes.NewReader(frames), buf)
		for {
			if _, _, _, err := r.Next(); err != nil {
				break
			}
		}
	}
}

func BenchmarkRunOpen(b *testing.B) {
	m := &RunOpen{Run: "0123456789abcdefghijkl", Attempt: 1, Generation: 1 << 40, Kind: RunKind_RUN_KIND_TUNNEL, Adapter: "ollama", Target: "ollama", Method: "POST",
		Path: []byte("/api/chat"), Headers: []*Header{{Name: "Content-Type", Value: []byte("application/json")}, {Name: "User-Agent", Value: []byte("curl/8")}}, Body: BodyMode_BODY_MODE_LENGTH, BodyLength: 100}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = AppendMessage(buf[:0], TypeRunOpen, m); err != nil {
			b.Fatal(err)
		}
	}
}
