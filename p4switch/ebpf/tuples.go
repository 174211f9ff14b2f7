//go:build linux

package ebpf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	mathbits "math/bits"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
)

// A table with ternary, range or optional fields, or with several of longest prefix, is a tuple space (Srinivasan, Suri and Varghese, 1999):
// entries with one mask are a tuple, and a packet's key, masked, is looked up once for each tuple. Two entries that differ in their priority
// alone are in two tuples of one mask. What a packet looks at:
//
//	tuples   which version counts (u64); the versions, each of how many tuples there are (u64), the default entry, and for each tuple, those
//	         first that may win: a bound of the ranks in it (u64), its id (u64), its mask; and a filter: a bit for each hash of id and masked
//	         key, which is set if there may be such an entry. It is mapped into this process.
//	entries  a trie: id (u64) and masked key ─▶ an entry's value (table.go), and behind it its rank (u64) and for each range field its bounds
//
// A rank is the priority, then how early the entry came. Bits of the filter are set before an entry comes and cleared behind it, a tuple is
// written before its first entry, and a higher bound before the entry that needs it. So one step of a trie shows an entry to a packet, and one
// hides it. Bounds are rounded up, so that few entries raise one.
//
// A range is in two tuples, those of its blocks (datapath.Blocks): ranges that do not overlap are never in each other's way, and a packet's value is in
// one of the two blocks. Whether it is in the range is seen from the bounds.
type tupleSpace struct {
	plan    *scanPlan
	wait    func() // returns when no packet looks at what it saw before
	def     []byte // the default entry's value
	tuples  []*tuple
	byMask  map[string][]*tuple
	entries map[string]tupled // by the entry's identity (scanPlan.key)
	ids     uint64
	came    uint32 // how many entries have come

	version int                // which counts
	written int                // versions, since wait was called
	stale   [tupleVersions]int // the first tuple that each version may have otherwise
	sharing map[uint64]int     // bits of the filter that several keys set, and how many more than one
}

// tuple is the entries of one mask.
type tuple struct {
	id   uint64
	mask string
	top  uint64          // no entry has a higher rank; all bits below its first one are set
	keys map[string]bool // masked
}

// tupled is where an entry is.
type tupled struct {
	in    []place
	rank  uint64
	value []byte
}

// place is one of an entry's keys: a tuple, and the key masked.
type place struct {
	in     *tuple
	masked string
}

const (
	// tupleMask is where a tuple's record has its mask.
	tupleMask = 16
	// maxTuples bounds how many bytes of tuples a table has.
	maxTuples = 1 << 19
	// tupleVersions is a power of two.
	tupleVersions = 8
	// filterBits is how many bits of the filter there are for each entry that a table may have, and maxFilter how many altogether.
	filterBits, maxFilter = 32, 1 << 25
	// filterHash multiplies each word of what the filter hashes: 2^64 divided by the golden ratio.
	filterHash = 0x9e3779b97f4a7c15
)

func newTupleSpace(p *scanPlan, wait func()) *tupleSpace {
	return &tupleSpace{plan: p, wait: wait, byMask: map[string][]*tuple{}, entries: map[string]tupled{}, sharing: map[uint64]int{}}
}

// entryKey is the size of a key of the entries' trie.
func (p *scanPlan) entryKey() int { return 4 + 8 + 8*p.words }

// split takes an entry's identity apart: its keys, each with its mask, and the bounds of its range fields.
func (p *scanPlan) split(key []byte) (parts []masking, bounds []byte, priority uint32) {
	parts, splits := []masking{{}}, 0
	for _, f := range p.fields {
		for i := f.at; i < f.at+words(f.width); i++ {
			at := key[4+scanWord*i:]
			blocks := []masking{{at[:8], at[8:16]}}
			if f.Kind == v1model.MatchRange {
				ne := binary.NativeEndian
				low, high := ne.Uint64(at[8:]), ne.Uint64(at[16:])
				if ne.Uint64(at) == 0 { // any value
					low, high = 0, ^uint64(0)
				}
				bounds = ne.AppendUint64(ne.AppendUint64(bounds, low), high)
				if blocks = blocksOf(low, high, splits < datapath.MaxSplit); len(blocks) > 1 {
					splits++
				}
			}
			var all []masking
			for _, part := range parts {
				for _, b := range blocks {
					all = append(all, masking{slices.Concat(part.mask, b.mask), slices.Concat(part.masked, b.masked)})
				}
			}
			parts = all
		}
	}
	return parts, bounds, ^binary.BigEndian.Uint32(key)
}

