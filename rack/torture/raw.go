package torture

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// assaults are the attacks with raw sockets, by the row of docs/security.md. Each makes
// the frames of one attempt.
var assaults = []struct {
	name   string
	frames func(a *attacker) [][]byte
	wild   bool // from h2
}{
	{"1: forged answer", (*attacker).forgedAnswers, false},
	{"2: another's call id", (*attacker).foreignCalls, false},
	{"1: forged mark of a direct call", (*attacker).directMarks, false},
	{"1: forged question of the Gatekeeper", (*attacker).questions, false},
	{"1: forged answer to a direct call", (*attacker).directAnswers, false},
	{"2: direct call with another's id", (*attacker).directCalls, false},
	{"2: forged word about direct calls", (*attacker).directWords, false},
	{"2: another's fate", (*attacker).directFates, false},
	{"2: another's large call", (*attacker).pulls, false},
	{"2: loan in another's name", (*attacker).loans, false},
	{"3: another's ledger", (*attacker).ledgers, false},
	{"4: report of another's node", (*attacker).reports, true},
	{"4: another blade's name", (*attacker).foreignHellos, true},
	{"5: unfinished checksum", (*attacker).unfinished, false},
	{"7: flood", (*attacker).flood, false},
	{"7: flood of control", (*attacker).floodControl, true},
	{"8: another blade's node", (*attacker).foreignMemory, false},
	{"9: source port", (*attacker).otherPorts, false},
	{"10: another's execution", (*attacker).claims, false},
	{"10: slots of words to forget", (*attacker).directSlots, false},
	{"16: unknown methods", (*attacker).unknownMethods, false},
	{"14: pulls of small parts", (*attacker).smallParts, false},
	{"15: announced calls", (*attacker).announced, false},
	{"11: ICMPv6 error and TCP", (*attacker).errorsAndTCP, false},
}

// floodLength is how many packets one attempt to flood has.
const floodLength = 300

// itself is the attacker's own node.
func (a *attacker) itself() netip.Addr { return a.session.Node().Address }

// udp makes a frame.
func (a *attacker) udp(from, to netip.Addr, sport, dport uint16, content []byte) []byte {
	return frame.UDP6{
		SrcMAC: a.raw.mac, DstMAC: switchMAC, Src: netip.AddrPortFrom(from, sport), Dst: netip.AddrPortFrom(to, dport), Payload: content,
	}.Append(make([]byte, vnetSize))
}

// pick returns one of what is known, false if there is none.
func pick[T any](a *attacker, of []T) (v T, ok bool) {
	if len(of) == 0 {
		return v, false
	}
	return of[a.random.IntN(len(of))], true
}

// callOf is the header of a call that was under way just now; somebody else's number if there is none.
func (a *attacker) callOf() (h rpcpacket.Header, c api.Timeline) {
	h.Call = rpcpacket.PlainID(rackaddr.Node(a.random.Uint64N(4)), rpcpacket.Slot(16+a.random.Uint32N(64)), rpcpacket.NumberOf(1, a.random.Uint64N(100)))
	c, ok := pick(a, a.known.calls)
	if id, err := hex.DecodeString(c.ID); ok && err == nil && len(id) == len(h.Call) {
		h.Call = rpcpacket.ID(id)
	}
	h.Slot, h.Number = h.Call.Place()
	h.CallerIncarnation, h.CalleeIncarnation = a.incarnation(c.Caller), a.session.Node().Incarnation
	if h.Call.Derived() { // an execution's: its id does not tell the slot
		h.Slot = rpcpacket.Slot(rpcpacket.BlockSlots + a.random.Uint32N(8*rpcpacket.BlockSlots))
		h.Number = rpcpacket.NumberOf(h.CallerIncarnation, 2*a.random.Uint64N(50))
	}
	h.Flags = rpcpacket.Flags(a.random.Uint32())
	if a.random.IntN(2) == 0 {
		h.Flags &^= gatekeepers
	}
	return h, c
}

// serving are the nodes that export a service.
func (a *attacker) serving(service string) (all []api.Node) {
	for _, n := range a.known.nodes {
		if slices.Contains(n.Services, service) {
			all = append(all, n)
		}
	}
	return all
}

