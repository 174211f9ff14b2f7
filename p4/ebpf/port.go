//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf"
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
	x.watcher.start(x)
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
	return p.detach()
}

// PortCounts tells a port's counters; they are 0 if it is not attached.
func (x *Executor) PortCounts(num datapath.Port) PortCounts {
	x.mu.Lock()
	p := x.ports[num]
	x.mu.Unlock()
	if p == nil {
		return PortCounts{}
	}
	v := x.stats(num)
	return PortCounts{
		Up:        p.up.Load(),
		RxPackets: v[nRxPackets/8], RxBytes: v[nRxBytes/8], TxPackets: v[nTxPackets/8], TxBytes: v[nTxBytes/8],
		RxOffload: v[nRxOffload/8], TxTooLong: v[nTxTooLong/8], TxResize: v[nTxResize/8], Looped: v[nLooped/8], Vanished: p.vanished.Load(),
	}
}

// Lost counts the packets for a port that was not attached.
func (x *Executor) Lost() uint64 { return x.stats(lostPort)[nLost/8] }

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
