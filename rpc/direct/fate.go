package direct

import (
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Policies fate-share and tainted: if one side of a call fails before the call is done, the other side's
// execution is taken back, too. Each node decides from its own ledger; there is no list of who is concerned.
//
//	callee failed   its next incarnation finds the execution begun for the caller's incarnation i. The execution
//	                waits (Waits) until i is dead: the caller is asked to be taken back, so that it makes the call anew.
//	caller failed   its next incarnation makes the call anew. The callee notes that i is dead, and is taken back
//	                itself (Outlived): its next incarnation finds i dead, and runs the execution for the later one.
//
// So each run of the callee's execution belongs to one incarnation of the caller, and no two broken runs to the same one.
// A node is taken back as a whole: it is started anew. Begun is written before the handler starts.
//
// A caller that has lent memory makes the call anew when it has heard what has become of its former attempt. It asks for that, and
// the callee asks the Gatekeeper whether i is dead.
//
// A direct call on behalf of a tainted one has FlagTainted. The second rule holds for it as well: what an execution
// has called is taken back when it is run again, and so is what that has called.

// SharesUp reports whether the failure of its callee takes a call's caller back. A plain call has no execution at
// its other end that could be run again, and nobody waits for a one-way.
func SharesUp(h *rpcpacket.Header) bool {
	return h.Flags.Policy().SharesFates() && h.Call.Derived() && h.Type != rpcpacket.Oneway
}

// SharesDown reports whether the failure of its caller takes a call's callee back.
func SharesDown(h *rpcpacket.Header) bool {
	return SharesUp(h) || h.Flags&rpcpacket.FlagTainted != 0 && h.Call.Derived() && h.Type != rpcpacket.Oneway
}

// fate is what a call that is accepted shares.
type fate struct {
	incarnation uint32 // of the caller, for which it runs
	up, down    bool
	started     bool // its handler
	waits       bool // until the incarnation is dead
}

// fateOf is that of a new call.
func fateOf(h *rpcpacket.Header) fate {
	return fate{incarnation: h.CallerIncarnation, up: SharesUp(h), down: SharesDown(h)}
}

// fateAgain is that of an execution which an earlier incarnation has begun.
func (t *Table) fateAgain(e *record.Execution) (f fate) {
	if e == nil || e.Begun == nil {
		return f
	}
	m, err := rpcpacket.Parse(e.Begun.Call)
	if err != nil {
		return f
	}
	f = fateOf(&m.Header)
	f.incarnation, f.started = e.Begun.Incarnation, true
	if dead, _ := t.state.Dead(e.Begun.Caller); f.incarnation > dead {
		f.waits = f.up && !e.Forgotten
	} else if f.down {
		f.incarnation = dead + 1
	}
	return f
}

// Shares reports whether a call that runs here shares its caller's fate.
func (t *Table) Shares(id rpcpacket.ID) bool { r := t.running[id]; return r != nil && r.down }

// Starts notes that the handler of a call starts. It returns the incarnation of the caller for which it runs.
func (t *Table) Starts(id rpcpacket.ID) uint32 {
	r := t.running[id]
	r.started, r.waits = true, false
	if dead, _ := t.state.Dead(r.at.Caller); r.down && r.incarnation <= dead {
		r.incarnation = dead + 1
	}
	return r.incarnation
}

// Waits reports whether an execution that is to be run again waits for its caller to be taken back, and which
// incarnation of which node that is.
func (t *Table) Waits(id rpcpacket.ID) (caller [16]byte, incarnation uint32, waits bool) {
	r, e := t.running[id], t.state.Execution(id)
	if r == nil || !r.waits || e == nil || e.Forgotten {
		return caller, 0, false
	}
	dead, _ := t.state.Dead(r.at.Caller)
	return r.at.Caller, r.incarnation, r.incarnation > dead
}

// Spare takes a caller's word that it is not taken back: it does not wait for the call any more, or nobody would start its
// program anew. The execution is run again without that.
func (t *Table) Spare(caller [16]byte, id rpcpacket.ID) {
	if r := t.running[id]; r != nil && r.at.Caller == caller {
		r.waits = false
	}
}

// supersedes reports whether a copy of a call that runs here, or waits, comes from a later incarnation of its caller, whose
// fate it shares. A handler that has not started runs for that one instead.
func (t *Table) supersedes(caller [16]byte, h *rpcpacket.Header, r *running) bool {
	if r.at.Caller != caller || !r.down || h.CallerIncarnation <= r.incarnation {
		return false
	}
	if !r.started {
		r.incarnation = h.CallerIncarnation
	}
	return r.started
}

// Outlived reports whether the node is to be taken back: it runs an execution for an incarnation of its caller that is dead,
// and whose fate it shares. It returns which that is.
func (t *Table) Outlived() (caller [16]byte, incarnation uint32, outlived bool) {
	for id, r := range t.running {
		if !r.down || !r.started || r.waits {
			continue
		}
		if e := t.state.Execution(id); e != nil && e.Forgotten {
			continue
		}
		if dead, gone := t.state.Dead(r.at.Caller); r.incarnation <= dead && !gone && !r.forgotten {
			return r.at.Caller, r.incarnation, true
		}
	}
	return caller, 0, false
}
