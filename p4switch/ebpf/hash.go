//go:build linux

package ebpf

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// A calculation's input is a string of bits. It is taken byte by byte: rTemp is
// the value so far, R3 points to the tables of CRCs, and R5 tells where in the
// string the byte is, as far as an algorithm wants to know.

// Where the tables are in their map.
const (
	crc32At   = 0
	crc16At   = 4 * 256
	crcTables = crc16At + 2*256
)

// crcAt is where a function keeps the address of the tables.
const crcAt = dataAt - 8

// makeTables makes the map of the CRCs' tables, if the program needs them.
func (x *Executor) makeTables() error {
	need := false
	for _, c := range x.prog.Calculations {
		need = need || isCRC(c.Algorithm)
	}
	for _, p := range x.prog.Profiles {
		need = need || p.Selector != nil && isCRC(p.Selector.Algorithm)
	}
	if !need {
		return nil
	}
	b := make([]byte, crcTables)
	for i, v := range crc32.IEEETable {
		binary.NativeEndian.PutUint32(b[crc32At+4*i:], v)
	}
	for i := range 256 {
		const reflected = 0xa001 // of CRC-16/ARC, 0x8005
		v := uint16(i)
		for range 8 {
			v = v>>1 ^ reflected*(v&1)
		}
		binary.NativeEndian.PutUint16(b[crc16At+2*i:], v)
	}
	var err error
	x.maps.crcs, err = newMap(&ebpf.MapSpec{
		Name: "crcs", Type: ebpf.Array, KeySize: 4, ValueSize: crcTables, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: b}},
	})
	return err
}

func isCRC(a v1model.Algorithm) bool { return crcOf(a) != 0 }

// crcOf is the width of a CRC; 0 if the algorithm is none.
func crcOf(a v1model.Algorithm) int {
	switch a {
	case v1model.HashCRC16, v1model.HashCRC16Custom:
		return 16
	case v1model.HashCRC32, v1model.HashCRC32Custom:
		return 32
	}
	return 0
}

// findTables keeps the address of the tables.
func (g *gen) findTables() {
	g.emit(asm.StoreImm(asm.R10, -4, 0, asm.Word))
	g.lookup(g.objs.crcs, asm.R10, -4)
	g.emit(asm.JEq.Imm(asm.R0, 0, g.done), asm.StoreMem(asm.R10, crcAt, asm.R0, asm.DWord))
}

// hash writes Base + hash % Max.
func (g *gen) hash(s v1model.Hash, locked bool) {
	to, ok := g.target(s.Dst)
	if !ok {
		return
	}
	if s.Calculation.Payload {
		g.lack("hash with the payload")
		return
	}
	if isCRC(s.Calculation.Algorithm) && !locked {
		g.findTables()
	}
	g.calculate(s.Calculation)
	some := g.label("modulo")
	g.num(s.Max, 1)
	g.emit(asm.JNE.Imm(asm.R1, 0, some), asm.Mov.Imm(asm.R1, 1))
	g.mark(some)
	g.emit(asm.Mod.Reg(asm.R0, asm.R1))
	g.num(s.Base, 1)
	g.emit(asm.Add.Reg(asm.R0, asm.R1))
	g.setReg(to)
}

// group are parts of an input that are left out together, if their header is not
// valid; header is nil for those that never are.
type group struct {
	header *v1model.Header
	parts  []v1model.Input
	bits   int
}

func groupsOf(c *v1model.Calculation) (gs []group) {
	for _, in := range c.Input {
		h, n := in.Header, in.Bits
		switch {
		case in.Field.Valid():
			h, n = in.Field.Header, in.Field.Width()
		case h != nil:
			n = h.Type.Bits
		}
		if h != nil && h.Metadata {
			h = nil
		}
		if len(gs) == 0 || gs[len(gs)-1].header != h {
			gs = append(gs, group{header: h})
		}
		last := &gs[len(gs)-1]
		last.parts, last.bits = append(last.parts, in), last.bits+n
	}
	return gs
}

// calculate computes a calculation in R0. For a CRC, the tables have been found.
func (g *gen) calculate(c *v1model.Calculation) {
	if c.Algorithm == v1model.HashRandom {
		g.random64()
		return
	}
	g.digest(c)
	switch crc := crcOf(c.Algorithm); {
	case crc == 32:
		g.emit(asm.Xor.Imm(rTemp, -1))
		g.mask(rTemp, 32)
	case c.Algorithm == v1model.HashCSum16:
		g.fold(rTemp)
		g.emit(asm.Xor.Imm(rTemp, 0xffff))
	}
	g.emit(asm.Mov.Reg(asm.R0, rTemp))
}

