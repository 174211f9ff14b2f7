// Package rpcpacket is the wire format of calls: one datagram a message, IPv6 /
// UDP (port rackaddr.PortRPC) / Header / lists of regions / Thrift message /
// trailer (thesis figure 5.2, made final with the fields that exactly-once
// needs). The trailer says who has made the call, and who waits for it. It does no I/O.
package rpcpacket

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Magic and Version open every call header.
const (
	Magic   = 0xB1FC
	Version = 3
)

// HeaderSize is the length of a call header in bytes, without the lists behind it.
const HeaderSize = 120

// Type says what a message is; the numbers are Thrift's, and three more.
type Type uint8

// The types.
const (
	Call      Type = 1
	Reply     Type = 2
	Exception Type = 3
	Oneway    Type = 4
	// Ack is a node's word to another one about calls, from its port of calls alone, with FlagSettled, FlagUnbegun or FlagGivenUp.
	// It has no slot and no number.
	Ack Type = 5
	// Ask is a question: what has become of the call in this slot with this number? It comes from a later incarnation of
	// the call's caller, or from the Gatekeeper in its name, and is answered as the call is.
	Ask Type = 6
	// Forget tells a callee that its sender asks no more for the calls that the payload lists, an item each (AppendItem). It
	// goes to the callee's port of calls, and has no slot and no number of its own. The callee forgets the calls, and
	// acknowledges those that it has forgotten with an Ack with FlagSettled.
	Forget Type = 7
)

