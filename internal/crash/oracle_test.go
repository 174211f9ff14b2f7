package crash

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestOracle_PolicyNone: of a rack that recovers nothing, the oracle says so. Calls of
// policy none are lost with their nodes.
func TestOracle_PolicyNone(t *testing.T) {
	found := 0
	for seed := uint64(1); seed <= 6; seed++ {
		p := Generate(seed)
		for i := range p.Clients {
			p.Clients[i].Main = false
		}
		want, err := Model(p)
		if err != nil {
			t.Fatal(err)
		}
		bubble.Test(t, func(t *testing.T) {
			r, err := Perform(t.Context(), p, want, Options{
				Seed: seed, Network: "good", Policy: rpc.PolicyNone, Quiesce: synctest.Wait,
				Crashes: Crashes{
					{At: 14, Victim: "A", How: Kill}, {At: 24, Victim: "B", How: Kill}, {At: 34, Victim: "A", How: Kill}, {At: 44, Victim: "B", How: Kill},
				},
			})
			if err != nil || len(r.Wrong) > 0 {
				found++
			}
		})
	}
	if found < 3 {
		t.Errorf("of 6 runs whose services were killed, only %d are wrong", found)
	}
}

// TestOracle_Finds shows the oracle what must not be.
func TestOracle_Finds(t *testing.T) {
	p := chain()
	want, err := Model(p)
	if err != nil {
		t.Fatal(err)
	}
	good := func() *Run {
		r := &Run{p: p, ledger: newLedger(nil), audited: map[int]audited{}}
		r.crash = newCrasher(r)
		for _, call := range []int{callA, callB, callC, postC} {
			r.ledger.issue(call)
		}
		r.ledger.finish(0, Outcome{Value: want.Values[0], Marks: []Mark{{11, 7}, {2, 8}}})
		for op := range want.Effects {
			r.ledger.effect(op)
		}
		r.audited[1] = audited{marks: []Mark{{11, 7}}, bumps: 2}
		r.audited[2] = audited{marks: []Mark{{2, 8}, {35, 9}}, bumps: 1}
		return r
	}
	judge := func(r *Run) string {
		r.judgeBooks(want)
		r.judgeClients(want)
		r.judgeEffects(want)
		r.judgeHistories()
		return strings.Join(r.ledger.complaints(), "; ")
	}
	if wrong := judge(good()); wrong != "" {
		t.Fatalf("of a good run: %s", wrong)
	}
	for what, spoil := range map[string]func(r *Run){
		"has come to":               func(r *Run) { r.ledger.finished[0].Value++ },
		"has no result":             func(r *Run) { delete(r.ledger.finished, 0) },
		"when it was repeated":      func(r *Run) { r.ledger.observe(5, Outcome{}); r.ledger.observe(5, Outcome{Noise: 1}) },
		"has entries of operations": func(r *Run) { r.audited[1] = audited{marks: []Mark{{11, 7}, {11, 7}}, bumps: 2} },
		"entries of operations":     func(r *Run) { r.audited[2] = audited{marks: []Mark{{2, 8}}, bumps: 1} },
		"its caller was told":       func(r *Run) { r.audited[1] = audited{marks: []Mark{{11, 6}}, bumps: 2} },
		"the counter in memory":     func(r *Run) { r.audited[1] = audited{marks: []Mark{{11, 7}}, bumps: 3} },
		"has had 2 effects":         func(r *Run) { r.ledger.effect(6) },
		"has had 0 effects":         func(r *Run) { delete(r.ledger.effects, 6) },
		"operations that have none": func(r *Run) { r.ledger.effect(99) },
		"from memory is not": func(r *Run) {
			at := dsm.Pointer{1}
			by := r.ledger.begin(callB, 0, 1)
			r.ledger.touch(&access{by: by, op: 3, region: at, write: true, data: []byte{1}})()
			r.ledger.touch(&access{by: by, op: 4, region: at, data: []byte{0}})()
		},
		"was fenced, has": func(r *Run) {
			r.ledger.begin(callB, 0, 2)
			by := r.ledger.begin(callB, 0, 1)
			r.ledger.touch(&access{by: by, op: 3, region: dsm.Pointer{1}, write: true, data: []byte{1}})()
		},
		"order of its entries": func(r *Run) {
			r.ledger.spans[callC], r.ledger.spans[postC] = &span{5, 6}, &span{1, 2}
		},
	} {
		r := good()
		spoil(r)
		if wrong := judge(r); !strings.Contains(wrong, what) {
			t.Errorf("%s: %q", what, wrong)
		}
	}
}

