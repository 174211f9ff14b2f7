package difftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/rights"
)

// handBytes is the length of an operation; an Ethernet header of its type stands in front.
const handBytes = 64

var handEthernet = []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}

// handOf is an operation as a packet-out.
func handOf(o *rights.Operation) []byte {
	be := binary.BigEndian
	b := append(make([]byte, 4), handEthernet...)
	op := byte(o.Op) + 1
	b = append(b, op, 0)
	b = be.AppendUint16(b, uint16(o.Owner))
	b = be.AppendUint16(b, uint16(o.Lessee))
	b = append(b, byte(len(o.Regions)), 0)
	b = be.AppendUint64(b, o.Election)
	number, slot := uint64(o.Ref.Number), o.Ref.Slot
	if o.Op == rights.ReadWords || o.Op == rights.ReadSlots || o.Op == rights.SetWord || o.Op == rights.SetSlot {
		slot = o.First
	}
	if o.Op == rights.SetWord {
		number = wordOf(o.Word)
	}
	b = be.AppendUint64(b, number)
	b = be.AppendUint32(b, slot)
	b = be.AppendUint32(b, 0)
	for i := range 4 {
		var g uint64
		if i < len(o.Regions) {
			g = regionOf(o.Regions[i])
		}
		b = be.AppendUint64(b, g)
	}
	b = append(b, make([]byte, map[rights.Op]int{rights.ReadWords: handBytes, rights.ReadSlots: 4 * handBytes}[o.Op])...)
	if o.Op == rights.SetSlot {
		for _, v := range cellsOf(o.Slot) {
			b = be.AppendUint64(b, v)
		}
	}
	return b
}

func regionOf(g rights.Region) uint64 {
	return uint64(g.Slot)<<rights.GenerationBits | uint64(g.Generation)
}

// wordOf is a word as the register has it.
func wordOf(w rights.Word) uint64 {
	return uint64(w.Generation)<<(rights.RowBits+rights.LentBits) | uint64(w.Owner)<<rights.LentBits | uint64(w.Lent)
}

// slotRegisters have what cellsOf returns, in this order.
var slotRegisters = [8]string{"number", "state", "parent", "children", "region0", "region1", "region2", "region3"}

// cellsOf is a call slot as the registers have it.
func cellsOf(k rights.Slot) (c [8]uint64) {
	bit := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	c[0] = uint64(k.Number)
	c[1] = uint64(k.Parent.Slot)<<38 | uint64(k.Caller)<<26 | uint64(k.Callee)<<14 | uint64(k.Count)<<11 | uint64(k.Slots)<<8 | uint64(k.Place)<<6 |
		bit(k.Given)<<5 | bit(k.Standing)<<4 | bit(k.Ending)<<3 | uint64(k.State)
	c[2], c[3] = uint64(k.Parent.Number), uint64(k.Children)
	for i, g := range k.Regions[:k.Count] {
		c[4+i] = regionOf(g)
	}
	return c
}

// hand has both do an operation.
func (r *Rights) hand(o *rights.Operation) error {
	sent := handOf(o)
	f := r.Model.Do(o)
	out, err := r.x.Run(p4.CPUPort, bytes.Clone(sent))
	if err == nil {
		err = r.found(o, sent[4:], f, out)
	}
	if err == nil {
		err = r.registers()
	}
	if err != nil {
		return fmt.Errorf("operation %+v, outcome %d: %w", *o, f.Outcome, err)
	}
	return nil
}

