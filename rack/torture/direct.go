package torture

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Attacks on what goes past the Gatekeeper: direct calls, and the ledgers that decide about
// them.

// directTo makes packets from the attacker's node, and from each other one, to each node's port
// of direct calls.
func (a *attacker) directTo(messages ...rpcpacket.Message) (all [][]byte) {
	for _, n := range a.known.nodes {
		if n.Address == a.itself() {
			continue
		}
		other, _ := pick(a, a.known.nodes)
		for _, from := range []netip.Addr{a.itself(), other.Address} {
			for i := range messages {
				all = append(all, a.udp(from, n.Address, rackaddr.PortDirect, rackaddr.PortDirect, messages[i].Append(nil)))
			}
		}
	}
	return all
}

// place puts a call into a call slot: one of the attacker's, or anybody's.
func (a *attacker) place(h *rpcpacket.Header) {
	a.placeOwn(h)
	if a.random.IntN(2) == 0 {
		h.Slot = rpcpacket.Slot(a.random.Uint32N(rpcpacket.Blocks * rpcpacket.BlockSlots))
	}
}

// placeOwn puts a call into one of the attacker's call slots, under a higher number than those before.
func (a *attacker) placeOwn(h *rpcpacket.Header) {
	a.number += 2
	h.CallerIncarnation = a.session.Node().Incarnation
	h.Number = rpcpacket.NumberOf(h.CallerIncarnation, a.number)
	block, _ := pick(a, a.blocks)
	h.Slot = rpcpacket.Slot(block*rpcpacket.BlockSlots + a.random.Uint32N(rpcpacket.BlockSlots))
}

// directCalls use ids of others: of the latest calls, and of the next ones of their slots.
// In half of them the attacker's slots are its own, so only the id can give them away.
func (a *attacker) directCalls() [][]byte {
	h, _ := a.callOf()
	if r, ok := pick(a, a.known.recent); ok {
		if id, err := hex.DecodeString(r.ID); err == nil && len(id) == len(h.Call) {
			h.Call = rpcpacket.ID(id)
		}
	}
	known := h.Call
	h.Type, h.Flags, h.NameLength = rpcpacket.Call, rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), 3
	h.Method, _ = rpcpacket.MethodOf("add")
	h.Service = serviceHash([]string{"Counter", "Front"}[a.random.IntN(2)])
	var all []rpcpacket.Message
	for ahead := range uint64(16) {
		theirs := h
		copy(theirs.Call[:], known[:8])
		theirs.Slot, theirs.Number = known.Place()
		theirs.Number += rpcpacket.Number(ahead)
		theirs.CallerIncarnation = theirs.Number.Incarnation()
		binary.BigEndian.PutUint64(theirs.Call[8:], uint64(theirs.Number))
		own := theirs
		a.place(&own)
		all = append(all, rpcpacket.Message{Header: theirs, Payload: []byte("no Thrift")}, rpcpacket.Message{Header: own, Payload: []byte("no Thrift")})
	}
	copied := h // itself, in a slot of the attacker's: whoever has run it has the answer
	copied.Call = known
	a.place(&copied)
	return a.directTo(append(all, rpcpacket.Message{Header: copied})...)
}

// ownCall is the header of a new direct call of the attacker's.
func (a *attacker) ownCall() (h rpcpacket.Header) {
	h.Type, h.Flags, h.NameLength = rpcpacket.Call, rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), 3
	h.Method, _ = rpcpacket.MethodOf("add")
	h.Service = serviceHash([]string{"Counter", "Front"}[a.random.IntN(2)])
	binary.BigEndian.PutUint64(h.Call[:], a.random.Uint64())
	h.Call.Derive()
	a.place(&h)
	return h
}

// directMarks bear the marks of the Gatekeeper and of a callee's ledger.
func (a *attacker) directMarks() [][]byte {
	var all []rpcpacket.Message
	pointer, lends := a.pointer()
	for _, f := range []rpcpacket.Flags{rpcpacket.FlagReleased, 1 << 2, 1 << 5, 1 << 13, rpcpacket.FlagDone, 1 << 8} {
		m := rpcpacket.Message{Header: a.ownCall(), Payload: []byte("no Thrift")}
		m.Flags |= f
		if all = append(all, m); lends {
			m.Lists = rpcpacket.ListsOf(pointer)
			all = append(all, m)
		}
	}
	begun := rpcpacket.Message{Header: a.ownCall(), Payload: []byte("no Thrift")}
	begun.Attempt = 4
	return a.directFrom(append(all, begun)...)
}

