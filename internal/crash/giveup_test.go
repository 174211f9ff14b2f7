package crash

import (
	"testing"
	"time"
)

// hurried is a program in which a main calls A, which calls B and gives these calls up.
func hurried() *Program {
	p := &Program{Services: []Service{{}, {Stateful: true}}, Apart: true}
	next := numbered()
	var ops []Op
	for range 3 {
		ops = append(ops, next(Op{Kind: Hurry, Service: 1, Within: 200 * time.Microsecond, Body: body(
			next(Op{Kind: Wait, Within: time.Millisecond}), next(Op{Kind: Add}), next(Op{Kind: Add}),
		)}), next(Op{Kind: Effect}))
	}
	p.Clients = []Client{{Main: true, Script: Script{Result: -1, Ops: []Op{next(Op{Kind: Call, Service: 0, Slot: -1, Body: body(ops...)})}}}}
	return p
}

// TestGivenUp: calls are given up, and their callee fails at each packet, while ledgers take some time.
func TestGivenUp(t *testing.T) {
	scene{program: hurried(), network: faint, seed: 1, single: true, may: kills("B"), step: 5}.play(t)
}

// forsaken is a program in which a client gives a call up, goes on to another service in the same session, and comes back. The call
// runs on meanwhile, and no ledger says that it has begun.
func forsaken() *Program {
	p := &Program{Services: []Service{{Stateful: true}, {Beside: true}, {Stateful: true, Deltas: true}}, Apart: true}
	next := numbered()
	var ops []Op
	for range 3 {
		ops = append(ops,
			next(Op{Kind: Hurry, Service: 0, Within: time.Millisecond, Body: body(
				next(Op{Kind: Wait, Within: 100 * time.Millisecond}), next(Op{Kind: Add}), next(Op{Kind: Post, Service: 2, Body: body(next(Op{Kind: Add}))}),
			)}),
			next(Op{Kind: Call, Service: 1, Slot: -1, Body: body(next(Op{Kind: Effect}))}),
			next(Op{Kind: Wait, Within: 200 * time.Millisecond}),
			next(Op{Kind: Call, Service: 0, Slot: -1, Body: body(next(Op{Kind: Add}))}),
		)
	}
	p.Clients = []Client{{Script: Script{Result: -1, Ops: ops}}}
	return p
}

// TestForsaken: such a call has run as a whole or not at all, though a service fails at some packet.
func TestForsaken(t *testing.T) {
	scene{program: forsaken(), may: kills("A", "C"), step: 5}.play(t)
}
