package simrack_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What becomes of a packet that a node has sent.
const (
	dropped    = "dropped"
	passes     = "passes"
	denied     = "denied"
	lent       = "lent"
	gone       = "gone"
	neverBegun = "never begun"
)

// judging is a rack whose nodes are the test's own: it sends their packets, and sees what the switch does with each.
type judging struct {
	*simrack.Rack
	t   *testing.T
	ctx context.Context

	mu   sync.Mutex
	seen []wire.Frame // what has gone from the switch to hosts, of calls and memory
}

// withJudge runs a test on a rack with a node each on c1, s1 and s2.
func withJudge(t *testing.T, f func(j *judging, owner, stranger, callee *bare)) {
	t.Helper()
	j := new(judging)
	cfg, _ := watched("c1", "s1", "s2")
	cfg.OnFrame = j.onFrame
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		j.Rack, j.t, j.ctx = r, t, ctx
		f(j, j.join("c1", "owner"), j.join("s1", "stranger"), j.join("s2", "callee"))
	})
}

func (j *judging) onFrame(f wire.Frame) {
	u, err := frame.ParseUDP6(f.Data)
	if err != nil || f.ToSwitch || f.Stage != wire.Arrived || !rackaddr.OfCalls(u.Dst.Port()) && u.Dst.Port() != rackaddr.PortDSM {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	f.Data = slices.Clone(f.Data)
	j.seen = append(j.seen, f)
}

// expect fails the test unless the switch does this with what is sent.
func (j *judging) expect(what, want string, send func()) {
	j.t.Helper()
	j.mu.Lock()
	j.seen = nil
	j.mu.Unlock()
	send()
	<-time.After(time.Millisecond) // virtual: it has arrived, and so has what answers it
	j.mu.Lock()
	defer j.mu.Unlock()
	got := dropped
	if len(j.seen) > 0 {
		got = verdictOf(j.seen[0].Data)
	}
	if got != want {
		j.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// verdictOf says what a frame tells that comes from the switch.
func verdictOf(b []byte) string {
	u, err := frame.ParseUDP6(b)
	switch {
	case err != nil:
		return err.Error()
	case u.Dst.Port() == rackaddr.PortDSM && dsmpacket.Kind(u.Payload[4]) == dsmpacket.Nack:
		if fault.Code(u.Payload[5]) == fault.Overloaded {
			return lent
		}
		return denied
	case u.Dst.Port() == rackaddr.PortDSM && dsmpacket.Kind(u.Payload[4]) == dsmpacket.Reply:
		return fault.Code(u.Payload[5]).String() // of the Gatekeeper: the machine is not there
	case u.Dst.Port() == rackaddr.PortDSM:
		return passes
	}
	return [...]string{passes, denied, lent, gone, neverBegun}[binary.BigEndian.Uint16(u.Payload[76:])]
}

// bare is a node without a runtime.
type bare struct {
	*judging
	host    *wire.Host
	session join.Session
	id      join.Identity
	batch   uint32 // of region slots on machine 1
	request uint64
}

func (j *judging) join(blade, name string) *bare {
	j.t.Helper()
	joiner, err := j.Joiner(blade)
	if err != nil {
		j.t.Fatal(err)
	}
	n := &bare{judging: j, host: j.Host(blade)}
	if n.session, err = joiner.Join(j.ctx, name); err != nil {
		j.t.Fatal(err)
	}
	n.id = n.session.Node()
	batches, err := n.session.Batches(j.ctx, 1, 1)
	if err != nil || len(batches) == 0 || n.id.Row == 0 || len(n.id.Blocks) < 2 {
		j.t.Fatalf("%+v has batches %v, %v", n.id, batches, err)
	}
	n.batch = batches[0]
	return n
}

// region is that of a slot of the node's batch, in its first generation.
func (n *bare) region(i uint32) dsm.Pointer { return n.later(i, 1) }

func (n *bare) later(i, generation uint32) dsm.Pointer {
	return dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(n.batch*dsmpacket.BatchSlots+i, generation))
}

// memory sends a request to memory.
func (n *bare) memory(op dsmpacket.Op, p dsm.Pointer, edit ...func(h *dsmpacket.Header)) func() {
	return func() {
		n.request++
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: n.request, Floor: n.request, Incarnation: n.id.Incarnation, Length: 8}
		if op == dsmpacket.OpAlloc {
			h.Length = 64
		}
		for _, f := range edit {
			f(&h)
		}
		b := h.Append(nil)
		if op == dsmpacket.OpWrite {
			b = append(b, "contents"...)
		}
		n.host.SendRaw(netip.AddrPortFrom(n.id.Address, rackaddr.PortDSM), netip.AddrPortFrom(p.With(op).Addr(), rackaddr.PortDSM), b)
	}
}

// by has a read name a use of a slot.
func by(r rpcpacket.Ref) func(h *dsmpacket.Header) {
	return func(h *dsmpacket.Header) { h.By = dsmpacket.Use{Slot: uint32(r.Slot), Number: uint64(r.Number)} }
}

// earlier has a request be one of the incarnation before.
func earlier(h *dsmpacket.Header) { h.Incarnation-- }

// use is a use of a slot of the node's first block.
func (n *bare) use(i uint32, count uint64) rpcpacket.Ref {
	return rpcpacket.Ref{Slot: rpcpacket.Slot(n.id.Blocks[0]*rpcpacket.BlockSlots + i), Number: rpcpacket.NumberOf(n.id.Incarnation, count)}
}

// says sends a message to another node. What is edited is what a runtime would send.
func (n *bare) says(kind rpcpacket.Type, to *bare, use rpcpacket.Ref, lists []rpcpacket.List, edit ...func(m *rpcpacket.Message)) func() {
	port, m := uint16(rackaddr.PortDirect), rpcpacket.Message{Header: rpcpacket.Header{Type: kind, Slot: use.Slot, Number: use.Number, Call: rpcpacket.ID{1}}, Lists: lists}
	if kind == rpcpacket.Reply || kind == rpcpacket.Exception {
		port, m.CallerIncarnation, m.CalleeIncarnation = rackaddr.PortRPC, to.id.Incarnation, n.id.Incarnation
	} else {
		m.CallerIncarnation = n.id.Incarnation
	}
	for _, f := range edit {
		f(&m)
	}
	return func() { n.raw(port, port, to, m.Append(nil)) }
}

func (n *bare) raw(from, at uint16, to *bare, b []byte) {
	n.host.SendRaw(netip.AddrPortFrom(n.id.Address, from), netip.AddrPortFrom(to.id.Address, at), b)
}

// listed is a list of regions which the sender has by a use of a slot, or which are its own.
func listed(parent rpcpacket.Ref, regions ...dsm.Pointer) rpcpacket.List {
	l := rpcpacket.List{Parent: parent, Count: uint8(len(regions))} //nolint:gosec // few
	for i, p := range regions {
		l.Regions[i] = rpcpacket.RegionOf(p)
	}
	return l
}

func lists(all ...rpcpacket.List) []rpcpacket.List { return all }

var own = rpcpacket.Ref{} // a list's parent

// has has a node allocate and write regions.
func (n *bare) has(regions ...dsm.Pointer) {
	n.t.Helper()
	for _, p := range regions {
		n.expect("an allocation", passes, n.memory(dsmpacket.OpAlloc, p))
		n.expect("a write", passes, n.memory(dsmpacket.OpWrite, p))
	}
}

// TestHostile_RightsOfRegions: the switch lets nobody allocate in a batch of somebody else's, or of nobody's, and nobody but its owner read,
// write and free a region, and that in the generation and incarnation that are there.
func TestHostile_RightsOfRegions(t *testing.T) {
	withJudge(t, func(j *judging, owner, stranger, _ *bare) {
		a := owner.region(0)
		owner.has(a)
		for what, p := range map[string]dsm.Pointer{
			"an allocation of a region that is there":     a,
			"an allocation in somebody else's batch":      owner.region(1),
			"an allocation of the next generation there":  owner.later(0, 2),
			"an allocation in nobody's batch":             dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1<<19, 1)),
			"an allocation in nobody's batch, the last":   dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1<<20-1, 1)),
			"an allocation in a batch of another machine": dsmpacket.Make(rackaddr.DefaultDSMPrefix, 2, stranger.region(0).ID()),
		} {
			want := denied
			if p.Machine() != 1 {
				want = fault.Unavailable.String() // the Gatekeeper says so
			}
			j.expect(what, want, stranger.memory(dsmpacket.OpAlloc, p))
		}
		for _, op := range []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpWrite, dsmpacket.OpFree} {
			j.expect(op.String()+" of a stranger", denied, stranger.memory(op, a))
			j.expect(op.String()+" of a region that nobody has", denied, owner.memory(op, owner.region(5)))
			j.expect(op.String()+" of a generation that is still to come", denied, owner.memory(op, owner.later(0, 2)))
			j.expect(op.String()+" of a former incarnation", dropped, owner.memory(op, a, earlier))
			j.expect(op.String()+" in the owner's name", dropped, func() {
				h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1000, Incarnation: owner.id.Incarnation, Length: 8}
				stranger.host.SendRaw(netip.AddrPortFrom(owner.id.Address, rackaddr.PortDSM), netip.AddrPortFrom(a.With(op).Addr(), rackaddr.PortDSM), h.Append(nil))
			})
		}
		j.expect("an allocation of a former incarnation", dropped, owner.memory(dsmpacket.OpAlloc, owner.region(1), earlier))
		j.expect("a read by a slot that is not used", denied, stranger.memory(dsmpacket.OpRead, a, by(owner.use(0, 2))))
		j.expect("a read by a slot that there is not", denied, stranger.memory(dsmpacket.OpRead, a, by(rpcpacket.Ref{Slot: 1 << 20, Number: 2})))
		j.expect("a read by number 0", denied, stranger.memory(dsmpacket.OpRead, a, by(rpcpacket.Ref{Slot: 20})))
		j.expect("an answer of memory that is none", dropped, func() {
			h := dsmpacket.Header{Kind: dsmpacket.Reply, Request: 1, Length: 64}
			p := stranger.region(0)
			stranger.host.SendRaw(netip.AddrPortFrom(p.With(dsmpacket.OpAlloc).Addr(), rackaddr.PortDSM), netip.AddrPortFrom(stranger.id.Address, rackaddr.PortDSM), h.Append(nil))
		})
		j.expect("a write of what nobody has allocated", denied, stranger.memory(dsmpacket.OpWrite, stranger.region(0)))
		j.expect("the owner's read", passes, owner.memory(dsmpacket.OpRead, a))
		j.expect("the owner's write", passes, owner.memory(dsmpacket.OpWrite, a))
		j.expect("the owner's free", passes, owner.memory(dsmpacket.OpFree, a))
		j.expect("an allocation of the owner's in the next generation", passes, owner.memory(dsmpacket.OpAlloc, owner.later(0, 2)))
	})
}

