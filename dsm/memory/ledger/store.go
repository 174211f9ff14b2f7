package ledger

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

const (
	// Window is how far above the next chunk an append is kept that came before its
	// predecessors: four times what a writer has in flight.
	Window = 256
	// ledgerCost is what a ledger is charged with beside its chunks. An empty one
	// costs as much, so that names alone cannot fill a machine.
	ledgerCost = 512
	// reserve is which part of a ledger's space Answer.Room leaves out: an eighth.
	reserve = 8
)

// Config says what ledgers a machine has room for.
type Config struct {
	// Birth is the number that the machine drew when its memory began. It is in every
	// answer: a copy with another birth number is not the copy that a writer knew, and
	// its ledgers are not those that it wrote. It is not 0.
	Birth uint64
	// Space is how many bytes of records one ledger may take. For a moment, while a base is written beside the records that it
	// stands for, a ledger takes up to twice as much: so a base always fits.
	Space uint64
	// Total is how many bytes all ledgers together may take. Each owner has its share (package share).
	Total uint64
	// Durable makes the store keep what has changed for Changes.
	Durable bool
}

// Store is the ledgers of one copy of a memory machine.
type Store struct {
	cfg     Config
	ledgers map[Name]*ledger
	used    uint64        // what all ledgers take
	shares  *share.Owners // what their owners are charged with: that, and what is reserved
	changes []Change
	// fill is set while another copy is filled from here, filled while this one is filled.
	fill   *filling
	filled *filled
}

// New returns a store without ledgers.
func New(cfg Config) *Store {
	return &Store{cfg: cfg, ledgers: make(map[Name]*ledger), shares: share.NewOwners(cfg.Total)}
}

// Answer is the answer to a request.
type Answer struct {
	Status fault.Code
	// Birth is the machine's birth number.
	Birth uint64
	// Run, Sealed, First and Next are those of the ledger (State). Next acknowledges an
	// append cumulatively: all chunks below it are there.
	Run         uint32
	Sealed      bool
	First, Next uint64
	// Room is how many bytes may still be appended, but for an eighth of the space, which is for what
	// makes room. It counts dsmpacket.ChunkCost for each chunk.
	Room uint64
	// Space is Config.Space.
	Space uint64
}

// Used is how many bytes all ledgers take, those that cannot be read yet included.
func (s *Store) Used() uint64 { return s.used }

// Stat returns what the store knows of a ledger; false if there is none.
func (s *Store) Stat(name Name) (State, bool) {
	l := s.ledgers[name]
	if l == nil {
		return State{}, false
	}
	return l.state, true
}

// Names lists the ledgers in order.
func (s *Store) Names() []Name {
	return slices.SortedFunc(maps.Keys(s.ledgers), func(a, b Name) int { return bytes.Compare(a[:], b[:]) })
}

// Open opens a ledger for a run of a writer, which may append from then on. A ledger
// that nobody has opened before begins with chunk 1. It is refused
//
//   - as NotFound if there is no such ledger: only Grant makes one, so a machine that has
//     lost a ledger never begins it anew,
//   - as PermissionDenied if the ledger is neither that of the writer's node nor
//     granted to the writer,
//   - as Stale if the writer has been fenced, or if the run, or a later one, was sealed
//     or opened by somebody else,
//   - as Unavailable while an earlier run is not sealed.
//
// To open it again for the same run and writer changes nothing.
func (s *Store) Open(name Name, run uint32, w Writer) Answer {
	l := s.ledgers[name]
	switch {
	case l == nil:
		return s.refuse(nil, fault.NotFound)
	case !l.mayOpen(name, w):
		return s.refuse(l, fault.PermissionDenied)
	case s.fenced(w):
		return s.refuse(l, fault.Stale)
	case run == l.state.Run && !l.state.Sealed && w == l.state.Writer:
		return s.answer(l)
	case run <= l.state.Run:
		return s.refuse(l, fault.Stale)
	case l.state.Run != 0 && !l.state.Sealed:
		return s.refuse(l, fault.Unavailable)
	}
	l.state.Run, l.state.Sealed, l.state.Writer = run, false, w
	s.changed(name, l)
	return s.answer(l)
}

// fenced says whether a writer has been fenced, as far as the ledger of its node tells.
func (s *Store) fenced(w Writer) bool {
	own := s.ledgers[NameOf(w.Node)]
	return own != nil && (own.state.Run > w.Incarnation || own.state.Run == w.Incarnation && own.state.Sealed)
}

