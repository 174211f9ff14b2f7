package ledger

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// Name names a ledger within a machine: the address of a node, or the hash of the
// name of a durable main.
type Name [16]byte

// NameOf returns the name of a node's own ledger.
func NameOf(node netip.Addr) Name { return node.As16() }

// Writer is an incarnation of a node.
type Writer struct {
	Node        netip.Addr
	Incarnation uint32
}

// State is what the store knows of a ledger, without its chunks.
type State struct {
	// Run is the run that opened the ledger last, 0 if none has.
	Run uint32
	// Sealed says that Run has ended.
	Sealed bool
	// Writer is who opened it.
	Writer Writer
	// First and Next bound the chunks: those from First up to, but without, Next are
	// there. A ledger without chunks has First = Next.
	First, Next uint64
	// Used is how many bytes it takes: its chunks, and dsmpacket.ChunkCost for each.
	Used uint64
}

// ledger is one ledger.
type ledger struct {
	state   State
	granted Writer                     // who may open it next, beside the node whose name it has
	owner   share.Owner                // who is charged for it
	counted uint64                     // room, as the store's figures have it
	held    uint64                     // bytes that the owner is charged with beside ledgerCost: room at least
	chunks  []dsmpacket.Chunk          // First … Next-1
	early   map[uint64]dsmpacket.Chunk // appends that came before their predecessors
	waiting uint64                     // bytes of early
}

// room is how many bytes the ledger takes, with the chunks that came early.
func (l *ledger) room() uint64 { return l.state.Used + l.waiting }

// cost is what a chunk of n bytes is charged with.
func cost(n int) uint64 { return uint64(n) + dsmpacket.ChunkCost }

// mayOpen says whether a writer may open the ledger of a name.
func (l *ledger) mayOpen(name Name, w Writer) bool {
	return NameOf(w.Node) == name || l != nil && l.granted == w && w != Writer{}
}

// put appends the chunk that is due, and those after it that came early.
func (l *ledger) put(c dsmpacket.Chunk) (added []dsmpacket.Chunk) {
	for ok := true; ok; {
		l.chunks = append(l.chunks, c)
		added = append(added, c)
		l.state.Next = c.Number + 1
		l.state.Used += cost(len(c.Data))
		c, ok = l.early[l.state.Next]
		if ok {
			delete(l.early, c.Number)
			l.waiting -= cost(len(c.Data))
		}
	}
	return added
}

// keep drops the chunks below a number, which lies between First and Next.
func (l *ledger) keep(from uint64) {
	n := from - l.state.First
	for _, c := range l.chunks[:n] {
		l.state.Used -= cost(len(c.Data))
	}
	clear(l.chunks[:n]) // the array outlives them
	l.chunks, l.state.First = l.chunks[n:], from
}

// endAt drops the chunks from a number on, and before them those whose record would
// be left without its end.
func (l *ledger) endAt(next uint64) {
	for len(l.chunks) > 0 {
		last := &l.chunks[len(l.chunks)-1]
		if last.Number < next && !last.Continues {
			break
		}
		l.state.Used -= cost(len(last.Data))
		*last, l.chunks = dsmpacket.Chunk{}, l.chunks[:len(l.chunks)-1]
		l.state.Next--
	}
}

// seal ends the run.
func (l *ledger) seal() {
	l.state.Sealed = true
	l.early, l.waiting = nil, 0
	l.endAt(l.state.Next)
}

// append takes a chunk of the run that has the ledger open. It may hold as many bytes
// as limit says.
func (l *ledger) append(c dsmpacket.Chunk, limit uint64) (added []dsmpacket.Chunk, status fault.Code) {
	_, early := l.early[c.Number]
	switch due := c.Number == l.state.Next; {
	case c.Number < l.state.Next || early:
		return nil, fault.OK // known: the answer says how far the ledger goes
	case c.Number >= l.state.Next+Window:
		return nil, fault.Overloaded
	case due && l.state.Used+cost(len(c.Data)) > limit, !due && l.room()+cost(len(c.Data)) > limit:
		return nil, fault.NoSpace
	case due:
		if l.room()+cost(len(c.Data)) > limit {
			l.early, l.waiting = nil, 0 // they would take the room of their predecessor
		}
		return l.put(c), fault.OK
	}
	if l.early == nil {
		l.early = make(map[uint64]dsmpacket.Chunk)
	}
	l.early[c.Number] = c
	l.waiting += cost(len(c.Data))
	return nil, fault.OK
}
