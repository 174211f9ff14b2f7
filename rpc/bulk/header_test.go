package bulk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// samples are one packet of each kind.
func samples() map[Kind][]byte {
	h := Header{
		Call: callID(1, 2), CallerIncarnation: 3, CalleeIncarnation: 4, Total: 100, First: 10, Size: 20,
	}
	all := map[Kind][]byte{}
	for k := Part; k <= Gone; k++ {
		h.Kind, h.Answer, h.Offset = k, k == Done, 0
		switch k {
		case Part:
			h.Offset = 30
			all[k] = append(h.Append(nil), bytes.Repeat([]byte{7}, 20)...)
		case Pull:
			all[k] = h.Append(nil, Range{10, 40}, Range{90, 10})
		default:
			all[k] = h.Append(nil)
		}
	}
	return all
}

// parse takes a datagram apart that lies in one piece.
func parse(b []byte) (Header, []Range, []byte, error) {
	n := min(len(b), HeaderSize)
	return Parse(b[:n], b[n:])
}

func TestLayout(t *testing.T) {
	if err := Layout.Check(); err != nil || Layout.Size() != HeaderSize {
		t.Error(Layout.Size(), err)
	}
}

func TestHeader(t *testing.T) {
	for k, b := range samples() {
		h, ranges, data, err := parse(b)
		if err != nil || h.Kind != k {
			t.Fatalf("%s: %+v, %v", k, h, err)
		}
		if again := append(h.Append(nil, ranges...), data...); !bytes.Equal(again, b) {
			t.Errorf("%s: came back as %x, was %x", k, again, b)
		}
		for n := range b {
			if _, _, _, err := parse(b[:n]); !errors.Is(err, wirefmt.ErrFormat) {
				t.Errorf("%s cut to %d bytes: %v", k, n, err)
			}
		}
	}
}

func TestBadHeader(t *testing.T) {
	for name, c := range map[string]struct {
		kind   Kind
		change func([]byte)
	}{
		"magic":                   {Part, func(b []byte) { b[0] = 0 }},
		"version":                 {Part, func(b []byte) { b[2]++ }},
		"kind 0":                  {Part, func(b []byte) { b[3] = 0 }},
		"kind 5":                  {Part, func(b []byte) { b[3] = 5 }},
		"answer 2":                {Done, func(b []byte) { b[4] = 2 }},
		"reserved":                {Done, func(b []byte) { b[5] = 1 }},
		"a part with ranges":      {Part, func(b []byte) { b[7] = 1 }},
		"a part of another size":  {Part, func(b []byte) { b[51]++ }},
		"a part before the first": {Part, func(b []byte) { b[47] = 9 }},
		"a part beyond the end":   {Part, func(b []byte) { b[47] = 81 }},
		"a part that wraps":       {Part, func(b []byte) { copy(b[40:], bytes.Repeat([]byte{255}, 8)) }},
		"a pull of nothing":       {Pull, func(b []byte) { copy(b[64:], make([]byte, 8)) }},
		"a pull beyond the end":   {Pull, func(b []byte) { b[71] = 91 }},
		"a pull that wraps":       {Pull, func(b []byte) { copy(b[64:], bytes.Repeat([]byte{255}, 8)) }},
		"parts of no size":        {Pull, func(b []byte) { b[51] = 0 }},
		"ranges that overlap":     {Pull, func(b []byte) { copy(b[72:], b[56:72]) }},
		"ranges that descend":     {Pull, func(b []byte) { b[79], b[87] = 10, 20 }},
		"a range between parts":   {Pull, func(b []byte) { b[63]++ }},
		"half a part":             {Pull, func(b []byte) { b[71] = 10 }},
		"too many ranges":         {Pull, func(b []byte) { b[7] = 3 }},
	} {
		b := samples()[c.kind]
		c.change(b)
		if _, _, _, err := parse(b); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, b := range samples() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ranges, data, err := parse(b)
		if err != nil {
			return
		}
		if again := append(h.Append(nil, ranges...), data...); !reflect.DeepEqual(again, b) {
			t.Errorf("%x came back as %x", b, again)
		}
		if h.Kind == Pull {
			sent := uint64(0)
			next := uint64(h.First)
			for i, r := range Cut(nil, ranges, int(h.Size)) {
				sent += r.Length
				if r.Offset < next || r.Length > uint64(h.Size) || r.Offset+r.Length > h.Total || (r.Offset-uint64(h.First))%uint64(h.Size) != 0 {
					t.Errorf("part %d: %d bytes at %d of %d, the last one ended at %d", i, r.Length, r.Offset, h.Total, next)
				}
				next = r.Offset + r.Length
			}
			if sent > MaxPull {
				t.Errorf("a pull is answered with %d bytes", sent)
			}
		}
	})
}

// callID is the id of one of many calls.
func callID(of, n uint64) (id rpcpacket.ID) {
	binary.BigEndian.PutUint64(id[:], of)
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}
