package recovery

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// rack is a tiny rack around the two cores: processes that run random programs,
// one memory, a switch that knows identities, a log, and a Gatekeeper that can be
// killed. What is under way is a set of events that happen in any order.
type rack struct {
	t   *testing.T
	rnd *rand.Rand

	disk map[wal.Key]wal.Record
	seq  uint64

	table   *execution.Table
	machine *Machine
	queue   []queued // outputs that are not logged yet
	life    int      // of the Gatekeeper
	events  []event  // under way

	identity map[netip.Addr]*process // as the switch has it
	procs    []*process
	homes    map[netip.Addr]bool // nodes that are placed again when they fail
	unplaced []wal.Node          // that wait for a spare
	memory   memory

	trouble float64               // how often packets are lost or doubled
	limit   uint16                // of attempts
	aborts  bool                  // are expected
	ops     map[rpcpacket.ID][]op // of all calls that were ever begun

	seed           uint64 // of the programs
	mains, clients int    // how much the durable main and the plain client do
	serials        int    // calls that the state must have
	log            []string
}

// queued is an output of either core.
type queued struct {
	put     []wal.Record
	delete  []wal.Key
	actions []any
}

// event is something that happens later. One of a Gatekeeper's life dies with it.
type event struct {
	name string
	life int // 0: outlives it
	do   func()
}

// memory is what executions have written: uncommitted, and for good.
type memory struct {
	open, kept map[rpcpacket.ID][]string
	fenced     map[netip.Addr]uint32
	ended      map[rpcpacket.ID]bool // calls that have committed
}

var now = time.Unix(1, 0).UTC()

const servers = 3 // 0 and 1 are stateless, 2 is stateful

func serverAddr(i int) netip.Addr { return rackaddr.Node(uint64(i + 1)) }

var (
	clientAddr = rackaddr.Node(10)
	mainAddr   = rackaddr.Node(11)
	mainID     = endpoint.MainID("m")
)

func newRack(t *testing.T, seed uint64) *rack {
	r := &rack{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), disk: map[wal.Key]wal.Record{}, identity: map[netip.Addr]*process{},
		homes: map[netip.Addr]bool{mainAddr: true}, life: 1, limit: 1000, table: execution.New(1000), machine: New(), ops: map[rpcpacket.ID][]op{},
		memory: memory{map[rpcpacket.ID][]string{}, map[rpcpacket.ID][]string{}, map[netip.Addr]uint32{}, map[rpcpacket.ID]bool{}},
	}
	r.recovery(r.machine.AddServer("m1"))
	for i := range servers {
		r.homes[serverAddr(i)] = true
		r.start(wal.Node{Address: serverAddr(i), Incarnation: 1})
	}
	return r
}

func (r *rack) fatalf(format string, args ...any) {
	r.t.Helper()
	for _, l := range r.log {
		r.t.Log(l)
	}
	r.t.Fatalf(format, args...)
}

func (r *rack) note(format string, args ...any) { r.log = append(r.log, fmt.Sprintf(format, args...)) }

func (r *rack) execution(o execution.Output) {
	q := queued{put: o.Put, delete: o.Delete}
	for _, a := range o.Actions {
		q.actions = append(q.actions, a)
	}
	r.queue = append(r.queue, q)
}

func (r *rack) recovery(o Output) {
	q := queued{put: o.Put, delete: o.Delete}
	for _, a := range o.Actions {
		q.actions = append(q.actions, a)
	}
	r.queue = append(r.queue, q)
}

// logNext logs the oldest output and carries it out.
func (r *rack) logNext() {
	q := r.queue[0]
	r.queue = r.queue[1:]
	for _, rec := range q.put {
		r.seq++
		rec.Sequence = r.seq
		r.disk[rec.Key()] = rec
	}
	for _, k := range q.delete {
		delete(r.disk, k)
	}
	for _, a := range q.actions {
		r.note("  %T%+v", a, a)
		r.carryOut(a)
	}
}

// later makes something happen, unless the Gatekeeper dies before.
func (r *rack) later(name string, do func()) {
	r.events = append(r.events, event{name, r.life, do})
}

// send makes a packet arrive, perhaps: it may be lost, or come twice.
func (r *rack) send(name string, do func()) {
	for r.rnd.Float64() >= r.trouble {
		r.events = append(r.events, event{name, 0, do})
		if r.rnd.Float64() >= r.trouble {
			return
		}
	}
}

