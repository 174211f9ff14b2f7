package rpc

import (
	"context"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A node whose deployment is taken back may fail before it has finished its calls, or be stopped. Its next incarnation
// is an heir then: a program of the rack's own, which runs no handler and no durable main. The heir has the node's ledger.
//
//	a call that is done          ─▶ the recorded answer
//	one that had begun           ─▶ memory takes back what it did ─▶ done: unavailable
//	one that is not known        ─▶ refused for good: its caller chooses another node
//	what executions and mains owe ─▶ commits, one-ways, words about regions and to forget
//
// The heir leaves when nobody asks for an answer any more, and nothing is owed. Then the ledger is deleted.

func init() { bridge.Heir = inherit }

// heir is what an heir knows of the node that was.
type heir struct {
	services map[uint64]string // names of services, by their hashes
}

// inherit is the program of an heir. It returns when nothing is left to be done, and the node has left; with an error it has
// not, and another heir goes on.
func inherit(ctx context.Context, services []string) error {
	h := &heir{services: map[uint64]string{}}
	for _, name := range services {
		h.services[serviceHash(rackaddr.Service(name))] = name
	}
	n, err := Join(ctx, WithName("heir"), joinFunc(func(c *joinConfig) { c.heir = h }))
	if err != nil {
		return err
	}
	n.drainDirect(ctx)
	return n.Close(ctx)
}

// inherited is a service that the node had. It takes no calls.
func (n *Node) inherited(hash uint64) *export {
	x := &export{node: n, name: n.heir.services[hash], address: rackaddr.ServiceOf(hash), hash: hash}
	x.pool.closed = true
	x.offer.Store(&offer{methods: map[rpcpacket.Method]*served{}})
	return x
}

// endBegun ends the executions that earlier incarnations have begun.
func (n *Node) endBegun() {
	l := n.ledger
	l.mu.Lock()
	services := slices.Sorted(maps.Keys(l.resumes.rest))
	l.mu.Unlock()
	n.announce()
	for _, hash := range services {
		n.inherited(hash).resume()
	}
}
