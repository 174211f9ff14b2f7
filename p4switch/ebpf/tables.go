//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// table is a table's entries: those in the kernel, and what is known of them.
type table struct {
	def    *v1model.Table
	plan   *keyPlan  // nil if the table is a tuple space
	scan   *scanPlan // nil if it is none
	layout layout
	maps   tableMaps
	size   int // of an entry's value

	mu      sync.Mutex        // makes updates one at a time; guards what follows
	entries map[string]uint32 // counter cell by the trie's key
	idlers  map[string]*idler // entries with an idle timeout, by the same
	named   map[string]*int   // references of what an entry names of the profile, by the same
	free    []uint32          // counter cells that were used and are free
	next    uint32            // the first cell never used
	before  map[string]uint32 // while entries are given anew: the cells of those inherited, by key
}

// layout is how a table's entries lie in the kernel. The table's lock guards it.
type layout interface {
	// put inserts or replaces an entry.
	put(m *tableMaps, key, value []byte) error
	delete(m *tableMaps, key []byte) error
	setDefault(m *tableMaps, value []byte) error
}

// limitOf is how many entries a table has room for.
func limitOf(def *v1model.Table) int {
	limit := def.MaxSize
	if limit <= 0 {
		limit = defaultTable
	}
	return max(limit, len(def.Entries))
}

// newTable makes a table, but for its counters.
func (x *Executor) newTable(def *v1model.Table) (*table, error) {
	t := &table{def: def, size: entrySize(def), entries: map[string]uint32{}, named: map[string]*int{}, idlers: map[string]*idler{}}
	limit := limitOf(def)
	var err error
	if scans(def) {
		t.scan, _ = planScan(def)
		t.layout = newTupleSpace(t.scan, x.epochs.wait)
		err = t.makeTuples(limit)
	} else {
		t.plan, _ = planKey(def)
		t.layout = t.plan
		t.maps.entries, err = newMap(&ebpf.MapSpec{
			Name: "table", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc,
			KeySize: uint32(4 + t.plan.bytes), ValueSize: uint32(t.size), MaxEntries: uint32(limit + 1), // and the default
		})
	}
	t.next = 1 // the default entry's cell is 0
	if err == nil && def.Meter != nil {
		t.maps.meters, err = x.meterMaps(fmt.Sprintf("direct_meter_%d", def.Index), limit+1)
	}
	if err == nil && def.Timeout {
		t.maps.hits, err = x.kept(fmt.Sprintf("hits_%d", def.Index), &ebpf.MapSpec{
			Name: "hits", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: uint32(limit + 1),
		})
	}
	if !def.Counters && t.maps.meters.cells == nil && t.maps.hits == nil {
		return t, err
	}
	if err == nil {
		err = x.inheritCells(t)
	}
	return t, err
}

// inheritCells pins a table's entries, and notes which cells those of the executor
// before have, so that they keep them.
func (x *Executor) inheritCells(t *table) (err error) {
	name := fmt.Sprintf("table_%d", t.def.Index)
	x.pins[name] = t.maps.entries
	if t.maps.tuples != nil {
		x.pins[fmt.Sprintf("tuples_%d", t.def.Index)] = t.maps.tuples.cells
	}
	old, err := x.inherited(name)
	if err != nil || old == nil {
		return err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	if old.KeySize() != t.maps.entries.KeySize() || old.ValueSize() != t.maps.entries.ValueSize() {
		return fmt.Errorf("%s: %w: its entries have another size", name, ErrOtherVersion)
	}
	cells, err := x.cellsOf(t, old)
	t.before = map[string]uint32{}
	for key, cell := range cells {
		if cell > 0 {
			t.before[key] = cell
			t.next = max(t.next, cell+1)
		}
	}
	used := make([]bool, t.next)
	for _, cell := range t.before {
		used[cell] = true
	}
	for cell := uint32(1); cell < t.next; cell++ {
		if !used[cell] {
			t.free = append(t.free, cell)
		}
	}
	return err
}

// cellsOf tells the counters' cells of the entries that the executor before had in a table, by their identities.
func (x *Executor) cellsOf(t *table, old *ebpf.Map) (map[string]uint32, error) {
	if t.maps.tuples != nil {
		return x.inheritTuples(t, old)
	}
	cells := map[string]uint32{}
	var key, value []byte
	it := old.Iterate()
	for it.Next(&key, &value) {
		cells[string(key)] = binary.NativeEndian.Uint32(value[entryCounter:])
	}
	return cells, it.Err()
}

// endRestore gives back the cells of inherited entries that were not given anew.
func (t *table) endRestore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, cell := range t.before {
		if t.entries[key] != cell {
			t.free = append(t.free, cell)
		}
	}
	t.before = nil
}