// begin makes a ledger that nobody has opened.
func (s *Store) begin(name Name, owner share.Owner) *ledger {
	l := &ledger{owner: owner, state: State{First: 1, Next: 1}}
	s.ledgers[name] = l
	s.used += ledgerCost
	s.shares.Force(owner, ledgerCost)
	s.charge(l)
	if s.tail() < s.cfg.Space/reserve {
		for _, other := range s.ledgers { // theirs is smaller now
			s.charge(other)
		}
	}
	return l
}

// tail is how many bytes beyond what a ledger takes are reserved for it in the space of all, for what ends executions and for
// bases: what others append does not take them. It is the last eighth of a ledger's space, or less where there are so many ledgers that these would be
// more than half of the space of all.
func (s *Store) tail() uint64 {
	return min(s.cfg.Space/reserve, s.cfg.Total/2/max(1, uint64(len(s.ledgers))))
}

// charge brings up to date what a ledger's owner is charged with: what the ledger takes, and as much of its tail as the owner's
// share allows.
func (s *Store) charge(l *ledger) {
	room := l.room()
	s.used += room - l.counted
	l.counted = room
	if want := max(room, min(room+s.tail(), 2*s.cfg.Space)); want < l.held {
		s.shares.Release(l.owner, l.held-want)
		l.held = want
	} else if want > l.held {
		need := room - min(room, l.held)
		more := max(need, min(want-l.held, s.shares.Room(l.owner)))
		s.shares.Force(l.owner, more)
		l.held += more
	}
}

// Append stores a chunk behind its predecessor, or keeps it until the predecessor
// comes. The chunks below keep are not needed any more. Only the open run's writer may
// append; everybody else is refused as Stale. A chunk that does not fit is refused as
// NoSpace, one too far ahead as Overloaded; both may be sent again.
func (s *Store) Append(name Name, run uint32, w Writer, keep uint64, c dsmpacket.Chunk) Answer {
	l := s.ledgers[name]
	if l == nil || l.state.Sealed || l.state.Run != run || l.state.Writer != w {
		return s.refuse(l, fault.Stale)
	}
	if c.Number == 0 || keep > min(l.state.Next, c.Number) {
		return s.refuse(l, fault.BadRequest)
	}
	limit := s.limit(l)
	s.cut(name, l, keep)
	added, status := l.append(c, limit)
	if status == fault.NoSpace && limit < s.cfg.Space {
		s.shares.Refuse(l.owner)
	}
	s.charge(l)
	for i := range added {
		s.put(name, &added[i])
	}
	a := s.answer(l)
	a.Status = status
	return a
}

// cut drops the chunks of a ledger below a number.
func (s *Store) cut(name Name, l *ledger, keep uint64) {
	from := l.state.First
	if keep <= from {
		return
	}
	l.keep(keep)
	s.dropped(name, from, keep)
	s.changed(name, l)
}

// MayRead says whether a node may read a ledger: its own, and one that it has opened or
// was granted.
func (s *Store) MayRead(name Name, node netip.Addr) bool {
	l := s.ledgers[name]
	return NameOf(node) == name || l != nil && (l.state.Writer.Node == node || l.granted.Node == node)
}

// Read returns chunks from a number on, as many as fit into size bytes, but at least
// one if there is one. Who may read is the caller's business. It is refused as
// NotFound if there is no such ledger, or if the chunk has been dropped.
func (s *Store) Read(name Name, from uint64, size int) ([]dsmpacket.Chunk, Answer) {
	l := s.ledgers[name]
	if l == nil || from < l.state.First {
		return nil, s.refuse(l, fault.NotFound)
	}
	if from >= l.state.Next {
		return nil, s.answer(l)
	}
	chunks := l.chunks[from-l.state.First:]
	n, bytes := 1, len(chunks[0].Data)
	for n < len(chunks) && bytes+len(chunks[n].Data) <= size {
		bytes += len(chunks[n].Data)
		n++
	}
	return chunks[:n:n], s.answer(l)
}

// Grant makes a ledger if there is none, and says which writer may open it next, beside
// the node whose name it has. The Gatekeeper grants each node its own ledger, at the
// machine that is to keep it, and the ledger of a durable main to the node that is to run
// it. The owner is charged for it from then on; the zero Owner leaves
// it to whoever was. A ledger beyond the owner's share of the machine's space is refused as NoSpace.
func (s *Store) Grant(name Name, w Writer, owner share.Owner) Answer {
	l := s.ledgers[name]
	switch {
	case l == nil && s.shares.Room(owner) < ledgerCost:
		s.shares.Refuse(owner)
		return s.refuse(nil, fault.NoSpace)
	case l == nil:
		l = s.begin(name, owner)
	case owner != (share.Owner{}) && l.owner != owner:
		s.shares.Release(l.owner, ledgerCost+l.held)
		s.shares.Force(owner, ledgerCost+l.held)
		l.owner = owner
	}
	l.granted = w
	s.changed(name, l)
	return s.answer(l)
}