// pointer is one to a region of others; false if none is known.
func (a *attacker) pointer() (dsmpacket.Pointer, bool) {
	r, ok := pick(a, a.known.regions)
	if !ok {
		return dsmpacket.Pointer{}, false
	}
	p, err := netip.ParsePrefix(r.Region)
	if err != nil {
		return dsmpacket.Pointer{}, false
	}
	return dsmpacket.FromAddr(p.Addr()), true
}

// questions ask, as the Gatekeeper and without its mark, what has become of others' calls, and of some that never came: a callee does not begin these any more.
func (a *attacker) questions() (all [][]byte) {
	known, _ := a.callOf()
	h := a.ownCall()
	h.Type, h.CallerIncarnation = rpcpacket.Ask, h.CallerIncarnation+1
	others := h
	others.Slot, others.Number = known.Call.Place()
	for _, f := range []rpcpacket.Flags{0, rpcpacket.FlagReleased} {
		for _, id := range []rpcpacket.ID{{}, known.Call} {
			h.Flags, h.Call, others.Flags, others.Call = f, id, f, id
			all = append(all, a.directFrom(rpcpacket.Message{Header: h}, rpcpacket.Message{Header: others})...)
		}
	}
	return all
}

// directFrom is directTo, from the Gatekeeper's port as well.
func (a *attacker) directFrom(messages ...rpcpacket.Message) (all [][]byte) {
	all = a.directTo(messages...)
	for _, n := range a.known.nodes {
		for i := range messages {
			all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortRPC, rackaddr.PortDirect, messages[i].Append(nil)))
		}
	}
	return all
}

// directAnswers answer others' direct calls, at both ports of the caller.
func (a *attacker) directAnswers() (all [][]byte) {
	h, c := a.callOf()
	for _, kind := range []rpcpacket.Type{rpcpacket.Reply, rpcpacket.Exception} {
		for _, f := range []rpcpacket.Flags{0, rpcpacket.FlagReleased, rpcpacket.FlagUnbegun} {
			m := rpcpacket.Message{Header: h, Payload: []byte("forged")}
			m.Type, m.Flags = kind, f.WithPolicy(rpcpacket.PolicyRecover)
			all = append(all, a.directTo(m)...)
			for _, n := range a.known.nodes {
				if n.Address == c.Caller || !c.Caller.IsValid() && n.Address != a.itself() {
					all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortRPC, rackaddr.PortRPC, m.Append(nil)))
				}
			}
		}
	}
	return all
}

// directFates say that others share the attacker's fate: the callers of calls, and those whom it calls.
func (a *attacker) directFates() [][]byte {
	known, _ := a.callOf()
	var all []rpcpacket.Message
	for _, p := range []rpcpacket.Policy{rpcpacket.PolicyFateShare, rpcpacket.PolicyTainted} {
		for _, f := range []rpcpacket.Flags{rpcpacket.FlagUnbegun, rpcpacket.FlagUnbegun | rpcpacket.FlagDone} {
			h := rpcpacket.Header{Type: rpcpacket.Ack, Flags: f.WithPolicy(p), Call: known.Call, CallerIncarnation: 2, CalleeIncarnation: 1}
			all = append(all, rpcpacket.Message{Header: h})
		}
		call := a.ownCall()
		call.Flags = call.Flags.WithPolicy(p)
		all = append(all, rpcpacket.Message{Header: call, Payload: []byte("no Thrift")})
	}
	return a.directTo(all...)
}

// directSlots have callees forget calls that never came, each in a slot of its own.
func (a *attacker) directSlots() [][]byte {
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Forget, Flags: rpcpacket.FlagSettled.WithPolicy(rpcpacket.PolicyRecover), Call: rpcpacket.ID{2}, CallerIncarnation: a.session.Node().Incarnation,
	}}
	for range 1900 {
		var h rpcpacket.Header
		a.place(&h)
		m.Payload = rpcpacket.AppendItem(m.Payload, m.Call, h.Slot, h.Number)
	}
	return a.directTo(m)
}

