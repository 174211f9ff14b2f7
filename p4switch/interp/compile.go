package interp

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// compiler turns a program into closures. What it makes refers to it: it holds
// the objects that they share.
type compiler struct {
	mu    sync.Mutex // held while an action is compiled later
	prog  *v1model.Program
	lay   *layout
	codes codes

	now      func() time.Time
	log      *slog.Logger
	dropPort uint64

	counters  []*counter
	meters    []*meter
	memory    *Registers
	registers []*register
	valueSets []*valueSet
	digests   map[*v1model.Digest]*digest
	actions   []*action
	unpackers map[*typeLayout]func(w []uint64, b []byte)

	// argAt is where each parameter of the action being compiled lies in its
	// arguments.
	argAt []int
}

func newCompiler(p *v1model.Program, now func() time.Time, log *slog.Logger) *compiler {
	c := &compiler{
		prog: p, lay: newLayout(p), codes: newCodes(p), now: now, log: log,
		unpackers: map[*typeLayout]func([]uint64, []byte){},
		digests:   map[*v1model.Digest]*digest{},
	}
	return c
}

// compileObjects makes what statements refer to, and the actions.
func (c *compiler) compileObjects() {
	p := c.prog
	for _, t := range c.lay.types {
		if t.Varbit < 0 {
			c.unpackers[t] = t.unpacker()
		}
	}
	for _, d := range p.Counters {
		n := d.Size
		if d.Direct {
			n = 0
		}
		c.counters = append(c.counters, &counter{d, make([]tally, n)})
	}
	for _, d := range p.Meters {
		n := d.Size
		if d.Direct {
			n = 0
		}
		c.meters = append(c.meters, &meter{d, make([]meterCell, n)})
	}
	for i, d := range p.Registers {
		c.registers = append(c.registers, &register{d, c.memory.arrays[i]})
	}
	for _, d := range p.ValueSets {
		c.valueSets = append(c.valueSets, &valueSet{def: d})
	}
	for _, d := range p.Digests {
		c.digests[d] = c.digest(d)
	}
	for _, a := range p.Actions {
		c.actions = append(c.actions, c.action(a))
	}
}

// stmt compiles a statement.
func (c *compiler) stmt(st v1model.Stmt) step {
	switch st := st.(type) {
	case v1model.Assign:
		return c.assign(st.Dst, st.Src)
	case v1model.AssignVarbit:
		return c.assignVarbit(st)
	case v1model.Copy:
		return c.copyStmt(st)
	case v1model.SetValid:
		return c.setValid(st)
	case v1model.Push:
		return c.push(st)
	case v1model.Pop:
		return c.pop(st)
	case v1model.CountPacket:
		return c.countPacket(st)
	case v1model.ExecuteMeter:
		return c.executeMeter(st)
	case v1model.ReadRegister:
		return c.readRegister(st)
	case v1model.WriteRegister:
		return c.writeRegister(st)
	case v1model.Hash:
		return c.hash(st)
	case v1model.Random:
		return c.random(st)
	case v1model.Assert:
		return c.assert(st)
	case v1model.Log:
		return c.logMessage(st)
	case v1model.Extract:
		return c.extract(st)
	case v1model.Verify:
		return c.verify(st)
	case v1model.Advance:
		return c.advance(st)
	}
	return c.order(st)
}

// order compiles a statement on the packet's fate.
func (c *compiler) order(st v1model.Stmt) step {
	switch st := st.(type) {
	case v1model.Drop:
		return c.drop(st)
	case v1model.SendDigest:
		d := c.digests[st.Digest]
		return func(s *state) { s.digest = d }
	case v1model.Clone:
		session := c.count(st.Session)
		return func(s *state) {
			s.clone, s.session, s.cloneFields = true, uint32(session(s)&maxSession), st.Fields
		}
	case v1model.Resubmit:
		return func(s *state) { s.resubmit = st.Fields }
	case v1model.Recirculate:
		return func(s *state) { s.recirculate = st.Fields }
	case v1model.Truncate:
		length := c.count(st.Length)
		return func(s *state) {
			n := int(min(length(s), 1<<31-1))
			if s.limit < 0 || n < s.limit {
				s.limit = n
			}
		}
	case v1model.Exit:
		return func(s *state) { s.exit = true }
	case v1model.Jump:
		return func(s *state) { s.pc = st.Target }
	case v1model.JumpIfZero:
		cond := c.num(st.Cond)
		return func(s *state) {
			if cond(s) == 0 {
				s.pc = st.Target
			}
		}
	}
	panic(fmt.Sprintf("interp: %T is no statement", st))
}

