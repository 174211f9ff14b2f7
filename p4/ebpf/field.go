//go:build linux

package ebpf

import (
	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/cilium/ebpf/asm"
)

// bits is a run of at most 64 bits of a field.
type bits struct {
	ref   v1model.FieldRef
	low   int // distance from the field's lowest bit
	width int
}

// wordOf is the i-th word of a field, the lowest being 0.
func wordOf(ref v1model.FieldRef, i int) bits {
	return bits{ref, 64 * i, max(min(64, ref.Width()-64*i), 0)}
}

var sizes = map[int]asm.Size{1: asm.Byte, 2: asm.Half, 4: asm.Word, 8: asm.DWord}

// window is the load that covers bits of a header: where, how many bytes (a
// power of two), and how far the bits are from the low end. ok is false if they
// spread over nine bytes.
func (g *gen) window(b bits) (at, n, shift int, ok bool) {
	f := b.ref.Def()
	first := f.Offset + f.Width - b.low - b.width // in bits from the header's start
	at = g.st.headers[b.ref.Header.Index].base + first/8
	n = (first+b.width+7)/8 - first/8
	ok = n <= 8
	for n&(n-1) != 0 {
		n++
	}
	return at, n, n*8 - first%8 - b.width, ok
}

// valid is where a header's validity lies.
func (g *gen) validAt(h *v1model.Header) int { return g.st.valid + h.Index }

// read loads bits of a field.
func (g *gen) read(r asm.Register, b bits) {
	if b.width == 0 {
		g.set(r, 0)
		return
	}
	h := b.ref.Header
	if b.ref.Field == v1model.ValidField {
		if h.Metadata {
			g.set(r, 1)
			return
		}
		g.emit(asm.LoadMem(r, rState, int16(g.validAt(h)), asm.Byte))
		return
	}
	if h.Metadata {
		g.load(r, g.st.headers[h.Index].fields[b.ref.Field]+b.low/8)
		return
	}
	at, n, shift, ok := g.window(b)
	if !ok {
		g.lack("field %v of more than 64 bits that does not begin at a byte", b.ref)
		return
	}
	g.emit(asm.LoadMem(r, rState, int16(at), sizes[n]))
	if n > 1 {
		g.emit(asm.HostTo(asm.BE, r, sizes[n]))
	}
	if shift > 0 {
		g.emit(asm.RSh.Imm(r, int32(shift)))
	}
	if b.width < n*8-shift {
		g.mask(r, b.width)
	}
}

// write stores a register's low bits to a field, using another register. The
// first register is changed.
func (g *gen) write(b bits, r, scratch asm.Register) {
	h := b.ref.Header
	switch {
	case b.ref.Field == v1model.ValidField:
		g.lack("assignment of a header's validity")
		return
	case h.Metadata:
		g.mask(r, b.width)
		g.store(g.st.headers[h.Index].fields[b.ref.Field]+b.low/8, r)
		return
	}
	at, n, shift, ok := g.window(b)
	if !ok {
		g.lack("field %v of more than 64 bits that does not begin at a byte", b.ref)
		return
	}
	g.touch(h)
	if b.width < n*8 {
		g.mask(r, b.width)
		if shift > 0 {
			g.emit(asm.LSh.Imm(r, int32(shift)))
		}
		g.emit(asm.LoadMem(scratch, rState, int16(at), sizes[n]))
		if n > 1 {
			g.emit(asm.HostTo(asm.BE, scratch, sizes[n]))
		}
		// Clear the bits by shifting would lose others; so mask them out.
		keep := ^(mask64(b.width) << shift)
		g.andConst(scratch, keep, r)
		g.emit(asm.Or.Reg(r, scratch))
	}
	if n > 1 {
		g.emit(asm.HostTo(asm.BE, r, sizes[n]))
	}
	g.emit(asm.StoreMem(rState, int16(at), r, sizes[n]))
}

// andConst masks a register with a constant that may need 64 bits; other is a
// register whose value survives.
func (g *gen) andConst(r asm.Register, k uint64, other asm.Register) {
	if int64(k) == int64(int32(k)) {
		g.emit(asm.And.Imm(r, int32(k)))
		return
	}
	t := asm.R4
	for t == r || t == other {
		t++
	}
	g.emit(asm.LoadImm(t, int64(k), asm.DWord), asm.And.Reg(r, t))
}

// touch notes that a header has changed, so that it is written back.
func (g *gen) touch(h *v1model.Header) {
	if g.emits[h] {
		g.storeImm(g.st.dirty+h.Index, 1, asm.Byte)
	}
}

func mask64(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// mask keeps a register's low n bits.
func (g *gen) mask(r asm.Register, n int) {
	switch {
	case n >= 64:
	case n == 32:
		g.emit(asm.Mov.Reg32(r, r))
	case n < 32:
		if n == 31 {
			g.emit(asm.And.Imm(r, int32(0x7fffffff)))
			return
		}
		g.emit(asm.And.Imm(r, int32(1)<<n-1))
	default:
		g.emit(asm.LSh.Imm(r, int32(64-n)), asm.RSh.Imm(r, int32(64-n)))
	}
}

// copyState moves n bytes within the state, rounded up to words.
func (g *gen) copyState(to, from, n int) {
	for i := 0; i < n; i += 8 {
		g.load(asm.R0, from+i)
		g.store(to+i, asm.R0)
	}
}
