package v1model

import (
	"bytes"
	"testing"
)

// Declared entries may have bits set that do not count; they are cleared.
func TestEntryBitsThatDoNotCount(t *testing.T) {
	h := &Header{Type: &HeaderType{Fields: []Field{{Name: "f", Width: 13}}}}
	key := Key{Field: FieldRef{Header: h}}
	if w, n := key.Field.Width(), key.Field.Bytes(); w != 13 || n != 2 {
		t.Fatalf("a field of %d bits in %d bytes", w, n)
	}
	for _, c := range []struct {
		kind   MatchKind
		prefix int
		value  []byte
		want   []byte
	}{
		{MatchTernary, 0, []byte{0x1f, 0xff}, []byte{0x10, 0x0f}}, // mask 100f
		{MatchLPM, 0, []byte{0x1f, 0xff}, []byte{0, 0}},
		{MatchLPM, 1, []byte{0x1f, 0xff}, []byte{0x10, 0}},
		{MatchLPM, 6, []byte{0x1f, 0xff}, []byte{0x1f, 0x80}},
		{MatchLPM, 13, []byte{0x1f, 0xff}, []byte{0x1f, 0xff}},
		{MatchExact, 0, []byte{0x1f, 0xff}, []byte{0x1f, 0xff}},
	} {
		key.Kind = c.kind
		m := Match{Value: c.value, Mask: []byte{0x10, 0x0f}, PrefixLen: c.prefix}
		if m.canonical(&key); !bytes.Equal(m.Value, c.want) {
			t.Errorf("kind %v, prefix %d: % x instead of % x", c.kind, c.prefix, m.Value, c.want)
		}
	}
}