// masking is a mask, and what there is behind it.
type masking struct{ mask, masked []byte }

// blocksOf are the blocks that a range is in, one if it may not be split.
func blocksOf(low, high uint64, split bool) (out []masking) {
	blocks := []datapath.Block{datapath.BlockOf(low, high)}
	if split {
		blocks = datapath.Blocks(low, high)
	}
	for _, b := range blocks {
		out = append(out, masking{binary.NativeEndian.AppendUint64(nil, b.Mask), binary.NativeEndian.AppendUint64(nil, b.Value)})
	}
	return out
}

// join is split's other way round, of one of an entry's keys and of what its trie has.
func (p *scanPlan) join(mask, masked, value []byte) []byte {
	ne := binary.NativeEndian
	key := binary.BigEndian.AppendUint32(nil, ^uint32(ne.Uint64(value[p.value:])>>32))
	bounds := value[p.value+8:]
	for _, f := range p.fields {
		for i := f.at; i < f.at+words(f.width); i++ {
			if f.Kind != v1model.MatchRange {
				key = append(append(append(key, mask[8*i:8*i+8]...), masked[8*i:8*i+8]...), make([]byte, 8)...)
				continue
			}
			want := f.programMask(i - f.at)
			if low, high := ne.Uint64(bounds), ne.Uint64(bounds[8:]); low == 0 && high == ^uint64(0) {
				key = append(key, make([]byte, scanWord)...)
			} else {
				key = ne.AppendUint64(ne.AppendUint64(ne.AppendUint64(key, want), low), high)
			}
			bounds = bounds[16:]
		}
	}
	return key
}

// trieKey is an entry's key in its trie.
func (e *place) trieKey() []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(8*(8+len(e.masked))))
	return append(binary.NativeEndian.AppendUint64(b, e.in.id), e.masked...)
}

// put inserts or replaces an entry.
func (s *tupleSpace) put(m *tableMaps, key, value []byte) error {
	parts, bounds, priority := s.plan.split(key)
	e, found := s.entries[string(key)]
	was := e.value
	if !found {
		// 0 stands for no entry.
		e = tupled{rank: max(uint64(priority)<<32|uint64(^s.came), 1)}
		for _, part := range parts {
			e.in = append(e.in, place{s.roomFor(&e, string(part.mask), string(part.masked)), string(part.masked)})
		}
		if err := s.admit(m, &e); err != nil {
			return err
		}
		s.came++
	}
	e.value = s.plan.withRank(value, e.rank, bounds)
	for i := range e.in {
		if err := putElement(m.entries, e.in[i].trieKey(), e.value); err != nil {
			return errors.Join(err, s.takeBack(m, &e, was, i))
		}
	}
	s.entries[string(key)] = e
	return nil
}

// takeBack undoes a put that has put n of an entry's keys. Without room it can replace no node, but remove any.
func (s *tupleSpace) takeBack(m *tableMaps, e *tupled, was []byte, n int) error {
	if was == nil {
		return s.remove(m, e, n)
	}
	var errs []error
	for i := range n {
		errs = append(errs, putElement(m.entries, e.in[i].trieKey(), was))
	}
	return errors.Join(errs...)
}

// withRank is what the trie has of an entry.
func (p *scanPlan) withRank(value []byte, rank uint64, bounds []byte) []byte {
	b := make([]byte, p.value)
	copy(b, value)
	return append(binary.NativeEndian.AppendUint64(b, rank), bounds...)
}

// roomFor returns a tuple of a mask in which a key has no entry, for a further key of an entry.
func (s *tupleSpace) roomFor(e *tupled, mask, masked string) *tuple {
	for _, t := range s.byMask[mask] {
		if !t.keys[masked] {
			return t
		}
	}
	for _, at := range e.in { // its own keys are all different
		if at.in.mask == mask && len(at.in.keys) == 0 {
			return at.in
		}
	}
	s.ids++
	return &tuple{id: s.ids, mask: mask, keys: map[string]bool{}}
}

