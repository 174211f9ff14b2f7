package afpacket

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
	"golang.org/x/sys/unix"
)

// fill makes slot i look as the kernel leaves it: the addresses, a gap, the rest.
func (b *batch) fill(i int, h offload.Header, frame []byte, aux *unix.TpacketAuxdata) {
	b.reset(BatchSize)
	h.Put(b.headers[i][:])
	n := copy(b.slot(i), frame[:min(macs, len(frame))])
	copy(b.slot(i)[macs+tag:], frame[n:])
	b.msgs[i].Len = uint32(offload.HeaderLen + len(frame))
	b.msgs[i].Hdr.SetControllen(0)
	if aux != nil {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&b.control[i][0]))
		c.Level, c.Type = unix.SOL_PACKET, unix.PACKET_AUXDATA
		*(*unix.TpacketAuxdata)(unsafe.Pointer(&b.control[i][unix.SizeofCmsghdr])) = *aux
		b.msgs[i].Hdr.SetControllen(control)
	}
}

func TestBatch_Frames(t *testing.T) {
	frame := []byte("dstMACsrcMAC\x88\xb5 and some payload")
	for name, tc := range map[string]struct {
		aux  *unix.TpacketAuxdata
		want string
	}{
		"no auxiliary data": {nil, string(frame)},
		"no tag":            {&unix.TpacketAuxdata{Status: unix.TP_STATUS_USER}, string(frame)},
		"802.1Q":            {&unix.TpacketAuxdata{Status: unix.TP_STATUS_VLAN_VALID, Vlan_tci: 0x2005}, "dstMACsrcMAC\x81\x00\x20\x05\x88\xb5 and some payload"},
		"802.1ad": {
			&unix.TpacketAuxdata{Status: unix.TP_STATUS_VLAN_VALID | unix.TP_STATUS_VLAN_TPID_VALID, Vlan_tci: 7, Vlan_tpid: 0x88a8},
			"dstMACsrcMAC\x88\xa8\x00\x07\x88\xb5 and some payload",
		},
	} {
		b := newBatch()
		h := offload.Header{Flags: offload.NeedsChecksum, CsumStart: 34, CsumOffset: 6, HdrLen: 42}
		b.fill(3, h, frame, tc.aux)
		f, ok := b.frame(3)
		if !ok || string(f.Data) != tc.want {
			t.Errorf("%s: got %q, %v", name, f.Data, ok)
		}
		if shift := len(tc.want) - len(frame); int(f.Header.CsumStart) != 34+shift || int(f.Header.HdrLen) != 42+shift {
			t.Errorf("%s: header %+v", name, f.Header)
		}
	}
}

func TestBatch_ShortAndOversizeFrames(t *testing.T) {
	b := newBatch()
	for n := range macs + 1 {
		b.fill(0, offload.Header{}, bytes.Repeat([]byte{1}, n), nil)
		if f, ok := b.frame(0); !ok || len(f.Data) != n {
			t.Errorf("frame of %d bytes: %d, %v", n, len(f.Data), ok)
		}
	}
	b.fill(0, offload.Header{}, make([]byte, 60), nil)
	b.msgs[0].Hdr.Flags = unix.MSG_TRUNC
	if _, ok := b.frame(0); ok {
		t.Error("a truncated frame has been accepted")
	}
}
