//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/linkevents"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// port is the program attached to one interface, and the interface as a place
// to send to.
type port struct {
	x     *Executor
	num   datapath.Port
	name  string
	index int // of the interface; 0 while it is gone
	mtu   int
	bare  bool // frames have no Ethernet header

	stub *ebpf.Program
	link io.Closer // the program's attachment

	up       atomic.Bool
	vanished atomic.Uint64
}

// PortCounts are a port's counters since it was attached first.
type PortCounts struct {
	// Up is false while the interface is gone or down.
	Up                                     bool
	RxPackets, RxBytes, TxPackets, TxBytes uint64

	RxOffload uint64 // super-packets and unfinished checksums that cannot be judged, or super-packets for the CPU port
	TxTooLong uint64 // frames longer than the interface's MTU
	TxResize  uint64 // frames whose headers could not be made longer or shorter, or whose checksum could then not be finished
	RxShort   uint64 // frames shorter than an Ethernet header
	Looped    uint64 // packets of which the program wanted too many copies, or copies of copies
	Vanished  uint64 // times that the interface was gone
}

// AttachPort makes a port one on an interface of the namespace that the
// executor was made in. When the interface vanishes, the port takes up the one
// that comes back under its name. With wait, it need not be there yet.
func (x *Executor) AttachPort(num datapath.Port, name string, wait bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed:
		return errors.New("ebpf: the executor is closed")
	case x.ports[num] != nil:
		return fmt.Errorf("port %d is attached already", num)
	case num >= DropPort || num == x.cpu && x.cpu != 0:
		return fmt.Errorf("port %d cannot be attached", num)
	}
	p, err := x.newPort(num, name)
	if err != nil && !wait {
		return err
	}
	x.ports[num] = p
	if err != nil { // the interface is there, perhaps, and something else is not yet
		x.watcher.again.Reset(followAgain)
	}
	return nil
}

// Announce tells the program where a port's packets go, before it is attached: when
// several ports move from one executor to another, each may send to those that have
// not moved yet.
func (x *Executor) Announce(num datapath.Port, name string) error {
	at, err := x.links.find(name)
	if err != nil {
		return fmt.Errorf("port %d: interface %s: %w", num, name, err)
	}
	p := &port{x: x, num: num, name: name, index: at.index, mtu: at.mtu}
	return p.describe()
}

// DetachPort takes the program off a port's interface.
func (x *Executor) DetachPort(num datapath.Port) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.ports[num]
	if p == nil {
		return fmt.Errorf("port %d is not attached", num)
	}
	delete(x.ports, num)
	x.detached[num] = p
	return p.detach()
}

// PortCounts tells a port's counters, also when it has been detached; they are 0 if it
// never was attached.
func (x *Executor) PortCounts(num datapath.Port) PortCounts {
	x.mu.Lock()
	p := x.ports[num]
	if p == nil {
		p = x.detached[num]
	}
	x.mu.Unlock()
	if p == nil {
		return PortCounts{}
	}
	v := x.stats(num)
	return PortCounts{
		Up:        p.up.Load(),
		RxPackets: v[nRxPackets/8], RxBytes: v[nRxBytes/8], TxPackets: v[nTxPackets/8], TxBytes: v[nTxBytes/8],
		RxOffload: v[nRxOffload/8], RxShort: v[nRxShort/8], TxTooLong: v[nTxTooLong/8], TxResize: v[nTxResize/8], Looped: v[nLooped/8], Vanished: p.vanished.Load(),
	}
}

// Lost counts the packets for a port that was not attached.
func (x *Executor) Lost() uint64 { return x.stats(lostPort)[nLost/8] }

// SetQueueDepth says how many packets wait in a port's queue: packets that come to the port's egress have the number as enq_qdepth and deq_qdepth,
// saturated, for a second (depthHolds) or until it is called again. Else they have 0. After Close it does nothing, nor if the program does not use
// these fields.
func (x *Executor) SetQueueDepth(num datapath.Port, packets uint32) {
	m := x.maps.depths
	if m == nil || num >= numPorts {
		return
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mem == nil {
		return
	}
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	queue := m.mem[queueSize*num:]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&queue[queueTold])), uint64(now.Nano()))
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&queue[queueWaits])), uint64(packets))
}

