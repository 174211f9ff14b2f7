//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/softswitch/afpacket"
	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// patience bounds what must come on a busy machine.
const patience = time.Minute

// realPorts is how many ports a test on real interfaces has, numbered from 1.
const realPorts = 4

// shortest is how short a frame with a tag may be: shorter ones the kernel drops
// before anybody sees them.
const shortest = 20

// bench is a switch on veth pairs in a namespace of its own, and the far ends.
type bench struct {
	*pair
	far [realPorts + 1]*afpacket.Socket
	buf []afpacket.Frame
}

// inNamespace keeps the test on a thread in a new network namespace. What runs on
// other threads only uses sockets that were opened here.
func inNamespace(t *testing.T) {
	t.Helper()
	needRoot(t)
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New() // and enters it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(home); err != nil {
			t.Error(err) // the thread stays locked, so it ends
			return
		}
		_ = ns.Close()
		_ = home.Close()
		runtime.UnlockOSThread()
	})
}

func newBench(t *testing.T, prog *v1model.Program, cfg Config) *bench {
	t.Helper()
	inNamespace(t)
	b := &bench{pair: newPairWith(t, prog, cfg), buf: make([]afpacket.Frame, 0, afpacket.BatchSize)}
	for i := 1; i <= realPorts; i++ {
		near, far := fmt.Sprintf("near%d", i), fmt.Sprintf("far%d", i)
		addVeth(t, near, far)
		if err := b.kernel.AttachPort(datapath.Port(i), near, false); err != nil {
			t.Fatal(err)
		}
		s, err := afpacket.Open(far)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		b.far[i] = s
	}
	return b
}

func addVeth(t *testing.T, near, far string) {
	t.Helper()
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near, MTU: 65535}, PeerName: far, PeerMTU: 65535})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{near, far} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// An end that was up before the other drops what it is given to send until a
	// work queue has noticed the carrier; only then is it "up".
	for _, name := range []string{near, far} {
		awaitUp(t, name)
	}
}

func awaitUp(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		link, err := netlink.LinkByName(name)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%s does not come up: %v", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return
		}
		runtime.Gosched()
	}
}

// check sends a frame and compares what comes out with what the Go executor says.
func (b *bench) check(t *testing.T, in datapath.Port, frame []byte, replay string) {
	t.Helper()
	type out struct {
		port  datapath.Port
		frame []byte
	}
	var want []out
	b.golang.Process(in, bytes.Clone(frame), func(p datapath.Port, f []byte) { want = append(want, out{p, bytes.Clone(f)}) })
	if err := b.far[in].Send(afpacket.Frame{Data: frame}); err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if w.port < 1 || w.port > realPorts {
			continue
		}
		if got, ok := b.next(w.port); !ok || !bytes.Equal(got, w.frame) {
			t.Fatalf("port %d, packet of %d bytes %x:\nport %d: kernel %d bytes %x\n           Go %d bytes %x\nreplay: %s",
				in, len(frame), head(frame), w.port, len(got), head(got), len(w.frame), head(w.frame), replay)
		}
	}
}

func etherType(b []byte, at int) uint16 { return binary.BigEndian.Uint16(b[at:]) }

func head(b []byte) []byte { return b[:min(len(b), 200)] }

// next is the next frame that comes out of a port.
func (b *bench) next(port datapath.Port) ([]byte, bool) {
	for range 20 {
		got, err := b.far[port].Receive(b.buf[:0:1])
		if errors.Is(err, afpacket.ErrTimeout) {
			continue
		}
		if err != nil || len(got.Frames) == 0 {
			return nil, false
		}
		return bytes.Clone(got.Frames[0].Data), true
	}
	return nil, false
}