// found checks what an operation was answered.
func (r *Rights) found(o *rights.Operation, sent []byte, f rights.Found, out []Leaves) error {
	if len(out) != 1 || out[0].Port != p4.CPUPort || len(out[0].Frame) < 4+len(sent) {
		return fmt.Errorf("answered with %d frames", len(out))
	}
	got := out[0].Frame
	if got[2] != 7 { // Reason.HAND
		return fmt.Errorf("answered with reason %d", got[2])
	}
	want := bytes.Clone(sent[:len(handEthernet)+handBytes])
	want[len(handEthernet)+1] = byte(f.Outcome)
	be := binary.BigEndian
	switch words := [8]uint64{}; {
	case f.Outcome == rights.Stale:
		want = append(want, sent[len(want):]...)
	case o.Op == rights.ReadWords:
		for i, w := range f.Words {
			words[i] = wordOf(w)
		}
		for _, w := range words {
			want = be.AppendUint64(want, w)
		}
	case o.Op == rights.ReadSlots:
		for _, k := range f.Slots {
			for _, c := range cellsOf(k) {
				want = be.AppendUint64(want, c)
			}
		}
	default:
		want = append(want, sent[len(want):]...)
	}
	if !bytes.Equal(got[4:], want) {
		return fmt.Errorf("answered\n%x, want\n%x", got[4:], want)
	}
	return nil
}