// stats adds up what all CPUs have counted of a port.
func (x *Executor) stats(num datapath.Port) (sum [statSize / 8]uint64) {
	var all [][statSize / 8]uint64
	if err := x.maps.stats.Lookup(uint32(num), &all); err != nil {
		return sum
	}
	for _, v := range all {
		for i := range v {
			sum[i] += v[i]
		}
	}
	return sum
}

// newPort attaches the program to an interface. With an error, the port is one
// whose interface is gone.
func (x *Executor) newPort(num datapath.Port, name string) (*port, error) {
	p := &port{x: x, num: num, name: name}
	if err := p.attach(); err != nil {
		return p, errors.Join(fmt.Errorf("port %d: interface %s: %w", num, name, err), p.detach())
	}
	return p, nil
}

func (p *port) attach() error {
	at, err := p.x.links.find(p.name)
	if err != nil {
		return err
	}
	skb, err := layoutOfSkb()
	if err != nil {
		return err
	}
	p.index, p.mtu, p.bare = at.index, at.mtu, at.bare
	p.up.Store(at.up)
	p.stub, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bifrost_port", Type: ebpf.SchedCLS, Instructions: stub(uint32(p.num), p.x.slot, skb), License: stubLicense,
	})
	if err != nil {
		return err
	}
	if p.link, err = p.x.attachIngress(p.num, p.index, p.stub); err != nil {
		return err
	}
	if err := p.promiscuous(true); err != nil {
		return err
	}
	return p.describe()
}

// promiscuous makes the interface take frames for any address, or no longer: while
// the program is attached, by whatever process.
func (p *port) promiscuous(on bool) error {
	if l, ok := p.link.(*pinnedLink); ok {
		if !on && !l.owned() {
			return nil
		}
		return p.x.links.setFlag(p.name, unix.IFF_PROMISC, on)
	}
	return p.x.links.promiscuous(p.index, on)
}

// describe tells the program where the port's packets go.
func (p *port) describe() error {
	longest := uint32(p.mtu + minEthernet + vlanLen)
	if p.num == p.x.cpu && p.x.cpu != 0 {
		longest = maxFrame
	}
	return p.x.maps.ports.Put(uint32(p.num), description(uint32(p.index), longest, p.bare))
}

// vlanLen is the length of a VLAN tag, which the MTU does not count.
const vlanLen = 4

// detach takes the program off the interface; nothing is sent there any more.
func (p *port) detach() error {
	if p == nil {
		return nil
	}
	errs := []error{p.x.maps.ports.Put(uint32(p.num), description(0, 0, false))}
	if p.index != 0 {
		// An interface that has vanished is not promiscuous any more.
		_ = p.promiscuous(false)
	}
	if p.link != nil {
		errs = append(errs, p.link.Close())
	}
	if p.stub != nil {
		errs = append(errs, p.stub.Close())
	}
	p.link, p.stub, p.index = nil, nil, 0
	p.up.Store(false)
	return errors.Join(errs...)
}

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

// links asks the kernel about interfaces of the namespace it was made in, and
// makes them promiscuous while it is open.
type links struct {
	fd     int
	packet int // a packet socket that receives nothing
	// netlink changes what programs are attached to, where there is no tcx.
	netlink *netlink.Handle
}

// linkState is what matters of an interface.
type linkState struct {
	index, mtu int
	up         bool
	bare       bool // its frames have no Ethernet header
}

func newLinks() (links, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return links{}, err
	}
	packet, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return links{}, errors.Join(err, unix.Close(fd))
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return links{}, errors.Join(err, unix.Close(fd), unix.Close(packet))
	}
	return links{fd, packet, h}, nil
}

func (l links) close() error {
	l.netlink.Close()
	return errors.Join(unix.Close(l.fd), unix.Close(l.packet))
}

