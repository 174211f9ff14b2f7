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

// nodeStack is the blade's network as one node may use it: it opens endpoints at the node's address. The daemon closes all of them when
// the node ends.
type nodeStack struct{ node *node }

// MTU implements netio.Network.
func (s *nodeStack) MTU() int { return s.node.daemon.cfg.Stack.MTU() }

// ListenUDP implements netio.Network for the node's own address and ports. A further endpoint at the same port ends the one before.
func (s *nodeStack) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	c, n := s.node.daemon, s.node
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.nodes[n.identity.Address] != n:
		return nil, fault.New(fault.Stale, "listen", "node %s has ended", n.identity.Address)
	case local.Addr() != n.identity.Address || !slices.Contains(rackaddr.NodePorts, local.Port()):
		return nil, fault.New(fault.PermissionDenied, "listen", "%s is not an address and port of node %s", local, n.identity.Address)
	}
	if old := n.endpoints[local]; old != nil {
		n.closeEndpoint(local)
	}
	conn, err := c.listen(local, n.mark)
	if err != nil {
		return nil, &fault.Error{Code: fault.Unavailable, Op: "listen", Err: err}
	}
	n.endpoints[local] = conn
	return conn, nil
}

// listen opens an endpoint at a port of nodes. A node's program may run in another process.
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
