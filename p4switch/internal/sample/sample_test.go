package sample

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestCurrent fails when the program was not recompiled.
func TestCurrent(t *testing.T) {
	sums, err := os.ReadFile("SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"sample.p4", "sample.json", "sample.p4info.txt"} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(sums), fmt.Sprintf("%x  %s\n", sha256.Sum256(b), f)) {
			t.Errorf("%s is not what SHA256SUMS was made for: run compile.sh with p4c on PATH", f)
		}
	}
}

// TestUDP: a frame is read as it was built, and one with a wrong byte is not.
func TestUDP(t *testing.T) {
	u := UDP{
		DstMAC: MAC{1, 2, 3}, SrcMAC: MAC{4, 5, 6},
		Src: netip.MustParseAddrPort("[fd00::1]:1000"), Dst: netip.MustParseAddrPort("[fd00::2]:7"), Payload: []byte("odd"),
	}
	// The checksum is RFC 768's, by hand.
	want := []byte("\x01\x02\x03\x00\x00\x00\x04\x05\x06\x00\x00\x00\x86\xdd\x60\x00\x00\x00\x00\x0b\x11\x40" +
		"\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02" +
		"\x03\xe8\x00\x07\x00\x0b\x2e\x80odd")
	b := u.Append([]byte("before"))
	if !bytes.Equal(b[6:], want) {
		t.Errorf("built %x, want %x", b[6:], want)
	}
	got, err := ParseUDP(b[6:])
	if err != nil || got.Src != u.Src || got.Dst != u.Dst || got.DstMAC != u.DstMAC || got.SrcMAC != u.SrcMAC || !bytes.Equal(got.Payload, u.Payload) {
		t.Errorf("read %+v, %v", got, err)
	}
	for _, at := range []int{12, 19, 20, 30, 55, 58, 60, 64} {
		wrong := bytes.Clone(b[6:])
		wrong[at]++
		if _, err := ParseUDP(wrong); err == nil {
			t.Errorf("byte %d is wrong, and nobody minds", at)
		}
	}
	if _, err := ParseUDP(b[6:60]); err == nil {
		t.Error("half a frame is read")
	}
}
