package simrack

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Shadow judges what nodes and memory servers send by the rights of docs/rights.md, beside the rack, which goes by the Gatekeeper's rules still:
// what would the switch do if the words of its registers decided? It believes each sender who it is. Its OnFrame is one for a Config. Its methods
// may be called concurrently.
type Shadow struct {
	mu      sync.Mutex
	model   *rights.Switch
	rows    map[netip.Addr]rights.Row
	objects []string
}

// NewShadow returns a Shadow of a rack that has not begun.
func NewShadow() *Shadow {
	return &Shadow{model: rights.New(rights.Rack), rows: map[netip.Addr]rights.Row{}}
}

// Counts is how often each line of the table has decided, by its name.
func (s *Shadow) Counts() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model.Counts()
}

// Objections are the packets, the first ones, that the switch would not let pass.
func (s *Shadow) Objections() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.objects)
}

// Left lists call slots that are open, and regions that are lent.
func (s *Shadow) Left() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range s.model.Slots() {
		if k.State == rights.Open {
			all = append(all, fmt.Sprintf("call slot %d is open: %+v", i, *k))
		}
	}
	for i, w := range s.model.Words() {
		if w.Lent > 0 {
			all = append(all, fmt.Sprintf("region slot %d is lent: %+v", i, *w))
		}
	}
	return all
}

// OnFrame takes a frame of the wire.
func (s *Shadow) OnFrame(f wire.Frame) {
	if f.Stage != wire.Arriving || !f.ToSwitch {
		return
	}
	u, err := frame.ParseUDP6(f.Data)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.call(u)
	if p == nil {
		p = s.access(u)
	}
	if p == nil {
		return
	}
	p.Source = rights.Source{Port: uint16(f.Port), Address: u.Src.Addr()}
	kind := rights.Node
	if p.Kind == rights.AllocAnswer || p.Kind == rights.MemoryAnswer {
		kind = rights.Memory
	}
	s.model.Identities[p.Source] = rights.Identity{Kind: kind, Row: s.row(u.Src.Addr()), Incarnation: p.Incarnation}
	s.model.Routes[u.Dst.Addr()] = rights.Route{Row: s.row(u.Dst.Addr())}
	p.To = u.Dst.Addr()
	if v := s.model.Judge(p); v.Action == rights.Drop || v.Action == rights.TurnAround {
		s.object(fmt.Sprintf("%s from %s to %s: %s (%s)", p.Kind, u.Src.Addr(), u.Dst.Addr(), v, v.Row), p)
	}
}

// mostObjections bounds what a Shadow keeps.
const mostObjections = 64

func (s *Shadow) object(what string, p *rights.Packet) {
	if len(s.objects) < mostObjections {
		s.objects = append(s.objects, fmt.Sprintf("%s: %+v", what, *p))
	}
}

// row is that of a node; a memory server has none.
func (s *Shadow) row(a netip.Addr) rights.Row {
	if !rackaddr.NodePrefix.Contains(a) {
		return 0
	}
	if s.rows[a] == 0 {
		s.rows[a] = rights.Row(len(s.rows) + 1) //nolint:gosec // few
	}
	return s.rows[a]
}

var kindsOfCalls = map[rpcpacket.Type]rights.Kind{
	rpcpacket.Call: rights.Call, rpcpacket.Oneway: rights.Oneway, rpcpacket.Reply: rights.Reply, rpcpacket.Exception: rights.Exception, rpcpacket.Ask: rights.Ask,
}

// call reads a message between nodes; nil if it is none.
func (s *Shadow) call(u frame.UDP6) *rights.Packet {
	if !rackaddr.OfCalls(u.Dst.Port()) || s.row(u.Src.Addr()) == 0 || s.row(u.Dst.Addr()) == 0 {
		return nil
	}
	m, err := rpcpacket.Parse(u.Payload)
	kind, of := kindsOfCalls[m.Type]
	if err != nil || !of {
		return nil
	}
	p := &rights.Packet{Kind: kind, Incarnation: m.CallerIncarnation, Ref: refOf(m.Slot, m.Number)}
	switch kind {
	case rights.Call, rights.Oneway:
		s.model.Blocks[rights.BlockRule{Row: s.row(u.Src.Addr()), Block: uint32(m.Slot) / s.model.Block}] = true
		p.Blocks = make([]rights.Block, max(len(m.Lists), 1))
		for i := range m.Lists {
			l := &m.Lists[i]
			p.Blocks[i] = rights.Block{Parent: refOf(l.Parent.Slot, l.Parent.Number), Regions: regionsOf(l)}
		}
	case rights.Reply, rights.Exception:
		p.Incarnation = m.CalleeIncarnation
		for i := range m.Lists {
			p.Results = append(p.Results, regionsOf(&m.Lists[i])...)
		}
	default:
	}
	return p
}

func refOf(s rpcpacket.Slot, n rpcpacket.Number) rights.Ref {
	return rights.Ref{Slot: uint32(s), Number: rights.Number(n)}
}

func regionsOf(l *rpcpacket.List) (all []rights.Region) {
	for _, r := range l.Of() {
		all = append(all, rights.Region{Slot: r.ID().Slot(), Generation: r.ID().Generation()})
	}
	return all
}

// access reads a request to memory, or an answer to one; nil if it is neither, or says nothing of regions.
func (s *Shadow) access(u frame.UDP6) *rights.Packet {
	if u.Dst.Port() != rackaddr.PortDSM {
		return nil
	}
	m, _, err := dsmpacket.Parse(u.Payload)
	if err != nil {
		return nil
	}
	answer := m.Kind == dsmpacket.Reply
	node, at, p := u.Src.Addr(), dsmpacket.FromAddr(u.Dst.Addr()), &rights.Packet{Incarnation: m.Incarnation}
	if answer {
		node, at, p.Incarnation, p.OK = u.Dst.Addr(), dsmpacket.FromAddr(u.Src.Addr()), m.Mirror.Incarnation, m.Status == fault.OK
	}
	p.Machine, p.Region = at.Machine(), rights.Region{Slot: at.ID().Slot(), Generation: at.ID().Generation()}
	switch op := at.Op(); {
	case s.row(node) == 0:
		return nil
	case op == dsmpacket.OpAlloc && answer:
		p.Kind = rights.AllocAnswer
	case op == dsmpacket.OpAlloc:
		p.Kind = rights.Alloc
	case answer:
		return nil
	case op == dsmpacket.OpRead:
		p.Kind, p.Ref = rights.Read, rights.Ref{Slot: m.By.Slot, Number: rights.Number(m.By.Number)}
	case op == dsmpacket.OpWrite:
		p.Kind = rights.Write
	case op == dsmpacket.OpFree:
		p.Kind = rights.Free
	default:
		return nil
	}
	s.model.Controls[rights.Control{Row: s.row(node), Machine: p.Machine, Batch: p.Region.Slot / s.model.Batch}] = true
	return p
}
