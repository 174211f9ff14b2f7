package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// FuzzRecord: what is read from the disk under a checksum that fits is refused with a
// typed error, or is a record that is written as it was read.
func FuzzRecord(f *testing.F) {
	whole := full()
	f.Add(whole.append(nil))
	f.Add((&Record{Kind: KindRegion, ID: ID{1}, Sequence: 1, Data: []byte("{}")}).append(nil))
	f.Add((&Record{Kind: KindExport, Attempt: 1, Data: make([]byte, 100)}).append(nil))
	f.Add((&Record{Kind: KindRack}).append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		if len(b) >= headerSize {
			binary.BigEndian.PutUint32(b[4:], checksum(b))
		}
		r, err := parse(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Errorf("an error of no type: %v", err)
			}
			return
		}
		if again := r.append(nil); !bytes.Equal(again, b) || len(again) != r.size() {
			t.Errorf("read %x, written %x; its size is %d", b, again, r.size())
		}
	})
}