// String returns the type's name.
func (t Type) String() string {
	switch t {
	case Call:
		return "call"
	case Reply:
		return "reply"
	case Exception:
		return "exception"
	case Oneway:
		return "one-way"
	case Ack:
		return "ack"
	case Ask:
		return "ask"
	case Forget:
		return "forget"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Turned says why the switch has sent a message back to its sender. It alone turns messages around.
type Turned uint16

// The reasons.
const (
	NotTurned  Turned = 0
	Denied     Turned = 1 // not permitted, and never will be
	Lent       Turned = 2 // not now: a region is lent; the sender asks again
	Gone       Turned = 3 // the destination is gone
	NeverBegun Turned = 4 // so it is, and the call has not begun to run there, and will not
)

// String returns the reason.
func (t Turned) String() string {
	switch t {
	case NotTurned:
		return "not turned"
	case Denied:
		return "denied"
	case Lent:
		return "lent"
	case Gone:
		return "gone"
	case NeverBegun:
		return "never begun"
	}
	return fmt.Sprintf("turned %d", uint16(t))
}

// Policy is what becomes of a call when a node fails.
type Policy uint8

// DefaultFailures is after how many failures of its program an execution is given up, unless somebody says otherwise.
const DefaultFailures = 16

// MaxFailures is the largest number of failures that may be said.
const MaxFailures = 1_000_000

// The policies (thesis section 5.4).
const (
	// PolicyNone is at-most-once, bound to the callee's incarnation.
	PolicyNone Policy = 0
	// PolicyRecover re-runs what was cut off: exactly once.
	PolicyRecover Policy = 1
	// PolicyFateShare takes the other side's unfinished execution back, too.
	PolicyFateShare Policy = 2
	// PolicyTainted does so to all unfinished descendants.
	PolicyTainted Policy = 3
)

// String returns the policy's name as annotations and the CLI write it.
func (p Policy) String() string {
	switch p {
	case PolicyNone:
		return "none"
	case PolicyRecover:
		return "recover"
	case PolicyFateShare:
		return "fate-share"
	case PolicyTainted:
		return "tainted"
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// SharesFates reports whether the failure of one side of a call takes the other side's unfinished execution back.
func (p Policy) SharesFates() bool { return p == PolicyFateShare || p == PolicyTainted }

// Flags of a call header.
type Flags uint16

// The flags. The lowest two bits are the policy.
const (
	flagPolicy Flags = 3
	// FlagReleased: the message is the Gatekeeper's. It alone sets it.
	FlagReleased Flags = 1 << 4
	// FlagDone: the completion of a one-way call, as a Reply without payload.
	FlagDone Flags = 1 << 6
	// FlagGivenUp: of a call: its caller gives it up. The execution that has made an exactly-once call waits until the
	// callee's ledger has it. Of an Ack: the ledger has it.
	FlagGivenUp Flags = 1 << 7
	// FlagMore: the payload is the beginning of one that exceeds the packet; see
	// First. The receiver fetches the rest from the sender (package bulk).
	FlagMore Flags = 1 << 9
	// FlagSettled: of a Forget: its sender will not ask again for the calls that the payload lists. Of an Ack: they are forgotten.
	FlagSettled Flags = 1 << 10
	// FlagHeaders: headers stand in front of the Thrift message; see AppendHeaders.
	FlagHeaders Flags = 1 << 11
	// FlagUnbegun: of a system exception: the call did not begin to run, and will not. Of an Ack:
	// the node has restarted, and takes the calls of its receiver again. If such an Ack
	// names a call, the call shares its caller's fate: the receiver, whose incarnation is the
	// callee's in the header, is to be taken back. With FlagDone it answers that it is not.
	FlagUnbegun Flags = 1 << 12
	// FlagTainted: of a call: it is made on behalf of a call of policy tainted.
	FlagTainted Flags = 1 << 14
)

// Policy returns the policy bits.
func (f Flags) Policy() Policy { return Policy(f & flagPolicy) }

// Exact reports whether a call is an exactly-once one.
func (f Flags) Exact() bool { return f.Policy() != PolicyNone }

// WithPolicy returns f with the policy bits set to p.
func (f Flags) WithPolicy(p Policy) Flags { return f&^flagPolicy | Flags(p)&flagPolicy }

// ID is a 128-bit call or execution id: a hash of (parent, branch, index), or what PlainID makes.
type ID [16]byte

// derived is the bit of an id that numbers of calls never reach.
const derived = 0x80

// Derive marks an id as one that follows from an execution's and a key.
func (id *ID) Derive() { id[8] |= derived }

// Derived reports whether an id is marked so. No PlainID is.
func (id ID) Derived() bool { return id[8]&derived != 0 }

// IsZero reports whether id names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// Compare orders ids by their bytes: negative if id comes before o, 0 if they are equal.
func (id ID) Compare(o ID) int { return bytes.Compare(id[:], o[:]) }

// String prints the id in hexadecimal.
func (id ID) String() string { return fmt.Sprintf("%x", id[:]) }

// Layout is the header's definition; the P4 program and the docs follow it.
var Layout = wirefmt.Layout{Name: "rpc", Fields: []wirefmt.Field{
	{Name: "magic", Offset: 0, Size: 2, Doc: "0xB1FC"},
	{Name: "version", Offset: 2, Size: 1, Doc: "3"},
	{Name: "type", Offset: 3, Size: 1, Doc: "call 1, reply 2, exception 3, one-way 4 (as Thrift), ack 5, ask 6, forget 7"},
	{Name: "flags", Offset: 4, Size: 2, Doc: "bits 0-1 policy, 4 the Gatekeeper's, 6 done, 7 given up, 9 the payload goes on (its length, 8 bytes, and whom the next parts went to, 8 bytes, in front), 10 settled, 11 headers stand in front of the Thrift message: their bytes (2), then each key and value with its length (2) in front, 12 the call that this exception answers did not begin to run, 14 a call on behalf of a tainted one; the others are 0"},
	{Name: "name_length", Offset: 6, Size: 1, Doc: "bytes of the method's full name"},
	{Name: "code", Offset: 7, Size: 1, Doc: "error code of an exception that the system raised; 0 in all else"},
	{Name: "method", Offset: 8, Size: 16, Doc: "method name, zero-padded; longer names: 7 bytes of the name, '~', 8 bytes of its SHA-256"},
	{Name: "call", Offset: 24, Size: 16, Doc: "call id"},
	{Name: "parent", Offset: 40, Size: 16, Doc: "execution that calls; 0 for a plain client"},
	{Name: "number", Offset: 56, Size: 8, Doc: "the call's number in its slot: the caller's incarnation (27 bits), and a count (36)"},
	{Name: "caller_incarnation", Offset: 64, Size: 4, Doc: "incarnation of the calling node"},
	{Name: "callee_incarnation", Offset: 68, Size: 4, Doc: "incarnation of the node called: a call of policy none is bound to it; 0 in exactly-once calls"},
	{Name: "slot", Offset: 72, Size: 4, Doc: "call slot"},
	{Name: "turned", Offset: 76, Size: 2, Doc: "0, or why the switch has sent the message back to its sender: permission denied 1, lent 2, unavailable 3, unavailable and never begun 4"},
	{Name: "turned_twin", Offset: 78, Size: 2, Doc: "the complement of turned, so that both may change and the checksum stays right"},
	{Name: "timeout", Offset: 80, Size: 4, Doc: "milliseconds until the caller's deadline; 0 for none"},
	{Name: "branch", Offset: 84, Size: 4, Doc: "the caller's branch (rpc.Go); 0 for the trunk"},
	{Name: "index", Offset: 88, Size: 4, Doc: "the call's index within its branch"},
	{Name: "attempt", Offset: 92, Size: 2, Doc: "how often the callee's execution was started before"},
	{Name: "lists", Offset: 94, Size: 1, Doc: "lists of regions behind the header, 0 to 4: one for each call slot of the call; 0 stands for one slot that lists nothing"},
	{Name: "reserved", Offset: 95, Size: 1, Doc: "0"},
	{Name: "payload_length", Offset: 96, Size: 4, Doc: "bytes of the payload: the Thrift message, headers in front"},
	{Name: "trailer_length", Offset: 100, Size: 4, Doc: "bytes of the trailer: who waits for the call, and a hash of the arguments"},
	{Name: "service", Offset: 104, Size: 8, Doc: "the service's hash: the low half of its address"},
	{Name: "had", Offset: 112, Size: 2, Doc: "of a reply: which of its regions were its receiver's before, a bit for each (4 times the list, and the place in it); the switch writes it"},
	{Name: "had_twin", Offset: 114, Size: 2, Doc: "the complement of had"},
	{Name: "reserved2", Offset: 116, Size: 4, Doc: "0"},
}}

// Refuses reports whether an answer says that the call did not begin, since its node is gone or
// closes: another node may take it.
func (h *Header) Refuses() bool {
	return h.Type == Exception && h.Code == fault.Unavailable && h.Flags&FlagUnbegun != 0
}

// Outcome is the code of an answer: of a system exception, Application of one that the processor
// has written, Declared of a reply with an exception that the IDL declares, OK of any other one.
func (h *Header) Outcome() fault.Code {
	switch {
	case h.Type == Exception && h.Code == fault.OK:
		return fault.Application
	case h.Type == Exception, h.Code == fault.Declared:
		return h.Code
	}
	return fault.OK
}

// Header is a message's fixed part. The number of lists and the lengths follow from a [Message]'s parts.
type Header struct {
	Type              Type
	Flags             Flags
	NameLength        uint8
	Code              fault.Code
	Method            Method
	Call, Parent      ID
	Number            Number
	CallerIncarnation uint32
	CalleeIncarnation uint32
	Slot              Slot
	Timeout           uint32
	Branch, Index     uint32
	Attempt           uint16
	Service           uint64
	Turned            Turned
	Had               uint16 // of a reply: which regions were its receiver's before
}

// Message is one datagram taken apart. Payload and Trailer alias the datagram
// they were parsed from.
type Message struct {
	Header
	Lists   []List // at most MaxLists
	Payload []byte
	Trailer []byte
}

// Size is the length of the message's datagram in bytes.
func (m *Message) Size() int {
	return HeaderSize + ListSize*len(m.Lists) + len(m.Payload) + len(m.Trailer)
}

// Append appends the message's wire form to b.
func (m *Message) Append(b []byte) []byte {
	b = append(m.AppendHead(b), m.Payload...)
	return append(b, m.Trailer...)
}

// AppendHead appends what stands in front of the payload: the header, which says how
// long payload and trailer are, and the lists of regions.
func (m *Message) AppendHead(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint16(b, Magic)
	b = append(b, Version, byte(m.Type))
	b = be.AppendUint16(b, uint16(m.Flags))
	b = append(b, m.NameLength, byte(m.Code))
	b = append(b, m.Method[:]...)
	b = append(b, m.Call[:]...)
	b = append(b, m.Parent[:]...)
	b = be.AppendUint64(b, uint64(m.Number))
	b = be.AppendUint32(b, m.CallerIncarnation)
	b = be.AppendUint32(b, m.CalleeIncarnation)
	b = be.AppendUint32(b, uint32(m.Slot))
	b = appendTwins(b, uint16(m.Turned))
	b = be.AppendUint32(b, m.Timeout)
	b = be.AppendUint32(b, m.Branch)
	b = be.AppendUint32(b, m.Index)
	b = be.AppendUint16(b, m.Attempt)
	b = append(b, byte(len(m.Lists)), 0)
	b = be.AppendUint32(b, uint32(len(m.Payload)))
	b = be.AppendUint32(b, uint32(len(m.Trailer)))
	b = be.AppendUint64(b, m.Service)
	b = appendTwins(b, m.Had)
	b = append(b, 0, 0, 0, 0)
	for i := range m.Lists {
		b = m.Lists[i].append(b)
	}
	return b
}

// appendTwins appends a field and its complement. Their sum does not depend on the field, so the switch may change both without
// touching the checksum.
func appendTwins(b []byte, v uint16) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(v)<<16|uint32(^v))
}

// twins reads what appendTwins has appended.
func twins(b []byte, what string) (uint16, error) {
	v, twin := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if v^twin != 0xFFFF {
		return v, wirefmt.Errorf("call header: %s is %#04x, its complement %#04x", what, v, twin)
	}
	return v, nil
}

// SetTimeout changes the timeout, in milliseconds, of a datagram that Append
// made: what is sent again has less time left.
func SetTimeout(datagram []byte, ms uint32) {
	binary.BigEndian.PutUint32(datagram[80:], ms)
}

// Parse takes a datagram apart. It refuses a foreign, truncated, oversized or
// inconsistent one with an error that wraps wirefmt.ErrFormat.
func Parse(b []byte) (m Message, err error) {
	if len(b) < HeaderSize {
		return m, wirefmt.Errorf("call header: %d bytes, want %d", len(b), HeaderSize)
	}
	be := binary.BigEndian
	if magic := be.Uint16(b); magic != Magic {
		return m, wirefmt.Errorf("call header: magic %#04x, want %#04x", magic, Magic)
	}
	if b[2] != Version {
		return m, wirefmt.Errorf("call header: version %d, want %d", b[2], Version)
	}
	m.Header = Header{
		Type: Type(b[3]), Flags: Flags(be.Uint16(b[4:])), NameLength: b[6], Code: fault.Code(b[7]),
		Method: Method(b[8:24]), Call: ID(b[24:40]), Parent: ID(b[40:56]), Number: Number(be.Uint64(b[56:])),
		CallerIncarnation: be.Uint32(b[64:]), CalleeIncarnation: be.Uint32(b[68:]), Slot: Slot(be.Uint32(b[72:])),
		Timeout: be.Uint32(b[80:]), Branch: be.Uint32(b[84:]), Index: be.Uint32(b[88:]),
		Attempt: be.Uint16(b[92:]), Service: be.Uint64(b[104:]),
	}
	turned, err := twins(b[76:], "turned")
	if err == nil {
		m.Had, err = twins(b[112:], "had")
	}
	if m.Turned = Turned(turned); err != nil {
		return m, err
	}
	if m.Type < Call || m.Type > Forget || m.Turned > NeverBegun {
		return m, wirefmt.Errorf("call header: type %d, turned %d", m.Type, m.Turned)
	}
	if r := be.Uint32(b[116:]) | uint32(b[95]); r != 0 {
		return m, wirefmt.Errorf("call header: reserved fields are %#x, want 0", r)
	}
	return m, m.parseBody(b)
}

// parseBody checks the lengths and fills in the parts behind the header.
func (m *Message) parseBody(b []byte) error {
	be := binary.BigEndian
	lists, payload, trailer := int(b[94]), uint64(be.Uint32(b[96:])), uint64(be.Uint32(b[100:]))
	if lists > MaxLists {
		return wirefmt.Errorf("call header: %d lists of regions, at most %d", lists, MaxLists)
	}
	start := HeaderSize + lists*ListSize
	if want := uint64(start) + payload + trailer; want != uint64(len(b)) { //nolint:gosec // not negative
		return wirefmt.Errorf("call header: lengths add up to %d bytes, the datagram has %d", want, len(b))
	}
	rest := b[start:]
	m.Payload, m.Trailer = rest[:payload:payload], rest[payload:]
	return m.parseLists(b[HeaderSize:start], lists)
}

// RefSuffix ends the name of a method's form by reference, which is a method of its
// own on the wire.
const RefSuffix = ".ref"

// PlainMethod is the name that people know a method by, also of its form by reference.
func PlainMethod(name string) string { return strings.TrimSuffix(name, RefSuffix) }

// ParsePolicy reads what Policy.String writes; it reports false for anything else.
func ParsePolicy(s string) (Policy, bool) {
	for p := PolicyNone; p <= PolicyTainted; p++ {
		if p.String() == s {
			return p, true
		}
	}
	return PolicyNone, false
}

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
