package daemon

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// nodeStack is the blade's network as one node may use it: it opens endpoints at its address and those of its services,
// and adds the addresses of its services. The daemon closes and takes back all of them when the
// node ends.
type nodeStack struct {
	netio.Stack
	node *node
}

// ListenUDP implements netio.Stack for the node's own address and ports, and for its services. A further endpoint at the same
// address and port ends the one before.
func (s *nodeStack) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	c, n := s.node.daemon, s.node
	c.mu.Lock()
	defer c.mu.Unlock()
	own := local.Addr() == n.identity.Address && slices.Contains(rackaddr.NodePorts, local.Port())
	service := c.services[local.Addr()] == n && local.Port() == rackaddr.PortRPC
	switch {
	case c.nodes[n.identity.Address] != n:
		return nil, fault.New(fault.Stale, "listen", "node %s has ended", n.identity.Address)
	case !own && !service:
		return nil, fault.New(fault.PermissionDenied, "listen", "%s is not an address and port of node %s", local, n.identity.Address)
	}
	if old := n.endpoints[local]; old != nil {
		n.closeEndpoint(local)
	}
	uid := n.program.UID
	if service && !c.socketsOf.Take(uid, 1) {
		return nil, fault.New(fault.Overloaded, "listen", "nodes of user %d have sockets of %d services on blade %s, its share of %d: export fewer services there",
			uid, c.socketsOf.Held(uid), c.cfg.Name, c.socketsOf.Total())
	}
	conn, err := c.listen(local, n.mark)
	if err != nil {
		if service {
			c.socketsOf.Release(uid, 1)
		}
		return nil, &fault.Error{Code: fault.Unavailable, Op: "listen", Err: err}
	}
	n.endpoints[local] = conn
	return conn, nil
}

// listen opens an endpoint of a node, whose program may run in another process.
func (c *Compute) listen(local netip.AddrPort, mark uint32) (netio.Conn, error) {
	if h, ok := c.cfg.Stack.(netio.Hoster); ok {
		return h.ListenNode(local, mark)
	}
	return c.cfg.Stack.ListenUDP(local)
}

// closeEndpoint ends an endpoint, for the program too. The caller holds daemon.mu.
func (n *node) closeEndpoint(local netip.AddrPort) {
	if err := n.endpoints[local].Close(); err != nil && !errors.Is(err, net.ErrClosed) { // a program of this process may have closed it
		n.daemon.reg.log.Warn("socket remains until its program ends", "node", n.identity.Address, "socket", local, "err", err)
	}
	delete(n.endpoints, local)
	if local.Addr() != n.identity.Address {
		n.daemon.socketsOf.Release(n.program.UID, 1)
	}
}

// AddAddress implements netio.Stack for addresses of services. A blade hosts one
// node of a service at most: a call to the service names no node. If another user's node has taken the address, it goes to the node
// that may export the service, by the Gatekeeper's word.
func (s *nodeStack) AddAddress(a netip.Addr) error {
	for {
		if taken, err := s.tryAddress(a); !taken || err != nil {
			return err
		}
	}
}

// tryAddress is AddAddress, and reports whether it has only taken the address off another node.
func (s *nodeStack) tryAddress(a netip.Addr) (taken bool, err error) {
	if !rackaddr.ServicePrefix.Contains(a) {
		return false, fault.New(fault.PermissionDenied, "address", "%s is not the address of a service", a)
	}
	c, n := s.node.daemon, s.node
	c.lockUnlessChanging(a)
	defer c.mu.Unlock()
	switch owner := c.services[a]; {
	case c.nodes[n.identity.Address] != n:
		return false, fault.New(fault.Stale, "address", "node %s has ended", n.identity.Address)
	case owner == n:
		return false, nil
	case owner != nil && n.may[a] && !owner.may[a] && n.program.UID != owner.program.UID:
		c.reg.log.Warn("a node has taken the address of a service that another user's node exports, and loses it",
			"address", a, "node", owner.identity.Address, "user", owner.program.UID)
		return true, owner.loseAddress(a)
	case owner != nil:
		return false, fault.New(fault.Unavailable, "address", "blade %s hosts the service %s already, by node %s (%s)",
			c.cfg.Name, a, owner.identity.Address, owner.identity.Name)
	case n.addresses >= maxAddresses:
		return false, fault.New(fault.Overloaded, "address", "node %s has the addresses of %d services, its maximum", n.identity.Address, n.addresses)
	}
	n.addresses++
	c.change(a, func() { err = c.addAddress(a, n.program.UID, n.mark) })
	switch {
	case err != nil:
		n.addresses--
		return false, &fault.Error{Code: fault.Unavailable, Op: "address", Err: err}
	case c.nodes[n.identity.Address] != n: // meanwhile
		c.change(a, func() { err = c.removeAddress(a) })
		return false, errors.Join(fault.New(fault.Stale, "address", "node %s has ended", n.identity.Address), err)
	}
	c.services[a] = n
	return false, nil
}

// RemoveAddress implements netio.Stack for addresses that the node has added.
func (s *nodeStack) RemoveAddress(a netip.Addr) (err error) {
	c := s.node.daemon
	c.lockUnlessChanging(a)
	defer c.mu.Unlock()
	if c.services[a] != s.node {
		return nil
	}
	return s.node.loseAddress(a)
}

// loseAddress takes a service's address, which nobody changes, off a node. The caller holds daemon.mu.
func (n *node) loseAddress(a netip.Addr) (err error) {
	c := n.daemon
	delete(c.services, a)
	n.addresses--
	if at := netip.AddrPortFrom(a, rackaddr.PortRPC); n.endpoints[at] != nil {
		n.closeEndpoint(at)
	}
	c.change(a, func() { err = c.removeAddress(a) })
	return err
}

// The kernel takes its time to add and remove an address. It is not waited for under the daemon's lock, which heartbeats need: who
// changes an address says so, and others wait for the end of that.

// lockUnlessChanging takes c.mu when nobody changes an address.
func (c *Compute) lockUnlessChanging(a netip.Addr) {
	for {
		c.mu.Lock()
		over := c.changing[a]
		if over == nil {
			return
		}
		c.mu.Unlock()
		<-over
	}
}

// change changes an address that nobody else changes. The caller holds c.mu, which f has not.
func (c *Compute) change(a netip.Addr, f func()) {
	over := make(chan struct{})
	c.changing[a] = over
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.changing, a)
		close(over)
	}()
	f()
}

// addAddress gives the blade an address that only one user, and sockets with one mark, may send from.
func (c *Compute) addAddress(a netip.Addr, uid, mark uint32) error {
	if err := c.cfg.Guard.Own(a, uid, mark); err != nil {
		return err
	}
	if err := c.cfg.Stack.AddAddress(a); err != nil {
		return errors.Join(err, c.cfg.Guard.Disown(a))
	}
	return nil
}

// removeAddress takes an address off the blade, and from its user.
func (c *Compute) removeAddress(a netip.Addr) error {
	return errors.Join(c.cfg.Stack.RemoveAddress(a), c.cfg.Guard.Disown(a))
}

// AddLocalPrefix implements netio.Stack: nodes have no prefixes.
func (s *nodeStack) AddLocalPrefix(p netip.Prefix) error {
	return fault.New(fault.PermissionDenied, "address", "a node cannot receive for a prefix (%s)", p)
}
