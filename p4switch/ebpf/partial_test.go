//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
	"golang.org/x/sys/unix"
)

// unloaded makes frames for offload.p4 that leave work to the card.
type unloaded struct {
	*rand.Rand
	super bool // super-packets too
}

// frame is a frame and what is left to do of it.
func (r unloaded) frame() (offload.Header, []byte) {
	payload := make([]byte, 40+r.IntN([]int{60, 1000, 9000}[r.IntN(3)]))
	for i := range payload {
		payload[i] = byte(r.Uint32())
	}
	b := frame.UDP6{
		Src: netip.MustParseAddrPort("[fd00::1]:1000"), Dst: netip.MustParseAddrPort("[fd00::2]:2000"), Payload: payload,
	}.Append(nil)
	b[0] = byte(r.IntN(15))
	kind := r.IntN(5)
	b[20] = []byte{6, 17, 17, 58}[r.IntN(4)]
	if kind == 0 && r.super {
		b[20] = []byte{6, 17}[r.IntN(2)]
	}
	h := offload.Header{Flags: offload.NeedsChecksum, CsumStart: 54, CsumOffset: 6}
	if b[20] == 6 {
		h.CsumOffset = 16
		b[54+12] = 0x50 // no options
	}
	pseudo := frame.Sum(uint64(len(b)-54)+uint64(b[20]), b[22:54]) // which is what a sender leaves in the place of the checksum
	binary.BigEndian.PutUint16(b[54+h.CsumOffset:], frame.Fold(pseudo))
	segment := 100 + r.IntN(900)
	switch {
	case kind == 0 && r.super && b[20] == 6 && len(payload) > segment+12:
		h.GSO, h.GSOSize, h.HdrLen = offload.GSOTCPv6, uint16(segment), 74
	case kind == 0 && r.super && b[20] == 17 && len(payload) > segment:
		h.GSO, h.GSOSize, h.HdrLen = offload.GSOUDPL4, uint16(segment), 62
	case kind == 1 || kind == 2: // anywhere
		h.CsumStart = uint16(20 + r.IntN(50)) // the kernel refuses what is before
		h.CsumOffset = uint16(r.IntN(30))
	case kind == 3:
		return offload.Header{}, b
	}
	if r.IntN(4) == 0 {
		b = slices.Insert(b, 12, 0x81, 0, 0, 7)
		h.CsumStart += vlanLen
		h.HdrLen += vlanLen
	}
	return h, b
}

// finish makes packets as a cable would carry them, in the order of their bytes; but TCP super-packets stay whole.
func finish(t *testing.T, h offload.Header, b []byte) (packets [][]byte) {
	t.Helper()
	_, err := offload.Receive(h, bytes.Clone(b), nil, func(_ offload.Header, f []byte) { packets = append(packets, bytes.Clone(f)) })
	if err != nil {
		t.Fatal(err)
	}
	return packets
}

// segments are those of a frame of finish: of a TCP super-packet over IPv6, each with its part of the data. A program may have made
// something else of it, which nobody can cut.
func segments(h offload.Header, b []byte) (packets [][]byte) {
	l3 := 14
	if etherType(b, 12) == 0x8100 {
		l3 += vlanLen
	}
	l4, headers := l3+40, l3+60 // no options
	if h.Kind() != offload.GSOTCPv6 || len(b) < headers || etherType(b, l3-2) != 0x86dd || b[l3+6] != 6 || b[l4+12] != 0x50 {
		return [][]byte{b}
	}
	for at := headers; at < len(b); at += int(h.GSOSize) {
		end := min(at+int(h.GSOSize), len(b))
		s := append(bytes.Clone(b[:headers]), b[at:end]...)
		tcp := s[l4:]
		binary.BigEndian.PutUint16(s[l3+4:], uint16(len(tcp)))
		binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+uint32(at-headers))
		if at > headers {
			tcp[13] &^= 0x80 // CWR is the first one's
		}
		if end < len(b) {
			tcp[13] &^= 0x09 // FIN and PSH are the last one's
		}
		tcp[16], tcp[17] = 0, 0
		binary.BigEndian.PutUint16(tcp[16:], ^frame.Fold(frame.Sum(frame.Sum(uint64(len(tcp)+6), s[l3+8:l4]), tcp)))
		packets = append(packets, s)
	}
	return packets
}

// end is the far end of a port.
type end interface {
	Send(f afpacket.Frame) error
	Receive(buf []afpacket.Frame) (afpacket.Received, error)
}

// tunEnd is that of a TUN device that takes and gives what is left to do (IFF_VNET_HDR).
type tunEnd struct{ *os.File }