// Fence ends all runs of a node's incarnations up to the writer's, and returns the
// names of the ledgers that they had open, and of the node's own if it is here. An
// incarnation that has been fenced opens nothing any more: the node's own ledger is sealed
// for it even if it never opened it, and what was granted to it is not granted any more. A
// fence is never refused. To fence again changes nothing.
func (s *Store) Fence(w Writer) (names []Name) {
	own := NameOf(w.Node)
	for _, name := range s.Names() {
		l := s.ledgers[name]
		if l.granted.Node == w.Node && l.granted.Incarnation <= w.Incarnation {
			l.granted = Writer{}
		}
		if name == own && l.state.Run < w.Incarnation {
			l.state.Run, l.state.Writer = w.Incarnation, w
		}
		if l.state.Writer.Node != w.Node || l.state.Writer.Incarnation > w.Incarnation {
			continue // somebody else's, or a later incarnation's
		}
		names = append(names, name)
		s.seal(name, l)
	}
	return names
}

// seal ends the run that has a ledger open.
func (s *Store) seal(name Name, l *ledger) {
	next := l.state.Next
	l.seal()
	s.charge(l)
	s.unsent(name, l.state.Next)
	s.dropped(name, l.state.Next, next)
	s.changed(name, l)
}

// End makes the copies of a sealed ledger equal: it drops the chunks below first, which
// another copy has dropped already, and those from next on, which another copy has not
// got. The ledger then ends with a whole record at or before next. It is refused as
// NotFound if there is no such ledger, as Stale unless the run is the last one and has
// been sealed, and as BadRequest if the range lies outside of the ledger.
func (s *Store) End(name Name, run uint32, first, next uint64) Answer {
	l := s.ledgers[name]
	switch {
	case l == nil:
		return s.refuse(nil, fault.NotFound)
	case l.state.Run != run || !l.state.Sealed:
		return s.refuse(l, fault.Stale)
	case first < l.state.First || first > next || next > l.state.Next:
		return s.refuse(l, fault.BadRequest)
	}
	was := l.state.Next
	s.cut(name, l, first)
	l.endAt(next)
	s.charge(l)
	s.unsent(name, l.state.Next)
	s.dropped(name, l.state.Next, was)
	return s.answer(l)
}

// Delete drops a ledger that nobody will ask for again. One that is open is refused as
// Unavailable; one that is not there is no error.
func (s *Store) Delete(name Name) Answer {
	l := s.ledgers[name]
	switch {
	case l == nil:
		return s.answer(nil)
	case l.state.Run != 0 && !l.state.Sealed:
		return s.refuse(l, fault.Unavailable)
	}
	s.dropped(name, l.state.First, l.state.Next)
	s.used -= ledgerCost + l.counted
	s.shares.Release(l.owner, ledgerCost+l.held)
	s.unsent(name, 0)
	delete(s.ledgers, name)
	if s.cfg.Durable {
		s.changes = append(s.changes, Change{Name: name, Gone: true})
	}
	return s.answer(nil)
}

// answer tells how a ledger stands; nil stands for none.
func (s *Store) answer(l *ledger) Answer {
	a := Answer{Birth: s.cfg.Birth, Space: s.cfg.Space}
	if l != nil {
		a.Run, a.Sealed, a.First, a.Next = l.state.Run, l.state.Sealed, l.state.First, l.state.Next
		space, tail := s.cfg.Space, s.tail()
		limit := s.held(l)
		limit = min(2*space-space/reserve, limit-min(limit, tail))
		a.Room = limit - min(limit, l.room())
	}
	return a
}

// held is how many bytes a ledger's owner may hold for it.
func (s *Store) held(l *ledger) uint64 { return l.held + s.shares.Room(l.owner) }

// limit is how many bytes a ledger may take: its space and as much for a base, or what its owner's share allows.
func (s *Store) limit(l *ledger) uint64 { return min(2*s.cfg.Space, s.held(l)) }

// Refused tells how often owners were refused room beyond their share. Owners beyond share.MaxOwners are counted together,
// as that returns.
func (s *Store) Refused(each func(owner share.Owner, n uint64)) (others uint64) {
	return s.shares.Refusals().Each(each)
}

func (s *Store) refuse(l *ledger, status fault.Code) Answer {
	a := s.answer(l)
	a.Status = status
	return a
}
