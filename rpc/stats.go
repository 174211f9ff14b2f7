package rpc

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/blame"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Stats counts what a node has done with packets since it joined.
type Stats struct {
	Calls      uint64 // calls and one-ways begun by this node
	Resent     uint64 // datagrams sent again: calls, and answers to duplicates
	Waited     uint64 // calls that have waited for a call slot
	Served     uint64 // handlers run
	Duplicates uint64 // calls and answers dropped because they are known already or settled
	Refused    uint64 // calls answered with a system exception
	Malformed  uint64 // datagrams dropped because they are no message for this node
	Foreign    uint64 // calls dropped because they are another node's than the sender's
	Full       uint64 // calls dropped for lack of room, or not whole in time; they will be sent again
	Stale      uint64 // calls dropped because they were meant for another incarnation
	Parts      uint64 // parts of large messages sent

	RefsInMessages uint64 // values by reference (Ref) that this node has sent inside calls and answers
	RefsInRegions  uint64 // values by reference that it has put into memory for a call or an answer

	LeasesGiven uint64 // standing leases that it has given

	// Of exactly-once calls and one-ways, at the node that serves them:
	Accepted           uint64 // calls and one-ways accepted
	Stateful           uint64 // of Accepted, those of services with state
	Lending            uint64 // of Accepted, calls that lend regions
	Oneways            uint64 // of Accepted, one-ways
	OnewaysWithRegions uint64 // of Oneways, those that hand regions over
	LargeMessages      uint64 // calls, one-ways and answers larger than a packet
	AnsweredFromLedger uint64 // copies of calls that the ledger had the answer to
	NoRoom             uint64 // of Full, those for which the node's ledger has no room
	LedgerRoom         uint64 // bytes that new calls may take in the node's ledger; 0 before it has one, too

	// Of exactly-once executions, and of durable mains:
	Resumed          uint64 // executions that earlier incarnations had begun, and this one has run again or ended
	GivenUp          uint64 // of those, calls given up since the program had ended too often while they ran
	Committed        uint64 // executions and checkpoints whose changes in memory the node has had committed
	RolledBack       uint64 // executions and runs of mains whose changes in memory it has had taken back
	RegionsAllocated uint64 // regions allocated
	RegionsFreed     uint64 // regions freed; they go when the execution is done, or at the next checkpoint
	OnewaysSent      uint64 // one-ways that left because the execution was done, or the checkpoint settled
	MainCalls        uint64 // exactly-once calls begun by durable mains
	MainCheckpoints  uint64 // checkpoints of durable mains

	TakenBack uint64 // 1 if the node has asked to be started anew, since it shares the fate of another one
}

type counters struct {
	calls, resent, waited, served, duplicates, refused, malformed, foreign, full, stale, parts, refsInMessages, refsInRegions, leasesGiven atomic.Uint64

	accepted, stateful, lending, oneways, onewaysWithRegions, largeMessages, answeredFromLedger, noRoom                     atomic.Uint64
	resumed, committed, rolledBack, regionsAllocated, regionsFreed, onewaysSent, mainCalls, checkpoints, takenBack, givenUp atomic.Uint64

	blame blame.Counts // by sender: what was refused
}

// Refused calls f with how many packets of each node were refused: as malformed, as foreign, for
// its quota, or with an exception of the system. The zero Addr stands for further nodes than
// 256.
func (n *Node) Refused(f func(from netip.Addr, reason string, packets uint64)) {
	for _, c := range n.stats.blame.All() {
		f(c.From, c.Reason, c.Packets)
	}
}

// countMalformed counts a packet of a node that makes no sense.
func (c *counters) countMalformed(from netip.Addr) {
	c.malformed.Add(1)
	c.blame.Add(from, "malformed")
}

// countForeign counts a packet of a node that names what is another node's.
func (c *counters) countForeign(from netip.Addr) {
	c.foreign.Add(1)
	c.blame.Add(from, "foreign")
}

// moves reports whether a value travels inside a message, which has room for most bytes of it, and counts it.
func (c *counters) moves(length, most int) (inside bool) {
	if inside = length <= most; inside {
		c.refsInMessages.Add(1)
	} else {
		c.refsInRegions.Add(1)
	}
	return inside
}

// Stats returns the node's counters.
func (n *Node) Stats() Stats {
	c := &n.stats
	b := n.ledger.lock()
	room, _ := b.bytesLeft()
	b.unlock()
	return Stats{
		LedgerRoom: room,
		Calls:      c.calls.Load(), Resent: c.resent.Load(), Waited: c.waited.Load(), Served: c.served.Load(), Duplicates: c.duplicates.Load(),
		Refused: c.refused.Load(), Malformed: c.malformed.Load(), Foreign: c.foreign.Load(), Full: c.full.Load(), Stale: c.stale.Load(),
		Parts: c.parts.Load(),

		RefsInMessages: c.refsInMessages.Load(), RefsInRegions: c.refsInRegions.Load(), LeasesGiven: c.leasesGiven.Load(),
		Accepted: c.accepted.Load(), Stateful: c.stateful.Load(), Lending: c.lending.Load(), Oneways: c.oneways.Load(), OnewaysWithRegions: c.onewaysWithRegions.Load(),
		LargeMessages: c.largeMessages.Load(), AnsweredFromLedger: c.answeredFromLedger.Load(), NoRoom: c.noRoom.Load(),
		Resumed: c.resumed.Load(), GivenUp: c.givenUp.Load(), Committed: c.committed.Load(), RolledBack: c.rolledBack.Load(),
		RegionsAllocated: c.regionsAllocated.Load(), RegionsFreed: c.regionsFreed.Load(), OnewaysSent: c.onewaysSent.Load(),
		MainCalls: c.mainCalls.Load(), MainCheckpoints: c.checkpoints.Load(), TakenBack: c.takenBack.Load(),
	}
}