// gatekeepers are the flags that the Gatekeeper alone sets: the switch drops others' packets with one of them before it looks at anything else.
const gatekeepers = rpcpacket.FlagReleased | 1<<5

// incarnation is a node's, 1 if it is not known.
func (a *attacker) incarnation(node netip.Addr) uint32 {
	for _, n := range a.known.nodes {
		if n.Address == node {
			return n.Incarnation
		}
	}
	return 1
}

func (a *attacker) forgedAnswers() (all [][]byte) {
	h, c := a.callOf()
	for _, kind := range []rpcpacket.Type{rpcpacket.Reply, rpcpacket.Exception} {
		h.Type = kind
		m := rpcpacket.Message{Header: h, Payload: []byte("forged")}
		if pointer, ok := a.pointer(); ok && a.random.IntN(2) == 0 {
			m.Lists = rpcpacket.ListsOf(pointer) // row 19: a result of nobody's
		}
		for _, from := range []netip.Addr{c.Callee, rackaddr.Service("Counter"), a.itself(), rackaddr.Gatekeeper} {
			if from.IsValid() && c.Caller.IsValid() {
				all = append(all, a.udp(from, c.Caller, rackaddr.PortRPC, rackaddr.PortRPC, m.Append(nil)))
			}
		}
	}
	return all
}

func (a *attacker) foreignCalls() (all [][]byte) {
	h, _ := a.callOf()
	h.Type = rpcpacket.Call
	h.Method, _ = rpcpacket.MethodOf("add")
	m := rpcpacket.Message{Header: h, Payload: []byte("no Thrift")}
	from, _ := pick(a, append(a.known.nodes, api.Node{Address: a.itself()}))
	for _, n := range a.known.nodes {
		for _, sender := range []netip.Addr{from.Address, a.itself()} {
			all = append(all, a.udp(sender, n.Address, rackaddr.PortRPC, rackaddr.PortRPC, m.Append(nil)))
		}
	}
	return all
}

func (a *attacker) foreignHellos() (all [][]byte) {
	for _, h := range []control.Hello{
		{Blade: "m1", Kind: control.Memory, Machine: 1, Capacity: 64 << 20}, {Blade: "s1", Kind: control.Compute, Capacity: 64},
		{Blade: wildBlade, Kind: control.Memory, Capacity: 1 << 40}, {Blade: "evil", Kind: control.Compute, Capacity: 1},
	} {
		h.MAC, h.Boot = a.wild.mac.String(), 666
		b, err := controlPacket(control.KindHello, h)
		if err != nil {
			continue // not with these
		}
		for _, from := range []netip.Addr{netip.MustParseAddr("fe80::666"), rackaddr.Blade(3), a.itself()} {
			all = append(all, a.udp(from, rackaddr.Gatekeeper, rackaddr.PortControl, rackaddr.PortControl, b))
		}
	}
	return all
}

// operation is one that changes or reads a region.
func (a *attacker) operation() dsmpacket.Op {
	return []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpWrite, dsmpacket.OpFree}[a.random.IntN(3)]
}

// readNumber is the request id of the attacker's reads: none of them may be answered with
// success.
const readNumber = 7777

// memory is a request for a region: its address and its content.
func (a *attacker) memory(r api.Region, op dsmpacket.Op) (netip.Addr, []byte) {
	p, err := netip.ParsePrefix(r.Region)
	if err != nil {
		return netip.Addr{}, nil
	}
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: readNumber, Incarnation: a.session.Node().Incarnation, Length: 1}
	if op == dsmpacket.OpRead && a.random.IntN(2) == 0 { // as the callee of somebody's call
		call, _ := a.callOf()
		h.By = dsmpacket.Use{Slot: uint32(call.Slot), Number: uint64(call.Number)}
	}
	b := h.Append(nil)
	if op == dsmpacket.OpWrite {
		b = append(b, 0xff)
	}
	return dsmpacket.FromAddr(p.Addr()).With(op).Addr(), b
}

