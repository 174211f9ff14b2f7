package daemon

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/resolve"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The blade receives for the addresses of all services, and the daemon reads what comes: requests which of the blade's nodes serves a
// method (package resolve). It sends requests itself, when a node asks who takes its calls. So nodes that run find servers while the
// Gatekeeper is away. Programs send from no address of a blade, so an answer is a daemon's word, or the Gatekeeper's.

// resolver is the daemon's endpoint for requests and answers.
type resolver struct {
	conn netio.Conn
	from netip.Addr // the blade's own address

	mu      sync.Mutex
	lookups map[rpcpacket.ID]chan<- rpcpacket.Message // by key
}

// offered is a service that a node exports.
type offered struct {
	name    string
	methods map[rpcpacket.Method]bool
}

// openResolver makes the blade receive requests.
func (c *Compute) openResolver() error {
	if err := c.cfg.Stack.AddLocalPrefix(rackaddr.ServicePrefix); err != nil {
		return err
	}
	conn, err := c.listen(netip.AddrPortFrom(netip.IPv6Unspecified(), rackaddr.PortRPC), 0)
	if err != nil {
		return err
	}
	c.resolver = &resolver{conn: conn, from: c.cfg.Address, lookups: map[rpcpacket.ID]chan<- rpcpacket.Message{}}
	return nil
}

// resolverTakes takes a request or an answer. What is neither is dropped: calls go to nodes.
func (c *Compute) resolverTakes(in *netio.Message) {
	switch m, err := rpcpacket.Parse(in.Buf); {
	case err != nil || in.Remote.Port() != rackaddr.PortRPC:
	case rackaddr.ServicePrefix.Contains(in.Local):
		q, err := resolve.Parse(in.Local, &m)
		if err != nil {
			return
		}
		if a, ok := c.serving(in.Local, q, m.Method); ok {
			if b, err := resolve.Reply(&m.Header, a); err == nil {
				c.resolver.send(b, in.Remote)
			}
		}
	case rackaddr.BladePrefix.Contains(in.Remote.Addr()) || in.Remote.Addr() == rackaddr.Gatekeeper:
		m.Payload = slices.Clone(m.Payload)
		if !c.resolver.answered(m) {
			c.reg.log.Debug("an answer who takes calls is dropped: too many wait", "from", in.Remote)
		}
	}
}

// serving is the node of this blade that takes calls of a method; false if there is none. Whoever asks for others learns of it
// elsewhere.
func (c *Compute) serving(service netip.Addr, q control.Serving, method rpcpacket.Method) (a resolve.Answer, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if x := n.exports[service]; x == nil || x.name != q.Service || !x.methods[method] {
			continue
		}
		n.named = time.Now()
		if q.AtMostOnce {
			n.bound = n.named
		}
		return resolve.Answer{Node: n.identity.Address, Incarnation: n.identity.Incarnation, Ledger: n.ledger}, true
	}
	return a, false
}

func (r *resolver) send(b []byte, to netip.AddrPort) {
	_, _ = r.conn.WriteBatch([]netio.Message{{Buf: b, Remote: to, Local: r.from}}) // as good as lost: it is asked again
}

// answered hands an answer to its lookup, if that is not over. It is false if the lookup has no room: it asks again.
func (r *resolver) answered(m rpcpacket.Message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	to := r.lookups[resolve.KeyOf(m.Call)]
	if to == nil {
		return true // it is late
	}
	select {
	case to <- m:
		return true
	default:
		return false
	}
}

// follow hands the answers to a lookup's round to a channel; nil ends that.
func (r *resolver) follow(key rpcpacket.ID, to chan<- rpcpacket.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if to == nil {
		delete(r.lookups, key)
		return
	}
	r.lookups[key] = to
}

// lookUp finds the nodes that take calls of a method, for a program of a user. It waits for as long as nobody answers. With some
// answers it does not wait for those that got lost.
func (c *Compute) lookUp(ctx context.Context, uid uint32, q control.Serving) (list control.ServingList, err error) {
	release, err := c.take(c.lookupsOf, uid, "serving", "lookups of servers")
	if err != nil {
		return list, err
	}
	defer release()
	l, err := resolve.New(q, rand.Uint64)
	if err != nil {
		return list, err
	}
	for {
		if err := c.round(ctx, l); err != nil {
			return list, err
		}
		if list, ok := l.List(); ok && !l.More() {
			return list, nil
		}
	}
}

// round sends a round's requests, again and again, until all are answered, or some and others were lost.
func (c *Compute) round(ctx context.Context, l *resolve.Lookup) error {
	key, answers := l.Key(), make(chan rpcpacket.Message, lookupRoom)
	c.resolver.follow(key, answers)
	defer c.resolver.follow(key, nil)
	to := netip.AddrPortFrom(l.Service(), rackaddr.PortRPC)
	pause := control.Retries.First
	again := time.NewTimer(pause)
	defer again.Stop()
	c.resolver.sendAll(l, to)
	for {
		select {
		case m := <-answers:
			if l.Take(&m) {
				return nil
			}
		case <-again.C:
			if _, ok := l.List(); ok {
				return nil
			}
			c.resolver.sendAll(l, to)
			pause = control.Retries.Next(pause)
			again.Reset(pause)
		case <-ctx.Done():
			return fault.FromContext("serving", ctx.Err())
		case <-c.work.Done():
			return stopping("serving")
		}
	}
}

// sendAll sends the requests of a lookup's round that are not answered.
func (r *resolver) sendAll(l *resolve.Lookup, to netip.AddrPort) {
	for b := range l.Requests() {
		r.send(b, to)
	}
}
