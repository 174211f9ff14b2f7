package p4rt

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Preset is an entry that the program itself declares.
type Preset struct {
	Entry datapath.Entry
	Const bool // the controller may neither change nor delete it
}

// Presetter is implemented by a Datapath that can tell what its program
// declares; without it, such entries exist but cannot be read.
type Presetter interface {
	// Presets are the declared entries of all tables.
	Presets() []Preset
	// Default is a table's declared default action.
	Default(table string) (datapath.Action, bool)
}

// store is what a controller wrote, as it reads it back. The messages in it are
// never changed, only replaced, so a read may hand them out after it has let go
// of the lock.
type store struct {
	tables    map[uint32]*tableStore
	profiles  map[uint32]*profileStore
	meters    map[meterCell]*p4v1.MeterConfig
	valueSets map[uint32]*p4v1.ValueSetEntry
	digests   map[uint32]*p4v1.DigestEntry
	multicast *ordered[uint32, *p4v1.MulticastGroupEntry]
	clones    *ordered[uint32, *p4v1.CloneSessionEntry]
}

type tableStore struct {
	info    *p4info.Table
	entries *ordered[string, *entry]
	presets map[string]*entry // entries that the program declares, as it does
	// standard is the default entry that the program declares, current the one
	// in force.
	standard, current *entry
}

// entry is one table entry: as the controller wrote it (without counters and
// such) and as the data plane has it.
type entry struct {
	id    string // entryKey, but for default entries
	msg   *p4v1.TableEntry
	dp    datapath.Entry
	set   *actionSet // what stands behind a one-shot action set, or nil
	fixed bool       // declared const by the program
}

type meterCell struct {
	id    uint32
	index int64
}

