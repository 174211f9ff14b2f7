//go:build linux

package linux

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel delivers what a machine sends to one of its own addresses by itself,
// so two nodes of one blade would meet behind the switch's back: no identity
// check, no route rule, no trap. Two policy rules send such traffic out:
//
//	32  what is generated here for the rack ─▶ table 45100: by way of the switch
//	64  everything else ─▶ table local (the kernel has this rule at 0)
//
// Received packets come from an interface and not from here, so the first rule
// leaves them alone.
const (
	rackTable     = 45100
	rackPriority  = 32
	localPriority = 64
)

// SendOwnTrafficOut makes packets that this machine sends to addresses of the
// prefix leave by the interface even if they are its own. The main table's route
// for the prefix says how. It is idempotent.
func (s *Stack) SendOwnTrafficOut(p netip.Prefix) error {
	route, err := s.routeTo(p)
	if err != nil {
		return err
	}
	route.Table = rackTable
	if err := s.nl.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s through %s: %w", p, s.iface, privileged(err))
	}
	// The order matters: at no time is there no rule for the local table.
	rules := []*netlink.Rule{
		rule(localPriority, unix.RT_TABLE_LOCAL),
		rule(rackPriority, rackTable),
	}
	rules[1].IifName = "lo"
	rules[1].Dst = ipNet(p)
	for _, r := range rules {
		if err := s.ensureRule(r); err != nil {
			return err
		}
	}
	return s.dropKernelsRule()
}

// routeTo returns the main table's route for a prefix through the interface.
func (s *Stack) routeTo(p netip.Prefix) (*netlink.Route, error) {
	filter := &netlink.Route{Dst: ipNet(p), LinkIndex: s.link.Attrs().Index, Table: unix.RT_TABLE_MAIN}
	routes, err := s.nl.RouteListFiltered(unix.AF_INET6, filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", s.iface, err)
	}
	if len(routes) == 0 {
		return nil, fmt.Errorf("%s has no route to the rack: `ip -6 route add %s via fe80::1 dev %s`, with fe80::1 "+
			"as a permanent neighbour that has the switch's MAC", s.iface, p, s.iface)
	}
	r := routes[0]
	return &netlink.Route{LinkIndex: r.LinkIndex, Dst: r.Dst, Gw: r.Gw, Src: r.Src, Priority: r.Priority}, nil
}

func rule(priority, table int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = unix.AF_INET6, priority, table
	return r
}

func (s *Stack) ensureRule(r *netlink.Rule) error {
	there, err := s.nl.RuleListFiltered(unix.AF_INET6, r, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("policy rules: %w", err)
	}
	for _, t := range there {
		if t.IifName == r.IifName && (t.Dst == nil) == (r.Dst == nil) && (t.Dst == nil || t.Dst.String() == r.Dst.String()) {
			return nil
		}
	}
	if err := s.nl.RuleAdd(r); err != nil {
		return fmt.Errorf("policy rule %d: %w", r.Priority, privileged(err))
	}
	return nil
}

// dropKernelsRule removes the rule for the local table at priority 0.
func (s *Stack) dropKernelsRule() error {
	r := rule(0, unix.RT_TABLE_LOCAL)
	there, err := s.nl.RuleListFiltered(unix.AF_INET6, r, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("policy rules: %w", err)
	}
	if len(there) == 0 {
		return nil
	}
	if err := s.nl.RuleDel(r); err != nil {
		return fmt.Errorf("policy rule 0: %w", privileged(err))
	}
	return nil
}
