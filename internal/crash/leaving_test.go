package crash

import (
	"testing"
	"time"
)

// parallel is a program in which a client calls A, and A calls B several times at once. B has two nodes. A knows for a while who they are, and
// one that closes waits until A has come to its end.
func parallel() *Program {
	p := &Program{Services: []Service{{}, {Nodes: 2}}, Apart: true}
	next := numbered()
	fork := func(branches int) Op {
		var all []Script
		for range branches {
			all = append(all, body(next(Op{Kind: Call, Service: 1, Slot: -1, Body: body(next(Op{Kind: Effect}), next(Op{Kind: Wait, Within: time.Millisecond}))}))...)
		}
		return next(Op{Kind: Fork, Body: all})
	}
	p.Clients = []Client{{Script: Script{Result: -1, Ops: []Op{next(Op{Kind: Call, Service: 0, Slot: -1, Body: body(
		next(Op{Kind: Effect}), fork(2), next(Op{Kind: Wait, Within: 200 * time.Millisecond}), fork(4), next(Op{Kind: Wait, Within: 20 * time.Millisecond}),
	)})}}}}
	return p
}

// TestClosing: a node that closes refuses calls, which have left so late since their caller was stopped. The caller fails at each packet.
func TestClosing(t *testing.T) {
	for i, at := range []int{92, 104, 110} {
		scene{program: parallel(), first: Crashes{
			{At: at, After: true, Victim: "A", How: Stop, Back: 2 * time.Second}, {At: at, After: true, Victim: "s2", How: Drain, Back: 6 * time.Second},
		}, may: kills("A"), skip: i, step: 11}.play(t)
	}
}

// office is a program in which some clients call A, which has no state. A calls B, and sends B a one-way.
func office(clients int) *Program {
	p := &Program{Services: []Service{{}, {Stateful: true}}, Apart: true}
	next := numbered()
	one := func() Op {
		return next(Op{Kind: Risk, Service: 0, Slot: -1, Body: body(
			next(Op{Kind: Alloc, Size: 64}), next(Op{Kind: Write, Size: 64}), next(Op{Kind: Effect}),
			next(Op{Kind: Call, Service: 1, Slot: -1, Body: body(next(Op{Kind: Add}), next(Op{Kind: Wait, Within: time.Millisecond}), next(Op{Kind: Add}))}),
			next(Op{Kind: Post, Service: 1, Body: body(next(Op{Kind: Add}))}),
			next(Op{Kind: Free}),
		)})
	}
	for i := range clients {
		p.Clients = append(p.Clients, Client{Main: i%2 == 1, Script: Script{Result: -1, Ops: []Op{one(), one()}}})
	}
	return p
}

// TestTakenBack: the deployment of a service is taken back while it is called, and its program fails at each packet after that.
func TestTakenBack(t *testing.T) {
	scene{program: office(2), step: 53, may: func(at int, after bool) (all []Crashes) {
		for _, how := range []How{Kill, Cut} {
			for _, later := range []int{0, 1, 3, 8, 20, 50} {
				one := Crash{At: at + later, After: after, Victim: "A", How: how}
				if how == Cut {
					one.Back = 5 * time.Second
				}
				all = append(all, Crashes{{At: at, After: after, Victim: "A", How: Undeploy}, one})
			}
		}
		return all
	}}.play(t)
}
