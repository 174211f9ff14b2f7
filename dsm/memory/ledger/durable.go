package ledger

import (
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// Change is one change of a durable store. Changes make an empty store what this one
// is if they are loaded in their order. Exactly one of the fields below Name is set.
type Change struct {
	Name Name
	// Put is a new chunk.
	Put *dsmpacket.Chunk
	// Drop says that the chunks from First up to, but without, Next are gone.
	Drop *Range
	// Meta is the ledger's new state.
	Meta *Meta
	// Gone says that the ledger is gone.
	Gone bool
}

// Range is a range of chunks: First, First+1, …, Next-1.
type Range struct{ First, Next uint64 }

// Meta is what has to be kept of a ledger beside its chunks.
type Meta struct {
	Run     uint32
	Sealed  bool
	Writer  Writer
	Granted Writer
	// First is the number of its first chunk, or of its next one if it has none.
	First uint64
	// Owner is who is charged for it.
	Owner share.Owner
}

// Changes returns what has changed since the last call, in order. The shell makes the
// changes durable before it sends the answers to the requests that caused them.
func (s *Store) Changes() []Change {
	c := s.changes
	s.changes = nil
	return c
}

// changed notes a ledger's state.
func (s *Store) changed(name Name, l *ledger) {
	if s.cfg.Durable {
		s.changes = append(s.changes, Change{Name: name, Meta: l.meta()})
	}
}

// put notes a new chunk.
func (s *Store) put(name Name, c *dsmpacket.Chunk) {
	if s.cfg.Durable {
		s.changes = append(s.changes, Change{Name: name, Put: &dsmpacket.Chunk{Number: c.Number, Continues: c.Continues, Data: c.Data}})
	}
}

// dropped notes that chunks are gone.
func (s *Store) dropped(name Name, first, next uint64) {
	if s.cfg.Durable && first < next {
		s.changes = append(s.changes, Change{Name: name, Drop: &Range{first, next}})
	}
}

func (l *ledger) meta() *Meta {
	return &Meta{Run: l.state.Run, Sealed: l.state.Sealed, Writer: l.state.Writer, Granted: l.granted, First: l.state.First, Owner: l.owner}
}

// Load puts one ledger back as a durable store had it: its state, and its chunks in the
// order of their numbers. It returns an error if the chunks are not those from Meta.First
// on without a gap, or if the ledger is there already. A ledger that is damaged in this way
// is not loaded: it must not be taken for one that is whole.
func (s *Store) Load(name Name, m Meta, chunks []dsmpacket.Chunk) error {
	if s.ledgers[name] != nil {
		return fault.New(fault.BadRequest, "load ledger", "%x is there already", name)
	}
	if m.First == 0 {
		return damaged(name, "it begins with chunk 0")
	}
	for i, c := range chunks {
		if want := m.First + uint64(i); c.Number != want {
			return damaged(name, fmt.Sprintf("chunk %d is missing", want))
		}
	}
	l := s.begin(name, m.Owner)
	l.granted = m.Granted
	l.state = State{Run: m.Run, Sealed: m.Sealed, Writer: m.Writer, First: m.First, Next: m.First}
	for _, c := range chunks {
		l.put(c)
	}
	s.charge(l)
	return nil
}

func damaged(name Name, what string) error {
	return fault.New(fault.Internal, "load ledger", "%x is damaged: %s; restore the directory, or empty it, which loses what only this machine had", name, what)
}

// Kept is a ledger as Load takes it.
type Kept struct {
	Name   Name
	Meta   Meta
	Chunks []dsmpacket.Chunk
}

// Copy returns all ledgers as they are, in the order of their names. The bytes of chunks are
// shared with the store, which does not change them.
func (s *Store) Copy() []Kept {
	names := s.Names()
	all := make([]Kept, len(names))
	for i, name := range names {
		l := s.ledgers[name]
		all[i] = Kept{Name: name, Meta: *l.meta(), Chunks: slices.Clone(l.chunks)}
	}
	return all
}
