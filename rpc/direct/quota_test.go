package direct

import (
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A caller that fills the ledger, with calls or with lanes, is refused; the others are not, and
// what is forgotten gives room again.
func TestAdmits(t *testing.T) {
	const space = 100 << 10
	for name, flood := range map[string]func(i uint32) rpcpacket.Header{
		"calls of lanes": func(i uint32) rpcpacket.Header {
			return rpcpacket.Header{Call: rpcpacket.ID{9, byte(i), byte(i >> 8)}, Order: rpcpacket.SessionOf(netip.AddrFrom16(stranger), i), Floor: 1, CallerIncarnation: 1}
		},
		"calls of one lane": func(i uint32) rpcpacket.Header {
			return rpcpacket.Header{Call: rpcpacket.ID{9, byte(i), byte(i >> 8)}, Order: rpcpacket.SessionOf(netip.AddrFrom16(stranger), 1), Floor: uint64(i) + 1, CallerIncarnation: 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(new(record.State))
			used, admitted := 0, 0
			room := func() int { return space - used }
			for i := range uint32(1000) {
				h := flood(i)
				if !table.Admits(stranger, &h, 100, room()) {
					continue
				}
				if v, _ := table.Receive(stranger, &h, 1); v != Run {
					t.Fatalf("call %d: %s", i, v)
				}
				admitted++
				used += callCharge + 200
			}
			if admitted == 1000 || admitted < 100 || room() < space/16 {
				t.Errorf("%d calls of one caller are admitted, %d of %d bytes are left", admitted, room(), space)
			}
			first := rpcpacket.Header{Call: rpcpacket.ID{8}, Order: rpcpacket.SessionOf(netip.AddrFrom16(other), 1), Floor: 1, CallerIncarnation: 1}
			if !table.Admits(other, &first, 100, room()) {
				t.Error("another caller is refused")
			}
			for i := range uint32(1000) {
				h := flood(i)
				table.Drop(h.Call)
			}
			clear(table.floors)
			used = 0
			again := flood(2000)
			for range 1000 { // it is counted anew after some tries
				if table.Admits(stranger, &again, 100, room()) {
					return
				}
			}
			t.Error("nothing is left of the flood, and the caller is still refused")
		})
	}
}

// A caller that fills the ledger with words to forget calls that never came is refused. What is known can
// still be forgotten, others have room, and there is room again when the caller is gone.
func TestAdmits_Words(t *testing.T) {
	b := newBench(t)
	const space = 100 << 10
	lane := func(i uint32) uint64 { return rpcpacket.SessionOf(netip.AddrFrom16(stranger), i) }
	own := child(7, 1, lane(0), 1)
	b.receive(stranger, own, Run)
	b.write(done(stranger, own))
	taken, full := 0, 0
	for i := uint32(1); i < 4000; i++ {
		w := b.Forget(stranger, 9, []Item{{ID: rpcpacket.ID{8}, Lane: lane(i), Number: 1}, {ID: rpcpacket.ID{8, 1}, Lane: lane(i), Number: 2}}, space-taken*laneCharge)
		full += w.Full
		if w.Record == nil {
			continue
		}
		if lanes := w.Record.(*record.Forgotten).Lanes; len(lanes) == 1 {
			taken++
		} else if len(lanes) > 1 {
			t.Fatalf("two numbers of a lane are written as %+v", lanes)
		}
		b.write(w.Record)
	}
	if left := space - taken*laneCharge; taken == 0 || full == 0 || left < space/16 {
		t.Fatalf("%d lanes are taken, %d refused, %d of %d bytes are left", taken, full, left, space)
	}
	w := b.Forget(stranger, 9, []Item{{ID: own.Call, Lane: lane(0), Number: 1}}, 1<<10)
	if w.Full != 0 || len(w.Forgotten) != 1 {
		t.Errorf("a call that is known: %+v", w)
	}
	if w := b.Forget(other, 1, []Item{{ID: rpcpacket.ID{9}, Lane: rpcpacket.SessionOf(netip.AddrFrom16(other), 1), Number: 1}}, 1<<10); w.Full != 0 {
		t.Errorf("another caller's word: %+v", w)
	}
	b.write(b.Bury(stranger, 1, true)) // it has spoken for a later incarnation than it had
	b.crash()
	b.State().Lanes(func(l *record.Lane) {
		if l.Caller == stranger {
			t.Fatalf("a lane of a caller that is gone: %+v", l)
		}
	})
}
