// Package control is the protocol between the Gatekeeper and the daemons of the
// blades: registration, nodes, heartbeats, and the Gatekeeper's commands. Its
// packets go to UDP port rackaddr.PortControl, where the switch holds every one
// for the Gatekeeper and forwards none, so a daemon that receives a control
// packet knows that the Gatekeeper sent it.
//
// Messages are requests and replies, in both directions, matched by id and sent
// again until answered; a receiver answers a duplicate with the same reply. They
// are rare, so their bodies are JSON behind a fixed header. A body that does not fit
// the rack's packets travels in parts (parts.go), whatever the kind of the message.
package control

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Magic and Version open every control header.
const (
	Magic   = 0xB1FE
	Version = 2
)

// HeaderSize is the length of a control header in bytes.
const HeaderSize = 60

// Kind says what a request asks; the reply has the same kind.
type Kind uint8

// From a daemon to the Gatekeeper.
const (
	KindHello     Kind = 1  // a blade is there: Hello, Welcome
	KindHeartbeat Kind = 2  // it still is: Heartbeat, HeartbeatReply
	KindJoin      Kind = 3  // a program wants to be a node: Join, Joined
	KindExport    Kind = 4  // a node exports a service: Export, Exported
	KindLeave     Kind = 5  // a node has ended: Leave, empty
	KindMain      Kind = 6  // a node asks whether it may run a durable main: BeginMain, BegunMain
	KindPolicies  Kind = 7  // what operators and deployments say of methods: empty, PolicyList
	KindWho       Kind = 8  // whose is an address: Who, NodeInfo
	KindService   Kind = 9  // what is known of a service: Service, ServiceInfo
	KindBlocks    Kind = 10 // a node wants more call slots: BlockQuery, BlockReply
	KindCalls     Kind = 11 // what direct calls a node serves: NodeCalls, empty
	KindEnded     Kind = 12 // a memory blade's daemon has ended: Ended, empty
	KindLedger    Kind = 13 // where a node keeps its ledger: LedgerQuery, LedgerReply
	KindSharing   Kind = 14 // whose a caller is, and whether it may share its fate with a node: Sharing, SharingReply
	KindBatches   Kind = 21 // a node wants more region slots: BatchQuery, BatchReply
	KindHoldings  Kind = 22 // what the switch has of a node that has joined again: HoldingsQuery, HoldingsPage
	KindAccount   Kind = 23 // a node's account of its rights, when the switch has lost its registers: AccountPage, empty
	KindShare     Kind = 27 // a node gives a standing lease, or takes one back: Share, ShareReply
	KindOwners    Kind = 15 // a memory blade asks whose nodes are: Owners, OwnersReply
)

// From the Gatekeeper to a daemon.
const (
	KindFence   Kind = 16 // memory: refuse an incarnation from now on: Fence, Fenced
	KindReclaim Kind = 17 // memory: free regions whose holder is gone: Reclaim, empty
	KindRegions Kind = 18 // memory: list regions, for reconciliation: Regions, RegionList
	KindGrant   Kind = 25 // memory: who may allocate in which batch: Grant, empty
	KindStart   Kind = 19 // compute: run a program as a node: Start
	KindStop    Kind = 20 // compute: end a node's program: Stop, empty
	// KindOutput is a question.
	KindOutput Kind = 48 // compute: what have programs printed: Output, OutputPart
	// KindCheck asks before something is deployed.
	KindCheck Kind = 50 // compute: could the blade start this program: Start, empty
	// KindCancelCall is an operator's wish.
	KindCancelCall Kind = 49 // compute: end the handler of a call: CancelCall, empty
	// KindGiveAccount follows the loss of the switch's registers.
	KindGiveAccount Kind = 51 // compute: a node is to give its account: GiveAccount, empty
	// The rest is for machines with two copies.
	KindMirror Kind = 24 // memory: be this copy from now on: Mirror, empty
	KindLevel  Kind = 26 // memory: make the second copy what this one is, after a fence: Level, Outcome
	// KindFill and KindComplete make a second copy.
	KindFill     Kind = 40 // memory: fill a copy, or be filled: Fill, Outcome
	KindComplete Kind = 41 // memory: complete the copy that is filled from here: Complete, Outcome
)

