package recovery

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// op is one operation of a random program.
type op struct {
	kind    opKind
	service int
	lend    bool
	seed    uint64
}

type opKind uint8

const (
	write opKind = iota
	random
	call
	oneway
	checkpoint
	end // of a main
)

// program is the operations of one execution: what it does follows from a seed,
// which its call carries.
func program(seed uint64, depth int, serial bool) (ops []op) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	for range 1 + rnd.IntN(4) {
		o := op{kind: opKind(rnd.IntN(4)), service: rnd.IntN(servers), lend: rnd.IntN(2) == 0, seed: rnd.Uint64()}
		if o.service == servers-1 && !serial {
			o.service = 0 // a stateful service does not call itself
		}
		if o.kind >= call && depth == 0 {
			o.kind = write
		}
		ops = append(ops, o)
	}
	return ops
}

// run is one execution of a program in one process.
type run struct {
	id      rpcpacket.ID
	header  rpcpacket.Header // of its call
	ops     []op
	depth   int
	serial  bool
	session bool // a plain client's
	pc      int
	index   uint32 // of its last operation
	acc     uint32 // of the random numbers that it got
	past    map[uint32]byte
	fresh   []trailer.Section
	answers map[rpcpacket.ID]bool
	waiting rpcpacket.ID
	sent    []byte // while it waits
	reply   []byte // when it has ended
	lent    bool
}

// process is a node's program.
type process struct {
	r              *rack
	self           wal.Node
	alive, suspect bool
	runs           map[rpcpacket.ID]*run
	done           map[rpcpacket.ID]bool
	main           *run // of a durable main or a plain client
	begun          bool
	asked          int // life of the Gatekeeper that it has asked
	over           bool

	// Of the stateful service.
	restored bool
	state    []byte
	next     uint64
	early    map[uint64]*run
	busy     bool // until an answer is acknowledged
}

func (p *process) running(id rpcpacket.ID) bool {
	return p.runs[id] != nil || p.main != nil && p.main.id == id && p.begun
}

// begin takes a delivered call.
func (p *process) begin(m rpcpacket.Message, d execution.Deliver) {
	if p.done[d.Call] || p.runs[d.Call] != nil {
		return
	}
	e := &run{
		id: d.Call, header: m.Header, depth: int(m.Payload[8]), serial: m.Payload[9] != 0,
		past: map[uint32]byte{}, answers: map[rpcpacket.ID]bool{}, lent: len(m.Pointers) > 0 && m.Type == rpcpacket.Call,
	}
	e.ops = program(binary.BigEndian.Uint64(m.Payload), e.depth, e.serial)
	p.r.ops[e.id] = e.ops
	if d.Attempt > 0 {
		e.recall(d.Journal)
	}
	if d.Order == 0 {
		p.runs[d.Call] = e
		return
	}
	if d.Order >= p.next {
		p.early[d.Order] = e
	}
	p.turn()
}

// turn begins the next call of the stateful service.
func (p *process) turn() {
	if e := p.early[p.next]; e != nil && !p.busy {
		delete(p.early, p.next)
		p.next++
		p.busy, p.runs[e.id] = true, e
	}
}

func (p *process) restore(sections []byte, next uint64) {
	ss, err := trailer.Parse(sections)
	if err != nil {
		p.r.fatalf("restore: %v", err)
	}
	for _, s := range ss {
		if s.Type == trailer.Snapshot {
			p.state = nil
		}
		p.state = append(p.state, s.Data...)
	}
	p.next, p.restored = next, true
}

func (e *run) recall(journal []byte) {
	ss, err := trailer.Parse(journal)
	if err != nil {
		panic(err)
	}
	for _, s := range ss {
		e.past[s.Index] = s.Data[0]
	}
}

func (p *process) beginMain(state, journal []byte, index uint32) {
	if p.begun || p.over {
		return
	}
	p.begun = true
	e := p.main
	e.ops, e.depth, e.serial, e.index = mainProgram(p.r), 2, true, index
	if ss, err := trailer.Parse(state); err == nil && len(ss) > 0 {
		e.pc, e.acc = int(be32(ss[0].Data)), be32(ss[0].Data[4:])
	}
	e.recall(journal)
}

// step does an execution's next operation.
func (p *process) step(e *run) {
	switch {
	case !e.waiting.IsZero():
		p.transmit(e) // again
		return
	case e.reply != nil:
		p.respond(e)
		return
	case e.pc == len(e.ops):
		p.finish(e)
		return
	}
	o := e.ops[e.pc]
	switch o.kind {
	case write:
		if !p.r.memory.write(p, e.id, fmt.Sprint(e.pc)) {
			return
		}
	case random:
		e.index++
		v, ok := e.past[e.index]
		if !ok {
			v = byte(p.r.rnd.Uint32())
			e.fresh = append(e.fresh, trailer.Section{Type: trailer.Random, Index: e.index, Data: []byte{v}})
		}
		e.acc = e.acc*31 + uint32(v)
	default:
		e.index++
		p.prepare(e, o)
		p.transmit(e)
		return
	}
	e.pc++
}