// Send sends a packet whose protocol nobody knows.
func (e tunEnd) Send(f afpacket.Frame) error {
	b := make([]byte, tunInfo+offload.HeaderLen)
	binary.BigEndian.PutUint16(b[2:], 0x88b5)
	f.Header.Put(b[tunInfo:])
	_, err := e.Write(append(b, f.Data...))
	return err
}

// Receive gives one packet; it waits for at most a tenth of a second.
func (e tunEnd) Receive(buf []afpacket.Frame) (got afpacket.Received, err error) {
	b := make([]byte, 1<<16)
	if err := e.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return got, err
	}
	n, err := e.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return got, afpacket.ErrTimeout
	}
	if err != nil || n < tunInfo+offload.HeaderLen {
		return got, fmt.Errorf("%d bytes: %w", n, err)
	}
	got.Frames = append(buf, afpacket.Frame{Header: offload.Parse(b[tunInfo:]), Data: b[tunInfo+offload.HeaderLen : n]})
	return got, nil
}

// What a sender leaves to the card is done as if it had been done before the packet
// came, or the packet is dropped and counted: checksums at any place, super-packets,
// tags, copies, headers that come, go and change. It is so, too, if the card of the egress port leaves it to the kernel.
func TestReal_Offload(t *testing.T) {
	for _, card := range []bool{true, false} {
		t.Run(fmt.Sprintf("card=%t", card), func(t *testing.T) {
			b := newBench(t, load(t, "testdata/offload.json"), Config{})
			var ends [compare.Ports + 1]end
			for i := 1; i <= compare.Ports; i++ {
				ends[i] = b.Far[i]
				if !card {
					compare.Feature(t, fmt.Sprintf("near%d", i), false, "tx-checksum-ip-generic")
				}
			}
			kinds := testOffload(t, b.pair, ends, "go test ./p4switch/ebpf -run TestReal_Offload")
			for _, kind := range []string{"partial=0 gso=0", "partial=1 gso=0", "partial=1 gso=4", "partial=1 gso=5"} {
				if kinds[kind] == 0 {
					t.Errorf("%s: no packet has come", kind)
				}
			}
		})
	}
}

// A super-packet that is a list of packets with headers of their own (rx-gro-list) is dropped and counted: the kernel would send all but the first as they came.
func TestReal_ListOfPackets(t *testing.T) {
	b := newBench(t, load(t, "testdata/offload.json"), Config{})
	compare.Feature(t, "near1", true, "rx-gro", "rx-gro-list")
	for _, name := range []string{"far1", "near2"} {
		compare.Feature(t, name, false, "tx-udp-segmentation", "tx-gso-list") // which get packets, one behind the other
	}
	const hops = 64
	f := frame.UDP6{
		Src: netip.MustParseAddrPort("[fd00::1]:1000"), Dst: netip.MustParseAddrPort("[fd00::2]:2000"), Payload: make([]byte, 5000), HopLimit: hops,
	}.Append(nil)
	f[0] = 0 // which is sent to port 2
	binary.BigEndian.PutUint16(f[54+6:], frame.Fold(frame.Sum(uint64(len(f)-54+17), f[22:54])))
	h := offload.Header{Flags: offload.NeedsChecksum, CsumStart: 54, CsumOffset: 6, GSO: offload.GSOUDPL4, GSOSize: 1000, HdrLen: 62}
	for end := time.Now().Add(patience); b.pair.kernel.PortCounts(1).RxOffload == 0; {
		if time.Now().After(end) {
			t.Fatal("no list was dropped")
		}
		if err := b.Far[1].Send(afpacket.Frame{Data: f, Header: h}); err != nil {
			t.Fatal(err)
		}
		got, err := b.Far[2].Receive(b.Buf)
		if err != nil && !errors.Is(err, afpacket.ErrTimeout) {
			t.Fatal(err)
		}
		for _, o := range got.Frames {
			if n := o.Data[21]; n != hops-1 {
				t.Fatalf("a packet leaves with %d hops left, and came with %d: %+v, %x", n, hops, o.Header, head(o.Data))
			}
		}
	}
}

// TestReal_Offload on devices without Ethernet header.
func TestReal_OffloadWithoutEthernet(t *testing.T) {
	compare.Namespace(t)
	p := newPair(t, load(t, "testdata/offload.json"), 0)
	var ends [compare.Ports + 1]end
	for i := 1; i <= compare.Ports; i++ {
		name := fmt.Sprintf("tun%d", i)
		ends[i] = tunEnd{openTun(t, p.kernel, name, unix.IFF_VNET_HDR)}
		if err := p.kernel.AttachPort(datapath.Port(i), name, false); err != nil {
			t.Fatal(err)
		}
	}
	if testOffload(t, p, ends, "go test ./p4switch/ebpf -run TestReal_OffloadWithoutEthernet")["partial=1 gso=0"] == 0 {
		t.Error("no packet has come")
	}
}

