package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

// layout says where everything a program's packet consists of lies in the
// state's words. A header's first word is its validity; its fields follow, each
// in whole words, most significant first. A variable-length field's word is its
// length in bits; its bytes lie in state.varbit. A stack has a word that counts
// its elements.
type layout struct {
	types   map[*v1model.HeaderType]*typeLayout
	bases   []int // of each header
	heads   []*typeLayout
	stacks  []int // where each stack's count is
	ustacks []int // where each union stack's count is
	words   int
	// reset is the words of a packet that comes in: all zero, but metadata is
	// valid.
	reset []uint64
	// metadata are the ranges of words that metadata fields lie in.
	metadata [][2]int
	// varbits are the headers that have a variable-length field,
	// metadataVarbits those of them that are metadata.
	varbits, metadataVarbits []int
}

// typeLayout is the layout that a type's headers share.
type typeLayout struct {
	*v1model.HeaderType
	words  int
	fields []slot
}

// slot is where a field lies, relative to its header.
type slot struct {
	at, n  int // first word and number of words
	width  int
	signed bool
}

func newLayout(p *v1model.Program) *layout {
	l := &layout{types: map[*v1model.HeaderType]*typeLayout{}}
	for _, t := range p.HeaderTypes {
		l.types[t] = newTypeLayout(t)
	}
	for _, h := range p.Headers {
		t := l.types[h.Type]
		l.bases = append(l.bases, l.words)
		l.heads = append(l.heads, t)
		if h.Metadata {
			l.metadata = append(l.metadata, [2]int{l.words + 1, l.words + t.words})
		}
		if t.Varbit >= 0 {
			l.varbits = append(l.varbits, h.Index)
			if h.Metadata {
				l.metadataVarbits = append(l.metadataVarbits, h.Index)
			}
		}
		l.words += t.words
	}
	for range p.Stacks {
		l.stacks = append(l.stacks, l.words)
		l.words++
	}
	for range p.UnionStacks {
		l.ustacks = append(l.ustacks, l.words)
		l.words++
	}
	l.reset = make([]uint64, l.words)
	for _, h := range p.Headers {
		if h.Metadata {
			l.reset[l.bases[h.Index]] = 1
		}
	}
	return l
}

func newTypeLayout(t *v1model.HeaderType) *typeLayout {
	l := &typeLayout{HeaderType: t, words: 1}
	for _, f := range t.Fields {
		s := slot{at: l.words, n: wordsFor(f.Width), width: f.Width, signed: f.Signed}
		if f.Varbit {
			s.n = 1
		}
		l.fields = append(l.fields, s)
		l.words += s.n
	}
	return l
}

// slot is where a field of the type lies.
func (t *typeLayout) slot(field int) slot {
	if field == v1model.ValidField {
		return slot{at: 0, n: 1, width: 1}
	}
	return t.fields[field]
}

// slot is where a field lies, absolutely.
func (l *layout) slot(r v1model.FieldRef) slot {
	s := l.heads[r.Header.Index].slot(r.Field)
	s.at += l.bases[r.Header.Index]
	return s
}
