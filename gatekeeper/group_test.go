package gatekeeper

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// pair is a controller with a machine of two memory blades. What the blades and the switch do comes
// in any order: commands are answered when a test says so, and plans wait in the switch's line.
type pair struct {
	*solo
	t     rapid.TB
	line  []*plan
	at    [2]*port
	boots [2]uint64
}

var pairNames = [2]string{"m3", "m4"}

func newPair(t testing.TB, in rapid.TB) *pair {
	p := &pair{solo: newSolo(t), t: in}
	p.pairs = [][]string{pairNames[:]}
	for i := range pairNames {
		p.at[i] = p.newPort(uint16(5 + i))
	}
	p.hello(0)
	p.hello(1)
	return p
}

func (p *pair) blade(i int) *blade { return p.blades[pairNames[i]] }

// collect puts the plans that have come up into the line.
func (p *pair) collect() { p.line = append(p.line, p.take().plans...) }

// hello is a blade's daemon that has started anew.
func (p *pair) hello(i int) {
	p.boots[i]++
	h := control.Hello{Blade: pairNames[i], Kind: control.Memory, MAC: "02:00:00:00:00:01", Boot: p.boots[i], Capacity: 1 << 40, Birth: uint64(i + 1)}
	body, err := json.Marshal(h)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.solo.hello(p.at[i], control.Message{Kind: control.KindHello, Body: body}); err != nil {
		p.t.Logf("hello of %s: %v", pairNames[i], err)
	}
	p.collect()
}

// written is the switch's answer to the first plan of the line.
func (p *pair) written() {
	if len(p.line) == 0 {
		return
	}
	first := p.line[0]
	p.line = p.line[1:]
	if first.then != nil {
		first.then(nil)
	}
	p.collect()
}

