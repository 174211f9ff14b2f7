package transport_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run only this seed")
	seedsFlag = flag.Uint64("seeds", 120, "how many seeds to run")
)

// TestModel runs random programs of two clients on two machines, and compares what they
// see with a simple model of memory. The network loses, doubles and delays. Denials,
// cancellations, crashes and next incarnations come at any moment:
//
//   - what a write reports as done is there, what it reports as denied is not;
//   - after Barrier, nothing that was cancelled changes anything any more, ever;
//   - after Fence, nothing that the dead incarnation sent does;
//   - every transfer ends, and nothing is left allocated that nobody knows of.
//
// Every other program's machines have two copies, one of which may fail at any moment.
// As long as both are there, they hold the same when nothing is under way.
func TestModel(t *testing.T) {
	seeds := *seedsFlag
	if testing.Short() {
		seeds = 30
	}
	if *seedFlag != 0 {
		newProgram(t, *seedFlag).run()
		return
	}
	for seed := uint64(1); seed <= seeds && !t.Failed(); seed++ {
		newProgram(t, seed).run()
	}
}

// program is one random program and the model that it is checked against.
type program struct {
	*sim
	t       *testing.T
	seed    uint64
	regions []*modelRegion
	stamp   uint64
}

// modelRegion is what is known of one region: for each 8 bytes, the values that
// may stand there.
type modelRegion struct {
	owner *simClient
	base  dsmpacket.Pointer
	slots [][]uint64
	// torn is true if a free was cancelled: the region may be gone.
	torn bool
	op   *transport.Transfer // under way
	data []byte              // what op writes
}

const slotSize = 8

func newProgram(t *testing.T, seed uint64) *program {
	p := &program{sim: newSim(seed, 2, 2), t: t, seed: seed}
	if seed%2 == 0 {
		p.mirror()
	}
	p.loss = chances{lost: p.chance(), doubled: p.chance(), late: p.chance(), lateBy: 5 * time.Second}
	return p
}

func (p *program) chance() float64 { return []float64{0, 0.01, 0.05, 0.2}[p.rand.IntN(4)] }

func (p *program) errorf(format string, args ...any) {
	p.t.Helper()
	p.t.Errorf("seed %d, at %v: "+format, append([]any{p.seed, p.now}, args...)...)
}

func (p *program) run() {
	for range 25 {
		p.round()
	}
	p.denied = map[access]fault.Code{}
	for _, r := range p.regions {
		r.owner.settle(r.base)
		if f := r.owner.do(&transport.Transfer{Op: dsmpacket.OpFree, Pointer: r.base}); f.Status != fault.OK && !r.torn {
			p.errorf("free at the end: %v", f.Status)
		}
	}
	for p.step() { // until nothing is under way
	}
	for m, s := range p.copies() {
		if s.Used() != 0 {
			p.errorf("machine %d still has %d bytes allocated", m, s.Used())
		}
	}
}

// mirror gives every machine a second copy.
func (p *program) mirror() {
	for m, first := range p.stores {
		second := newStore(uint8(m+1), floorOf(uint8(m+1)))
		for i, s := range []*store.Store{first, second} {
			if err := s.Become(control.Mirror{Epoch: 1, Incarnation: uint32(i + 1), Copy: uint8(i), Members: 2}); err != nil {
				p.t.Fatal(err)
			}
		}
		p.seconds = append(p.seconds, second)
	}
}

// copies yields all copies of all machines.
func (p *program) copies() iter.Seq2[int, *store.Store] {
	return func(yield func(int, *store.Store) bool) {
		for i, s := range p.stores {
			if !yield(i+1, s) || p.second(i+1) != nil && !yield(i+1, p.second(i+1)) {
				return
			}
		}
	}
}

// fail lets a copy fail at any moment.
func (p *program) fail() {
	m := 1 + p.rand.IntN(len(p.stores))
	switch second := p.second(m); {
	case second == nil:
	case p.rand.IntN(2) == 0:
		p.lose(m, second)
	default:
		p.lose(m, p.stores[m-1])
	}
}

// equal checks that the copies of a region that is settled hold the same.
func (p *program) equal(r *modelRegion) {
	m := int(r.base.Machine())
	second := p.second(m)
	if second == nil {
		return
	}
	a, thereA := p.stores[m-1].Content(r.base.ID(), 1<<simClass)
	b, thereB := second.Content(r.base.ID(), 1<<simClass)
	if thereA != thereB || !bytes.Equal(a, b) {
		p.errorf("the copies of %v differ: there %t, %t", r.base, thereA, thereB)
	}
}

