package interp

import (
	"fmt"
	"math/big"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// maxStates bounds how many states a parser passes through: what loops longer
// than the packet is long makes no progress.
const maxStates = 1 << 12

// codes are the core errors' codes in this program.
type codes struct {
	none, packetTooShort, stackOutOfBounds, headerTooShort, timeout, invalidArgument uint64
}

func newCodes(p *v1model.Program) codes {
	code := func(name string) uint64 {
		n, _ := p.ErrorCode(name)
		return uint64(n)
	}
	return codes{
		none:             code(v1model.ErrorNone),
		packetTooShort:   code(v1model.ErrorPacketTooShort),
		stackOutOfBounds: code(v1model.ErrorStackBounds),
		headerTooShort:   code(v1model.ErrorHeaderTooShort),
		timeout:          code(v1model.ErrorParserTimeout),
		invalidArgument:  code(v1model.ErrorInvalidArgument),
	}
}

// parser runs a program's parser.
type parser struct {
	start     *parserState
	codes     codes
	checksums []checksum
}

type parserState struct {
	name   string
	steps  []step
	choose func(*state) *parserState // nil if there is no choice
	next   *parserState              // nil accepts
}

func (c *compiler) parser() *parser {
	p := &parser{codes: c.codes}
	states := make([]*parserState, len(c.prog.Parser.States))
	for i, st := range c.prog.Parser.States {
		states[i] = &parserState{name: st.Name}
	}
	for i, st := range c.prog.Parser.States {
		for _, s := range st.Body {
			states[i].steps = append(states[i].steps, c.stmt(s))
		}
		if st.Default != nil {
			states[i].next = states[st.Default.Index]
		}
		if len(st.Cases) > 0 {
			states[i].choose = c.choice(st, states)
		}
	}
	if st := c.prog.Parser.Start; st != nil {
		p.start = states[st.Index]
	}
	for _, sum := range c.prog.Checksums {
		if sum.Verify {
			p.checksums = append(p.checksums, c.checksum(sum))
		}
	}
	return p
}

// run parses the packet from its start; an error ends it there.
func (p *parser) run(s *state) {
	s.failed, s.code, s.badChecksum = false, p.codes.none, false
	s.pos = 0
	n := 0
	for st := p.start; st != nil && !s.failed; n++ {
		if n == maxStates {
			s.fail(p.codes.timeout)
			break
		}
		if s.tr != nil {
			s.tr.parser(st.name)
		}
		st = st.run(s)
	}
	for i := range p.checksums {
		if !p.checksums[i].verify(s) {
			s.badChecksum = true
		}
	}
}

func (st *parserState) run(s *state) *parserState {
	for _, f := range st.steps {
		f(s)
		if s.failed {
			return nil
		}
	}
	if st.choose != nil {
		return st.choose(s)
	}
	return st.next
}

func (c *compiler) verify(st v1model.Verify) step {
	cond, code := c.cond(st.Cond), c.count(st.Code)
	return func(s *state) {
		if !cond(s) {
			s.fail(code(s))
		}
	}
}

func (c *compiler) advance(st v1model.Advance) step {
	bits := c.count(st.Bits)
	invalid, tooShort := c.codes.invalidArgument, c.codes.packetTooShort
	return func(s *state) {
		n := bits(s)
		switch {
		case n%8 != 0:
			s.fail(invalid)
		case n/8 > uint64(len(s.frame)-s.pos):
			s.fail(tooShort)
		default:
			s.pos += int(n / 8)
		}
	}
}

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

// extract compiles the extraction of a header.
func (c *compiler) extract(st v1model.Extract) step {
	if st.VarbitBits != nil {
		return c.extractVarbit(st)
	}
	if st.Header == nil {
		next, advance := c.next(st)
		return func(s *state) {
			if i := next(s); i >= 0 && c.extractFixed(s, i) {
				s.w[advance]++
			}
		}
	}
	if st.Header.Union != nil {
		i := st.Header.Index
		return func(s *state) { c.extractFixed(s, i) }
	}
	// The common case, with everything known.
	base, t := c.lay.bases[st.Header.Index], c.lay.heads[st.Header.Index]
	n, tooShort := t.Bits/8, c.codes.packetTooShort
	unpack := t.unpacker()
	return func(s *state) {
		if len(s.frame)-s.pos < n {
			s.fail(tooShort)
			return
		}
		unpack(s.w[base:], s.frame[s.pos:])
		s.w[base] = 1
		s.pos += n
	}
}

// next finds the next free header of a stack, or fails and returns -1. advance
// is where the count lies that is to go up after the extraction.
func (c *compiler) next(st v1model.Extract) (find href, advance int) {
	of, at := c.elements(st.Next)
	member, full := st.Member, c.codes.stackOutOfBounds
	return func(s *state) int {
		n := s.w[at]
		if n >= uint64(len(of)) {
			s.fail(full)
			return -1
		}
		return of[n][member]
	}, at
}

// extractFixed extracts a header without a variable-length field.
func (c *compiler) extractFixed(s *state, i int) bool {
	t := c.lay.heads[i]
	n := t.Bits / 8
	if len(s.frame)-s.pos < n {
		s.fail(c.codes.packetTooShort)
		return false
	}
	c.unpackers[t](s.w[c.lay.bases[i]:], s.frame[s.pos:])
	c.makeValid(s, i)
	s.pos += n
	return true
}

func (c *compiler) extractVarbit(st v1model.Extract) step {
	length := c.count(st.VarbitBits)
	next, advance := href(nil), -1
	if st.Header == nil {
		next, advance = c.next(st)
	} else {
		i := st.Header.Index
		next = func(*state) int { return i }
	}
	return func(s *state) {
		i := next(s)
		if i < 0 || !c.extractVariable(s, i, length(s)) {
			return
		}
		if advance >= 0 {
			s.w[advance]++
		}
	}
}

// extractVariable extracts a header whose variable-length field has n bits.
func (c *compiler) extractVariable(s *state, i int, n uint64) bool {
	t := c.lay.heads[i]
	rest := uint64(len(s.frame) - s.pos)
	switch {
	case n%8 != 0:
		s.fail(c.codes.invalidArgument)
		return false
	case n/8 > rest || rest-n/8 < uint64(t.Bits/8):
		s.fail(c.codes.packetTooShort)
		return false
	case n > uint64(t.Fields[t.Varbit].MaxWidth):
		s.fail(c.codes.headerTooShort)
		return false
	}
	b, w := s.frame[s.pos:], s.w[c.lay.bases[i]:]
	offset := 0
	for k, f := range t.fields {
		if k == t.Varbit {
			s.varbit[i] = append(s.varbit[i][:0], make([]byte, n/8)...)
			copyBits(s.varbit[i], b, offset, int(n))
			w[f.at] = n
			offset += int(n)
			continue
		}
		loadWords(w[f.at:f.at+f.n], b, offset, f.width)
		offset += f.width
	}
	c.makeValid(s, i)
	s.pos += offset / 8
	return true
}

// valueSet is a parser value set. Its members are guarded by the executor's
// lock.
type valueSet struct {
	def     *v1model.ValueSet
	parts   []keyLoad // of the keys it is used for; all have the same widths
	members []setMember
}

// setMember matches keys between low and high, masked.
type setMember struct{ mask, low, high []uint64 }

// shape notes the layout of a key that the set is used for.
func (v *valueSet) shape(k *choiceKey) { v.parts = k.parts }

func (v *valueSet) contains(key []uint64) bool {
	for i := range v.members {
		if v.members[i].match(key, v.parts) {
			return true
		}
	}
	return false
}

func (m *setMember) match(key []uint64, parts []keyLoad) bool {
	for i := range parts {
		p := &parts[i]
		var masked [maxKeyWords]uint64
		for w := p.first; w < p.first+p.n; w++ {
			masked[w] = key[w] & m.mask[w]
		}
		k := masked[p.first : p.first+p.n]
		if compareWords(k, m.low[p.first:p.first+p.n]) < 0 || compareWords(k, m.high[p.first:p.first+p.n]) > 0 {
			return false
		}
	}
	return true
}

// compareWords compares numbers of the same number of words.
func compareWords(a, b []uint64) int {
	for i := range a {
		switch {
		case a[i] < b[i]:
			return -1
		case a[i] > b[i]:
			return 1
		}
	}
	return 0
}

// ValueSet implements datapath.Datapath. A member has one match for each part
// of the key that the set is used for; how it matches shows by the fields set.
func (x *Executor) ValueSet(name string, members [][]datapath.Match) error {
	v := x.valueSet(name)
	if v == nil {
		return fmt.Errorf("value set %q: %w", name, datapath.ErrNotFound)
	}
	if v.parts == nil {
		return fmt.Errorf("value set %q: %w: the program never looks at it", name, datapath.ErrUnsupported)
	}
	if v.def.Size > 0 && len(members) > v.def.Size {
		return fmt.Errorf("value set %q: %w", name, datapath.ErrFull)
	}
	packed := make([]setMember, 0, len(members))
	for i, m := range members {
		p, err := v.pack(m)
		if err != nil {
			return fmt.Errorf("value set %q: member %d: %w", name, i, err)
		}
		packed = append(packed, p)
	}
	x.lock.lock()
	defer x.lock.unlock()
	v.members = packed
	return nil
}

func (x *Executor) valueSet(name string) *valueSet {
	for _, v := range x.valueSets {
		if v.def.Name == name {
			return v
		}
	}
	return nil
}

func (v *valueSet) pack(ms []datapath.Match) (setMember, error) {
	var m setMember
	if len(ms) != len(v.parts) {
		return m, fmt.Errorf("%d fields instead of %d", len(ms), len(v.parts))
	}
	for i, p := range v.parts {
		f := fieldMatch{width: p.width}
		if err := f.read(&ms[i], setKind(&ms[i])); err != nil {
			return m, fmt.Errorf("field %d: %w", i, err)
		}
		m.mask = append(m.mask, f.mask...)
		m.low = append(m.low, f.low...)
		m.high = append(m.high, f.high...)
	}
	return m, nil
}

func setKind(m *datapath.Match) v1model.MatchKind {
	switch {
	case m.High != nil:
		return v1model.MatchRange
	case m.Mask != nil || m.Wildcard:
		return v1model.MatchTernary
	case m.PrefixLen > 0:
		return v1model.MatchLPM
	}
	return v1model.MatchExact
}
