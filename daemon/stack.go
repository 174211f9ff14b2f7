package daemon

import (
	"errors"
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// nodeStack is the blade's network as one node may use it: it opens endpoints,
// and adds the addresses of its services. The daemon takes them back when the
// node ends.
type nodeStack struct {
	netio.Stack
	node *node
}

// AddAddress implements netio.Stack for addresses of services. A blade hosts one
// node of a service at most: a call to the service names no node.
func (s *nodeStack) AddAddress(a netip.Addr) error {
	if !rackaddr.ServicePrefix.Contains(a) {
		return fault.New(fault.PermissionDenied, "address", "%s is not the address of a service", a)
	}
	c := s.node.daemon
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[s.node.identity.Address] != s.node {
		return fault.New(fault.Stale, "address", "node %s has ended", s.node.identity.Address)
	}
	if owner := c.services[a]; owner != nil && owner != s.node {
		return fault.New(fault.Unavailable, "address", "blade %s hosts the service %s already, by node %s (%s)",
			c.cfg.Name, a, owner.identity.Address, owner.identity.Name)
	}
	if err := c.addAddress(a, s.node.program.UID); err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: "address", Err: err}
	}
	c.services[a] = s.node
	return nil
}

// RemoveAddress implements netio.Stack for addresses that the node has added.
func (s *nodeStack) RemoveAddress(a netip.Addr) error {
	c := s.node.daemon
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.services[a] != s.node {
		return nil
	}
	delete(c.services, a)
	return c.removeAddress(a)
}

// addAddress gives the blade an address that only one user may send from.
func (c *Compute) addAddress(a netip.Addr, uid uint32) error {
	if err := c.cfg.Guard.Own(a, uid); err != nil {
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
