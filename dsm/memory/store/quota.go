package store

import "github.com/bifrost-rack/bifrost/internal/fault"

// The last eighth of a machine's memory, and of its regions, is for owners that have less than their share. Whose a node is, and what that owner has, the
// Gatekeeper knows. So an allocation that takes of the last eighth needs its word (Config.Reserve): the store
// answers Overloaded, and says so in Request.Asks. Whoever serves it asks, and hands the request in again with the answer.

// reservePart is which part of a machine is the reserve.
const reservePart = 8

// Word is what the Gatekeeper has said of an allocation.
type Word uint8

// The words.
const (
	Unasked   Word = iota // nothing
	Permitted             // its owner may have the region
	Refused               // its owner has its share
)

// reserved reports whether a region of the class takes of the reserve, or would have to.
func (s *Store) reserved(class uint8) bool {
	memory, regions := uint64(len(s.arena.mem)), s.cfg.Limits.Regions
	return s.arena.used+1<<class > memory-memory/reservePart || len(s.regions.byBase) >= regions-regions/reservePart
}

// may reports whether there may be another region of the class for a request.
func (s *Store) may(r *Request, class uint8) fault.Code {
	switch {
	case len(s.regions.byBase) >= s.cfg.Limits.Regions:
		return fault.NoSpace
	case !s.cfg.Reserve || r.Word == Permitted || !s.reserved(class):
		return fault.OK
	case r.Word == Refused:
		s.refused++
		return fault.NoSpace
	}
	r.Asks = uint64(1) << class
	return fault.Overloaded
}

// Quota is what one node may take of a machine, so that none takes it all. 0 is no
// bound. What exceeds it is refused to that node alone, as Overloaded, until others of its changes are
// committed.
type Quota struct {
	// Undo is the bytes that the undo of its executions takes.
	Undo uint64
}

// QuotaStats counts what was refused to nodes that had all that they may have.
type QuotaStats struct {
	// Allocations were refused by the Gatekeeper's word, Changes for undo.
	Allocations, Changes uint64
}

// Quotas returns these numbers.
func (s *Store) Quotas() QuotaStats { return QuotaStats{s.refused, s.undo.overQuota} }
