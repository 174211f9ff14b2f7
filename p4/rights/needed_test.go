package rights

import (
	"cmp"
	"fmt"
	"testing"
)

// shownBy are rules that are not tried here, with reasons.
var shownBy = map[string]string{
	"hold":         "nothing needs it: the switch turns such answers around; it spares packets",
	"last numbers": "callees of this model remember all calls that they have forgotten, so that a late copy does no harm",
	"lease rests":  "TestLeaseRests",
}

// where says how something breaks without a rule, if not in worlds of the kind "gone": in worlds of another kind, or in a program
// with one deviation.
var where = map[string]string{
	"reread": "m3", "fence list": "m9", "handed on": "m12", "sweep late": "m12", "overload": "few slots", "lease ends": "standing leases", "unknown fails": "operators", "own results": "others' regions", "audit waits": "looks",
}

// failure notes the first thing that is wrong.
type failure struct{ text string }

func (f *failure) Helper()           {}
func (f *failure) Error(args ...any) { f.Errorf("%s", fmt.Sprint(args...)) }
func (f *failure) Errorf(format string, args ...any) {
	if f.text == "" {
		f.text = fmt.Sprintf(format, args...)
	}
}

// breaks returns what goes wrong without a rule, or without a row of the tables.
func breaks(name string) string {
	for i := range ruleNames {
		if ruleNames[i] == name {
			return breaksWorlds(name)
		}
	}
	for _, script := range sorted(hostile) {
		f := &failure{}
		hostile[script](newRig(f, Rack, name))
		if f.text != "" {
			return script + ": " + f.text
		}
	}
	return breaksWorlds(name)
}

func breaksWorlds(name string) string {
	kind := cmp.Or(where[name], "gone")
	if programs[kind] != nil {
		all, _ := deviations(kind, false)
		for i := range all {
			if wrong := deviated(kind, false, all[i:i+1], name); wrong != "" {
				return fmt.Sprintf("%s, %v: %s", kind, all[i], wrong)
			}
		}
		return ""
	}
	s := kindsOfWorlds[kind].setting
	s.without = []string{name}
	for s.seed = range int64(4000) {
		if _, wrong := s.run(); wrong != "" {
			return fmt.Sprintf("%s, seed %d: %s", kind, s.seed, wrong)
		}
	}
	return ""
}

// TestNeeded leaves out one rule at a time, and one row of the tables at a time: something must break.
func TestNeeded(t *testing.T) {
	var names []string
	for _, name := range ruleNames {
		names = append(names, name)
	}
	for i := range table {
		names = append(names, table[i].name)
	}
	for i := range operations {
		names = append(names, operations[i].name)
	}
	for _, name := range names {
		if shownBy[name] != "" {
			continue
		}
		wrong := breaks(name)
		t.Logf("without %q: %s", name, wrong)
		if wrong == "" {
			t.Errorf("nothing breaks without %q", name)
		}
	}
}