// What a memory blade does about ledgers; the seal is part of a fence.
const (
	KindLedgerGrant  Kind = 32 // memory: keep a ledger for an incarnation: LedgerGrant, LedgerAnswer
	KindLedgerDelete Kind = 34 // memory: drop a ledger: LedgerDelete, LedgerAnswer
	KindLedgers      Kind = 35 // memory: list ledgers, for reconciliation: Ledgers, LedgerList
	KindBackup       Kind = 36 // memory: a step of a backup of all ledgers: Backup, BackupPart
)

// String returns the kind's name.
func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

var kindNames = map[Kind]string{
	KindHello: "hello", KindHeartbeat: "heartbeat", KindJoin: "join", KindExport: "export", KindLeave: "leave", KindMain: "main", KindPolicies: "policies", KindWho: "who", KindService: "service", KindCalls: "calls", KindEnded: "ended", KindLedger: "ledger", KindSharing: "sharing", KindOwners: "owners", KindBlocks: "blocks", KindBatches: "batches", KindHoldings: "holdings", KindAccount: "account", KindShare: "share",
	KindFence: "fence", KindReclaim: "reclaim", KindRegions: "regions", KindStart: "start", KindStop: "stop", KindOutput: "output", KindCheck: "check", KindCancelCall: "cancel", KindGiveAccount: "give account",
	KindMirror: "mirror", KindGrant: "grant", KindLevel: "level",
	KindLedgerGrant: "grant ledger", KindLedgerDelete: "delete ledger", KindLedgers: "ledgers", KindBackup: "backup",
	KindFill: "fill", KindComplete: "complete",
}

// Layout is the header's definition.
var Layout = wirefmt.Layout{Name: "control", Fields: []wirefmt.Field{
	{Name: "magic", Offset: 0, Size: 2, Doc: "0xB1FE"},
	{Name: "version", Offset: 2, Size: 1, Doc: "2"},
	{Name: "kind", Offset: 3, Size: 1, Doc: "what is asked"},
	{Name: "flags", Offset: 4, Size: 1, Doc: "bit 0: reply; bit 1: no body, but how much of the other side's is there; bit 2: more packets follow at once"},
	{Name: "status", Offset: 5, Size: 1, Doc: "error code of a reply; its body is then the message"},
	{Name: "reserved", Offset: 6, Size: 2, Doc: "0"},
	{Name: "id", Offset: 8, Size: 8, Doc: "request id, counted by the asker from 1"},
	{Name: "floor", Offset: 16, Size: 8, Doc: "all the asker's requests below are settled; 0 in a reply"},
	{Name: "sender", Offset: 24, Size: 8, Doc: "the asker's boot, drawn at random when it starts; a reply repeats its request's"},
	{Name: "election", Offset: 32, Size: 16, Doc: "the Gatekeeper's election id; what a daemon sends has the highest it has seen, and it refuses lower ones"},
	{Name: "total", Offset: 48, Size: 4, Doc: "bytes of the whole body"},
	{Name: "offset", Offset: 52, Size: 4, Doc: "where in the body this packet's part begins; with flag bit 1, how many bytes are there"},
	{Name: "sum", Offset: 56, Size: 4, Doc: "CRC-32C of the whole body"},
}}

