//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"io"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachIngress attaches a program to what an interface receives, until what it
// returns is closed. With tcx (Linux 6.6 and newer) it is detached also when the
// process dies. Older kernels have clsact, where it stays until it is replaced:
// by this program, the next time, or by hand (tc filter del dev NAME ingress).
//
// The attachments of all ports but the one to the CPU may be pinned (Config.Links).
func (x *Executor) attachIngress(num datapath.Port, index int, prog *ebpf.Program) (l io.Closer, err error) {
	if x.tcx.Load() {
		if x.linkDir != "" && (num != x.cpu || x.cpu == 0) {
			l, err = x.attachPinned(num, index, prog)
		} else {
			l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: ebpf.AttachTCXIngress})
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return l, err
		}
		x.tcx.Store(false)
		x.log.Info("the kernel has no tcx: programs are attached with clsact")
	}
	return x.links.attachClsact(index, prog)
}

// What our filter is called, so that one that was left behind is replaced and
// those of others are left alone.
const (
	filterPriority = 0xb1f0
	filterHandle   = 1
)

// clsact is a program attached as a filter.
type clsact struct {
	links  links
	qdisc  netlink.Clsact
	filter netlink.BpfFilter
	// made tells that the interface had no such queueing discipline, which is the
	// place for filters, before.
	made bool
}

func (l links) attachClsact(index int, prog *ebpf.Program) (io.Closer, error) {
	c := &clsact{
		links: l,
		qdisc: netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}},
		filter: netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: filterPriority, Handle: filterHandle, Protocol: unix.ETH_P_ALL,
			},
			Fd: prog.FD(), Name: "bifrost", DirectAction: true,
		},
	}
	err := l.netlink.QdiscAdd(&c.qdisc)
	c.made = err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("clsact: %w", err)
	}
	if err := l.netlink.FilterReplace(&c.filter); err != nil {
		return nil, errors.Join(fmt.Errorf("clsact: attach: %w", err), c.remove())
	}
	return c, nil
}

// Close detaches the program.
func (c *clsact) Close() error {
	err := c.links.netlink.FilterDel(&c.filter)
	if errors.Is(err, unix.ENODEV) {
		return nil // gone with the interface
	}
	return errors.Join(err, c.remove())
}

// remove removes the queueing discipline, if it was not there before.
func (c *clsact) remove() error {
	if !c.made {
		return nil
	}
	return c.links.netlink.QdiscDel(&c.qdisc)
}
