package frame

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

var (
	macA = MAC{2, 0, 0, 0, 0, 1}
	macB = MAC{2, 0, 0, 0, 0, 2}
)

func sample(n int) UDP6 {
	payload := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range payload {
		payload[i] = byte(r.Uint32())
	}
	return UDP6{
		DstMAC: macB, SrcMAC: macA, HopLimit: 9,
		Src: netip.MustParseAddrPort("[fd00:b1f0:0:2::1]:45101"), Dst: netip.MustParseAddrPort("[::1001:200:0:0:0:40]:45101"),
		Payload: payload,
	}
}

// reference is the sum of a packet as RFC 1071 writes it down.
func reference(ip []byte) uint16 {
	t := ip[IPv6Size:]
	words := append(bytes.Clone(ip[8:40]), 0, 0, byte(len(t)>>8), byte(len(t)), 0, 0, 0, ip[6])
	return slow(append(words, t...))
}

// slow is the sum word by word.
func slow(b []byte) uint16 {
	var s uint32
	for i, v := range b {
		s += uint32(v) << (8 * (1 - i%2))
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}

func TestUDPRoundTrip(t *testing.T) {
	lengths := []int{1472, 8952, 65487, 65527}
	for n := range 80 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		u := sample(n)
		b := u.Append([]byte("in front"))[len("in front"):]
		if len(b) != u.Size() {
			t.Fatalf("%d bytes: frame of %d, Size says %d", n, len(b), u.Size())
		}
		if s := reference(b[EthernetSize:]); s != 0xFFFF {
			t.Fatalf("%d bytes: checksum adds up to %#04x", n, s)
		}
		got, err := ParseUDP6(append(bytes.Clone(b), 0, 0, 0)) // with padding
		if err != nil || !reflect.DeepEqual(got, u) {
			t.Fatalf("%d bytes: got %+v, %v", n, got, err)
		}
	}
}

