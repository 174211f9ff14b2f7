package direct

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What a node must keep of direct calls is charged to their callers, in bytes of its ledger: a
// caller that fills it takes nothing from the others. At most a caller has eight times as much
// as there is room left for new calls. So one has eight ninths of the space, two have eight
// seventeenths each, and there is always some left for another one.
//
// A charge is an upper bound: it is counted anew, from what is there, when it is too much.

const (
	mostOfRoom = 8
	callCharge = 512 // of a call, beside its arguments, outcome and journal
	laneCharge = 64
)

// charge is what a caller has on record.
type charge struct {
	bytes int
	// since is how many calls have been asked for after bytes was counted, counted how many
	// entries that was made of.
	since, counted int
}

// Admits reports whether there is room for a call that has arrived, and charges its caller. A
// call that is known needs none. arguments is how many bytes those have, room how many bytes
// of the ledger are left for new calls.
func (t *Table) Admits(caller [16]byte, h *rpcpacket.Header, arguments, room int) bool {
	if t.running[h.Call] != nil || t.state.Execution(h.Call) != nil {
		return true
	}
	lane, _ := LaneOf(h)
	if !rpcpacket.Owns(netip.AddrFrom16(caller), lane) {
		return true // and is refused for that
	}
	need := callCharge + 2*arguments
	if _, known := t.floors[lane]; !known {
		need += laneCharge
	}
	return t.charge(caller, need, room)
}

// charge charges a caller with bytes of the ledger, unless it has its part of the room.
func (t *Table) charge(caller [16]byte, need, room int) bool {
	k := t.charges[caller]
	if k == nil {
		k = new(charge)
		t.charges[caller] = k
	}
	most := mostOfRoom * room
	if k.since++; k.bytes+need > most && k.since > k.counted/8 {
		t.count(caller, k)
	}
	if k.bytes > 0 && k.bytes+need > most {
		return false
	}
	k.bytes += need
	return true
}

// laneKnown reports whether a lane has its place in the ledger, or will have it with what runs.
func (t *Table) laneKnown(lane uint64) bool {
	_, accepted := t.floors[lane]
	return accepted || t.state.Floor(lane) > 0
}

// count counts a caller's charge anew.
func (t *Table) count(caller [16]byte, k *charge) {
	*k = charge{}
	add := func(bytes int) { k.bytes, k.counted = k.bytes+bytes, k.counted+1 }
	node := netip.AddrFrom16(caller)
	for lane := range t.floors {
		if rpcpacket.Owns(node, lane) {
			add(laneCharge)
		}
	}
	t.state.Lanes(func(l *record.Lane) {
		if _, counted := t.floors[l.Lane]; !counted && l.Caller == caller {
			add(laneCharge)
		}
	})
	for id, r := range t.running {
		if r.caller == caller && t.state.Execution(id) == nil {
			add(callCharge + 2*r.arguments)
		}
	}
	t.state.Each(func(e *record.Execution) {
		if from, _, _, _ := e.Caller(); from != caller {
			return
		}
		bytes := callCharge + len(e.Journal)
		if e.Begun != nil {
			bytes += len(e.Begun.Call)
		}
		if e.Done != nil {
			bytes += len(e.Done.Answer)
			for i := range e.Done.Owed.Oneways {
				bytes += len(e.Done.Owed.Oneways[i].Message)
			}
		}
		add(bytes)
	})
}
