package softswitch

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// writerRules is how many rules are loaded beside those that are used.
const writerRules = 10_000

// A UDP round trip of 64 bytes between two namespaces, client and server on a
// CPU each: through nothing but a cable, a Linux bridge, and the sample
// program with 10,000 access rules on both executors.
func BenchmarkKernel_RoundTrip(b *testing.B) {
	needRoot(b)
	b.Run("veth", func(b *testing.B) {
		x, y := cabled(b)
		x.knows(y)
		y.knows(x)
		pinnedRoundTrips(b, x, y)
	})
	b.Run("bridge", func(b *testing.B) {
		x, y := newLab(b, 1500), newLab(b, 1500)
		x.knows(y)
		y.knows(x)
		bridge(b, x, y)
		pinnedRoundTrips(b, x, y)
	})
	for name, load := range map[string]Loader{"ebpf": LoadEBPF, "go": LoadGo} {
		b.Run(name, func(b *testing.B) {
			r := newSwitchOn(b, load, sample.JSON, sample.Info, sample.Prefix)
			x, y := newLab(b, 1500), newLab(b, 1500)
			x.knows(y)
			y.knows(x)
			r.plugIn(1, x)
			r.plugIn(2, y)
			e := *r.sw.exec.Load()
			for i := range writerRules {
				if err := e.Apply(datapath.Insert, writerRule(i)); err != nil {
					b.Fatal(err)
				}
			}
			pinnedRoundTrips(b, x, y)
		})
	}
}

// writerRule lets one of a hundred rows write a region.
func writerRule(i int) datapath.Entry {
	return datapath.Entry{
		Table:  sample.Prefix + "writer",
		Match:  []datapath.Match{{Value: binary.BigEndian.AppendUint16(nil, uint16(2+i%100))}, {Value: binary.BigEndian.AppendUint32(nil, uint32(i/100))[1:]}},
		Action: &datapath.Action{Name: sample.Prefix + "permit"},
	}
}

// cabled is two hosts with nothing between them but a veth pair.
func cabled(b *testing.B) (x, y *lab) {
	b.Helper()
	x = newLab(b, 1500)
	n := labs.Add(1)
	y = &lab{t: b, ns: newNamespace(b), addr: netip.MustParseAddr(fmt.Sprintf("fd00:b1::%d", n))}
	link, err := netlink.LinkByName(x.iface)
	if err == nil {
		y.mac = link.Attrs().HardwareAddr
		err = netlink.LinkSetNsFd(link, int(y.ns))
	}
	if err != nil {
		b.Fatal(err)
	}
	within(b, y.ns, func() {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+x.iface+"/disable_ipv6", []byte("0"), 0o600)
		if err := netlink.LinkSetUp(link); err != nil {
			b.Fatal(err)
		}
		addr, err := netlink.ParseAddr(y.addr.String() + "/64")
		if err != nil {
			b.Fatal(err)
		}
		addr.Flags = unix.IFA_F_NODAD
		if link, err = netlink.LinkByName(x.iface); err == nil {
			err = netlink.AddrAdd(link, addr)
		}
		if err != nil {
			b.Fatal(err)
		}
		y.index = link.Attrs().Index
	})
	return x, y
}

// bridge joins two hosts by a Linux bridge.
func bridge(b *testing.B, hosts ...*lab) {
	b.Helper()
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bfbr" + hosts[0].iface[3:]}}
	if err := netlink.LinkAdd(br); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = netlink.LinkDel(br) })
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+br.Name+"/disable_ipv6", []byte("1"), 0o600)
	for _, h := range hosts {
		l, err := netlink.LinkByName(h.iface)
		if err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(br); err != nil {
		b.Fatal(err)
	}
}

// A packet that is held, handed to a controller over a socket, released by it and
// forwarded: what a trap costs beside the rules.
func BenchmarkKernel_HoldAndRelease(b *testing.B) {
	r, x, y := newKernelRack(b, 1500)
	from, to := x.blocking(1000), y.blocking(sample.PortControl)
	buf, dst := make([]byte, 256), &unix.SockaddrInet6{Port: sample.PortControl, Addr: y.addr.As16()}
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		if err := unix.Sendto(from, buf[:200], 0, dst); err != nil {
			b.Fatal(err)
		}
		r.release(r.next().GetPacket())
		for {
			_, _, err := unix.Recvfrom(to, buf, 0)
			if err == nil {
				break
			}
			if err != unix.EINTR {
				b.Fatal(err)
			}
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// blocking opens a UDP socket in the host's namespace that is used without the
// runtime's poller.
func (h *lab) blocking(port int) int {
	h.t.Helper()
	var fd int
	within(h.t, h.ns, func() {
		var err error
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet6{Port: port, Addr: h.addr.As16()})
		}
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
		}
		if err != nil {
			h.t.Fatal(err)
		}
	})
	h.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// pin keeps the thread on one CPU.
func pin(cpu int) {
	runtime.LockOSThread()
	var s unix.CPUSet
	s.Set(cpu % runtime.NumCPU())
	_ = unix.SchedSetaffinity(0, &s)
}

func pinnedRoundTrips(b *testing.B, x, y *lab) {
	b.Helper()
	cx, cy := x.blocking(1000), y.blocking(2000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		pin(3)
		buf := make([]byte, 128)
		for {
			n, from, err := unix.Recvfrom(cy, buf, 0)
			if err == unix.EINTR { // Go's runtime preempts by signals
				continue
			}
			if err != nil || n == 1 {
				return
			}
			_ = unix.Sendto(cy, buf[:n], 0, from)
		}
	}()
	finished := make(chan []time.Duration)
	to := &unix.SockaddrInet6{Port: 2000, Addr: y.addr.As16()}
	go func() {
		pin(2)
		var took []time.Duration
		buf := make([]byte, 128)
		for b.Loop() {
			start := time.Now()
			_ = unix.Sendto(cx, buf[:64], 0, to)
			_, _, err := unix.Recvfrom(cx, buf, 0)
			for err == unix.EINTR {
				_, _, err = unix.Recvfrom(cx, buf, 0)
			}
			if err != nil {
				b.Errorf("round trip %d: %v", len(took), err)
				break
			}
			took = append(took, time.Since(start))
		}
		_ = unix.Sendto(cx, buf[:1], 0, to)
		finished <- took
	}()
	took := <-finished
	<-done
	slices.Sort(took)
	if len(took) > 0 {
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
	}
}