// quiet fails if a frame has come out that nothing was said of.
func (b *bench) quiet(t *testing.T, replay string) {
	t.Helper()
	for p := 1; p <= realPorts; p++ {
		if got, err := b.far[p].Receive(b.buf); err == nil && len(got.Frames) > 0 {
			t.Errorf("port %d: %d frames too many: %x\nreplay: %s", p, len(got.Frames), got.Frames[0].Data, replay)
		}
	}
}

// The same packets on real interfaces, where the kernel takes VLAN tags off
// frames and frames may be of any length.
func TestReal_Router(t *testing.T) {
	for n := range max(*rounds/4, 1) {
		s := *seed + uint64(n)
		replay := fmt.Sprintf("go test ./p4/ebpf -run TestReal_Router -seed %d -rounds 1", s)
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			b := newBench(t, load(t, "testdata/router.json"), Config{})
			m := maker{Rand: rand.New(rand.NewPCG(s, 2))}
			for range 60 {
				b.apply(t, datapath.Insert, routerEntry(m))
			}
			for range 200 {
				frame := routed(m)
				// Jumbo frames cannot grow or shrink by other than multiples of 4.
				if m.IntN(10) == 0 && (etherType(frame, 12) == 0x0800 || etherType(frame, 16) == 0x0800) {
					frame = append(frame, make([]byte, 20000+m.IntN(40000))...)
				}
				if m.IntN(10) == 0 {
					frame = frame[:min(len(frame), shortest+m.IntN(30))]
				}
				b.check(t, datapath.Port(m.Pick(1, 2, 3)), frame, replay)
			}
			b.quiet(t, replay)
			b.compareCounters(t, nil, replay)
		})
	}
}

func TestReal_Bifrost(t *testing.T) {
	for n := range max(*rounds/4, 1) {
		s := *seed + uint64(n)
		replay := fmt.Sprintf("go test ./p4/ebpf -run TestReal_Bifrost -seed %d -rounds 1", s)
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			b := newBench(t, bifrost(t), Config{CPUPort: p4.CPUPort})
			m := maker{Rand: rand.New(rand.NewPCG(s, 3))}
			for range 200 {
				b.apply(t, datapath.Insert, m.Entry())
			}
			for range 200 {
				in := datapath.Port(m.Port())
				frame := m.Packet(in)
				if m.IntN(10) == 0 {
					frame = frame[:min(len(frame), shortest+m.IntN(60))]
				}
				b.check(t, in, frame, replay)
			}
			b.quiet(t, replay)
			b.compareCounters(t, nil, replay)
		})
	}
}

// On kernels before 6.6 the programs are attached with clsact. It leaves what it
// finds, takes the place of what a killed switch has left, and removes itself.
func TestReal_Clsact(t *testing.T) {
	b := newBench(t, bifrost(t), Config{CPUPort: p4.CPUPort, noTCX: true})
	m := maker{Rand: rand.New(rand.NewPCG(*seed, 4))}
	for range 100 {
		b.apply(t, datapath.Insert, m.Entry())
	}
	for range 50 {
		in := datapath.Port(m.Port())
		b.check(t, in, m.Packet(in), "go test ./p4/ebpf -run TestReal_Clsact")
	}
	b.quiet(t, "")
	near, err := netlink.LinkByName("near1")
	if err != nil {
		t.Fatal(err)
	}
	filters := func() int {
		fs, err := netlink.FilterList(near, netlink.HANDLE_MIN_INGRESS)
		if err != nil {
			t.Fatal(err)
		}
		return len(fs)
	}
	port := b.kernel.ports[1]
	if again, err := port.x.attachIngress(port.num, port.index, port.stub); err != nil || filters() != 1 {
		t.Fatalf("%v, %v: %d filters after attaching twice", again, err, filters())
	}
	if err := b.kernel.DetachPort(1); err != nil {
		t.Fatal(err)
	}
	if n := filters(); n != 0 {
		t.Errorf("%d filters are left", n)
	}
	qs, err := netlink.QdiscList(near)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qs {
		if q.Type() == "clsact" {
			t.Error("clsact is left")
		}
	}
}
