package rpcpacket

import "encoding/binary"

// SetReleased marks a datagram that Append made as released by the Gatekeeper
// and binds it to an incarnation of the called node. The datagram must have a
// whole header. Its UDP checksum is the caller's business.
func SetReleased(datagram []byte, callee uint32) {
	flags := Flags(binary.BigEndian.Uint16(datagram[4:])) | FlagReleased
	binary.BigEndian.PutUint16(datagram[4:], uint16(flags))
	binary.BigEndian.PutUint32(datagram[68:], callee)
}

// SetUnlogged says in a released first packet (FlagMore) that the log has nothing of the message: the
// receiver fetches the rest from the sender.
func SetUnlogged(datagram []byte) {
	flags := Flags(binary.BigEndian.Uint16(datagram[4:]))
	if flags&FlagMore != 0 {
		flags &^= FlagHeld
	}
	binary.BigEndian.PutUint16(datagram[4:], uint16(flags))
}

// deliveryBits is how many bits a delivery's number has; 24 are left for the run.
const deliveryBits = 40

// DeliveryNumber is what the floor field has in a released exactly-once call, and in
// the ACK of its answer: the number that a run of the Gatekeeper has given the call
// among those for its callee. Numbers begin with 1; in an ACK, 0 says that the run
// has given the call none, or has forgotten it.
func DeliveryNumber(run, number uint64) uint64 { return run<<deliveryBits | number }

// Delivered takes a DeliveryNumber apart.
func Delivered(n uint64) (run, number uint64) {
	return n >> deliveryBits, n & (1<<deliveryBits - 1)
}

// Delivery is what the Gatekeeper writes into a datagram that it releases from its
// log.
type Delivery struct {
	Number  uint64 // a DeliveryNumber, or 0 in an answer
	Callee  uint32 // incarnation of the called node
	Order   uint64 // place among a stateful service's calls, or 0
	Attempt uint16 // how often the callee's execution was begun before
	Replay  bool
	Trailer []byte // in place of the logged one
}

// AppendReleased appends a logged datagram, which Append has made, to b as it is
// released: marked, and with another trailer, for the logged one is for the log.
func AppendReleased(b, datagram []byte, d Delivery) []byte {
	be := binary.BigEndian
	at := len(b)
	b = append(b, datagram[:len(datagram)-int(be.Uint32(datagram[100:]))]...)
	b = append(b, d.Trailer...)
	h := b[at:]
	flags := Flags(be.Uint16(h[4:])) | FlagReleased
	if d.Replay {
		flags |= FlagReplay
	}
	be.PutUint16(h[4:], uint16(flags))
	be.PutUint64(h[56:], d.Number)
	be.PutUint32(h[68:], d.Callee)
	be.PutUint64(h[72:], d.Order)
	be.PutUint16(h[92:], d.Attempt)
	be.PutUint32(h[100:], uint32(len(d.Trailer))) //nolint:gosec // a datagram's part
	return b
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
