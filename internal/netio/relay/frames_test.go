package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
	"testing/iotest"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

func TestLayoutMatchesCodec(t *testing.T) {
	if err := Layout.Check(); err != nil {
		t.Error(err)
	}
	remote := netip.MustParseAddrPort("[fd00::1:2]:772")
	b := appendHeader(nil, remote, 5)
	if len(b) != HeaderSize || Layout.Size() != HeaderSize {
		t.Errorf("%d bytes, %d in the layout", len(b), Layout.Size())
	}
	a := remote.Addr().As16()
	for _, f := range Layout.Fields {
		want := map[string][]byte{"length": {0, 5}, "port": {3, 4}, "address": a[:]}[f.Name]
		if got := b[f.Offset : f.Offset+f.Size]; !bytes.Equal(got, want) {
			t.Errorf("%s is %x, want %x", f.Name, got, want)
		}
	}
}

// FuzzFrames reads any stream, in pieces of any size: what comes out are its frames, up to where it is cut or malformed.
func FuzzFrames(f *testing.F) {
	frame := append(appendHeader(nil, netip.MustParseAddrPort("[fd00::1]:1"), 3), "abc"...)
	f.Add(frame, false)
	f.Add(append(append([]byte(nil), frame...), frame[:10]...), true)
	f.Add([]byte{0xff, 0xff, 0, 0}, false)
	f.Add(append(appendHeader(nil, netip.MustParseAddrPort("[fd00::1]:1"), 0xffff), make([]byte, 0xffff)...), false)
	f.Add(append(appendHeader(nil, netip.MustParseAddrPort("[::]:0"), netio.MaxDatagram), make([]byte, netio.MaxDatagram)...), false)
	f.Fuzz(func(t *testing.T, stream []byte, slow bool) {
		var from io.Reader = bytes.NewReader(stream)
		if slow {
			from = iotest.OneByteReader(from)
		}
		in := newFrames(from)
		rest := stream
		for {
			remote, datagram, ok, err := in.next(true)
			whole := len(rest) >= HeaderSize && len(rest) >= HeaderSize+int(binary.BigEndian.Uint16(rest)) && int(binary.BigEndian.Uint16(rest)) <= netio.MaxDatagram
			if ok != whole || ok == (err != nil) {
				t.Fatalf("ok %v, %v, with %d bytes left", ok, err, len(rest))
			}
			if !ok {
				if !errors.Is(err, io.EOF) && !errors.Is(err, wirefmt.ErrFormat) {
					t.Fatal(err)
				}
				return
			}
			again := append(appendHeader(nil, remote, len(datagram)), datagram...)
			if !bytes.Equal(again, rest[:len(again)]) {
				t.Fatalf("%x was read as %x", rest[:len(again)], again)
			}
			rest = rest[len(again):]
		}
	})
}
