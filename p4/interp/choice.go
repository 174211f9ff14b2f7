package interp

import (
	"math/big"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// choiceKey is a transition's key: parts, each in as many words as it needs.
type choiceKey struct {
	parts []keyLoad
	words int
}

// keyLoad puts a part of a key in its words.
type keyLoad struct {
	first, n int
	num      num // of one word
	big      bigNum
	width    int
}

func (c *compiler) choiceKey(key []v1model.KeyPart) choiceKey {
	var k choiceKey
	for _, p := range key {
		l := keyLoad{first: k.words, n: wordsFor(p.Width), width: p.Width}
		if l.n == 1 {
			l.num = c.num(p.Value)
		} else {
			l.big = c.big(p.Value)
		}
		k.parts = append(k.parts, l)
		k.words += l.n
	}
	return k
}

// load fills s.key; it may fail on a lookahead.
func (k *choiceKey) load(s *state) {
	for i := range k.parts {
		p := &k.parts[i]
		if p.num != nil {
			s.key[p.first] = p.num(s) & mask64(p.width)
			continue
		}
		var z big.Int
		p.big(s, &z)
		putBig(s.key[p.first:p.first+p.n], &z, p.width)
	}
}

// pack puts a case's value or mask in the key's layout.
func (k *choiceKey) pack(parts [][]byte) []uint64 {
	var w []uint64
	for i, b := range parts {
		w = append(w, bytesToWords(b, k.parts[i].width)...)
	}
	return w
}

// choiceCase is a transition that matches masked values or a value set.
type choiceCase struct {
	value, mask []uint64
	set         *valueSet
	next        *parserState
}

func (c *choiceCase) match(key []uint64) bool {
	if c.set != nil {
		return c.set.contains(key)
	}
	for i, v := range c.value {
		if key[i]&c.mask[i] != v {
			return false
		}
	}
	return true
}

// choice compiles a state's transitions.
func (c *compiler) choice(st *v1model.State, states []*parserState) func(*state) *parserState {
	next := func(t *v1model.State) *parserState {
		if t == nil {
			return nil
		}
		return states[t.Index]
	}
	k := c.choiceKey(st.Key)
	other := next(st.Default)
	cases := make([]choiceCase, len(st.Cases))
	for i, sc := range st.Cases {
		cs := &cases[i]
		cs.next = next(sc.Next)
		if sc.Set != nil {
			cs.set = c.valueSets[sc.Set.Index]
			cs.set.shape(&k)
			continue
		}
		cs.value, cs.mask = k.pack(sc.Values), k.pack(sc.Masks)
		if sc.Masks == nil {
			for _, p := range k.parts {
				cs.mask = append(cs.mask, fullMask(p.width)...)
			}
		}
		for w := range cs.value {
			cs.value[w] &= cs.mask[w]
		}
	}
	return func(s *state) *parserState {
		k.load(s)
		if s.failed {
			return nil
		}
		for i := range cases {
			if cases[i].match(s.key[:k.words]) {
				return cases[i].next
			}
		}
		return other
	}
}

// fullMask has the bits of a field of any width set.
func fullMask(width int) []uint64 {
	w := make([]uint64, wordsFor(width))
	for i := range w {
		w[i] = ^uint64(0)
	}
	w[0] = mask64(width - (len(w)-1)*64)
	return w
}