// digest takes in a calculation's input.
func (g *gen) digest(c *v1model.Calculation) {
	g.set(rTemp, 0)
	switch crcOf(c.Algorithm) {
	case 16:
		g.emit(asm.LoadMem(asm.R3, asm.R10, crcAt, asm.DWord), asm.Add.Imm(asm.R3, crc16At))
	case 32:
		g.emit(asm.LoadMem(asm.R3, asm.R10, crcAt, asm.DWord))
		g.set(rTemp, 0xffffffff)
	}
	g.set(asm.R5, 0)
	gs := groupsOf(c)
	if h := only(gs); h != nil { // its parts may begin anywhere
		invalid, end := g.label("without"), g.label("taken")
		g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte), asm.JEq.Imm(asm.R0, 0, invalid))
		g.takeAll(c, func(group) bool { return true })
		g.jump(end)
		g.mark(invalid)
		g.takeAll(c, func(gr group) bool { return gr.header == nil })
		g.mark(end)
		return
	}
	bits := 0
	for i, gr := range gs {
		if gr.header == nil {
			bits += gr.bits
			continue
		}
		if bits%8 != 0 || gr.bits%8 != 0 && i < len(gs)-1 {
			g.lack("hash or checksum over parts of several headers that are no whole bytes")
			return
		}
	}
	g.takeAll(c, nil)
}

// only is the only header of some groups; nil if there are several, or none.
func only(gs []group) (h *v1model.Header) {
	for _, gr := range gs {
		if h != nil && gr.header != nil && gr.header != h {
			return nil
		}
		if gr.header != nil {
			h = gr.header
		}
	}
	return h
}

// takeAll takes in the groups for which a function is true; without a function,
// those whose headers are valid.
func (g *gen) takeAll(c *v1model.Calculation, which func(group) bool) {
	at := 0 // in bits
	for _, gr := range groupsOf(c) {
		if which != nil && !which(gr) {
			continue
		}
		skip, from := g.label("part"), at
		check := which == nil && gr.header != nil
		if check {
			g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(gr.header)), asm.Byte), asm.JEq.Imm(asm.R0, 0, skip))
		}
		known := g.sure
		if gr.header != nil { // it is valid
			known = known.with(gr.header.Index)
		}
		g.knows(known, func() {
			for _, in := range gr.parts {
				at = g.takeInput(c.Algorithm, in, at)
			}
		})
		if check {
			if at%8 != 0 { // the last part is filled up with zeros
				g.emit(asm.Mov.Reg(asm.R0, asm.R2))
				g.takeByte(c.Algorithm)
				at = from + (at-from+7)/8*8
			}
			// For the verifier, what is left out makes no difference.
			g.mark(skip)
			g.store(stScratch, asm.R5)
			g.load(asm.R5, stScratch)
			g.emit(asm.And.Imm(asm.R5, 15))
		}
	}
	if at%8 != 0 { // filled up with zeros
		g.emit(asm.Mov.Reg(asm.R0, asm.R2))
		g.takeByte(c.Algorithm)
	}
}

// takeInput takes in a part that begins at a bit, and returns where it ends. The
// bits of a byte that is not complete are in R2.
func (g *gen) takeInput(a v1model.Algorithm, in v1model.Input, at int) int {
	switch {
	case in.Field.Valid():
		return g.takeField(a, in.Field, at)
	case in.Header != nil:
		for i := range in.Header.Type.Fields {
			at = g.takeField(a, v1model.FieldRef{Header: in.Header, Field: i}, at)
		}
		return at
	}
	for left := in.Bits; left > 0; {
		n := min(left, 8-at%8)
		v := 0
		for bit := range n {
			k := len(in.Const)*8 - left + bit
			v = v<<1 | int(in.Const[k/8]>>(7-k%8)&1)
		}
		g.set(asm.R0, uint64(v))
		at = g.takeBits(a, n, at)
		left -= n
	}
	return at
}

