package ledger

import (
	"encoding/binary"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// The ledgers of a machine's first copy are given to its second one while they are written
// (package fill). Chunks are given first, those appended meanwhile too. When the source
// closes, how each ledger stands follows. Chunks that came before their predecessors are
// not given: they were not acknowledged, so their writer sends them again.

// The kinds of items that a source gives: the first byte.
const (
	itemChunk = 1 + iota // chunkItem, data; a later one with the same number counts
	itemState            // a ledger, all of whose chunks have come: stateItem
	itemEnd              // nothing follows: endItem
	itemCut              // of a complete copy: what of a sealed ledger stays: cutItem
)

// The items without the first byte and what follows them, big endian.
type (
	chunkItem struct {
		Name      Name
		Number    uint64
		Continues bool
	}
	stateItem struct {
		Name                  Name
		Run                   uint32
		Sealed                bool
		Writer, Granted       [16]byte // zero for nobody
		WriterInc, GrantedInc uint32
		First, Next           uint64
	}
	// ownerItem stands behind a stateItem; that of an earlier version of the source has none.
	ownerItem struct{ Port, User uint32 }
	endItem   struct{ Ledgers, Birth uint64 }
	cutItem   struct {
		Name        Name
		Run         uint32
		First, Next uint64
	}
)

// filling is a source's side.
type filling struct {
	sent   map[Name]uint64 // number of the next chunk to be given
	todo   []Name          // of the present round
	states []Name          // after closing
	closed bool
	ended  bool
	done   uint64
}

// filled is the side of a copy that is being filled.
type filled struct {
	chunks map[Name]map[uint64]dsmpacket.Chunk
}

// Fill begins to give the ledgers to another copy.
func (s *Store) Fill() { s.fill = &filling{sent: map[Name]uint64{}} }

// EndFill ends that.
func (s *Store) EndFill() { s.fill = nil }

// CloseFill says that nothing is appended or commanded any more until EndFill.
func (s *Store) CloseFill() {
	if s.fill != nil {
		s.fill.closed, s.fill.states, s.fill.todo = true, s.Names(), nil
	}
}

// FillLeft is about how many bytes of chunks are to be given, as if the chunks of a ledger
// were of one size, and how many have been given.
func (s *Store) FillLeft() (left, done uint64) {
	if s.fill == nil {
		return 0, 0
	}
	for name, l := range s.ledgers {
		if n := uint64(len(l.chunks)); n > 0 {
			given := min(n, max(s.fill.sent[name], l.state.First)-l.state.First)
			left += (n - given) * (l.state.Used / n)
		}
	}
	return left, s.fill.done
}

// FillNext returns the next item for the new copy: a chunk came in a datagram, and goes in one. It reports false if there is nothing
// now; after CloseFill, that nothing more will come.
func (s *Store) FillNext(int) (item []byte, ok bool) {
	f := s.fill
	if f == nil {
		return nil, false
	}
	if item := f.chunk(s); item != nil {
		return item, true
	}
	switch {
	case !f.closed || f.ended:
		return nil, false
	case len(f.states) == 0:
		f.ended = true
		return encode(itemEnd, endItem{uint64(len(s.ledgers)), s.cfg.Birth}), true
	}
	name := f.states[0]
	f.states = f.states[1:]
	l := s.ledgers[name]
	v := stateItem{
		Name: name, Run: l.state.Run, Sealed: l.state.Sealed, WriterInc: l.state.Writer.Incarnation, GrantedInc: l.granted.Incarnation,
		First: l.state.First, Next: l.state.Next,
	}
	v.Writer, v.Granted = address(l.state.Writer.Node), address(l.granted.Node)
	return append(encode(itemState, v), encode(0, ownerItem(l.owner))[1:]...), true
}

// chunk gives the next chunk, nil if there is none now.
func (f *filling) chunk(s *Store) []byte {
	if len(f.todo) == 0 {
		f.todo = s.Names()
	}
	for ; len(f.todo) > 0; f.todo = f.todo[1:] {
		name := f.todo[0]
		l := s.ledgers[name]
		if l == nil {
			continue
		}
		number := max(f.sent[name], l.state.First)
		if number >= l.state.Next {
			continue
		}
		f.sent[name] = number + 1
		c := l.chunks[number-l.state.First]
		f.done += uint64(len(c.Data))
		return append(encode(itemChunk, chunkItem{name, number, c.Continues}), c.Data...)
	}
	return nil
}

// unsent says that the chunks of a ledger from a number on are others from now on.
func (s *Store) unsent(name Name, next uint64) {
	if s.fill != nil {
		s.fill.sent[name] = min(s.fill.sent[name], next)
	}
}

func address(a netip.Addr) [16]byte {
	if !a.IsValid() {
		return [16]byte{}
	}
	return a.As16()
}

func writerOf(node [16]byte, incarnation uint32) Writer {
	if node == ([16]byte{}) {
		return Writer{}
	}
	return Writer{netip.AddrFrom16(node), incarnation}
}

// encode returns an item's first byte and fields.
func encode(kind byte, fields any) []byte {
	b, err := binary.Append([]byte{kind}, binary.BigEndian, fields)
	if err != nil {
		panic(err) // of a type without a fixed size
	}
	return b
}

func badItem(format string, args ...any) error {
	return fault.New(fault.BadRequest, "fill ledgers", format, args...)
}

// BeFilled begins to take the items of another copy. The store must be new.
func (s *Store) BeFilled() { s.filled = &filled{chunks: map[Name]map[uint64]dsmpacket.Chunk{}} }

// Filling reports whether items are still to come.
func (s *Store) Filling() bool { return s.filled != nil }

// Take takes the source's next item. An error means that the copy cannot be filled: NoSpace,
// or BadRequest for an item that makes no sense. A copy that is complete takes what Level gives.
func (s *Store) Take(item []byte) error {
	if len(item) == 0 || (s.filled == nil) != (item[0] == itemCut) {
		return badItem("an item of %d bytes, or one behind the last", len(item))
	}
	read := func(fields any) ([]byte, error) {
		n, err := binary.Decode(item[1:], binary.BigEndian, fields)
		if err != nil {
			return nil, badItem("%d bytes of %T", len(item), fields)
		}
		return item[1+n:], nil
	}
	switch item[0] {
	case itemChunk:
		var v chunkItem
		data, err := read(&v)
		if err != nil {
			return err
		}
		of := s.filled.chunks[v.Name]
		if of == nil {
			of = map[uint64]dsmpacket.Chunk{}
			s.filled.chunks[v.Name] = of
		}
		s.used += cost(len(data)) - taken(of, v.Number)
		of[v.Number] = dsmpacket.Chunk{Number: v.Number, Continues: v.Continues, Data: append([]byte(nil), data...)}
		return s.fits()
	case itemState:
		var v stateItem
		rest, err := read(&v)
		if err != nil {
			return err
		}
		var owner ownerItem
		if _, err := binary.Decode(rest, binary.BigEndian, &owner); err != nil {
			owner = ownerItem{} // nobody known
		}
		return s.takeState(&v, share.Owner(owner))
	case itemEnd:
		var v endItem
		if _, err := read(&v); err != nil {
			return err
		}
		return s.takeEnd(&v)
	case itemCut:
		var v cutItem
		if _, err := read(&v); err != nil {
			return err
		}
		return s.level(&v)
	}
	return badItem("item of kind %d", item[0])
}

// Level ends a sealed ledger as both copies of a machine can, as [Store.End] says, and returns the item that does the same at the
// other copy. A ledger that is gone is no error: it goes there, too.
func (s *Store) Level(name Name, run uint32, first, next uint64) (item []byte, err error) {
	v := cutItem{name, run, first, next}
	return encode(itemCut, v), s.level(&v)
}

func (s *Store) level(v *cutItem) error {
	if a := s.End(v.Name, v.Run, v.First, v.Next); a.Status != fault.OK && a.Status != fault.NotFound {
		return badItem("ledger %x, run %d: cannot keep chunks %d to %d: %v", v.Name, v.Run, v.First, v.Next, a.Status)
	}
	return nil
}

// taken is what a chunk with a number costs already.
func taken(of map[uint64]dsmpacket.Chunk, number uint64) uint64 {
	if c, ok := of[number]; ok {
		return cost(len(c.Data))
	}
	return 0
}

// fits reports whether what has come fits.
func (s *Store) fits() error {
	if s.used > s.cfg.Total {
		return fault.New(fault.NoSpace, "fill ledgers", "no room: %d of %d bytes", s.used, s.cfg.Total)
	}
	return nil
}

// takeState makes a ledger of the chunks that have come.
func (s *Store) takeState(v *stateItem, owner share.Owner) error {
	of := s.filled.chunks[v.Name]
	if v.First == 0 || v.First > v.Next || v.Next-v.First > uint64(len(of)) || s.ledgers[v.Name] != nil {
		return badItem("chunks %d to %d of a ledger, %d have come", v.First, v.Next, len(of))
	}
	l := &ledger{granted: writerOf(v.Granted, v.GrantedInc), owner: owner, state: State{
		Run: v.Run, Sealed: v.Sealed, Writer: writerOf(v.Writer, v.WriterInc), First: v.First, Next: v.Next,
	}}
	for n := v.First; n < v.Next; n++ {
		c, ok := of[n]
		if !ok {
			return badItem("chunk %d of a ledger has not come", n)
		}
		l.chunks = append(l.chunks, c)
		l.state.Used += cost(len(c.Data))
	}
	delete(s.filled.chunks, v.Name)
	l.counted, l.held = l.room(), l.room() // its chunks are counted already
	s.shares.Force(l.owner, ledgerCost+l.held)
	s.ledgers[v.Name] = l
	return nil
}

// takeEnd checks that all is there that the source has.
func (s *Store) takeEnd(v *endItem) error {
	if uint64(len(s.ledgers)) != v.Ledgers || v.Birth == 0 {
		return badItem("%d ledgers, the source has %d", len(s.ledgers), v.Ledgers)
	}
	s.used = 0
	for _, l := range s.ledgers {
		s.used += ledgerCost + l.room()
		s.charge(l)
	}
	if err := s.fits(); err != nil {
		return err
	}
	s.cfg.Birth, s.filled = v.Birth, nil
	for _, name := range s.Names() {
		l := s.ledgers[name]
		s.changed(name, l)
		for i := range l.chunks {
			s.put(name, &l.chunks[i])
		}
	}
	return nil
}

// Birth is the birth number: the source's, once the copy has been filled.
func (s *Store) Birth() uint64 { return s.cfg.Birth }