// prepare makes the packet of a call, one-way or checkpoint.
func (p *process) prepare(e *run, o op) {
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), Parent: e.id, Index: e.index,
		Call: endpoint.ChildID(nil, e.id, 0, e.index), CallerIncarnation: p.self.Incarnation, Service: uint64(o.service),
	}}
	if e.session {
		m.Flags |= rpcpacket.FlagSession
		m.Call, m.Parent, m.Floor = rpcpacket.SessionID(77, uint64(e.index)), rpcpacket.ID{}, uint64(e.index)
	}
	switch o.kind {
	case checkpoint, end:
		m.Flags |= rpcpacket.FlagCheckpoint
		if o.kind == end {
			m.Flags |= rpcpacket.FlagDone
		}
		state := binary.BigEndian.AppendUint32(nil, uint32(e.pc+1))
		m.Trailer = trailer.Section{Type: trailer.State, Data: binary.BigEndian.AppendUint32(state, e.acc)}.Append(nil)
	default:
		if o.kind == oneway {
			m.Type = rpcpacket.Oneway
		}
		serial := byte(0)
		if e.serial && o.service != servers-1 {
			serial = 1
		}
		m.Payload = append(binary.BigEndian.AppendUint64(nil, o.seed), byte(e.depth-1), serial)
		m.Payload = binary.BigEndian.AppendUint32(m.Payload, e.acc)
		if o.lend {
			m.Pointers = []dsmpacket.Pointer{dsmpacket.Make(1, 1, 4096)}
		}
	}
	m.Trailer = trailer.Append(m.Trailer, e.fresh)
	e.waiting, e.sent = m.Call, m.Append(nil)
}

// transmit sends what an execution waits for to the Gatekeeper.
func (p *process) transmit(e *run) {
	r, datagram, o := p.r, e.sent, e.ops[e.pc]
	r.send("call", func() {
		if r.identity[p.self.Address] != p {
			return // the switch drops it
		}
		m, err := rpcpacket.Parse(datagram)
		if err != nil {
			r.fatalf("%v", err)
		}
		q := execution.Request{Message: &m, Datagram: datagram, Caller: p.self, Callee: wal.Node{Address: serverAddr(o.service)}, Serial: o.service == servers-1, Now: now}
		var v execution.Verdict
		var out execution.Output
		if o.kind == checkpoint || o.kind == end {
			v, out = r.table.Checkpoint(q)
		} else {
			v, out = r.table.Call(q)
		}
		r.note("%s %s from %v, parent %s: %s", m.Type, m.Call, p.self, m.Parent, v)
		r.execution(out)
	})
}

// answered takes the outcome of a call.
func (p *process) answered(datagram []byte) {
	m, err := rpcpacket.Parse(datagram)
	if err != nil {
		p.r.fatalf("%v", err)
	}
	p.eachRun(func(e *run) {
		if e.waiting == m.Call && e.ops[e.pc].kind == call {
			e.proceed()
		}
	})
}

// acked takes an acknowledgement.
func (p *process) acked(id rpcpacket.ID, done bool) {
	if done {
		if e := p.runs[id]; e != nil && e.reply != nil {
			delete(p.runs, id)
			p.done[id] = true
			if e.header.Service == servers-1 {
				p.busy = false
				p.turn()
			}
		}
		return
	}
	p.eachRun(func(e *run) {
		if e.waiting == id && e.ops[e.pc].kind != call {
			if e.ops[e.pc].kind == end {
				p.over, p.begun = true, false
			}
			e.proceed()
		}
	})
}

// sorted returns the runs in an order that does not change from test to test.
func (p *process) sorted() (all []*run) {
	for _, e := range p.runs {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *run) int { return bytes.Compare(a.id[:], b.id[:]) })
	return all
}

func (e *run) proceed() {
	e.waiting, e.sent, e.fresh = rpcpacket.ID{}, nil, nil
	e.pc++
}

func (p *process) eachRun(f func(*run)) {
	for _, e := range p.sorted() {
		f(e)
	}
	if p.main != nil && p.begun {
		f(p.main)
	}
}

// finish ends a handler.
func (p *process) finish(e *run) {
	m := rpcpacket.Message{Header: e.header}
	m.Type, m.CalleeIncarnation = rpcpacket.Reply, p.self.Incarnation
	if e.header.Type == rpcpacket.Oneway {
		m.Flags |= rpcpacket.FlagDone
	}
	if e.header.Service == servers-1 {
		p.state = append(p.state, e.id[:]...)
		if s := (trailer.Section{Type: trailer.Delta, Data: e.id[:]}); p.r.rnd.IntN(3) > 0 {
			m.Trailer = s.Append(nil)
		} else {
			m.Trailer = trailer.Section{Type: trailer.Snapshot, Data: bytes.Clone(p.state)}.Append(nil)
		}
	}
	e.reply = m.Append(nil)
	p.respond(e)
}

func (p *process) respond(e *run) {
	r, datagram := p.r, e.reply
	r.send("reply", func() {
		if r.identity[p.self.Address] != p {
			return
		}
		m, err := rpcpacket.Parse(datagram)
		if err != nil {
			r.fatalf("%v", err)
		}
		v, out := r.table.Reply(execution.Response{Message: &m, Datagram: datagram, Callee: p.self, Now: now})
		r.note("reply to %s from %v: %s", m.Call, p.self, v)
		r.execution(out)
	})
}
