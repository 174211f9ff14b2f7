package interp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

type portType = datapath.Port

func portOf(n uint32) datapath.Port { return datapath.Port(n) }

func act(name string, params ...byte) *datapath.Action {
	a := &datapath.Action{Name: "I." + name}
	for _, p := range params {
		a.Params = append(a.Params, []byte{p})
	}
	return a
}

func TestApplyRefuses(t *testing.T) {
	x := start(t, "tables", Config{})
	two := func(a byte, b ...byte) []datapath.Match { return []datapath.Match{{Value: []byte{a}}, {Value: b}} }
	good := datapath.Entry{Table: "I.exact_two", Match: two(1, 2, 3), Action: act("set", 1)}
	if err := x.Apply(datapath.Insert, good); err != nil {
		t.Fatal(err)
	}
	one := uint32(1)
	for name, c := range map[string]struct {
		op   datapath.Op
		e    datapath.Entry
		want error
		says string
	}{
		"again":           {datapath.Insert, good, datapath.ErrExists, "exact_two"},
		"no table":        {datapath.Insert, datapath.Entry{Table: "I.nothing"}, datapath.ErrNotFound, "I.nothing"},
		"no entry":        {datapath.Modify, datapath.Entry{Table: "I.exact_two", Match: two(9, 9, 9), Action: act("set", 1)}, datapath.ErrNotFound, ""},
		"delete nothing":  {datapath.Delete, datapath.Entry{Table: "I.exact_two", Match: two(9, 9, 9)}, datapath.ErrNotFound, ""},
		"constant":        {datapath.Insert, datapath.Entry{Table: "I.program", Match: two(1, 2, 3), Action: act("set", 1)}, datapath.ErrUnsupported, "constant"},
		"no such action":  {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: two(2, 2, 3), Action: act("add", 1)}, datapath.ErrNotFound, "I.add"},
		"no action":       {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: two(2, 2, 3)}, datapath.ErrUnsupported, "action"},
		"member":          {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: two(2, 2, 3), Member: &one}, datapath.ErrUnsupported, "action"},
		"no member":       {datapath.Insert, datapath.Entry{Table: "I.shared", Match: []datapath.Match{{Value: []byte{1}}}, Member: &one}, datapath.ErrNotFound, "member 1"},
		"direct action":   {datapath.Insert, datapath.Entry{Table: "I.shared", Match: []datapath.Match{{Value: []byte{1}}}, Action: act("set", 1)}, datapath.ErrUnsupported, "action"},
		"parameters":      {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: two(2, 2, 3), Action: act("set")}, nil, "0 parameters instead of 1"},
		"fields":          {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: two(2, 2, 3)[:1], Action: act("set", 1)}, nil, "1 match fields for a key of 2"},
		"width":           {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: two(2, 3), Action: act("set", 1)}, nil, "1 bytes for 16 bits"},
		"wildcard":        {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: []datapath.Match{{Wildcard: true}, {Wildcard: true}}, Action: act("set", 1)}, nil, "left out"},
		"prefix":          {datapath.Insert, datapath.Entry{Table: "I.longest", Match: []datapath.Match{{Value: make([]byte, 16), PrefixLen: 129}}, Action: act("set", 1)}, nil, "prefix of 129"},
		"empty range":     {datapath.Insert, datapath.Entry{Table: "I.between", Match: []datapath.Match{{Value: []byte{0, 2}, High: []byte{0, 1}}, {Wildcard: true}}, Action: act("set", 1)}, nil, "empty range"},
		"too wide a bit":  {datapath.Insert, datapath.Entry{Table: "I.exact_lpm", Match: []datapath.Match{{Value: []byte{0x13}}, {Value: make([]byte, 16)}, {Wildcard: true}}, Action: act("set", 1)}, nil, "wider than 4 bits"},
		"no idle timeout": {datapath.Insert, datapath.Entry{Table: "I.exact_two", Match: two(2, 2, 3), Action: act("set", 1), IdleTimeoutNs: 5}, datapath.ErrUnsupported, "idle"},
	} {
		err := x.Apply(c.op, c.e)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, not %v saying %q", name, err, c.want, c.says)
		}
	}
	if got := process(x, 1, append([]byte{1, 1, 2, 3}, make([]byte, 16)...)...); fmt.Sprint(got) != "[2:01]" {
		t.Errorf("the entry that was there now gives %v", got)
	}
}

func TestFullTable(t *testing.T) {
	x := start(t, "tables", Config{})
	insert := func(i int) error {
		return x.Apply(datapath.Insert, datapath.Entry{
			Table: "I.exact_two", Match: []datapath.Match{{Value: []byte{1}}, {Value: []byte{byte(i >> 8), byte(i)}}}, Action: act("set", 1),
		})
	}
	for i := range 1024 { // p4c's default size
		if err := insert(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := insert(1024); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("one more: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	x := start(t, "tables", Config{})
	ask := func() string { return fmt.Sprint(process(x, 1, append([]byte{1, 9, 9, 9}, make([]byte, 16)...)...)) }
	steps := []struct {
		a    *datapath.Action
		want string
	}{{act("set", 0x33), "[2:33]"}, {act("miss"), "[2:ff]"}, {act("set", 0x34), "[2:34]"}, {nil, "[2:ff]"}}
	for _, s := range steps {
		if err := x.SetDefault("I.exact_two", s.a); err != nil {
			t.Fatal(err)
		}
		if got := ask(); got != s.want {
			t.Errorf("after %+v a miss gives %s, not %s", s.a, got, s.want)
		}
	}
	if err := x.SetDefault("I.program", act("set", 1)); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("constant default action: %v", err)
	}
}

// An entry's memory is the caller's again after Apply.
func TestApplyCopies(t *testing.T) {
	x := start(t, "tables", Config{})
	e := datapath.Entry{Table: "I.exact_two", Match: []datapath.Match{{Value: []byte{1}}, {Value: []byte{2, 3}}}, Action: act("set", 7)}
	if err := x.Apply(datapath.Insert, e); err != nil {
		t.Fatal(err)
	}
	e.Match[0].Value[0], e.Action.Params[0][0] = 9, 9
	if got := process(x, 1, append([]byte{1, 1, 2, 3}, make([]byte, 16)...)...); fmt.Sprint(got) != "[2:07]" {
		t.Errorf("got %v", got)
	}
}
