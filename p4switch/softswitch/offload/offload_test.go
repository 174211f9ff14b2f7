package offload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// slow is the checksum as RFC 1071 writes it down.
func slow(b []byte) uint16 {
	var acc uint32
	for i := 0; i < len(b); i += 2 {
		v := uint32(b[i]) << 8
		if i+1 < len(b) {
			v |= uint32(b[i+1])
		}
		acc += v
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}

var (
	src = netip.MustParseAddrPort("[fd00::1]:1000")
	dst = netip.MustParseAddrPort("[fd00::2]:2000")
)

// partial is a UDP datagram whose checksum holds the pseudo header's sum only.
func partial(payload []byte) (frameBytes, whole []byte) {
	whole = frame.UDP6{Src: src, Dst: dst, Payload: payload}.Append(nil)
	b := bytes.Clone(whole)
	binary.BigEndian.PutUint16(b[14+40+6:], pseudo(b, 14, 54, protoUDP))
	return b, whole
}

func TestReceive_FinishesAPartialChecksum(t *testing.T) {
	for n := range 100 {
		b, want := partial(bytes.Repeat([]byte{byte(n), 0xa5, 3}, n))
		calls := 0
		_, err := Receive(Header{Flags: NeedsChecksum, CsumStart: 54, CsumOffset: 6}, b, nil, func(h Header, got []byte) {
			calls++
			if h != (Header{}) || !bytes.Equal(got, want) {
				t.Errorf("%d: got % x with %+v", n, got, h)
			}
		})
		if err != nil || calls != 1 {
			t.Errorf("%d: %v, %d packets", n, err, calls)
		}
	}
}

func TestReceive_LeavesWholePacketsAlone(t *testing.T) {
	b := []byte{1, 2, 3}
	_, err := Receive(Header{}, b, nil, func(h Header, got []byte) {
		if h != (Header{}) || &got[0] != &b[0] {
			t.Errorf("got % x with %+v", got, h)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// tagged puts a VLAN tag into a frame.
func tagged(b []byte) []byte {
	return append(append(bytes.Clone(b[:12]), 0x81, 0, 0, 7), b[12:]...)
}

func TestReceive_CutsUDPSuperPackets(t *testing.T) {
	payload := bytes.Repeat([]byte("0123456789"), 25)
	b, _ := partial(payload)
	for name, tc := range map[string]struct {
		frame []byte
		start uint16
	}{"plain": {b, 54}, "VLAN": {tagged(b), 58}} {
		var got []byte
		n := 0
		h := Header{Flags: NeedsChecksum, GSO: GSOUDPL4, GSOSize: 100, CsumStart: tc.start, CsumOffset: 6}
		scratch, err := Receive(h, tc.frame, nil, func(h Header, p []byte) {
			n++
			if tc.start == 58 {
				p = append(bytes.Clone(p[:12]), p[16:]...)
			}
			u, err := frame.ParseUDP6(p)
			if err != nil || h != (Header{}) {
				t.Fatalf("%s: packet %d: %v, %+v", name, n, err, h)
			}
			got = append(got, u.Payload...)
		})
		if err != nil || n != 3 || !bytes.Equal(got, payload) || len(scratch) == 0 {
			t.Errorf("%s: %d packets with %d bytes, %v", name, n, len(got), err)
		}
	}
}

func TestReceive_CutsIPv4(t *testing.T) {
	b := make([]byte, 14+20+8+25)
	b[12], b[13] = 8, 0
	ip := b[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, protoUDP
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(ip[4:], 0xffff)
	ids := []uint16{}
	h := Header{Flags: NeedsChecksum, GSO: GSOUDPL4, GSOSize: 10, CsumStart: 34, CsumOffset: 6}
	_, err := Receive(h, b, nil, func(_ Header, p []byte) {
		ip := p[14:]
		if s := slow(ip[:20]); s != 0xffff {
			t.Errorf("the IP header sums up to %#x", s)
		}
		if int(binary.BigEndian.Uint16(ip[2:])) != len(ip) || int(binary.BigEndian.Uint16(ip[24:])) != len(ip)-20 {
			t.Errorf("lengths % x", ip)
		}
		pseudoHeader := append(bytes.Clone(ip[12:20]), 0, protoUDP, ip[24], ip[25])
		if s := slow(append(pseudoHeader, ip[20:]...)); s != 0xffff {
			t.Errorf("UDP sums up to %#x", s)
		}
		ids = append(ids, binary.BigEndian.Uint16(ip[4:]))
	})
	if err != nil || len(ids) != 3 || ids[0] != 0xffff || ids[1] != 0 || ids[2] != 1 {
		t.Errorf("%v, identifications %v", err, ids)
	}
}

func TestReceive_RefusesWhatItCannotJudge(t *testing.T) {
	b, _ := partial(make([]byte, 100))
	for name, tc := range map[string]struct {
		h    Header
		want error
	}{
		"super-packet without checksum": {Header{GSO: GSOTCPv6, GSOSize: 100}, ErrHeader},
		"checksum outside":              {Header{Flags: NeedsChecksum, CsumStart: 160, CsumOffset: 6}, ErrHeader},
		"fragments":                     {Header{Flags: NeedsChecksum, GSO: GSOUDP, CsumStart: 54, CsumOffset: 6}, ErrKind},
		"segments of nothing":           {Header{Flags: NeedsChecksum, GSO: GSOUDPL4, CsumStart: 54, CsumOffset: 6}, ErrHeader},
		"UDP with TCP's checksum":       {Header{Flags: NeedsChecksum, GSO: GSOUDPL4, GSOSize: 9, CsumStart: 54, CsumOffset: 16}, ErrHeader},
		"transport before network":      {Header{Flags: NeedsChecksum, GSO: GSOUDPL4, GSOSize: 9, CsumStart: 20, CsumOffset: 6}, ErrHeader},
	} {
		_, err := Receive(tc.h, bytes.Clone(b), nil, func(Header, []byte) { t.Errorf("%s: a packet came out", name) })
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// tcp is a TCP super-packet with the pseudo header's sum as checksum.
func tcp() ([]byte, Header) {
	b := make([]byte, 14+40+20+3000)
	b[12], b[13], b[14], b[20] = 0x86, 0xdd, 0x60, protoTCP
	binary.BigEndian.PutUint16(b[18:], uint16(len(b)-54))
	b[37], b[53] = 1, 2
	for i := range b[74:] {
		b[74+i] = byte(i)
	}
	binary.BigEndian.PutUint16(b[54+16:], pseudo(b, 14, 54, protoTCP))
	return b, Header{Flags: NeedsChecksum, GSO: GSOTCPv6 | gsoECN, GSOSize: 1000, HdrLen: 74, CsumStart: 54, CsumOffset: 16}
}

// A TCP super-packet is whole while the program sees it, and leaves as it came.
func TestResume(t *testing.T) {
	b, h := tcp()
	want := bytes.Clone(b)
	_, err := Receive(h, b, nil, func(h Header, p []byte) {
		sumOf := append(append(bytes.Clone(p[22:54]), 0, 0, byte(len(p[54:])>>8), byte(len(p[54:])), 0, 0, 0, protoTCP), p[54:]...)
		if s := slow(sumOf); s != 0xffff {
			t.Errorf("the program sees a packet that sums up to %#x", s)
		}
		out, ok := h.Resume(p)
		if !ok || out != h || !bytes.Equal(p, want) {
			t.Errorf("left with %+v, %v", out, ok)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

func TestResume_RefusesWhatHasChangedItsForm(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"not IP":       func(b []byte) []byte { b[12] = 0x12; return b },
		"IPv4":         func(b []byte) []byte { b[14] = 0x45; return b },
		"UDP":          func(b []byte) []byte { b[20] = protoUDP; return b },
		"short":        func(b []byte) []byte { return b[:60] },
		"tag added":    tagged,
		"no IP at all": func(b []byte) []byte { return b[:14] },
	} {
		b, h := tcp()
		if _, ok := h.Resume(change(b)); ok {
			t.Errorf("%s: goes on as a super-packet", name)
		}
	}
	// TCP of which the program has seen nothing, behind what it took for something else.
	b, h := tcp()
	b[20] = protoUDP
	b, h.CsumStart = slices.Insert(b, 54, make([]byte, 8)...), h.CsumStart+8
	if _, ok := h.Resume(b); ok {
		t.Error("behind another header: a checksum is written after the program has judged")
	}
	if h, ok := (Header{}).Resume([]byte{1}); !ok || h != (Header{}) {
		t.Error("an ordinary packet is stopped")
	}
}

func TestHeader_RoundTrip(t *testing.T) {
	want := Header{1, 4, 74, 1000, 54, 16}
	var b [HeaderLen]byte
	want.Put(b[:])
	if got := Parse(b[:]); got != want {
		t.Errorf("got %+v", got)
	}
}

// FuzzReceive: whatever a header says, nothing panics, and what comes out is no
// longer than what came in.
func FuzzReceive(f *testing.F) {
	b, h := tcp()
	var hb [HeaderLen]byte
	h.Put(hb[:])
	f.Add(hb[:], b[:200])
	u, _ := partial(make([]byte, 300))
	Header{Flags: NeedsChecksum, GSO: GSOUDPL4, GSOSize: 100, CsumStart: 54, CsumOffset: 6}.Put(hb[:])
	f.Add(hb[:], u)
	f.Fuzz(func(t *testing.T, hdr, b []byte) {
		if len(hdr) < HeaderLen || len(b) > 1<<16 {
			return
		}
		n := len(b)
		_, _ = Receive(Parse(hdr), b, nil, func(h Header, p []byte) {
			if len(p) > n {
				t.Fatalf("%d bytes came out of %d", len(p), n)
			}
			h.Resume(p)
		})
	})
}

func BenchmarkFinishChecksum(b *testing.B) {
	for _, n := range []int{1400, 62000} {
		b.Run(byteCount(n), func(b *testing.B) {
			p, _ := partial(make([]byte, n))
			b.SetBytes(int64(n))
			for b.Loop() {
				complete(p[54:], 6)
			}
		})
	}
}

func byteCount(n int) string {
	if n < 10000 {
		return "1400B"
	}
	return "62000B"
}
