package store

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// alloc makes the region that the request names, of the size asked for, rounded up to a size class. If it is there, an execution gets again what
// an earlier run of it has got.
func (s *Store) alloc(r *Request, rec *record) {
	class, ok := dsmpacket.ClassFor(r.Header.Length)
	if id := r.To.ID(); !ok || !id.Valid() || r.To.Offset() != 0 {
		rec.status = fault.BadRequest
		return
	}
	rec.region, rec.class = r.To.ID(), class
	if reg := s.regions.byID[rec.region]; reg != nil {
		rec.status, rec.why = s.again(r, reg)
	} else {
		rec.status, rec.why = s.allocate(r, class)
	}
	if rec.status == fault.OK {
		rec.length = r.Header.Length
	}
}

// allocate makes a region. If it refuses, the flags say why.
func (s *Store) allocate(r *Request, class uint8) (status fault.Code, why uint8) {
	id, b := r.To.ID(), s.granted(r)
	if b == nil {
		return fault.Overloaded, 0
	}
	k := &b.slots[id.Slot()%dsmpacket.BatchSlots]
	switch {
	case id.Generation() > max(k.last, s.batches.floor)+dsmpacket.MostAhead:
		return fault.BadRequest, 0
	case s.lives(dsmpacket.IDOf(id.Slot(), k.last)) || !s.free(k, id.Generation()):
		return fault.NoSpace, dsmpacket.FlagSlot
	}
	if status, why := s.may(r.Node, class); status != fault.OK {
		return status, why
	}
	undone := s.undo.concerns(r)
	if undone {
		if e := s.undo.of(r); e != nil && e.allocs[keyOf(r)] != nil {
			return fault.Nondeterminism, 0
		}
		if status := s.undo.admit(r); status != fault.OK {
			return status, 0
		}
	}
	block, ok := s.arena.take(class)
	for !ok && len(s.shadows.list) > 0 {
		s.unshade(s.shadows.list[0])
		block, ok = s.arena.take(class)
	}
	if !ok {
		return fault.NoSpace, 0
	}
	s.batches.give(id)
	reg := &region{id: id, block: block, class: class, owner: r.Node, data: s.arena.bytes(block, class), incarnation: r.Header.Incarnation}
	s.regions.add(reg)
	s.charge(reg)
	if s.fill != nil {
		s.fill.watch(reg)
	}
	if undone {
		s.undo.own(r, reg)
	}
	return fault.OK, 0
}

// lives reports whether there is a region.
func (s *Store) lives(id dsmpacket.RegionID) bool { return s.regions.byID[id] != nil }

// find returns the live region that holds the n bytes at p, and where in it.
func (s *Store) find(p dsmpacket.Pointer, n uint64) (*region, uint64, fault.Code) {
	reg := s.regions.byID[p.ID()]
	if reg == nil {
		return nil, 0, s.absent(p.ID())
	}
	at, size := p.Offset(), uint64(len(reg.data))
	if at >= size || n > size-at {
		return nil, 0, fault.BadRequest
	}
	return reg, at, fault.OK
}

// read answers with the region's own bytes. Reads change nothing, so they are
// not recorded: one that comes twice is carried out twice.
func (s *Store) read(r *Request) Answer {
	n := r.Header.Length
	if n > uint64(s.cfg.MaxData) {
		return refuse(r, fault.BadRequest)
	}
	n *= 1 + uint64(r.Header.More)
	reg, at, status := s.find(r.To, n)
	if status != fault.OK {
		return refuse(r, status)
	}
	if inDoubt(reg, r) {
		return refuse(r, fault.Overloaded)
	}
	a := answer(r, fault.OK, r.Header.Length)
	a.Data = reg.view(at, n)
	return a
}

// write puts the datagram's data where its address says. A write of no bytes asks whether the node
// may free the region that begins there.
func (s *Store) write(r *Request) (uint64, fault.Code) {
	n := r.Header.Length
	if n != uint64(r.size()) { //nolint:gosec // not negative
		return 0, fault.BadRequest
	}
	reg, at, status := s.find(r.To, n)
	if status != fault.OK {
		return 0, status
	}
	if n == 0 && at != 0 {
		return 0, fault.BadRequest
	}
	if status := s.protect(r, reg, at, n); status != fault.OK {
		return 0, status
	}
	if r.Receive == nil {
		reg.put(at, r.Data)
		return n, fault.OK
	}
	if !reg.receive(at, n, r.Receive) {
		return 0, fault.Overloaded
	}
	return n, fault.OK
}

// freeRegion ends the region whose first byte is asked for. An execution frees nothing but its own
// allocation that it has not seen the end of. All else that it frees goes when it is done.
func (s *Store) freeRegion(r *Request) fault.Code {
	reg, at, status := s.find(r.To, 0)
	if status != fault.OK {
		s.neverMade(r.To.ID())
		return status
	}
	c := reg.changes
	switch {
	case at != 0:
		return fault.BadRequest
	case c == nil && !s.undo.concerns(r):
	case c == nil || c.by.id == r.Header.Execution && (!c.own || c.key != keyOf(r)):
		return fault.BadRequest
	case c.by.id != r.Header.Execution || !s.undo.runs(c.by, r):
		return fault.Overloaded
	}
	s.release(reg)
	return fault.OK
}

