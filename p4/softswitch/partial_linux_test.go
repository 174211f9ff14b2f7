package softswitch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/softswitch/afpacket"
	"github.com/bifrost-rack/bifrost/p4/softswitch/offload"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Where the destination address of an IPv6 packet is, and in it the operation that a
// memory request asks for.
const (
	dstAt   = 14 + 24
	opAt    = dstAt + 6
	opRead  = 2
	opWrite = 3
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
			r := newSwitchOn(t, load, p4.JSON, p4.Info, "BifrostIngress.")
			a, b := newLab(t, 1500), newLab(t, 1500)
			r.plugIn(1, a)
			r.plugIn(2, b)
			src, target := a.addr.As16(), [16]byte{0xfd, 0, 0, 0, 0, 1, opRead, 0, 0, 0, 0, 0, 0, 0, 0x10, 0}
			r.write(p4v1.Update_INSERT,
				r.entry("dsm_home", "to_hop", [][]byte{{0, 2}}, datapath.Match{Value: target[:6]}))
			r.write(p4v1.Update_MODIFY,
				r.entry("identity", "known", p4.Known(p4.Node, 1, 0), datapath.Match{Value: []byte{0, 1}}, datapath.Match{Value: src[:], PrefixLen: 128}))
			id := uint64(dsmpacket.FromAddr(netip.AddrFrom16(target)).ID()) // the sender has the region, and has lent it: it may read only
			word := binary.BigEndian.AppendUint64(nil, id&(1<<dsmpacket.GenerationBits-1)<<32|1<<20|1)[1:]
			e := *r.sw.exec.Load()
			if err := errors.Join(e.SetRegister("BifrostIngress.rights.switch_state", 1, []byte{7: 1}),
				e.SetRegister("BifrostIngress.rights.words", int(id>>dsmpacket.GenerationBits), word)); err != nil {
				t.Fatal(err)
			}
			out, in := rawSocket(t, a), rawSocket(t, b)
			request := func(id uint64) []byte {
				payload := (&dsmpacket.Header{Kind: dsmpacket.Request, Request: id, Length: 64}).Append(nil)
				return frame.UDP6{
					DstMAC: frame.MAC{2, 0, 0, 0, 0, 0xff}, SrcMAC: frame.MAC(a.mac), Payload: append(payload, make([]byte, 8)...),
					Src: netip.AddrPortFrom(a.addr, 45101), Dst: netip.AddrPortFrom(netip.AddrFrom16(target), 45101),
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
				if got[opAt] != opRead {
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
		if c[opAt] == opWrite && c[opAt+1] == 0 {
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