// TestHostile_RightsOfCalls: calls and one-ways that name what is not their sender's do not reach the callee, nor do they change what anybody may do.
func TestHostile_RightsOfCalls(t *testing.T) {
	withJudge(t, func(j *judging, owner, stranger, callee *bare) {
		a, b, c := owner.region(0), owner.region(1), stranger.region(0)
		owner.has(a, b)
		stranger.has(c)
		last := owner.use(rpcpacket.BlockSlots-1, 2)
		number := func(n rpcpacket.Number) func(*rpcpacket.Message) {
			return func(m *rpcpacket.Message) { m.Number = n }
		}
		for _, kind := range []rpcpacket.Type{rpcpacket.Call, rpcpacket.Oneway} {
			says := func(what, want string, n *bare, use rpcpacket.Ref, lists []rpcpacket.List, edit ...func(m *rpcpacket.Message)) {
				t.Helper()
				j.expect(kind.String()+": "+what, want, n.says(kind, callee, use, lists, edit...))
			}
			mine := lists(listed(own, a))
			says("in somebody else's slot", dropped, owner, rpcpacket.Ref{Slot: stranger.use(0, 2).Slot, Number: owner.use(0, 2).Number}, mine)
			says("in nobody's slot", dropped, owner, rpcpacket.Ref{Slot: 900 * rpcpacket.BlockSlots, Number: owner.use(0, 2).Number}, mine)
			says("in a slot that there is not", dropped, owner, rpcpacket.Ref{Slot: 1<<20 + owner.use(0, 2).Slot, Number: owner.use(0, 2).Number}, mine)
			says("in slot 0", dropped, owner, rpcpacket.Ref{Number: owner.use(0, 2).Number}, mine)
			says("without a number", dropped, owner, owner.use(0, 2), mine, number(0))
			says("with a former incarnation's number", dropped, owner, owner.use(0, 2), mine, number(rpcpacket.NumberOf(owner.id.Incarnation-1, 2)))
			says("with a later incarnation's number", dropped, owner, owner.use(0, 2), mine, number(rpcpacket.NumberOf(owner.id.Incarnation+1, 2)))
			says("of a former incarnation", dropped, owner, owner.use(0, 2), mine, func(m *rpcpacket.Message) { m.CallerIncarnation-- })
			says("across the end of the block", dropped, owner, last, lists(listed(own, a), listed(own, b)))
			says("with more regions than a list has room for", dropped, owner, owner.use(0, 2), mine, func(m *rpcpacket.Message) { m.Lists[0].Count = 5 })
			mine = lists(listed(own, a))
			says("with the Gatekeeper's mark", dropped, owner, owner.use(0, 2), mine, func(m *rpcpacket.Message) { m.Flags |= rpcpacket.FlagReleased })
			says("turned around already", dropped, owner, owner.use(0, 2), mine, func(m *rpcpacket.Message) { m.Turned = rpcpacket.Lent })
			// What is refused is refused for good: each in a slot of its own.
			for i, is := range []struct {
				what string
				all  []rpcpacket.List
			}{
				{"a region twice", lists(listed(own, a, a))},
				{"a region in two generations", lists(listed(own, a, owner.later(0, 2)))},
				{"somebody else's region", lists(listed(own, c))},
				{"a region of its own, and somebody else's", lists(listed(own, a, c))},
				{"a region that nobody has", lists(listed(own, owner.region(7)))},
				{"a generation that is still to come", lists(listed(own, owner.later(0, 2)))},
				{"a parent that is not open", lists(listed(owner.use(9, 2), a))},
				{"a parent that there is not", lists(listed(rpcpacket.Ref{Slot: 1 << 20, Number: 2}, a))},
			} {
				use := owner.use(uint32(i), uint64(kind)*100) //nolint:gosec // few
				says(is.what, denied, owner, use, is.all)
				says(is.what+", again", denied, owner, use, is.all)
				says("after "+is.what+", with the same number", denied, owner, use, mine)
			}
			use := owner.use(12, uint64(kind)*100)
			says("the same region in two lists", denied, owner, use, lists(listed(own, a), listed(own, a)))
			for _, ports := range [][2]uint16{{rackaddr.PortDirect, rackaddr.PortRPC}, {rackaddr.PortRPC, rackaddr.PortDirect}, {rackaddr.PortDirect, rackaddr.PortBulk}, {1000, rackaddr.PortDirect}} {
				j.expect(kind.String()+" from another port than it goes to", dropped, func() {
					use := owner.use(1, 1000)
					m := rpcpacket.Message{Header: rpcpacket.Header{Type: kind, Slot: use.Slot, Number: use.Number, CallerIncarnation: owner.id.Incarnation}, Lists: mine}
					owner.raw(ports[0], ports[1], callee, m.Append(nil))
				})
			}
		}
		j.expect("a call to nobody", neverBegun, func() {
			m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call, Slot: owner.use(2, 5000).Slot, Number: owner.use(2, 5000).Number, CallerIncarnation: owner.id.Incarnation}}
			nobody := netip.MustParseAddr("fd00:b1f0:0:2::999")
			owner.host.SendRaw(netip.AddrPortFrom(owner.id.Address, rackaddr.PortDirect), netip.AddrPortFrom(nobody, rackaddr.PortDirect), m.Append(nil))
		})
		j.expect("the large first packet of a call with somebody else's region", denied, func() {
			m := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Call, Slot: owner.use(3, 5000).Slot, Number: owner.use(3, 5000).Number, CallerIncarnation: owner.id.Incarnation,
			}, Lists: lists(listed(own, c))}
			owner.raw(rackaddr.PortBulk, rackaddr.PortBulk, callee, m.Append(nil))
		})
		for _, n := range []*bare{owner, stranger} {
			for _, p := range map[*bare][]dsm.Pointer{owner: {a, b}, stranger: {c}}[n] {
				j.expect("the owner's write after all that", passes, n.memory(dsmpacket.OpWrite, p))
			}
		}
	})
}

