package transport_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// sim is both cores and a network between them, in one goroutine and in virtual
// time: clients, a switch that denies as told, memory machines. What happens is
// decided by the seed alone.
type sim struct {
	rand    *rand.Rand
	now     time.Duration
	flying  flying
	sent    uint64
	loss    chances
	stores  []*store.Store // machine i+1
	clients []*simClient
	denied  map[access]fault.Code // with which code the switch turns a request around
	// held is how long the Gatekeeper takes over an alloc or a free.
	held time.Duration
	// kept is an answer of a machine to keptFor that it may join with the next one.
	kept    *store.Answer
	keptFor int
	keptBy  *store.Store
	// seconds are the second copies of mirrored machines, nil for the others; freed is
	// which copies have answered a free.
	seconds []*store.Store
	batches uint32 // given out
	freed   map[access]map[*store.Store]bool
}

// chances is what the network does to packets.
type chances struct {
	lost, doubled, late float64
	lateBy              time.Duration
}

// access is a permission that a node does not have.
type access struct {
	node   int
	region dsmpacket.RegionID
	op     dsmpacket.Op
}

const (
	simPrefix = rackaddr.DefaultDSMPrefix
	simData   = 256 // small, so that small transfers are cut
	simWindow = 8 << 10
)

func newSim(seed uint64, clients, machines int) *sim {
	s := &sim{rand: rand.New(rand.NewPCG(seed, 1)), denied: map[access]fault.Code{}, freed: map[access]map[*store.Store]bool{}, held: time.Millisecond}
	for m := range machines {
		s.stores = append(s.stores, newStore(uint8(m+1), floorOf(uint8(m+1))))
	}
	for i := range clients {
		s.clients = append(s.clients, &simClient{sim: s, node: i + 1})
		s.clients[i].boot()
	}
	return s
}

func newStore(machine uint8, floor uint32) *store.Store {
	return store.New(store.Config{
		Prefix: simPrefix, Machine: machine, Floor: floor, Memory: make([]byte, 1<<20),
		Discard: func(b []byte) { clear(b) }, MaxData: simData,
	})
}

// simClient is one node.
type simClient struct {
	sim         *sim
	node        int
	incarnation uint32
	slot        uint32 // the next one to allocate in
	endpoint    *transport.Endpoint
	done        map[*transport.Transfer]bool
	passed      map[*transport.Barrier]bool
}

// boot begins the node's next incarnation; nothing is left of the one before.
func (c *simClient) boot() {
	c.incarnation++
	c.done, c.passed = map[*transport.Transfer]bool{}, map[*transport.Barrier]bool{}
	c.endpoint = transport.New(transport.Config{Incarnation: c.incarnation, MaxData: simData, Window: simWindow})
}

// flush takes what has become ready, as the shell does.
func (c *simClient) flush() {
	ready := c.endpoint.Ready()
	for _, p := range ready.Send {
		b := append(p.Header.Append(nil), p.Data...)
		c.sim.send(datagram{client: c.node, addr: p.To, payload: b})
	}
	for _, t := range ready.Done {
		c.done[t] = true
	}
	for _, b := range ready.Passed {
		c.passed[b] = true
	}
	c.endpoint.Clear()
}

// datagram is one on its way: to a server at addr, or from addr to a client.
type datagram struct {
	client  int
	addr    dsmpacket.Pointer
	payload []byte
	reply   bool
	to      *store.Store // a copy; nil until the switch has chosen it
	at      time.Duration
	order   uint64
}

// send lets the network do its worst to a datagram.
func (s *sim) send(d datagram) {
	copies := 1
	if s.rand.Float64() < s.loss.lost {
		copies--
	}
	if s.rand.Float64() < s.loss.doubled {
		copies++
	}
	for range copies {
		d.at = s.now + 20*time.Microsecond + time.Duration(s.rand.IntN(10_000))
		if op := d.addr.Op(); d.reply && (op == dsmpacket.OpAlloc || op == dsmpacket.OpFree) {
			d.at += s.held
		}
		if s.rand.Float64() < s.loss.late {
			d.at += time.Duration(s.rand.Float64() * float64(s.loss.lateBy))
		}
		s.sent++
		d.order = s.sent
		heap.Push(&s.flying, d)
	}
}

