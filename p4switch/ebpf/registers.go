//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"os"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// All registers lie in one value of an array. An action that touches registers
// holds one lock from its first access to its last, and so is atomic. The lock is
// in a map of its own. The control plane reads and writes a cell by a small program
// (accessor), which takes the lock, too.
//
// Under the lock nothing can be called, so what needs a call (counters, meters,
// random numbers) must come before the first access or behind the last.

// maxRegisters is how large a value the verifier follows an offset into.
const maxRegisters = 1 << 29

// Where a function keeps the lock and the registers while it holds the lock.
const (
	lockAt = contextAt - 8
	dataAt = contextAt - 16
	heldAt = scanAt // the last of what has a fixed place on the stack
)

// array is where a register lies: its first cell, and how far it is from one cell to the next, in bytes.
type array struct{ at, stride, cells int }

// recordAlign is where records begin: in cache lines, if they have the size of one.
const recordAlign = 64

// registerLayout tells where each register lies, and how many bytes all take. A cell takes whole words, low word first.
// Registers of the same size that stand next to each other in the program are interleaved: the cells with one index
// are a record, which mostly is read and written as one.
func registerLayout(p *v1model.Program, most int) (all []array, size int) {
	for i := 0; i < len(p.Registers); {
		n, stride := i, 0
		for ; n < len(p.Registers) && p.Registers[n].Size == p.Registers[i].Size; n++ {
			stride += 8 * words(p.Registers[n].Width)
		}
		size = (size + recordAlign - 1) &^ (recordAlign - 1)
		cells, at := bounded(p.Registers[i].Size, most), size
		for ; i < n; i++ {
			all = append(all, array{at, stride, cells})
			at += 8 * words(p.Registers[i].Width)
		}
		size += stride * cells
	}
	return all, size
}

// bounded is how many cells a register has whose program says so many, if there are most at most, or 0 for no limit.
func bounded(cells, most int) int {
	if most > 0 {
		return min(cells, most)
	}
	return cells
}

// lockType is struct { struct bpf_spin_lock lock; }, by which the kernel finds the
// lock in a map's value.
func lockType(more ...btf.Member) *btf.Struct {
	word := &btf.Int{Name: "unsigned int", Size: 4}
	lock := &btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: word}}}
	s := &btf.Struct{Name: "bifrost_locked", Size: 4, Members: append([]btf.Member{{Name: "lock", Type: lock}}, more...)}
	for _, m := range more {
		n, _ := btf.Sizeof(m.Type)
		s.Size = max(s.Size, uint32(m.Offset/8)+uint32(n))
	}
	return s
}

var keyType = &btf.Int{Name: "unsigned int", Size: 4}

// makeRegisters makes the maps of a program with registers.
func (x *Executor) makeRegisters() error {
	placed, size := registerLayout(x.prog, x.cells)
	x.placed = placed
	if size == 0 {
		return nil
	}
	o := &x.maps
	var err error
	if f := x.former; f != nil && f.cells == x.cells && v1model.SameRegisters(f.prog.Registers, x.prog.Registers) {
		err = x.takeRegisters(f)
	} else {
		err = x.newRegisters(size)
	}
	if x.former = nil; err != nil {
		return err
	}
	if o.exchange, err = newMapped("exchange", exchangeSize, 1); err != nil {
		return err
	}
	x.access, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bifrost_access", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: accessor(o, size),
	})
	return err
}

// newRegisters makes registers, or inherits them.
func (x *Executor) newRegisters(size int) (err error) {
	o := &x.maps
	if o.lock, err = x.kept("lock", &ebpf.MapSpec{
		Name: "lock", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1, Key: keyType, Value: lockType(),
	}); err != nil {
		return err
	}
	o.registers, err = x.kept("registers", &ebpf.MapSpec{
		Name: "registers", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size + 8*maxSpill), MaxEntries: 1,
	})
	return err
}

// takeRegisters makes the registers of another executor this one's, too, with their lock.
func (x *Executor) takeRegisters(f *Executor) (err error) {
	o := &x.maps
	if o.lock, err = f.maps.lock.Clone(); err != nil {
		return fmt.Errorf("the former program's registers: %w", err)
	}
	if o.registers, err = f.maps.registers.Clone(); err != nil {
		return fmt.Errorf("the former program's registers: %w", err)
	}
	x.pins["lock"], x.pins["registers"] = o.lock, o.registers
	return nil
}

