//go:build linux

package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Reason is why packets were dropped.
type Reason string

// The reasons.
const (
	Control  Reason = "control"  // from or to the port of control, by somebody else than the daemon
	Address  Reason = "address"  // from a node's or service's address, by somebody else than its user
	Port     Reason = "port"     // from or to a port of the rack's protocols, from an address that is no node's
	Loopback Reason = "loopback" // by the loopback interface, behind the switch's back
)

// Reasons are all of them.
var Reasons = []Reason{Control, Address, Port, Loopback}

// Guard is the rules of one interface. Methods may be called concurrently.
type Guard struct {
	mu     sync.Mutex
	conn   *nftables.Conn
	table  *nftables.Table
	owners *nftables.Set        // users
	nodes  *nftables.Set        // marks
	held   map[netip.Addr]owner // what both hold
}

// owner is who may send from an address: programs of a user by sockets of their own, and a node by those that bear its mark.
type owner struct{ uid, mark uint32 }

// Open installs the rules for an interface in the network namespace of the calling
// thread; no address has an owner yet. Rules that a dead daemon has left are replaced in
// one step. It needs CAP_NET_ADMIN, and a kernel with nftables for IPv6.
func Open(iface string) (*Guard, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	g := &Guard{conn: conn, held: map[netip.Addr]owner{}}
	if err := g.install(iface, uint32(os.Geteuid())); err != nil {
		return nil, errors.Join(fmt.Errorf("guard interface %s by nftables: %w", iface, explain(err)), conn.CloseLasting())
	}
	return g, nil
}

// explain adds what to do.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (run as root, or with CAP_NET_ADMIN)", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w (the kernel needs nf_tables for IPv6: `modprobe nf_tables`)", err)
	}
	return err
}

// What identifies an owner: the address, then the user or the mark.
var (
	userType = nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeUID)
	markType = nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeMark)
)

func (g *Guard) install(iface string, daemon uint32) error {
	g.table = &nftables.Table{Family: nftables.TableFamilyIPv6, Name: "bifrost-" + iface}
	g.conn.AddTable(g.table) // so that there is one to delete
	g.conn.DelTable(g.table)
	g.conn.AddTable(g.table)
	for _, r := range Reasons {
		g.conn.AddObj(&nftables.NamedObj{Table: g.table, Name: string(r), Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	}
	g.owners = &nftables.Set{Table: g.table, Name: "owners", KeyType: userType, Concatenation: true}
	g.nodes = &nftables.Set{Table: g.table, Name: "nodes", KeyType: markType, Concatenation: true}
	for _, s := range []*nftables.Set{g.owners, g.nodes} {
		if err := g.conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	g.chain("sent", nftables.ChainHookOutput, sentRules(iface, daemon, g.owners, g.nodes))
	g.chain("received", nftables.ChainHookInput, receivedRules())
	return g.conn.Flush()
}

// chain adds a chain to a hook, ahead of those of firewalls.
func (g *Guard) chain(name string, hook *nftables.ChainHook, rules []rule) {
	accept := nftables.ChainPolicyAccept
	c := g.conn.AddChain(&nftables.Chain{
		Name: name, Table: g.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw, Policy: &accept,
	})
	for _, r := range rules {
		g.conn.AddRule(&nftables.Rule{Table: g.table, Chain: c, Exprs: r})
	}
}

// Own lets a user's programs, the sockets with a mark (rackaddr.Mark), and nobody else but root and the daemon's user, send from
// an address.
func (g *Guard) Own(a netip.Addr, uid, mark uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := owner{uid, mark}
	old, is := g.held[a]
	if is && old == now {
		return nil
	}
	if err := g.change(a, old, is, now); err != nil {
		return fmt.Errorf("give %s to user %d: %w", a, uid, err)
	}
	g.held[a] = now
	return nil
}

// change gives an address to its next owner, in one step. The caller holds g.mu.
func (g *Guard) change(a netip.Addr, old owner, is bool, now owner) error {
	if is {
		if err := g.remove(a, old); err != nil {
			return err
		}
	}
	if err := g.conn.SetAddElements(g.owners, element(a, now.uid)); err != nil {
		return err
	}
	if err := g.conn.SetAddElements(g.nodes, element(a, now.mark)); err != nil {
		return err
	}
	return g.conn.Flush()
}

// remove has the next flush take an address from its owner. The caller holds g.mu.
func (g *Guard) remove(a netip.Addr, old owner) error {
	if err := g.conn.SetDeleteElements(g.owners, element(a, old.uid)); err != nil {
		return err
	}
	return g.conn.SetDeleteElements(g.nodes, element(a, old.mark))
}

// Disown takes an address from its owner; one without is no error.
func (g *Guard) Disown(a netip.Addr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	old, is := g.held[a]
	if !is {
		return nil
	}
	delete(g.held, a)
	err := g.remove(a, old)
	if err == nil {
		err = g.conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("take %s from user %d: %w", a, old.uid, err)
	}
	return nil
}

// Dropped counts the packets that were dropped since Open.
func (g *Guard) Dropped() (map[Reason]uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	objects, err := g.conn.GetNamedObjects(g.table)
	if err != nil {
		return nil, fmt.Errorf("counters of table %s: %w", g.table.Name, err)
	}
	dropped := map[Reason]uint64{}
	for _, o := range objects {
		if named, ok := o.(*nftables.NamedObj); ok {
			if c, ok := named.Obj.(*expr.Counter); ok {
				dropped[Reason(named.Name)] = c.Packets
			}
		}
	}
	return dropped, nil
}

// Close removes the rules.
func (g *Guard) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conn.DelTable(g.table)
	err := g.conn.Flush()
	if err != nil {
		err = fmt.Errorf("remove table %s: %w", g.table.Name, err)
	}
	return errors.Join(err, g.conn.CloseLasting())
}

var droppedDesc = prometheus.NewDesc("bifrost_guard_dropped_packets_total",
	"Packets of programs on this blade that were dropped: they spoke for another user's node or for the daemon, or passed by the switch.", []string{"reason"}, nil)

// Describe implements prometheus.Collector.
func (g *Guard) Describe(to chan<- *prometheus.Desc) { to <- droppedDesc }

// Collect implements prometheus.Collector.
func (g *Guard) Collect(to chan<- prometheus.Metric) {
	dropped, err := g.Dropped()
	if err != nil {
		to <- prometheus.NewInvalidMetric(droppedDesc, err)
		return
	}
	for _, r := range Reasons {
		to <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(dropped[r]), string(r))
	}
}