// step lets the next thing happen; false if nothing ever will.
func (s *sim) step() bool {
	if len(s.flying) == 0 || s.rand.IntN(4) == 0 {
		s.letGo()
	}
	at, who := transport.Never, (*simClient)(nil)
	for _, c := range s.clients {
		if w := c.endpoint.Wake(); w < at {
			at, who = w, c
		}
	}
	if len(s.flying) > 0 && s.flying[0].at <= at {
		d := heap.Pop(&s.flying).(datagram)
		s.now = max(s.now, d.at)
		s.arrive(d)
		return true
	}
	if who == nil {
		return false
	}
	s.now = max(s.now, at)
	who.endpoint.Tick(s.now)
	who.flush()
	return true
}

func (s *sim) arrive(d datagram) {
	h, data, err := dsmpacket.Parse(d.payload)
	if err != nil {
		panic(err)
	}
	if d.reply {
		c := s.clients[d.client-1]
		c.endpoint.Receive(s.now, d.addr, &h, data)
		c.flush()
		return
	}
	if why := s.denies(d.client, d.addr); why != fault.OK {
		h.Kind, h.Status = dsmpacket.Nack, why
		d.reply, d.payload = true, append(h.Append(nil), data...)
		s.send(d)
		return
	}
	m := int(d.addr.Machine())
	if m > len(s.stores) || s.stores[m-1] == nil {
		return
	}
	first, second := s.stores[m-1], s.second(m)
	switch {
	case d.to != nil && d.to != first && d.to != second:
		return // of a copy that is lost
	case d.to == nil && second != nil && d.addr.Op() != dsmpacket.OpRead:
		for _, d.to = range []*store.Store{first, second} {
			s.send(d)
		}
		return
	case d.to == nil:
		d.to = first
	}
	r := &store.Request{Node: rackaddr.Node(uint64(d.client)), To: d.addr, Header: h, Data: data}
	a, drop := d.to.Handle(r)
	if drop == store.NotDropped && s.gatekeeper(m, d.to, r, &a) {
		s.answer(d.client, d.to, &a)
	}
	if second != nil && first.Diverged()+second.Diverged() > 0 {
		s.lose(m, second)
	}
}

// second is the second copy of a machine, nil if it has none.
func (s *sim) second(m int) *store.Store {
	if m > len(s.seconds) {
		return nil
	}
	return s.seconds[m-1]
}

// lose makes a copy of a machine fail: the other one is told that it is alone.
func (s *sim) lose(m int, lost *store.Store) {
	if lost == s.stores[m-1] {
		s.stores[m-1] = s.seconds[m-1]
	}
	s.seconds[m-1] = nil
	s.letGo()
	mirror := s.stores[m-1].Mirror()
	if err := s.stores[m-1].Become(control.Mirror{Epoch: mirror.Epoch + 1, Incarnation: mirror.Incarnation, Members: 1}); err != nil {
		panic(err)
	}
}

// gatekeeper does what the Gatekeeper does to a memory server's answer before that
// goes on. It reports false if the answer is lost.
func (s *sim) gatekeeper(m int, by *store.Store, r *store.Request, a *store.Answer) bool {
	second := s.second(m)
	switch r.To.Op() {
	case dsmpacket.OpFree:
		at := access{int(r.Node.As16()[15]), r.To.ID(), dsmpacket.OpFree}
		if s.freed[at] == nil {
			s.freed[at] = map[*store.Store]bool{}
		}
		s.freed[at][by] = a.Header.Status == fault.OK || a.Header.Status == fault.NotFound
		if s.freed[at][s.stores[m-1]] && (second == nil || s.freed[at][second]) {
			s.denied[at] = fault.PermissionDenied // the free rule goes
		}
	case dsmpacket.OpAlloc:
		return a.Header.Status != fault.OK || s.rand.IntN(10) > 0
	}
	return true
}

// choose returns a region that a client may allocate on a machine.
func (s *sim) choose(c *simClient, machine uint8) dsmpacket.Pointer {
	if c.slot%dsmpacket.BatchSlots == 0 {
		s.batches++
		c.slot = s.batches * dsmpacket.BatchSlots
	}
	g := control.Grant{Batches: []control.BatchOf{{Batch: c.slot / dsmpacket.BatchSlots, Node: rackaddr.Node(uint64(c.node))}}}
	for _, st := range []*store.Store{s.stores[machine-1], s.second(int(machine))} {
		if st == nil {
			continue
		}
		if err := st.Grant(g); err != nil {
			panic(err)
		}
	}
	p := dsmpacket.Make(simPrefix, machine, dsmpacket.IDOf(c.slot, floorOf(machine)+1))
	c.slot++
	return p
}