// obeys has a blade answer its k-th command.
func (p *pair) obeys(i, k int) {
	b := p.blade(i)
	if len(b.commands) == 0 || !b.alive() {
		return
	}
	body, err := json.Marshal(control.Outcome{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.obeyed(b, b.commands[k%len(b.commands)], control.Message{Body: body})
	p.collect()
}

// answer has a blade answer its first command of a kind.
func (p *pair) answer(i int, kind control.Kind) {
	k := slices.IndexFunc(p.blade(i).commands, func(m *command) bool { return m.kind == kind })
	if k < 0 {
		p.t.Fatalf("blade %s has no command %s", pairNames[i], kind)
	}
	p.obeys(i, k)
}

// ready is the report of the source that the target has nearly all, if the source knows of it.
func (p *pair) ready() {
	m := p.blade(0).mirror
	if m.filling == nil || !p.source(m).alive() {
		return
	}
	fills := func(o *command) bool { return o.kind == control.KindFill }
	if !slices.ContainsFunc(p.blade(0).commands, fills) && !slices.ContainsFunc(p.blade(1).commands, fills) {
		p.filled(p.source(m), &control.FillProgress{Token: m.filling.token, Ready: true})
		p.collect()
	}
}

// settle goes on until nothing is under way, and the machine has two copies.
func (p *pair) settle() {
	m := p.blade(0).mirror
	for round := 0; round < 100 && (!p.blade(0).two() || len(p.line) > 0 || len(p.blade(0).commands)+len(p.blade(1).commands) > 0); round++ {
		for i := range pairNames {
			if !p.blade(i).alive() {
				p.hello(i)
			}
			p.obeys(i, 0)
		}
		p.ready()
		p.written()
		p.now = p.now.Add(time.Second)
		p.pairUp(m)
		p.collect()
	}
	if !p.blade(0).two() {
		p.t.Fatalf("the machine has copies %v, and why: %s", m.copies, m.why)
	}
	p.check(2)
}

// check: requests go to the group only while there is one; with copies, it has so many blades.
func (p *pair) check(copies int) {
	machine := p.blade(0).hello.Machine
	group := p4rtclient.Group(uint16(machine))
	home := homeEntry(p.machinePrefix(machine), 0)
	g, there := p.base[group.Key()]
	if to := p.base[home.Key()]; to.Action == "to_copies" && !there || copies > 0 && (to.Action != "to_copies" || len(g.Params) != 2*copies) {
		p.t.Fatalf("requests go %s; the group is there: %t, to %v", to.Action, there, g.Params)
	}
}

// TestGroup_LateAnswer: the blade that has the only copy of a machine answers late that it knows so.
// The second copy has been filled meanwhile, and the switch sends to both blades. It must go on
// to: a rack that began with a backup lost all requests to the machine.
func TestGroup_LateAnswer(t *testing.T) {
	p := newPair(t, t)
	p.settle()
	p.hello(1) // it has restarted
	for len(p.line) > 0 {
		p.written()
	}
	p.answer(1, control.KindFill)
	p.answer(0, control.KindFill)
	p.ready()
	p.answer(0, control.KindMirror) // the switch has not answered yet
	p.settle()
}

// TestGroup_NeitherObeys: both blades of a machine report, and have not obeyed a command in time. Both go out of service, and their copies
// count. They were doubted in turn, and the switch was probed again and again.
func TestGroup_NeitherObeys(t *testing.T) {
	p := newPair(t, t)
	p.settle()
	p.connect()
	for n := range 2 {
		p.command(p.blade(n), control.KindLedgers, control.Ledgers{}, func(control.Message) {})
	}
	p.now = p.now.Add(p.cfg.patience())
	p.hearing.last, p.hearing.pulse = p.now, p.now
	for n := range 2 {
		p.blade(n).heard = p.now
	}
	for probes := 0; ; probes++ {
		if p.listen(); p.hearing.probed.IsZero() {
			break
		}
		if probes == 3 {
			t.Fatal("the switch is probed without end")
		}
		p.probeAnswered()
	}
	if m := p.blade(0).mirror; p.blade(0).alive() || p.blade(1).alive() || len(m.copies) != 2 {
		t.Errorf("in service: %v, %v; copies %v", p.blade(0).alive(), p.blade(1).alive(), m.copies)
	}
}

// completing brings the second copy so far that the source is to complete it, and returns that command.
func (p *pair) completing() control.Complete {
	p.settle()
	p.hello(1) // it has restarted
	for len(p.line) > 0 {
		p.written()
	}
	p.answer(1, control.KindFill)
	p.answer(0, control.KindFill)
	p.ready()
	for len(p.line) > 0 {
		p.written()
	}
	for _, m := range p.blade(0).commands {
		if q, ok := m.body.(control.Complete); ok {
			return q
		}
	}
	p.t.Fatal("the copy is not completed")
	return control.Complete{}
}

// TestGroup_RestartWhileCompleting: the Gatekeeper restarts when the second copy is completed, and does not know whether it was. The
// first copy goes on alone, in an epoch of its own: in that of the two, clients would wait for answers of both.
func TestGroup_RestartWhileCompleting(t *testing.T) {
	p := newPair(t, t)
	told := p.completing()
	was := p.blade(0).mirror
	data, err := json.Marshal(was.record())
	if err != nil {
		t.Fatal(err)
	}
	next := newSolo(t)
	if err := next.restoreMirror(&wal.Record{Kind: wal.KindMirror, Data: data}); err != nil {
		t.Fatal(err)
	}
	if m := next.mirrors[was.machine]; m.epoch <= told.Mirror.Epoch || len(m.copies) != 1 {
		t.Errorf("it goes on with %v in epoch %d, the two would be in epoch %d", m.copies, m.epoch, told.Mirror.Epoch)
	}
}

// TestGroup_Reclaims: each copy is told of the regions that go, and so is one that is completed then, of those that the source
// has not freed yet.
func TestGroup_Reclaims(t *testing.T) {
	p := newPair(t, t)
	p.completing()
	p.settle()
	region := dsmpacket.Region{Base: dsmpacket.Make(p.cfg.DSMPrefix, p.blade(0).hello.Machine, dsmpacket.IDOf(99, 1)), Class: 12}
	p.reclaim([]dsmpacket.Region{region})
	for i := range pairNames {
		if got := p.blade(i).reclaims; len(got) != 1 || got[0].ID != dsmpacket.IDOf(99, 1) {
			t.Errorf("%s is to free %+v", pairNames[i], got)
		}
	}
	p.completing()
	if got := p.blade(1).reclaims; len(got) != 1 || got[0].ID != dsmpacket.IDOf(99, 1) {
		t.Errorf("the copy that is completed is to free %+v", got)
	}
}

// TestGroup_Grants: each copy of a machine is told whose a batch is.
func TestGroup_Grants(t *testing.T) {
	p := newPair(t, t)
	p.settle()
	n, machine := p.nodes[rackaddr.Node(1)], p.blade(0).hello.Machine
	news := p.grantBatches(n, machine, 1)
	if len(news) != 1 {
		t.Fatalf("the node gets %+v", news)
	}
	p.grant(machine, news)
	for i := range pairNames {
		if !slices.ContainsFunc(p.blade(i).commands, func(m *command) bool { return m.kind == control.KindGrant }) {
			t.Errorf("%s is not told", pairNames[i])
		}
	}
}

// fence has both blades answer a fence of a node, and reports by done whether it is complete.
func (p *pair) fence(first, second any) (done *int) {
	done = new(int)
	f := control.Fence{Node: rackaddr.Node(1), Incarnation: 1}
	for i, told := range []any{first, second} {
		body, err := json.Marshal(told)
		if err != nil {
			p.t.Fatal(err)
		}
		p.level(p.blade(i), f, control.Message{Body: body}, func() { *done++ })
	}
	p.collect()
	return done
}

// leaves is a copy's answer to a fence.
func leaves(u control.Unsettled) control.Fenced { return control.Fenced{Unsettled: u} }

// levels returns the first command to a blade to make the other copy equal, nil if there is none.
func (p *pair) levels(i int) *command {
	for _, m := range p.blade(i).commands {
		if m.kind == control.KindLevel {
			return m
		}
	}
	return nil
}

// TestGroup_Level: what either copy has told of a fence goes to the first one, in one command, and the fence is complete when that has
// been answered. Where there is nothing, nobody is asked.
func TestGroup_Level(t *testing.T) {
	span, ledger := []control.Span{{ID: dsmpacket.IDOf(99, 1), Length: 8}}, func(next uint64) []control.Ledger { return []control.Ledger{{Run: 1, First: 1, Next: next}} }
	for name, c := range map[string]struct{ first, second control.Unsettled }{
		"nothing":       {},
		"equal ledgers": {control.Unsettled{Ledgers: ledger(3)}, control.Unsettled{Ledgers: ledger(3)}},
		"ledgers":       {control.Unsettled{Ledgers: ledger(3)}, control.Unsettled{Ledgers: ledger(4)}},
		"first write":   {first: control.Unsettled{Writes: span}},
		"second write":  {second: control.Unsettled{Writes: span}},
		"first free":    {first: control.Unsettled{Frees: []dsmpacket.RegionID{dsmpacket.IDOf(99, 1)}}},
		"second free":   {second: control.Unsettled{Frees: []dsmpacket.RegionID{dsmpacket.IDOf(99, 1)}}},
		"more":          {second: control.Unsettled{More: true}},
	} {
		p := newPair(t, t)
		p.settle()
		done := p.fence(leaves(c.first), leaves(c.second))
		m := p.levels(0)
		if p.levels(1) != nil || (m != nil) != (len(c.first.Ledgers) == 0 && name != "nothing" || name == "ledgers") || (m == nil) != (*done == 2) {
			t.Fatalf("%s: asked %+v, complete %d", name, m, *done)
		}
		if m == nil {
			continue
		}
		want := control.Level{Epoch: p.blade(0).mirror.epoch, Fence: control.Fence{Node: rackaddr.Node(1), Incarnation: 1}, First: c.first, Second: c.second}
		if !reflect.DeepEqual(m.body, any(want)) {
			t.Errorf("%s: asked %+v, want %+v", name, m.body, want)
		}
		if p.answer(0, control.KindLevel); *done != 2 || len(p.blade(0).mirror.levelling) > 0 || !p.blade(0).two() {
			t.Errorf("%s: complete %d, two copies %t", name, *done, p.blade(0).two())
		}
	}
}

// TestGroup_LevelRefused: if the first copy cannot make the second one equal, or what either says makes no sense, the second one is lost.
// A malformed answer was taken for "the region is gone", and the copies differed.
func TestGroup_LevelRefused(t *testing.T) {
	for name, body := range map[string]string{"refused": `{"code":5}`, "malformed": "{", "empty": ""} {
		p := newPair(t, t)
		p.settle()
		done := p.fence(leaves(control.Unsettled{Writes: []control.Span{{ID: dsmpacket.IDOf(99, 1), Length: 8}}}), leaves(control.Unsettled{}))
		p.obeyed(p.blade(0), p.levels(0), control.Message{Body: []byte(body)})
		p.collect()
		if p.blade(0).two() || !p.blade(0).holds() {
			t.Errorf("%s: the copies are %v", name, p.blade(0).mirror.copies)
		}
		if p.settle(); *done != 2 {
			t.Errorf("%s: complete %d", name, *done)
		}
	}
	p := newPair(t, t)
	p.settle()
	p.fence("not a struct", leaves(control.Unsettled{}))
	if m := p.levels(0); m == nil || !m.body.(control.Level).First.More {
		t.Errorf("a fence is answered with nonsense: %+v", m)
	}
}

// TestGroup_LevelOfALostCopy: the first copy is lost while it makes the second one equal. What it has sent may still arrive, so the fence
// is complete when the survivor knows that it is alone: the node's regions are handed on then.
func TestGroup_LevelOfALostCopy(t *testing.T) {
	p := newPair(t, t)
	p.settle()
	done := p.fence(leaves(control.Unsettled{Writes: []control.Span{{ID: dsmpacket.IDOf(99, 1), Length: 8}}}), leaves(control.Unsettled{}))
	p.takeOut(p.blade(0), "test", false)
	for p.collect(); len(p.line) > 0; {
		p.written()
	}
	if *done != 0 {
		t.Fatal("the survivor may still be changed by the lost copy, and the fence is complete")
	}
	if p.answer(1, control.KindMirror); *done != 2 {
		t.Errorf("complete %d", *done)
	}
}

// TestGroup_AnyOrder: blades restart and fail, and answer in any order, and so does the switch. Fences end.
func TestGroup_AnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPair(t, rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { p.check(0) },
			"written": func(*rapid.T) { p.written() },
			"obeys": func(t *rapid.T) {
				p.obeys(rapid.IntRange(0, 1).Draw(t, "blade"), rapid.IntRange(0, 3).Draw(t, "command"))
			},
			"ready": func(*rapid.T) { p.ready() },
			"fence": func(*rapid.T) {
				if p.blade(0).two() && p.blade(0).alive() && p.blade(1).alive() {
					p.fence(leaves(control.Unsettled{Frees: []dsmpacket.RegionID{dsmpacket.IDOf(99, 1)}}), leaves(control.Unsettled{}))
				}
			},
			"restart": func(t *rapid.T) { p.hello(rapid.IntRange(0, 1).Draw(t, "blade")) },
			"fails": func(t *rapid.T) {
				if b := p.blade(rapid.IntRange(0, 1).Draw(t, "blade")); b.alive() {
					p.takeOut(b, "test", false)
					p.collect()
				}
			},
			"later": func(*rapid.T) {
				p.now = p.now.Add(time.Second)
				p.pairUp(p.blade(0).mirror)
				p.collect()
			},
		})
		p.settle()
		if n := len(p.blade(0).mirror.levelling) + len(p.blade(0).unlevel) + len(p.blade(1).unlevel); n > 0 {
			rt.Fatalf("%d fences wait for ever", n)
		}
	})
}

// TestGroup_RestartUnanswered: a blade without a copy starts anew, and has not answered a command. Its next start is not waited for to answer that, and does not
// fail for it.
func TestGroup_RestartUnanswered(t *testing.T) {
	p := newPair(t, t)
	settle := func() {
		for len(p.line) > 0 {
			p.written()
		}
	}
	settle()
	p.hello(1) // its filling is given up, and it is told so
	settle()
	b := p.blade(1)
	if b.holds() || len(b.commands) == 0 {
		t.Fatalf("it holds a copy: %v, and has %d commands", b.holds(), len(b.commands))
	}
	if p.hello(1); len(b.commands) > 0 {
		t.Errorf("its next start has not answered %s, which it was not asked for", b.commands[0].kind)
	}
}
