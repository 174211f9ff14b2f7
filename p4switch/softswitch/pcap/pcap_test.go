package pcap

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.pcap")
	w, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1700000000, 123456789)
	long := bytes.Repeat([]byte{7}, snapLen+5)
	for _, p := range [][]byte{[]byte("hello"), {}, long} {
		if err := w.Write(at, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(at, nil); err == nil {
		t.Error("wrote to a closed capture")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	if u32(0) != 0xa1b23c4d || u32(16) != snapLen || u32(20) != 1 {
		t.Errorf("file header % x", b[:fileHeaderLen])
	}
	r := fileHeaderLen
	if u32(r) != 1700000000 || u32(r+4) != 123456789 || u32(r+8) != 5 || u32(r+12) != 5 || string(b[r+16:r+21]) != "hello" {
		t.Errorf("first record % x", b[r:r+21])
	}
	r += recordHeaderLen + 5
	if u32(r+8) != 0 {
		t.Errorf("second record % x", b[r:r+16])
	}
	r += recordHeaderLen
	if u32(r+8) != snapLen || u32(r+12) != snapLen+5 || len(b) != r+recordHeaderLen+snapLen {
		t.Errorf("third record % x, %d bytes in all", b[r:r+16], len(b))
	}
}

func TestCreateFails(t *testing.T) {
	if _, err := Create(filepath.Join(t.TempDir(), "none", "a.pcap")); err == nil {
		t.Error("no error")
	}
}
