package direct

import (
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// need is what a call of the tests needs of the ledger.
const need = 700

// crowd is 64 nodes of one owner.
func crowd(i uint32) [16]byte { return [16]byte{14: 9, 15: byte(i % 64)} }

// An owner that fills the ledger, with calls or with slots of many nodes, is refused; the others are not, and
// what is forgotten gives room again. It does not matter when it is learned whose the nodes are.
func TestAdmits(t *testing.T) {
	const space = 200 << 10
	for name, flood := range map[string]func(i uint32) rpcpacket.Header{
		"calls of slots": func(i uint32) rpcpacket.Header {
			return numbered(byte(i), byte(i>>8), rpcpacket.Slot(i), 1)
		},
		"calls of one slot": func(i uint32) rpcpacket.Header {
			return numbered(byte(i), byte(i>>8), 1, uint64(i)+1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			known := false
			table := New(new(record.State), func(node netip.Addr) share.Owner {
				switch {
				case node.As16()[14] == 9 && known:
					return share.Owner{Port: 1, User: 7}
				case node.As16()[14] == 9:
					return share.Stranger(node)
				}
				return share.Owner{Port: 1, User: uint32(node.As16()[15])}
			})
			used, admitted, late := 0, 0, 0
			room := func() int { return space - used }
			take := func(caller [16]byte, h rpcpacket.Header) bool {
				if !table.Admits(caller, &h, need, room()) {
					return false
				}
				if v, _ := table.Receive(caller, &h, 1); v != Run {
					t.Fatalf("call %x: %s", h.Call, v)
				}
				table.Promises(h.Call, need)
				used += need
				return true
			}
			for i := range uint32(1000) {
				if !take(crowd(i), flood(i)) {
					continue
				}
				if admitted++; i > 500 {
					late++
				}
				if table.Crowded() && !known { // the shell asks then
					known = true
					for i := range uint32(64) {
						table.Learn(netip.AddrFrom16(crowd(i)))
					}
				}
			}
			if admitted < 100 || late > 0 || room() < space/4 {
				t.Errorf("%d calls of one owner are admitted, %d of them late; %d of %d bytes are left", admitted, late, room(), space)
			}
			for user := range byte(4) {
				caller := [16]byte{15: user + 1}
				h := numbered(user, 255, 1, 1)
				if !take(caller, h) {
					t.Errorf("user %d of the same blade is refused, who has nothing", user)
				}
			}
			for i := range uint32(1000) {
				h := flood(i)
				table.Drop(h.Call)
			}
			used = 0
			again := flood(2000)
			for range 1000 { // it is counted anew after some tries
				if table.Admits(crowd(2000), &again, need, room()) {
					return
				}
			}
			t.Error("nothing is left of the flood, and its owner is still refused")
		})
	}
}

// What is counted anew is what is there: promises, records and slots.
func TestCharges(t *testing.T) {
	b := newBench(t)
	charged := func() uint64 {
		b.count()
		return b.quota.held.Held(netip.AddrFrom16(stranger))
	}
	first := child(7, 1, 1, 1)
	b.receive(stranger, first, Run)
	b.Promises(first.Call, 1000)
	b.Promises(first.Call, -300)
	if n := charged(); n != 700+slotCharge {
		t.Errorf("a call that runs: %d bytes", n)
	}
	b.write(done(stranger, first))
	weight := uint64(b.State().Execution(first.Call).Weight()) //nolint:gosec // not negative
	if n := charged(); n != weight+slotCharge || n < 100 || len(b.floors) != 0 {
		t.Errorf("one that is done: %d bytes, want %d; %d floors", n, weight+slotCharge, len(b.floors))
	}
	second := child(8, 1, 2, 1)
	b.receive(stranger, second, Run)
	b.Drop(second.Call)
	if n := charged(); n != weight+2*slotCharge {
		t.Errorf("and one that was dropped: %d bytes", n)
	}
	b.write(b.Bury(stranger, 9, true))
	b.count()
	if n := b.quota.held.Used(); len(b.floors) != 0 || n > weight {
		t.Errorf("of a caller that is gone: %d bytes, %d floors", n, len(b.floors))
	}
}

// A caller that fills the ledger with words to forget calls that never came is refused. What is known can
// still be forgotten, others have room, and there is room again when the caller is gone.
func TestAdmits_Words(t *testing.T) {
	b := newBench(t)
	const space = 100 << 10
	own := child(7, 1, 0, 1)
	b.receive(stranger, own, Run)
	b.write(done(stranger, own))
	taken, full := 0, 0
	for i := uint32(1); i < 4000; i++ {
		w := b.Forget(stranger, 9, []Item{itemOf(child(8, 9, rpcpacket.Slot(i), 1)), itemOf(child(18, 9, rpcpacket.Slot(i), 2))}, space-taken*slotCharge)
		full += w.Full
		if w.Record == nil {
			continue
		}
		if slots := w.Record.(*record.Forgotten).Slots; len(slots) == 1 {
			taken++
		} else if len(slots) > 1 {
			t.Fatalf("two numbers of a slot are written as %+v", slots)
		}
		b.write(w.Record)
	}
	if left := space - taken*slotCharge; taken == 0 || full == 0 || left < space/16 {
		t.Fatalf("%d slots are taken, %d refused, %d of %d bytes are left", taken, full, left, space)
	}
	w := b.Forget(stranger, 9, []Item{itemOf(own)}, 1<<10)
	if w.Full != 0 || len(w.Forgotten) != 1 {
		t.Errorf("a call that is known: %+v", w)
	}
	if w := b.Forget(other, 1, []Item{itemOf(child(9, 1, 1, 1))}, space-taken*slotCharge); w.Full != 0 {
		t.Errorf("another caller's word: %+v", w)
	}
	b.write(b.Bury(stranger, 1, true)) // it has spoken for a later incarnation than it had
	b.crash()
	b.State().Slots(func(l *record.Slot) {
		if l.Caller == stranger {
			t.Fatalf("a slot of a caller that is gone: %+v", l)
		}
	})
}

// numbered is a call of an execution, the n-th in a slot, whose id has two bytes of its own.
func numbered(a, b byte, slot rpcpacket.Slot, n uint64) rpcpacket.Header {
	h := child(a, 1, slot, n)
	h.Call[1] = b
	return h
}
