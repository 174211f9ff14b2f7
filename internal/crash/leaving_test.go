package crash

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
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

// refusing is a program in which a client calls A, and A calls both nodes of B, twice. A knows who they are from the first time.
func refusing() *Program {
	p := &Program{Services: []Service{{}, {Nodes: 2}}, Apart: true}
	next := numbered()
	one := func() []Script {
		return body(next(Op{Kind: Call, Service: 1, Slot: -1, Body: body(next(Op{Kind: Effect}))}))
	}
	both := func() Op { return next(Op{Kind: Fork, Body: append(one(), one()...)}) }
	p.Clients = []Client{{Script: Script{Result: -1, Ops: []Op{next(Op{Kind: Wait, Within: 300 * time.Millisecond}), next(Op{Kind: Call, Service: 0, Slot: -1, Body: body(
		both(), next(Op{Kind: Wait, Within: 1900 * time.Millisecond}), both(), next(Op{Kind: Wait, Within: 5 * time.Second}),
	)})}}}}
	return p
}

// TestRefusedCopies: a blade is drained, and the second call to its node of B is held up until the node closes. So the node refuses it, and it runs at
// another one. Then the blade fails, or the node is killed since it takes too long. A copy of one of the two calls to that node arrives after each packet,
// also when its next incarnation is there, and changes nothing.
func TestRefusedCopies(t *testing.T) {
	p, closing := refusing(), 2 // its number among the nodes
	step, ran := 6, 0
	switch {
	case *flagEvery:
		step = 1
	case testing.Short():
		step = 60
	}
	play := func(t *testing.T, late *Late, cut bool) *Report {
		t.Helper()
		ran++
		refused := &Moment{Is: refusalOf(closing)}
		if cut {
			refused.Crash = Crash{Victim: "s2", How: Cut, Back: 100 * time.Millisecond, After: true}
		}
		return runProgram(t, p, Options{Seed: *flagFrom + uint64(ran), Late: late, When: []*Moment{ //nolint:gosec // not negative
			{Crash: Crash{Victim: "s2", How: Drain, Back: 5500 * time.Millisecond}, Is: replyOf(closing)},
			{Crash: Crash{Victim: "s1", How: Pause, Back: 1700 * time.Millisecond}, Is: nth(1, callTo(closing))},
			refused,
		}})
	}
	packets := play(t, nil, true).Packets
	for at := 80; at < packets; at += step {
		for n := range 2 {
			for _, cut := range []bool{false, true} {
				t.Run(fmt.Sprintf("call %d, packet %d, cut %t", n, at, cut), func(t *testing.T) {
					late := &Late{At: at, Is: nth(n, callAt(closing))}
					if play(t, late, cut); late.Is != nil {
						t.Error("the first copy never came")
					}
				})
			}
		}
	}
	t.Logf("%d packets, %d cases", packets, ran)
}

// posting is a program in which a client calls A twice, and A sends one-ways to B each time, which has two nodes. A knows who they are
// from the first time. Before, the client has made some other calls: so the ids are others, too.
func posting(others int) *Program {
	p := &Program{Services: []Service{{}, {Nodes: 2}}, Apart: true}
	next := numbered()
	post := func(times int) Op {
		var ops []Op
		for range times {
			ops = append(ops, next(Op{Kind: Post, Service: 1, Body: body(next(Op{Kind: Effect}))}))
		}
		return next(Op{Kind: Call, Service: 0, Slot: -1, Body: body(ops...)})
	}
	wait := func(d time.Duration) Op { return next(Op{Kind: Wait, Within: d}) }
	var ops []Op
	for range others {
		ops = append(ops, next(Op{Kind: Call, Service: 0, Slot: -1, Body: body(next(Op{Kind: Effect}))}))
	}
	ops = append(ops, post(2), wait(1900*time.Millisecond), post(4), wait(5*time.Second))
	p.Clients = []Client{{Script: Script{Result: -1, Ops: ops}}}
	return p
}