// TestHostile_RightsOfLoans: what is lent to a call is read by its callee alone, and by no other call; copies, questions and answers of others change
// nothing; and an answer hands over what is its sender's, and not lent.
func TestHostile_RightsOfLoans(t *testing.T) {
	withJudge(t, func(j *judging, owner, stranger, callee *bare) {
		a, b, c, result, other := owner.region(0), owner.region(1), stranger.region(0), callee.region(0), callee.region(1)
		owner.has(a, b)
		stranger.has(c)
		callee.has(result, other)
		k, next := owner.use(0, 2), owner.use(0, 4)
		mine := lists(listed(own, a))
		j.expect("the call", passes, owner.says(rpcpacket.Call, callee, k, mine))

		// The owner's own bad copies, and what it may do meanwhile.
		j.expect("a write of what is lent", lent, owner.memory(dsmpacket.OpWrite, a))
		j.expect("a free of what is lent", lent, owner.memory(dsmpacket.OpFree, a))
		j.expect("a copy with another region", dropped, owner.says(rpcpacket.Call, callee, k, lists(listed(own, b))))
		j.expect("a copy with one region more", dropped, owner.says(rpcpacket.Call, callee, k, lists(listed(own, a, b))))
		j.expect("a copy without regions", dropped, owner.says(rpcpacket.Call, callee, k, nil))
		j.expect("a copy to another node", dropped, owner.says(rpcpacket.Call, stranger, k, mine))
		j.expect("the next call in the slot", dropped, owner.says(rpcpacket.Call, callee, next, mine))
		j.expect("a one-way with what is lent", lent, owner.says(rpcpacket.Oneway, callee, owner.use(1, 2), mine))
		j.expect("a copy", passes, owner.says(rpcpacket.Call, callee, k, mine))

		// Reads.
		j.expect("the callee's read", passes, callee.memory(dsmpacket.OpRead, a, by(k)))
		j.expect("a read of the callee's that names no call", denied, callee.memory(dsmpacket.OpRead, a))
		j.expect("a read with another number", denied, callee.memory(dsmpacket.OpRead, a, by(next)))
		j.expect("a read with another slot", denied, callee.memory(dsmpacket.OpRead, a, by(rpcpacket.Ref{Slot: k.Slot + 1, Number: k.Number})))
		j.expect("a read of what was not lent", denied, callee.memory(dsmpacket.OpRead, b, by(k)))
		j.expect("the stranger's read", denied, stranger.memory(dsmpacket.OpRead, a, by(k)))
		j.expect("the owner's read by its own call", denied, owner.memory(dsmpacket.OpRead, a, by(k)))
		j.expect("the callee's write", denied, callee.memory(dsmpacket.OpWrite, a))
		j.expect("the callee's free", denied, callee.memory(dsmpacket.OpFree, a))

		// Lending on. Nothing opens, so the same number does for another slot.
		for i, is := range []struct {
			what string
			who  *bare
			list rpcpacket.List
		}{
			{"the stranger lends on what the callee was lent", stranger, listed(k, a)},
			{"the stranger names the call, and lends its own", stranger, listed(k, c)},
			{"the callee lends on what it was not lent", callee, listed(k, b)},
			{"the callee lends on without saying by which call", callee, listed(own, a)},
			{"the callee lends on by another number", callee, listed(next, a)},
			{"the callee lends its own by a call that there is not", callee, listed(next, other)},
		} {
			j.expect(is.what, denied, is.who.says(rpcpacket.Call, owner, is.who.use(uint32(i), 2), lists(is.list))) //nolint:gosec // few
		}
		j.expect("the callee hands over what it was lent", denied, callee.says(rpcpacket.Oneway, stranger, callee.use(8, 2), lists(listed(k, a))))
		child := callee.use(9, 2)
		j.expect("the callee lends on", passes, callee.says(rpcpacket.Call, stranger, child, lists(listed(k, a))))
		j.expect("the last one's read", passes, stranger.memory(dsmpacket.OpRead, a, by(child)))
		j.expect("the last one's read by the first call", denied, stranger.memory(dsmpacket.OpRead, a, by(k)))
		j.expect("an answer while what was lent is lent on", lent, callee.says(rpcpacket.Reply, owner, k, nil))

		// Answers and questions of others.
		for _, kind := range []rpcpacket.Type{rpcpacket.Reply, rpcpacket.Exception} {
			j.expect(kind.String()+" of a stranger", dropped, stranger.says(kind, owner, k, nil))
			j.expect(kind.String()+" of the caller", dropped, owner.says(kind, callee, k, nil))
			j.expect(kind.String()+" to another node", dropped, callee.says(kind, stranger, k, nil))
			j.expect(kind.String()+" with another number", dropped, callee.says(kind, owner, next, nil))
			j.expect(kind.String()+" of a slot that there is not", dropped, callee.says(kind, owner, rpcpacket.Ref{Slot: k.Slot + 1<<20, Number: k.Number}, nil))
			j.expect(kind.String()+" of another slot", dropped, callee.says(kind, owner, rpcpacket.Ref{Slot: k.Slot + 1, Number: k.Number}, nil))
			j.expect(kind.String()+" of a former incarnation", dropped, callee.says(kind, owner, k, nil, func(m *rpcpacket.Message) { m.CalleeIncarnation-- }))
			j.expect(kind.String()+" that says what its receiver had", dropped, callee.says(kind, owner, k, nil, func(m *rpcpacket.Message) { m.Had = 1 }))
			j.expect(kind.String()+" without a number", dropped, callee.says(kind, owner, rpcpacket.Ref{}, nil))
		}
		j.expect("a question of a former incarnation", dropped, owner.says(rpcpacket.Ask, callee, k, nil, func(m *rpcpacket.Message) { m.CallerIncarnation-- }))
		j.expect("a question about nothing", dropped, owner.says(rpcpacket.Ask, callee, rpcpacket.Ref{}, nil))
		j.expect("a stranger's question, which its receiver answers the stranger", passes, stranger.says(rpcpacket.Ask, callee, k, nil))
		j.expect("the answer to it, as if it was the owner's call", dropped, callee.says(rpcpacket.Exception, stranger, k, nil))
		j.expect("a word to forget through the port of answers", dropped, func() {
			m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Forget, Flags: rpcpacket.FlagSettled, CallerIncarnation: stranger.id.Incarnation}}
			stranger.raw(rackaddr.PortRPC, rackaddr.PortRPC, callee, m.Append(nil))
		})
		j.expect("the last one's answer", passes, stranger.says(rpcpacket.Reply, callee, child, nil))
		j.expect("a read when the call is over", denied, stranger.memory(dsmpacket.OpRead, a, by(child)))

		// Results.
		j.expect("the callee lends what it will return", passes, callee.says(rpcpacket.Call, stranger, callee.use(10, 2), lists(listed(own, result))))
		j.expect("a result that is lent", lent, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, result))))
		j.expect("that call's answer", passes, stranger.says(rpcpacket.Reply, callee, callee.use(10, 2), nil))
		j.expect("a result of somebody else's", denied, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, c))))
		j.expect("results, one of them somebody else's", denied, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, result, c))))
		j.expect("a result in a generation that is still to come", denied, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, callee.later(0, 2)))))
		j.expect("a result that nobody has", denied, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, callee.region(9)))))
		j.expect("an exception with a region", denied, callee.says(rpcpacket.Exception, owner, k, lists(listed(own, result))))
		j.expect("the callee's read after all that", passes, callee.memory(dsmpacket.OpRead, a, by(k)))
		j.expect("the answer", passes, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, result))))

		// When all is over.
		j.expect("the answer again", passes, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, result))))
		j.expect("the answer again, with another result", denied, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, other))))
		j.expect("a read after the answer", denied, callee.memory(dsmpacket.OpRead, a, by(k)))
		j.expect("lending on after the answer", denied, callee.says(rpcpacket.Call, stranger, callee.use(11, 2), lists(listed(k, a))))
		for _, op := range []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpWrite, dsmpacket.OpFree} {
			j.expect(op.String()+" of a result by who has returned it", denied, callee.memory(op, result))
		}
		j.expect("the next call", passes, owner.says(rpcpacket.Call, callee, next, nil))
		j.expect("a late copy of the call", dropped, owner.says(rpcpacket.Call, callee, k, mine))
		j.expect("a late copy of the answer", dropped, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, result))))
		for _, p := range []dsm.Pointer{a, b, result} {
			j.expect("the owner's write", passes, owner.memory(dsmpacket.OpWrite, p))
			j.expect("the owner's free", passes, owner.memory(dsmpacket.OpFree, p))
		}
	})
}