// round starts an operation on some regions at once, disturbs them, and checks
// what comes out.
func (p *program) round() {
	if len(p.regions) < 8 {
		p.alloc()
	}
	var busy []*modelRegion
	for _, r := range p.regions {
		if p.rand.IntN(3) > 0 {
			p.begin(r)
			busy = append(busy, r)
		}
	}
	p.disturb(busy)
	if p.rand.IntN(20) == 0 {
		p.crash(p.clients[p.rand.IntN(2)])
	}
	if p.rand.IntN(30) == 0 {
		p.fail()
	}
	for _, r := range busy {
		if p.rand.IntN(4) == 0 {
			p.cancel(r)
		}
		if r.op != nil {
			r.owner.finish(r.op)
			p.judge(r)
		}
	}
	if p.rand.IntN(4) == 0 {
		p.sim.run(time.Duration(p.rand.IntN(10_000)) * time.Millisecond)
	}
	p.regions = slices.DeleteFunc(p.regions, func(r *modelRegion) bool { return r.slots == nil })
}

// alloc makes a region, or gives up half-way.
func (p *program) alloc() {
	c := p.clients[p.rand.IntN(2)]
	t := c.start(&transport.Transfer{Op: dsmpacket.OpAlloc, Pointer: p.choose(c, uint8(1+p.rand.IntN(2))), Size: 1 << simClass})
	if p.rand.IntN(4) == 0 {
		p.sim.run(time.Duration(p.rand.IntN(3000)) * time.Microsecond)
		if c.endpoint.Cancel(p.now, t, fault.Canceled) {
			c.flush()
			return
		}
	}
	c.finish(t)
	if t.Status != fault.OK {
		p.errorf("alloc: %v", t.Status)
		return
	}
	r := &modelRegion{owner: c, base: t.Pointer, slots: make([][]uint64, (1<<simClass)/slotSize)}
	for i := range r.slots {
		r.slots[i] = []uint64{0}
	}
	p.regions = append(p.regions, r)
}

// begin starts an operation on a region.
func (p *program) begin(r *modelRegion) {
	if r.torn || p.rand.IntN(3) == 0 {
		r.owner.settle(r.base)
		p.read(r)
		if r.slots == nil {
			r.op = nil
			return
		}
	}
	slots := len(r.slots)
	from := p.rand.IntN(slots)
	n := 1 + p.rand.IntN(min(slots-from, 200))
	t := &transport.Transfer{Pointer: r.base.Add(int64(from * slotSize)), Buf: make([]byte, n*slotSize)}
	switch p.rand.IntN(8) {
	case 0:
		t.Op, t.Pointer, t.Buf = dsmpacket.OpFree, r.base, nil
	case 1, 2:
		t.Op = dsmpacket.OpRead
	default:
		t.Op = dsmpacket.OpWrite
		for i := range n {
			p.stamp++
			binary.BigEndian.PutUint64(t.Buf[i*slotSize:], p.stamp)
		}
		r.data = slices.Clone(t.Buf)
	}
	if p.rand.IntN(3) == 0 {
		p.deny(r, true)
	}
	r.op = r.owner.start(t)
}

// disturb changes permissions while operations run.
func (p *program) disturb(busy []*modelRegion) {
	for _, r := range busy {
		if p.rand.IntN(2) == 0 {
			p.sim.run(time.Duration(p.rand.IntN(300)) * time.Microsecond)
		}
		p.deny(r, p.rand.IntN(4) == 0)
	}
	for _, r := range busy {
		p.deny(r, false)
	}
}

func (p *program) deny(r *modelRegion, yes bool) {
	why := fault.OK
	if yes {
		why = []fault.Code{fault.PermissionDenied, fault.Overloaded}[p.rand.IntN(2)]
	}
	for _, op := range []dsmpacket.Op{dsmpacket.OpWrite, dsmpacket.OpFree} {
		p.denied[access{r.owner.node, r.base.ID(), op}] = why
	}
	if yes {
		why = fault.PermissionDenied // a read is never turned around as lent
	}
	p.denied[access{r.owner.node, r.base.ID(), dsmpacket.OpRead}] = why
}