// TestOracle_DeadGaveUp: that a call has not made an entry shows that it has not run, unless the
// call may have given up what makes the entry. Its client is dead.
func TestOracle_DeadGaveUp(t *testing.T) {
	add := func(kind Kind) Op {
		if kind == Add {
			return Op{N: 3, Kind: Add}
		}
		return Op{N: 2, Kind: kind, Slot: -1, Body: []Script{{Result: -1, Ops: []Op{{N: 3, Kind: Add}}}}}
	}
	for kind, wrong := range map[Kind]bool{Add: true, Call: true, Hurry: false, Try: false} {
		p := &Program{Services: []Service{{Stateful: true}}, Clients: []Client{{Script: Script{Result: -1, Ops: []Op{
			{N: 0, Kind: Call, Slot: -1, Body: []Script{{Result: -1, Ops: []Op{{N: 1, Kind: Bump}, add(kind)}}}},
		}}}}}
		want, err := Model(p)
		if err != nil {
			t.Fatal(err)
		}
		r := &Run{p: p, ledger: newLedger(p.tried()), audited: map[int]audited{0: {bumps: 1}}}
		r.crash = newCrasher(r)
		r.crash.count(p.clientName(0))
		r.judgeBooks(r.withoutTheDead(want))
		if got := strings.Join(r.ledger.complaints(), "; "); strings.Contains(got, "the counter in memory is 1, want 0") != wrong {
			t.Errorf("the entry is made by a %s: %q", kind, got)
		}
	}
}

// TestForLoss: that memory was away, or is lost, explains that a region is unavailable, and
// nothing else.
func TestForLoss(t *testing.T) {
	for code, explained := range map[rpc.Code]bool{
		rpc.Unavailable: true, rpc.NoSpace: true, rpc.PermissionDenied: false, rpc.Nondeterminism: false, rpc.Canceled: false,
	} {
		err := fault.New(code, "call", "of a test")
		r := &Run{lost: map[string]bool{}, void: make(chan struct{}), ledger: newLedger(nil)}
		if r.forLoss(err) {
			t.Errorf("%v is explained, though nothing was away", code)
		}
		if r.away = true; r.forLoss(err) != explained {
			t.Errorf("%v is explained by memory that was away: %v", code, !explained)
		}
		if r.lose("m2"); r.forLoss(err) != explained {
			t.Errorf("%v is explained by memory that is lost: %v", code, !explained)
		}
	}
}

// TestForLoss_Regions: that a region is gone is explained by a lost ledger, and by nothing else.
func TestForLoss_Regions(t *testing.T) {
	gone := fault.New(rpc.PermissionDenied, "reply", "pointer :: of a test: it lies in no region")
	r := &Run{lost: map[string]bool{}, void: make(chan struct{}), ledger: newLedger(nil), machines: map[string]uint8{"m1": 1, "m2": 2}, ledgers: map[string]map[uint8]bool{"A": {2: true}}}
	for _, step := range []struct {
		blade     string // that is lost
		explained bool
	}{{"m1", false}, {"m2", true}} {
		if r.lose(step.blade); r.forLoss(gone) != step.explained {
			t.Errorf("with %s lost, that a region is gone is explained: %t", step.blade, !step.explained)
		}
		if r.forLoss(fault.New(rpc.PermissionDenied, "reply", "of a test")) {
			t.Errorf("with %s lost, another denial is explained", step.blade)
		}
	}
}

