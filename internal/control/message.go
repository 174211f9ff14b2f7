// Package control is the protocol between the Gatekeeper and the daemons of the
// blades: registration, nodes, heartbeats, and the Gatekeeper's commands. Its
// packets go to UDP port rackaddr.PortControl, where the switch holds every one
// for the Gatekeeper and forwards none, so a daemon that receives a control
// packet knows that the Gatekeeper sent it.
//
// Messages are requests and replies, in both directions, matched by id and sent
// again until answered; a receiver answers a duplicate with the same reply. They
// are rare, so their bodies are JSON behind a fixed header.
package control

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

// Magic and Version open every control header.
const (
	Magic   = 0xB1FE
	Version = 1
)

// HeaderSize is the length of a control header in bytes.
const HeaderSize = 48

// Kind says what a request asks; the reply has the same kind.
type Kind uint8

// From a daemon to the Gatekeeper.
const (
	KindHello     Kind = 1 // a blade is there: Hello, Welcome
	KindHeartbeat Kind = 2 // it still is: Heartbeat, HeartbeatReply
	KindJoin      Kind = 3 // a program wants to be a node: Join, Joined
	KindExport    Kind = 4 // a node exports a service: Export, empty
	KindLeave     Kind = 5 // a node has ended: Leave, empty
	KindState     Kind = 6 // a node asks what is logged for it: State, StatePart
	KindPolicies  Kind = 7 // what operators and deployments say of methods: Policies, PolicyList
)

// From the Gatekeeper to a daemon.
const (
	KindFence   Kind = 16 // memory: refuse an incarnation from now on: Fence, Fenced
	KindReclaim Kind = 17 // memory: free regions whose holder is gone: Reclaim, empty
	KindRegions Kind = 18 // memory: list regions, for reconciliation: Regions, RegionList
	KindStart   Kind = 19 // compute: run a program as a node: Start, Started
	KindStop    Kind = 20 // compute: end a node's program: Stop, empty
	// KindCommit, KindRollback and KindExecutions are for memory blades.
	KindCommit     Kind = 21 // what executions did is final: Commit, empty
	KindRollback   Kind = 22 // what executions did is taken back: Rollback, empty
	KindExecutions Kind = 23 // list what can be taken back, for reconciliation: Executions, ExecutionList
)

// String returns the kind's name.
func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

var kindNames = map[Kind]string{
	KindHello: "hello", KindHeartbeat: "heartbeat", KindJoin: "join", KindExport: "export", KindLeave: "leave", KindState: "state", KindPolicies: "policies",
	KindFence: "fence", KindReclaim: "reclaim", KindRegions: "regions", KindStart: "start", KindStop: "stop",
	KindCommit: "commit", KindRollback: "rollback", KindExecutions: "executions",
}

// Layout is the header's definition.
var Layout = wirefmt.Layout{Name: "control", Fields: []wirefmt.Field{
	{Name: "magic", Offset: 0, Size: 2, Doc: "0xB1FE"},
	{Name: "version", Offset: 2, Size: 1, Doc: "1"},
	{Name: "kind", Offset: 3, Size: 1, Doc: "what is asked"},
	{Name: "reply", Offset: 4, Size: 1, Doc: "0 request, 1 reply"},
	{Name: "status", Offset: 5, Size: 1, Doc: "error code of a reply; its body is then the message"},
	{Name: "reserved", Offset: 6, Size: 2, Doc: "0"},
	{Name: "id", Offset: 8, Size: 8, Doc: "request id, counted by the asker from 1"},
	{Name: "floor", Offset: 16, Size: 8, Doc: "all the asker's requests below are settled; 0 in a reply"},
	{Name: "sender", Offset: 24, Size: 8, Doc: "the asker's boot, drawn at random when it starts; a reply repeats its request's"},
	{Name: "election", Offset: 32, Size: 16, Doc: "the Gatekeeper's election id; what a daemon sends has the highest it has seen, and it refuses lower ones"},
}}

// Message is one control packet.
type Message struct {
	Kind     Kind
	Reply    bool
	Status   fault.Code
	ID       uint64
	Floor    uint64
	Sender   uint64
	Election Election
	Body     []byte
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
	reply := byte(0)
	if m.Reply {
		reply = 1
	}
	b = be.AppendUint16(b, Magic)
	b = append(b, Version, byte(m.Kind), reply, byte(m.Status), 0, 0)
	b = be.AppendUint64(b, m.ID)
	b = be.AppendUint64(b, m.Floor)
	b = be.AppendUint64(b, m.Sender)
	b = be.AppendUint64(b, m.Election.High)
	b = be.AppendUint64(b, m.Election.Low)
	return append(b, m.Body...)
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
	if b[4] > 1 {
		return m, wirefmt.Errorf("control header: reply flag %d", b[4])
	}
	return Message{
		Kind: Kind(b[3]), Reply: b[4] == 1, Status: fault.Code(b[5]), ID: be.Uint64(b[8:]), Floor: be.Uint64(b[16:]),
		Sender: be.Uint64(b[24:]), Election: Election{be.Uint64(b[32:]), be.Uint64(b[40:])}, Body: b[HeaderSize:],
	}, nil
}
