package rpc

import (
	"context"
	"encoding/json"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Caller is the node whose call a handler serves. The switch vouches for Node: it drops
// what comes from a port with an address that does not live there, so no program can
// speak for another. The rest is what the Gatekeeper knows of that node.
type Caller struct {
	// Node is the caller's address.
	Node netip.Addr
	// Name is what its program calls itself, which proves nothing. Blade is where it runs.
	Name, Blade string
	// Services are those that it exports, in order.
	Services []string
	// Deployment and Program name the app that it belongs to and the program there; ""
	// for a program that somebody has started by hand.
	Deployment, Program string
}

// CallerAddress is the address of the node whose call a handler serves; the zero Addr
// outside of handlers. It costs nothing.
func CallerAddress(ctx context.Context) netip.Addr {
	if b := branchOf(ctx); b != nil && b.e.export != nil {
		return b.e.from.Addr()
	}
	return netip.Addr{}
}

// CallerOf tells who has made the call that a handler serves. It asks the Gatekeeper, and
// remembers the answer for a second. NotFound says that the node is gone, BadRequest that
// the context is no handler's. In an exactly-once execution what it tells is journalled.
func CallerOf(ctx context.Context) (Caller, error) {
	a := CallerAddress(ctx)
	if !a.IsValid() {
		return Caller{}, fault.New(BadRequest, "caller", "the context is no handler's")
	}
	n := branchOf(ctx).e.node
	b, err := Effect(ctx, "rpc.CallerOf", func(ctx context.Context) ([]byte, error) {
		c, err := n.who(ctx, a)
		if err != nil {
			return nil, err
		}
		return json.Marshal(c)
	})
	c := Caller{Node: a}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	return c, err
}

// callers are the nodes that were asked about of late.
type callers struct {
	mu    sync.Mutex
	known map[netip.Addr]knownCaller
}

type knownCaller struct {
	Caller
	asked time.Duration // in node time
}

const (
	// callerLifetime is for how long the answer about a node is used again: it may export
	// more services.
	callerLifetime = time.Second
	// maxCallers is how many answers are remembered; then all are forgotten.
	maxCallers = 4096
)

// who asks about a node, if that was not done of late.
func (n *Node) who(ctx context.Context, a netip.Addr) (Caller, error) {
	c := &n.callers
	c.mu.Lock()
	k, ok := c.known[a]
	c.mu.Unlock()
	now := n.now()
	if ok && now-k.asked < callerLifetime {
		return k.Caller, nil
	}
	info, err := n.session.Who(ctx, a)
	if err != nil {
		return Caller{}, err
	}
	k = knownCaller{asked: now, Caller: Caller{
		Node: a, Name: info.Name, Blade: info.Blade, Services: info.Services, Deployment: info.Deployment, Program: info.Program,
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxCallers {
		c.known = make(map[netip.Addr]knownCaller)
	}
	c.known[a] = k
	return k.Caller, nil
}