// testOffload compares what becomes of generated frames, and tells how many packets
// of each kind came.
func testOffload(t *testing.T, b *pair, ends [compare.Ports + 1]end, replay string) (came map[string]int) {
	t.Helper()
	b.Both(t, func(x datapath.Datapath) error {
		return errors.Join(x.Multicast(7, []datapath.Replica{{Port: 2}, {Port: 3}, {Port: 4, Instance: 1}}),
			x.Clone(5, []datapath.Replica{{Port: 3}}, 0), x.Clone(6, []datapath.Replica{{Port: 4}}, 90))
	})
	_, tun := ends[1].(tunEnd) // which takes super-packets of IP only
	r := unloaded{rand.New(rand.NewPCG(*seed, 7)), !tun}
	c := offloads{pair: b, ends: ends, replay: fmt.Sprintf("%s -seed %d", replay, *seed), late: map[string]int{}}
	came = map[string]int{}
	dropped := 0
	for range 40 * max(*rounds, 10) {
		h, f := r.frame()
		n, drop := c.check(t, h, f)
		came[fmt.Sprintf("partial=%d gso=%d", h.Flags, h.GSO)] += n
		if drop {
			dropped++
		}
	}
	t.Logf("came %v, dropped %d", came, dropped)
	if dropped == 0 {
		t.Error("no packet was dropped")
	}
	return came
}

// offloads compares packets of which something is left to do.
type offloads struct {
	*pair
	ends   [compare.Ports + 1]end
	replay string
	// late are the copies that may still come of packets of which others were dropped.
	late map[string]int
}

// drops is how many packets and copies the kernel has dropped. One that is dropped on
// its way to a port may take others with it.
func (c *offloads) drops() (n uint64) {
	for p := range datapath.Port(compare.Ports + 1) {
		s := c.kernel.stats(p)
		n += s[nRxOffload/8] + s[nTxResize/8] + s[nTxTooLong/8]
	}
	return n
}

// check sends a frame, and compares what comes out. It tells how many packets came,
// and whether one was dropped.
func (c *offloads) check(t *testing.T, h offload.Header, f []byte) (came int, dropped bool) {
	t.Helper()
	var want [compare.Ports + 1]map[string]int
	for p := range want {
		want[p] = map[string]int{}
	}
	for _, whole := range finish(t, h, f) {
		c.Golang.Process(1, whole, func(p datapath.Port, o []byte) {
			for _, s := range segments(h, o) {
				want[p][fmt.Sprintf("port %d: %x", p, s)]++
			}
		})
	}
	before := c.drops()
	if err := c.ends[1].Send(afpacket.Frame{Data: f, Header: h}); err != nil {
		t.Fatalf("%+v, frame of %d bytes %x: %v", h, len(f), head(f), err)
	}
	fail := func(what string) {
		t.Fatalf("%s\nof %+v, frame of %d bytes %x\nGo: %v\nreplay: %s", what, h, len(f), head(f), want, c.replay)
	}
	for p := 2; p <= compare.Ports; p++ {
		for deadline := time.Now().Add(patience); len(want[p]) > 0 && !dropped; {
			if dropped = c.drops() > before; dropped {
				break
			}
			if time.Now().After(deadline) {
				fail(fmt.Sprintf("port %d: nothing comes", p))
			}
			r, err := c.ends[p].Receive(make([]afpacket.Frame, 0, 1))
			if err != nil && !errors.Is(err, afpacket.ErrTimeout) {
				t.Fatal(err)
			}
			for _, o := range r.Frames {
				for _, whole := range finish(t, o.Header, o.Data) {
					for _, s := range segments(o.Header, whole) {
						got := fmt.Sprintf("port %d: %x", p, s)
						came++
						if !take(want[p], got) && !take(c.late, got) {
							fail("kernel: " + got)
						}
					}
				}
			}
		}
		for o, n := range want[p] {
			c.late[o] += n
		}
	}
	return came, dropped
}

// take takes one of a kind away.
func take(from map[string]int, what string) bool {
	n := from[what]
	if n--; n == 0 {
		delete(from, what)
	} else if n > 0 {
		from[what] = n
	}
	return n >= 0
}
