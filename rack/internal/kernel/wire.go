package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Connect joins a blade to its switch port. Afterwards both ends are up, the
// blade has its address, and whatever it sends goes to the switch's MAC: it asks
// nobody for neighbours, routers or duplicates, and sends nothing of its own
// accord. Both namespaces must exist.
func Connect(w plan.Wire) error {
	if err := connect(w); err != nil {
		return fmt.Errorf("wire of blade %s: %w", w.Blade, err)
	}
	return nil
}

func connect(w plan.Wire) error {
	sw, err := OpenNamespace(w.SwitchNamespace)
	if err != nil {
		return err
	}
	defer sw.close()
	blade, err := OpenNamespace(w.BladeNamespace)
	if err != nil {
		return err
	}
	defer blade.close()
	if err := addVeth(sw, blade, w); err != nil {
		return err
	}
	// Both ends are quiet before either comes up.
	if err := sw.Do(func() error { return quietPort(w.SwitchInterface) }); err != nil {
		return err
	}
	if err := blade.Do(func() error { return quietBlade(w) }); err != nil {
		return err
	}
	if err := raisePort(sw, w.SwitchInterface); err != nil {
		return err
	}
	return raiseBlade(blade, w)
}

func addVeth(sw, blade *Namespace, w plan.Wire) error {
	switchMAC, err := net.ParseMAC(plan.SwitchMAC)
	if err != nil {
		return err
	}
	bladeMAC, err := net.ParseMAC(w.BladeMAC)
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(sw.handle)
	if err != nil {
		return err
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = w.SwitchInterface, w.MTU, switchMAC
	err = h.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: plan.Interface, PeerHardwareAddr: bladeMAC, PeerMTU: uint32(w.MTU),
		PeerNamespace: netlink.NsFd(blade.handle),
	})
	if err != nil {
		return fmt.Errorf("create %s in %s: %w", w.SwitchInterface, w.SwitchNamespace, err)
	}
	return nil
}

// quietPort keeps the kernel off the switch's ports: only the switch uses them.
func quietPort(name string) error { return setIPv6(name, map[string]string{"disable_ipv6": "1"}) }

// quietBlade switches off what IPv6 does by itself, and what the switch cannot
// finish for the blade.
func quietBlade(w plan.Wire) error {
	if !w.ChecksumOffload {
		if err := setChecksumOffload(plan.Interface, false); err != nil {
			return err
		}
	}
	return setIPv6(plan.Interface, map[string]string{
		"disable_ipv6":         "0",
		"addr_gen_mode":        "1", // no link-local address
		"accept_ra":            "0",
		"autoconf":             "0",
		"router_solicitations": "0",
		"accept_redirects":     "0",
		"accept_dad":           "0",
		"dad_transmits":        "0",
	})
}

// setIPv6 writes sysctls of an interface in this thread's namespace.
func setIPv6(iface string, values map[string]string) error {
	for key, value := range values {
		path := filepath.Join("/proc/sys/net/ipv6/conf", iface, key)
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set %s to %s: %w", path, value, err)
		}
	}
	return nil
}

func raisePort(ns *Namespace, name string) error {
	return withLink(ns, name, func(h *netlink.Handle, link netlink.Link) error { return h.LinkSetUp(link) })
}

// raiseBlade brings the blade's interface up and points it at the switch. NOARP
// keeps the kernel from joining multicast groups for its addresses, and so from
// reporting them.
func raiseBlade(ns *Namespace, w plan.Wire) error {
	return withLink(ns, plan.Interface, func(h *netlink.Handle, link netlink.Link) error {
		if err := h.LinkSetARPOff(link); err != nil {
			return fmt.Errorf("switch neighbour discovery off: %w", err)
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		// NODAD makes the address usable at once, also as the routes' source.
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(w.Address, 128)), Flags: unix.IFA_F_NODAD}
		if err := h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s: %w", w.Address, err)
		}
		return routeToSwitch(h, link.Attrs().Index, w)
	})
}

func routeToSwitch(h *netlink.Handle, index int, w plan.Wire) error {
	mac, err := net.ParseMAC(plan.SwitchMAC)
	if err != nil {
		return err
	}
	gateway := plan.Gateway.AsSlice()
	if err := h.NeighSet(&netlink.Neigh{LinkIndex: index, IP: gateway, HardwareAddr: mac, State: netlink.NUD_PERMANENT}); err != nil {
		return fmt.Errorf("neighbour %s: %w", plan.Gateway, err)
	}
	for _, prefix := range w.Routes {
		route := &netlink.Route{LinkIndex: index, Dst: ipNet(prefix), Gw: gateway, Src: w.Address.AsSlice()}
		if err := h.RouteAdd(route); err != nil {
			return fmt.Errorf("route %s: %w", prefix, err)
		}
	}
	return nil
}

func withLink(ns *Namespace, name string, f func(*netlink.Handle, netlink.Link) error) error {
	h, err := netlink.NewHandleAt(ns.handle)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err == nil {
		err = f(h, link)
	}
	if err != nil {
		return fmt.Errorf("interface %s of %s: %w", name, ns.name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
