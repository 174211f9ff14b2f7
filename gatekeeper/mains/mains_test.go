package mains

import (
	"iter"
	"maps"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

var (
	mainID = rpcpacket.ID{9}
	n1     = rackaddr.Node(1)
	n2     = rackaddr.Node(2)
)

func at(node int, incarnation uint32) wal.Node {
	return wal.Node{Address: rackaddr.Node(uint64(node)), Incarnation: incarnation}
}

// history is a Table, and the log of what it has written down.
type history struct {
	*testing.T
	t    *Table
	disk map[wal.Key]wal.Record
}

func newHistory(t *testing.T) *history {
	return &history{t, New(), map[wal.Key]wal.Record{}}
}

// logs writes an Output down, and checks that a Table of the log is the one that there is, but for what nobody has been
// let begin.
func (h *history) logs(o Output) {
	h.Helper()
	for _, r := range o.Put {
		h.disk[r.Key()] = r
	}
	for _, k := range o.Delete {
		delete(h.disk, k)
	}
	want := map[rpcpacket.ID]main{}
	for id, m := range h.t.mains {
		if !m.at.IsZero() {
			want[id] = *m
			k := want[id]
			k.asked = nil
			want[id] = k
		}
	}
	got := map[rpcpacket.ID]main{}
	for id, m := range h.load().mains {
		got[id] = *m
	}
	if !reflect.DeepEqual(got, want) {
		h.Errorf("the log has %+v, want %+v", got, want)
	}
}

func (h *history) load() *Table {
	h.Helper()
	t, err := Load(records(maps.Values(h.disk)))
	if err != nil {
		h.Fatal(err)
	}
	return t
}

func records(all iter.Seq[wal.Record]) iter.Seq2[wal.Record, error] {
	return func(yield func(wal.Record, error) bool) {
		for r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// question is one for the main.
func question(node wal.Node, run, birth uint64) Question {
	return Question{Main: mainID, Name: "m", At: node, Run: run, Birth: birth}
}

// asks has a program ask to run the main, and checks whether it may, and whether it has to wait.
func (h *history) asks(what string, q Question, waits bool, code fault.Code) {
	h.Helper()
	if wait, err := h.t.Begin(q); wait != waits || fault.CodeOf(err) != code {
		h.Errorf("%s: waits %v, %v; want %v, %s", what, wait, err, waits, code)
	}
}

// begins has a program ask, and run the main.
func (h *history) begins(what string, q Question, waits bool, want View) {
	h.Helper()
	h.asks(what, q, waits, fault.OK)
	h.logs(h.t.Admit(mainID))
	if got, begun := h.t.View(mainID); !begun || got != want {
		h.Errorf("%s: it is %+v, %v; want %+v", what, got, begun, want)
	}
}

// ends has a node say that the main is over.
func (h *history) ends(what string, node wal.Node, index uint32, code fault.Code) {
	h.Helper()
	o, err := h.t.Over(mainID, node, index)
	if fault.CodeOf(err) != code {
		h.Errorf("%s: %v, want %s", what, err, code)
	}
	h.logs(o)
}

// TestOneRun: a main has one run, at the node whose ledger has its checkpoints. A run that takes the place of one that is not
// over waits for the leases that the former one gave; the same question again begins nothing.
func TestOneRun(t *testing.T) {
	h := newHistory(t)
	h.asks("without a ledger", question(at(1, 1), 4, 0), false, fault.Unavailable)
	h.begins("the first run", question(at(1, 1), 5, 7), false, View{At: at(1, 1), Run: 5})
	h.begins("the same question", question(at(1, 1), 5, 7), false, View{At: at(1, 1), Run: 5})
	h.asks("another node", question(at(2, 1), 1, 7), false, fault.BadRequest)
	h.begins("its function has failed", question(at(1, 1), 6, 7), true, View{At: at(1, 1), Run: 6})
	h.begins("its node has failed", question(at(1, 2), 1, 7), true, View{At: at(1, 2), Run: 1})
	h.asks("its ledger is lost", question(at(1, 3), 1, 8), false, fault.Unavailable)
	if h.t.Runs(mainID, n2) || !h.t.Runs(mainID, n1) || !h.t.Open(mainID) {
		t.Error("it is not known where it runs")
	}
	if all, open := h.t.At(n1); all != 1 || open != 1 {
		t.Errorf("the node has %d mains, %d of them open", all, open)
	}
	if h.logs(h.t.Disown(n1)); len(h.disk) != 0 || h.t.Known(mainID) {
		t.Errorf("the node is gone: %d records", len(h.disk))
	}
	h.begins("elsewhere, from the beginning", question(at(2, 1), 1, 7), false, View{At: at(2, 1), Run: 1})
}

// TestOver: a main that is over when its node fails stays so. A new run begins at the same node, and goes on counting; elsewhere
// it begins when that node has left.
func TestOver(t *testing.T) {
	h := newHistory(t)
	h.ends("nobody runs it", at(1, 1), 3, fault.Stale)
	h.begins("the first run", question(at(1, 1), 5, 7), false, View{At: at(1, 1), Run: 5})
	h.ends("another node says so", at(2, 1), 3, fault.Stale)
	h.ends("its end", at(1, 1), 3, fault.OK)
	h.ends("once more", at(1, 1), 3, fault.OK)
	if h.t.Open(mainID) || h.t.Runs(mainID, n1) {
		t.Error("it is over, and runs")
	}
	h.begins("the same question", question(at(1, 1), 5, 7), false, View{At: at(1, 1), Run: 5, Over: true, Index: 3})
	h.begins("the next incarnation", question(at(1, 2), 1, 7), false, View{At: at(1, 2), Run: 1, Over: true, Index: 3})
	h.asks("elsewhere", question(at(2, 1), 1, 7), false, fault.BadRequest)
	h.begins("a new run", question(at(1, 2), 2, 7), false, View{At: at(1, 2), Run: 2, Index: 3})
	h.ends("a late word", at(1, 2), 3, fault.BadRequest)
	h.logs(h.t.Leave(at(1, 2)))
	if !h.t.Known(mainID) {
		t.Error("its node has left before its end, and it is forgotten")
	}
	h.ends("its second end", at(1, 2), 9, fault.OK)
	h.begins("with another ledger", question(at(1, 3), 1, 8), false, View{At: at(1, 3), Run: 1, Over: true, Index: 9})
	h.logs(h.t.Leave(at(1, 2)))
	if !h.t.Known(mainID) {
		t.Error("a former incarnation has left, and it is forgotten")
	}
	h.logs(h.t.Leave(at(1, 3)))
	h.begins("elsewhere", question(at(2, 1), 1, 7), false, View{At: at(2, 1), Run: 1})
}

// TestAsked: a question waits until it is let begin, unless its node fails, or a later question takes its place.
func TestAsked(t *testing.T) {
	h := newHistory(t)
	h.asks("the first run", question(at(1, 1), 5, 7), false, fault.OK)
	if h.t.Fail(at(1, 1)); h.t.Known(mainID) {
		t.Error("nobody asks for it, and it is known")
	}
	h.begins("the first run", question(at(1, 2), 5, 7), false, View{At: at(1, 2), Run: 5})
	h.asks("the next one", question(at(1, 2), 6, 7), true, fault.OK)
	h.t.Fail(at(1, 1))
	if q, asked := h.t.Asked(mainID); !asked || q.Run != 6 {
		t.Errorf("asked %v: %+v", asked, q)
	}
	h.asks("the one after that", question(at(1, 2), 7, 7), true, fault.OK)
	h.t.Fail(at(1, 2))
	if _, asked := h.t.Asked(mainID); asked {
		t.Error("its node has failed, and it is asked for")
	}
	h.logs(h.t.Admit(mainID))
	if v, _ := h.t.View(mainID); v.Run != 5 {
		t.Errorf("nobody asks, and run %d begins", v.Run)
	}
}

// TestLoad_Refused: what makes no sense is not taken for a main.
func TestLoad_Refused(t *testing.T) {
	good := wal.Record{Kind: wal.KindMain, ID: wal.ID(mainID), Caller: at(1, 1), Data: make([]byte, 17)}
	for what, spoil := range map[string]func(*wal.Record){
		"short": func(r *wal.Record) { r.Data = r.Data[:15] }, "without a node": func(r *wal.Record) { r.Caller = wal.Node{} },
		"an unknown mark": func(r *wal.Record) { r.Attempt = 2 }, "a large number": func(r *wal.Record) { r.Order = 1 << 32 },
	} {
		r := good
		spoil(&r)
		if _, err := Load(records(maps.Values(map[int]wal.Record{1: r}))); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
	if _, err := Load(records(maps.Values(map[int]wal.Record{1: good}))); err != nil {
		t.Error(err)
	}
}