func (g *gen) takeField(a v1model.Algorithm, ref v1model.FieldRef, at int) int {
	if ref.Def().Varbit {
		g.takeVarbit(a, ref, at)
		return at
	}
	for left := ref.Width(); left > 0; {
		n := min(left, 8-at%8)
		g.piece(ref, left-n, n)
		at = g.takeBits(a, n, at)
		left -= n
	}
	return at
}

// takeBits takes in the n bits in R0, which lie within a byte.
func (g *gen) takeBits(a v1model.Algorithm, n, at int) int {
	if n < 8 {
		if shift := 8 - at%8 - n; shift > 0 {
			g.emit(asm.LSh.Imm(asm.R0, int32(shift)))
		}
		if at%8 > 0 {
			g.emit(asm.Or.Reg(asm.R2, asm.R0))
		} else {
			g.emit(asm.Mov.Reg(asm.R2, asm.R0))
		}
		if at += n; at%8 != 0 {
			return at
		}
		g.emit(asm.Mov.Reg(asm.R0, asm.R2))
		g.takeByte(a)
		return at
	}
	g.takeByte(a)
	return at + n
}

// takeByte takes in the byte in R0.
func (g *gen) takeByte(a v1model.Algorithm) {
	switch crc := crcOf(a); {
	case crc != 0:
		g.emit(
			asm.Xor.Reg(asm.R0, rTemp), asm.And.Imm(asm.R0, 0xff),
			asm.LSh.Imm(asm.R0, map[int]int32{16: 1, 32: 2}[crc]), asm.Add.Reg(asm.R0, asm.R3),
			asm.LoadMem(asm.R0, asm.R0, 0, sizes[crc/8]),
			asm.RSh.Imm(rTemp, 8), asm.Xor.Reg(rTemp, asm.R0))
	case a == v1model.HashIdentity:
		end := g.label("eight")
		g.emit(
			asm.JGE.Imm(asm.R5, 8, end),
			asm.LSh.Imm(rTemp, 8), asm.Or.Reg(rTemp, asm.R0), asm.Add.Imm(asm.R5, 1))
		g.mark(end)
	default: // words of 16 bits: R5 is 8 in the middle of one
		op := asm.Add
		if a == v1model.HashXor16 {
			op = asm.Xor
		}
		g.emit(
			asm.Mov.Imm(asm.R1, 8), asm.Sub.Reg(asm.R1, asm.R5),
			asm.LSh.Reg(asm.R0, asm.R1), op.Reg(rTemp, asm.R0), asm.Xor.Imm(asm.R5, 8))
	}
}

// fold makes a sum of words one of 16 bits.
func (g *gen) fold(r asm.Register) {
	for range 4 {
		g.emit(asm.Mov.Reg(asm.R0, r), asm.RSh.Imm(asm.R0, 16), asm.And.Imm(r, 0xffff), asm.Add.Reg(r, asm.R0))
	}
}

// random64 puts a random number into R0.
func (g *gen) random64() {
	g.emit(
		asm.FnGetPrandomU32.Call(), asm.Mov.Reg(rTemp, asm.R0), asm.LSh.Imm(rTemp, 32),
		asm.FnGetPrandomU32.Call())
	g.mask(asm.R0, 32)
	g.emit(asm.Or.Reg(asm.R0, rTemp))
}

// random writes a number between two others.
func (g *gen) random(s v1model.Random) {
	to, ok := g.target(s.Dst)
	if !ok {
		return
	}
	none, all := g.label("no_random"), g.label("any")
	low, high := spillAt(1), spillAt(2)
	g.num(s.Low, 0)
	g.emit(asm.StoreMem(asm.R10, low, asm.R0, asm.DWord))
	g.num(s.High, 0)
	g.emit(asm.StoreMem(asm.R10, high, asm.R0, asm.DWord))
	g.random64()
	g.emit(
		asm.LoadMem(asm.R1, asm.R10, low, asm.DWord), asm.LoadMem(asm.R2, asm.R10, high, asm.DWord),
		asm.JGT.Reg(asm.R1, asm.R2, none),
		asm.Sub.Reg(asm.R2, asm.R1), asm.Add.Imm(asm.R2, 1), asm.JEq.Imm(asm.R2, 0, all),
		asm.Mod.Reg(asm.R0, asm.R2), asm.Add.Reg(asm.R0, asm.R1))
	g.mark(all)
	g.setReg(to)
	g.mark(none)
}
