package gatekeeper

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// stride is from which message to which the crashes go: the race detector sees each sixth,
// since all are tried without it.
func stride() int {
	if testing.Short() {
		return 6
	}
	return 1
}

// TestCrash_AtEveryStep crashes the Gatekeeper before each message that it sends
// to the switch in the life of a region (allocated, lent, a result handed over,
// freed), with the log going at the same time or some messages earlier. Senders
// send again, as they do. At every rest the switch permits what the table says,
// and each call has run once.
func TestCrash_AtEveryStep(t *testing.T) {
	for before := range 4 {
		for after := before; ; after += stride() {
			blown := false
			t.Run(fmt.Sprintf("after=%d,log=%d", after, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRack(t)
					r.settle = synctest.Wait
					r.disk = new(wal.Disk)
					r.fuse = &fuse{ClientConnInterface: r.conn, r: r}
					r.start(Config{})
					l := &life{small: newSmall(r), ran: map[rpcpacket.ID]int{}}
					r.fuse.arm(after, before)
					l.live()
					blown = r.fuse.used
				})
			})
			if t.Failed() || !blown {
				break
			}
		}
	}
}

// life is the life of a region.
type life struct {
	*small
	ran map[rpcpacket.ID]int // how often the callee has run a call
}

// until repeats an action, with a new Gatekeeper if it has crashed, until the
// action has had its effect.
func (l *life) until(what string, try func() bool) {
	l.t.Helper()
	for range 5 {
		if try() {
			return
		}
		if l.died() {
			l.restart()
		}
	}
	l.t.Fatalf("%s: no effect", what)
}

// expect checks the switch when no Gatekeeper is about to crash.
func (l *life) expect(when string, p dsmpacket.Pointer, a, b string) {
	l.t.Helper()
	if l.died() {
		l.restart() // what it had done is done
	}
	if ga, gb, gc := l.a.may(l.m1, p), l.b.may(l.m1, p), l.c.may(l.m1, p); ga != a || gb != b || gc != "nothing" {
		l.t.Errorf("%s: a may %s, b %s, c %s; want %s, %s, nothing", when, ga, gb, gc, a, b)
	}
}

// allocate allocates a region; the memory server answers again when asked again.
func (l *life) allocate(n *testNode, k uint64) dsmpacket.Pointer {
	p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(uint32(k), 1))
	l.until("allocation", func() bool {
		l.m1.allocated(n, p)
		got := n.memoryAnswers()
		return len(got) > 0 && got[0].Status == fault.OK
	})
	return p
}

func (l *life) live() {
	p := l.allocate(l.a, 1)
	l.expect("allocated", p, "read+write", "nothing")
	q := l.allocate(l.b, 2)

	m := l.a.message("Arrays", "add", p)
	var call rpcpacket.Message
	l.until("call", func() bool {
		l.a.call("Arrays", m)
		return l.receive(&call)
	})
	l.expect("lent", p, "read", "read")

	l.until("reply", func() bool {
		l.receive(&call) // a copy causes no second run
		l.b.reply(l.a.address, &call, q)
		if l.died() {
			l.restart()
		}
		l.a.call("Arrays", m) // the caller asks again
		for _, got := range l.a.messages() {
			if got.Type == rpcpacket.Reply && got.Call == m.Call {
				return true
			}
		}
		return false
	})
	l.expect("returned", p, "read+write", "nothing")
	l.expect("result", q, "read+write", "nothing")
	l.receive(&call)
	if l.ran[m.Call] != 1 {
		l.t.Errorf("the call has run %d times", l.ran[m.Call])
	}
	for _, r := range []dsmpacket.Pointer{p, q} {
		l.free(r)
		l.expect("freed", r, "nothing", "nothing")
	}
	l.leftOver()
}

// receive takes what has arrived at the callee, which knows calls by their ids.
func (l *life) receive(call *rpcpacket.Message) bool {
	for _, got := range l.b.messages() {
		if got.Type != rpcpacket.Call {
			continue
		}
		if l.ran[got.Call] == 0 {
			l.ran[got.Call]++
			*call = got
		}
	}
	return !call.Call.IsZero()
}

