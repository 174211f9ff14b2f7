package direct

import (
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A node's account of the calls that it knows, for the rebuilding of the switch's registers.

// Known calls f with each call that the node knows, and that somebody may ask for, with what the records add up to; nil of one that has no record.
func (t *Table) Known(f func(at record.Place, n rpcpacket.Number, id rpcpacket.ID, e *record.Execution)) {
	t.state.Each(func(e *record.Execution) {
		if at, _, n := e.Caller(); !e.Main() && !e.Forgotten {
			f(at, n, e.ID, e)
		}
	})
	for id, r := range t.running {
		if r.at.Slot != 0 {
			f(r.at, r.number, id, t.state.Execution(id))
		}
	}
}

// Known calls f with each call that the node knows, with its entry's tag and its answer, as far as there are such.
func (v *Volatile) Known(f func(at record.Place, n rpcpacket.Number, id rpcpacket.ID, tag any, reply []byte)) {
	for at, l := range v.slots {
		if e := l.call; e != nil {
			f(at, e.number, e.ID, e.Tag, e.reply)
		}
	}
}
