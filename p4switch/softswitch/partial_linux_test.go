package softswitch

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Where the destination address of an IPv6 packet is, and in it the operation that a
// memory request asks for.
const (
	dstAt = 14 + 24
	opAt  = dstAt + 6
)

// A sender tells the kernel to write a checksum where the request's operation is, so
// that what it judges to be a read would arrive as a write. It must not, on either
// executor. Nor does a read arrive whose header's first bytes are to be written: the program
// changes nothing behind them, so only what it looks at tells. Reads whose UDP checksum is
// to be written do arrive.
func TestKernel_ReadDoesNotArriveAsWrite(t *testing.T) {
	needRoot(t)
	for name, load := range map[string]Loader{"ebpf": LoadEBPF, "go": LoadGo} {
		t.Run(name, func(t *testing.T) {
			r := newSwitchOn(t, load, sample.JSON, sample.Info, sample.Prefix)
			a, b := newLab(t, 1500), newLab(t, 1500)
			r.plugIn(1, a)
			r.plugIn(2, b)
			src, region := a.addr.As16(), sample.Region{Slot: 7, Generation: 1}
			target := region.Address(sample.Read).As16()
			r.write(p4v1.Update_INSERT,
				r.entry("home", "to_hop", [][]byte{{0, 2}}, datapath.Match{Value: sample.Machine()}))
			r.write(p4v1.Update_MODIFY,
				r.entry("identity", "known", sample.Row(1), datapath.Match{Value: []byte{0, 1}}, datapath.Match{Value: src[:], PrefixLen: 128}))
			e := *r.sw.exec.Load() // the sender has the region, and has lent it: it may read only
			if err := e.SetRegister(sample.Prefix+"words", int(region.Slot), region.Word(1, 1)); err != nil {
				t.Fatal(err)
			}
			out, in := rawSocket(t, a), rawSocket(t, b)
			request := func(number uint64) []byte {
				return frame.UDP6{
					DstMAC: frame.MAC{2, 0, 0, 0, 0, 0xff}, SrcMAC: frame.MAC(a.mac), Payload: sample.Request(number, 8),
					Src: netip.AddrPortFrom(a.addr, sample.PortMemory), Dst: netip.AddrPortFrom(netip.AddrFrom16(target), sample.PortMemory),
				}.Append(nil)
			}
			lie := request(1)
			becomesWrite(lie)
			honest := request(2)
			copy(honest[54+6:], pseudoSum(honest))
			for _, f := range []afpacket.Frame{
				{Data: lie, Header: offload.Header{Flags: offload.NeedsChecksum, CsumStart: dstAt, CsumOffset: opAt - dstAt}},
				{Data: request(3), Header: offload.Header{Flags: offload.NeedsChecksum, CsumStart: 54, CsumOffset: 8}},
				{Data: honest, Header: offload.Header{Flags: offload.NeedsChecksum, CsumStart: 54, CsumOffset: 6}},
			} {
				if err := out.Send(f); err != nil {
					t.Fatal(err)
				}
			}
			want := request(2)
			for {
				got := finished(t, in)
				if len(got) < opAt || !bytes.Equal(got[dstAt:opAt], target[:6]) {
					continue // not a request
				}
				if got[opAt] != sample.Read {
					t.Fatalf("a request with operation %d has arrived: % x", got[opAt], got)
				}
				if !bytes.Equal(got[22:], want[22:]) {
					t.Errorf("got % x, want % x", got, want)
				}
				return
			}
		})
	}
}

// becomesWrite makes the sum of a frame's bytes from the destination address on one
// that, written where the operation is, makes it a write.
func becomesWrite(b []byte) {
	for v := range 1 << 16 {
		binary.BigEndian.PutUint16(b[len(b)-2:], uint16(v))
		c := slices.Clone(b)
		_, _ = offload.Receive(offload.Header{Flags: offload.NeedsChecksum, CsumStart: dstAt, CsumOffset: opAt - dstAt}, c, nil,
			func(offload.Header, []byte) {})
		if c[opAt] == sample.Write && c[opAt+1] == 0 {
			return
		}
	}
	panic("no sum does")
}

// pseudoSum is what a sender that leaves the checksum to others puts in its place.
func pseudoSum(b []byte) []byte {
	var sum uint32
	for at := 22; at < 54; at += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[at:]))
	}
	sum += uint32(len(b)-54) + 17
	sum = sum>>16 + sum&0xffff
	return binary.BigEndian.AppendUint16(nil, uint16(sum>>16+sum&0xffff))
}

// finished is the next frame at a host, as its applications would see it.
func finished(t *testing.T, s *afpacket.Socket) (frame []byte) {
	t.Helper()
	for range 50 {
		got, err := s.Receive(make([]afpacket.Frame, 0, 1))
		if err != nil || len(got.Frames) == 0 {
			continue
		}
		_, err = offload.Receive(got.Frames[0].Header, slices.Clone(got.Frames[0].Data), nil, func(_ offload.Header, b []byte) { frame = b })
		if err != nil {
			t.Fatal(err)
		}
		return frame
	}
	t.Fatal("nothing has come")
	return nil
}