// HasRegistersOf reports whether another executor has the same registers, so that each sees what packets change at the other.
func (x *Executor) HasRegistersOf(o *Executor) bool {
	if x.maps.registers == nil || o.maps.registers == nil {
		return x.maps.registers == o.maps.registers
	}
	mine, err := x.maps.registers.Info()
	theirs, also := o.maps.registers.Info()
	if err != nil || also != nil {
		return false
	}
	a, _ := mine.ID()
	b, ok := theirs.ID()
	return ok && a == b
}

// What the accessor and this process tell each other, in words of a map that both
// see: whether to write, where, how many words, and the words.
const (
	exchangeWrite = 8 * iota
	exchangeAt
	exchangeCount
	exchangeWords
	exchangeSize = exchangeWords + 8*maxSpill
)

// accessor is a program that reads or writes words of the registers.
func accessor(o *maps, size int) asm.Instructions {
	code := asm.Instructions{}
	for i, m := range []fder{o.exchange.cells, o.lock, o.registers} {
		code = append(code,
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"), asm.Mov.Reg(asm.R6+asm.Register(i), asm.R0))
	}
	code = append(code,
		asm.LoadMem(asm.R9, asm.R6, exchangeAt, asm.DWord),
		asm.JGE.Imm(asm.R9, int32(size), "out"),
		asm.Add.Reg(asm.R8, asm.R9),
		asm.Mov.Reg(asm.R1, asm.R7), asm.FnSpinLock.Call(),
		asm.LoadMem(asm.R2, asm.R6, exchangeCount, asm.DWord),
		asm.LoadMem(asm.R3, asm.R6, exchangeWrite, asm.DWord),
		asm.JNE.Imm(asm.R3, 0, "write"))
	for i := range int16(maxSpill) {
		code = append(code,
			asm.JLE.Imm(asm.R2, int32(i), "unlock"),
			asm.LoadMem(asm.R0, asm.R8, 8*i, asm.DWord), asm.StoreMem(asm.R6, exchangeWords+8*i, asm.R0, asm.DWord))
	}
	code = append(code, asm.Ja.Label("unlock"))
	for i := range int16(maxSpill) {
		next := asm.JLE.Imm(asm.R2, int32(i), "unlock")
		if i == 0 {
			next = next.WithSymbol("write")
		}
		code = append(code, next,
			asm.LoadMem(asm.R0, asm.R6, exchangeWords+8*i, asm.DWord), asm.StoreMem(asm.R8, 8*i, asm.R0, asm.DWord))
	}
	return append(code,
		asm.Mov.Reg(asm.R1, asm.R7).WithSymbol("unlock"), asm.FnSpinUnlock.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return())
}

// exchange reads or writes words of the registers.
func (x *Executor) exchange(at int, cell []uint64, write bool) error {
	m := x.maps.exchange
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mem == nil {
		return os.ErrClosed
	}
	ne := binary.NativeEndian
	var op uint64
	if write {
		op = 1
	}
	for i, v := range append([]uint64{op, uint64(at), uint64(len(cell))}, cell...) {
		ne.PutUint64(m.mem[8*i:], v)
	}
	if _, err := x.access.Run(&ebpf.RunOptions{Data: make([]byte, minEthernet)}); err != nil {
		return err
	}
	for i := range cell {
		cell[i] = ne.Uint64(m.mem[exchangeWords+8*i:])
	}
	return nil
}

// atomics is the part of an action during which it holds the lock: from the
// statement first to the statement last; first is -1 if it needs no lock.
type atomics struct {
	first, last int
	crc         bool // there is a CRC in between
}

// atomicsOf finds the part of an action that must be atomic. No jump leads into
// it, so that all ways take the lock.
func atomicsOf(body []v1model.Stmt) atomics {
	at := atomics{first: -1, last: -1}
	for i, s := range body {
		switch s.(type) {
		case v1model.ReadRegister, v1model.WriteRegister:
			if at.first < 0 {
				at.first = i
			}
			at.last = i
		}
	}
	for more := at.first >= 0; more; {
		more = false
		for i := range body {
			to, ok := v1model.JumpTarget(body[i])
			grown := at
			switch {
			case !ok:
			case to <= i && to <= at.last && i >= at.first: // all turns of a loop are atomic together
				grown.first, grown.last = min(at.first, to), max(at.last, i)
			case i < at.first && to > at.first && to <= at.last:
				grown.first = i
			}
			more = more || grown != at
			at = grown
		}
	}
	for i := max(at.first, 0); i < at.last; i++ {
		h, ok := body[i].(v1model.Hash)
		at.crc = at.crc || ok && isCRC(h.Calculation.Algorithm)
	}
	return at
}

// takeLock finds lock and registers, and takes the lock.
func (g *gen) takeLock(crc bool) {
	if crc {
		g.findTables()
	}
	for _, of := range []struct {
		m  fder
		at int16
	}{{g.objs.lock, lockAt}, {g.objs.registers, dataAt}} {
		g.emit(asm.StoreImm(asm.R10, -4, 0, asm.Word))
		g.lookup(of.m, asm.R10, -4)
		g.emit(asm.JEq.Imm(asm.R0, 0, g.done), asm.StoreMem(asm.R10, of.at, asm.R0, asm.DWord))
	}
	g.emit(asm.LoadMem(asm.R1, asm.R10, lockAt, asm.DWord), asm.FnSpinLock.Call())
}

func (g *gen) giveLock() {
	g.emit(asm.LoadMem(asm.R1, asm.R10, lockAt, asm.DWord), asm.FnSpinUnlock.Call())
}

// unlockAt is a label where the lock is given back before going on.
func (g *gen) unlockAt(to string) string {
	l := g.label("unlock")
	g.unlock = append(g.unlock, [2]string{l, to})
	return l
}

// unlocks generates what the labels of unlockAt stand for, out of the way.
func (g *gen) unlocks() {
	if len(g.unlock) == 0 {
		return
	}
	end := g.label("unlocked")
	g.jump(end)
	for _, u := range g.unlock {
		g.mark(u[0])
		g.giveLock()
		g.jump(u[1])
	}
	g.mark(end)
	g.unlock = nil
}

// calls tells whether a statement calls the kernel, which nothing may under the
// lock.
func calls(s v1model.Stmt) bool {
	switch s := s.(type) {
	case v1model.CountPacket, v1model.ExecuteMeter, v1model.Random, v1model.Log, v1model.Assert:
		return true
	case v1model.Hash:
		return s.Calculation.Algorithm == v1model.HashRandom
	}
	return false
}

// index computes the index of a cell in the register of a depth, and goes to a
// label if there is no such cell. An index below zero is, unsigned, beyond every size.
func (g *gen) index(e v1model.Expr, size, d int, none string) {
	p := v1model.SpanOf(e)
	if !p.Fits64() {
		g.lack("index of more than 64 bits")
		return
	}
	g.num(e, d)
	if !p.Signed && p.Bits < 31 && 1<<p.Bits <= size {
		g.emit(asm.And.Imm(g.reg(d), 1<<p.Bits-1)) // no other can be; and no branch
		return
	}
	g.emit(asm.JGE.Imm(g.reg(d), int32(size), none))
}

// cell makes a register point to the cell of a register array whose index it has.
func (g *gen) cell(r *v1model.Register, at, scratch asm.Register) {
	of := g.arrays()[r.Index]
	g.emit(
		asm.Mul.Imm(at, int32(of.stride)),
		asm.LoadMem(scratch, asm.R10, dataAt, asm.DWord),
		asm.Add.Imm(scratch, int32(of.at)),
		asm.Add.Reg(at, scratch))
}

// arrays are where the program's registers lie.
func (g *gen) arrays() []array {
	if g.placed == nil {
		g.placed, _ = registerLayout(g.prog, g.cells)
	}
	return g.placed
}

// readRegister reads a cell; one beyond the array leaves the field alone.
func (g *gen) readRegister(s v1model.ReadRegister) {
	to, ok := g.target(s.Dst)
	if !ok {
		return
	}
	none := g.label("no_cell")
	g.index(s.Index, g.arrays()[s.Register.Index].cells, 1, none)
	g.keepIndex()
	g.cell(s.Register, asm.R1, asm.R0)
	for i := range words(to.Width()) {
		if i < words(s.Register.Width) {
			g.emit(asm.LoadMem(asm.R0, asm.R1, int16(8*i), asm.DWord))
		} else {
			g.set(asm.R0, 0)
		}
		g.write(wordOf(to, i), asm.R0, asm.R2)
	}
	g.noteRegister(trace.Read, s.Register, func(i int) { g.read(asm.R0, wordOf(to, i)) })
	g.mark(none)
}

// writeRegister writes a cell; one beyond the array is lost.
func (g *gen) writeRegister(s v1model.WriteRegister) {
	none, n := g.label("no_cell"), words(s.Register.Width)
	if n > maxSpill {
		g.lack("register of more than %d bits", maxSpill*64)
		return
	}
	for i := range n {
		g.word(s.Value, i, 0)
		g.mask(asm.R0, min(64, s.Register.Width-64*i))
		g.emit(asm.StoreMem(asm.R10, spillAt(i+1), asm.R0, asm.DWord))
	}
	g.index(s.Index, g.arrays()[s.Register.Index].cells, 1, none)
	g.keepIndex()
	g.cell(s.Register, asm.R1, asm.R0)
	for i := range n {
		g.emit(asm.LoadMem(asm.R0, asm.R10, spillAt(i+1), asm.DWord), asm.StoreMem(asm.R1, int16(8*i), asm.R0, asm.DWord))
	}
	g.noteRegister(trace.Write, s.Register, func(i int) { g.emit(asm.LoadMem(asm.R0, asm.R10, spillAt(i+1), asm.DWord)) })
	g.mark(none)
}

// Register implements datapath.Datapath.
func (x *Executor) Register(name string, index int) ([]byte, error) {
	var out []byte
	err := x.registerCell(name, index, func(r *v1model.Register, cell []uint64) error {
		out = cellBytes(r, func(i int) uint64 { return cell[i] })
		return nil
	}, nil)
	return out, err
}

// cellBytes is what a cell has, whose words are given, the lowest first.
func cellBytes(r *v1model.Register, word func(int) uint64) (b []byte) {
	for i := words(r.Width) - 1; i >= 0; i-- {
		b = binary.BigEndian.AppendUint64(b, word(i))
	}
	return b[len(b)-(r.Width+7)/8:]
}

// SetRegister implements datapath.Datapath.
func (x *Executor) SetRegister(name string, index int, b []byte) error {
	return x.registerCell(name, index, nil, func(r *v1model.Register, cell []uint64) error {
		if err := checkWidth(b, r.Width); err != nil {
			return err
		}
		v := new(big.Int).SetBytes(b)
		for i := range cell {
			cell[i] = constWord(v, i)
		}
		return nil
	})
}

// registerCell has the words of a cell read or written. Nobody else is in the
// middle of an action meanwhile: the lock is taken, by a program that is run here.
func (x *Executor) registerCell(name string, index int, read, write func(*v1model.Register, []uint64) error) error {
	for i, r := range x.prog.Registers {
		if r.Name != name {
			continue
		}
		of := x.placed[i]
		if index < 0 || index >= of.cells {
			return fmt.Errorf("register %q: cell %d of %d: %w", name, index, of.cells, datapath.ErrNotFound)
		}
		words := make([]uint64, words(r.Width))
		if write != nil {
			if err := write(r, words); err != nil {
				return fmt.Errorf("register %q: %w", name, err)
			}
		}
		if err := x.exchange(of.at+of.stride*index, words, write != nil); err != nil {
			return fmt.Errorf("register %q: %w", name, err)
		}
		if read != nil {
			return read(r, words)
		}
		return nil
	}
	return fmt.Errorf("register %q: %w", name, datapath.ErrNotFound)
}

// Registers are all registers at one time.
type Registers struct {
	prog   *v1model.Program
	placed []array
	cells  []byte
}

// Registers reads all registers at once, which is much faster than cell by cell. Packets that are under way may have changed a part of what they change.
func (x *Executor) Registers() (r Registers, err error) {
	r.prog, r.placed = x.prog, x.placed
	r.cells, err = x.maps.registers.LookupBytes(uint32(0))
	return r, err
}

// Cell is what Register returns.
func (r *Registers) Cell(name string, index int) ([]byte, error) {
	for i, of := range r.prog.Registers {
		if of.Name == name && index >= 0 && index < r.placed[i].cells {
			at := r.placed[i].at + r.placed[i].stride*index
			return cellBytes(of, func(i int) uint64 { return binary.NativeEndian.Uint64(r.cells[at+8*i:]) }), nil
		}
	}
	return nil, datapath.ErrNotFound
}