func (r *rack) carryOut(a any) {
	switch a := a.(type) {
	case execution.Admit:
		r.later("admitted", func() { r.execution(r.table.Admitted(a.Call, nil)) })
	case execution.Hand:
		r.later("handed", func() { r.execution(r.table.Handed(a.Call)) })
	case execution.Deliver:
		rec := r.disk[wal.Key{Kind: wal.KindCall, ID: wal.ID(a.Call)}]
		r.send("deliver", func() { r.deliver(a, rec) })
	case execution.Answer:
		if rec, ok := r.disk[wal.Key{Kind: wal.KindReply, ID: wal.ID(a.Call)}]; ok {
			r.send("answer", func() { r.toProcess(a.To, func(p *process) { p.answered(rec.Packet) }) })
		}
	case execution.Except:
		if a.Why.Code.String() != "stale" {
			r.fatalf("%+v: %v", a, a.Why)
		}
	case execution.Ack:
		r.send("ack", func() { r.toProcess(a.To, func(p *process) { p.acked(a.Call, a.Done) }) })
	case execution.Commit:
		r.later("commit", func() { r.memory.commit(r, a.Execution); r.execution(r.table.Committed(a.Execution)) })
	case execution.Rollback:
		r.later("rollback", func() { r.memory.rollback(r, a.Execution); r.execution(r.table.RolledBack(a.Execution)) })
	case execution.Return:
		r.later("returned", func() { r.execution(r.table.Returned(a.Call, nil, now)) })
	case execution.Begun:
		state, journal, index := r.table.Main(a.Main)
		r.events = append(r.events, event{"begun", 0, func() {
			r.toProcess(mainAddr, func(p *process) {
				if p.self == a.At && a.Over {
					p.over = true
				} else if p.self == a.At {
					p.beginMain(state, journal, index)
				}
			})
		}})
	case execution.Whole:
		r.recovery(r.machine.Whole(a.Node, now))
	case execution.Diverged:
		r.fatalf("call %s diverges", a.Call)
	case execution.Aborted:
		if !r.aborts {
			r.fatalf("call %s aborted: %v", a.Call, a.Why)
		}
	case execution.Drop, FailCalls, Recovered:
	default:
		r.carryOutRecovery(a)
	}
}

func (r *rack) carryOutRecovery(a any) {
	switch a := a.(type) {
	case Cut:
		r.execution(r.table.Fail(a.Node, a.Gone, now))
	case Unidentify:
		r.later("unidentified", func() {
			if p := r.identity[a.Node.Address]; p != nil && p.self.Incarnation > a.Node.Incarnation {
				r.fatalf("%v: the identity of incarnation %d goes", a.Node, p.self.Incarnation)
			}
			delete(r.identity, a.Node.Address)
			r.recovery(r.machine.Unidentified(a.Node))
		})
	case Fence:
		r.later("fenced", func() {
			r.memory.fenced[a.Node.Address] = max(r.memory.fenced[a.Node.Address], a.Node.Incarnation)
			r.recovery(r.machine.Fenced(a.Server, a.Node))
		})
	case Fenced:
		r.execution(r.table.Fenced(a.Node))
	case Place:
		r.place(a)
	default:
		r.fatalf("unknown action %T", a)
	}
}

// place is package resources in short: a node waits for a spare, and there is one
// node of an address.
func (r *rack) place(a Place) {
	if r.memory.fenced[a.Node.Address] < a.Node.Incarnation {
		r.fatalf("%v is placed before it is fenced", a.Node)
	}
	next := wal.Node{Address: a.Node.Address, Incarnation: a.Node.Incarnation + 1}
	if p := r.identity[a.Node.Address]; !a.Keep || p != nil || slices.Contains(r.unplaced, next) {
		return
	}
	r.unplaced = append(r.unplaced, next)
}

// start runs a program as a node: it joins, exports, and restores its state.
func (r *rack) start(n wal.Node) {
	p := &process{r: r, self: n, alive: true, runs: map[rpcpacket.ID]*run{}, done: map[rpcpacket.ID]bool{}, early: map[uint64]*run{}}
	r.procs = append(r.procs, p)
	r.identity[n.Address] = p
	r.note("start %v", n)
	if n.Address == mainAddr {
		p.main = &run{id: mainID, header: rpcpacket.Header{}, answers: map[rpcpacket.ID]bool{}, past: map[uint32]byte{}}
	}
	r.joined(p)
}

