// Package resolve is how a blade finds the nodes that take the calls of a method: by the switch's table rpc_route, which is the thesis's
// registration of services in the data plane. The Gatekeeper is not asked.
//
//	caller's blade ─ request to the service's address ─▶ switch ─ rpc_route ─▶ blade of a node that serves the method
//	       ▲                                                │ no route               │
//	       ├──────────── answer: the node ─────────────────│───────────────────────┘
//	       └──────────── answer: who is to come back, ◀── Gatekeeper
//	                     or why there is nobody
//
// A request is the header of a call with the question behind it; an answer is that of a reply. Both have a policy other than none, so
// the switch tells nobody of them. Nodes that share a service share the values of the last byte of a call's id, in ranges of the same size. So
// a lookup asks in rounds: a round's ids end at equal distances. If its answers name more than half as many nodes as it has requests,
// there may be others, and another round follows with twice as many.
//
// The package does no I/O and reads no clock.
package resolve

import (
	"encoding/binary"
	"encoding/json"
	"iter"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

const (
	// firstRound is how many requests a lookup's first round has, and lastRound its last one: a caller that knows so many nodes has
	// enough to choose from.
	firstRound, lastRound = 4, 32
	// MostNodes is how many nodes an answer of the Gatekeeper names at most: it fits a packet of 1,280 bytes.
	MostNodes = 12
)

// Answer is what a request is answered with: by the blade of a node that serves the method, or by the Gatekeeper.
type Answer struct {
	// Node is such a node, in its present incarnation. Ledger says that it keeps one, so that it takes exactly-once calls, too.
	Node        netip.Addr `json:"node,omitzero"`
	Incarnation uint32     `json:"incarnation,omitempty"`
	Ledger      bool       `json:"ledger,omitempty"`
	// List is the Gatekeeper's: the switch has no route to such a node. It names MostNodes at most.
	List *control.ServingList `json:"list,omitempty"`
}

// Lookup is one question. It belongs to one goroutine.
type Lookup struct {
	question control.Serving
	method   rpcpacket.Method
	payload  []byte
	random   func() uint64
	key      rpcpacket.ID // of the round's requests, but for their last bytes
	asked    int          // requests of the round
	open     []byte       // the last bytes of those that are not answered
	found    []Answer     // by node
	list     *control.ServingList
}

// New begins a lookup with its first round. Random draws numbers that nobody can foresee: who knows a request's id can answer it. The
// error is fault.BadRequest: the method has no name.
func New(q control.Serving, random func() uint64) (*Lookup, error) {
	method, err := rpcpacket.MethodOf(q.Method)
	if err != nil {
		return nil, &fault.Error{Code: fault.BadRequest, Op: "serving", Err: err}
	}
	payload, err := json.Marshal(q)
	if err != nil {
		return nil, &fault.Error{Code: fault.BadRequest, Op: "serving", Err: err}
	}
	l := &Lookup{question: q, method: method, payload: payload, random: random}
	l.begin(firstRound)
	return l, nil
}

// begin begins a round.
func (l *Lookup) begin(requests int) {
	binary.BigEndian.PutUint64(l.key[:8], l.random())
	binary.BigEndian.PutUint64(l.key[8:], l.random()&^0xff)
	distance := 256 / requests
	first := int(l.random() % uint64(distance)) //nolint:gosec // positive
	l.asked, l.open = requests, nil
	for i := range requests {
		l.open = append(l.open, byte(first+i*distance)) //nolint:gosec // below 256
	}
}

// Key is what KeyOf gives for the round's requests and their answers.
func (l *Lookup) Key() rpcpacket.ID { return l.key }

// KeyOf is the id of a request or an answer without its last byte.
func KeyOf(id rpcpacket.ID) rpcpacket.ID {
	id[len(id)-1] = 0
	return id
}

// Service is the address that requests go to.
func (l *Lookup) Service() netip.Addr { return rackaddr.Service(l.question.Service) }

// Requests are the round's requests that are not answered.
func (l *Lookup) Requests() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, last := range l.open {
			m := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Call, Flags: rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), Method: l.method, Call: l.key,
			}, Payload: l.payload}
			m.Call[len(m.Call)-1] = last
			if !yield(m.Append(nil)) {
				return
			}
		}
	}
}

// Take takes an answer. It reports whether the round is over: all of it is answered. Then More says whether another one has begun.
func (l *Lookup) Take(m *rpcpacket.Message) (over bool) {
	i := slices.Index(l.open, m.Call[len(m.Call)-1])
	if m.Type != rpcpacket.Reply || KeyOf(m.Call) != l.key || i < 0 {
		return len(l.open) == 0
	}
	var a Answer
	if err := json.Unmarshal(m.Payload, &a); err != nil || a.Node.IsValid() == (a.List != nil) {
		return false // it is not one of ours
	}
	l.open = slices.Delete(l.open, i, i+1)
	if a.List != nil {
		l.list = a.List
		return len(l.open) == 0
	}
	at, known := slices.BinarySearchFunc(l.found, a.Node, func(o Answer, node netip.Addr) int { return o.Node.Compare(node) })
	if known {
		l.found[at] = a
	} else {
		l.found = slices.Insert(l.found, at, a)
	}
	return len(l.open) == 0
}

// More begins another round if there may be other nodes.
func (l *Lookup) More() bool {
	if 2*len(l.found) <= l.asked || l.asked >= lastRound {
		return false
	}
	l.begin(2 * l.asked)
	return true
}

// List is what is known so far; false if nobody has answered.
func (l *Lookup) List() (list control.ServingList, ok bool) {
	for _, a := range l.found {
		if a.Ledger || l.question.AtMostOnce {
			list.Nodes, list.Incarnations = append(list.Nodes, a.Node), append(list.Incarnations, a.Incarnation)
		}
	}
	switch {
	case len(list.Nodes) > 0:
		return list, true
	case len(l.found) > 0:
		return control.ServingList{Why: control.NoLedger}, true
	case l.list != nil:
		return *l.list, true
	}
	return list, false
}

// Parse takes a request apart: the question, and the method as rpc_route knows it. The error says that it is none.
func Parse(service netip.Addr, m *rpcpacket.Message) (q control.Serving, err error) {
	if m.Type != rpcpacket.Call || len(m.Lists) > 0 {
		return q, fault.New(fault.BadRequest, "resolve", "a %s with %d lists of regions is no request: a call goes to a node that serves it", m.Type, len(m.Lists))
	}
	if err := json.Unmarshal(m.Payload, &q); err != nil {
		return q, fault.New(fault.BadRequest, "resolve", "the request has no question: a call goes to a node that serves it")
	}
	if wire, err := rpcpacket.MethodOf(q.Method); err != nil || wire != m.Method || rackaddr.Service(q.Service) != service {
		return q, fault.New(fault.BadRequest, "resolve", "the request asks for another method or service than its header")
	}
	return q, nil
}

// Reply makes the answer to a request.
func Reply(request *rpcpacket.Header, a Answer) ([]byte, error) {
	payload, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Reply, Flags: rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), Method: request.Method, Call: request.Call,
	}, Payload: payload}
	return m.Append(nil), nil
}
