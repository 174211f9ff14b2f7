package interp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

func TestProfile(t *testing.T) {
	x := start(t, "tables", Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, not %v", err, want)
		}
	}
	name := x.c.prog.Table("I.shared").Profile.Name
	must(x.Member(datapath.Insert, name, 1, *act("set", 5)))
	must(x.Member(datapath.Insert, name, 2, *act("add", 5)))
	refuse(x.Member(datapath.Insert, name, 2, *act("add", 5)), datapath.ErrExists)
	refuse(x.Member(datapath.Modify, name, 3, *act("add", 5)), datapath.ErrNotFound)
	refuse(x.Member(datapath.Delete, name, 3, datapath.Action{}), datapath.ErrNotFound)
	refuse(x.Member(datapath.Insert, name, 3, *act("miss")), datapath.ErrNotFound)
	refuse(x.Member(datapath.Insert, name+"no", 3, *act("add", 5)), datapath.ErrNotFound)
	refuse(x.Group(datapath.Insert, name, 1, nil), datapath.ErrUnsupported) // no selector
	must(x.Member(datapath.Insert, name, 4, *act("set", 1)))
	must(x.Member(datapath.Insert, name, 5, *act("set", 1)))
	refuse(x.Member(datapath.Insert, name, 6, *act("set", 1)), datapath.ErrFull)

	member := uint32(1)
	e := datapath.Entry{Table: "I.shared", Match: []datapath.Match{{Value: []byte{1}}}, Member: &member}
	must(x.Apply(datapath.Insert, e))
	ask := func() string { return fmt.Sprint(process(x, 1, append([]byte{10, 1, 0, 0}, make([]byte, 16)...)...)) }
	if got := ask(); got != "[2:06]" { // set 5, and 1 for action_run == set
		t.Errorf("member 1 gives %s", got)
	}
	refuse(x.Member(datapath.Delete, name, 1, datapath.Action{}), datapath.ErrUnsupported) // in use
	must(x.Member(datapath.Modify, name, 1, *act("add", 2)))
	if got := ask(); got != "[2:52]" { // 0x40 + 2 + 0x10 for the default
		t.Errorf("member 1, modified, gives %s", got)
	}
	member = 2
	must(x.Apply(datapath.Modify, e))
	must(x.Member(datapath.Delete, name, 1, datapath.Action{}))
	must(x.Apply(datapath.Delete, e))
	must(x.Member(datapath.Delete, name, 2, datapath.Action{}))
}

func TestSelector(t *testing.T) {
	x := start(t, "tables", Config{})
	name := x.c.prog.Table("I.chosen").Profile.Name
	for id := uint32(1); id <= 3; id++ {
		if err := x.Member(datapath.Insert, name, id, *act("set", byte(id))); err != nil {
			t.Fatal(err)
		}
	}
	group := uint32(7)
	e := datapath.Entry{Table: "I.chosen", Match: []datapath.Match{{Value: []byte{1}}}, Group: &group}
	if err := x.Apply(datapath.Insert, e); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("entry with a group that is not there: %v", err)
	}
	if err := x.Group(datapath.Insert, name, group, map[uint32]int{9: 1}); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("group with a member that is not there: %v", err)
	}
	if err := x.Group(datapath.Insert, name, group, nil); err != nil {
		t.Fatal(err)
	}
	if err := x.Apply(datapath.Insert, e); err != nil {
		t.Fatal(err)
	}
	share := func() map[string]int {
		n := map[string]int{}
		r := rand.New(rand.NewPCG(1, 1))
		for range 1000 {
			c := binary.BigEndian.AppendUint64(make([]byte, 8), r.Uint64())
			n[fmt.Sprint(process(x, 1, append([]byte{9, 1, 0, 0}, c...)...))]++
		}
		return n
	}
	if got := share(); got["[2:00]"] != 1000 {
		t.Errorf("an empty group: %v", got)
	}
	if err := x.Group(datapath.Modify, name, group, map[uint32]int{1: 1, 3: 3}); err != nil {
		t.Fatal(err)
	}
	if got := share(); got["[2:01]"] < 150 || got["[2:01]"] > 350 || got["[2:03]"] != 1000-got["[2:01]"] {
		t.Errorf("members weighing 1 and 3: %v", got)
	}
	if err := x.Member(datapath.Delete, name, 3, datapath.Action{}); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("deletion of a member in a group: %v", err)
	}
	if err := x.Group(datapath.Delete, name, group, nil); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("deletion of a group in use: %v", err)
	}
	if err := x.Apply(datapath.Delete, e); err != nil {
		t.Fatal(err)
	}
	if err := x.Group(datapath.Delete, name, group, nil); err != nil {
		t.Fatal(err)
	}
	if err := x.Member(datapath.Delete, name, 3, datapath.Action{}); err != nil {
		t.Fatal(err)
	}
}
