package gatekeeper

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/internal/frame"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// The entries of p4/bifrost.p4's tables, one function each. Fields and
// parameters stand in the order of their declarations, so that keys compare.
type (
	entry  = p4rtclient.Entry
	match  = p4rtclient.Match
	param  = p4rtclient.Param
	update = p4rtclient.Update
)

// hop is a key of next_hop: a switch port with a blade behind it. Hop 0 asks the
// switch to look the way up.
type hop uint16

// hopOf gives every port one hop.
func hopOf(port uint16) hop { return hop(port) + 1 }

func identityEntry(port uint16, source netip.Prefix, memory bool) entry {
	m := uint64(0)
	if memory {
		m = 1
	}
	return entry{
		Table: "identity",
		Match: []match{
			{Field: "ingress_port", Value: p4rtclient.Uint(uint64(port))},
			{Field: "source", Value: p4rtclient.Addr(source.Addr()), PrefixLen: source.Bits()},
		},
		Action: "known", Params: []param{{Name: "memory", Value: p4rtclient.Uint(m)}},
	}
}

func toHop(h hop) []param { return []param{{Name: "hop", Value: p4rtclient.Uint(uint64(h))}} }

func l3Entry(destination netip.Prefix, h hop) entry {
	return entry{
		Table:  "l3",
		Match:  []match{{Field: "destination", Value: p4rtclient.Addr(destination.Addr()), PrefixLen: destination.Bits()}},
		Action: "to_hop", Params: toHop(h),
	}
}

func homeEntry(machine netip.Prefix, h hop) entry {
	b := machine.Addr().As16()
	return entry{
		Table:  "dsm_home",
		Match:  []match{{Field: "machine_prefix", Value: p4rtclient.Bytes(b[:6])}},
		Action: "to_hop", Params: toHop(h),
	}
}

// tcpEntry lets TCP pass from a port to a hop.
func tcpEntry(port uint16, h hop) entry {
	return entry{
		Table:  "tcp_allowed",
		Match:  []match{{Field: "ingress_port", Value: p4rtclient.Uint(uint64(port))}, {Field: "hop", Value: p4rtclient.Uint(uint64(h))}},
		Action: "permit",
	}
}

// tcpPeers are the ports between which and that of a blade TCP may pass: those of blades in
// service, its own among them.
func (c *controller) tcpPeers(b *blade) (ports []uint16) {
	listed := func(name string) bool { return slices.Contains(c.cfg.TCP, name) || slices.Contains(c.cfg.TCP, "*") }
	if !listed(b.hello.Blade) {
		return nil
	}
	for _, o := range c.sortedBlades() {
		if o.alive() && listed(o.hello.Blade) {
			ports = append(ports, o.port.num)
		}
	}
	return ports
}

// copiesEntry is homeEntry for a machine with two copies: the hop of the first, and the
// multicast group of both.
func copiesEntry(machine netip.Prefix, h hop, group uint16) entry {
	e := homeEntry(machine, h)
	e.Action, e.Params = "to_copies", append(e.Params, param{Name: "group", Value: p4rtclient.Uint(uint64(group))})
	return e
}

// replicaEntry addresses the copy of a packet that goes to a hop.
func replicaEntry(h hop, dst, src frame.MAC) entry {
	return entry{
		Table:  "replica",
		Match:  []match{{Field: "hop", Value: p4rtclient.Uint(uint64(h))}},
		Action: "readdress", Params: []param{
			{Name: "dst", Value: p4rtclient.Bytes(dst[:])},
			{Name: "src", Value: p4rtclient.Bytes(src[:])},
		},
	}
}

// accessTable has the rules that follow from leases.
const accessTable = "dsm_access"

func accessEntry(r lease.Rule) entry {
	return entry{
		Table: accessTable,
		Match: []match{
			{Field: "source", Value: p4rtclient.Addr(r.Node)},
			{Field: "operation", Value: p4rtclient.Uint(uint64(r.Op))},
			{Field: "machine", Value: p4rtclient.Uint(uint64(r.Region.Base.Machine()))},
			{Field: "pointer", Value: p4rtclient.Uint(r.Region.Base.Offset()), PrefixLen: r.Region.PrefixLen()},
		},
		Action: "permit",
	}
}

// spread is a prefix of the 256 values of a call id's last byte.
type spread struct {
	value uint8
	bits  int
}

func routeEntry(service netip.Addr, method rpc.Method, s spread, h hop) entry {
	return entry{
		Table: "rpc_route",
		Match: []match{
			{Field: "service", Value: p4rtclient.Addr(service)},
			{Field: "method", Value: p4rtclient.Bytes(method[:])},
			{Field: "spread", Value: p4rtclient.Uint(uint64(s.value)), PrefixLen: s.bits},
		},
		Action: "to_hop", Params: toHop(h),
	}
}

func hopEntry(h hop, port uint16, dst, src frame.MAC) entry {
	return entry{
		Table:  "next_hop",
		Match:  []match{{Field: "hop", Value: p4rtclient.Uint(uint64(h))}},
		Action: "forward", Params: []param{
			{Name: "port", Value: p4rtclient.Uint(uint64(port))},
			{Name: "dst", Value: p4rtclient.Bytes(dst[:])},
			{Name: "src", Value: p4rtclient.Bytes(src[:])},
		},
	}
}

// accessUpdates makes updates out of access rules.
func accessUpdates(op p4rtclient.Op, rules []lease.Rule) phase {
	out := make(phase, len(rules))
	for i, r := range rules {
		out[i] = update{Op: op, Entry: accessEntry(r)}
	}
	return out
}

// host is the prefix of a single address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// machinePrefix is the prefix of a memory machine.
func (c *controller) machinePrefix(machine uint8) netip.Prefix {
	return packet.MachinePrefix(c.cfg.DSMPrefix, machine)
}

// base is the set of all entries that should be on the switch, those of
// dsm_access excepted: these follow from the leases.
type base map[string]entry

// want makes an entry part of the set and returns the update that it takes.
func (b base) want(e entry) []update {
	key := e.Key()
	old, there := b[key]
	b[key] = e
	switch {
	case !there:
		return []update{{Op: p4rtclient.Insert, Entry: e}}
	case !old.Equal(&e):
		return []update{{Op: p4rtclient.Modify, Entry: e}}
	}
	return nil
}

// unwant takes the entry with e's key out of the set.
func (b base) unwant(e entry) []update {
	key := e.Key()
	old, there := b[key]
	if !there {
		return nil
	}
	delete(b, key)
	return []update{{Op: p4rtclient.Delete, Entry: old}}
}

// reconcile returns what makes the tables that were read back what they should be.
func reconcile(wanted base, found []entry) (revoke, grant phase) {
	missing := make(base, len(wanted))
	for k, e := range wanted {
		missing[k] = e
	}
	for _, e := range found {
		key := e.Key()
		w, ok := wanted[key]
		delete(missing, key)
		switch {
		case !ok:
			revoke = append(revoke, update{Op: p4rtclient.Delete, Entry: e})
		case !w.Equal(&e):
			grant = append(grant, update{Op: p4rtclient.Modify, Entry: w})
		}
	}
	for _, e := range missing {
		grant = append(grant, update{Op: p4rtclient.Insert, Entry: e})
	}
	return revoke, grant
}
