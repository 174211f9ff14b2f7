package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Verdict is a node's word to a memory machine about a run of one of its executions: commit it,
// take it back, or let the Gatekeeper decide. It is sent until every copy of the machine's newest epoch has obeyed. Like an
// Endpoint it does no I/O, reads no clock and has one owner.
type Verdict struct {
	request dsmpacket.LedgerRequest
	mirror  mirror
	heard   uint8 // bit i: copy i
	tries   uint
	due     time.Duration
	send    bool
	done    bool
	err     error
}

// Bounds of the time between two sendings.
const (
	firstVerdict = 2 * time.Millisecond
	maxVerdict   = 256 * time.Millisecond
)

// NewVerdict begins to tell a machine q, whose operation is a LedgerOp.Word.
func NewVerdict(now time.Duration, q dsmpacket.LedgerRequest) *Verdict {
	v := &Verdict{request: q}
	v.transmit(now)
	return v
}

func (v *Verdict) transmit(now time.Duration) {
	v.send = true
	v.due = now + min(firstVerdict<<min(v.tries, 16), maxVerdict)
	v.tries++
}

// Send returns the request to be sent to the machine, if one is, and forgets that it was asked.
func (v *Verdict) Send() (q dsmpacket.LedgerRequest, ok bool) {
	ok, v.send = v.send, false
	return v.request, ok
}

// Wake is when Tick is to be called.
func (v *Verdict) Wake() time.Duration {
	if v.Over() {
		return Never
	}
	return v.due
}

// Tick sends again what is due.
func (v *Verdict) Tick(now time.Duration) {
	if !v.Over() && now >= v.due {
		v.transmit(now)
	}
}

// Over reports whether every copy has obeyed, or one has refused for good; Err then says why.
func (v *Verdict) Over() bool { return v.done || v.err != nil }

// Err is why the machine refuses, nil while it does not: Stale if this incarnation of the node
// is fenced, or a later run has changed something.
func (v *Verdict) Err() error { return v.err }

// Receive takes the answer of one copy, and reports whether it is to this request.
func (v *Verdict) Receive(now time.Duration, a *dsmpacket.LedgerAnswer) bool {
	q := &v.request
	if a.Op != q.Op || a.Ledger != q.Ledger || a.Run != q.Run || a.Incarnation != q.Incarnation || a.Mirror.Members == 0 {
		return false
	}
	if a.Main != q.Main || a.Checkpoint != q.Checkpoint {
		return false // it is about another checkpoint of the durable main
	}
	switch m := a.Mirror; {
	case v.Over() || m.Epoch < v.mirror.epoch:
	case a.Status == fault.Overloaded || a.Status == fault.Unavailable: // it is asked again
	case a.Status != fault.OK:
		v.err = fault.Remote(a.Status, q.Op.String()+" an execution", "copy %d refuses it", m.Copy)
	default:
		if m.Epoch > v.mirror.epoch {
			v.heard = 0
			if v.mirror.members != 0 { // the other copies of the new epoch may not have heard it
				v.transmit(now)
			}
		}
		v.mirror = mirror{epoch: m.Epoch, members: m.Members}
		v.heard |= 1 << m.Copy
		v.done = v.heard == 1<<m.Members-1
	}
	return true
}