func newStore(info *p4info.Info, dp datapath.Datapath) (*store, error) {
	s := &store{
		tables: map[uint32]*tableStore{}, profiles: map[uint32]*profileStore{},
		meters: map[meterCell]*p4v1.MeterConfig{}, valueSets: map[uint32]*p4v1.ValueSetEntry{},
		digests:   map[uint32]*p4v1.DigestEntry{},
		multicast: newOrdered[uint32, *p4v1.MulticastGroupEntry](), clones: newOrdered[uint32, *p4v1.CloneSessionEntry](),
	}
	pre, _ := dp.(Presetter)
	for _, t := range info.TableOrder {
		ts := &tableStore{info: t, entries: newOrdered[string, *entry](), presets: map[string]*entry{}}
		ts.standard = defaultEntry(info, t, pre)
		ts.current = ts.standard
		s.tables[t.ID] = ts
	}
	for _, a := range info.ProfileOrder {
		s.profiles[a.ID] = newProfileStore(a)
	}
	if pre == nil {
		return s, nil
	}
	for _, e := range pre.Presets() {
		if err := s.preset(info, e); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// defaultEntry is the default entry that the program declares: as the datapath
// tells it, or as P4Info does.
func defaultEntry(info *p4info.Info, t *p4info.Table, pre Presetter) *entry {
	e := &entry{
		msg:   &p4v1.TableEntry{TableId: t.ID, IsDefaultAction: true, IsConst: t.ConstDefault != 0},
		dp:    datapath.Entry{Table: t.Name},
		fixed: t.ConstDefault != 0 || t.Profile != nil,
	}
	var action *p4v1.Action
	if pre != nil {
		if a, ok := pre.Default(t.Name); ok {
			action = info.ActionMessage(a)
		}
	}
	if call := t.InitialDefault; action == nil && call != nil {
		action = &p4v1.Action{ActionId: call.GetActionId()}
		for _, a := range call.GetArguments() {
			action.Params = append(action.Params, &p4v1.Action_Param{ParamId: a.GetParamId(), Value: a.GetValue()})
		}
	}
	if action == nil && t.ConstDefault != 0 && len(info.Actions[t.ConstDefault].Params) == 0 {
		action = &p4v1.Action{ActionId: t.ConstDefault}
	}
	if action != nil {
		e.msg.Action = directAction(action)
		declared(info, 2, nil, e.msg) // as the program's, for good, and as the one in force
	}
	return e
}

// declared counts the uses of the strings in what the program declares, whose numbers no other strings may get.
func declared(info *p4info.Info, uses int, fields []p4info.Field, m *p4v1.TableEntry) {
	if _, err := info.Action(m.GetAction().GetAction()); err == nil { // else it has nothing to be counted
		info.Use(uses, fields, m.GetMatch(), m.GetAction())
	}
}

// preset adds an entry that the program declares.
func (s *store) preset(info *p4info.Info, p Preset) error {
	t := info.TableByName(p.Entry.Table)
	if t == nil { // compiled in by p4c, hidden from the control plane
		return nil
	}
	msg := &p4v1.TableEntry{
		TableId: t.ID, Match: p4info.MatchFields(t.Fields, p.Entry.Match), IsConst: p.Const || t.Const,
	}
	if t.NeedsPriority {
		msg.Priority = p.Entry.Priority
	}
	if p.Entry.Action == nil {
		return fmt.Errorf("declared entry of table %q has no action", t.Name)
	}
	action := info.ActionMessage(*p.Entry.Action)
	if action == nil {
		return fmt.Errorf("declared entry of table %q has the unknown action %q", t.Name, p.Entry.Action.Name)
	}
	msg.Action = directAction(action)
	ts := s.tables[t.ID]
	key, err := ts.key(msg)
	if err != nil {
		return fmt.Errorf("declared entry of table %q: %w", t.Name, err)
	}
	e := &entry{id: entryKey(key), msg: msg, dp: key, fixed: msg.IsConst}
	e.dp.Action = p.Entry.Action
	ts.entries.put(e.id, e)
	ts.presets[e.id] = e
	declared(info, 1, t.Fields, msg)
	return nil
}

func directAction(a *p4v1.Action) *p4v1.TableAction {
	return &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}
}

// find is the entry with the match and priority of e; nil if there is none.
func (s *store) find(e datapath.Entry) *entry {
	for _, t := range s.tables {
		if t.info.Name == e.Table {
			found, _ := t.entries.get(entryKey(e))
			return found
		}
	}
	return nil
}

// entryKey identifies an entry in its table: match and priority.
func entryKey(e datapath.Entry) string {
	var room [128]byte
	b := binary.AppendVarint(room[:0], int64(e.Priority))
	for _, m := range e.Match {
		if m.Wildcard {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(append(b, 1), uint64(m.PrefixLen))
		for _, v := range [...][]byte{m.Value, m.Mask, m.High} {
			b = append(binary.AppendUvarint(b, uint64(len(v))), v...)
		}
	}
	return string(b)
}

// ordered is a map that is walked in the same order whenever the same things
// were done to it, so that a run on virtual time can be replayed.
type ordered[K comparable, V any] struct {
	index map[K]int
	keys  []K
	vals  []V
}

func newOrdered[K comparable, V any]() *ordered[K, V] {
	return &ordered[K, V]{index: map[K]int{}}
}

func (o *ordered[K, V]) get(k K) (v V, ok bool) {
	i, ok := o.index[k]
	if ok {
		v = o.vals[i]
	}
	return v, ok
}

func (o *ordered[K, V]) put(k K, v V) {
	if i, ok := o.index[k]; ok {
		o.vals[i] = v
		return
	}
	o.index[k] = len(o.keys)
	o.keys, o.vals = append(o.keys, k), append(o.vals, v)
}

// remove moves the last element into the gap.
func (o *ordered[K, V]) remove(k K) {
	i, ok := o.index[k]
	if !ok {
		return
	}
	last := len(o.keys) - 1
	o.keys[i], o.vals[i] = o.keys[last], o.vals[last]
	o.index[o.keys[i]] = i
	var zero V
	o.vals[last] = zero
	o.keys, o.vals = o.keys[:last], o.vals[:last]
	delete(o.index, k)
}

func (o *ordered[K, V]) len() int { return len(o.keys) }

// all are the values; the slice must not be kept beyond the next change.
func (o *ordered[K, V]) all() []V { return o.vals }
