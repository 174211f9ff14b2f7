//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// key is the trie's key of an entry: how many bits of it matter, then the bytes
// (keyPlan). Bits that do not matter are zero, so equal entries have equal keys.
func (t *table) key(ms []datapath.Match, priority int32) ([]byte, error) {
	if t.list != nil {
		if t.def.Kind == v1model.MatchLPM {
			return t.list.plan.key(ms, -1)
		}
		return t.list.plan.key(ms, int64(max(priority, 0)))
	}
	p := t.plan
	if len(ms) != len(p.fields) {
		return nil, fmt.Errorf("%d match fields for a key of %d", len(ms), len(p.fields))
	}
	b := make([]byte, 4+p.bytes)
	b[4] = 1
	prefix := 8 * p.bytes
	for i := range p.fields {
		f, m := &p.fields[i], &ms[p.fields[i].index]
		n, err := f.put(b[4+f.at:][:f.bytes], m)
		if err != nil {
			return nil, fmt.Errorf("match field %q: %w", f.Name, err)
		}
		if f.Kind == v1model.MatchLPM {
			prefix = 8*f.at + n
		}
	}
	binary.NativeEndian.PutUint32(b, uint32(prefix))
	return b, nil
}

// put writes what an entry wants of a field, and tells the prefix's length.
func (f *keyField) put(b []byte, m *datapath.Match) (int, error) {
	n := f.width
	if f.Kind == v1model.MatchLPM {
		n = m.PrefixLen
	}
	if m.Wildcard {
		if f.Kind == v1model.MatchExact {
			return 0, fmt.Errorf("exact field left out")
		}
		return 0, nil
	}
	if n < 0 || n > f.width {
		return 0, fmt.Errorf("prefix of %d bits of %d", n, f.width)
	}
	if err := checkWidth(m.Value, f.width); err != nil {
		return 0, err
	}
	copy(b, m.Value)
	if f.Mask != nil {
		// What the program masks out can match nothing.
		for i := range b {
			b[i] &= f.Mask[i]
		}
	}
	if f.Kind == v1model.MatchLPM {
		shiftLeft(b, f.bytes*8-f.width)
		keep(b, n)
	}
	return n, nil
}

// checkWidth tells whether b is as long as a field of width bits, and within it.
func checkWidth(b []byte, width int) error {
	if len(b) != (width+7)/8 {
		return fmt.Errorf("%d bytes for %d bits", len(b), width)
	}
	if spare := len(b)*8 - width; spare > 0 && b[0]>>(8-spare) != 0 {
		return fmt.Errorf("value wider than %d bits", width)
	}
	return nil
}

// shiftLeft shifts a big-endian number by less than a byte.
func shiftLeft(b []byte, n int) {
	if n == 0 {
		return
	}
	for i := range b {
		b[i] <<= n
		if i+1 < len(b) {
			b[i] |= b[i+1] >> (8 - n)
		}
	}
}

// keep clears all but the first n bits.
func keep(b []byte, n int) {
	for i := range b {
		switch left := n - 8*i; {
		case left <= 0:
			b[i] = 0
		case left < 8:
			b[i] &= 0xff << (8 - left)
		}
	}
}
