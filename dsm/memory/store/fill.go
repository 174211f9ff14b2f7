package store

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// A second copy of a machine is filled while the first one serves. The first copy is the
// source. What regions hold is copied first. The source notes what is written meanwhile, a
// unit of noteSize bytes at a time, and copies those units again. Then the source closes:
// from there on it changes nothing, and gives the units that are left, and the rest of its
// state: undo, windows, fences, marks, generations. The new copy is complete when it has all
// of it, in order.
//
//	Fill ─▶ FillNext, FillNext, … (requests go on) ─▶ CloseFill ─▶ FillNext … until there is nothing ─▶ EndFill
//	              │ items, in order
//	              ▼
//	        Take, Take, …                                                                    ─▶ Complete
//
// Rollback and free change regions like writes do, so they are noted, too.

// noteShift is log2 of the bytes that are noted together: an item with as many fits into
// the smallest datagram of IPv6.
const (
	noteShift = 10
	noteSize  = 1 << noteShift
)

// filling is a source's side.
type filling struct {
	todo       []*region            // with something to copy; regions that have gone stay till their turn
	gone       []dsmpacket.RegionID // regions that the new copy has, and that were freed
	done, left uint64               // bytes of regions
	closing    bool
	rest       []func(limit int) []byte // after that: each gives items until it gives nil
}

// notes is what of a region is to be copied.
type notes struct {
	f      *filling
	units  []uint64 // bit i of n: unit 64n+i
	n      int      // how many
	hint   int      // no bit is set in words below
	queued bool     // in f.todo
	told   bool     // the new copy has heard of the region
}

// Fill begins to fill another copy. What an earlier Fill has begun is given up.
func (s *Store) Fill() {
	s.EndFill()
	s.fill = &filling{}
	for _, id := range slices.Sorted(maps.Keys(s.regions.byID)) {
		reg := s.regions.byID[id]
		s.fill.watch(reg)
		reg.note(reg.from, reg.to-reg.from)
	}
}

// EndFill ends the filling, and the closing.
func (s *Store) EndFill() {
	if s.fill == nil {
		return
	}
	s.fill = nil
	for _, reg := range s.regions.byID {
		reg.notes = nil
	}
}

// FillLeft returns how many bytes of regions are still to be copied, of those that exist now, and how many have been
// copied.
func (s *Store) FillLeft() (left, done uint64) {
	if s.fill == nil {
		return 0, 0
	}
	return s.fill.left, s.fill.done
}

// Fills reports whether a filling has begun and has not ended, and whether it is closed.
func (s *Store) Fills() (fills, closed bool) { return s.fill != nil, s.fill != nil && s.fill.closing }

// CloseFill has the store change nothing any more, until EndFill: requests but reads are
// dropped, so that their clients send them again; commands must wait.
func (s *Store) CloseFill() {
	if s.fill != nil && !s.fill.closing {
		s.fill.closing = true
		s.fill.rest = s.restOfState()
	}
}

// Withholds reports whether the store must not be given commands now: it is closing, or
// is being filled itself.
func (s *Store) Withholds() bool { return s.fill != nil && s.fill.closing || s.filled != nil }

// watch begins to note what is written to a region.
func (f *filling) watch(r *region) {
	units := (len(r.data) + noteSize - 1) >> noteShift
	r.notes = &notes{f: f, units: make([]uint64, (units+63)/64)}
}

// unitSize is how many bytes the i-th unit has.
func (r *region) unitSize(i int) uint64 {
	return min(noteSize, uint64(len(r.data))-uint64(i)<<noteShift)
}

// note says that n bytes at an offset are, or will be, other ones.
func (r *region) note(at, n uint64) {
	o := r.notes
	if o == nil || n == 0 {
		return
	}
	first, last := int(at>>noteShift), int((at+n-1)>>noteShift) //nolint:gosec // below 2^34
	for i := first; i <= last; i++ {
		if o.units[i>>6]>>(i&63)&1 == 0 {
			o.units[i>>6] |= 1 << (i & 63)
			o.n++
			o.f.left += r.unitSize(i)
		}
	}
	o.hint = min(o.hint, first>>6)
	if !o.queued {
		o.queued = true
		o.f.todo = append(o.f.todo, r)
	}
}

