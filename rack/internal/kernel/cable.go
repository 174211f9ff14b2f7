package kernel

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/bifrost-rack/bifrost/rack/plan"
)

// SetPort takes a wire's switch end down or up again, as pulling the cable does.
func SetPort(w plan.Wire, up bool) error {
	ns, err := OpenNamespace(w.SwitchNamespace)
	if err != nil {
		return err
	}
	defer ns.close()
	return withLink(ns, w.SwitchInterface, func(h *netlink.Handle, link netlink.Link) error {
		if up {
			return h.LinkSetUp(link)
		}
		return h.LinkSetDown(link)
	})
}

// linkPoll is how often AwaitLink looks.
const linkPoll = 5 * time.Millisecond

// AwaitLink returns when both ends of a wire carry packets. That is some time
// after they were brought up, and until then the kernel drops what is sent.
func AwaitLink(ctx context.Context, w plan.Wire) error {
	for _, end := range []struct{ namespace, iface string }{{w.SwitchNamespace, w.SwitchInterface}, {w.BladeNamespace, plan.Interface}} {
		ns, err := OpenNamespace(end.namespace)
		if err != nil {
			return err
		}
		err = awaitLink(ctx, ns, end.iface)
		ns.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func awaitLink(ctx context.Context, ns *Namespace, name string) error {
	tick := time.NewTicker(linkPoll)
	defer tick.Stop()
	for {
		carries := false
		if err := withLink(ns, name, func(_ *netlink.Handle, link netlink.Link) error {
			carries = link.Attrs().OperState == netlink.OperUp
			return nil
		}); err != nil || carries {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interface %s of %s does not come up: %w", name, ns.name, ctx.Err())
		case <-tick.C:
		}
	}
}

// DownPorts returns the interfaces of the switch's namespace that are
// administratively down.
func DownPorts(namespace string) (map[string]bool, error) {
	ns, err := OpenNamespace(namespace)
	if err != nil {
		return nil, err
	}
	defer ns.close()
	h, err := netlink.NewHandleAt(ns.handle)
	if err != nil {
		return nil, fmt.Errorf("interfaces of %s: %w", namespace, err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("interfaces of %s: %w", namespace, err)
	}
	down := map[string]bool{}
	for _, link := range links {
		if link.Attrs().Flags&net.FlagUp == 0 {
			down[link.Attrs().Name] = true
		}
	}
	return down, nil
}

// Reboot takes the blade's interfaces down and brings them up as Connect left
// them, so that addresses and routes which dead processes had added are gone.
func Reboot(w plan.Wire) error {
	ns, err := OpenNamespace(w.BladeNamespace)
	if err != nil {
		return err
	}
	defer ns.close()
	for _, name := range []string{"lo", plan.Interface} {
		if err := withLink(ns, name, func(h *netlink.Handle, link netlink.Link) error { return h.LinkSetDown(link) }); err != nil {
			return err
		}
	}
	if err := withLink(ns, "lo", func(h *netlink.Handle, link netlink.Link) error { return h.LinkSetUp(link) }); err != nil {
		return err
	}
	return raiseBlade(ns, w)
}
