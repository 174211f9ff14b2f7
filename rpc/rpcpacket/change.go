package rpcpacket

import "encoding/binary"

// SetGivenUp marks the datagram of a call, which Append has made, as given up.
func SetGivenUp(datagram []byte) { setFlag(datagram, FlagGivenUp) }

func setFlag(datagram []byte, f Flags) {
	flags := Flags(binary.BigEndian.Uint16(datagram[4:])) | f
	binary.BigEndian.PutUint16(datagram[4:], uint16(flags))
}

// SetUnpushed says in a copy of a call's datagram, which Append or First has made, that no parts follow.
func SetUnpushed(datagram []byte) {
	if Flags(binary.BigEndian.Uint16(datagram[4:]))&FlagMore != 0 {
		clear(datagram[HeaderSize+int(datagram[94])*ListSize+8:][:8])
	}
}

// SetReleased marks a datagram that Append made as the Gatekeeper's
// and binds it to an incarnation of the called node.
func SetReleased(datagram []byte, callee uint32) {
	setFlag(datagram, FlagReleased)
	binary.BigEndian.PutUint32(datagram[68:], callee)
}

// SetCaller makes an answer that was written down for a former incarnation of its caller one to a call: to its incarnation, slot and number.
func SetCaller(datagram []byte, call *Header) {
	binary.BigEndian.PutUint64(datagram[56:], uint64(call.Number))
	binary.BigEndian.PutUint32(datagram[64:], call.CallerIncarnation)
	binary.BigEndian.PutUint32(datagram[72:], uint32(call.Slot))
}

// SetCallee makes an answer that was written down by a former incarnation of the callee one of another incarnation.
func SetCallee(datagram []byte, incarnation uint32) {
	binary.BigEndian.PutUint32(datagram[68:], incarnation)
}

// Begun takes back what an exception says of its call: that it has not begun.
func Begun(datagram []byte) []byte {
	flags := Flags(binary.BigEndian.Uint16(datagram[4:])) &^ FlagUnbegun
	binary.BigEndian.PutUint16(datagram[4:], uint16(flags))
	return datagram
}