// unnote says that a region goes.
func (r *region) unnote() {
	o := r.notes
	if o == nil {
		return
	}
	for n, word := range o.units {
		for ; word != 0; word &= word - 1 {
			o.f.left -= r.unitSize(n<<6 + bits.TrailingZeros64(word))
		}
	}
	o.n, o.units, r.notes = 0, nil, nil
	if o.told {
		o.f.gone = append(o.f.gone, r.id)
	}
}

// FillNext returns the next item for the new copy, of at most limit bytes, which must be at
// least noteSize + itemOverhead. It reports false if there is nothing now; after CloseFill,
// that nothing more will come.
func (s *Store) FillNext(limit int) (item []byte, ok bool) {
	f := s.fill
	if f == nil {
		return nil, false
	}
	if len(f.gone) > 0 {
		n := min(len(f.gone), (limit-1)/8)
		item = []byte{itemGone}
		for _, id := range f.gone[:n] {
			item = binary.BigEndian.AppendUint64(item, uint64(id))
		}
		f.gone = f.gone[n:]
		return item, true
	}
	for len(f.todo) > 0 {
		reg := f.todo[0]
		if reg.notes != nil && reg.notes.n > 0 {
			return reg.copyOut(limit), true
		}
		if reg.notes != nil {
			reg.notes.queued = false
		}
		f.todo = f.todo[1:]
	}
	for len(f.rest) > 0 {
		if item = f.rest[0](limit); item != nil {
			return item, true
		}
		f.rest = f.rest[1:]
	}
	return nil, false
}

// copyOut makes an item of units that stand in a row.
func (r *region) copyOut(limit int) []byte {
	o := r.notes
	for o.units[o.hint] == 0 {
		o.hint++
	}
	first := o.hint<<6 + bits.TrailingZeros64(o.units[o.hint])
	size, room := uint64(0), uint64(limit-itemOverhead) //nolint:gosec // see FillNext
	for i := first; i>>6 < len(o.units) && o.units[i>>6]>>(i&63)&1 != 0 && size+r.unitSize(i) <= room; i++ {
		o.units[i>>6] &^= 1 << (i & 63)
		o.n--
		size += r.unitSize(i)
	}
	o.told = true
	o.f.left -= size
	o.f.done += size
	at := uint64(first) << noteShift
	item := encode(itemPages, pagesItem{ID: r.id, Class: r.class, At: at})
	for end := at + size; at < end; {
		b := r.run(at, end-at)
		item = append(item, b...)
		at += uint64(len(b))
	}
	return item
}

// restOfState returns what gives the state beside the regions' content, one item at a time.
func (s *Store) restOfState() (rest []func(int) []byte) {
	for _, key := range s.undo.inOrder() {
		e := s.undo.byRun[key]
		rest = append(rest, Once(encode(itemRun, runItem{Execution: key.id, Node: key.node.As16(), Incarnation: e.by.incarnation, Rolled: e.rolled})))
	}
	for _, id := range slices.Sorted(maps.Keys(s.regions.byID)) {
		reg := s.regions.byID[id]
		rest = append(rest, Once(reg.item()))
		if reg.changes != nil {
			rest = append(rest, reg.changes.oldContent())
		}
	}
	for _, node := range s.clients.inOrder() {
		rest = append(rest, clientItems(node, s.clients.byNode[node]))
	}
	for _, key := range s.undo.marks.order {
		m := s.undo.marks.last[key]
		rest = append(rest, Once(encode(itemMark, markItem{
			Main: key.main, Node: key.node.As16(), Incarnation: m.incarnation, Run: m.run, Checkpoint: m.checkpoint, Back: m.back,
		})))
	}
	for _, n := range slices.Sorted(maps.Keys(s.batches.of)) {
		rest = append(rest, Once(encode(itemBatch, s.batches.item(n))))
	}
	return append(rest, Once(encode(itemEnd, endItem{
		Generation: s.batches.highest, Floor: s.batches.floor, Regions: uint64(len(s.regions.byID)), Runs: uint64(len(s.undo.byRun)), Clients: uint64(len(s.clients.byNode)),
	})))
}

