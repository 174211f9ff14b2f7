//go:build linux

package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
)

// copier makes groups, sessions and packets for copies.p4.
type copier struct{ *rand.Rand }

func (r copier) replicas() (rs []datapath.Replica) {
	for range r.IntN(5) {
		rs = append(rs, datapath.Replica{Port: datapath.Port(1 + r.IntN(6)), Instance: uint32(r.IntN(1 << 16))})
	}
	return rs
}

// configure gives both executors the same groups and sessions, and tells whether
// sessions cut their copies.
func (r copier) configure(t *testing.T, p *pair) (cut bool) {
	group, first, second := r.replicas(), r.replicas(), r.replicas()
	length := 0
	if cut = r.IntN(2) == 0; cut {
		length = 40 + r.IntN(100)
	}
	p.Both(t, func(x datapath.Datapath) error {
		return errors.Join(x.Multicast(7, group), x.Clone(5, first, length), x.Clone(6, second, 0))
	})
	return cut
}

// packet is a packet of up to so many bytes.
func (r copier) packet(most int, cut bool) []byte {
	frame := make([]byte, 58+r.IntN(most-58))
	for i := range frame {
		frame[i] = byte(r.Uint32())
	}
	frame[0], frame[1] = byte(r.IntN(13)), byte(r.IntN(5))
	frame[12], frame[13] = 8, 0
	if frame[0] == 7 { // the program truncates to 9 bytes, too few for the kernel
		frame[0] = 4
	}
	if cut && frame[1] == 1 {
		frame[1] = 0 // what is cut off a clone of egress is missing in other copies
	}
	return frame
}

// Clones, copies of a group, packets that are resubmitted, recirculated or cut:
// the same copies leave both executors, whatever their order.
func TestDifferential_Copies(t *testing.T) {
	prog := load(t, "../interp/testdata/copies.json")
	for s, replay := range seeds(t, max(*rounds/3, 2)) {
		p := newPair(t, prog, datapath.Port(s%2*4))
		p.Unordered = true
		r := copier{rand.New(rand.NewPCG(s, 0))}
		for range 20 {
			cut := r.configure(t, p)
			for range 20 {
				p.Check(t, datapath.Port(1+r.IntN(3)), r.packet(360, cut), replay)
			}
		}
	}
}

// The same on real interfaces, where the kernel clones frames of any length, with
// and without a VLAN tag, and a replica's port may be absent.
func TestReal_Copies(t *testing.T) {
	const cpu = 6
	b := newBench(t, load(t, "../interp/testdata/copies.json"), Config{CPUPort: cpu})
	r := copier{rand.New(rand.NewPCG(*seed, 5))}
	replay := fmt.Sprintf("go test ./p4switch/ebpf -run TestReal_Copies -seed %d", *seed)
	for range 30 {
		cut := r.configure(t, b.pair)
		for range 10 {
			frame := r.packet([]int{200, 2000, 15000}[r.IntN(3)], cut)
			if r.IntN(3) == 0 {
				frame[12], frame[13] = 0x81, 0
			}
			b.checkCopies(t, datapath.Port(1+r.IntN(3)), frame, replay)
		}
	}
	b.Quiet(t, replay)
}

// checkCopies sends a frame, and compares all that comes out of each port.
func (b *bench) checkCopies(t *testing.T, in datapath.Port, frame []byte, replay string) {
	t.Helper()
	want := map[datapath.Port][][]byte{}
	b.Golang.Process(in, bytes.Clone(frame), func(p datapath.Port, f []byte) { want[p] = append(want[p], bytes.Clone(f)) })
	if err := b.Far[in].Send(afpacket.Frame{Data: frame}); err != nil {
		t.Fatal(err)
	}
	for p := datapath.Port(1); p <= compare.Ports; p++ {
		got := b.receive(p, len(want[p]))
		slices.SortFunc(got, bytes.Compare)
		slices.SortFunc(want[p], bytes.Compare)
		if !slices.EqualFunc(got, want[p], bytes.Equal) {
			t.Fatalf("port %d, packet of %d bytes %x\nport %d: kernel %x\n            Go %x\nreplay: %s", in, len(frame), head(frame), p, heads(got), heads(want[p]), replay)
		}
	}
	toCPU := b.G.Take()
	var got []string
	for deadline := time.Now().Add(patience); len(got) < len(toCPU) && time.Now().Before(deadline); runtime.Gosched() {
		got = append(got, b.K.Take()...)
	}
	slices.Sort(got)
	slices.Sort(toCPU)
	if !slices.Equal(got, toCPU) {
		t.Fatalf("port %d, packet of %d bytes %x\nto the CPU port: kernel %.400q\n                     Go %.400q\nreplay: %s", in, len(frame), head(frame), got, toCPU, replay)
	}
}