// free frees a region: the client sends the same request until it is answered.
func (l *life) free(p dsmpacket.Pointer) {
	l.a.request++
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: l.a.request, Floor: 1, Incarnation: l.a.incarnation}
	served := false
	l.until("free", func() bool {
		l.a.send(l.a.address, p.With(dsmpacket.OpFree).Addr(), rackaddr.PortDSM, h.Append(nil))
		if len(l.m1.serve()) > 0 {
			served = true
		}
		for _, got := range l.a.memoryAnswers() {
			if got.Request == h.Request && (got.Status == fault.OK || got.Kind == dsmpacket.Nack && served) {
				return true // denied after it was served: settling tells that it was applied
			}
		}
		return false
	})
}

// leftOver checks that nothing is left: no region, no rule, and on the log only
// what the session's floor has not passed.
func (l *life) leftOver() {
	l.fuse.disarm()
	l.restart() // also if the log alone has crashed
	s := l.snapshot()
	found, err := l.gk.client.Read(l.t.Context(), "dsm_access")
	if err != nil || len(s.Regions)+len(found)+len(s.Calls) != 0 {
		l.t.Errorf("left: regions %v, calls %v, rules %v, %v", s.Regions, s.Calls, found, err)
	}
	records := map[wal.Kind]int{}
	for r, err := range l.gk.cfg.Store.Records() {
		if err != nil {
			l.t.Fatal(err)
		}
		records[r.Kind]++
	}
	if records[wal.KindRegion] != 0 || records[wal.KindLoan] != 1 || records[wal.KindNode] != 3 {
		l.t.Errorf("the log has %v", records)
	}
}

// TestCrash_WhileANodeGoes crashes the Gatekeeper before each message in the end
// of a node that serves a call, has one out, and controls regions. Whenever that
// is, the next Gatekeeper sees it through.
func TestCrash_WhileANodeGoes(t *testing.T) {
	crashedAnywhere(t, (*life).lose)
}

// crashedAnywhere plays a part of a life for each message in it, with the Gatekeeper
// crashed before that one; from arm on it may crash.
// Rules are told on the stream, and asked for.
func crashedAnywhere(t *testing.T, play func(l *life, arm func())) {
	for n := range 6 {
		asks, before := n%2 == 0, n/2
		for after := before; ; after += stride() {
			used := false
			t.Run(fmt.Sprintf("asks=%t,after=%d,log=%d", asks, after, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := &rack{asks: asks}
					r.fill(t)
					r.settle = synctest.Wait
					r.disk = new(wal.Disk)
					r.fuse = &fuse{ClientConnInterface: r.conn, r: r}
					r.start(Config{})
					l := &life{small: newSmall(r), ran: map[rpcpacket.ID]int{}}
					play(l, func() { r.fuse.arm(after, before) })
					used = r.fuse.used
				})
			})
			if t.Failed() || !used {
				break
			}
		}
	}
}

// lose lets node b go. a has called it with p, and it has called c with q.
func (l *life) lose(arm func()) {
	if err := l.c.export("Third", "do"); err != nil {
		l.t.Fatal(err)
	}
	p, q, idle := l.m1.alloc(l.a, 1, 1), l.m1.alloc(l.b, 1, 2), l.m1.alloc(l.b, 1, 3)
	m := l.a.message("Arrays", "add", p)
	l.a.call("Arrays", m)
	l.b.message1()
	nested := l.b.message("Third", "do", q)
	l.b.call("Third", nested)
	call := l.c.message1()
	l.m1.take()
	arm()
	l.until("leave", func() bool {
		if l.died() {
			return false
		}
		// The daemon asks until it is answered, that the node is gone included.
		return l.b.ask(control.KindLeave, control.Leave{Node: l.b.address, Incarnation: l.b.incarnation}, nil) == nil
	})
	l.fuse.disarm()
	l.restart()
	l.m1.converse()
	// The caller asks again and learns that the callee is gone.
	l.a.call("Arrays", m)
	got := l.a.messages()
	if len(got) == 0 || got[0].Type != rpcpacket.Exception || got[0].Code != fault.Unavailable {
		l.t.Errorf("the caller got %+v", got)
	}
	if a, c, rest := l.a.may(l.m1, p), l.c.may(l.m1, q), l.c.may(l.m1, idle); a != "read+write" || c != "read" || rest != "nothing" {
		l.t.Errorf("a may %s with its region; c may %s with what it was lent, %s with what it was not", a, c, rest)
	}
	l.c.take()
	l.c.reply(l.b.address, &call)
	l.m1.converse()
	if may := l.c.may(l.m1, q); may != "nothing" {
		l.t.Errorf("after the nested call c may %s", may)
	}
	l.m1.reclaimed = slices.Compact(l.m1.reclaimed) // two Gatekeepers may have asked
	l.m1.expectReclaimed("the regions of the node that is gone", idle.ID(), q.ID())
	if s := l.snapshot(); len(s.Nodes) != 2 || len(s.Regions) != 1 {
		l.t.Errorf("nodes %+v, regions %+v", s.Nodes, s.Regions)
	}
}