func (s *Store) release(reg *region) {
	reg.unnote()
	s.undo.settle(reg)
	s.dropShadow(reg)
	s.uncharge(reg)
	s.regions.remove(reg)
	s.batches.slot(reg.id).rests = s.time + restTime
	s.arena.give(reg.block, reg.class, reg.from, reg.to)
}

// settle tells an earlier request's fate, and makes it final if this is the only copy,
// or no copy has carried the request out: what has not come by now never will be.
func (s *Store) settle(r *Request, c *client) Answer {
	if r.Header.Flags&dsmpacket.FlagDiverged == 0 {
		return s.tell(r, c)
	}
	s.diverged++
	a := s.tell(r, c)
	a.Header.Flags |= dsmpacket.FlagNoted
	return a
}

// tell does what settle says.
func (s *Store) tell(r *Request, c *client) Answer {
	id := r.Header.Length
	if id < c.window.floor || id >= r.Header.Request {
		return refuse(r, fault.BadRequest)
	}
	if rec := c.window.find(id); rec != nil && !rec.dead {
		a := answer(r, rec.status, rec.length)
		a.Header.Flags = dsmpacket.FlagApplied
		return a
	}
	if id := r.To.ID(); !s.lives(id) && s.absent(id) == fault.Unavailable {
		return refuse(r, fault.Unavailable) // there is nothing that a late copy could change
	}
	if s.mirrored() && r.Header.Flags&dsmpacket.FlagFinal == 0 {
		return answer(r, fault.OK, 0)
	}
	if !s.clients.reserve(&c.window, id) {
		return refuse(r, fault.Overloaded)
	}
	c.window.put(record{id: id, dead: true})
	a := answer(r, fault.OK, 0)
	a.Header.Flags = dsmpacket.FlagFinal
	return a
}

// Answer is what goes back to a request's source: one datagram, or, to a request that
// stands for several reads, as many as Datagrams yields.
type Answer struct {
	From   dsmpacket.Pointer
	Header dsmpacket.Header
	// Data may alias a region: it is good until the next call of a method.
	Data []byte
}

// answer returns a reply to r from the address that r was sent to.
func answer(r *Request, status fault.Code, length uint64) Answer {
	a := Answer{From: r.To, Header: r.Header}
	a.Header.Kind, a.Header.Flags = dsmpacket.Reply, 0
	a.Header.Status, a.Header.Length = status, length
	return a
}

func refuse(r *Request, status fault.Code) Answer { return answer(r, status, 0) }

// Datagrams yields the datagrams that the answer takes: one for each read that its
// request stood for. A refusal is one, for all of them.
func (a *Answer) Datagrams() iter.Seq[Answer] {
	return func(yield func(Answer) bool) {
		if a.Data == nil || a.Header.More == 0 {
			yield(*a)
			return
		}
		n := a.Header.Length
		for i := range uint64(a.Header.More) + 1 {
			piece := Answer{From: a.From.Add(int64(i * n)), Header: a.Header, Data: a.Data[i*n : (i+1)*n]}
			piece.Header.Request += i
			piece.Header.More = 0
			if !yield(piece) {
				return
			}
		}
	}
}

// Join makes the answer to a write acknowledge the next one, too, if next says that
// this was written and lies behind it, and reports whether it does. The same client
// must get both.
func (a *Answer) Join(next *Answer) bool {
	h, n := &a.Header, &next.Header
	behind := uint64(h.More) + 1
	if !a.wrote() || !next.wrote() || n.More != 0 || h.More == dsmpacket.MaxMore || n.Length != h.Length ||
		n.Request != h.Request+behind || n.Incarnation != h.Incarnation || next.From != a.From.Add(int64(behind*h.Length)) {
		return false
	}
	h.More++
	return true
}

// wrote reports whether the answer is that to a write that was carried out.
func (a *Answer) wrote() bool {
	return a.From.Op() == dsmpacket.OpWrite && a.Header.Kind == dsmpacket.Reply && a.Header.Status == fault.OK
}

// record is what became of one request that changes something.
type record struct {
	id     uint64             // 0: empty
	length uint64             // as the reply said
	region dsmpacket.RegionID // the new one, or the one that was written to or freed
	at     uint64             // where it was written
	op     dsmpacket.Op
	status fault.Code
	class  uint8 // alloc: the new region's
	why    uint8 // alloc: flags that say why it is refused
	dead   bool  // settled before it came: it must never be applied
}

// window is one client's unsettled requests: a floor, below which everything is
// settled, and a ring of records above it. It accepts ids in any order.
type window struct {
	floor uint64
	top   uint64   // the highest id recorded
	ring  []record // id i is at i mod len; the length is a power of two
}

// raise moves the floor up to the client's.
func (w *window) raise(floor uint64) { w.floor = max(w.floor, floor) }

