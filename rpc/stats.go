package rpc

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Stats counts what a node has done with packets since it joined.
type Stats struct {
	Calls      uint64 // calls and one-ways begun by this node
	Resent     uint64 // datagrams sent again: calls, and answers to duplicates
	Served     uint64 // handlers run
	Duplicates uint64 // calls and answers dropped because they are known already or settled
	Refused    uint64 // calls answered with a system exception
	Malformed  uint64 // datagrams dropped because they are no message for this node
	Foreign    uint64 // calls dropped because their session is another node's than the sender
	Full       uint64 // calls dropped for lack of room, or not whole in time; they will be sent again
	Stale      uint64 // calls dropped because they were meant for another incarnation
	Parts      uint64 // parts of large messages sent
	Direct     uint64 // direct calls accepted
	Serial     uint64 // of Direct, those into services with state
	Doubtful   uint64 // changes of a state that a crash has left undecided
	Enlisted   uint64 // executions of direct calls that were handed over to the Gatekeeper
	Resumed    uint64 // executions of direct calls that earlier incarnations had begun, run again or handed over
	Recalled   uint64 // copies of direct calls answered from the ledger
	NoRoom     uint64 // of Full, those for which the node's ledger has no room
}

type counters struct {
	calls, resent, served, duplicates, refused, malformed, foreign, full, stale, parts, direct, serial, doubtful, enlisted, resumed, recalled, noRoom atomic.Uint64
}

// Stats returns the node's counters.
func (n *Node) Stats() Stats {
	c := &n.stats
	return Stats{
		Calls: c.calls.Load(), Resent: c.resent.Load(), Served: c.served.Load(), Duplicates: c.duplicates.Load(),
		Refused: c.refused.Load(), Malformed: c.malformed.Load(), Foreign: c.foreign.Load(), Full: c.full.Load(), Stale: c.stale.Load(),
		Parts: c.parts.Load(), Direct: c.direct.Load(), Serial: c.serial.Load(), Doubtful: c.doubtful.Load(), Enlisted: c.enlisted.Load(), Resumed: c.resumed.Load(), Recalled: c.recalled.Load(), NoRoom: c.noRoom.Load(),
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
	n.meters.Range(func(key, value any) bool {
		k, m := key.(meterKey), value.(*meter)
		s := MethodStats{Service: k.service, Method: k.method, Server: k.server, Times: make(map[Code]Histogram)}
		for code := range m.times {
			if h := m.times[code].Load(); h != nil {
				s.Times[Code(code)] = h.histogram(timeUnit, float64(time.Second/time.Microsecond)) //nolint:gosec // below fault.Codes
			}
		}
		s.Requests, s.Answers = m.requests.histogram(sizeUnit, 1), m.answers.histogram(sizeUnit, 1)
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

// meter counts the calls to a method on one side.
type meter struct {
	times             [fault.Codes]atomic.Pointer[counts] // in microseconds, by code
	requests, answers counts
}

// meter is the node's for a method; it is kept.
func (n *Node) meter(service, method string, server bool) *meter {
	key := meterKey{service, method, server}
	if m, ok := n.meters.Load(key); ok {
		return m.(*meter)
	}
	m, _ := n.meters.LoadOrStore(key, new(meter))
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

// meters are a node's.
type meters = sync.Map
