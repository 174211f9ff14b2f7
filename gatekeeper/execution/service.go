package execution

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// leastFold is how many bytes of answers are not worth writing a state anew.
const leastFold = 4 << 10

// service is a stateful service: the numbers of its calls, and its state.
type service struct {
	id     uint64
	last   uint64 // number given out
	state  []byte // sections: the last snapshot and the changes since
	folded uint64 // number of the last call in the state's record
	base   int    // bytes of the record's state
	// kept are the answers that stay for the changes in them, though nobody asks for
	// them any more.
	kept  []wal.ID
	bytes int // of kept
	sizes map[rpcpacket.ID]int
	// undecided are the calls without an outcome by their numbers; all below low have one.
	undecided map[uint64]*call
	low       uint64
	// settling are the calls whose outcomes are logged, but not in effect yet: the
	// memory servers have not committed, or leases have not ended.
	settling map[*call]struct{}
	// enlisted are the direct calls that their node has handed over while it ran them, until
	// their outcomes are in effect. They run before those with numbers.
	enlisted map[*call]struct{}
}

func serviceID(id uint64) (k wal.ID) {
	binary.BigEndian.PutUint64(k[8:], id)
	return k
}

func (t *Table) service(id uint64) *service {
	s := t.services[id]
	if s == nil {
		s = &service{id: id, low: 1, sizes: map[rpcpacket.ID]int{}, undecided: map[uint64]*call{}, settling: map[*call]struct{}{}, enlisted: map[*call]struct{}{}}
		t.services[id] = s
	}
	return s
}

// number gives a call the next number.
func (s *service) number(k *call) {
	s.last++
	s.undecided[s.last] = k
	k.order = s.last
}

// chase has the call that runs before k in its service delivered again until it is answered,
// because somebody waits for what comes after it. Its own caller may have given it up: then
// nobody else sends it again, and if its delivery was lost the service would stand still.
func (t *Table) chase(k *call) {
	if k.order == 0 {
		return
	}
	s := t.service(k.service)
	if first := s.undecided[s.next()]; first != nil && first != k && first.sent {
		t.lonely[first] = struct{}{}
	}
}

// settling notes that a call's outcome is logged, whose effects the next calls of its
// service may have to wait for.
func (t *Table) settling(k *call) {
	if k.order > 0 {
		s := t.service(k.service)
		s.settling[k] = struct{}{}
		delete(s.undecided, k.order)
	}
}

// effective says that a call's outcome is in effect. Its node begins the service's next
// call when that is acknowledged; another incarnation of it is given that call only now.
func (t *Table) effective(k *call) {
	if k.serial {
		delete(t.service(k.service).enlisted, k)
		t.releaseAll(k.at)
		return
	}
	if k.order == 0 {
		return
	}
	delete(t.service(k.service).settling, k)
	if k.incarnation != k.at.incarnation {
		t.releaseAll(k.at)
	}
}

// changed takes in what an answer says of its service's state. A snapshot is
// written down as such; changes stay in the answer's record until they are many.
// It reports whether the answer's trailer has such changes.
func (t *Table) changed(k *call, b []byte, size int) bool {
	s := t.service(k.service)
	s.sizes[k.id] = size
	before := len(s.state)
	if s.apply(b) {
		t.fold(s, k.order)
		return false
	}
	return len(s.state) > before
}

// mark takes in what the answer to an enlisted call says of its service's state: where in
// the node's ledger it is. It is written down at once, since the call has no number.
func (t *Table) mark(k *call, b []byte) {
	if s := t.service(k.service); s.apply(b) {
		t.fold(s, max(s.folded, s.decided()))
	}
}

// apply brings the state up to date. It reports whether it is a new snapshot.
func (s *service) apply(b []byte) (snapshot bool) {
	sections, err := trailer.Parse(b)
	if err != nil {
		return false // its own runtime wrote it; the state stays as it was
	}
	for _, section := range sections {
		switch section.Type {
		case trailer.Snapshot:
			s.state, snapshot = section.Append(nil), true
		case trailer.Delta:
			s.state = section.Append(s.state)
		default: // no part of the state
		}
	}
	return snapshot
}

// keep reports whether the record of an answer has to stay: the state's record
// does not know of it. When there are many, they are folded.
func (s *service) keep(t *Table, k *call) bool {
	size := s.sizes[k.id]
	delete(s.sizes, k.id)
	if k.order <= s.folded {
		return false
	}
	s.kept = append(s.kept, wal.ID(k.id))
	s.bytes += size
	if s.bytes > max(s.base, leastFold) {
		t.fold(s, s.decided())
	}
	return true
}

// decided is the highest number up to which all calls have been decided.
func (s *service) decided() uint64 { return s.next() - 1 }

// fold writes the state down as it is after a call, and strikes out the answers
// that are no longer needed.
func (t *Table) fold(s *service, order uint64) {
	s.folded, s.base = order, len(s.state)
	t.put(wal.Record{Kind: wal.KindState, ID: serviceID(s.id), Order: order, Data: s.state[:len(s.state):len(s.state)]})
	for _, id := range s.kept {
		t.strike(wal.KindReply, id)
	}
	s.kept, s.bytes = nil, 0
}

// State returns what is logged of a stateful service, by its hash: its last
// snapshot with the changes since, as sections of a trailer, and the number of
// the call that a new node of it has to run first.
func (t *Table) State(service uint64) (sections []byte, next uint64) {
	s := t.services[service]
	if s == nil {
		return nil, 1
	}
	return s.state, s.next()
}

// First is the call of a stateful service that a new node of it has to run before any that
// does not come from here, zero if there is none. While unsettled, outcomes of calls that a
// former node has run are not in effect yet, and nothing is to run. A node waits for the first call: it is delivered again
// until it is answered, for its own caller may have given it up.
func (t *Table) First(service uint64) (first rpcpacket.ID, unsettled bool) {
	s := t.services[service]
	if s == nil {
		return first, false
	}
	unsettled = len(s.settling) > 0
	if k := s.undecided[s.next()]; k != nil {
		if first = k.id; k.sent {
			t.lonely[k] = struct{}{}
		}
	}
	for k := range s.enlisted {
		if k.stage == running {
			first = k.id
		} else {
			unsettled = true
		}
	}
	return first, unsettled
}

// next is the lowest number that is not decided.
func (s *service) next() uint64 {
	for s.low <= s.last {
		if _, open := s.undecided[s.low]; open {
			break
		}
		s.low++ // what is decided stays so
	}
	return s.low
}

// stateOf returns a checkpoint's state, as a section.
func stateOf(b []byte) []byte {
	sections, err := trailer.Parse(b)
	if err != nil {
		return nil
	}
	for _, s := range sections {
		if s.Type == trailer.State {
			return s.Append(nil)
		}
	}
	return nil
}

// Reset forgets the state of a service that nobody deploys any more; numbers go on.
// Its calls must have ended.
func (t *Table) Reset(service uint64) Output {
	if s := t.services[service]; s != nil && (s.last > 0 || len(s.state) > 0) {
		s.state = nil
		t.fold(s, s.last)
	}
	return t.take()
}
