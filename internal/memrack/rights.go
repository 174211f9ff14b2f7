package memrack

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// Rights is a switch that judges what is about memory by the rights of docs/rights.md (package rights). It believes each sender who it is. A node
// has the control rules for all batches that it has been given. Its methods may be called concurrently.
type Rights struct {
	mu     sync.Mutex
	model  *rights.Switch
	number rights.Number // of the last call
	rules  map[rights.Row]bool
}

// Rights has the rack's switch judge, from now on.
func (r *Rack) Rights() *Rights {
	j := &Rights{model: rights.New(rights.Rack), number: rights.MakeNumber(1, 0), rules: map[rights.Row]bool{}}
	r.rights.Store(j)
	return j
}

// rowOf is the row of a node, whose number is small here.
func rowOf(node netip.Addr) rights.Row { return rights.Row(node.As16()[15]) }

const lessee = 4000 // the row of whoever is lent something

// Lend opens a call by which a node lends the region of a pointer. What it returns ends the call.
func (j *Rights) Lend(node uint64, p dsmpacket.Pointer) (over func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.number += 2
	row, callee, ref := rowOf(rackaddr.Node(node)), rackaddr.Node(lessee), rights.Ref{Slot: uint32(j.number), Number: j.number} //nolint:gosec // few
	caller := rights.Source{Address: rackaddr.Node(node)}
	j.model.Identities[caller] = rights.Identity{Kind: rights.Node, Row: row, Incarnation: 1}
	j.model.Identities[rights.Source{Address: callee}] = rights.Identity{Kind: rights.Node, Row: lessee, Incarnation: 1}
	j.model.Routes[callee], j.model.Routes[caller.Address] = rights.Route{Row: lessee}, rights.Route{Row: row}
	j.model.Blocks[rights.BlockRule{Row: row, Block: ref.Slot / j.model.Block}] = true
	q := rights.Packet{Kind: rights.Call, Source: caller, To: callee, Incarnation: 1, Ref: ref, Blocks: []rights.Block{{Regions: []rights.Region{regionOf(p)}}}}
	if v := j.model.Judge(&q); v.Action != rights.Pass {
		panic("a call that lends " + p.String() + ": " + v.String())
	}
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		q := rights.Packet{Kind: rights.Reply, Source: rights.Source{Address: callee}, To: caller.Address, Incarnation: 1, Ref: ref}
		if v := j.model.Judge(&q); v.Action != rights.Pass {
			panic("the end of a call: " + v.String())
		}
	}
}

// GiveAway makes the region of a pointer another node's.
func (j *Rights) GiveAway(p dsmpacket.Pointer, to uint64) {
	j.set(p, func(w *rights.Word) { w.Owner = rowOf(rackaddr.Node(to)) })
}

func (j *Rights) set(p dsmpacket.Pointer, change func(*rights.Word)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, w := range j.model.Words() {
		if i == p.ID().Slot() {
			change(w)
		}
	}
}

// Forbid takes a node's control rules away, or gives them back.
func (j *Rights) Forbid(node uint64, yes bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rules[rowOf(rackaddr.Node(node))] = yes
}

// Owned are the regions that a node owns by the switch's words. Some may be there no more.
func (j *Rights) Owned(node uint64) (all []dsmpacket.RegionID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, w := range j.model.Words() {
		if w.Owner == rowOf(rackaddr.Node(node)) && w.Generation > 0 {
			all = append(all, dsmpacket.IDOf(i, w.Generation))
		}
	}
	return all
}

func regionOf(p dsmpacket.Pointer) rights.Region {
	return rights.Region{Slot: p.ID().Slot(), Generation: p.ID().Generation()}
}

var kinds = map[dsmpacket.Op]rights.Kind{
	dsmpacket.OpAlloc: rights.Alloc, dsmpacket.OpRead: rights.Read, dsmpacket.OpWrite: rights.Write, dsmpacket.OpFree: rights.Free,
}

