// Package model is a small Gatekeeper for the runtime's tests, in place of switch
// and Gatekeeper on a virtual wire: it holds exactly-once messages, logs and
// releases them, and delivers them again when a node has been replaced
// (docs/exactly-once.md). It keeps everything in memory, for ever, and knows no regions.
//
//	CALL ──▶ arrive ──▶ log ──▶ release ──▶ callee
//	caller ◀── answer ◀── log ◀── settle ◀── REPLY; ACK to the callee
//	Export of a new incarnation ──▶ release again what runs, with its journal
package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// Gatekeeper is the model. Methods may be called concurrently.
type Gatekeeper struct {
	rack    *testrack.Rack
	forward func(datapath.Port, []byte)

	mu         sync.Mutex
	parts      *rpcpacket.Assembler
	budget     int                   // bytes of a datagram at most
	nodes      map[netip.Addr]uint32 // the incarnation that counts
	services   map[uint64]*service
	calls      map[rpcpacket.ID]*call
	log        []*call
	delivered  uint64 // calls, to all nodes
	mains      map[rpcpacket.ID]*main
	complaints []string
}

// execution is what the log has of a handler or main.
type execution struct {
	node    netip.Addr
	journal []byte
	oneways []*call // to be released when it commits
}

// call is one logged call.
type call struct {
	execution
	message  rpcpacket.Message
	caller   netip.Addr
	service  *service
	order    uint64
	number   uint64 // of its deliveries
	attempt  uint16
	ready    bool // may be released
	released bool
	done     bool
	reply    []byte
	from     netip.Addr // who has replied
}

type service struct {
	name     string
	node     netip.Addr
	up       bool
	stateful bool
	last     uint64 // order number given
	done     uint64 // order number committed
	state    join.State
}

type main struct {
	execution
	logged join.Main
}

// New puts a Gatekeeper in the place of the rack's router.
func New(r *testrack.Rack) *Gatekeeper {
	g := &Gatekeeper{
		rack: r, forward: r.Net.Router(), parts: rpcpacket.NewAssembler(rpcpacket.MaxWhole), nodes: map[netip.Addr]uint32{}, services: map[uint64]*service{},
		calls: map[rpcpacket.ID]*call{}, mains: map[rpcpacket.ID]*main{},
	}
	r.Net.Connect(g.input)
	return g
}

// Session makes the next incarnation of a node, on a host of its own.
func (g *Gatekeeper) Session(name string, address netip.Addr) (*testrack.Session, *wire.Host, error) {
	g.mu.Lock()
	g.nodes[address]++
	id := join.Identity{Name: name, Address: address, Incarnation: g.nodes[address]}
	for _, s := range g.services {
		if s.node == address {
			s.up = false
		}
	}
	g.mu.Unlock()
	h := g.rack.Host(fmt.Sprint(name, ".", id.Incarnation))
	s := testrack.NewSession(h, id)
	s.MTU = h.MTU()
	g.mu.Lock()
	g.budget = min(h.MTU()-netio.Overhead, netio.MaxDatagram)
	g.mu.Unlock()
	s.OnExport = func(e control.Export) error { return g.export(id, e) }
	s.OnState = func(ask control.State) (control.StatePart, error) { return g.state(id, ask) }
	return s, h, h.AddAddress(address)
}

// Joiner makes nodes, each with an address of its own.
func (g *Gatekeeper) Joiner() join.Joiner { return joiner{g} }

type joiner struct{ g *Gatekeeper }

// firstJoined is the number of the first node that a Joiner makes.
const firstJoined = 1000

// Join implements join.Joiner.
func (j joiner) Join(_ context.Context, name string) (join.Session, error) {
	j.g.mu.Lock()
	number := firstJoined + uint64(len(j.g.nodes))
	j.g.mu.Unlock()
	s, _, err := j.g.Session(name, rackaddr.Node(number))
	return s, err
}

// Complaints are what a right runtime gives no reason for.
func (g *Gatekeeper) Complaints() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.complaints)
}

// Unfinished is how many logged calls have no outcome.
func (g *Gatekeeper) Unfinished() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.log {
		if !c.done {
			n++
		}
	}
	return n
}

func (g *Gatekeeper) service(name string) *service {
	b := rackaddr.Service(name).As16()
	hash := binary.BigEndian.Uint64(b[8:])
	s := g.services[hash]
	if s == nil {
		s = &service{name: name}
		g.services[hash] = s
	}
	return s
}