// joined tells the Gatekeeper of a node, also when it has just begun.
func (r *rack) joined(p *process) {
	n := p.self
	r.recovery(r.machine.Joined(n, now))
	for i := range servers {
		if serverAddr(i) != n.Address {
			continue
		}
		r.later("up", func() {
			if i == servers-1 && !p.restored {
				p.restore(r.table.State(uint64(i)))
			}
			r.execution(r.table.Up(n, uint64(i)))
		})
	}
}

// killGatekeeper ends the Gatekeeper and starts another with what is logged.
func (r *rack) killGatekeeper() {
	r.life++
	r.note("Gatekeeper %d", r.life)
	r.queue = nil
	r.events = slices.DeleteFunc(r.events, func(e event) bool { return e.life != 0 })
	var err error
	if r.table, err = execution.Load(r.limit, r.records()); err != nil {
		r.fatalf("load: %v", err)
	}
	if r.machine, err = Load(r.records()); err != nil {
		r.fatalf("load: %v", err)
	}
	r.machine.AddServer("m1")
	r.execution(r.table.Resume(now))
	r.recovery(r.machine.Resume())
	for _, p := range r.procs {
		if r.identity[p.self.Address] == p {
			r.joined(p)
		}
	}
	r.detect()
}

// detect is what heartbeats find after a while: processes that have died.
func (r *rack) detect() {
	for _, p := range r.procs {
		if p.suspect || !p.alive {
			r.recovery(r.machine.Fail(now, Failure{Node: p.self, Gone: !r.homes[p.self.Address], Cause: "killed"}))
		}
	}
}

func (r *rack) records() iter.Seq2[wal.Record, error] {
	all := make([]wal.Record, 0, len(r.disk))
	for _, rec := range r.disk {
		all = append(all, rec)
	}
	slices.SortFunc(all, func(a, b wal.Record) int { return int(a.Sequence) - int(b.Sequence) })
	return func(yield func(wal.Record, error) bool) {
		for _, rec := range all {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// toProcess gives a packet to whoever has the address now.
func (r *rack) toProcess(a netip.Addr, f func(*process)) {
	if p := r.identity[a]; p != nil && p.alive {
		f(p)
	}
}

func (r *rack) deliver(d execution.Deliver, rec wal.Record) {
	r.toProcess(d.To.Address, func(p *process) {
		if p.self != d.To {
			return // it checks callee_incarnation
		}
		m, err := rpcpacket.Parse(rec.Packet)
		if err != nil {
			r.fatalf("deliver %s: %v", d.Call, err)
		}
		p.begin(m, d)
	})
}

func (m *memory) write(p *process, id rpcpacket.ID, what string) bool {
	if m.fenced[p.self.Address] >= p.self.Incarnation {
		return false
	}
	if m.ended[id] {
		p.r.fatalf("%v writes %s for %s, which has committed", p.self, what, id)
	}
	m.open[id] = append(m.open[id], what)
	p.r.note("%v writes %s for %s", p.self, what, id)
	return true
}

func (m *memory) commit(r *rack, id rpcpacket.ID) {
	if id != mainID {
		if m.ended[id] && len(m.open[id]) > 0 {
			r.fatalf("%s has written after its commit", id)
		}
		m.ended[id] = true
	}
	m.kept[id] = append(m.kept[id], m.open[id]...)
	delete(m.open, id)
}

func (m *memory) rollback(r *rack, id rpcpacket.ID) {
	r.note("roll back %s", id)
	if m.ended[id] {
		r.fatalf("%s is rolled back after its commit", id)
	}
	for _, p := range r.procs {
		if p.running(id) && m.fenced[p.self.Address] < p.self.Incarnation {
			r.fatalf("%s is rolled back while it runs at %v", id, p.self)
		}
		for _, e := range p.runs {
			if e.header.Parent == id && e.lent && m.fenced[p.self.Address] < p.self.Incarnation && !m.ended[e.id] {
				r.fatalf("%s is rolled back while %s reads what it wrote", id, e.id)
			}
		}
	}
	delete(m.open, id)
}

func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
