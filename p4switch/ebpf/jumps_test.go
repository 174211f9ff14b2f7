//go:build linux

package ebpf

import (
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestReal_FarJump: the verifier puts several instructions in the place of a call that looks something up, so that jumps
// over many of them become longer than they were.
func TestReal_FarJump(t *testing.T) {
	compare.Namespace(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	code := asm.Instructions{
		asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.FnGetPrandomU32.Call(),
		asm.JEq.Imm(asm.R0, 7, "end"),
	}
	const lookups = 5000 // 25,000 instructions, and twice as many for the verifier
	for range lookups {
		code = append(code, asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call())
	}
	code = append(code, asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: longJumps(code)})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
}
