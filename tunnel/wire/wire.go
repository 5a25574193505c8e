// Package wire is the tunnel protocol's bytes: frames, their caps, the protobuf messages in them, and codes.
//
// A frame is
//
//	type varint · length varint · payload
//
// with varints in little-endian base 128 and shortest form. wire.proto has the messages; PROTOCOL.md beside
// this file says who sends which when, and is meant to be enough for a second implementation.
//
// The package reads what a peer sends, so every length is checked against the cap of its type before memory is
// taken (ParseHeader, ReadFrame, Reader). It knows nothing of QUIC, sessions or Ollama.
package wire

// Version is the protocol version of Register.
const Version = 1

// ALPN names of the two protocols that a gateway's listener speaks.
const (
	ALPN       = "fairway/1"
	ALPNEnroll = "fairway-enroll/1"
)