// TestGolden pins the bytes down; the checksum was computed by hand.
func TestGolden(t *testing.T) {
	u := UDP6{
		DstMAC: macB, SrcMAC: macA, Src: netip.MustParseAddrPort("[fe80::1]:1"), Dst: netip.MustParseAddrPort("[fe80::2]:2"),
		Payload: []byte{0, 3},
	}
	// 2*fe80 + 1 + 2 (addresses), a (length), 11 (protocol), 1 + 2 (ports), a (length), 3
	// = 1fd2e, folded fd2f, complement 02d0.
	want := "020000000002" + "020000000001" + "86dd" + "60000000" + "000a" + "11" + "40" +
		"fe800000000000000000000000000001" + "fe800000000000000000000000000002" + "0001" + "0002" + "000a" + "02d0" + "0003"
	if got := hex.EncodeToString(u.Append(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestZeroChecksum: a sum of zero is sent as 0xFFFF, and 0 is refused.
func TestZeroChecksum(t *testing.T) {
	u := sample(2)
	clear(u.Payload)
	b := u.Append(nil)
	copy(b[HeaderSize:], b[HeaderSize-2:HeaderSize]) // the checksum as data makes the sum zero
	if err := Fix(b); err != nil {
		t.Fatal(err)
	}
	if sum := b[HeaderSize-2 : HeaderSize]; !bytes.Equal(sum, []byte{0xFF, 0xFF}) {
		t.Fatalf("checksum %x, want ffff", sum)
	}
	if _, err := ParseUDP6(b); err != nil {
		t.Fatal(err)
	}
	b[HeaderSize-2], b[HeaderSize-1] = 0, 0
	if _, err := ParseUDP6(b); !errors.Is(err, ErrChecksum) {
		t.Errorf("no checksum: error %v", err)
	}
}

func TestEveryFlippedBitIsSeen(t *testing.T) {
	u := sample(37)
	b := u.Append(nil)
	for i := EthernetSize + 4; i < len(b); i++ {
		if i == EthernetSize+7 {
			continue // the hop limit changes on the way
		}
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := ParseUDP6(b); !errors.Is(err, wirefmt.ErrFormat) {
				t.Fatalf("byte %d bit %d: error %v", i, bit, err)
			}
			b[i] ^= 1 << bit
		}
	}
}

func TestFixAfterEditing(t *testing.T) {
	b := sample(100).Append(nil)
	b[HeaderSize+20] ^= 0x55
	if _, err := ParseUDP6(b); !errors.Is(err, ErrChecksum) {
		t.Fatalf("edited: error %v", err)
	}
	if err := Fix(b); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseUDP6(b); err != nil {
		t.Fatalf("fixed: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	good := sample(10).Append(nil)
	edit := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	cases := map[string][]byte{
		"IPv4 type":               edit(13, 0x00),
		"IP version 4":            edit(EthernetSize, 0x45),
		"length beyond the frame": edit(EthernetSize+5, 19),
		"not UDP":                 edit(EthernetSize+6, 6),
		"UDP length too long":     edit(EthernetSize+IPv6Size+5, 19),
		"UDP length too short":    edit(EthernetSize+IPv6Size+5, 7),
	}
	for name, b := range cases {
		if _, err := ParseUDP6(b); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for n := range good {
		if _, err := ParseUDP6(good[:n]); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("cut to %d bytes: error %v", n, err)
		}
	}
	for name, b := range map[string][]byte{"short": good[:40], "TCP": cases["not UDP"]} {
		if err := Fix(b); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("Fix, %s: error %v", name, err)
		}
	}
}

func TestEcho(t *testing.T) {
	ask := Echo{Packet: Packet{
		DstMAC: macB, SrcMAC: macA, Src: netip.MustParseAddr("fe80::1"), Dst: netip.MustParseAddr("fe80::2"), Payload: []byte("odd"),
	}, ID: 7, Seq: 3}
	b := ask.Append(nil)
	if s := reference(b[EthernetSize:]); s != 0xFFFF {
		t.Fatalf("checksum adds up to %#04x", s)
	}
	p, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := p.Echo()
	if !ok || got.Reply || got.ID != 7 || got.Seq != 3 || string(got.Payload) != "odd" {
		t.Fatalf("got %+v, %v", got, ok)
	}
	p, err = Parse(got.Answer().Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	back, ok := p.Echo()
	if !ok || !back.Reply || back.Src != ask.Dst || back.DstMAC != macA || string(back.Payload) != "odd" {
		t.Fatalf("answer %+v, %v", back, ok)
	}
	b[len(b)-1] ^= 1
	if p, _ := Parse(b); p.NextHeader != ProtoICMPv6 {
		t.Fatal("not ICMPv6")
	} else if _, ok := p.Echo(); ok {
		t.Error("an echo with a wrong checksum passed")
	}
}

func TestMAC(t *testing.T) {
	m, err := ParseMAC("02:00:00:00:00:01")
	if err != nil || m != macA || m.String() != "02:00:00:00:00:01" || m.Multicast() || m.IsZero() {
		t.Errorf("got %v, %v", m, err)
	}
	for _, s := range []string{"", "02:00", "02:00:00:00:00:00:00:01"} {
		if _, err := ParseMAC(s); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%q: error %v", s, err)
		}
	}
}

// mended is a payload without its checksum.
func mended(payload []byte, proto uint8) []byte {
	b := bytes.Clone(payload)
	if at, ok := checksumOffset(proto); ok && len(b) >= at+2 {
		b[at], b[at+1] = 0, 0
	}
	return b
}

func FuzzSum(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add(bytes.Repeat([]byte{0xff}, 103)) // with carries everywhere
	f.Fuzz(func(t *testing.T, b []byte) {
		// 0 and 0xffff are the same number.
		if got, want := Fold(Sum(0, b)), slow(b); got%0xffff != want%0xffff {
			t.Errorf("%x: %#x, want %#x", b, got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(sample(3).Append(nil))
	f.Add(Echo{Packet: Packet{Src: netip.IPv6Unspecified(), Dst: netip.IPv6LinkLocalAllNodes()}}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		if again, err := Parse(p.Append(nil)); err != nil || p.HopLimit != 0 && !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
		if u, err := p.UDP(); err == nil {
			if again, err := ParseUDP6(u.Append(nil)); err != nil || u.HopLimit != 0 && !reflect.DeepEqual(again, u) {
				t.Fatalf("%+v became %+v, %v", u, again, err)
			}
		}
		if e, ok := p.Echo(); ok && len(e.Answer().Append(nil)) == 0 {
			t.Fatal("no answer")
		}
		fixed := bytes.Clone(b)
		if Fix(fixed) != nil {
			return
		}
		q, err := Parse(fixed)
		if err == nil && !sumsUp(&q, q.Payload) {
			t.Fatalf("%x: the checksum is wrong", fixed)
		}
		if p.Payload, q.Payload = mended(p.Payload, p.NextHeader), mended(q.Payload, p.NextHeader); err != nil || !reflect.DeepEqual(q, p) {
			t.Fatalf("%+v was mended to %+v, %v", p, q, err)
		}
	})
}

func BenchmarkAppend64K(b *testing.B) {
	u := sample(65487)
	buf := make([]byte, 0, u.Size())
	b.SetBytes(int64(u.Size()))
	for b.Loop() {
		buf = u.Append(buf[:0])
	}
}

func BenchmarkParse64(b *testing.B) {
	f := sample(64).Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseUDP6(f); err != nil {
			b.Fatal(err)
		}
	}
}