// pulls ask for the arguments and answers of others' calls, announce large calls that never come, and send parts.
func (a *attacker) pulls() (all [][]byte) {
	known, _ := a.callOf()
	first := a.ownCall()
	first.Flags |= rpcpacket.FlagMore
	opening := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 1<<28), 0)
	for _, n := range a.known.nodes {
		if n.Address == a.itself() {
			continue
		}
		for _, answer := range []bool{false, true} {
			h := bulk.Header{Kind: bulk.Pull, Answer: answer, Call: known.Call, CallerIncarnation: n.Incarnation, CalleeIncarnation: n.Incarnation, Total: 1 << 16, Size: 1 << 10}
			all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortBulk, rackaddr.PortBulk, h.Append(nil, bulk.Range{Length: 1 << 16})))
			h.Kind, h.Size = bulk.Part, 6
			all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortBulk, rackaddr.PortBulk, append(h.Append(nil), "forged"...)))
			h.Kind, h.Size = bulk.Gone, 0
			all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortBulk, rackaddr.PortBulk, h.Append(nil)))
		}
	}
	return append(all, a.directTo(rpcpacket.Message{Header: first, Payload: append(opening, "no Thrift"...), Trailer: make([]byte, 8)})...)
}

// smallParts ask for calls and answers in parts of one byte, and for the same bytes many times.
func (a *attacker) smallParts() (all [][]byte) {
	known, _ := a.callOf()
	same := make([]bulk.Range, bulk.MaxRanges)
	for i := range same {
		same[i] = bulk.Range{Length: 1 << 10}
	}
	for _, n := range a.known.nodes {
		for _, answer := range []bool{false, true} {
			h := bulk.Header{Kind: bulk.Pull, Answer: answer, Call: known.Call, CallerIncarnation: n.Incarnation, CalleeIncarnation: n.Incarnation, Total: 4 << 20, Size: 1}
			all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortBulk, rackaddr.PortBulk, h.Append(nil, bulk.Range{Length: h.Total})))
			h.Size = 1 << 10
			all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortBulk, rackaddr.PortBulk, h.Append(nil, same...)))
		}
	}
	return all
}

// announced are first packets of calls of 16 MiB with policy none, which go on with nothing.
func (a *attacker) announced() (all [][]byte) {
	opening := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 16<<20), 0)
	for range 20 {
		n, ok := pick(a, a.serving("Front"))
		if !ok {
			return nil
		}
		h := a.ownCall()
		a.placeOwn(&h)
		h.Flags = rpcpacket.FlagMore
		h.Call = rpcpacket.PlainID(a.itself(), h.Slot, h.Number)
		h.Service = serviceHash("Front")
		h.CalleeIncarnation = n.Incarnation
		m := rpcpacket.Message{Header: h, Payload: append(opening[:len(opening):len(opening)], make([]byte, 900)...)}
		all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortBulk, rackaddr.PortBulk, m.Append(nil)))
	}
	return all
}

// loans lend what is others', in the name of others' calls.
func (a *attacker) loans() (all [][]byte) {
	pointer, ok := a.pointer()
	if !ok {
		return nil
	}
	known, _ := a.callOf()
	for _, n := range a.known.nodes {
		if n.Address == a.itself() {
			continue
		}
		own := a.ownCall()
		for _, id := range []rpcpacket.ID{known.Call, rpcpacket.PlainID(a.itself(), own.Slot, own.Number)} {
			m := rpcpacket.Message{Header: own, Lists: rpcpacket.ListsOf(pointer), Payload: []byte("no Thrift")}
			m.Call, m.Parent = id, known.Call
			for _, from := range []netip.Addr{a.itself(), n.Address} {
				all = append(all, a.udp(from, n.Address, rackaddr.PortRPC, rackaddr.PortRPC, m.Append(nil)))
			}
		}
	}
	return all
}

