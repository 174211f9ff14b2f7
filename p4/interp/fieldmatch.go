package interp

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// fieldMatch is what an entry wants of a field of width bits, in words: a
// masked key between low and high, inclusive. Only a range has low ≠ high.
type fieldMatch struct {
	width           int
	mask, low, high []uint64
	prefixLen       int // of LPM
}

// read takes a match of the given kind; a field without a mask is exact.
func (f *fieldMatch) read(m *datapath.Match, kind v1model.MatchKind) error {
	n := wordsFor(f.width)
	if m.Wildcard {
		if kind == v1model.MatchExact {
			return fmt.Errorf("exact field left out")
		}
		f.mask, f.low, f.high = make([]uint64, n), make([]uint64, n), make([]uint64, n)
		return nil
	}
	var err error
	if f.low, err = f.words(m.Value); err != nil {
		return err
	}
	f.high = f.low
	f.mask = fullMask(f.width)
	switch kind {
	case v1model.MatchLPM:
		if m.PrefixLen < 0 || m.PrefixLen > f.width {
			return fmt.Errorf("prefix of %d bits of %d", m.PrefixLen, f.width)
		}
		f.prefixLen = m.PrefixLen
		f.mask = prefixMask(f.width, m.PrefixLen)
	case v1model.MatchTernary:
		if m.Mask != nil {
			f.mask, err = f.words(m.Mask)
		}
	case v1model.MatchRange:
		if f.high, err = f.words(m.High); err == nil && compareWords(f.low, f.high) > 0 {
			err = fmt.Errorf("empty range")
		}
	}
	if err != nil {
		return err
	}
	for i := range f.mask {
		f.low[i] &= f.mask[i]
	}
	return nil
}

// words reads bytes as wide as the field.
func (f *fieldMatch) words(b []byte) ([]uint64, error) {
	if len(b) != (f.width+7)/8 {
		return nil, fmt.Errorf("%d bytes for %d bits", len(b), f.width)
	}
	w := bytesToWords(b, f.width)
	if spare := len(b)*8 - f.width; spare > 0 && b[0]>>(8-spare) != 0 {
		return nil, fmt.Errorf("value wider than %d bits", f.width)
	}
	return w, nil
}

// prefixMask has the first n bits of a field set.
func prefixMask(width, n int) []uint64 {
	w := fullMask(width)
	for drop, i := width-n, len(w)-1; drop > 0; i-- {
		k := min(drop, 64)
		w[i] &= ^mask64(k)
		drop -= k
	}
	return w
}
