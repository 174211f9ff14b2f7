package direct

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// world is one caller of calls with policy none, and two nodes of a service that restart, on a bad network, in a time of
// its own: the whole run follows from the seed.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Duration
	events  events
	count   uint64
	caller  *endpoint.Caller
	callees [2]*Volatile
	rtt     endpoint.RTT

	begun, answered, ended, refused int
	runs                            map[rpcpacket.ID]int
	open                            map[rpcpacket.ID]*endpoint.Call
	bound                           map[rpcpacket.ID]uint32 // the incarnation that a call is bound to
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *world) after(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.events, event{w.now + d, w.count, do})
}

// send carries a packet: 5 % are lost, 5 % doubled, 10 % overtaken, and 5 % come
// seconds late.
func (w *world) send(deliver func()) {
	if w.rng.IntN(100) < 5 {
		return
	}
	copies := 1
	if w.rng.IntN(100) < 5 {
		copies = 2
	}
	for range copies {
		d := 10*time.Microsecond + time.Duration(w.rng.IntN(5000))
		switch n := w.rng.IntN(100); {
		case n < 5:
			d += time.Duration(w.rng.Int64N(int64(5 * time.Second)))
		case n < 15:
			d += time.Duration(w.rng.Int64N(int64(time.Millisecond)))
		}
		w.after(d, deliver)
	}
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), runs: map[rpcpacket.ID]int{}, open: map[rpcpacket.ID]*endpoint.Call{},
		bound: map[rpcpacket.ID]uint32{},
	}
	w.caller = endpoint.NewCaller(callerNode, 1, nil)
	w.caller.Grant([]uint32{1, 2, 3, 4, 5, 6, 7, 8})
	for i := range w.callees {
		w.callees[i] = NewVolatile(1, DefaultLimits, nil)
	}
	return w
}

var callerNode = rackaddr.Node(1)

// nodeOf is the address of a callee.
func nodeOf(callee int) netip.Addr { return rackaddr.Node(uint64(2 + callee)) } //nolint:gosec // not negative

// restart has a callee go on as its next incarnation.
func (w *world) restart() {
	c := &w.callees[w.rng.IntN(len(w.callees))]
	*c = NewVolatile((*c).incarnation+1, DefaultLimits, nil)
}

// begin makes a call, which is sometimes given up.
func (w *world) begin() {
	callee := w.rng.IntN(len(w.callees))
	c := &endpoint.Call{RTT: &w.rtt, Node: nodeOf(callee).As16()}
	if !w.caller.Take(c) || !w.caller.Begin(w.now, c) {
		w.t.Fatal("no slot is free")
	}
	w.bound[c.ID] = w.callees[callee].incarnation
	w.begun++
	w.open[c.ID] = c
	w.transmit(c)
	if w.rng.IntN(10) == 0 {
		w.after(time.Duration(w.rng.Int64N(int64(100*time.Millisecond))), func() {
			if w.caller.End(c) {
				delete(w.open, c.ID)
				w.ended++
			}
		})
	}
}

func (w *world) transmit(c *endpoint.Call) {
	h := rpcpacket.Header{Type: rpcpacket.Call, Call: c.ID, Slot: c.Slot, Number: c.Number, CallerIncarnation: 1, CalleeIncarnation: w.bound[c.ID]}
	i := 0
	if nodeOf(1).As16() == c.Node {
		i = 1
	}
	w.send(func() { w.arrive(i, &h) })
}

func (w *world) arrive(i int, m *rpcpacket.Header) {
	callee := w.callees[i]
	a := callee.Receive(w.now, callerNode, m)
	switch a.Verdict {
	case Run:
		if w.runs[m.Call]++; w.runs[m.Call] > 1 {
			w.t.Fatalf("%v: call %s is run %d times", w.now, m.Call, w.runs[m.Call])
		}
		w.after(time.Duration(w.rng.Int64N(int64(50*time.Millisecond))), func() {
			if w.callees[i] == callee { // else it has failed meanwhile
				callee.Finish(a.Entry, a.Entry.ID[:], nil)
				w.reply(i, a.Entry.ID[:])
			}
		})
	case Answer:
		w.reply(i, a.Reply)
	case Gone:
		w.send(func() {
			if c := w.caller.Receive(w.now, nodeOf(i), &rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Exception, Call: m.Call, Slot: m.Slot, Number: m.Number}}); c != nil {
				delete(w.open, c.ID)
				w.refused++
			}
		})
	case Duplicate, Late:
	default:
		w.t.Fatalf("%v: call %s: %v", w.now, m.Call, a.Verdict)
	}
}

// reply carries an answer, which is the id of its call.
func (w *world) reply(i int, payload []byte) {
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Call: rpcpacket.ID(payload)}}
	m.Slot, m.Number = m.Call.Place()
	w.send(func() {
		c := w.caller.Receive(w.now, nodeOf(i), &m)
		if c == nil {
			return
		}
		if w.open[c.ID] != c || c.ID != rpcpacket.ID(payload) {
			w.t.Fatalf("%v: call %s gets the answer to %x", w.now, c.ID, payload)
		}
		if w.runs[c.ID] != 1 {
			w.t.Fatalf("%v: call %s is answered, and was run %d times", w.now, c.ID, w.runs[c.ID])
		}
		delete(w.open, c.ID)
		w.answered++
	})
}

func (w *world) tick() {
	resend, _ := w.caller.Tick(w.now, nil, nil)
	for _, c := range resend {
		w.transmit(c)
	}
	if len(w.events) > 0 || w.caller.Outstanding() > 0 {
		w.after(5*time.Millisecond, w.tick)
	}
}

func (w *world) run(calls int) {
	for i := range calls {
		w.after(time.Duration(i)*time.Millisecond, w.begin)
		if i%100 == 99 {
			w.after(time.Duration(i)*time.Millisecond, w.restart)
		}
	}
	w.after(0, w.tick)
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
		if w.now > time.Hour {
			w.t.Fatalf("%d calls are not answered in an hour", w.caller.Outstanding())
		}
	}
}

// Every call that is not given up is answered, with its own answer or by a later incarnation that refuses it, and every
// call is run at most once, whatever the network does, and whenever its callee restarts.
func TestModel(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			w.run(500)
			if w.answered+w.ended+w.refused != w.begun || w.begun != 500 || w.refused == 0 {
				t.Fatalf("%d calls: %d answered, %d given up, %d refused", w.begun, w.answered, w.ended, w.refused)
			}
			for i, c := range w.callees {
				if len(c.slots) > 128 {
					t.Errorf("callee %d remembers %d slots of a caller with few calls at a time", i, len(c.slots))
				}
			}
		})
	}
}
