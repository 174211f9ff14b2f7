package store

import (
	"fmt"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Config says what a machine has.
type Config struct {
	Prefix, Machine uint8 // bytes 4 and 5 of its pointers
	// Epoch is a lower bound of the addresses handed out. Every boot of a machine
	// needs one above all addresses of its earlier boots.
	Epoch uint64
	// Memory is what the regions live in; its bytes must be zero.
	Memory []byte
	// Discard turns a large part of Memory, made of whole pages, into zeros.
	Discard func([]byte)
	// MaxData is how many bytes one reply can carry.
	MaxData int
	// Quota is what one node may take.
	Quota  Quota
	Limits Limits
}

// Store is the regions and windows of one memory machine.
type Store struct {
	cfg     Config
	space   space
	arena   *arena
	regions regions
	clients clients
	undo    undo
	shadows idle
	// mirror is which copy of its machine this is; diverged counts what Diverged tells.
	mirror   packet.Mirror
	diverged uint64
	lost     uint64 // regions below this address are lost, see Lost
	// fill is set while another copy is filled from here, filled while this one is filled.
	fill   *filling
	filled *filled
	held   accounts
}

// New returns an empty store.
func New(cfg Config) *Store {
	cfg.Limits = cfg.Limits.withDefaults()
	return &Store{
		cfg: cfg, space: newSpace(cfg.Epoch), arena: newArena(cfg.Memory, cfg.Discard),
		clients: newClients(cfg.Limits),
		undo:    undo{byRun: map[runKey]*execution{}, byNode: map[netip.Addr]uint64{}, moving: map[control.ExecutionID]*execution{}, quota: cfg.Quota.Undo, marks: marks{most: cfg.Limits.Marks}},
		mirror:  packet.Mirror{Members: 1},
	}
}

// Lost says that regions below an address were those of earlier starts of the machine,
// and are lost: whoever asks for one is told that it is Unavailable.
func (s *Store) Lost(below uint64) { s.lost = below }

// absent is what an operation on an address answers where no region is. Offset 0 is
// never a region's.
func (s *Store) absent(p packet.Pointer) fault.Code {
	if at := p.Offset(); at != 0 && at < s.lost {
		return fault.Unavailable
	}
	return fault.NotFound
}

// Used is how many bytes are allocated.
func (s *Store) Used() uint64 { return s.arena.used }

// Addresses is above all addresses that were handed out.
func (s *Store) Addresses() uint64 { return s.space.next }

// Dirty reports whether there is something to Clean.
func (s *Store) Dirty() bool { return len(s.arena.dirty) > 0 }

// Clean zeroes up to n bytes, whole pages, of freed memory. An allocation that
// needs the memory sooner cleans it itself.
func (s *Store) Clean(n int) { s.arena.clean(n) }

// Request is one datagram that came in.
type Request struct {
	Node   netip.Addr     // who asks: the source address
	To     packet.Pointer // what is asked: the destination address
	Header packet.Header
	Data   []byte
	// Receive, if set, stands for the Data of a write, which has not been received yet: of so
	// many bytes, Size. The store calls it at most once, when everything but the data is
	// known to be good and what the write changes can be brought back. It fills the pieces,
	// which are the region's own bytes. False says that they are what they were.
	Receive func(to [2][]byte) bool
	Size    int
}

// size is how many bytes of data the request carries.
func (r *Request) size() int {
	if r.Receive != nil {
		return r.Size
	}
	return len(r.Data)
}

// Drop says why a request gets no answer.
type Drop uint8

// The reasons.
const (
	NotDropped  Drop = iota
	Malformed        // the header could not be parsed (counted by the caller of Handle)
	Foreign          // not a request, or not for this machine
	Late             // below its client's floor: settled, so it must not be applied
	Dead             // settled before it came
	Filling          // the copy is not complete yet, or another one is just being completed
	DropReasons      // how many there are
)

// String returns the reason in words.
func (d Drop) String() string {
	switch d {
	case NotDropped:
		return "not dropped"
	case Malformed:
		return "malformed"
	case Foreign:
		return "foreign"
	case Late:
		return "late"
	case Dead:
		return "dead"
	case Filling:
		return "filling"
	}
	return fmt.Sprintf("drop %d", uint8(d))
}

// Handle carries one request out, or answers it from the client's window.
func (s *Store) Handle(r *Request) (Answer, Drop) {
	a, drop := s.handle(r)
	a.Header.Mirror = s.mirror
	return a, drop
}

func (s *Store) handle(r *Request) (Answer, Drop) {
	if r.Header.Kind != packet.Request || !r.To.InPrefix(s.cfg.Prefix) || r.To.Machine() != s.cfg.Machine {
		return Answer{}, Foreign
	}
	if s.filled != nil || s.Withholds() && r.To.Op() != packet.OpRead {
		return Answer{}, Filling // the client asks again
	}
	c, st := s.clients.admit(r.Node, r.Header.Incarnation, r.Header.Floor)
	switch {
	case st == stale:
		return refuse(r, fault.Stale), NotDropped
	case st == noRecord:
		return refuse(r, fault.Overloaded), NotDropped
	case r.Header.Request < c.window.floor:
		return tooLate(r, Late)
	}
	if rec := c.window.find(r.Header.Request); rec != nil {
		if rec.dead {
			return tooLate(r, Dead)
		}
		return s.replay(r, rec), NotDropped
	}
	if r.Header.More > 0 && r.To.Op() != packet.OpRead {
		return refuse(r, fault.BadRequest), NotDropped
	}
	switch r.To.Op() {
	case packet.OpRead:
		return s.read(r), NotDropped
	case packet.OpSettle:
		return s.settle(r, c), NotDropped
	case packet.OpAlloc, packet.OpWrite, packet.OpFree:
		return s.apply(r, c), NotDropped
	}
	return refuse(r, fault.BadRequest), NotDropped
}

// tooLate drops a request that must not be applied any more. A free is
// answered, though: the Gatekeeper has taken rules away to let it pass, and
// learns in this way that it has to put them back.
func tooLate(r *Request, why Drop) (Answer, Drop) {
	if r.To.Op() == packet.OpFree {
		return refuse(r, fault.Canceled), NotDropped
	}
	return Answer{}, why
}

// apply carries out a request that must not be applied twice, and records it.
func (s *Store) apply(r *Request, c *client) Answer {
	if !s.clients.reserve(&c.window, r.Header.Request) {
		return refuse(r, fault.Overloaded)
	}
	rec := record{id: r.Header.Request, op: r.To.Op()}
	switch rec.op {
	case packet.OpAlloc:
		s.alloc(r, &rec)
	case packet.OpWrite:
		rec.length, rec.status = s.write(r)
		rec.address = r.To.Offset()
	case packet.OpFree:
		rec.flags, rec.status = s.free(r)
		rec.address = r.To.Offset()
	}
	if rec.status == fault.Overloaded {
		return refuse(r, rec.status) // not done, and not recorded: it will be sent again
	}
	c.window.put(rec)
	return s.replay(r, &rec)
}

// replay answers a request from its record.
func (s *Store) replay(r *Request, rec *record) Answer {
	if rec.op != r.To.Op() {
		return refuse(r, fault.BadRequest) // two requests with one id
	}
	a := answer(r, rec.status, rec.length)
	a.Header.Flags = rec.flags
	if rec.op == packet.OpAlloc && rec.status == fault.OK {
		a.From = packet.Make(s.cfg.Prefix, s.cfg.Machine, rec.address).With(packet.OpAlloc, rec.class)
	}
	return a
}