// admit makes an entry's tuples ones that packets look into, as soon as they must for the entry's rank, and its keys ones that they look for.
func (s *tupleSpace) admit(m *tableMaps, e *tupled) error {
	added := map[*tuple]bool{}
	for _, at := range e.in {
		if len(at.in.keys) == 0 {
			added[at.in] = true
		}
	}
	if len(s.tuples)+len(added) > s.plan.room {
		return fmt.Errorf("%w: entries with %d masks", datapath.ErrFull, len(s.tuples))
	}
	changed := len(s.tuples)
	for _, at := range e.in {
		t := at.in
		if len(t.keys) == 0 {
			s.byMask[t.mask] = append(s.byMask[t.mask], t)
		} else if t.top < e.rank {
			s.tuples = slices.DeleteFunc(s.tuples, func(other *tuple) bool { return other == t })
		}
		if t.top < e.rank {
			t.top = 1<<mathbits.Len64(e.rank) - 1
			// Behind its equals, so that most go to the end.
			i, _ := slices.BinarySearchFunc(s.tuples, t.top, func(t *tuple, top uint64) int { return cmp.Or(cmp.Compare(top, t.top), -1) })
			s.tuples = slices.Insert(s.tuples, i, t)
			changed = min(changed, i)
		}
		t.keys[at.masked] = true
		s.filter(m, at, 1)
	}
	return s.write(m, changed)
}

// delete removes an entry, and its tuples with their last ones.
func (s *tupleSpace) delete(m *tableMaps, key []byte) error {
	e, found := s.entries[string(key)]
	if !found {
		return datapath.ErrNotFound
	}
	if err := s.remove(m, &e, len(e.in)); err != nil {
		return err
	}
	delete(s.entries, string(key))
	return nil
}

// remove removes an entry of which the trie has n keys.
func (s *tupleSpace) remove(m *tableMaps, e *tupled, n int) error {
	var errs []error
	changed := len(s.tuples)
	for i, at := range e.in {
		if i < n {
			errs = append(errs, deleteElement(m.entries, at.trieKey()))
		}
		s.filter(m, at, -1)
		if delete(at.in.keys, at.masked); len(at.in.keys) > 0 {
			continue
		}
		changed = min(changed, slices.Index(s.tuples, at.in))
		out := func(all []*tuple) []*tuple { return slices.DeleteFunc(all, func(t *tuple) bool { return t == at.in }) }
		s.tuples = out(s.tuples)
		if s.byMask[at.in.mask] = out(s.byMask[at.in.mask]); len(s.byMask[at.in.mask]) == 0 {
			delete(s.byMask, at.in.mask)
		}
	}
	return errors.Join(append(errs, s.write(m, changed))...)
}

func (s *tupleSpace) setDefault(m *tableMaps, value []byte) error {
	s.def = value
	return s.writeVersion(m)
}

// write makes the tuples from one on those that packets look at.
func (s *tupleSpace) write(m *tableMaps, from int) error {
	for v := range s.stale {
		s.stale[v] = min(s.stale[v], from)
	}
	if from == len(s.tuples) && s.stale[s.version] == from && s.count(m) == from {
		return nil
	}
	return s.writeVersion(m)
}

// count is how many tuples the version has that counts.
func (s *tupleSpace) count(m *tableMaps) int {
	m.tuples.mu.RLock()
	defer m.tuples.mu.RUnlock()
	if m.tuples.mem == nil {
		return -1
	}
	return int(binary.NativeEndian.Uint64(m.tuples.mem[8+s.version*s.plan.versionSize():])) //nolint:gosec // bounded
}

// writeVersion writes the next version, and makes it the one that counts.
func (s *tupleSpace) writeVersion(m *tableMaps) error {
	if s.written == tupleVersions-1 {
		s.wait()
		s.written = 0
	}
	m.tuples.mu.RLock()
	defer m.tuples.mu.RUnlock()
	if m.tuples.mem == nil {
		return os.ErrClosed
	}
	p := s.plan
	v := (s.version + 1) % tupleVersions
	b := m.tuples.mem[8+v*p.versionSize():][:p.versionSize()]
	binary.NativeEndian.PutUint64(b, uint64(len(s.tuples)))
	copy(b[listHeader:], s.def)
	for i := s.stale[v]; i < len(s.tuples); i++ {
		t, at := s.tuples[i], b[listHeader+p.value+i*p.record:]
		binary.NativeEndian.PutUint64(at, t.top)
		binary.NativeEndian.PutUint64(at[8:], t.id)
		copy(at[tupleMask:], t.mask)
	}
	s.stale[v] = len(s.tuples)
	s.version = v
	s.written++
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&m.tuples.mem[0])), uint64(v)) //nolint:gosec // small
	return nil
}

