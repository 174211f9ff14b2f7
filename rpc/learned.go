package rpc

import (
	"sync"

	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
)

// learned is what a node knows of the arguments that it passes by reference: how many transfers of a value a region would spare, and how many
// reads it would cost. Answers say so.
//
// It goes by argument and not by node: how a value travels is decided while the call is written, before one of the nodes that serve the method
// is chosen, and a call that its node refuses goes to another one as it is. If nodes of a service differ, as they may while it is rolled
// out, the answers of all of them count alike.
//
// Only calls of policy none which no exactly-once execution makes go by it: a run that is repeated
// must pass every value as the first one did.
type learned struct {
	mu   sync.Mutex
	seen map[learnedKey]lastSpares
}

// learnedKey is an argument of a method of a service.
type learnedKey struct{ service, method, argument string }

// lastSpares is what the last three answers have said, the newest last. The one in the middle counts, so two answers change what a node believes.
type lastSpares [3]int

func (s lastSpares) believed() int {
	a, b, c := s[0], s[1], s[2]
	return max(min(a, b), min(max(a, b), c))
}

// What a region spares is counted in halves of the transfers of a value. Who gets a value and does not read all of it has
// got it in vain: that is two. Who reads all of it reads it faster from a message than from memory: that is minus one. What somebody passes on spares
// what those spare who get it, too.
const (
	sparesTransfer = 2
	sparesNothing  = -1
	mostSpares     = 14
)

// note takes in what an answer says.
func (l *learned) note(k learnedKey, spares int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.seen[k]
	if !known {
		if l.seen == nil {
			l.seen = map[learnedKey]lastSpares{}
		}
		s = lastSpares{sparesNothing, sparesNothing, sparesNothing}
	}
	l.seen[k] = lastSpares{s[1], s[2], spares}
}

// spares is what a region of an argument's value would spare: as far as a node believes, and as the last answer has said.
func (l *learned) spares(k learnedKey) (believed, last int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.seen[k]
	if !known {
		return sparesNothing, sparesNothing
	}
	return s.believed(), s[2]
}

// regionFrom is from which length on a node puts new values of a method's arguments into memory; see MethodStats.
func (n *Node) regionFrom(service, method string) map[string]int64 {
	n.learned.mu.Lock()
	defer n.learned.mu.Unlock()
	var from map[string]int64
	for k, s := range n.learned.seen {
		if k.service != service || k.method != method {
			continue
		}
		if from == nil {
			from = map[string]int64{}
		}
		from[k.argument] = int64(min(n.inline(bridge.Cheapest, true)+1, valued(s.believed(), false)))
	}
	return from
}
