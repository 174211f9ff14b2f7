package store

import (
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// Config says what a machine has.
type Config struct {
	Prefix, Machine uint8 // bytes 4 and 5 of its pointers
	// Floor is below the generations of all regions that are made here. Every boot of a machine needs one
	// that is no lower than any generation of its earlier boots.
	Floor uint32
	// Memory is what the regions live in; its bytes must be zero.
	Memory []byte
	// Discard turns a large part of Memory, made of whole pages, into zeros.
	Discard func([]byte)
	// MaxData is how many bytes one reply can carry.
	MaxData int
	// Owners says that somebody tells whose nodes are (Grant, Learn, Request.AsksOwner): regions, their bytes and undo are charged to owners.
	Owners bool
	Limits Limits
}

// Store is the regions and windows of one memory machine.
type Store struct {
	cfg     Config
	batches batches
	quotas  *quotas
	time    time.Duration // see Tick
	arena   *arena
	regions regions
	clients clients
	undo    undo
	shadows idle
	// mirror is which copy of its machine this is; diverged counts what Diverged tells.
	mirror   dsmpacket.Mirror
	diverged uint64
	lost     uint32 // see Lost
	// fill is set while another copy is filled from here, filled while this one is filled.
	fill   *filling
	filled *filled
}

// New returns an empty store.
func New(cfg Config) *Store {
	cfg.Limits = cfg.Limits.withDefaults()
	var of *owners
	var shares *quotas
	if cfg.Owners {
		of = &owners{}
		shares = &quotas{share.NewNodes(uint64(cfg.Limits.Regions), of.ownerOf), share.NewNodes(uint64(len(cfg.Memory)), of.ownerOf)} //nolint:gosec // not negative
	}
	return &Store{
		cfg: cfg, quotas: shares, batches: batches{floor: cfg.Floor, highest: cfg.Floor}, arena: newArena(cfg.Memory, cfg.Discard, cfg.Limits),
		clients: newClients(cfg.Limits),
		undo:    undo{byRun: map[runKey]*execution{}, shares: share.NewNodes(0, of.ownerOf), owners: of, marks: marks{most: cfg.Limits.Marks}},
		mirror:  dsmpacket.Mirror{Members: 1},
	}
}

// Lost says that regions up to a generation were those of earlier starts of the machine,
// and are lost: whoever asks for one is told that it is Unavailable.
func (s *Store) Lost(upTo uint32) { s.lost = upTo }

// absent is what an operation on a region answers that is not there.
func (s *Store) absent(id dsmpacket.RegionID) fault.Code {
	if id.Valid() && id.Generation() <= s.lost {
		return fault.Unavailable
	}
	return fault.NotFound
}

// Regions is how many bytes the regions have.
func (s *Store) Regions() (bytes uint64) {
	for class, n := range s.regions.count {
		bytes += uint64(n) << class //nolint:gosec // not negative
	}
	return bytes
}

// Used is how many bytes are taken: by regions, and by the second blocks of some.
func (s *Store) Used() uint64 { return s.arena.used }

// Generation is the highest one that a region has had here, or the floor.
func (s *Store) Generation() uint32 { return s.batches.highest }

// Tick tells the time, since any fixed moment: what follows happens then.
func (s *Store) Tick(now time.Duration) { s.time = now }

// Dirty reports whether there is something to Clean.
func (s *Store) Dirty() bool { return len(s.arena.dirty) > 0 }

// Clean zeroes up to n bytes, whole pages, of freed memory. An allocation that
// needs the memory sooner cleans it itself.
func (s *Store) Clean(n int) { s.arena.clean(n) }

// Request is one datagram that came in.
type Request struct {
	Node   netip.Addr        // who asks: the source address
	To     dsmpacket.Pointer // what is asked: the destination address
	Header dsmpacket.Header
	Data   []byte
	// Receive, if set, stands for the Data of a write, which has not been received yet: of so
	// many bytes, Size. The store calls it at most once, when everything but the data is
	// known to be good and what the write changes can be brought back. It fills the pieces,
	// which are the region's own bytes. False says that they are what they were.
	Receive func(to [2][]byte) bool
	Size    int
	// AsksOwner is set by Handle if it matters whose the node is, and nobody has said so (Learn).
	AsksOwner bool
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
	if r.Header.Kind != dsmpacket.Request || !r.To.InPrefix(s.cfg.Prefix) || r.To.Machine() != s.cfg.Machine {
		return Answer{}, Foreign
	}
	if s.filled != nil || s.Withholds() && r.To.Op() != dsmpacket.OpRead {
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
	if r.Header.More > 0 && r.To.Op() != dsmpacket.OpRead {
		return refuse(r, fault.BadRequest), NotDropped
	}
	if rec := c.window.find(r.Header.Request); rec != nil {
		if rec.dead {
			return tooLate(r, Dead)
		}
		return s.replay(r, rec), NotDropped
	}
	switch r.To.Op() {
	case dsmpacket.OpRead:
		return s.read(r), NotDropped
	case dsmpacket.OpSlots:
		return s.slotsOf(r), NotDropped
	case dsmpacket.OpSettle:
		return s.settle(r, c), NotDropped
	case dsmpacket.OpAlloc, dsmpacket.OpWrite, dsmpacket.OpFree:
		return s.apply(r, c), NotDropped
	default:
		return refuse(r, fault.BadRequest), NotDropped
	}
}

// tooLate drops a request that must not be applied any more. A free is
// answered, though: the Gatekeeper has taken rules away to let it pass, and
// learns in this way that it has to put them back.
func tooLate(r *Request, why Drop) (Answer, Drop) {
	if r.To.Op() == dsmpacket.OpFree {
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
	case dsmpacket.OpAlloc:
		s.alloc(r, &rec)
	case dsmpacket.OpWrite:
		rec.length, rec.status = s.write(r)
		rec.region, rec.at = r.To.ID(), r.To.Offset()
	case dsmpacket.OpFree:
		rec.status = s.freeRegion(r)
		rec.region = r.To.ID()
	default: // process hands over no others
	}
	if rec.status == fault.Overloaded {
		return refuse(r, rec.status) // not done, and not recorded: it will be sent again
	}
	c.window.put(rec)
	return s.replay(r, &rec)
}

// replay answers a request from its record.
func (s *Store) replay(r *Request, rec *record) Answer {
	if rec.op != r.To.Op() || rec.op == dsmpacket.OpAlloc && rec.region != r.To.ID() {
		return refuse(r, fault.BadRequest) // two requests with one id
	}
	a := answer(r, rec.status, rec.length)
	a.Header.Flags = rec.why
	return a
}

// turns reports whether pages of a region are turned, not copied: they are once it
// has brought enough whole ones, and there was room for a shadow.
func (s *Store) turns(c *changes, at, n uint64) bool {
	if c.turned != nil {
		return true
	}
	reg, fresh := c.region, 0
	size := uint64(len(reg.data))
	if size < uint64(s.cfg.Limits.Shadow) || n < leastWhole*pageSize || s.undo.room(c.by.by.node, size) != fault.OK { //nolint:gosec // not negative
		return false
	}
	for i := at >> pageShift; i <= (at+n-1)>>pageShift; i++ {
		if !c.saved.has(i) && whole(i, at, n) && reg.old(i) != nil {
			fresh++
		}
	}
	if fresh < leastWhole || !s.shade(reg) {
		return false
	}
	c.turned = make([]uint64, len(reg.shadow.there))
	c.cost += size
	s.undo.charge(c.by, size)
	return true
}

// turnPages turns those pages of n bytes at an offset that have not been kept. One
// that the n bytes do not cover takes its content along, so that a region which is
// overwritten in pieces stands in one block again in the end.
func (s *Store) turnPages(c *changes, at, n uint64) {
	r := c.region
	for i := at >> pageShift; i <= (at+n-1)>>pageShift; i++ {
		if c.turned[i>>6]>>(i&63)&1 != 0 || c.saved.has(i) {
			continue
		}
		c.turned[i>>6] |= 1 << (i & 63)
		was := r.page(i)
		r.turn(i)
		if !whole(i, at, n) {
			r.put(i<<pageShift, was)
		}
		s.undo.kept++
	}
}

// whole reports whether n bytes at an offset cover a page.
func whole(i, at, n uint64) bool { return at <= i<<pageShift && (i+1)<<pageShift <= at+n }

// region is one live allocation.
type region struct {
	id    dsmpacket.RegionID
	block uint64 // where its bytes are in the arena
	class uint8
	owner netip.Addr // the node that allocated it; invalid until a copy that is filled is told
	data  []byte     // the block's
	// incarnation has allocated it; zero at a copy that was filled.
	incarnation uint32
	// Only from..to has been written to; the rest is still zero.
	from, to uint64
	changes  *changes // what can be taken back; nil if everything is final
	shadow   *shadow  // nil unless there is one
	notes    *notes   // what is to be copied; nil unless another copy is being filled
}

// regions finds regions by their ids.
type regions struct {
	byID  map[dsmpacket.RegionID]*region
	count [dsmpacket.MaxClass + 1]int // live regions of each class
}

func (t *regions) add(r *region) {
	if t.byID == nil {
		t.byID = make(map[dsmpacket.RegionID]*region)
	}
	t.byID[r.id] = r
	t.count[r.class]++
}

func (t *regions) remove(r *region) {
	delete(t.byID, r.id)
	t.count[r.class]--
}

// alignUp rounds n up to a multiple of 2^class.
func alignUp(n uint64, class uint8) uint64 {
	mask := uint64(1)<<class - 1
	return (n + mask) &^ mask
}

// arena hands out blocks of the machine's memory, whose sizes are powers of
// two, by the buddy method: a block is cut by halving, and two free halves
// become one again. Every block it hands out reads as zeros.
type arena struct {
	mem     []byte
	discard func([]byte) // gives whole pages back; they read as zeros then
	free    [dsmpacket.MaxClass + 1]blocks
	dirty   []dirt // given back and not yet zeroed, oldest first
	used    uint64
	zeroes  uint64 // bytes at once
}

// dirt is a block that is zeroed bit by bit before it is free.
type dirt struct {
	off     uint64
	class   uint8
	touched []byte // what is left to zero
	keep    bool   // zero it in place, for the next region of its size
}

// newArena returns an arena over mem, whose bytes must be zero. A tail shorter
// than the smallest region is left unused.
func newArena(mem []byte, discard func([]byte), limits Limits) *arena {
	a := &arena{mem: mem, discard: discard, zeroes: uint64(max(limits.Zero, pageSize))} //nolint:gosec // not negative
	size := uint64(len(mem)) &^ (1<<dsmpacket.MinClass - 1)
	for off := uint64(0); off < size; {
		class := min(bits.Len64(size-off)-1, dsmpacket.MaxClass)
		if off > 0 {
			class = min(class, bits.TrailingZeros64(off))
		}
		a.free[class].add(off)
		off += 1 << class
	}
	return a
}

// take returns the offset of a block of 2^class bytes; false when none is free.
func (a *arena) take(class uint8) (uint64, bool) {
	off, ok := a.cut(class)
	for !ok && a.clean(math.MaxInt) {
		off, ok = a.cut(class)
	}
	if ok {
		a.used += 1 << class
	}
	return off, ok
}

// cut takes a block off the free lists.
func (a *arena) cut(class uint8) (uint64, bool) {
	c := class
	for c <= dsmpacket.MaxClass && a.free[c].empty() {
		c++
	}
	if c > dsmpacket.MaxClass {
		return 0, false
	}
	off := a.free[c].pop()
	for ; c > class; c-- {
		a.free[c-1].add(off + 1<<(c-1))
	}
	return off, true
}

// give takes a block back, of which only the bytes from..to have been written.
func (a *arena) give(off uint64, class uint8, from, to uint64) {
	a.used -= 1 << class
	a.giveBack(off, class, from, to)
}

// giveBack is give for a block that does not count as used.
func (a *arena) giveBack(off uint64, class uint8, from, to uint64) {
	if to-from <= a.zeroes {
		clear(a.mem[off+from : off+to])
		a.merge(off, class)
		return
	}
	from, to = from&^(pageSize-1), alignUp(to, pageShift)
	a.dirty = append(a.dirty, dirt{off, class, a.mem[off+from : off+to], to-from <= zeroAndKeep})
}

// zero makes a block's bytes from..to zeros again, at once.
func (a *arena) zero(off, from, to uint64) {
	if to-from <= a.zeroes {
		clear(a.mem[off+from : off+to])
		return
	}
	a.discard(a.mem[off+from&^(pageSize-1) : off+alignUp(to, pageShift)])
}

// clean zeroes up to n bytes of the oldest dirt. It is false when there is none.
func (a *arena) clean(n int) bool {
	if len(a.dirty) == 0 {
		return false
	}
	d := &a.dirty[0]
	part := d.touched[:min(n, len(d.touched))]
	if d.keep {
		clear(part)
	} else {
		a.discard(part)
	}
	if d.touched = d.touched[len(part):]; len(d.touched) == 0 {
		off, class := d.off, d.class
		a.dirty = append(a.dirty[:0], a.dirty[1:]...)
		a.merge(off, class)
	}
	return true
}

// merge makes a block free.
func (a *arena) merge(off uint64, class uint8) {
	for class < dsmpacket.MaxClass && a.free[class].remove(off^1<<class) {
		off &^= 1 << class
		class++
	}
	a.free[class].add(off)
}

// bytes returns a block's memory.
func (a *arena) bytes(off uint64, class uint8) []byte {
	end := off + 1<<class
	return a.mem[off:end:end]
}

// blocks is a set of offsets that forgets the newest first, so that memory
// touched lately is used again before memory never touched.
type blocks struct {
	list []uint64
	at   map[uint64]int // index in list
}

func (b *blocks) empty() bool { return len(b.list) == 0 }

func (b *blocks) add(off uint64) {
	if b.at == nil {
		b.at = make(map[uint64]int)
	}
	b.at[off] = len(b.list)
	b.list = append(b.list, off)
}

func (b *blocks) pop() uint64 {
	off := b.list[len(b.list)-1]
	b.remove(off)
	return off
}

func (b *blocks) remove(off uint64) bool {
	i, ok := b.at[off]
	if !ok {
		return false
	}
	last := len(b.list) - 1
	b.list[i] = b.list[last]
	b.at[b.list[i]] = i
	b.list = b.list[:last]
	delete(b.at, off)
	return true
}
