//go:build linux

package ebpf

import (
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Port is the program attached to one interface, and the interface as a place
// to send to.
type Port struct {
	x     *Executor
	num   datapath.Port
	name  string
	index int // of the interface

	stub    *ebpf.Program
	link    link.Link
	promisc int // a packet socket that keeps the interface promiscuous
}

// newPort attaches the program to an interface.
func (x *Executor) newPort(num datapath.Port, name string) (*Port, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("port %d: interface %s: %w", num, name, err)
	}
	p := &Port{x: x, num: num, name: name, index: l.Attrs().Index, promisc: -1}
	if err := p.attach(l); err != nil {
		return nil, errors.Join(fmt.Errorf("port %d: interface %s: %w", num, name, err), p.detach())
	}
	return p, nil
}

func (p *Port) attach(l netlink.Link) error {
	var err error
	p.stub, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bifrost_port", Type: ebpf.SchedCLS, Instructions: stub(uint32(p.num), p.x.slot), License: "Apache-2.0",
	})
	if err != nil {
		return err
	}
	if p.link, err = attachIngress(p.index, p.stub); err != nil {
		return err
	}
	if p.promisc, err = promiscuous(p.index); err != nil {
		return err
	}
	longest := uint32(l.Attrs().MTU + minEthernet + 4)
	if p.num == p.x.cpu && p.x.cpu != 0 {
		longest = maxFrame
	}
	return p.x.objs.ports.Put(uint32(p.num), describe(uint32(p.index), 0, longest))
}

// attachIngress attaches a program to what an interface receives.
func attachIngress(index int, prog *ebpf.Program) (link.Link, error) {
	return link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: ebpf.AttachTCXIngress})
}

// promiscuous makes an interface take frames for any address, as long as the
// socket that it returns is open. The socket itself receives nothing.
func promiscuous(index int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC})
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// detach takes the program off the interface; nothing is sent there any more.
func (p *Port) detach() error {
	if p == nil {
		return nil
	}
	errs := []error{p.x.objs.ports.Put(uint32(p.num), describe(0, 0, 0))}
	if p.link != nil {
		errs = append(errs, p.link.Close())
	}
	if p.stub != nil {
		errs = append(errs, p.stub.Close())
	}
	if p.promisc >= 0 {
		errs = append(errs, unix.Close(p.promisc))
		p.promisc = -1
	}
	return errors.Join(errs...)
}