// TestHostile_RightsOfOneways: what is handed over is its receiver's, and nobody else gives it back.
func TestHostile_RightsOfOneways(t *testing.T) {
	withJudge(t, func(j *judging, owner, stranger, callee *bare) {
		a, b, other := owner.region(0), owner.region(1), callee.region(0)
		owner.has(a, b)
		callee.has(other)
		k := owner.use(0, 2)
		mine := lists(listed(own, a))
		j.expect("the one-way", passes, owner.says(rpcpacket.Oneway, callee, k, mine))
		for _, op := range []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpWrite, dsmpacket.OpFree} {
			j.expect(op.String()+" of what was handed over", denied, owner.memory(op, a))
		}
		j.expect("a read by the one-way's slot", denied, callee.memory(dsmpacket.OpRead, a, by(k)))
		j.expect("lending on by the one-way's slot", denied, callee.says(rpcpacket.Call, stranger, callee.use(0, 2), lists(listed(k, other))))
		j.expect("a copy with another region", dropped, owner.says(rpcpacket.Oneway, callee, k, lists(listed(own, b))))
		j.expect("a copy to another node", dropped, owner.says(rpcpacket.Oneway, stranger, k, mine))
		j.expect("handed over again", denied, owner.says(rpcpacket.Oneway, stranger, owner.use(1, 2), mine))
		j.expect("a stranger gives it back", dropped, stranger.says(rpcpacket.Exception, owner, k, nil))
		j.expect("an acknowledgement with somebody else's region", denied, callee.says(rpcpacket.Reply, owner, k, lists(listed(own, stranger.region(0)))))
		j.expect("the receiver's write", passes, callee.memory(dsmpacket.OpWrite, a))
		j.expect("the receiver gives it back", passes, callee.says(rpcpacket.Exception, owner, k, nil))
		j.expect("the receiver's write after that", denied, callee.memory(dsmpacket.OpWrite, a))
		j.expect("the owner's write after that", passes, owner.memory(dsmpacket.OpWrite, a))
	})
}