// directWords say that others' calls are forgotten, and that nodes have restarted.
func (a *attacker) directWords() [][]byte {
	h, _ := a.callOf()
	s, n := h.Call.Place()
	item := rpcpacket.AppendItem(nil, h.Call, s, n+1<<20)
	exact := func(f rpcpacket.Flags) rpcpacket.Flags { return f.WithPolicy(rpcpacket.PolicyRecover) }
	word := func(t rpcpacket.Type, f rpcpacket.Flags, payload []byte) rpcpacket.Message {
		return rpcpacket.Message{Header: rpcpacket.Header{Type: t, Flags: exact(f), Call: h.Call, CallerIncarnation: 1}, Payload: payload}
	}
	return a.directTo(
		word(rpcpacket.Forget, rpcpacket.FlagSettled, item), word(rpcpacket.Forget, rpcpacket.FlagSettled, item[:20]),
		word(rpcpacket.Ack, rpcpacket.FlagSettled, h.Call[:]), word(rpcpacket.Ack, rpcpacket.FlagUnbegun, nil),
	)
}

// ledgers opens, reads and writes the ledgers of others, and those of mains.
func (a *attacker) ledgers() (all [][]byte) {
	n, ok := pick(a, a.known.nodes)
	if !ok || n.Address == a.itself() {
		return nil
	}
	for _, machine := range []uint8{1, 2} {
		for _, op := range []dsmpacket.LedgerOp{dsmpacket.LedgerOpen, dsmpacket.LedgerAppend, dsmpacket.LedgerRead, 9} {
			q := dsmpacket.LedgerRequest{Op: op, Ledger: n.Address.As16(), Run: n.Incarnation + uint32(a.random.IntN(2)), Incarnation: a.session.Node().Incarnation}
			q.Chunk.Number = 1 + a.random.Uint64N(4)
			switch op {
			case dsmpacket.LedgerAppend:
				q.Chunk.Data, q.Keep = []byte("forged"), 1<<40
			case dsmpacket.LedgerRead:
				q.Size, q.More = 1<<16, 3
			case dsmpacket.LedgerOpen:
			case dsmpacket.LedgerCommit, dsmpacket.LedgerRollback: // they are about the sender's own executions, whatever they name
			}
			for _, from := range []netip.Addr{a.itself(), n.Address} {
				all = append(all, a.udp(from, dsmpacket.LedgerAddress(rackaddr.DefaultDSMPrefix, machine, op).Addr(), rackaddr.PortDSM, rackaddr.PortDSM, q.Append(nil)))
			}
		}
	}
	return all
}

// reports tell the Gatekeeper, as another blade's daemon would, what others' nodes do, and what
// blades have.
func (a *attacker) reports() (all [][]byte) {
	n, ok := pick(a, a.known.nodes)
	if !ok || n.Blade == wildBlade {
		return nil
	}
	for kind, body := range map[control.Kind]any{
		control.KindCalls:  control.NodeCalls{Node: n.Address, Incarnation: n.Incarnation, Over: true},
		control.KindLeave:  control.Leave{Node: n.Address, Incarnation: n.Incarnation, Crashed: true, Reason: "forged"},
		control.KindExport: control.Export{Node: n.Address, Incarnation: n.Incarnation, Service: "Evil"},
		control.KindMain:   control.BeginMain{Node: n.Address, Incarnation: n.Incarnation, Name: "t0"},
		control.KindEnded:  control.Ended{Blade: "m1", Boot: a.random.Uint64N(4)},
	} {
		b, err := controlPacket(kind, body)
		if err != nil {
			continue // not with these
		}
		for _, from := range []netip.Addr{netip.MustParseAddr("fe80::666"), n.Address, rackaddr.Blade(3)} {
			all = append(all, a.udp(from, rackaddr.Gatekeeper, rackaddr.PortControl, rackaddr.PortControl, b))
		}
	}
	return all
}

// serviceHash is how headers name a service.
func serviceHash(name string) uint64 {
	a := rackaddr.Service(name).As16()
	return binary.BigEndian.Uint64(a[8:])
}

// ledgerAnswered judges an answer about a ledger: none that the attacker asks for is its own.
func ledgerAnswered(u frame.UDP6, h *dsmpacket.Header, data []byte) error {
	from := dsmpacket.FromAddr(u.Src.Addr())
	if from.Op() != dsmpacket.OpLedger || h.Kind != dsmpacket.Reply || h.Status != fault.OK {
		return nil
	}
	return fmt.Errorf("a request of %s about another's ledger is answered with %d bytes: %w", u.Src, len(data), errAdmitted)
}