// registers checks that the registers are what the model has.
func (r *Rights) registers() error {
	is := func(name string, i uint32, want uint64) error {
		b, err := r.x.Cell(name, int(i))
		if err != nil {
			return err
		}
		var full [8]byte
		copy(full[8-len(b):], b)
		if got := binary.BigEndian.Uint64(full[:]); got != want {
			return fmt.Errorf("%s[%d] is %#x, want %#x", name, i, got, want)
		}
		return nil
	}
	const in = "BifrostIngress.rights."
	for i, w := range r.Model.Words() {
		if err := is(in+"words", i, wordOf(*w)); err != nil {
			return err
		}
	}
	for i, k := range r.Model.Slots() {
		for j, c := range cellsOf(*k) {
			if err := is(in+"slot_"+slotRegisters[j], i, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// ---- what comes next

// packet makes any packet, that names what there is more often than what there is not.
func (r *Rights) packet() rights.Packet {
	s, sender := r.Model, 1+r.IntN(3)
	kinds := []rights.Kind{rights.Call, rights.Call, rights.Call, rights.Oneway, rights.Reply, rights.Reply, rights.Read, rights.AllocAnswer}
	p := rights.Packet{
		Kind: append(kinds, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)[r.IntN(len(kinds)+12)], Source: rights.Source{Port: uint16(sender), Address: node(sender)}, To: node(1 + r.IntN(3)), Incarnation: 1, Machine: 1, //nolint:gosec // small
	}
	if r.IntN(12) == 0 {
		p.Machine = 2
	}
	switch r.IntN(40) {
	case 0:
		p.Incarnation = 2
	case 1:
		p.Source = rights.Source{Port: uint16(sender), Address: node(sender + 10)} //nolint:gosec // small
	case 2:
		if p.Kind != rights.AllocAnswer && p.Kind != rights.MemoryAnswer {
			p.Source = rights.Source{Port: daemonPort, Address: node(daemonPort)}
		}
	}
	if (p.Kind == rights.Call || p.Kind == rights.Oneway || p.Kind == rights.Ask) && r.IntN(12) == 0 {
		p.To = node(strange)
	}
	p.Region = r.region(p.Kind == rights.Alloc || p.Kind == rights.AllocAnswer)
	p.Ref = r.ref(sender)
	switch p.Kind {
	case rights.Read, rights.Reply, rights.Exception:
		if r.IntN(2) == 0 {
			p.Ref = r.among(p.Ref, isOpen)
		}
	case rights.Ask:
		if r.IntN(4) == 0 {
			p.Ref = r.among(p.Ref, func(k *rights.Slot) bool { return k.State == rights.Failed })
		}
	default:
	}
	switch p.Kind {
	case rights.AllocAnswer, rights.MemoryAnswer:
		if r.IntN(8) > 0 {
			p.Source = rights.Source{Port: memoryPort, Address: memoryAddress}
		}
		if p.OK = p.Kind == rights.MemoryAnswer || r.IntN(8) > 0; p.Kind == rights.AllocAnswer && r.IntN(4) > 0 {
			p.To = node(int(p.Region.Slot / rights.Rack.Batch))
		}
		return p
	case rights.Alloc, rights.Write, rights.Free, rights.Read, rights.Plain:
		p.To = memoryAddress
		if p.Kind == rights.Alloc && r.IntN(2) == 0 {
			p.Region = r.region(true)
		}
	default:
	}
	if k := s.Slot(p.Ref.Slot); r.IntN(4) > 0 && k.State != rights.Unused { // who may, most of the time
		callee := rights.Source{Port: uint16(k.Callee), Address: node(int(k.Callee))}
		switch p.Kind {
		case rights.Read:
			p.Source, p.Region, p.Ref.Number = callee, k.Regions[r.IntN(4)], k.Number
			if k.Callee == 0 {
				p.Source.Port, p.Source.Address = 1, node(1)
			}
		case rights.Reply, rights.Exception:
			if k.Callee >= 1 && k.Callee <= 3 && k.Caller >= 1 && k.Caller <= 3 {
				p.Source, p.To, p.Ref.Number = callee, node(int(k.Caller)), k.Number
				p.Ref.Slot -= uint32(k.Place)
			}
		default:
		}
	}
	if p.Kind == rights.Reply || p.Kind == rights.Exception && r.IntN(8) == 0 {
		n := []int{0, 0, 1, 2, 5, 16, 17}[r.IntN(7)]
		for range n {
			p.Results = append(p.Results, r.owned(p.Source.Port))
		}
	}
	if p.Kind == rights.Call || p.Kind == rights.Oneway {
		r.blocks(&p)
	}
	if p.Kind != rights.Read && r.IntN(100) == 0 {
		p.Ref.Slot += 1 << 20
	}
	return p
}

// nearly are packets that are wrong in one thing, if this one uses a slot that is open: most others are wrong in several, and refused for one of
// them alone.
func (r *Rights) nearly(p *rights.Packet) (all []rights.Packet) {
	k := r.Model.Slot(p.Ref.Slot)
	if p.Kind != rights.Read && p.Kind != rights.Reply && p.Kind != rights.Exception || k.State != rights.Open || r.IntN(2) == 0 {
		return nil
	}
	wrong := func(change func(*rights.Packet)) {
		q := *p
		change(&q)
		all = append(all, q)
	}
	for n := 1; n <= 3; n++ {
		wrong(func(q *rights.Packet) { q.Source = NodeSource(n) })
	}
	if p.Kind == rights.Read {
		wrong(func(q *rights.Packet) { q.Source = MemorySource() })
		wrong(func(q *rights.Packet) { q.Region.Generation++ })
		wrong(func(q *rights.Packet) { q.Region = r.region(false) })
	} else {
		wrong(func(q *rights.Packet) { q.To = node(1 + r.IntN(3)) })
	}
	wrong(func(q *rights.Packet) { q.Ref.Number += 2 })
	wrong(func(q *rights.Packet) { q.Ref.Slot++ })
	return all
}

// nearlyCalls are calls that are wrong in one thing. Each has a higher number than those before it, and the call itself one above them all: what
// was refused keeps no slot from it.
func (r *Rights) nearlyCalls(p *rights.Packet) (all []rights.Packet) {
	if p.Kind != rights.Call && p.Kind != rights.Oneway || len(p.Blocks) == 0 || r.IntN(3) > 0 {
		return nil
	}
	wrong := func(change func(b *rights.Block)) {
		q := *p
		q.Blocks = slices.Clone(p.Blocks)
		change(&q.Blocks[r.IntN(len(q.Blocks))])
		all = append(all, q)
		p.Ref.Number += 2
	}
	if first := p.Blocks[0].Regions; len(first) > 0 {
		wrong(func(b *rights.Block) { // twice
			b.Regions = append([]rights.Region{first[0]}, b.Regions[:min(len(b.Regions), 3)]...)
		})
		wrong(func(b *rights.Block) {
			b.Regions = append([]rights.Region{r.region(false)}, b.Regions[:min(len(b.Regions), 3)]...)
		})
	}
	if slices.ContainsFunc(p.Blocks, func(b rights.Block) bool { return b.Parent != rights.Ref{} }) {
		wrong(func(b *rights.Block) { b.Parent.Number += 2 })
		wrong(func(b *rights.Block) { b.Parent.Slot++ })
	}
	return all
}

// nearlyCopies are copies of a call, if it is open, that differ from it in one thing.
func (r *Rights) nearlyCopies(p *rights.Packet) (all []rights.Packet) {
	if k := r.Model.Slot(p.Ref.Slot); p.Kind != rights.Call && p.Kind != rights.Oneway || k.State != rights.Open || k.Number != p.Ref.Number {
		return nil
	}
	for i := range p.Blocks {
		if len(p.Blocks[i].Regions) > 0 {
			q := *p
			q.Blocks = slices.Clone(p.Blocks)
			q.Blocks[i].Regions = slices.Clone(q.Blocks[i].Regions)
			q.Blocks[i].Regions[0] = r.region(false)
			all = append(all, q)
		}
	}
	more := *p
	more.Blocks = append(slices.Clone(p.Blocks), rights.Block{})
	all = append(all, more)
	if len(p.Blocks) > 1 {
		fewer := *p
		fewer.Blocks = p.Blocks[:len(p.Blocks)-1]
		all = append(all, fewer)
	}
	return all
}

// blocks makes what a call lists.
func (r *Rights) blocks(p *rights.Packet) {
	s, sender := r.Model, p.Source.Port
	n := []int{1, 1, 1, 1, 2, 2, 3, 4, 4, 4 + (r.IntN(8)+1)/8}[r.IntN(10)]
	few := n > 1 && r.IntN(2) == 0
	var seen []rights.Region
	for i := range n {
		b := rights.Block{}
		regions := []int{0, 1, 1, 1, 2, 2, 3, 4, 4 + (r.IntN(8)+1)/8}[r.IntN(9)]
		if few {
			regions /= 3
		}
		for range regions {
			g := r.owned(sender)
			for tries := 0; tries < 8 && contains(seen, g); tries++ {
				g = r.owned(sender)
			}
			seen = append(seen, g)
			b.Regions = append(b.Regions, g)
		}
		if r.IntN(3) == 0 {
			b.Parent = r.ref(1 + r.IntN(3))
			for tries := 0; tries < 20; tries++ {
				if k := s.Slot(b.Parent.Slot); k.State == rights.Open && uint16(k.Callee) == sender {
					b.Parent.Number = k.Number
					b.Regions = append(b.Regions[:min(len(b.Regions), 1)], k.Regions[:k.Count]...)
					b.Regions = b.Regions[max(0, len(b.Regions)-4):]
					break
				}
				b.Parent = r.ref(1 + r.IntN(3))
			}
			if b.Parent.Number == 0 {
				b.Parent = rights.Ref{}
			} else if r.IntN(4) == 0 {
				b.Parent.Number += 2
			}
		}
		if k := s.Slot(p.Ref.Slot + uint32(i)); r.IntN(2) == 0 && k.Number == p.Ref.Number { //nolint:gosec // a copy
			b.Regions = append([]rights.Region(nil), k.Regions[:k.Count]...)
		}
		p.Blocks = append(p.Blocks, b)
	}
}

func contains(all []rights.Region, g rights.Region) bool {
	for _, o := range all {
		if o.Slot == g.Slot {
			return true
		}
	}
	return false
}

// owned is a region, mostly of a node.
func (r *Rights) owned(port uint16) rights.Region {
	g := r.region(false)
	for tries := 0; tries < 12 && uint16(r.Model.Word(g.Slot).Owner) != port; tries++ {
		g = r.region(false)
	}
	return g
}

// region is one of few.
func (r *Rights) region(next bool) rights.Region {
	places := []uint32{0, 1, 2, 3, 4, 7, 32, 48, 40}
	if next { // what is lent nearly as often as can be counted stays
		places = places[:8]
	}
	slot := batch(1+r.IntN(3)) + places[r.IntN(len(places))]
	g := r.Model.Word(slot).Generation
	switch odd := r.IntN(16); {
	case next && r.IntN(4) > 0, odd == 0:
		g++
	case odd == 1:
		g = uint32(r.IntN(3)) //nolint:gosec // small
	}
	return rights.Region{Slot: slot, Generation: g & (1<<rights.GenerationBits - 1)}
}

// ref is a use of a call slot, mostly of a node's.
func (r *Rights) ref(n int) rights.Ref {
	if r.IntN(10) == 0 {
		return rights.Ref{}
	}
	if r.IntN(10) == 0 {
		n = 1 + r.IntN(4)
	}
	slot := block(n) + []uint32{0, 1, 2, 3, 4, 5, 12, 13, 15}[r.IntN(9)]
	if n == leases {
		slot = block(leases) + uint32(r.IntN(3)) //nolint:gosec // small
	}
	number := r.Model.Slot(slot).Number
	switch r.IntN(4) {
	case 0, 1:
		number = max(number, rights.MakeNumber(1, 0)) + 2
	case 2:
		number = rights.MakeNumber(uint32(1+r.IntN(8)/7), uint64(r.IntN(16))) //nolint:gosec // small
	}
	return rights.Ref{Slot: slot, Number: number}
}

// operation is any operation of the Gatekeeper.
func (r *Rights) operation() rights.Operation {
	o := rights.Operation{Op: rights.Op(r.IntN(9)), Election: elected, Ref: r.ref(1 + r.IntN(3)), Owner: rights.Row(r.IntN(4)), Lessee: rights.Row(r.IntN(4))} //nolint:gosec // small
	if r.IntN(20) == 0 {
		o.Election = uint64(r.IntN(elected)) //nolint:gosec // small
	}
	if r.IntN(4) > 0 {
		o.Ref.Number = r.Model.Slot(o.Ref.Slot).Number
	}
	switch o.Op {
	case rights.FailCall:
		o.Ref = r.ending(o.Ref)
	case rights.Lend:
		o.Ref = rights.Ref{Slot: block(leases) + uint32(r.IntN(3)), Number: rights.MakeNumber(1, uint64(r.IntN(200)))} //nolint:gosec // small
		if k := r.Model.Slot(o.Ref.Slot); r.IntN(3) == 0 && k.Number != 0 {
			o.Ref.Number = k.Number
		}
	case rights.ReadWords, rights.SetWord:
		o.First = r.region(false).Slot &^ 7
	case rights.ReadSlots, rights.SetSlot:
		o.First = o.Ref.Slot &^ 3
	default:
	}
	n := r.IntN(6)
	if o.Op == rights.Seize {
		n = 1 + r.IntN(5)/4
	}
	for range n {
		g := r.region(false)
		switch {
		case o.Op != rights.Lend:
		case len(o.Regions) > 0:
			g = r.owned(uint16(o.Owner))
		case r.IntN(4) == 0: // one that is lent nearly as often as can be counted
			g.Slot = batch(1) + 40
			g.Generation = r.Model.Word(g.Slot).Generation
		}
		if o.Regions = append(o.Regions, g); len(o.Regions) == 1 && r.IntN(6) > 0 {
			o.Owner = r.Model.Word(g.Slot).Owner
		}
	}
	return o
}

func isOpen(k *rights.Slot) bool { return k.State == rights.Open }

// ending is the call that is to fail: a standing lease, one that is lent on from, one that is open, or the one that is named.
func (r *Rights) ending(named rights.Ref) rights.Ref {
	wanted := isOpen
	switch r.IntN(4) {
	case 0:
		slot := block(leases) + uint32(r.IntN(3)) //nolint:gosec // small
		return rights.Ref{Slot: slot, Number: r.Model.Slot(slot).Number}
	case 1:
		wanted = func(k *rights.Slot) bool { return k.Children > 0 }
	case 2:
		return named
	}
	call := r.among(named, wanted)
	call.Slot -= uint32(r.Model.Slot(call.Slot).Place)
	return call
}

// among is the use of one of the slots that are as wanted, or else the one that is named.
func (r *Rights) among(named rights.Ref, wanted func(*rights.Slot) bool) rights.Ref {
	var all []rights.Ref
	for at, k := range r.Model.Slots() {
		if wanted(k) {
			all = append(all, rights.Ref{Slot: at, Number: k.Number})
		}
	}
	if len(all) == 0 {
		return named
	}
	return all[r.IntN(len(all))]
}

// Rows are how often each row of the model's tables has decided.
func (r *Rights) Rows() map[string]uint64 { return r.Model.Counts() }