// filter notes that a key is there once more, or once less.
func (s *tupleSpace) filter(m *tableMaps, at place, more int) {
	h := at.in.id
	for b := []byte(at.masked); len(b) > 0; b = b[8:] {
		h = (h ^ binary.NativeEndian.Uint64(b)) * filterHash
	}
	bit := h >> (64 - s.plan.filter)
	m.tuples.mu.RLock()
	defer m.tuples.mu.RUnlock()
	if m.tuples.mem == nil {
		return
	}
	cell := &m.tuples.mem[s.plan.filterAt()+int(bit/8)] //nolint:gosec // bounded
	set := byte(1) << (bit % 8)
	switch {
	case more > 0 && *cell&set == 0:
		*cell |= set
	case more > 0:
		s.sharing[bit]++
	case s.sharing[bit] == 0:
		*cell &^= set
	default:
		if s.sharing[bit]--; s.sharing[bit] == 0 {
			delete(s.sharing, bit)
		}
	}
}

// versionSize is the size of a version, filterAt is where the filter is.
func (p *scanPlan) versionSize() int { return listHeader + p.value + p.room*p.record }
func (p *scanPlan) filterAt() int    { return 8 + tupleVersions*p.versionSize() }

// inheritedTuples tells the counters' cells of entries of the executor before, by their identities.
func (p *scanPlan) inheritedTuples(tuples, entries *ebpf.Map) (map[string]uint32, error) {
	b, err := tuples.LookupBytes(uint32(0))
	if err != nil || b == nil {
		return nil, err
	}
	version := b[8+int(binary.NativeEndian.Uint64(b)%tupleVersions)*p.versionSize():]
	masks := map[uint64][]byte{}
	for i := range min(int(binary.NativeEndian.Uint64(version)), p.room) { //nolint:gosec // bounded
		at := version[listHeader+p.value+i*p.record:]
		masks[binary.NativeEndian.Uint64(at[8:])] = at[tupleMask : tupleMask+8*p.words]
	}
	cells := map[string]uint32{}
	var key, value []byte
	it := entries.Iterate()
	for it.Next(&key, &value) {
		if mask := masks[binary.NativeEndian.Uint64(key[4:])]; mask != nil {
			cells[string(p.join(mask, key[12:], value))] = binary.NativeEndian.Uint32(value[entryCounter:])
		}
	}
	return cells, it.Err()
}

// makeTuples makes the maps of a tuple space.
func (t *table) makeTuples(limit int) (err error) {
	p := t.scan
	t.maps.tuples, err = newMapped("tuples", align8(p.filterAt()+1<<p.filter/8), 1)
	if err != nil {
		return err
	}
	t.maps.entries, err = newMap(&ebpf.MapSpec{
		Name: "table", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: uint32(p.entryKey()), ValueSize: uint32(p.stored()),
		MaxEntries: uint32(limit * p.parts()),
	})
	return err
}

// stored is the size of what the trie has of an entry.
func (p *scanPlan) stored() int { return p.value + 8 + 16*p.ranges }

// parts is how many keys an entry has at most.
func (p *scanPlan) parts() int { return 1 << min(p.ranges, datapath.MaxSplit) }

// inheritTuples is inheritedTuples of a table's pinned maps.
func (x *Executor) inheritTuples(t *table, entries *ebpf.Map) (cells map[string]uint32, err error) {
	name := fmt.Sprintf("tuples_%d", t.def.Index)
	old, err := x.inherited(name)
	if err != nil || old == nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	if now := t.maps.tuples.cells; old.KeySize() != now.KeySize() || old.ValueSize() != now.ValueSize() {
		return nil, fmt.Errorf("%s: %w: its tuples have another size", name, ErrOtherVersion)
	}
	return t.scan.inheritedTuples(old, entries)
}