// Once gives an item, once.
func Once(item []byte) func(int) []byte {
	return func(int) []byte {
		b := item
		item = nil
		return b
	}
}

func (r *region) item() []byte {
	v := regionItem{ID: r.id, Class: r.class, Owner: r.owner.As16()}
	if c := r.changes; c != nil {
		v.Changed, v.Execution, v.Runner, v.Own, v.Used = true, c.by.id, c.by.by.node.As16(), c.own, c.used
		v.Branch, v.Index, v.Size = c.key.branch, c.key.index, c.size
	}
	return encode(itemRegion, v)
}

// oldContent gives what the pages held before the changes.
func (c *changes) oldContent() func(int) []byte {
	type old struct {
		at    uint64
		bytes []byte // nil: zeros
		from  int    // what was given
	}
	var pages []old
	for _, p := range c.pages {
		pages = append(pages, old{at: p.at, bytes: p.old})
	}
	for n, word := range c.turned {
		for ; word != 0; word &= word - 1 {
			i := uint64(n)<<6 + uint64(bits.TrailingZeros64(word))
			pages = append(pages, old{at: i << pageShift, bytes: c.region.otherPage(i)})
		}
	}
	return func(limit int) []byte {
		if len(pages) == 0 {
			return nil
		}
		p := &pages[0]
		n := min(len(p.bytes)-p.from, limit-itemOverhead)
		item := encode(itemUndo, undoItem{ID: c.region.id, Page: p.at, From: uint64(p.from), Zero: p.bytes == nil}) //nolint:gosec // a page
		item = append(item, p.bytes[p.from:p.from+n]...)
		if p.from += n; p.from == len(p.bytes) {
			pages = pages[1:]
		}
		return item
	}
}

// otherPage returns what the other block has for a page.
func (r *region) otherPage(i uint64) []byte {
	from, to := i<<pageShift, (i+1)<<pageShift
	if r.inShadow(i) {
		return r.data[from:to]
	}
	return r.shadow.data[from:to]
}

// inOrder returns the clients' nodes: the fenced ones in the order in which they were, then
// the others.
func (t *clients) inOrder() []netip.Addr {
	seen := make(map[netip.Addr]bool, len(t.byNode))
	all := make([]netip.Addr, 0, len(t.byNode))
	add := func(node netip.Addr) {
		if t.byNode[node] != nil && !seen[node] {
			seen[node] = true
			all = append(all, node)
		}
	}
	for _, node := range t.fenced {
		if c := t.byNode[node]; c != nil && c.fenced {
			add(node)
		}
	}
	for _, node := range slices.SortedFunc(maps.Keys(t.byNode), netip.Addr.Compare) {
		add(node)
	}
	return all
}

// clientItems gives a client with its records.
func clientItems(node netip.Addr, c *client) func(int) []byte {
	records := c.window.unsettled()
	v := clientItem{Node: node.As16(), Incarnation: c.incarnation, Fenced: c.fenced, Floor: c.window.floor}
	more := true
	return func(limit int) []byte {
		if !more {
			return nil
		}
		item := encode(itemClient, v)
		for len(records) > 0 && len(item)+recordSize <= limit {
			r := &records[0]
			item = append(item, encode(0, recordItem{
				ID: r.id, Length: r.length, At: r.at, Region: r.region, Op: uint8(r.op), Status: uint8(r.status), Class: r.class, Dead: r.dead,
			})[1:]...)
			records = records[1:]
		}
		more = len(records) > 0
		return item
	}
}
