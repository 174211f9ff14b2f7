//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/vishvananda/netlink"
)

// patience bounds what must come on a busy machine.
const patience = compare.Patience

// bench is a switch on veth pairs in a namespace of its own, and the far ends.
type bench struct {
	*compare.Cables
	pair *pair
}

func newBench(t *testing.T, prog *v1model.Program, cfg Config) *bench {
	t.Helper()
	compare.Namespace(t)
	p := newPairWith(t, prog, cfg)
	return &bench{compare.Lay(t, &p.Pair, func(port datapath.Port, name string) error { return p.kernel.AttachPort(port, name, false) }), p}
}

func etherType(b []byte, at int) uint16 { return binary.BigEndian.Uint16(b[at:]) }

func head(b []byte) []byte { return b[:min(len(b), 200)] }

// The same packets on real interfaces, where the kernel takes VLAN tags off
// frames and frames may be of any length.
func TestReal_Router(t *testing.T) {
	for n := range max(*rounds/4, 1) {
		s := *seed + uint64(n)
		replay := fmt.Sprintf("go test ./p4switch/ebpf -run TestReal_Router -seed %d -rounds 1", s)
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			b := newBench(t, load(t, "testdata/router.json"), Config{})
			m := maker{Rand: rand.New(rand.NewPCG(s, 2))}
			for range 60 {
				b.Update(t, datapath.Insert, routerEntry(m))
			}
			for range 200 {
				frame := routed(m)
				// Jumbo frames cannot grow or shrink by other than multiples of 4.
				if m.IntN(10) == 0 && (etherType(frame, 12) == 0x0800 || etherType(frame, 16) == 0x0800) {
					frame = append(frame, make([]byte, 20000+m.IntN(40000))...)
				}
				if m.IntN(10) == 0 {
					frame = frame[:min(len(frame), compare.Shortest+m.IntN(30))]
				}
				b.Check(t, datapath.Port(m.Pick(1, 2, 3)), frame, replay)
			}
			b.Quiet(t, replay)
			b.Counters(t, nil, replay)
		})
	}
}

// On kernels before 6.6 the programs are attached with clsact. It leaves what it
// finds, takes the place of what a killed switch has left, and removes itself.
func TestReal_Clsact(t *testing.T) {
	b := newBench(t, load(t, "testdata/router.json"), Config{noTCX: true})
	m := maker{Rand: rand.New(rand.NewPCG(*seed, 4))}
	for range 60 {
		b.Update(t, datapath.Insert, routerEntry(m))
	}
	for range 50 {
		b.Check(t, datapath.Port(m.Pick(1, 2, 3)), routed(m), "go test ./p4switch/ebpf -run TestReal_Clsact")
	}
	b.Quiet(t, "")
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
	port := b.pair.kernel.ports[1]
	if again, err := port.x.attachIngress(port.num, port.index, port.stub); err != nil || filters() != 1 {
		t.Fatalf("%v, %v: %d filters after attaching twice", again, err, filters())
	}
	if err := b.pair.kernel.DetachPort(1); err != nil {
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

// A frame that gets shorter or longer behind a VLAN tag, which the kernel keeps beside the frame.
func TestReal_Tagged(t *testing.T) {
	b := newBench(t, load(t, "testdata/ways.json"), Config{})
	m := maker{Rand: rand.New(rand.NewPCG(*seed, 3))}
	for n := range 300 {
		frame := make([]byte, 60+m.IntN(400))
		for i := range frame {
			frame[i] = byte(m.Uint32())
		}
		frame[0] &^= 1
		binary.BigEndian.PutUint16(frame[12:], uint16(m.Pick(0x8100, 0x88a8, 0x9999)))
		frame[14] &= 1
		if n == 0 {
			frame = frame[:74]
			binary.BigEndian.PutUint16(frame[12:], 0x8100)
			frame[14], frame[15] = 0, 0x45
		}
		b.Check(t, datapath.Port(m.Pick(1, 2, 3)), frame, fmt.Sprintf("go test ./p4switch/ebpf -run TestReal_Tagged -seed %d", *seed))
	}
	b.Quiet(t, "")
}
