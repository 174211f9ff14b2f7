package rpcpacket

import (
	"encoding/binary"
	"math"
	"time"
)

// ageUnit is the unit of a call's age in the attempt field: 16 bits reach eleven
// minutes.
const ageUnit = 10 * time.Millisecond

// SetAge tells in a datagram that Append made how long ago a call of policy none
// was first sent. Other messages stay as they are. A callee refuses what began
// before itself: its predecessor may have run it.
func SetAge(datagram []byte, age time.Duration) {
	if Flags(binary.BigEndian.Uint16(datagram[4:])).Policy() != PolicyNone {
		return
	}
	units := min(int64(age+ageUnit-1)/int64(ageUnit), math.MaxUint16)
	binary.BigEndian.PutUint16(datagram[92:], uint16(max(units, 1)))
}

// Older reports whether a call of policy none was first sent longer ago than d,
// as far as it tells; one whose age is beyond the field's range was.
func (h *Header) Older(d time.Duration) bool {
	if h.Flags.Policy() != PolicyNone || h.Attempt == 0 {
		return false
	}
	return h.Attempt == math.MaxUint16 || time.Duration(h.Attempt-1)*ageUnit > d
}

// Abandon returns a datagram that tells the callee of a session's call, whose datagram
// Append has made, that the caller has given it up: the call again, without what is in
// it, under a floor above it. It reports false for a call of no session.
func Abandon(datagram []byte) ([]byte, bool) {
	be := binary.BigEndian
	if Flags(be.Uint16(datagram[4:]))&FlagSession == 0 || be.Uint16(datagram[94:]) != 0 {
		return nil, false
	}
	b := append([]byte(nil), datagram[:HeaderSize]...)
	be.PutUint16(b[4:], be.Uint16(b[4:])&^uint16(FlagMore))
	be.PutUint64(b[56:], be.Uint64(b[32:])+1)
	be.PutUint64(b[96:], 0) // no payload, no trailer
	return b, true
}

// SetGivenUp marks the datagram of a direct call, which Append has made, as given up.
func SetGivenUp(datagram []byte) { setFlag(datagram, FlagGivenUp) }

func setFlag(datagram []byte, f Flags) {
	flags := Flags(binary.BigEndian.Uint16(datagram[4:])) | f
	binary.BigEndian.PutUint16(datagram[4:], uint16(flags))
}

// SetReleased marks a datagram that Append made as released by the Gatekeeper
// and binds it to an incarnation of the called node. The datagram must have a
// whole header. Its UDP checksum is the caller's business.
func SetReleased(datagram []byte, callee uint32) {
	setFlag(datagram, FlagReleased)
	binary.BigEndian.PutUint32(datagram[68:], callee)
}

// SetCaller changes the incarnation in an answer that was written down for a former one of its caller.
func SetCaller(datagram []byte, incarnation uint32) {
	binary.BigEndian.PutUint32(datagram[64:], incarnation)
}

// Begun takes back what an exception says of its call: that it has not begun.
func Begun(datagram []byte) []byte {
	flags := Flags(binary.BigEndian.Uint16(datagram[4:])) &^ FlagUnbegun
	binary.BigEndian.PutUint16(datagram[4:], uint16(flags))
	return datagram
}
