package gatekeeper

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// TestGroup_LateAnswer: the blade that has the only copy of a machine answers late that it knows so.
// The second copy has been filled meanwhile, and the switch sends to both blades. It must go on
// to: a rack that began with a backup lost all requests to the machine.
func TestGroup_LateAnswer(t *testing.T) {
	s := newSolo(t)
	s.cfg.Machines = [][]string{{"m3", "m4"}}
	hello := func(port uint16, name string, boot uint64) *blade {
		s.ask(t, port, control.KindHello, control.Hello{Blade: name, Kind: control.Memory, MAC: "02:00:00:00:00:01", Boot: boot, Capacity: 1 << 40, Birth: 1})
		return s.blades[name]
	}
	answer := func(b *blade, kind control.Kind) {
		t.Helper()
		i := slices.IndexFunc(b.commands, func(m *command) bool { return m.kind == kind })
		if i < 0 {
			t.Fatalf("blade %s has no command %s", b.hello.Blade, kind)
		}
		body, err := json.Marshal(control.Outcome{})
		if err != nil {
			t.Fatal(err)
		}
		s.obeyed(b, b.commands[i], control.Message{Body: body})
	}
	fill := func(from, to *blade) {
		t.Helper()
		answer(to, control.KindFill)
		answer(from, control.KindFill)
		s.filled(from, &control.FillProgress{Token: from.mirror.filling.token, Ready: true})
	}
	first := hello(5, "m3", 1)
	second := hello(6, "m4", 1)
	fill(first, second)
	s.obey()
	answer(first, control.KindComplete)
	s.obey()
	hello(6, "m4", 2) // it has restarted
	fill(first, second)
	answer(first, control.KindMirror) // the switch has not answered yet
	s.obey()
	answer(first, control.KindComplete)
	s.obey()
	group := p4rtclient.Group(uint16(first.hello.Machine))
	if e, there := s.base[group.Key()]; !first.two() || !there || len(e.Params) != 4 {
		t.Errorf("two copies: %t; the group: %t, %v", first.two(), there, e.Params)
	}
}
