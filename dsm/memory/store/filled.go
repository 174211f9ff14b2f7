package store

import (
	"encoding/binary"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// The kinds of items that a source gives: the first byte.
const (
	itemPages    = 1 + iota // what a part of a region holds: pagesItem, content
	itemGone                // regions that were freed: their ids, 8 bytes each
	itemRun                 // an execution with changes: runItem
	itemRegion              // a region, when all of its content has come: regionItem
	itemUndo                // what a part of a page held before: undoItem, content
	itemClient              // a client: clientItem, and some of its records: recordItem each
	itemMark                // the last word about a durable main: markItem
	itemEnd                 // nothing follows: endItem
	itemBatch               // the last generations of a batch's slots: batchItem
	itemLevelled            // of a complete copy: what an incarnation had not settled is equal now: levelledItem
)

// The items without the first byte and what follows them, big endian.
type (
	pagesItem struct {
		ID    dsmpacket.RegionID
		Class uint8
		At    uint64
	}
	runItem struct {
		Execution, Node [16]byte
		Incarnation     uint32
		Rolled          bool
	}
	regionItem struct {
		ID                 dsmpacket.RegionID
		Class              uint8
		Owner              [16]byte
		Changed, Own, Used bool
		Execution, Runner  [16]byte
		Branch             uint64
		Index              uint32
		Size               uint64
	}
	undoItem struct {
		ID         dsmpacket.RegionID
		Page, From uint64
		Zero       bool // the whole page was zeros; no content follows
	}
	clientItem struct {
		Node        [16]byte
		Incarnation uint32
		Fenced      bool
		Floor       uint64
	}
	recordItem struct {
		ID, Length, At    uint64
		Region            dsmpacket.RegionID
		Op, Status, Class uint8
		Dead              bool
	}
	markItem struct {
		Main, Node  [16]byte
		Incarnation uint32
		Run         uint64
		Checkpoint  uint32
		Back        bool
	}
	batchItem struct {
		Batch uint32
		Last  [dsmpacket.BatchSlots]uint32
	}
	endItem struct {
		Generation, Floor      uint32
		Regions, Runs, Clients uint64
	}
	levelledItem struct {
		Node        [16]byte
		Incarnation uint32
	}
)

// itemOverhead is at least what an item has beside content; recordSize is a record's size.
var (
	itemOverhead = 1 + max(binary.Size(pagesItem{}), binary.Size(undoItem{}))
	recordSize   = binary.Size(recordItem{})
)

// MinItem is the least that FillNext needs for an item.
var MinItem = itemOverhead + noteSize

// encode returns an item's first byte and fields.
func encode(kind byte, fields any) []byte {
	b, err := binary.Append([]byte{kind}, binary.BigEndian, fields)
	if err != nil {
		panic(err) // of a type without a fixed size
	}
	return b
}

// decode reads an item's fields and returns what follows them.
func decode(b []byte, fields any) (rest []byte, err error) {
	n, err := binary.Decode(b, binary.BigEndian, fields)
	if err != nil {
		return nil, badItem("%d bytes of %T", len(b), fields)
	}
	return b[n:], nil
}

func badItem(format string, args ...any) error {
	return fault.New(fault.BadRequest, "fill", format, args...)
}

// filled is the side of a copy that is being filled.
type filled struct {
	named    map[dsmpacket.RegionID]bool // regions that the source has at its end
	complete bool                        // all has come
}

// BeFilled makes the store empty, and a copy that is being filled: it drops all requests,
// and takes items. The incarnation is the new copy's.
func (s *Store) BeFilled(incarnation uint32) {
	s.Forget()
	s.mirror.Incarnation = incarnation
	s.filled = &filled{named: map[dsmpacket.RegionID]bool{}}
}

// Take takes the source's next item. An error means that the copy cannot be filled: NoSpace,
// or BadRequest for an item that makes no sense. A second copy that is complete takes what Level gives.
func (s *Store) Take(item []byte) error {
	switch {
	case len(item) == 0 || s.filled != nil && s.filled.complete:
		return badItem("an item of %d bytes, or one behind the last", len(item))
	case s.filled != nil:
	case s.mirror.Copy == 0 || item[0] != itemPages && item[0] != itemGone && item[0] != itemLevelled:
		return fault.New(fault.Stale, "fill", "the copy is not being filled")
	}
	b := item[1:]
	switch item[0] {
	case itemPages:
		return s.takePages(b)
	case itemGone:
		return s.takeGone(b)
	case itemRun:
		return s.takeRun(b)
	case itemRegion:
		return s.takeRegion(b)
	case itemUndo:
		return s.takeUndo(b)
	case itemClient:
		return s.takeClient(b)
	case itemMark:
		return s.takeMark(b)
	case itemBatch:
		return s.takeBatch(b)
	case itemEnd:
		return s.takeEnd(b)
	case itemLevelled:
		return s.takeLevelled(b)
	}
	return badItem("item of kind %d", item[0])
}

// Complete makes the store a complete copy of its machine. It fails if the source's last
// item has not come.
func (s *Store) Complete(m control.Mirror) error {
	if s.filled == nil || !s.filled.complete || m.Incarnation != s.mirror.Incarnation {
		return fault.New(fault.Stale, "fill", "the copy has not received all items")
	}
	s.filled = nil
	return s.Become(m)
}

// Loaded makes a store that has taken all items its machine's only copy: they came from a
// file, and not from a source. It fails if the last item has not come.
func (s *Store) Loaded() error {
	if s.filled == nil || !s.filled.complete {
		return fault.New(fault.Stale, "load", "the last item is missing")
	}
	s.filled = nil
	return nil
}

// takeAt finds a region, or makes it.
func (s *Store) takeAt(id dsmpacket.RegionID, class uint8) (*region, error) {
	if class < dsmpacket.MinClass || class > dsmpacket.MaxClass || !id.Valid() {
		return nil, badItem("region %s of class %d", id, class)
	}
	if reg := s.regions.byID[id]; reg != nil {
		if reg.class != class {
			return nil, badItem("region %s has class %d, not %d", id, reg.class, class)
		}
		return reg, nil
	}
	block, ok := s.arena.take(class)
	if !ok {
		return nil, fault.New(fault.NoSpace, "fill", "no room for a region of %d bytes: %d of %d are in use", uint64(1)<<class, s.arena.used, len(s.arena.mem))
	}
	s.batches.give(id)
	reg := &region{id: id, block: block, class: class, data: s.arena.bytes(block, class)}
	s.regions.add(reg)
	return reg, nil
}

func (s *Store) takePages(b []byte) error {
	var v pagesItem
	b, err := decode(b, &v)
	if err != nil {
		return err
	}
	reg := s.regions.byID[v.ID]
	if s.filled == nil && reg == nil {
		return nil // it has been freed here, and goes at the other copy
	}
	if s.filled != nil {
		if reg, err = s.takeAt(v.ID, v.Class); err != nil {
			return err
		}
	}
	if v.At > uint64(len(reg.data)) || uint64(len(b)) > uint64(len(reg.data))-v.At {
		return badItem("%d bytes at %d of a region of %d", len(b), v.At, len(reg.data))
	}
	reg.put(v.At, b)
	return nil
}

func (s *Store) takeGone(b []byte) error {
	if len(b)%8 != 0 {
		return badItem("%d bytes of ids", len(b))
	}
	for ; len(b) > 0; b = b[8:] {
		s.releaseID(dsmpacket.RegionID(binary.BigEndian.Uint64(b)))
	}
	return nil
}

// releaseID ends a region, if it is there.
func (s *Store) releaseID(id dsmpacket.RegionID) {
	if reg := s.regions.byID[id]; reg != nil {
		s.release(reg)
		return
	}
	s.neverMade(id)
}

func (s *Store) takeLevelled(b []byte) error {
	var v levelledItem
	if _, err := decode(b, &v); err != nil {
		return err
	}
	s.Levelled(netip.AddrFrom16(v.Node), v.Incarnation)
	return nil
}

func (s *Store) takeRun(b []byte) error {
	var v runItem
	if _, err := decode(b, &v); err != nil {
		return err
	}
	e := &execution{id: v.Execution, by: runner{netip.AddrFrom16(v.Node), v.Incarnation}, rolled: v.Rolled}
	switch {
	case s.undo.byRun[e.key()] != nil:
		return badItem("execution %v comes twice", v.Execution)
	case s.undo.full(executionCost):
		return s.noUndo()
	}
	s.undo.byRun[e.key()] = e
	s.undo.charge(e, executionCost)
	return nil
}

// noUndo says that the undo of the source does not fit.
func (s *Store) noUndo() error {
	return fault.New(fault.NoSpace, "fill", "no room for undo: %d of %d bytes are in use", s.undo.shares.Used(), s.undo.limit)
}

func (s *Store) takeRegion(b []byte) error {
	var v regionItem
	if _, err := decode(b, &v); err != nil {
		return err
	}
	reg, err := s.takeAt(v.ID, v.Class)
	if err != nil {
		return err
	}
	if !reg.owner.IsValid() {
		reg.owner = netip.AddrFrom16(v.Owner)
		s.charge(reg)
	}
	s.filled.named[v.ID] = true
	if !v.Changed {
		return nil
	}
	e := s.undo.byRun[runKey{v.Execution, netip.AddrFrom16(v.Runner)}]
	switch {
	case e == nil || reg.changes != nil:
		return badItem("region %s is changed by an execution that is not known", v.ID)
	case s.undo.full(regionCost):
		return s.noUndo()
	}
	c := s.undo.attach(e, reg)
	c.own, c.used, c.key, c.size = v.Own, v.Used, allocKey{v.Branch, v.Index}, v.Size
	if c.own {
		e.keep(c)
	}
	return nil
}

func (s *Store) takeUndo(b []byte) error {
	var v undoItem
	b, err := decode(b, &v)
	if err != nil {
		return err
	}
	reg := s.regions.byID[v.ID]
	if reg == nil || reg.changes == nil || v.Page%pageSize != 0 || v.Page >= uint64(len(reg.data)) {
		return badItem("old content of page %d of %s", v.Page, v.ID)
	}
	c := reg.changes
	size := min(pageSize, uint64(len(reg.data))-v.Page)
	if v.From == 0 {
		cost := uint64(pageCost)
		if !v.Zero {
			cost += size
		}
		switch {
		case s.undo.full(cost):
			return s.noUndo()
		case !c.saved.add(v.Page >> pageShift):
			return badItem("old content of page %d of %s comes twice", v.Page, v.ID)
		}
		s.undo.charge(c.by, cost)
		c.cost += cost
		p := page{at: v.Page}
		if !v.Zero {
			p.old = make([]byte, size)
		}
		c.pages = append(c.pages, p)
	}
	if len(c.pages) == 0 || c.pages[len(c.pages)-1].at != v.Page {
		return badItem("a part of page %d of %s without the parts before", v.Page, v.ID)
	}
	old := c.pages[len(c.pages)-1].old
	if v.From > uint64(len(old)) || uint64(len(b)) > uint64(len(old))-v.From {
		return badItem("%d bytes at %d of a page", len(b), v.From)
	}
	copy(old[v.From:], b)
	return nil
}

func (s *Store) takeClient(b []byte) error {
	var v clientItem
	b, err := decode(b, &v)
	if err != nil {
		return err
	}
	node := netip.AddrFrom16(v.Node)
	c := s.clients.byNode[node]
	if c == nil {
		if len(s.clients.byNode) >= s.clients.limits.Clients {
			return badItem("more than %d clients", s.clients.limits.Clients)
		}
		c = &client{incarnation: v.Incarnation, fenced: v.Fenced, window: window{floor: v.Floor}}
		s.clients.byNode[node] = c
		if v.Fenced {
			s.clients.fenced = append(s.clients.fenced, node)
		}
	}
	for len(b) > 0 {
		var r recordItem
		if b, err = decode(b, &r); err != nil {
			return err
		}
		if r.ID == 0 || r.ID < c.window.floor || !s.clients.reserve(&c.window, r.ID) {
			return badItem("record %d of %s, whose floor is %d", r.ID, node, c.window.floor)
		}
		c.window.put(record{
			id: r.ID, length: r.Length, region: r.Region, at: r.At, op: dsmpacket.Op(r.Op), status: fault.Code(r.Status), class: r.Class, dead: r.Dead,
		})
	}
	return nil
}

func (s *Store) takeMark(b []byte) error {
	var v markItem
	if _, err := decode(b, &v); err != nil {
		return err
	}
	key := markKey{v.Main, netip.AddrFrom16(v.Node)}
	if _, known := s.undo.marks.last[key]; !known {
		s.undo.marks.add(key)
	}
	s.undo.marks.last[key] = mark{v.Incarnation, v.Run, v.Checkpoint, v.Back}
	return nil
}

func (s *Store) takeBatch(b []byte) error {
	var v batchItem
	if _, err := decode(b, &v); err != nil {
		return err
	}
	if v.Batch >= dsmpacket.Batches {
		return badItem("batch %d", v.Batch)
	}
	for i, last := range v.Last {
		if last > dsmpacket.MaxGeneration {
			return badItem("generation %d of slot %d in batch %d", last, i, v.Batch)
		}
		k := &s.batches.at(v.Batch).slots[i]
		k.last = max(k.last, last)
	}
	return nil
}

// takeEnd checks that all is there that the source has.
func (s *Store) takeEnd(b []byte) error {
	var v endItem
	if _, err := decode(b, &v); err != nil {
		return err
	}
	for id, reg := range s.regions.byID {
		if !s.filled.named[id] {
			return badItem("region %s of class %d, which the source does not have", id, reg.class)
		}
	}
	for key, e := range s.undo.byRun {
		if e.live == 0 {
			return badItem("execution %v of %s, which has changed nothing", key.id, key.node)
		}
	}
	if regions, runs, clients := len(s.regions.byID), len(s.undo.byRun), len(s.clients.byNode); uint64(regions) != v.Regions ||
		uint64(runs) != v.Runs || uint64(clients) != v.Clients {
		return badItem("%d regions, %d executions, %d clients; the source has %d, %d, %d", regions, runs, clients, v.Regions, v.Runs, v.Clients)
	}
	s.batches.highest, s.batches.floor = max(s.batches.highest, v.Generation), v.Floor // all copies refuse the same
	s.filled.complete = true
	return nil
}
