//go:build linux

package ebpf

import (
	"encoding/binary"
	"iter"
	"math/big"
	"slices"

	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/cilium/ebpf/asm"
)

// A log message, or that an assertion has failed, goes to this process in the ring
// of digests: an index behind theirs in a word of 32 bits, and from byte 8 on the
// arguments' words, each argument's low word first. Those for which the ring has no
// room are lost.
type message struct {
	log    v1model.Log
	failed string // the assertion that has failed, or ""
}

// statements are all of a program's.
func statements(p *v1model.Program) iter.Seq[v1model.Stmt] {
	return func(yield func(v1model.Stmt) bool) {
		var bodies [][]v1model.Stmt
		for _, a := range p.Actions {
			bodies = append(bodies, a.Body)
		}
		for _, s := range p.Parser.States {
			bodies = append(bodies, s.Body)
		}
		for s := range slices.Values(slices.Concat(append(bodies, p.Deparser.Body)...)) {
			if !yield(s) {
				return
			}
		}
	}
}

// argWords is how many words an argument of a message has.
func argWords(e v1model.Expr) int {
	if s := spanOf(e); s.bits <= 64*maxSpill {
		return words(s.bits)
	}
	return 1
}

// messageBytes is the size of a program's longest message.
func messageBytes(p *v1model.Program) (n int) {
	for s := range statements(p) {
		switch s := s.(type) {
		case v1model.Log:
			size := 8
			for _, a := range s.Args {
				size += 8 * argWords(a)
			}
			n = max(n, size)
		case v1model.Assert:
			n = max(n, 8)
		}
	}
	return n
}

// say sends a message of which the arguments are in place.
func (g *gen) say(m message, size int) {
	g.storeImm(g.st.digest, int32(len(g.prog.Digests)+len(g.messages)), asm.DWord)
	g.messages = append(g.messages, m)
	full := g.label("ring_full")
	g.emit(
		asm.LoadMapPtr(asm.R1, g.objs.digests.FD()),
		asm.Mov.Reg(asm.R2, rState), asm.Add.Imm(asm.R2, int32(g.st.digest)),
		asm.Mov.Imm(asm.R3, int32(size)),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.JSLT.Imm(asm.R0, 0, full))
	g.digestSent()
	g.mark(full)
}

func (g *gen) logMessage(s v1model.Log) {
	at := g.st.digest + 8
	for _, a := range s.Args {
		if sp := spanOf(a); sp.bits > 64 && (sp.signed || sp.bits > 64*maxSpill) {
			g.lack("log message with a number that has no bounds")
			return
		}
		for i := range argWords(a) {
			g.word(a, i, 0)
			g.store(at, asm.R0)
			at += 8
		}
	}
	g.say(message{log: s}, at-g.st.digest)
}

// assert drops a packet for which an assertion fails; bmv2 ends.
func (g *gen) assert(s v1model.Assert) {
	holds, fails := g.label("holds"), g.label("fails")
	g.cond(s.Cond, holds, fails)
	g.mark(fails)
	g.say(message{failed: s.Text}, 8)
	g.jump(g.done)
	g.mark(holds)
}

// tell logs a message that has come from the kernel, and tells whether it is one.
func (x *Executor) tell(b []byte) bool {
	if len(b) < 8 {
		return false
	}
	i := int(binary.NativeEndian.Uint32(b)) - len(x.prog.Digests)
	if i < 0 || i >= len(x.messages) {
		return false
	}
	m := x.messages[i]
	if m.failed != "" {
		x.log.Error("assertion failed, packet dropped", "assertion", m.failed)
		return true
	}
	b = b[8:]
	var values []*big.Int
	for _, a := range m.log.Args {
		n, v := argWords(a), new(big.Int)
		if len(b) < 8*n {
			return false
		}
		for w := n - 1; w >= 0; w-- {
			v.Lsh(v, 64).Or(v, new(big.Int).SetUint64(binary.NativeEndian.Uint64(b[8*w:])))
		}
		if spanOf(a).signed {
			v.SetInt64(int64(v.Uint64()))
		}
		values, b = append(values, v), b[8*n:]
	}
	x.log.Info(m.log.Text(values))
	return true
}