// export routes a service to a node and delivers again what runs.
func (g *Gatekeeper) export(id join.Identity, e control.Export) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.nodes[id.Address] != id.Incarnation {
		return fault.New(fault.Stale, "export", "%s", id.Name)
	}
	s := g.service(e.Service)
	s.node, s.up, s.stateful = id.Address, true, e.Stateful
	for _, c := range g.log {
		if c.service != s || c.done {
			continue
		}
		if c.released {
			c.attempt++
		}
		g.release(c, c.released)
	}
	return nil
}

func (g *Gatekeeper) state(id join.Identity, ask control.State) (control.StatePart, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ask.Message != (control.ExecutionID{}) {
		return g.payload(id, ask)
	}
	if ask.Execution != (control.ExecutionID{}) {
		c := g.calls[rpcpacket.ID(ask.Execution)]
		if c == nil || c.service.node != id.Address || g.nodes[id.Address] != id.Incarnation {
			return control.StatePart{}, fault.New(fault.Stale, "journal", "%s", ask.Of())
		}
		return control.PartOf(c.journal, ask.Offset, 0), nil
	}
	if !ask.Main {
		s := g.service(ask.Name)
		return control.PartOf(s.state.Append(nil), ask.Offset, s.done+1), nil
	}
	key := endpoint.MainID(ask.Name)
	m := g.mains[key]
	if m == nil {
		m = new(main)
		g.mains[key] = m
	}
	m.node, m.logged.Journal = id.Address, m.journal
	part := control.PartOf(m.logged.Append(nil), ask.Offset, uint64(m.logged.Index))
	part.Done, part.Memory = m.logged.Done, control.ExecutionID(key)
	return part, nil
}

// payload is that of a call which a node serves, or of the answer to one of its own.
func (g *Gatekeeper) payload(id join.Identity, ask control.State) (control.StatePart, error) {
	c := g.calls[rpcpacket.ID(ask.Message)]
	switch {
	case c != nil && !ask.Answer && c.service.node == id.Address && g.nodes[id.Address] == id.Incarnation:
		return control.PartOf(c.message.Payload, ask.Offset, 0), nil
	case c != nil && ask.Answer && c.caller == id.Address && c.done:
		m, err := rpcpacket.Parse(c.reply)
		return control.PartOf(m.Payload, ask.Offset, 0), err
	}
	return control.StatePart{}, fault.New(fault.Stale, "state", "%s", ask.Of())
}

// input is the switch.
func (g *Gatekeeper) input(port datapath.Port, b []byte) {
	u, err := frame.ParseUDP6(b)
	if err == nil && u.Dst.Port() == rackaddr.PortRPC {
		m, err := rpcpacket.Parse(bytes.Clone(u.Payload))
		if err == nil && m.Flags&rpcpacket.FlagPart != 0 {
			if m, err = g.assemble(u, &m); err != nil {
				return
			}
		}
		if err == nil && m.Flags&rpcpacket.FlagHeld != 0 {
			g.hold(u.Src.Addr(), m)
			return
		}
	}
	g.forward(port, b)
}

// errPart: more of the message has to come.
var errPart = errors.New("a part")

// assemble returns the message that a part completes.
func (g *Gatekeeper) assemble(u frame.UDP6, m *rpcpacket.Message) (rpcpacket.Message, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	whole, err := g.parts.Add(u.Src.Addr(), m, u.Payload)
	switch {
	case err != nil:
		g.complain("%s sends parts that do not fit: %v", u.Src, err)
		return rpcpacket.Message{}, err
	case whole == nil:
		return rpcpacket.Message{}, errPart
	}
	return rpcpacket.Parse(whole)
}

func (g *Gatekeeper) complain(format string, args ...any) {
	g.complaints = append(g.complaints, fmt.Sprintf(format, args...))
}

// send sends a message as if it came from there.
func (g *Gatekeeper) send(from, to netip.Addr, m *rpcpacket.Message) {
	if n := m.Size(); n > g.budget {
		g.complain("%s to %s would have %d bytes", m.Type, to, n)
	}
	u := frame.UDP6{
		Src: netip.AddrPortFrom(from, rackaddr.PortRPC), Dst: netip.AddrPortFrom(to, rackaddr.PortRPC), Payload: m.Append(nil),
	}
	g.forward(0, u.Append(nil))
}

// entries are the journal entries of a trailer.
func entries(b []byte) (journal []byte, rest []trailer.Section) {
	sections, err := trailer.Parse(b)
	if err != nil {
		panic(err) // the runtime's own
	}
	for _, s := range sections {
		if s.Type.Journal() {
			journal = s.Append(journal)
		} else {
			rest = append(rest, s)
		}
	}
	return journal, rest
}