// TestForLoss_Journal: a re-run may fail as nondeterminism when it, or an execution that it has called, was
// begun before its node's ledger; nothing else may. So may the repetition of a call bring something else.
func TestForLoss_Journal(t *testing.T) {
	const caller, callee, part, other = 1, 2, 3, 4
	diverged := fault.New(rpc.Nondeterminism, "call", "of a test")
	a, b := netip.MustParseAddr("fd00::a"), netip.MustParseAddr("fd00::b")
	for name, c := range map[string]struct {
		since     uint32 // of the callee's ledger
		again     bool   // the caller runs again
		explained bool
	}{
		"both run again":        {1, true, false},
		"the ledger is lost":    {2, true, true},
		"the caller runs once":  {2, false, false},
		"it is an older ledger": {0, true, false},
	} {
		l := newLedger(nil)
		l.outer = map[int]int{part: callee, other: caller}
		run := func(execution int, node netip.Addr, incarnation, since uint32) attempt {
			return l.beginAt(execution, join.Identity{Address: node, Incarnation: incarnation, Ledger: &control.LedgerPlace{Since: since}})
		}
		by := run(caller, a, 1, 1)
		run(callee, b, 1, 1)
		if c.again {
			by = run(caller, a, 2, 1)
		}
		run(callee, b, 2, c.since)
		if l.failed(by, fault.New(rpc.Unavailable, "call", "of a test")); l.explained() {
			t.Errorf("%s: something else explains it", name)
		}
		if l.failed(by, diverged); l.explained() != c.explained {
			t.Errorf("%s: explained %v", name, l.explained())
		}
		for op, may := range map[int]bool{caller: false, callee: c.since > 1, part: c.since > 1, other: false} {
			before := len(l.complaints())
			l.observe(op, Outcome{Noise: 1})
			l.observe(op, Outcome{Noise: 2})
			if wrong := len(l.complaints()) > before; wrong == may {
				t.Errorf("%s: operation %d may bring something else: %t", name, op, !wrong)
			}
		}
	}
}

