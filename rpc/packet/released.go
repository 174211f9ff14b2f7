package packet

import "encoding/binary"

// SetReleased marks a datagram that Append made as released by the Gatekeeper
// and binds it to an incarnation of the called node. The datagram must have a
// whole header. Its UDP checksum is the caller's business.
func SetReleased(datagram []byte, callee uint32) {
	flags := Flags(binary.BigEndian.Uint16(datagram[4:])) | FlagReleased
	binary.BigEndian.PutUint16(datagram[4:], uint16(flags))
	binary.BigEndian.PutUint32(datagram[68:], callee)
}
