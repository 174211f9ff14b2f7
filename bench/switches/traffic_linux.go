package switches

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// soakRegions is to how many regions requests go.
const soakRegions = 64

// traffic is allocations from the first host at the second, where all that
// are permitted arrive; the others come back. A request carries when it was sent
// and to which region. Its verdict was found between then and when it was seen,
// so if the region's rule has been the same all that time, only one verdict is
// right.
type traffic struct {
	regions [soakRegions]soakRegion
	begin   time.Time
	stop    atomic.Bool
	all     sync.WaitGroup

	checked, wrong atomic.Int64
	first          atomic.Pointer[string] // wrong verdict
}

// soakRegion is a region and what is known of its rule.
type soakRegion struct {
	rule      p4rtclient.Entry
	permitted bool // the controller's alone
	// state is since when (nanoseconds) the rule is as it is, times two, plus one
	// if it permits; 0 while it changes.
	state atomic.Int64
	seen  atomic.Int64 // verdicts checked since
}

func stateOf(permit bool, since int64) int64 {
	if permit {
		return since<<1 | 1
	}
	return since << 1
}

// await returns when packets have been judged in the region's present state.
func (r *soakRegion) await(ctx context.Context) error {
	for deadline := time.Now().Add(10 * time.Second); r.seen.Load() == 0; runtime.Gosched() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("no request was judged for ten seconds")
		}
	}
	return nil
}

func newTraffic() *traffic {
	t := &traffic{begin: time.Now()}
	for i := range t.regions {
		t.regions[i].rule = allocates(1, uint64(i))
		t.regions[i].state.Store(stateOf(false, t.now()))
	}
	return t
}

// now is nanoseconds, at least 1.
func (t *traffic) now() int64 { return time.Since(t.begin).Nanoseconds() + 1 }

// pointer is what requests to a region go to: the first one of a batch.
func pointer(region int) dsmpacket.Pointer {
	return dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(uint32(region)*dsmpacket.BatchSlots, 1)).With(dsmpacket.OpAlloc)
}

// memoryRoutes makes the second host the memory blade of the pointers.
func (l *lab) memoryRoutes() error {
	p := dsmpacket.MachinePrefix(rackaddr.DefaultDSMPrefix, 1)
	dst, err := netlink.ParseIPNet(p.String())
	if err != nil {
		return err
	}
	add := func(name string, r netlink.Route) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		r.LinkIndex, r.Dst = link.Attrs().Index, dst
		return errors.Join(netlink.LinkSetUp(link), netlink.RouteAdd(&r))
	}
	return errors.Join(
		l.in(l.hosts[0], func() error { return add("host", netlink.Route{Gw: hosts[1].addr.AsSlice()}) }),
		l.in(l.hosts[1], func() error {
			return add("lo", netlink.Route{Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL})
		}))
}

// startTraffic begins to send, until end.
func (l *lab) startTraffic(t *traffic) error {
	client, err := l.bound(0, unix.SOCK_DGRAM, netip.IPv6Unspecified(), rackaddr.PortDSM)
	if err != nil {
		return err
	}
	server, err := l.bound(1, unix.SOCK_DGRAM, netip.IPv6Unspecified(), rackaddr.PortDSM)
	quiet := unix.NsecToTimeval(int64(quietAfter))
	for _, fd := range []int{client, server} {
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &quiet)
		}
	}
	if err != nil {
		closeFD(client)
		closeFD(server)
		return err
	}
	var users sync.WaitGroup
	users.Go(func() { t.send(client) })
	users.Go(func() { t.receive(client, 2, false) })
	users.Go(func() { t.receive(server, 1, true) })
	t.all.Go(func() {
		users.Wait()
		closeFD(client)
		closeFD(server)
	})
	return nil
}

func (t *traffic) end() {
	t.stop.Store(true)
	t.all.Wait()
}

func (t *traffic) send(fd int) {
	pin(0)
	var to [soakRegions]*unix.SockaddrInet6
	for i := range to {
		to[i] = &unix.SockaddrInet6{Port: rackaddr.PortDSM, Addr: pointer(i)}
	}
	buf := make([]byte, 0, dsmpacket.HeaderSize)
	for n := 0; !t.stop.Load(); n++ {
		i := n % soakRegions
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: uint64(t.now()), Index: uint32(i), Length: 8}
		_ = unix.Sendto(fd, h.Append(buf), 0, to[i]) // a full queue is an error, and passes
	}
}

// receive checks what arrives, permitted requests or denied ones.
func (t *traffic) receive(fd, cpu int, permitted bool) {
	pin(cpu)
	for buf := make([]byte, 256); !t.stop.Load(); {
		n, err := again(func() (int, error) { return unix.Read(fd, buf) })
		if err != nil {
			continue // nothing has come for a while
		}
		h, _, err := dsmpacket.Parse(buf[:n])
		if err != nil || int(h.Index) >= soakRegions || (h.Kind == dsmpacket.Nack) == permitted {
			t.report(fmt.Sprintf("a strange packet: %v %+v", err, h))
			continue
		}
		t.check(&h, permitted)
	}
}

func (t *traffic) check(h *dsmpacket.Header, permitted bool) {
	r := &t.regions[h.Index]
	state := r.state.Load()
	if state == 0 || state>>1 >= int64(h.Request) {
		return // sent before the rule was as it is
	}
	r.seen.Add(1)
	t.checked.Add(1)
	if (state&1 == 1) != permitted {
		t.report(fmt.Sprintf("region %d: permitted %t, %d ns after the opposite was answered", h.Index, permitted, int64(h.Request)-state>>1))
	}
}

func (t *traffic) report(what string) {
	if t.wrong.Add(1) == 1 {
		t.first.Store(&what)
	}
}

// example is the first wrong verdict.
func (t *traffic) example() string {
	if p := t.first.Load(); p != nil {
		return *p
	}
	return ""
}
