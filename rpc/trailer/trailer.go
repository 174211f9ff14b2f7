// Package trailer is the wire format of what an execution journals, and of states and
// their changes, as ledgers keep them (thesis section 5.4). It does no I/O.
//
// It is a row of sections: type (1 byte), branch (4), index (4), length
// (4), content.
package trailer

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Type says what a section is.
type Type uint8

// The types. Time to Order, Policy and Region, are journal entries: what an execution got
// from outside, or in which order, at a place in its program that Branch and Index name. Those of Region are places among the memory
// operations of a branch.
const (
	Time     Type = 1 // the clock: nanoseconds since 1970, 8 bytes
	Random   Type = 2 // random bytes
	Effect   Type = 3 // an outside effect's result: idempotency key, its length (2 bytes) in front, error code (1 byte), then the result or the error's message
	Outcome  Type = 4 // how a call ended: error code (1 byte), the call's fingerprint (8), then the message of an error that this side decided; after code 0 nothing, or the answer of a call of policy none
	Order    Type = 5 // which branch's completion was observed: its number, 4 bytes
	Snapshot Type = 6 // the service's whole state
	Delta    Type = 7 // a change of the service's state, to be applied to the latest snapshot and the changes since
	Policy   Type = 8 // the policy of the call that follows, 1 byte, where it was not the caller's own choice
	Region   Type = 9 // a region that was allocated: the pointer to its first byte
)

// Journal reports whether a section of this type is a journal entry.
func (t Type) Journal() bool { return t >= Time && t <= Order || t == Policy || t == Region }

var names = [...]string{"", "time", "random", "effect", "outcome", "order", "snapshot", "delta", "policy", "region"}

// String returns the type's name.
func (t Type) String() string {
	if t >= Time && int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("section %d", uint8(t))
}

// Section is one of a row. Data aliases what it was parsed from.
type Section struct {
	Type          Type
	Branch, Index uint32
	Data          []byte
}

// headerSize is the bytes of a section before its content.
const headerSize = 13

// Size is the section's length on the wire in bytes.
func (s Section) Size() int { return headerSize + len(s.Data) }

// Append appends the section's wire form to b.
func (s Section) Append(b []byte) []byte {
	b = append(b, byte(s.Type))
	b = binary.BigEndian.AppendUint32(b, s.Branch)
	b = binary.BigEndian.AppendUint32(b, s.Index)
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.Data)))
	return append(b, s.Data...)
}

// Append appends the wire form of all sections to b.
func Append(b []byte, ss []Section) []byte {
	for _, s := range ss {
		b = s.Append(b)
	}
	return b
}

// Parse takes a row of sections apart. It refuses a truncated section and an unknown
// type with an error that wraps wirefmt.ErrFormat.
func Parse(b []byte) ([]Section, error) {
	var ss []Section
	for at := 0; len(b) > 0; {
		if len(b) < headerSize {
			return nil, wirefmt.Errorf("trailer at byte %d: %d bytes, a section has at least %d", at, len(b), headerSize)
		}
		s := Section{Type: Type(b[0]), Branch: binary.BigEndian.Uint32(b[1:]), Index: binary.BigEndian.Uint32(b[5:])}
		n := binary.BigEndian.Uint32(b[9:])
		if s.Type < Time || s.Type > Region {
			return nil, wirefmt.Errorf("trailer at byte %d: %s", at, s.Type)
		}
		if uint64(n) > uint64(len(b)-headerSize) {
			return nil, wirefmt.Errorf("trailer at byte %d: %s of %d bytes, %d are left", at, s.Type, n, len(b)-headerSize)
		}
		end := headerSize + int(n)
		s.Data = b[headerSize:end:end]
		ss, b, at = append(ss, s), b[end:], at+end
	}
	return ss, nil
}