// judge judges a datagram.
func (j *Rights) judge(src, dst netip.Addr, h *dsmpacket.Header) rights.Verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	node, at, kind := src, dsmpacket.FromAddr(dst), rights.Node
	p := rights.Packet{Kind: rights.Plain, Incarnation: h.Incarnation}
	if k, is := kinds[at.Op()]; is {
		p.Kind, p.Ref = k, rights.Ref{Slot: h.By.Slot, Number: rights.Number(h.By.Number)}
	}
	if h.Kind == dsmpacket.Reply {
		node, at, kind = dst, dsmpacket.FromAddr(src), rights.Memory
		p.Kind, p.Incarnation, p.OK = rights.MemoryAnswer, h.Mirror.Incarnation, h.Status == fault.OK
		if at.Op() == dsmpacket.OpAlloc {
			p.Kind = rights.AllocAnswer
		}
	}
	p.Source, p.To, p.Machine, p.Region = rights.Source{Address: src}, dst, at.Machine(), regionOf(at)
	row := rowOf(node)
	if rule := (rights.Control{Row: row, Machine: p.Machine, Batch: at.ID().Batch()}); j.rules[row] {
		delete(j.model.Controls, rule)
	} else {
		j.model.Controls[rule] = true
	}
	j.model.Routes[node] = rights.Route{Row: row}
	j.model.Identities[p.Source] = rights.Identity{Kind: kind, Row: row, Incarnation: p.Incarnation}
	return j.model.Judge(&p)
}

// Mirror gives a memory machine a second copy, which has room for so many bytes. Nothing has been allocated yet.
func (r *Rack) Mirror(machine uint8, capacity uint64) *memory.Server {
	r.T.Helper()
	h := r.Host("mirror" + string(rune('0'+machine)))
	s, err := memory.NewServer(memory.Config{Stack: h, Prefix: prefix, Machine: machine, Capacity: capacity})
	r.must(err)
	for i, server := range []*memory.Server{r.Memories[machine-1], s} {
		r.must(server.Become(control.Mirror{Epoch: 1, Incarnation: uint32(i + 1), Copy: uint8(i), Members: 2}))
	}
	r.seconds[machine] = second{s, h}
	r.running.Go(func() {
		if err := s.Run(r.Ctx); err != nil {
			r.T.Error(err)
		}
	})
	return s
}

// judging puts rights and second copies before a router.
func (r *Rack) judging(forward func(datapath.Port, []byte)) func(datapath.Port, []byte) {
	return func(in datapath.Port, b []byte) {
		p, err := frame.Parse(b)
		if err != nil {
			return
		}
		u, err := p.UDP()
		if err != nil || u.Dst.Port() != rackaddr.PortDSM {
			forward(in, b)
			return
		}
		h, _, err := dsmpacket.Parse(u.Payload)
		if err != nil {
			return
		}
		if j := r.rights.Load(); j != nil {
			switch v := j.judge(p.Src, p.Dst, &h); v.Action {
			case rights.Drop:
				return
			case rights.TurnAround:
				why := fault.PermissionDenied
				if v.Reason == rights.Lent {
					why = fault.Overloaded
				}
				r.Net.Output(in, turned(p, why))
				return
			case rights.Pass, rights.PassToAll:
			}
		}
		at := dsmpacket.FromAddr(p.Dst)
		if second, two := r.seconds[at.Machine()]; two && h.Kind == dsmpacket.Request && at.Op() != dsmpacket.OpRead && at.Op() != dsmpacket.OpSlots {
			copied := p
			copied.DstMAC = second.host.MAC()
			defer r.Net.Output(second.host.Port(), copied.Append(nil))
		}
		forward(in, b)
	}
}

// turned is a request that the switch turns around: addresses and ports
// change places, and the verdict and its complement are written anew.
func turned(p frame.Packet, why fault.Code) []byte {
	p.Src, p.Dst = p.Dst, p.Src
	p.SrcMAC, p.DstMAC = p.DstMAC, p.SrcMAC
	u := append([]byte(nil), p.Payload...)
	u[0], u[1], u[2], u[3] = u[2], u[3], u[0], u[1]
	verdict := uint16(dsmpacket.Nack)<<8 | uint16(why)
	binary.BigEndian.PutUint16(u[8+4:], verdict)
	binary.BigEndian.PutUint16(u[8+6:], ^verdict)
	p.Payload = u
	return p.Append(nil)
}
