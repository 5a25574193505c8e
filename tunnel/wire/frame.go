package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

// Type says what a frame's payload is. A type with the low bit set is critical: a reader that does not know
// it closes the connection. A reader skips the others and counts them.
type Type uint64

// Frame types of the control stream.
const (
	TypeRegister      Type = 0x01 // node → gateway, first
	TypeRegistered    Type = 0x03 // gateway → node
	TypeReady         Type = 0x05 // node → gateway
	TypeReadyAck      Type = 0x07 // gateway → node
	TypeStatus        Type = 0x09 // node → gateway
	TypeHeartbeat     Type = 0x0a // both; not critical, so that a later kind of beat may replace it
	TypeProjection    Type = 0x0b // gateway → node
	TypeProjectionAck Type = 0x0d // node → gateway
	TypeRevoke        Type = 0x0f // gateway → node
	TypeRevokeAck     Type = 0x11 // node → gateway
	TypeCommand       Type = 0x13 // gateway → node
	TypeCommandResult Type = 0x15 // node → gateway
	TypeRecipientKey  Type = 0x17 // node → gateway
	TypeRenew         Type = 0x19 // node → gateway
	TypeRenewed       Type = 0x1b // gateway → node
	TypeOpenLane      Type = 0x1d // gateway → node
	TypeJoinLane      Type = 0x1f // node → gateway, first on a further lane
	TypeDrain         Type = 0x21 // gateway → node
	TypeDraining      Type = 0x23 // node → gateway
	TypeCancel        Type = 0x25 // gateway → node
	TypeIssuerKeys    Type = 0x27 // gateway → node
	TypeIssuerKeysAck Type = 0x29 // node → gateway
)

// Frame types of a run stream.
const (
	TypeRunOpen  Type = 0x41 // gateway → node, first
	TypeLease    Type = 0x43 // gateway → node, at most once, directly after RunOpen
	TypeData     Type = 0x45 // both; raw bytes
	TypeEnd      Type = 0x47 // gateway → node; empty
	TypeRefused  Type = 0x49 // node → gateway
	TypeAccepted Type = 0x4b // node → gateway
	TypeHead     Type = 0x4d // node → gateway
	TypeTerminal Type = 0x4f // node → gateway, last
)

// Frame types of an enrolment stream and of streams for later use.
const (
	TypeEnrollOffer   Type = 0x61 // gateway → node, first
	TypeEnrollRequest Type = 0x63 // node → gateway
	TypeEnrollResult  Type = 0x65 // gateway → node, last
	TypeNodeOpen      Type = 0x71 // node → gateway, first on a stream that a node opens
	TypePeerHello     Type = 0x73 // gateway ↔ gateway, first
	TypePeerNodes     Type = 0x75 // gateway → gateway
)

// Critical reports whether a reader that does not know t must close the connection.
func (t Type) Critical() bool { return t&1 == 1 }

// Caps on a payload's length in bytes, held before anything is allocated (PROTOCOL.md, "Connection").
const (
	MaxControl = 256 << 10
	MaxHead    = 64 << 10
	MaxLease   = 16 << 10
	MaxData    = 64 << 10
	// MaxUnknown bounds what is skipped for a type that the reader does not know.
	MaxUnknown = 64 << 10
	// MaxHeader is the most that a frame's type and length take.
	MaxHeader = 2 * maxVarint
	// maxVarint allows 35 bits; every value in use needs fewer.
	maxVarint = 5
	// MinHeartbeat is the least length of a Heartbeat's payload in bytes: quic-go answers only packets over 42
	// bytes with a stateless reset (facts measured with v0.64.1), so a beat must be larger to find out that its
	// peer has forgotten the connection.
	MinHeartbeat = 64
)

var (
	// ErrFrame says that bytes are not a frame: an overlong or oversized varint, or a payload over its cap.
	ErrFrame = errors.New("malformed frame")
	// ErrUnknownCritical says that a frame of unknown critical type came.
	ErrUnknownCritical = errors.New("unknown critical frame")
)

// Cap returns the most bytes that the payload of a frame of type t may have, and whether t is known.
func Cap(t Type) (limit uint64, known bool) {
	switch t {
	case TypeRegister, TypeRegistered, TypeReady, TypeReadyAck, TypeStatus, TypeHeartbeat, TypeProjection,
		TypeProjectionAck, TypeRevoke, TypeRevokeAck, TypeCommand, TypeCommandResult, TypeRecipientKey, TypeRenew,
		TypeRenewed, TypeOpenLane, TypeJoinLane, TypeDrain, TypeDraining, TypeCancel, TypeIssuerKeys, TypeIssuerKeysAck,
		TypeEnrollOffer, TypeEnrollRequest, TypeEnrollResult, TypeNodeOpen, TypePeerHello, TypePeerNodes, TypeTerminal:
		return MaxControl, true
	case TypeRunOpen, TypeHead, TypeRefused:
		return MaxHead, true
	case TypeLease:
		return MaxLease, true
	case TypeData:
		return MaxData, true
	case TypeEnd, TypeAccepted:
		return 0, true
	}
	return MaxUnknown, false
}