// fillTables puts the program's own entries and default actions in.
func (x *Executor) fillTables() error {
	for _, t := range x.tables {
		if err := t.setDefault(nil); err != nil {
			return fmt.Errorf("table %q: %w", t.def.Name, err)
		}
		for i := range t.def.Entries {
			d := &t.def.Entries[i]
			var ms []datapath.Match
			for _, m := range d.Match {
				ms = append(ms, datapath.Match{Value: m.Value, Mask: m.Mask, High: m.High, PrefixLen: m.PrefixLen})
			}
			key, err := t.key(ms, t.def.EntryPriority(i))
			if err == nil {
				err = t.write(datapath.Insert, key, choice{call: &d.Call})
			}
			if err != nil {
				return fmt.Errorf("table %q: entry %d: %w", t.def.Name, i, err)
			}
		}
	}
	return nil
}

// Synchronize implements datapath.Datapath.
func (x *Executor) Synchronize() { x.epochs.wait() }

// Apply implements datapath.Datapath.
func (x *Executor) Apply(op datapath.Op, e datapath.Entry) error {
	t, err := x.table(e.Table)
	if err == nil {
		err = x.apply(t, op, &e)
	}
	if err != nil {
		return fmt.Errorf("table %q: %w", e.Table, err)
	}
	return nil
}

func (x *Executor) table(name string) (*table, error) {
	if t := x.tables[name]; t != nil && (len(t.def.Key) > 0 || !t.def.ConstEntry) {
		return t, nil
	}
	return nil, datapath.ErrNotFound
}

func (x *Executor) apply(t *table, op datapath.Op, e *datapath.Entry) error {
	switch {
	case t.def.Const:
		return fmt.Errorf("%w: its entries are constant", datapath.ErrUnsupported)
	case e.IdleTimeoutNs > 0 && !t.def.Timeout:
		return fmt.Errorf("%w: no idle timeout in this table", datapath.ErrUnsupported)
	}
	key, err := t.key(e.Match, e.Priority)
	if err != nil {
		return err
	}
	var do choice
	if t.def.Profile != nil {
		p := x.profiles[t.def.Profile.Index]
		p.mu.Lock()
		defer p.mu.Unlock()
		if op != datapath.Delete {
			do, err = p.chosen(e)
		}
	} else if op != datapath.Delete {
		if e.Action == nil || e.Member != nil || e.Group != nil {
			return fmt.Errorf("%w: the table needs another kind of action", datapath.ErrUnsupported)
		}
		do.call, err = t.bind(e.Action)
	}
	if err != nil {
		return err
	}
	if err := t.write(op, key, do); err != nil {
		return err
	}
	t.watch(op, key, e)
	return nil
}

// write makes an update in the kernel. If the table has a profile, that is locked.
func (t *table) write(op datapath.Op, key []byte, do choice) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.writeLocked(op, key, do)
	if err != nil {
		return err
	}
	if refs := t.named[string(key)]; refs != nil {
		*refs--
		delete(t.named, string(key))
	}
	if do.refs != nil {
		*do.refs++
		t.named[string(key)] = do.refs
	}
	return nil
}

func (t *table) writeLocked(op datapath.Op, key []byte, do choice) error {
	cell, found := t.entries[string(key)]
	switch {
	case op == datapath.Insert && found:
		return datapath.ErrExists
	case op != datapath.Insert && !found:
		return datapath.ErrNotFound
	case op == datapath.Delete:
		return t.remove(key, cell)
	case op == datapath.Insert && t.def.MaxSize > 0 && len(t.entries) >= t.def.MaxSize:
		return datapath.ErrFull
	}
	if !found {
		var err error
		if cell, err = t.newCell(key); err != nil {
			return err
		}
	}
	if err := t.layout.put(&t.maps, key, t.value(do, cell, true)); err != nil {
		if !found {
			t.freeCell(key, cell)
		}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
			return fmt.Errorf("%w: %w", datapath.ErrFull, err)
		}
		return err
	}
	t.entries[string(key)] = cell
	return nil
}