// find returns the record of id, nil if there is none.
func (w *window) find(id uint64) *record {
	if len(w.ring) == 0 {
		return nil
	}
	if r := &w.ring[id&uint64(len(w.ring)-1)]; r.id == id && id >= w.floor {
		return r
	}
	return nil
}

// unsettled returns the records that still count, in no order.
func (w *window) unsettled() []record {
	return slices.DeleteFunc(slices.Clone(w.ring), func(r record) bool { return r.id == 0 || r.id < w.floor })
}

// want returns the ring length for a record of id: 0 if id lies too far above
// the floor. It says less than the present length once a quarter would do.
func (w *window) want(id uint64) int {
	span := max(id, w.top, w.floor) - w.floor
	if span >= MaxSpan {
		return 0
	}
	n := minRing
	for uint64(n) <= span {
		n *= 2
	}
	if n < len(w.ring) && n > len(w.ring)/4 {
		return len(w.ring)
	}
	return n
}

// resize moves the records that still count to a ring of n.
func (w *window) resize(n int) {
	old := w.ring
	w.ring = make([]record, n)
	for _, r := range old {
		if r.id >= w.floor && r.id != 0 {
			w.ring[r.id&uint64(n-1)] = r
		}
	}
}

// put records what became of a request; the ring must be long enough.
func (w *window) put(r record) {
	w.ring[r.id&uint64(len(w.ring)-1)] = r
	w.top = max(w.top, r.id)
}

// client is what the store knows of one node: the newest incarnation heard of,
// and that incarnation's window.
type client struct {
	incarnation uint32
	fenced      bool // the incarnation is dead; so are all before it
	window      window
	unsettled   control.Unsettled // what the other copy may not have, or have alone, till both are level
	// made are the regions that a fenced incarnation has made, and may not have heard of. They are told with every fence: whoever asked may have died.
	made []dsmpacket.RegionID
}

// clients is the nodes that the store knows.
type clients struct {
	byNode  map[netip.Addr]*client
	fenced  []netip.Addr // in the order in which they were fenced first
	records int          // ring lengths, added up
	limits  Limits
}

func newClients(l Limits) clients { return clients{byNode: make(map[netip.Addr]*client), limits: l} }

// standing is a request's incarnation against the store's knowledge.
type standing uint8

const (
	current  standing = iota
	stale             // fenced, or replaced by a newer incarnation
	noRecord          // unknown, and there is no room for another client
)

// admit finds the client that a request belongs to. The first request of a newer
// incarnation begins a new window; the older one's is gone.
func (t *clients) admit(node netip.Addr, incarnation uint32, floor uint64) (*client, standing) {
	c := t.byNode[node]
	switch {
	case c == nil:
		if !t.makeRoom() {
			return nil, noRecord
		}
		c = &client{incarnation: incarnation, window: window{floor: floor}}
		t.byNode[node] = c
	case incarnation < c.incarnation || incarnation == c.incarnation && c.fenced:
		return nil, stale
	case incarnation > c.incarnation:
		t.drop(c)
		*c = client{incarnation: incarnation, window: window{floor: floor}}
	}
	c.window.raise(floor)
	return c, current
}

// fence refuses the node's incarnations up to this one from now on, and returns the
// records of the requests that they had not settled, and the floor of the latest one. The floor is 0 if they were refused before.
func (t *clients) fence(node netip.Addr, incarnation uint32) (c *client, floor uint64, unsettled []record) {
	c = t.byNode[node]
	if c == nil {
		t.makeRoom() // a fence is never refused
		c = &client{}
		t.byNode[node] = c
	}
	if c.incarnation > incarnation || c.incarnation == incarnation && c.fenced {
		return c, 0, nil
	}
	floor, unsettled = c.window.floor, c.window.unsettled()
	slices.SortFunc(unsettled, func(a, b record) int { return cmp.Compare(a.id, b.id) })
	t.drop(c)
	*c = client{incarnation: incarnation, fenced: true, unsettled: c.unsettled, made: c.made}
	t.fenced = append(t.fenced, node)
	return c, floor, unsettled
}

// makeRoom forgets the node fenced longest ago when the table is full.
func (t *clients) makeRoom() bool {
	for len(t.byNode) >= t.limits.Clients && len(t.fenced) > 0 {
		if c := t.byNode[t.fenced[0]]; c != nil && c.fenced {
			delete(t.byNode, t.fenced[0])
		}
		t.fenced = t.fenced[1:]
	}
	return len(t.byNode) < t.limits.Clients
}

// reserve makes the window fit for a record of id; false if the client or all
// clients together leave too many requests unsettled.
func (t *clients) reserve(w *window, id uint64) bool {
	n := w.want(id)
	more := n - len(w.ring)
	if n == 0 || more > 0 && t.records+more > t.limits.Records {
		return false
	}
	if more != 0 {
		w.resize(n)
		t.records += more
	}
	return true
}

func (t *clients) drop(c *client) {
	t.records -= len(c.window.ring)
	c.window = window{}
}
