//go:build linux

package ebpf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"golang.org/x/sys/unix"
)

// tunInfo is what is before each packet of a TUN device: flags, and the protocol.
const tunInfo = 4

// openTun makes a device without Ethernet header and brings it up.
func openTun(t *testing.T, x *Executor, name string, flags uint16) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TUN | flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name) // which Go can wait for now
	t.Cleanup(func() { _ = f.Close() })
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0o600)
	if err := x.links.setFlag(name, unix.IFF_UP, true); err != nil {
		t.Fatal(err)
	}
	return f
}

// On devices without Ethernet header a packet comes out as it should, or is
// dropped and counted, whatever its protocol and however its headers change.
func TestReal_WithoutEthernet(t *testing.T) {
	compare.Namespace(t)
	p := newPair(t, load(t, "testdata/stacks.json"), 0)
	in, out := openTun(t, p.kernel, "tun1", 0), openTun(t, p.kernel, "tun2", 0)
	for i, name := range []string{"tun1", "tun2"} {
		if err := p.kernel.AttachPort(datapath.Port(i+1), name, false); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(*seed, 6))
	came, dropped := 0, uint64(0)
	for range 200 {
		packet := stacked(r, byte(1+2*r.IntN(2)))
		proto := []uint16{0x1234, unix.ETH_P_IP, unix.ETH_P_IPV6}[r.IntN(3)]
		p.Golang.Process(1, bytes.Clone(packet), p.G.Emit)
		want := p.G.Take()
		if _, err := in.Write(append([]byte{0, 0, byte(proto >> 8), byte(proto)}, packet...)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2000)
		for len(want) > 0 {
			if n := p.kernel.stats(2)[nTxResize/8]; n > dropped {
				dropped = n
				break
			}
			if err := out.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err := out.Read(buf)
			if os.IsTimeout(err) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("out 2: %x", buf[tunInfo:n]); got != want[0] {
				t.Fatalf("packet of protocol %#x, %x:\nkernel %s\nGo     %s\nreplay: go test ./p4switch/ebpf -run TestReal_WithoutEthernet -seed %d", proto, packet, got, want[0], *seed)
			}
			came++
			break
		}
	}
	if came < 50 {
		t.Errorf("only %d packets came out, %d were dropped", came, dropped)
	}
	t.Logf("%d packets came out, %d were dropped", came, dropped)
}

// A frame that is shorter than an Ethernet header is dropped and counted.
func TestReal_Short(t *testing.T) {
	compare.Namespace(t)
	p := newPair(t, load(t, "testdata/stacks.json"), 0)
	in := openTun(t, p.kernel, "tun1", 0)
	if err := p.kernel.AttachPort(1, "tun1", false); err != nil {
		t.Fatal(err)
	}
	const most = minEthernet - 1
	for n := 1; n <= most; n++ {
		if _, err := in.Write(append([]byte{0, 0, 0x12, 0x34}, make([]byte, n)...)); err != nil {
			t.Fatal(err)
		}
	}
	tick := time.NewTicker(time.Millisecond) // until the kernel has dealt with them
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		if c := p.kernel.PortCounts(1); c.RxShort == most && c.RxPackets == 0 {
			return
		} else if time.Now().After(end) {
			t.Fatalf("%d of %d short frames are counted, and %d as packets", c.RxShort, most, c.RxPackets)
		}
	}
}