func (t *table) remove(key []byte, cell uint32) error {
	if err := t.layout.delete(&t.maps, key); err != nil {
		return err
	}
	delete(t.entries, string(key))
	t.freeCell(key, cell)
	return nil
}

// freeCell makes an entry's cell free; one that was inherited, not before all
// entries are given anew.
func (t *table) freeCell(key []byte, cell uint32) {
	if was, ok := t.before[string(key)]; !ok || was != cell {
		t.free = append(t.free, cell)
	}
}

// newCell takes a cell of the direct counter for a new entry and clears it; an
// inherited entry goes on with its own.
func (t *table) newCell(key []byte) (uint32, error) {
	if cell, ok := t.before[string(key)]; ok {
		return cell, nil
	}
	cell := t.next
	if n := len(t.free); n > 0 {
		cell = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		t.next++
	}
	var err error
	if t.maps.meters.cells != nil {
		err = errors.Join(configure(t.maps.meters.cells, cell, nil), t.maps.meters.set(cell, datapath.MeterCounts{}))
	}
	if t.maps.hits != nil {
		err = errors.Join(err, resetHit(t.maps.hits, cell))
	}
	if t.maps.counters != nil {
		err = errors.Join(err, setCell(t.maps.counters, t.maps.counted+cell, datapath.Counts{}))
	}
	return cell, err
}

// value is an entry's value in the kernel.
func (t *table) value(do choice, cell uint32, hit bool) []byte {
	b := make([]byte, t.size)
	ne := binary.NativeEndian
	ne.PutUint32(b[entryCounter:], cell)
	if hit {
		ne.PutUint32(b[entryHit:], 1)
	}
	switch {
	case do.act != 0:
		ne.PutUint32(b[entryAction:], do.act)
		ne.PutUint32(b[entryArgs:], do.id)
	case do.call != nil:
		i, _ := t.def.Action(do.call.Action.Name)
		ne.PutUint32(b[entryAction:], uint32(actionNumber(t.def, i)))
		putArgs(b, do.call)
	}
	return b
}

// putArgs puts an action's arguments into a value.
func putArgs(b []byte, call *v1model.ActionCall) {
	at, _ := argsAt(call.Action)
	for k, v := range call.Args {
		for w := range words(call.Action.Params[k].Width) {
			binary.NativeEndian.PutUint64(b[at[k]+8*w:], constWord(v, w))
		}
	}
}

// bind makes an action of the table from its name and parameters.
func (t *table) bind(a *datapath.Action) (*v1model.ActionCall, error) {
	i, ok := t.def.Action(a.Name)
	if !ok {
		return nil, fmt.Errorf("action %q: %w", a.Name, datapath.ErrNotFound)
	}
	c := &v1model.ActionCall{Action: t.def.Actions[i]}
	if len(a.Params) != len(c.Action.Params) {
		return nil, fmt.Errorf("action %q: %d parameters instead of %d", a.Name, len(a.Params), len(c.Action.Params))
	}
	for k, p := range c.Action.Params {
		if err := checkWidth(a.Params[k], p.Width); err != nil {
			return nil, fmt.Errorf("action %q: parameter %q: %w", a.Name, p.Name, err)
		}
		c.Args = append(c.Args, new(big.Int).SetBytes(a.Params[k]))
	}
	return c, nil
}

// SetDefault implements datapath.Datapath.
func (x *Executor) SetDefault(name string, a *datapath.Action) error {
	t, err := x.table(name)
	if err == nil {
		err = t.setDefault(a)
	}
	if err != nil {
		return fmt.Errorf("table %q: %w", name, err)
	}
	return nil
}

func (t *table) setDefault(a *datapath.Action) error {
	call := t.def.Default
	if a != nil {
		var err error
		if call, err = t.bind(a); err != nil {
			return err
		}
		if t.def.ConstEntry || t.def.ConstAction && call.Action.Name != t.def.Default.Action.Name {
			return fmt.Errorf("%w: its default action is constant", datapath.ErrUnsupported)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.layout.setDefault(&t.maps, t.value(choice{call: call}, 0, false))
}
