package store

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Of an execution that is direct its node decides what becomes of its changes, and the Gatekeeper
// may not know of it. When the node has failed, its next incarnation reads in its ledger what is
// done, and says so here:
//
//	next incarnation ─▶ may not read or write there ─▶ its commit or rollback of the run ─▶ may again
//	fence of a node that nobody brings back ─▶ taken back

// direct reports whether a request that changes something is of an execution about which its
// node decides.
func direct(r *Request) bool { return r.Header.Flags&dsmpacket.FlagDirect != 0 }

// Word is a node's own word about a run of one of its executions.
type Word uint8

// The words.
const (
	Keep     Word = iota // what the run did is final
	TakeBack             // it is undone
	HandOver             // the Gatekeeper decides from now on
)

// SettleRun obeys a node's own word about a run of one of its executions. Like Commit and
// Rollback it is idempotent. It is Stale if the
// incarnation that asks is fenced or replaced, or the changes are a later run's, and BadRequest
// if the run is a later one than the incarnation.
func (s *Store) SettleRun(run control.Run, incarnation uint32, word Word) fault.Code {
	if s.ended(run.Node, incarnation) {
		return fault.Stale
	}
	if run.Incarnation > incarnation || run.Execution == (control.ExecutionID{}) {
		return fault.BadRequest
	}
	if run.Main != 0 && !s.undo.admitWord(run) {
		return fault.BadRequest
	}
	var refused []control.Run
	switch word {
	case Keep:
		refused = s.Commit(control.Commit{Runs: []control.Run{run}}).Refused
	case TakeBack:
		refused = s.Rollback(control.Rollback{Runs: []control.Run{run}}).Refused
	case HandOver:
		if e := s.undo.byRun[runKey{run.Execution, run.Node}]; e != nil && e.by.incarnation == run.Incarnation && !s.undo.marks.after(run) {
			e.direct = false
		}
	}
	if len(refused) > 0 {
		return fault.Stale
	}
	return fault.OK
}

// admitWord reports whether a node may speak for a durable main. One that has run elsewhere is not its
// own. It makes room for the word: a node that has spoken for many mains loses the oldest word of its own.
func (u *undo) admitWord(run control.Run) bool {
	key := markKey{run.Execution, run.Node}
	if u.byRun[runKey{run.Execution, run.Node}] == nil && u.moving[run.Execution] != nil {
		return false
	}
	if _, known := u.marks.last[key]; !known {
		u.marks.makeRoom(run.Node)
	}
	return true
}

// ended reports whether an incarnation of a node is fenced, or has been replaced.
func (s *Store) ended(node netip.Addr, incarnation uint32) bool {
	c := s.clients.byNode[node]
	return c != nil && (incarnation < c.incarnation || incarnation == c.incarnation && c.fenced)
}

// inDoubt reports whether the reader may not have what a region holds: an earlier incarnation of its
// node has changed the region, and the node has not said whether that stays. A machine with one copy
// may have been away when it was said, so it cannot go by what it has heard. Another node has been
// lent the region by the execution that has changed it, and that is not taken back before it has
// answered.
func inDoubt(reg *region, reader *Request) bool {
	c := reg.changes
	if c == nil || !c.by.direct || c.by.rolled {
		return false
	}
	by := c.by.by
	return by.node == reader.Node && by.incarnation < reader.Header.Incarnation
}

// takeBackAll takes back what a node's incarnations up to one did by executions about which
// the node decided, and frees what these have allocated: there is nobody left who could
// run them again.
func (s *Store) takeBackAll(f control.Fence) {
	for _, key := range s.undo.inOrder() {
		e := s.undo.byRun[key]
		if key.node != f.Node || !e.direct || e.by.incarnation > f.Incarnation {
			continue
		}
		if !e.rolled {
			s.undo.rollbacks++
			s.rollback(e)
		}
		for _, reg := range slices.Clone(e.regions) {
			if reg.changes != nil && reg.changes.by == e {
				s.release(reg)
			}
		}
	}
}
