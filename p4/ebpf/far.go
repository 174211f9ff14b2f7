//go:build linux

package ebpf

import (
	"math"

	"github.com/cilium/ebpf/asm"
)

// longJumps lengthens jumps that are too far for the 16 bits that a jump has for its
// distance; the assembler would cut the distance off without an error. Long jumps
// need Linux 6.6. Only programs of more than 32,767 instructions have any.
//
//	if x goto far   ▶   if x goto 1; goto over; 1: goto far (32 bits); over:
func longJumps(code asm.Instructions) asm.Instructions {
	for {
		at, places := map[string]int{}, make([]int, len(code))
		for it := code.Iterate(); it.Next(); {
			places[it.Index] = int(it.Offset)
			if s := it.Ins.Symbol(); s != "" {
				at[s] = int(it.Offset)
			}
		}
		var out asm.Instructions
		more := false // code grows, so other jumps may be too far then
		for i, ins := range code {
			to, known := at[ins.Reference()]
			distance := to - places[i] - 1
			if !known || !isShort(ins) || distance >= math.MinInt16 && distance <= math.MaxInt16 {
				out = append(out, ins)
				continue
			}
			more = true
			long := asm.LongJump(ins.Reference())
			if ins.OpCode.JumpOp() == asm.Ja {
				out = append(out, long.WithMetadata(ins.Metadata))
				continue
			}
			over := asm.Instruction{OpCode: asm.Ja.Label("").OpCode, Offset: 1}
			ins = ins.WithReference("")
			ins.Offset = 1
			out = append(out, ins, over, long)
		}
		if !more {
			return out
		}
		code = out
	}
}

// isShort tells whether an instruction is a jump whose distance has 16 bits.
func isShort(ins asm.Instruction) bool {
	op := ins.OpCode.JumpOp()
	return ins.OpCode.Class().IsJump() && op != asm.Call && op != asm.Exit && ins.OpCode != asm.LongJump("").OpCode
}