// ParseHeader reads a frame's type and length from the front of b. It returns n = 0 with a nil error when b holds
// too little to tell, and ErrFrame or ErrUnknownCritical when no further byte could make it right.
func ParseHeader(b []byte) (t Type, length, n int, err error) {
	tv, tn, err := parseVarint(b)
	if err != nil || tn == 0 {
		return 0, 0, 0, err
	}
	t = Type(tv)
	limit, known := Cap(t)
	if !known && t.Critical() {
		return t, 0, 0, fmt.Errorf("%w 0x%x", ErrUnknownCritical, uint64(t))
	}
	lv, ln, err := parseVarint(b[tn:])
	if err != nil || ln == 0 {
		return t, 0, 0, err
	}
	if lv > limit {
		return t, 0, 0, fmt.Errorf("%w: type 0x%x of %d bytes, at most %d", ErrFrame, uint64(t), lv, limit)
	}
	return t, int(lv), tn + ln, nil
}

// parseVarint reads a little-endian base-128 varint in its shortest form. n = 0: more bytes are needed.
func parseVarint(b []byte) (v uint64, n int, err error) {
	for i := range b {
		if i == maxVarint {
			return 0, 0, fmt.Errorf("%w: varint over %d bytes", ErrFrame, maxVarint)
		}
		v |= uint64(b[i]&0x7f) << (7 * i)
		if b[i] < 0x80 {
			if i > 0 && b[i] == 0 {
				return 0, 0, fmt.Errorf("%w: varint not in its shortest form", ErrFrame)
			}
			return v, i + 1, nil
		}
	}
	return 0, 0, nil
}

// AppendHeader appends the header of a frame.
func AppendHeader(b []byte, t Type, length int) []byte {
	b = binary.AppendUvarint(b, uint64(t))
	return binary.AppendUvarint(b, uint64(length))
}

// AppendMessage appends a whole frame with m as payload. It fails when m is over the cap of t.
func AppendMessage(b []byte, t Type, m proto.Message) ([]byte, error) {
	size := proto.Size(m)
	if limit, _ := Cap(t); uint64(size) > limit {
		return b, fmt.Errorf("%w: type 0x%x of %d bytes, at most %d", ErrFrame, uint64(t), size, limit)
	}
	b = AppendHeader(b, t, size)
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		return b, fmt.Errorf("encoding frame 0x%x: %w", uint64(t), err)
	}
	return b, nil
}

// AppendData appends a Data frame. p is at most MaxData bytes.
func AppendData(b, p []byte) []byte {
	return append(AppendHeader(b, TypeData, len(p)), p...)
}

// Unmarshal decodes a payload.
func Unmarshal(p []byte, m proto.Message) error {
	if err := proto.Unmarshal(p, m); err != nil {
		return fmt.Errorf("%w: %T: %w", ErrFrame, m, err)
	}
	return nil
}

// ReadFrame reads one whole frame of known type, skipping at most maxSkipped unknown ones that are not critical, and returns
// its payload in buf's memory when that is large enough. For control and enrolment streams; run streams use Reader.
func ReadFrame(r io.ByteReader, full func([]byte) error, buf []byte) (Type, []byte, error) {
	for range maxSkipped {
		t, length, err := readHeader(r)
		if err != nil {
			return t, nil, err
		}
		if cap(buf) < length {
			buf = make([]byte, length)
		}
		buf = buf[:length]
		if err := full(buf); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return t, nil, err
		}
		if _, known := Cap(t); known {
			return t, buf, nil
		}
	}
	return 0, nil, fmt.Errorf("%w: more than %d unknown frames in a row", ErrFrame, maxSkipped)
}

const maxSkipped = 64

func readHeader(r io.ByteReader) (Type, int, error) {
	var head [MaxHeader]byte
	for i := range head {
		c, err := r.ReadByte()
		if err != nil {
			if i > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, 0, err
		}
		head[i] = c
		t, length, n, err := ParseHeader(head[:i+1])
		if err != nil {
			return t, 0, err
		}
		if n > 0 {
			return t, length, nil
		}
	}
	return 0, 0, fmt.Errorf("%w: header over %d bytes", ErrFrame, MaxHeader)
}