// TestMovedOneway: a one-way of A is for a node of B that leaves before it has come. No ledger can be heard for a while then. The one-way
// leaves for another node when A's ledger has that, and not before: another incarnation of A would send it to a third one.
// Dice decide which node A begins with, and the one-way's id where it goes. One-ways to one node go one after the other. So the scene is
// played until the first one of the second call moves to a node to which no other one is on its way.
func TestMovedOneway(t *testing.T) {
	const most = 64
	for others := range most {
		if movedOneway(t, others) || t.Failed() {
			return
		}
	}
	t.Errorf("in %d plays no one-way moves to a node that has none to come", most)
}

// movedOneway plays the scene, and reports whether the first one-way of the second call moves, and not to the other of the first nodes.
func movedOneway(t *testing.T, others int) (first bool) {
	t.Helper()
	const left, deaf, second = 100 * time.Millisecond, 1500 * time.Millisecond, time.Second
	began := time.Time{}
	var gone time.Time // when the node was
	early, then := 0, 0
	leaves := &Moment{Is: func(f wire.Frame) bool {
		u, err := frame.ParseUDP6(f.Data)
		if m, bad := control.Parse(u.Payload); err == nil && bad == nil && f.Host == "s2" && f.ToSwitch && m.Kind == control.KindLeave && gone.IsZero() {
			gone = time.Now()
		}
		return false
	}}
	away := func(blade string) *Moment {
		return &Moment{Crash: Crash{Victim: blade, How: Pause, Back: deaf}, Is: func(wire.Frame) bool { return !gone.IsZero() && time.Since(gone) > left }}
	}
	toFirst := func(f wire.Frame) bool {
		u, _ := frame.ParseUDP6(f.Data)
		return oneway(f) && u.Dst.Addr() == nodeOf(2)
	}
	sent := map[rpcpacket.ID]netip.Addr{}
	var mover rpcpacket.ID // the first one-way of the second call, if it is for the node that leaves
	later := false         // one of the second call has left
	moves := &Moment{Is: func(f wire.Frame) bool {
		u, _ := frame.ParseUDP6(f.Data)
		if !oneway(f) {
			return false
		}
		m, _ := message(f)
		if began.IsZero() {
			began = time.Now()
		}
		if !later && time.Since(began) > second {
			if later = true; u.Dst.Addr() == nodeOf(2) {
				mover = m.Call
			}
		}
		if to, again := sent[m.Call]; again && to != u.Dst.Addr() {
			first = first || m.Call == mover && u.Dst.Addr() != nodeOf(1)
			if time.Since(gone) < left+deaf {
				early++
			} else {
				then++
			}
		}
		sent[m.Call] = u.Dst.Addr()
		return false
	}}
	runProgram(t, posting(others), Options{Setting: Setting{Pairs: true}, When: []*Moment{
		{Crash: Crash{Victim: "s2", How: Drain, Back: 5500 * time.Millisecond}, Is: replyOf(2)},
		moves, {Crash: Crash{Victim: "s1", How: Pause, Back: 1700 * time.Millisecond}, Is: nth(1, toFirst)},
		leaves, away(memoryBlades[0]), away(memoryBlades[1]),
	}})
	if t.Logf("%d one-ways move before the ledger can be heard, %d then", early, then); gone.IsZero() || early > 0 || then == 0 {
		t.Errorf("the node has left at %s", gone)
	}
	return first
}

// callAt tells a direct call to a service's node as it comes to the node's blade.
func callAt(node int) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		m, ok := message(f)
		u, _ := frame.ParseUDP6(f.Data)
		return ok && !f.ToSwitch && m.Type == rpcpacket.Call && u.Dst.Addr() == nodeOf(node) && u.Dst.Port() == rackaddr.PortDirect
	}
}

// refusalOf tells that a service's node refuses a call, as the word of it leaves.
func refusalOf(node int) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		m, ok := message(f)
		u, _ := frame.ParseUDP6(f.Data)
		return ok && f.ToSwitch && m.Refuses() && u.Src.Addr() == nodeOf(node)
	}
}

// nth tells the n-th packet, from 0, of those that another function tells.
func nth(n int, is func(wire.Frame) bool) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		if is(f) {
			n--
			return n == -1
		}
		return false
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