// DropPort is the egress port that means to drop, unless configured otherwise;
// simple_switch has the same.
const DropPort = 511

func (c *compiler) drop(st v1model.Drop) step {
	spec := c.lay.slot(st.Spec)
	port := c.dropPort & mask64(spec.width)
	if !st.Group.Valid() {
		return func(s *state) { s.w[spec.at] = port }
	}
	group := c.lay.slot(st.Group)
	return func(s *state) {
		s.w[spec.at] = port
		clear(s.w[group.at : group.at+group.n])
	}
}

func (c *compiler) hash(st v1model.Hash) step {
	calc, base, size := c.calculation(st.Calculation), c.num(st.Base), c.num(st.Max)
	set := c.assignUint(st.Dst)
	return func(s *state) { set(s, calc(s)%max(size(s), 1)+base(s)) }
}

func (c *compiler) random(st v1model.Random) step {
	low, high, set := c.num(st.Low), c.num(st.High), c.assignUint(st.Dst)
	return func(s *state) {
		a, b := low(s), high(s)
		if a > b {
			return
		}
		v := s.rand()
		if b-a != ^uint64(0) {
			v = a + v%(b-a+1)
		}
		set(s, v)
	}
}

// Instance types of packets: how a packet or copy came about.
const (
	instanceNormal      = 0
	instanceClone       = 1 // of ingress
	instanceEgressClone = 2
	instanceRecirculate = 4
	instanceReplication = 5
	instanceResubmit    = 6
)

// standard says where the architecture's fields lie. Fields that the program
// lacks or never looks at are nowhere.
type standard struct {
	ingressPort, egressSpec, egressPort, instanceType, packetLength stdField
	parserError, checksumError, mcastGroup, egressRID               stdField
	ingressTime, egressTime, enqueueTime                            stdField
	enqueueDepth, dequeueDepth                                      stdField
}

// stdField is the place of a field of at most 64 bits; nowhere is no place.
type stdField struct {
	at   int
	mask uint64
}

func (f stdField) exists() bool { return f.at >= 0 }

func (f stdField) set(s *state, v uint64) {
	if f.at >= 0 {
		s.w[f.at] = v & f.mask
	}
}

// saturate is set, but that a number that does not fit becomes the largest that does.
func (f stdField) saturate(s *state, v uint64) { f.set(s, min(v, f.mask)) }

func (f stdField) get(s *state) uint64 {
	if f.at < 0 {
		return 0
	}
	return s.w[f.at]
}

func newStandard(c *compiler) standard {
	m := &c.prog.Std
	field := func(r v1model.FieldRef) stdField {
		if !r.Valid() {
			return stdField{at: -1}
		}
		sl := c.lay.slot(r)
		return stdField{sl.at, mask64(sl.width)}
	}
	// Neither the clock nor a queue's depth need be read for a field that nobody reads.
	ifUsed := func(r v1model.FieldRef) stdField {
		if !c.prog.Uses(r) {
			return stdField{at: -1}
		}
		return field(r)
	}
	return standard{
		ingressPort: field(m.IngressPort), egressSpec: field(m.EgressSpec), egressPort: field(m.EgressPort),
		instanceType: field(m.InstanceType), packetLength: field(m.PacketLength),
		parserError: field(m.ParserError), checksumError: field(m.ChecksumError),
		mcastGroup: field(m.MulticastGroup), egressRID: field(m.EgressRID),
		ingressTime: ifUsed(m.IngressTimestamp), egressTime: ifUsed(m.EgressTimestamp),
		enqueueTime: ifUsed(m.EnqueueTimestamp), enqueueDepth: ifUsed(m.EnqueueDepth), dequeueDepth: ifUsed(m.DequeueDepth),
	}
}

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