// promiscuous makes an interface take frames for any address, or no longer. One
// socket does it for all of them: closing one takes the kernel some ten
// milliseconds.
func (l links) promiscuous(index int, on bool) error {
	option := unix.PACKET_DROP_MEMBERSHIP
	if on {
		option = unix.PACKET_ADD_MEMBERSHIP
	}
	return unix.SetsockoptPacketMreq(l.packet, unix.SOL_PACKET, option,
		&unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC})
}

func (l links) find(name string) (linkState, error) {
	var s linkState
	req, err := unix.NewIfreq(name)
	if err != nil {
		return s, err
	}
	if err := unix.IoctlIfreq(l.fd, unix.SIOCGIFINDEX, req); err != nil {
		return s, err
	}
	s.index = int(req.Uint32())
	if err := unix.IoctlIfreq(l.fd, unix.SIOCGIFMTU, req); err != nil {
		return s, err
	}
	s.mtu = int(req.Uint32())
	if err := unix.IoctlIfreq(l.fd, unix.SIOCGIFFLAGS, req); err != nil {
		return s, err
	}
	s.up = req.Uint16()&unix.IFF_RUNNING != 0
	if err := unix.IoctlIfreq(l.fd, unix.SIOCGIFHWADDR, req); err != nil {
		return s, err
	}
	switch req.Uint16() { // as the kernel's dev_is_mac_header_xmit
	case unix.ARPHRD_TUNNEL, unix.ARPHRD_TUNNEL6, unix.ARPHRD_SIT, unix.ARPHRD_IPGRE, unix.ARPHRD_IP6GRE,
		unix.ARPHRD_VOID, unix.ARPHRD_NONE, unix.ARPHRD_RAWIP, unix.ARPHRD_PPP:
		s.bare = true
	}
	return s, nil
}

// setFlag sets or clears an interface's flag, which stays when this process ends.
func (l links) setFlag(name string, flag uint16, on bool) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(l.fd, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	flags := req.Uint16() | flag
	if !on {
		flags &^= flag
	}
	req.SetUint16(flags)
	return unix.IoctlIfreq(l.fd, unix.SIOCSIFFLAGS, req)
}

// followAgain is when a port that could not follow its interface tries again.
const followAgain = 200 * time.Millisecond

// watcher follows interfaces that vanish, come back and change.
type watcher struct {
	events *linkevents.Watch
	again  *time.Timer // set while a port has failed to follow; guarded by Executor.mu
}

// start begins to watch an executor's ports, in the network namespace of the caller.
func (w *watcher) start(x *Executor) (err error) {
	w.again = time.AfterFunc(time.Hour, func() { x.look(linkevents.Link{}) })
	w.again.Stop()
	w.events, err = linkevents.Open(x.look, x.log)
	return err
}

// stop ends it. The executor has no ports any more.
func (w *watcher) stop() {
	w.again.Stop()
	if w.events != nil {
		w.events.Close()
	}
}

// look brings the ports of an interface in line with it.
func (x *Executor) look(at linkevents.Link) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.ports {
		if !at.Is(p.name, p.index) {
			continue
		}
		if err := p.follow(); err != nil {
			x.log.Warn("port cannot follow its interface", "port", p.num, "interface", p.name, "error", err)
			x.watcher.again.Reset(followAgain)
		}
	}
}

// follow brings a port in line with its interface.
func (p *port) follow() error {
	at, err := p.x.links.find(p.name)
	gone := errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
	switch {
	case err != nil && !gone:
		return err
	case p.index != 0 && (gone || at.index != p.index):
		p.vanished.Add(1)
		p.x.log.Warn("interface has vanished", "port", p.num, "interface", p.name)
		// The link is gone with the interface; closing it may say so.
		_ = p.detach()
		fallthrough
	case p.index == 0:
		if gone {
			return nil
		}
		if err := p.attach(); err != nil {
			return errors.Join(fmt.Errorf("attach again: %w", err), p.detach())
		}
		p.x.log.Info("interface is back", "port", p.num, "interface", p.name)
		return nil
	}
	p.up.Store(at.up)
	if at.mtu == p.mtu {
		return nil
	}
	p.mtu = at.mtu
	return p.describe()
}