// The flags.
const (
	flagReply = 1 << iota
	flagAck
	flagMore
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Message is a control message, or the part of one that a packet carries.
type Message struct {
	Kind     Kind
	Reply    bool
	Status   fault.Code
	ID       uint64
	Floor    uint64
	Sender   uint64
	Election Election
	Body     []byte
	Part     Part // zero if Body is whole
}

// Part says which part of a message's body a packet carries.
type Part struct {
	// Ack: the packet carries nothing; Offset is how many bytes of the other side's
	// body have arrived. In a request that is the reply's, in a reply the request's.
	Ack bool
	// More: further packets follow at once, and the receiver answers the last of them.
	More   bool
	Offset uint32 // bytes of the body before this part
	Total  uint32 // bytes of the whole body
	Sum    uint32 // CRC-32C of the whole body
}

// Election is a P4Runtime election id; Less orders them.
type Election struct{ High, Low uint64 }

// Less reports whether e is lower than o.
func (e Election) Less(o Election) bool {
	return e.High < o.High || e.High == o.High && e.Low < o.Low
}

// Append appends the message's wire form to b.
func (m *Message) Append(b []byte) []byte {
	be := binary.BigEndian
	p := m.Part
	if p == (Part{}) {
		p.Total, p.Sum = uint32(len(m.Body)), crc32.Checksum(m.Body, castagnoli) //nolint:gosec // at most MaxMessage
	}
	flags := bit(m.Reply, flagReply) | bit(p.Ack, flagAck) | bit(p.More, flagMore)
	b = be.AppendUint16(b, Magic)
	b = append(b, Version, byte(m.Kind), flags, byte(m.Status), 0, 0)
	b = be.AppendUint64(b, m.ID)
	b = be.AppendUint64(b, m.Floor)
	b = be.AppendUint64(b, m.Sender)
	b = be.AppendUint64(b, m.Election.High)
	b = be.AppendUint64(b, m.Election.Low)
	b = be.AppendUint32(b, p.Total)
	b = be.AppendUint32(b, p.Offset)
	b = be.AppendUint32(b, p.Sum)
	return append(b, m.Body...)
}

func bit(set bool, flag byte) byte {
	if set {
		return flag
	}
	return 0
}

// Parse reads a control packet; Body aliases b. It refuses a foreign or
// truncated one with an error that wraps wirefmt.ErrFormat.
func Parse(b []byte) (m Message, err error) {
	be := binary.BigEndian
	if len(b) < HeaderSize {
		return m, wirefmt.Errorf("control header: %d bytes, want %d", len(b), HeaderSize)
	}
	if magic := be.Uint16(b); magic != Magic {
		return m, wirefmt.Errorf("control header: magic %#04x, want %#04x", magic, Magic)
	}
	if b[2] != Version {
		return m, wirefmt.Errorf("control header: version %d, want %d", b[2], Version)
	}
	flags := b[4]
	if flags >= flagMore<<1 {
		return m, wirefmt.Errorf("control header: flags %#x", flags)
	}
	m = Message{
		Kind: Kind(b[3]), Reply: flags&flagReply != 0, Status: fault.Code(b[5]), ID: be.Uint64(b[8:]), Floor: be.Uint64(b[16:]),
		Sender: be.Uint64(b[24:]), Election: Election{be.Uint64(b[32:]), be.Uint64(b[40:])}, Body: b[HeaderSize:],
		Part: Part{Ack: flags&flagAck != 0, More: flags&flagMore != 0, Total: be.Uint32(b[48:]), Offset: be.Uint32(b[52:]), Sum: be.Uint32(b[56:])},
	}
	return m, m.checkPart()
}

// checkPart checks which part of a body a packet says that it carries, and makes Part
// zero if that is the whole.
func (m *Message) checkPart() error {
	p, n := m.Part, uint64(len(m.Body))
	switch end := uint64(p.Offset) + n; {
	case p.Ack && (n > 0 || p.More):
		return wirefmt.Errorf("control header: an acknowledgement with %d bytes", n)
	case p.Total > MaxMessage || end > uint64(p.Total):
		return wirefmt.Errorf("control header: bytes %d to %d of a body of %d, at most %d", p.Offset, end, p.Total, MaxMessage)
	case p.Ack:
	case end < uint64(p.Total) && n == 0:
		return wirefmt.Errorf("control header: an empty part of a body of %d bytes", p.Total)
	case n == uint64(p.Total) && p.More:
		return wirefmt.Errorf("control header: more follows a whole body")
	case n == uint64(p.Total):
		if sum := crc32.Checksum(m.Body, castagnoli); sum != p.Sum {
			return wirefmt.Errorf("control header: the body's CRC-32C is %#08x, want %#08x", sum, p.Sum)
		}
		m.Part = Part{}
	}
	return nil
}