// TestHostile_RightsOfBefore: packets of a former incarnation do not pass, whenever they come. What it had lent is read until its callee answers.
func TestHostile_RightsOfBefore(t *testing.T) {
	withJudge(t, func(j *judging, owner, _, callee *bare) {
		a, b := owner.region(0), owner.region(1)
		owner.has(a, b)
		k, mine := owner.use(0, 2), lists(listed(own, a))
		j.expect("the call", passes, owner.says(rpcpacket.Call, callee, k, mine))
		if err := owner.session.Calls(j.ctx, control.NodeCalls{Owes: true}); err != nil { // it has one-ways to deliver, so it comes back
			t.Fatal(err)
		}
		owner.session.Crash("a test")
		<-time.After(time.Second) // virtual
		before := func(when string) {
			t.Helper()
			j.expect("a copy of the call, "+when, dropped, owner.says(rpcpacket.Call, callee, k, mine))
			j.expect("a call, "+when, dropped, owner.says(rpcpacket.Call, callee, owner.use(1, 2), lists(listed(own, b))))
			j.expect("a one-way, "+when, dropped, owner.says(rpcpacket.Oneway, callee, owner.use(1, 2), lists(listed(own, b))))
			for _, op := range []dsmpacket.Op{dsmpacket.OpAlloc, dsmpacket.OpRead, dsmpacket.OpWrite, dsmpacket.OpFree} {
				j.expect(op.String()+", "+when, dropped, owner.memory(op, b))
			}
			j.expect("its callee's read, "+when, passes, callee.memory(dsmpacket.OpRead, a, by(k)))
		}
		before("when it is dead")
		again := j.join("c1", "owner")
		if again.id.Address != owner.id.Address || again.id.Before != owner.id.Incarnation {
			t.Fatalf("%+v is no next incarnation of %+v", again.id, owner.id)
		}
		held, err := again.session.Holdings(j.ctx, false)
		if err != nil || len(held.Slots) != 1 || held.Slots[0].Slot != uint32(k.Slot) || held.Slots[0].State != control.SlotOpen || len(held.Regions) != 2 {
			t.Errorf("the next incarnation is told of %+v, %v", held, err)
		}
		before("when its next incarnation is there")
		j.expect("the next incarnation's write of what is lent", lent, again.memory(dsmpacket.OpWrite, a))
		j.expect("its call under the old number", dropped, again.says(rpcpacket.Call, callee, k, mine))
		j.expect("the callee's answer to the former incarnation", passes, callee.says(rpcpacket.Reply, again, k, nil))
		j.expect("the next incarnation's write", passes, again.memory(dsmpacket.OpWrite, a))
	})
}
