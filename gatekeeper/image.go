package gatekeeper

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// image is what registers had: call slots, then words, then call slots again. That is not one moment.
type image struct {
	slots []slotCell // that were used
	words []word
	later []slotCell // in the second reading; of a node's image there is none
	// records are those of a backup that it was read from.
	records []wal.ID
}

// sight makes an image.
type sight struct {
	reading
	row    uint16 // whose image it is; 0 for that of all registers
	blocks []uint32
	stage  int
	asks   bool // for a part of a gather
	image  image
	then   func(*image)
}

// The stages of a sight.
const (
	sightSlots = iota
	sightWords
	sightLater
	sightOver
)

// see makes an image of blocks, and of the words that a row owns; 0 stands for all.
func (c *controller) see(row uint16, blocks []uint32, then func(*image)) *sight {
	s := &sight{row: row, blocks: blocks, then: then}
	s.reading = reading{used: true, blocks: blocks}.begun()
	c.hand.begin(s)
	c.goOnSight(s)
	return s
}

func (s *sight) of() uint16 { return s.row }

func (s *sight) gathered(_ []slotCell, words []word) { s.asks, s.words = false, words }

func (c *controller) goOnSight(s *sight) {
	for s.left == 0 && !s.asks && s.stage < sightOver {
		switch s.stage++; s.stage {
		case sightWords:
			s.image.slots = s.slots
			if s.row != 0 {
				s.reading, s.asks = reading{}, true
				c.gather(&c.wordGathers, s)
				break
			}
			s.reading = reading{batches: c.allBatches()}.begun()
		case sightLater:
			s.image.words = s.words
			s.reading = reading{used: true}
			if s.row == 0 {
				s.reading.blocks = s.blocks
			}
			s.reading = s.begun()
		case sightOver:
			s.image.later = s.slots
			s.then(&s.image)
		}
		if s.left > 0 {
			c.hand.begin(s)
		}
	}
	c.reach()
}

// endSights gives up what is being read: it is not what it was any more.
func (h *hand) endSights() {
	all := slices.Clone(h.jobs)
	for _, o := range h.out {
		all = append(all, o.job)
	}
	for _, j := range all {
		if s, is := j.(*sight); is {
			h.end(s)
		}
	}
}

// rememberRow makes an image of what the row of a node has that has ended, and whose packets do not pass any more. Its row owns at least that until
// its next incarnation's packets pass, or one-ways to it fail: the rebuilding of lost registers needs it, since such a node cannot give its account.
func (c *controller) rememberRow(n *node) {
	if n.image = nil; n.rights() && c.rebuild == nil && c.connected {
		c.seeRow(n)
	}
}

// seeRow makes that image, once more if there is one.
func (c *controller) seeRow(n *node) {
	c.see(n.row, n.blocks, func(i *image) {
		if c.fallen[n.address] == n && c.rebuild == nil {
			n.image = i
		}
	})
}

// rememberAll does that for the nodes of which it was not done: this Gatekeeper has not seen their end, or the registers were being rebuilt.
func (c *controller) rememberAll() {
	for _, n := range c.sortedFallen() {
		if n.image == nil {
			c.rememberRow(n)
		}
	}
}

// A backup has an image of all registers, made while memory is held: nothing is settled meanwhile.

// saw returns an image of all registers.
func (g *Gatekeeper) saw(ctx context.Context) (*image, error) {
	found := make(chan *image, 1)
	var s *sight
	err := g.query(ctx, func(c *controller) error {
		if !c.connected || c.rebuild != nil {
			return fault.New(fault.Unavailable, "backup", "the switch is away, or its registers are being rebuilt: try again")
		}
		s = c.see(0, c.allBlocks(), func(i *image) { found <- i })
		return nil
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, backupPatience)
	defer cancel()
	select {
	case i := <-found:
		return i, nil
	case <-g.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		_ = g.do(context.WithoutCancel(ctx), func() { g.ctl.hand.end(s) })
		return nil, fault.New(fault.Unavailable, "backup", "the switch's registers were not read: %v", ctx.Err())
	}
}

// The first byte of an ID of KindRegisters: what the record is about.
const (
	savedBatch = 1
	savedBlock = 2
	savedLater = 3 // a block, in the second reading
)

func registersID(what byte, number uint32) (id wal.ID) {
	id[3] = what
	binary.BigEndian.PutUint32(id[4:], number)
	return id
}

// saved are an image as records of a log.
func (i *image) saved() (all []wal.Record) {
	data := map[wal.ID][]byte{}
	for _, w := range i.words {
		id := registersID(savedBatch, w.region.Batch())
		data[id] = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(data[id], w.region.Slot()), w.value())
	}
	for what, slots := range map[byte][]slotCell{savedBlock: i.slots, savedLater: i.later} {
		for k := range slots {
			id := registersID(what, slots[k].slot.Block())
			data[id] = slots[k].appendTo(binary.BigEndian.AppendUint32(data[id], uint32(slots[k].slot)))
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(data), func(a, b wal.ID) int { return slices.Compare(a[:], b[:]) }) {
		all = append(all, wal.Record{Kind: wal.KindRegisters, ID: id, Data: data[id]})
	}
	return all
}

// restore takes a record of the backup that the rack begins with.
func (i *image) restore(r *wal.Record) error {
	size := 4 + handHeader
	if r.ID[3] == savedBatch {
		size = 4 + 8
	}
	if len(r.Data)%size != 0 || r.ID[3] < savedBatch || r.ID[3] > savedLater {
		return corrupt(r, "%d bytes of registers", len(r.Data))
	}
	for part := range slices.Chunk(r.Data, size) {
		at, content := binary.BigEndian.Uint32(part), part[4:]
		switch r.ID[3] {
		case savedBatch:
			if at >= dsmpacket.Batches*dsmpacket.BatchSlots {
				return corrupt(r, "region slot %d", at)
			}
			i.words = append(i.words, wordOf(at, binary.BigEndian.Uint64(content)))
		case savedBlock:
			i.slots = append(i.slots, slotOf(at, content))
		case savedLater:
			i.later = append(i.later, slotOf(at, content))
		}
		if r.ID[3] != savedBatch && !rpcpacket.Slot(at).Valid() {
			return corrupt(r, "call slot %d", at)
		}
	}
	i.records = append(i.records, r.ID)
	return nil
}

// dropSaved forgets what the backup had: the switch has it.
func (c *controller) dropSaved() {
	if c.saved == nil {
		return
	}
	for _, id := range c.saved.records {
		c.drop(wal.KindRegisters, id)
	}
	c.saved = nil
}

// owned counts the regions that nodes own, and those on machines of which nothing is told.
func (p *population) ownedIn(i *image, served func(machine uint8) bool) (regions, lacks int) {
	for _, w := range i.words {
		if w.owner != 0 {
			regions++
			if !served(p.batches.of[w.region.Batch()].machine) {
				lacks++
			}
		}
	}
	return regions, lacks
}
