package p4rt

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
)

// fake is a datapath that remembers what it was told and carries no packets. It
// is as strict as an executor: what must exist must exist.
type fake struct {
	sink datapath.Sink

	mu        sync.Mutex
	entries   map[string]datapath.Entry // table + key
	defaults  map[string]datapath.Action
	members   map[string]datapath.Action // profile/id
	groups    map[string]map[uint32]int
	sets      map[string][][]datapath.Match
	multicast map[uint32][]datapath.Replica
	clones    map[uint32][]datapath.Replica
	counters  map[string]datapath.Counts
	meters    map[string]datapath.MeterConfig
	coloured  map[string]datapath.MeterCounts
	registers map[string][]byte
	outs      chan []byte // frames of PacketOut
	kept      [][]byte    // frames of Replay
	room      int         // entries left; 0 is no limit
	closed    bool

	settled atomic.Int32

	// Default entries have no meters, as in the executors.
	noDefaultMeters bool
	// If set, Apply closes applying and waits for block.
	applying, block chan struct{}
}

func newFake(sink datapath.Sink) *fake {
	return &fake{
		sink: sink, entries: map[string]datapath.Entry{}, defaults: map[string]datapath.Action{},
		members: map[string]datapath.Action{}, groups: map[string]map[uint32]int{}, sets: map[string][][]datapath.Match{},
		multicast: map[uint32][]datapath.Replica{}, clones: map[uint32][]datapath.Replica{},
		counters: map[string]datapath.Counts{}, meters: map[string]datapath.MeterConfig{}, registers: map[string][]byte{}, coloured: map[string]datapath.MeterCounts{},
		outs: make(chan []byte, 64),
	}
}

func (f *fake) Replay() {
	defer f.lock()()
	for _, frame := range f.kept {
		f.sink.PacketIn(frame)
	}
	f.kept = nil
}

func (f *fake) lock() func() { f.mu.Lock(); return f.mu.Unlock }

func dpKey(e datapath.Entry) string { return e.Table + "/" + entryKey(e) }

func exists[V any](op datapath.Op, m map[string]V, key string) error {
	_, ok := m[key]
	switch {
	case op == datapath.Insert && ok:
		return fmt.Errorf("%s: %w", key, datapath.ErrExists)
	case op != datapath.Insert && !ok:
		return fmt.Errorf("%s: %w", key, datapath.ErrNotFound)
	}
	return nil
}

func (f *fake) Synchronize() {
	f.settled.Add(1)
}

func (f *fake) Apply(op datapath.Op, e datapath.Entry) error {
	if f.block != nil {
		close(f.applying)
		<-f.block
	}
	defer f.lock()()
	key := dpKey(e)
	if err := exists(op, f.entries, key); err != nil {
		return err
	}
	if op == datapath.Delete {
		delete(f.entries, key)
		return nil
	}
	if op == datapath.Insert && f.room > 0 && len(f.entries) >= f.room {
		return datapath.ErrFull
	}
	if e.Member != nil {
		if _, ok := f.members[fmt.Sprint("ingress.profile", *e.Member)]; !ok {
			if _, ok := f.members[fmt.Sprint("ingress.selector", *e.Member)]; !ok {
				return datapath.ErrNotFound
			}
		}
	}
	if e.Group != nil && f.groups[fmt.Sprint("ingress.selector", *e.Group)] == nil {
		return datapath.ErrNotFound
	}
	f.entries[key] = e
	return nil
}

func (f *fake) SetDefault(table string, a *datapath.Action) error {
	defer f.lock()()
	if a == nil {
		delete(f.defaults, table)
	} else {
		f.defaults[table] = *a
	}
	return nil
}

func (f *fake) Member(op datapath.Op, profile string, id uint32, a datapath.Action) error {
	defer f.lock()()
	key := fmt.Sprint(profile, id)
	if err := exists(op, f.members, key); err != nil {
		return err
	}
	if op == datapath.Delete {
		delete(f.members, key)
	} else {
		f.members[key] = a
	}
	return nil
}

func (f *fake) Group(op datapath.Op, profile string, id uint32, members map[uint32]int) error {
	defer f.lock()()
	key := fmt.Sprint(profile, id)
	if err := exists(op, f.groups, key); err != nil {
		return err
	}
	for m := range members {
		if _, ok := f.members[fmt.Sprint(profile, m)]; !ok {
			return datapath.ErrNotFound
		}
	}
	if op == datapath.Delete {
		delete(f.groups, key)
	} else {
		f.groups[key] = maps.Clone(members)
	}
	return nil
}

func (f *fake) ValueSet(name string, members [][]datapath.Match) error {
	defer f.lock()()
	f.sets[name] = members
	return nil
}

func (f *fake) Multicast(group uint32, rs []datapath.Replica) error {
	defer f.lock()()
	f.multicast[group] = rs
	return nil
}

func (f *fake) Clone(session uint32, rs []datapath.Replica, _ int) error {
	defer f.lock()()
	f.clones[session] = rs
	return nil
}

