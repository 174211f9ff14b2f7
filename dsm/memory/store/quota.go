package store

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

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
	return s.arena.used+1<<class > memory-memory/reservePart || len(s.regions.byID) >= regions-regions/reservePart
}

// may reports whether there may be another region of the class for a request.
func (s *Store) may(r *Request, class uint8) fault.Code {
	switch {
	case len(s.regions.byID) >= s.cfg.Limits.Regions:
		return fault.NoSpace
	case !s.cfg.Reserve || r.Word == Permitted || !s.reserved(class):
		return fault.OK
	case r.Word == Refused:
		return fault.NoSpace
	}
	r.Asks = uint64(1) << class
	return fault.Overloaded
}

// What executions change, and nobody has committed, is charged to the owners of their nodes (package share). An owner that has its share waits until some of
// that is committed, as everybody does when there is no room. Until it is known whose a node is, it is a stranger.

// maxOwners is of how many nodes the owners are remembered: more than a rack has.
const maxOwners = 4096

// owners are whose nodes are, as far as the Gatekeeper has said.
type owners struct{ of map[netip.Addr]ownerOf }

type ownerOf struct {
	share.Owner
	incarnation uint32 // an owner is asked for again when its node goes on as another one, at another blade perhaps
}

// ownerOf is whose a node is; nil knows nobody.
func (o *owners) ownerOf(node netip.Addr) share.Owner {
	if o != nil {
		if known := o.of[node]; known.Known() {
			return known.Owner
		}
	}
	return share.Stranger(node)
}

// seek reports whether it is to be asked whose the node of a request is.
func (o *owners) seek(r *Request) bool {
	if o == nil {
		return false
	}
	known, said := o.of[r.Node]
	return !said || known.incarnation < r.Header.Incarnation
}

// Learn says whose an incarnation of a node is; the zero Owner stands for nobody known.
func (s *Store) Learn(node netip.Addr, incarnation uint32, owner share.Owner) {
	o := s.undo.owners
	if o == nil {
		return
	}
	if o.of == nil || len(o.of) >= maxOwners {
		o.of = map[netip.Addr]ownerOf{}
	}
	o.of[node] = ownerOf{owner, incarnation}
	s.undo.shares.Learn(node)
}

// RefusedUndo tells how often owners were refused a change beyond their share of the undo. Owners beyond share.MaxOwners are counted together, which it
// returns.
func (s *Store) RefusedUndo(each func(owner share.Owner, n uint64)) (others uint64) {
	return s.undo.shares.Refusals().Each(each)
}