// TestCrash_AtTheEnd crashes the Gatekeeper before each message in the end of a
// direct execution that has allocated two regions, of which the second one's answer was lost: whenever that is, the regions go when
// the node has said so, and memory is told to free them.
func TestCrash_AtTheEnd(t *testing.T) {
	crashedAnywhere(t, (*life).end)
}

// end lets an execution of node b end.
func (l *life) end(arm func()) {
	e := rpcpacket.ID{7}
	l.m1.allocatedFor(l.b, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1)), e)
	arm()
	l.m1.allocatedFor(l.b, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(2, 1)), e)
	l.until("word", func() bool {
		if l.died() {
			return false
		}
		first, second := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1)).Addr(), dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(2, 1)).Addr()
		err := l.b.ask(control.KindCalls, control.NodeCalls{
			Node: l.b.address, Incarnation: l.b.incarnation, Frees: []netip.Addr{first, second},
		}, nil)
		return err == nil && !l.died()
	})
	l.fuse.disarm()
	l.restart()
	l.m1.converse()
	if s := l.snapshot(); len(s.Regions) != 0 {
		l.t.Errorf("left: %+v", s.Regions)
	}
	if !slices.ContainsFunc(l.m1.reclaimed, func(r control.RegionID) bool { return r.ID == dsmpacket.IDOf(1, 1) }) {
		l.t.Errorf("the memory blade has freed %+v", l.m1.reclaimed)
	}
}

// TestCrash_AfterTheCaller crashes the Gatekeeper before each message in the end of a
// call whose caller has died: what that had lent goes with the lease, whenever that is.
func TestCrash_AfterTheCaller(t *testing.T) {
	crashedAnywhere(t, (*life).outlive)
}

// outlive lets node b finish a call of node a, which is gone.
func (l *life) outlive(arm func()) {
	l.m1.alloc(l.a, 1, 1)
	p := l.m1.alloc(l.a, 1, 2)
	own := l.m1.alloc(l.b, 1, 3)
	m := l.a.exact("Arrays", "add", p)
	l.a.lend(l.b, m)
	if got := l.b.directly(); len(got) != 1 {
		l.t.Fatalf("the callee got %+v", got)
	}
	l.a.leave()
	arm()
	l.until("reply", func() bool {
		l.b.exactReply(l.a, m)
		return !l.died() && !l.gk.ctl.leases.Lends(m.Call)
	})
	l.fuse.disarm()
	l.restart()
	l.m1.converse()
	if s := l.snapshot(); len(s.Regions) != 1 || l.b.may(l.m1, own) != "read+write" {
		l.t.Errorf("left: %+v", s.Regions)
	}
}

// TestCrash_WhileFreeing crashes the Gatekeeper before each message in the way of a
// free that nobody sends again: the next one knows who has asked for it, or that it has
// not begun.
func TestCrash_WhileFreeing(t *testing.T) {
	crashedAnywhere(t, (*life).freeOnce)
}

// freeOnce lets node a begin to free a region.
func (l *life) freeOnce(arm func()) {
	p := l.m1.alloc(l.a, 1, 1)
	arm()
	l.a.memory(dsmpacket.OpFree, p)
	if !l.died() {
		l.b.lend(&testNode{address: rackaddr.Node(99)}, l.b.message("Nobody", "asks", p)) // something to crash at
	}
	l.fuse.disarm()
	l.restart()
	if r, ok := l.gk.ctl.leases.Find(p); !ok || r.Freeing != (l.gk.ctl.frees[p] != freeing{}) {
		l.t.Errorf("the region is %+v, asked for by %+v", r, l.gk.ctl.frees[p])
	}
}

// allocatedFor sends the answer to an allocation of an execution.
func (b *testBlade) allocatedFor(n *testNode, p dsmpacket.Pointer, e rpcpacket.ID) {
	h := dsmpacket.Header{
		Kind: dsmpacket.Reply, Status: fault.OK, Request: 1<<20 + uint64(p.ID().Slot()), Length: 4096, Incarnation: n.incarnation, Execution: e,
	}
	b.send(p.With(dsmpacket.OpAlloc).Addr(), n.address, rackaddr.PortDSM, h.Append(nil))
	n.memoryAnswers()
}
