//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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

// watchEvery is how often ports' interfaces are looked at.
const watchEvery = 200 * time.Millisecond

// watcher follows interfaces that vanish, come back and change.
type watcher struct {
	once sync.Once
	quit chan struct{}
	done sync.WaitGroup
}

// start begins to watch an executor's ports, if that has not begun.
func (w *watcher) start(x *Executor) {
	w.once.Do(func() {
		w.quit = make(chan struct{})
		w.done.Go(func() { w.run(x) })
	})
}

// stop ends it; it must not be started any more.
func (w *watcher) stop() {
	w.once.Do(func() {})
	if w.quit != nil {
		close(w.quit)
		w.done.Wait()
	}
}

func (w *watcher) run(x *Executor) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-tick.C:
			x.look()
		}
	}
}

// look brings all ports in line with their interfaces.
func (x *Executor) look() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.ports {
		if err := p.follow(); err != nil {
			x.log.Warn("port cannot follow its interface", "port", p.num, "interface", p.name, "error", err)
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