// crash ends a node's incarnation at any moment. What it had under way may have
// happened or not; what it allocated and did not get to know is reclaimed.
func (p *program) crash(c *simClient) {
	for i := range p.stores {
		p.fence(i+1, control.Fence{Node: rackaddr.Node(uint64(c.node)), Incarnation: c.incarnation})
	}
	c.boot()
	known := map[dsmpacket.RegionID]bool{}
	for _, r := range p.regions {
		known[r.base.ID()] = true
		if t := r.op; r.owner == c && t != nil {
			t.Status, t.Local, t.N = fault.Canceled, true, 0
			p.judge(r)
		}
	}
	for _, s := range p.copies() {
		var lost control.Reclaim
		for page := (control.RegionList{Next: 1}); page.Next != 0; {
			page = s.List(control.Regions{From: page.Next})
			for _, id := range page.Regions {
				if id.Owner == rackaddr.Node(uint64(c.node)) && !known[id.ID] {
					lost.Regions = append(lost.Regions, id)
				}
			}
		}
		if refused := s.Reclaim(lost).Refused; len(refused) > 0 {
			p.errorf("refused: %+v", refused)
		}
	}
}

// fence fences a node at all copies of a machine, and makes the second what the first is.
func (p *program) fence(m int, f control.Fence) {
	one := p.stores[m-1].Fence(f)
	second := p.second(m)
	if second == nil {
		return
	}
	two := second.Fence(f)
	items, err := p.stores[m-1].Level(control.Level{Fence: f, First: one.Unsettled, Second: two.Unsettled})
	for _, give := range items {
		for item := give(store.MinItem); item != nil && err == nil; item = give(store.MinItem) {
			err = second.Take(item)
		}
	}
	p.stores[m-1].Levelled(f.Node, f.Incarnation)
	if err != nil {
		p.errorf("%v", err)
	}
}

// cancel gives an operation up and notes what is not known then.
func (p *program) cancel(r *modelRegion) {
	if r.op == nil || !r.owner.endpoint.Cancel(p.now, r.op, fault.Canceled) {
		return
	}
	r.owner.flush()
	if r.op.Status == fault.OK {
		p.errorf("cancelled %v is OK", r.op.Op)
	}
	p.judge(r)
}

// judge checks an operation's outcome and brings the model up to date.
func (p *program) judge(r *modelRegion) {
	t := r.op
	r.op = nil
	switch t.Op {
	case dsmpacket.OpRead:
		p.compare(r, t)
	case dsmpacket.OpFree:
		switch {
		case t.Status == fault.OK:
			r.slots = nil
		case t.Local:
			r.torn = true
		case t.Status != fault.PermissionDenied && !t.Lent:
			p.errorf("free: %v", t.Status)
		}
	case dsmpacket.OpWrite:
		p.wrote(r, t)
	}
}

func (p *program) wrote(r *modelRegion, t *transport.Transfer) {
	if t.Status != fault.OK && t.Status != fault.PermissionDenied && !t.Lent && !t.Local {
		p.errorf("write: %v", t.Status)
	}
	if t.N > len(t.Buf) || (t.N == len(t.Buf)) != (t.Status == fault.OK) {
		p.errorf("write of %d bytes: %d done, %v", len(t.Buf), t.N, t.Status)
	}
	first := int(t.Pointer.Offset()) / slotSize
	for i := range len(r.data) / slotSize {
		slot, v := &r.slots[first+i], binary.BigEndian.Uint64(r.data[i*slotSize:])
		switch at := i * slotSize; {
		case at < t.N:
			*slot = []uint64{v}
		case !t.Local && at < t.N+simData: // the datagram that was denied
		default:
			*slot = append(*slot, v)
		}
	}
}

// compare checks what a read has brought.
func (p *program) compare(r *modelRegion, t *transport.Transfer) {
	if t.Status != fault.OK && t.Status != fault.PermissionDenied && !t.Local {
		p.errorf("read: %v", t.Status)
	}
	first := int(t.Pointer.Offset()) / slotSize
	for i := range t.N / slotSize {
		got := binary.BigEndian.Uint64(t.Buf[i*slotSize:])
		if !slices.Contains(r.slots[first+i], got) {
			p.errorf("%v+%d is %d, may be %d", r.base, (first+i)*slotSize, got, r.slots[first+i])
			return
		}
	}
}

// read reads a settled region whole: what stands there now stays.
func (p *program) read(r *modelRegion) {
	t := r.owner.do(&transport.Transfer{Op: dsmpacket.OpRead, Pointer: r.base, Buf: make([]byte, 1<<simClass)})
	if t.Status == fault.NotFound && r.torn {
		r.slots = nil
		return
	}
	if t.Status != fault.OK {
		p.errorf("read of a settled region: %v", t.Status)
		return
	}
	r.torn = false
	p.compare(r, t)
	p.equal(r)
	for i := range r.slots {
		r.slots[i] = []uint64{binary.BigEndian.Uint64(t.Buf[i*slotSize:])}
	}
}