// floorOf is the floor of a machine's generations.
func floorOf(machine uint8) uint32 { return uint32(machine-1) * 100 }

// answer sends an answer, or keeps it for a moment.
func (s *sim) answer(client int, by *store.Store, a *store.Answer) {
	if s.keptFor != client || s.keptBy != by || s.kept == nil || !s.kept.Join(a) {
		s.letGo()
		s.kept, s.keptFor, s.keptBy = a, client, by
	}
	if a.From.Op() != dsmpacket.OpWrite || s.rand.IntN(2) == 0 {
		s.letGo()
	}
}

// letGo sends the answer that is kept.
func (s *sim) letGo() {
	if s.kept == nil {
		return
	}
	for a := range s.kept.Datagrams() {
		s.send(datagram{client: s.keptFor, addr: a.From, reply: true, payload: append(a.Header.Append(nil), a.Data...)})
	}
	s.kept = nil
}

// denies says with which code the switch turns a request around, OK if it lets it pass.
func (s *sim) denies(node int, to dsmpacket.Pointer) fault.Code {
	return s.denied[access{node, to.ID(), to.Op()}]
}

// simClass is the class of all regions in a simulation.
const simClass = 12

// until runs until f is true. It panics if that never comes, or not within an
// hour of virtual time.
func (s *sim) until(what string, f func() bool) {
	for end := s.now + time.Hour; !f(); {
		if !s.step() || s.now > end {
			panic(fmt.Sprintf("at %v: %s does not come about", s.now, what))
		}
	}
}

// run lets d pass.
func (s *sim) run(d time.Duration) {
	end := s.now + d
	for s.now < end {
		next := transport.Never
		if len(s.flying) > 0 {
			next = s.flying[0].at
		}
		for _, c := range s.clients {
			next = min(next, c.endpoint.Wake())
		}
		if next > end {
			s.now = end
			return
		}
		s.step()
	}
}

// start begins a transfer of a client.
func (c *simClient) start(t *transport.Transfer) *transport.Transfer {
	c.endpoint.Start(c.sim.now, t)
	c.flush()
	return t
}

// finish runs until a transfer is done.
func (c *simClient) finish(t *transport.Transfer) {
	c.sim.until(fmt.Sprintf("%s of client %d", t.Op, c.node), func() bool { return c.done[t] })
	delete(c.done, t)
}

func (c *simClient) do(t *transport.Transfer) *transport.Transfer {
	c.finish(c.start(t))
	return t
}

// settle runs until nothing of these regions is left to settle.
func (c *simClient) settle(ptrs ...dsmpacket.Pointer) {
	if b := c.endpoint.Barrier(ptrs); b != nil {
		c.sim.until("a barrier", func() bool { return c.passed[b] })
		delete(c.passed, b)
	}
}

// flying is a heap of datagrams by arrival.
type flying []datagram

func (f flying) Len() int { return len(f) }
func (f flying) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].order < f[j].order
}
func (f flying) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flying) Push(x any)   { *f = append(*f, x.(datagram)) }
func (f *flying) Pop() any {
	old := *f
	last := old[len(old)-1]
	*f = old[:len(old)-1]
	return last
}

// However many writes are given up while the network is dead, the server takes
// all that is needed to settle them afterwards.
func TestAbandonedWritesFitTheServersWindow(t *testing.T) {
	s := newSim(1, 1, 1)
	c := s.clients[0]
	var regions []dsmpacket.Pointer
	for range store.MaxSpan>>simClass + 1 {
		p := s.choose(c, 1)
		c.do(&transport.Transfer{Op: dsmpacket.OpAlloc, Pointer: p, Size: 1 << simClass})
		regions = append(regions, p)
	}
	s.loss.lost = 1
	for i := range store.MaxSpan + 100 {
		p := regions[i>>simClass].Add(int64(i & (1<<simClass - 1)))
		w := c.start(&transport.Transfer{Op: dsmpacket.OpWrite, Pointer: p, Buf: []byte{1}})
		if !c.endpoint.Cancel(s.now, w, fault.Canceled) {
			t.Fatalf("write %d was done on a dead network", i)
		}
		c.flush()
	}
	s.loss.lost = 0
	c.settle(regions...)
	if w := c.do(&transport.Transfer{Op: dsmpacket.OpWrite, Pointer: regions[0], Buf: []byte{2}}); w.Status != fault.OK {
		t.Errorf("afterwards: %v", w.Status)
	}
}