func (f *fake) Counter(name string, i int) (datapath.Counts, error) {
	defer f.lock()()
	return f.counters[fmt.Sprint(name, i)], nil
}

func (f *fake) SetCounter(name string, i int, c datapath.Counts) error {
	defer f.lock()()
	f.counters[fmt.Sprint(name, i)] = c
	return nil
}

func (f *fake) EntryCounts(e datapath.Entry) (datapath.Counts, error) {
	defer f.lock()()
	return f.counters[dpKey(e)], nil
}

func (f *fake) SetEntryCounts(e datapath.Entry, c datapath.Counts) error {
	defer f.lock()()
	f.counters[dpKey(e)] = c
	return nil
}

func (f *fake) Meter(name string, i int, c *datapath.MeterConfig) error {
	return f.setMeter(fmt.Sprint(name, i), c)
}

func (f *fake) EntryMeter(e datapath.Entry, c *datapath.MeterConfig) error {
	if e.Match == nil && f.noDefaultMeters {
		return datapath.ErrUnsupported
	}
	return f.setMeter(dpKey(e), c)
}

func meterKey(m datapath.MeterCell) string {
	if m.Entry != nil {
		return dpKey(*m.Entry)
	}
	return fmt.Sprint(m.Name, m.Index)
}

func (f *fake) MeterCounts(m datapath.MeterCell) (datapath.MeterCounts, error) {
	defer f.lock()()
	if m.Entry != nil && m.Entry.Match == nil && f.noDefaultMeters {
		return datapath.MeterCounts{}, datapath.ErrUnsupported
	}
	return f.coloured[meterKey(m)], nil
}

func (f *fake) SetMeterCounts(m datapath.MeterCell, c datapath.MeterCounts) error {
	defer f.lock()()
	f.coloured[meterKey(m)] = c
	return nil
}

func (f *fake) setMeter(key string, c *datapath.MeterConfig) error {
	defer f.lock()()
	if c == nil {
		delete(f.meters, key)
	} else {
		f.meters[key] = *c
	}
	return nil
}

func (f *fake) Register(name string, i int) ([]byte, error) {
	defer f.lock()()
	if v, ok := f.registers[fmt.Sprint(name, i)]; ok {
		return v, nil
	}
	return []byte{0, 0}, nil
}

func (f *fake) SetRegister(name string, i int, v []byte) error {
	defer f.lock()()
	f.registers[fmt.Sprint(name, i)] = slices.Clone(v)
	return nil
}

// HasRegistersOf makes it a registerHeir.
func (f *fake) HasRegistersOf(dp datapath.Datapath) bool {
	return reflect.ValueOf(f.registers).Pointer() == reflect.ValueOf(dp.(*fake).registers).Pointer()
}

func (f *fake) PacketOut(frame []byte) error {
	unlock := f.lock()
	unlock()
	f.outs <- frame
	return nil
}

func (f *fake) Close() error {
	defer f.lock()()
	f.closed = true
	return nil
}

// Presets and Default make the program's const table known.
func (f *fake) Presets() []Preset {
	entry := func(prio int32, value, mask byte) Preset {
		return Preset{Const: true, Entry: datapath.Entry{
			Table: "ingress.fixed", Priority: prio,
			Match:  []datapath.Match{{Value: []byte{value}, Mask: []byte{mask}}},
			Action: &datapath.Action{Name: "ingress.mark", Params: [][]byte{{value}}},
		}}
	}
	return []Preset{entry(2, 0x10, 0xf0), entry(1, 0, 0)}
}

func (f *fake) Default(table string) (datapath.Action, bool) {
	if table == "ingress.keyless" {
		return datapath.Action{Name: "ingress.mark", Params: [][]byte{{7}}}, true
	}
	return datapath.Action{}, false
}

func (f *fake) SinceHit(datapath.Entry) (time.Duration, error) { return 42 * time.Nanosecond, nil }

// fakes loads fakes and keeps them, newest last.
type fakes struct {
	mu  sync.Mutex
	all []*fake
	err error

	noDefaultMeters bool
	// shareRegisters has datapaths go on with the registers of those before.
	shareRegisters bool
	// If set, load sends to loading and waits for loaded.
	loading, loaded chan struct{}
}

func (l *fakes) load(_ *p4info.Info, _ []byte, sink datapath.Sink, goOn bool) (datapath.Datapath, error) {
	if l.loading != nil {
		l.loading <- struct{}{}
		<-l.loaded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	f := newFake(sink)
	f.noDefaultMeters = l.noDefaultMeters
	if n := len(l.all); goOn && l.shareRegisters && n > 0 { // the last one is what was committed, in tests that share
		f.registers = l.all[n-1].registers
	}
	l.all = append(l.all, f)
	return f, nil
}

func (l *fakes) last(t *testing.T) *fake {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		t.Fatal("nothing has been loaded")
	}
	return l.all[len(l.all)-1]
}