// foreignMemory is from each other node, and from its own.
func (a *attacker) foreignMemory() (all [][]byte) {
	r, ok := pick(a, a.known.regions)
	if !ok {
		return nil
	}
	to, b := a.memory(r, a.operation())
	for _, n := range append(a.known.nodes, api.Node{Address: a.itself()}) {
		all = append(all, a.udp(n.Address, to, rackaddr.PortDSM, rackaddr.PortDSM, b))
	}
	return all
}

// unfinished leaves the checksum to the kernel, which would write it over the verdict.
func (a *attacker) unfinished() [][]byte {
	r, ok := pick(a, a.known.regions)
	if !ok {
		return nil
	}
	to, b := a.memory(r, dsmpacket.OpRead)
	f := a.udp(a.itself(), to, rackaddr.PortDSM, rackaddr.PortDSM, b)
	f[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	start := uint16(frame.EthernetSize + 24 + a.random.IntN(40)) // from within the destination on
	binary.NativeEndian.PutUint16(f[6:], start)
	binary.NativeEndian.PutUint16(f[8:], uint16(a.random.IntN(40)))
	return [][]byte{f}
}

func (a *attacker) flood() [][]byte {
	read := dsmpacket.Header{Kind: dsmpacket.Request, Request: readNumber, Length: 8, Incarnation: a.session.Node().Incarnation}
	memory := func(machine uint8) netip.Addr {
		return dsmpacket.Make(rackaddr.DefaultDSMPrefix, machine, 4096).With(dsmpacket.OpRead).Addr()
	}
	call := rpcpacket.Message{Header: a.ownCall()}
	f := [][]byte{
		a.udp(a.itself(), rackaddr.Service("Flood"), rackaddr.PortRPC, rackaddr.PortRPC, call.Append(nil)),
		a.udp(a.itself(), memory(200), rackaddr.PortDSM, rackaddr.PortDSM, read.Append(nil)),
		a.udp(a.itself(), memory(1), rackaddr.PortDSM, rackaddr.PortDSM, read.Append(nil)),
	}[a.random.IntN(3)]
	return slices.Repeat([][]byte{f}, floodLength)
}

func (a *attacker) floodControl() [][]byte {
	return slices.Repeat([][]byte{
		a.udp(netip.MustParseAddr("fe80::666"), rackaddr.Gatekeeper, rackaddr.PortControl, rackaddr.PortControl, []byte("flood")),
	}, floodLength)
}

func (a *attacker) otherPorts() (all [][]byte) {
	r, ok := pick(a, a.known.regions)
	if !ok {
		return nil
	}
	to, b := a.memory(r, a.operation())
	h, c := a.callOf()
	h.Type = rpcpacket.Reply
	m := rpcpacket.Message{Header: h}
	all = append(all, a.udp(a.itself(), to, 40000, rackaddr.PortDSM, b), a.udp(a.itself(), to, rackaddr.PortDSM, 40000, b))
	if c.Caller.IsValid() {
		all = append(all, a.udp(a.itself(), c.Caller, 40000, rackaddr.PortRPC, m.Append(nil)), a.udp(a.itself(), c.Caller, rackaddr.PortRPC, 40000, m.Append(nil)))
	}
	return all
}

// claims allocates in the name of executions that others run.
func (a *attacker) claims() (all [][]byte) {
	h, _ := a.callOf()
	q := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1 + a.random.Uint64N(64), Incarnation: a.session.Node().Incarnation, Execution: h.Call, Length: 64}
	to := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(a.random.Uint32N(1<<dsmpacket.SlotBits), 1)).With(dsmpacket.OpAlloc).Addr()
	return append(all, a.udp(a.itself(), to, rackaddr.PortDSM, rackaddr.PortDSM, q.Append(nil)))
}