// TestChorus: a call that has happened twice, or not at all, shows at the next one, and what
// the voices have come to in the end.
func TestChorus(t *testing.T) {
	for _, c := range []struct {
		calls []int64
		wrong string
	}{
		{[]int64{1, 2}, ""}, {[]int64{1, 2, 2}, "call 2 comes after 2 calls"}, {[]int64{1, 3}, "call 3 comes after 1 calls"},
	} {
		r := &Run{p: &Program{}, ledger: newLedger(nil)}
		z := &chorus{run: r}
		for _, n := range c.calls {
			if _, err := z.Act(t.Context(), []byte{5}, n, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(r.ledger.complaints(), "; "); (c.wrong == "") != (got == "") || !strings.Contains(got, c.wrong) {
			t.Errorf("calls %v: %q, want %q", c.calls, got, c.wrong)
		}
	}
}

// TestHistory_Rollback: what an attempt has written is seen until it is rolled back,
// and not after.
func TestHistory_Rollback(t *testing.T) {
	at := dsm.Pointer{1}
	for _, c := range []struct {
		late byte // what is read after the rollback
		good bool
	}{{0, true}, {5, false}} {
		l := newLedger(nil)
		r := &Run{p: &Program{}, ledger: l}
		first := l.begin(9, 0, 1)
		l.touch(&access{by: first, region: at, write: true, data: []byte{5}})()
		l.touch(&access{by: attempt{execution: 8, run: 1}, region: at, data: []byte{5}})() // a lessee
		second := l.begin(9, 0, 2)
		l.touch(&access{by: second, region: at, data: []byte{c.late}})()
		if r.judgeHistories(); (len(l.complaints()) == 0) != c.good {
			t.Errorf("%d is read after the rollback: %v", c.late, l.complaints())
		}
	}
}

// TestHistory_Reused: a region that was freed and allocated again under its pointer holds
// zeros, and only zeros.
func TestHistory_Reused(t *testing.T) {
	at := dsm.Pointer{1}
	for _, c := range []struct {
		read byte // after the second allocation
		good bool
	}{{0, true}, {5, false}} {
		l := newLedger(nil)
		r := &Run{p: &Program{}, ledger: l}
		first, second := attempt{execution: 8, run: 1}, attempt{execution: 9, run: 1}
		l.allocated(first, 0, at)
		l.touch(&access{by: first, region: at, write: true, data: []byte{5}})()
		l.allocated(second, l.now(), at)
		l.touch(&access{by: second, region: at, data: []byte{c.read}})()
		if r.judgeHistories(); (len(l.complaints()) == 0) != c.good {
			t.Errorf("%d is read from a region that was allocated anew: %v", c.read, l.complaints())
		}
	}
}

// TestInterpret_BadProgram: programs that make no sense are errors.
func TestInterpret_BadProgram(t *testing.T) {
	for name, ops := range map[string][]Op{
		"slot":  {{Kind: Read, Slot: 7, Size: 1}},
		"freed": {{Kind: Alloc, Size: 8}, {Kind: Free}, {Kind: Read, Size: 1}},
		"bound": {{Kind: Alloc, Size: 8}, {Kind: Write, At: 8, Size: 1}},
		"kind":  {{Kind: "dance"}},
	} {
		p := &Program{Clients: []Client{{Script: Script{Slots: 1, Result: -1, Ops: ops}}}}
		if _, err := Model(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	s := &Script{Result: -1, Ops: []Op{{Kind: Look}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newMachine(s, 0, nil).run(ctx, &modelWorld{}, s); err == nil {
		t.Error("a script goes on when its context has ended")
	}
}

// TestOracle_CalledAgain shows how many effects of an exactly-once call that a handler of policy
// none makes are right, and that those of the handler itself are not more than before.
func TestOracle_CalledAgain(t *testing.T) {
	const own, inner = 2, 4
	call := Op{N: 3, Kind: Call, Service: 1, Body: []Script{{Ops: []Op{{N: inner, Kind: Effect}}}}}
	p := &Program{Services: make([]Service, 2), Clients: []Client{{Script: Script{Ops: []Op{
		{N: 1, Kind: Try, Body: []Script{{Ops: []Op{{N: own, Kind: Effect}, call}}}},
	}}}}}
	for _, c := range []struct{ op, crashes, effects, wrong int }{
		{own, 1, 2, 0}, {own, 1, 3, 1}, {inner, 0, 1, 0}, {inner, 0, 2, 1}, {inner, 1, 3, 0}, {inner, 1, 4, 1}, {inner, 2, 6, 0}, {inner, 2, 7, 1},
	} {
		r := &Run{p: p, opt: Options{Network: "good"}, ledger: newLedger(nil)}
		r.crash = newCrasher(r)
		r.crash.hit = c.crashes
		for range c.effects {
			r.ledger.effect(c.op)
		}
		r.judgeEffects(&Expectation{Effects: map[int]int{own: 0, inner: 0}})
		if wrong := r.ledger.complaints(); len(wrong) != c.wrong {
			t.Errorf("%d effects of operation %d with %d crashes: %v", c.effects, c.op, c.crashes, wrong)
		}
	}
}

// TestLedger_Fenced: an attempt is fenced if a later incarnation of its own node has run the execution. Those of other nodes have other numbers:
// a call that is tried again may go to any of them.
func TestLedger_Fenced(t *testing.T) {
	a, b := netip.AddrFrom16([16]byte{1}), netip.AddrFrom16([16]byte{2})
	l := newLedger(nil)
	for i, c := range []struct {
		node        netip.Addr
		incarnation uint32
		fenced      bool
	}{{a, 6, false}, {b, 3, false}, {a, 5, true}, {b, 7, false}, {b, 3, true}, {a, 6, false}} {
		if got := l.beginAt(9, join.Identity{Address: c.node, Incarnation: c.incarnation}).fenced; got != c.fenced {
			t.Errorf("attempt %d: fenced %t", i, got)
		}
	}
}