// MethodStats is what a node has seen of the calls to one method since it joined: those
// that it has made, or (Server) those that its handlers have served.
type MethodStats struct {
	Service, Method string
	Server          bool
	// Times is how long calls took, in seconds, by how they ended: on the calling side from
	// the call to its answer, retries included; on the serving side the handler's time. An
	// exception that the IDL declares is an answer like any: its code is OK.
	Times map[Code]Histogram
	// Requests and Answers are the sizes of the Thrift messages, in bytes, headers
	// included. A call that got no answer has none.
	Requests, Answers Histogram
	// RegionFrom says, by the name of an argument by reference, from which length in bytes on a new value is put into memory, by what callees have said
	// of earlier ones. Shorter values go inside the call, if its policy is none and no exactly-once execution makes it. On the
	// calling side only.
	RegionFrom map[string]int64
}

// Histogram is a distribution. Counts[i] are the values of at most Bounds[i] and above the
// bound before; the last count is of those above all bounds.
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Sum    float64
}

// Methods is what the node has seen of calls, by service, method and side. Package rpc/prom
// gives it to Prometheus.
func (n *Node) Methods() []MethodStats {
	var all []MethodStats
	n.meters.known.Range(func(key, value any) bool {
		k, m := key.(meterKey), value.(*meter)
		s := MethodStats{Service: k.service, Method: k.method, Server: k.server, Times: make(map[Code]Histogram)}
		for code := range m.times {
			if h := m.times[code].Load(); h != nil {
				s.Times[Code(code)] = h.histogram(timeUnit, float64(time.Second/time.Microsecond)) //nolint:gosec // below fault.Codes
			}
		}
		s.Requests, s.Answers = m.requests.histogram(sizeUnit, 1), m.answers.histogram(sizeUnit, 1)
		if !k.server {
			s.RegionFrom = n.regionFrom(k.service, k.method)
		}
		all = append(all, s)
		return true
	})
	slices.SortFunc(all, func(a, b MethodStats) int {
		side := func(s MethodStats) int {
			if s.Server {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Method, b.Method), side(a)-side(b))
	})
	return all
}

// meterKey names a method on one side.
type meterKey struct {
	service, method string
	server          bool
}

// meters are a node's.
type meters struct{ known sync.Map } // of *meter, by meterKey

// meter counts the calls to a method on one side.
type meter struct {
	times             [fault.Codes]atomic.Pointer[counts] // in microseconds, by code
	requests, answers counts
}

// of is the meter for a method; it is kept.
func (all *meters) of(service, method string, server bool) *meter {
	key := meterKey{service, method, server}
	if m, ok := all.known.Load(key); ok {
		return m.(*meter)
	}
	m, _ := all.known.LoadOrStore(key, new(meter))
	return m.(*meter)
}

// took counts a call that has ended after d.
func (m *meter) took(code Code, d time.Duration) {
	t := &m.times[min(int(code), fault.Codes-1)]
	h := t.Load()
	if h == nil {
		t.CompareAndSwap(nil, new(counts))
		h = t.Load()
	}
	h.add(uint64(max(d.Microseconds(), 0)), timeUnit) //nolint:gosec // not negative
}

// buckets is how many bounds a histogram has: powers of two (times, from 1 µs to 16 s) or of
// four (sizes, from 16 bytes to beyond 1 GiB).
const buckets = 25

const (
	timeUnit = 1 // log2 from one bound to the next
	sizeUnit = 2
)

// counts is a histogram that is being filled.
type counts struct {
	n   [buckets + 1]atomic.Uint64
	sum atomic.Uint64
}

func (c *counts) add(v uint64, unit int) {
	i := 0
	if v > 1 {
		i = (bits.Len64(v-1) + unit - 1) / unit // the first bound, a power of 1<<unit, that is not below v
	}
	c.n[min(i, buckets)].Add(1)
	c.sum.Add(v)
}

func (c *counts) histogram(unit int, scale float64) Histogram {
	h := Histogram{Bounds: make([]float64, buckets), Counts: make([]uint64, buckets+1), Sum: float64(c.sum.Load()) / scale}
	for i := range h.Bounds {
		h.Bounds[i] = float64(uint64(1)<<(unit*i)) / scale
	}
	for i := range h.Counts {
		h.Counts[i] = c.n[i].Load()
	}
	return h
}