func (a *attacker) unknownMethods() (all [][]byte) {
	for i := range 40 {
		n, ok := pick(a, a.serving("Counter"))
		if !ok {
			return nil
		}
		h, _ := a.callOf()
		a.placeOwn(&h)
		name := fmt.Sprint("m", a.random.Uint64N(1e12))
		h.Type, h.Flags, h.NameLength = rpcpacket.Call, 0, uint8(len(name)) //nolint:gosec // 13 at most
		h.Method, _ = rpcpacket.MethodOf(name)
		h.Call, h.Service, h.CalleeIncarnation = rpcpacket.PlainID(a.itself(), h.Slot, h.Number), serviceHash("Counter"), n.Incarnation
		m := rpcpacket.Message{Header: h, Payload: make([]byte, 100)}
		if i%8 == 0 {
			m.Trailer = make([]byte, 7) // it is malformed
		}
		all = append(all, a.udp(a.itself(), n.Address, rackaddr.PortDirect, rackaddr.PortDirect, m.Append(nil)))
	}
	return all
}

// errorsAndTCP says that packets are too big for somebody, and opens connections.
func (a *attacker) errorsAndTCP() (all [][]byte) {
	for _, n := range a.known.nodes {
		tooBig := make([]byte, 60)
		tooBig[0] = 2
		binary.BigEndian.PutUint32(tooBig[4:], 1280)
		tooBig[8], tooBig[14] = 6<<4, frame.ProtoUDP
		copy(tooBig[16:], n.Address.AsSlice())
		syn := make([]byte, 20)
		syn[1], syn[3], syn[12], syn[13] = 80, 22, 5<<4, 2
		for proto, payload := range map[uint8][]byte{unix.IPPROTO_ICMPV6: tooBig, unix.IPPROTO_TCP: syn} {
			for _, from := range []netip.Addr{a.itself(), rackaddr.Gatekeeper} {
				p := frame.Packet{SrcMAC: a.raw.mac, DstMAC: switchMAC, Src: from, Dst: n.Address, NextHeader: proto, Payload: payload}
				f := p.Append(make([]byte, vnetSize))
				if err := frame.Fix(f[vnetSize:]); err == nil {
					all = append(all, f)
				}
			}
		}
	}
	return all
}

// answered judges what has come to the blade: nothing may tell the attacker what others
// have, and nobody connects.
func (a *attacker) answered(u frame.UDP6) error {
	if u.Src.Port() != rackaddr.PortDSM {
		return nil
	}
	h, data, err := dsmpacket.Parse(u.Payload)
	if err == nil {
		if err := ledgerAnswered(u, &h, data); err != nil {
			return err
		}
	}
	if err != nil || h.Kind != dsmpacket.Reply || h.Request != readNumber || h.Status != fault.OK {
		return nil //nolint:nilerr // what is no answer tells nothing
	}
	return fmt.Errorf("a request of %s for another's region is answered with %d bytes: %w", u.Src, len(data), errAdmitted)
}

// rawSocket sends and receives frames behind a header for unfinished checksums.
type rawSocket struct {
	fd  int
	mac frame.MAC
	buf []byte
}

// vnetSize is the length of struct virtio_net_hdr.
const vnetSize = 10

var switchMAC = frame.MAC{0x02, 0xb1, 0xf0, 0, 0, 1} // plan.SwitchMAC

// openRaw opens a socket on an interface in the calling thread's namespace.
func openRaw(iface string) (*rawSocket, error) {
	link, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, err
	}
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
	if err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	s := &rawSocket{fd: fd, buf: make([]byte, 70000)}
	copy(s.mac[:], link.HardwareAddr)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("raw socket: %w", err), unix.Close(fd))
	}
	return s, nil
}

func (s *rawSocket) close() error { return unix.Close(s.fd) }

// send sends a frame, and reports whether it has left; one that finds no room is lost, as in a
// network, and so is one that the kernel does not believe.
func (s *rawSocket) send(f []byte) (left bool, err error) {
	switch _, err := unix.Write(s.fd, f); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINVAL):
		return false, nil
	default:
		return false, err
	}
}

// received calls f for the datagrams that have come.
func (s *rawSocket) received(f func(frame.UDP6) error) error {
	for {
		n, err := unix.Read(s.fd, s.buf)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil || n < vnetSize {
			return err
		}
		if frame.Fix(s.buf[vnetSize:n]) != nil {
			continue
		}
		if u, err := frame.ParseUDP6(s.buf[vnetSize:n]); err == nil {
			if err := f(u); err != nil {
				return err
			}
		}
	}
}