// receive is what comes out of a port, up to a number of frames.
func (b *bench) receive(port datapath.Port, n int) (frames [][]byte) {
	for try := 0; len(frames) < n && try < 20; try++ {
		got, err := b.Far[port].Receive(b.Buf)
		if err != nil && !errors.Is(err, afpacket.ErrTimeout) {
			break
		}
		for _, f := range got.Frames {
			frames = append(frames, bytes.Clone(f.Data))
		}
	}
	return frames
}

func heads(fs [][]byte) (hs [][]byte) {
	for _, f := range fs {
		hs = append(hs, head(f))
	}
	return hs
}

// A group may have as many replicas as a list holds, and is refused whole beyond.
func TestMulticast_LargeGroups(t *testing.T) {
	p := newPairWith(t, load(t, "../interp/testdata/copies.json"), Config{Copies: maxReplicas})
	p.Unordered = true
	var all []datapath.Replica
	for i := range uint32(maxReplicas + 1) {
		all = append(all, datapath.Replica{Port: datapath.Port(1 + i%500), Instance: i})
	}
	frame := make([]byte, 200)
	frame[0] = 4
	for _, n := range []int{0, 200, 300, maxReplicas} {
		p.Both(t, func(x datapath.Datapath) error { return x.Multicast(7, all[:n]) })
		p.Check(t, 1, frame, "")
	}
	if err := p.kernel.Multicast(7, all); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("%d replicas: %v", len(all), err)
	}
	p.Check(t, 1, frame, "") // as before
	if err := p.kernel.Multicast(8, []datapath.Replica{{Port: numPorts}}); err == nil {
		t.Error("a replica for a port that there cannot be")
	}
	for _, id := range []uint32{0, maxGroup + 1} {
		if err := p.kernel.Multicast(id, all[:1]); !errors.Is(err, datapath.ErrUnsupported) {
			t.Errorf("group %d: %v", id, err)
		}
	}
	if err := p.kernel.Clone(maxSession+1, all[:1], 0); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("session: %v", err)
	}
}

// Copies of what comes from the CPU port, and what the program reads of headers that
// are not valid, after packets in which they were.
func TestDifferential_CPU(t *testing.T) {
	p := newPair(t, load(t, "testdata/cpu.json"), 510)
	copied(t, p)
	r := rand.New(rand.NewPCG(*seed, 8))
	for range 300 {
		in, frame := fromCPU(r)
		p.Check(t, in, frame, fmt.Sprintf("go test ./p4switch/ebpf -run TestDifferential_CPU -seed %d", *seed))
	}
}

// copied gives both executors the group and the session of testdata/cpu.p4 and testdata/stacks.p4.
func copied(t *testing.T, p *pair) {
	t.Helper()
	p.Unordered = true
	p.Both(t, func(x datapath.Datapath) error {
		return errors.Join(x.Multicast(7, []datapath.Replica{{Port: 2}, {Port: 3}}), x.Clone(5, []datapath.Replica{{Port: 4}}, 0))
	})
}

// fromCPU is a packet of testdata/cpu.p4, from CPU port 510 or port 1.
func fromCPU(r *rand.Rand) (in datapath.Port, frame []byte) {
	in, frame = 1, randomFrame(r, 60+r.IntN(60))
	eth := frame
	if r.IntN(2) == 0 {
		in, eth = 510, frame[6:]
	}
	eth[0] = byte(r.IntN(6))
	if r.IntN(2) == 0 {
		eth[12], eth[13] = 0x12, 0x34
	}
	return in, frame
}

// A field of a header that the program has made invalid keeps its value, as in bmv2; one of
// a header that the packet does not have reads as 0, also if the packet before had it.
func TestInvalidHeadersKeepTheirFields(t *testing.T) {
	p := newPair(t, load(t, "testdata/cpu.json"), 510)
	for n, order := range []byte{0, 0, 4} { // valid, not parsed, made invalid
		frame := append([]byte{order, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 1, 2, 3, 4}, make([]byte, 60)...)
		if n == 1 {
			frame[12] = 0
		}
		kernel, golang, _ := p.Differs(1, frame)
		for _, got := range [][]string{kernel, golang} {
			if want := "out 2: 00000000" + []string{"01020304", "00000000", "01020304"}[n]; len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("packet %d: %v, want %s…", n, got, want)
			}
		}
	}
}
