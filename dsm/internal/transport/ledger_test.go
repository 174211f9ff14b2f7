package transport

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

var ledgerName = [16]byte{1}

func newTestLedger() *Ledger {
	return NewLedger(0, LedgerConfig{Name: ledgerName, Birth: 7, Run: 3, Incarnation: 3, MaxData: 100})
}

// opened is what a copy answers to a request to open the ledger.
func opened(birth uint64, number, members uint8, next uint64, status fault.Code) *dsmpacket.LedgerAnswer {
	return &dsmpacket.LedgerAnswer{
		Op: dsmpacket.LedgerOpen, Ledger: ledgerName, Incarnation: 3, Birth: birth, Next: next, Status: status,
		Mirror: dsmpacket.Mirror{Epoch: 1, Copy: number, Members: members},
	}
}

// TestLedger_Opens: a ledger is opened at every copy, again until it is, and what was to
// be appended meanwhile follows.
func TestLedger_Opens(t *testing.T) {
	l := newTestLedger()
	if s := l.Send(); len(s) != 1 || s[0].Op != dsmpacket.LedgerOpen || s[0].Run != 3 || s[0].Birth != 7 {
		t.Fatalf("it sends %+v", s)
	}
	if n := l.Append(0, []byte("one")); n != 1 || l.Append(0, []byte("two")) != 2 {
		t.Fatalf("the first record has number %d", n)
	}
	l.Receive(1, opened(7, 0, 2, 5, fault.Unavailable)) // the former run is not sealed there yet
	l.Receive(1, opened(7, 1, 2, 5, fault.OK))
	l.Receive(2, opened(7, 0, 2, 6, fault.OK)) // and the copies are not equal
	l.Receive(2, opened(7, 0, 2, 5, fault.OK))
	if s := l.Send(); len(s) > 0 || !l.Busy() {
		t.Fatalf("it sends %+v before both copies have opened the ledger", s)
	}
	l.Tick(l.Wake())
	if s := l.Send(); len(s) != 1 || s[0].Op != dsmpacket.LedgerOpen {
		t.Fatalf("after a while it sends %+v", s)
	}
	l.Receive(time.Second, opened(7, 1, 2, 5, fault.OK))
	s := l.Send()
	if len(s) != 1 || s[0].Op != dsmpacket.LedgerAppend || s[0].Chunk.Number != 5 || s[0].Ledger != ledgerName {
		t.Fatalf("it appends %+v", s)
	}
	for c := range uint8(2) {
		if l.Settled() != 0 {
			t.Error("one copy settles")
		}
		l.Receive(2*time.Second, &dsmpacket.LedgerAnswer{
			Op: dsmpacket.LedgerAppend, Ledger: ledgerName, Incarnation: 3, Birth: 7, Chunk: dsmpacket.Chunk{Number: 5}, Next: 6,
			Mirror: dsmpacket.Mirror{Epoch: 1, Copy: c, Members: 2},
		})
		l.Receive(2*time.Second, opened(9, 0, 2, 5, fault.Stale)) // late
	}
	if l.Settled() != 2 || l.Err() != nil {
		t.Errorf("%d settled, %v", l.Settled(), l.Err())
	}
	if s := l.Send(); len(s) > 0 {
		t.Errorf("then it sends %+v", s)
	}
}

// TestLedger_Patience: a machine that does not answer is asked for as long as the node
// lives, and not all the time.
func TestLedger_Patience(t *testing.T) {
	l := newTestLedger()
	sent := 0
	for now := time.Duration(0); now < time.Hour; now = max(now, l.Wake()) {
		l.Tick(now)
		if sent += len(l.Send()); sent > 20_000 {
			t.Fatalf("%d requests in %s", sent, now)
		}
	}
	if sent < 10_000 {
		t.Errorf("%d requests in an hour", sent)
	}
}

// TestLedger_Refused: what a run cannot open is an error, and nothing is sent any more.
func TestLedger_Refused(t *testing.T) {
	for want, a := range map[fault.Code]*dsmpacket.LedgerAnswer{
		fault.Stale:            opened(7, 0, 1, 5, fault.Stale),
		fault.PermissionDenied: opened(7, 0, 1, 5, fault.PermissionDenied),
		fault.NotFound:         opened(8, 0, 1, 5, fault.OK),
	} {
		l := newTestLedger()
		l.Send()
		l.Append(0, []byte("x"))
		l.Receive(1, a)
		l.Tick(time.Hour)
		if fault.CodeOf(l.Err()) != want || len(l.Send()) > 0 || l.Busy() || l.Wake() != Never {
			t.Errorf("%v: %v", want, l.Err())
		}
	}
	l := newTestLedger()
	for now := time.Duration(0); l.Err() == nil && now < time.Minute; now = l.Wake() {
		l.Tick(now)
		l.Receive(now, opened(7, 0, 1, 0, fault.NotFound))
	}
	if fault.CodeOf(l.Err()) != fault.NotFound {
		t.Errorf("a ledger that nobody grants: %v", l.Err())
	}
}

// TestVerdict_Left: a rollback is over when every copy has told all that is left of the run, in as many answers as that takes. What one copy alone
// has is told, too.
func TestVerdict_Left(t *testing.T) {
	id := [16]byte{1}
	has := [2][]dsmpacket.Left{}
	for i := range 2*dsmpacket.MaxLeft + 5 {
		l := dsmpacket.Left{Branch: uint64(i % 3), Index: uint32(i), ID: dsmpacket.IDOf(uint32(i), 1), Class: 12}
		for copied := range has {
			if i%10 != 3+copied {
				has[copied] = append(has[copied], l)
			}
		}
	}
	v := NewVerdict(0, dsmpacket.LedgerRequest{Op: dsmpacket.LedgerRollback, Ledger: id, Run: 3, Incarnation: 4})
	var former dsmpacket.LedgerAnswer
	for range 10 {
		q, ok := v.Send()
		if !ok {
			break
		}
		for copied := range has {
			a := dsmpacket.LedgerAnswer{
				Op: q.Op, Ledger: id, Run: 3, Incarnation: 4, From: q.From, Mirror: dsmpacket.Mirror{Epoch: 1, Copy: uint8(copied), Members: 2},
			}
			for _, l := range has[copied] {
				if l.ID < q.From {
					continue
				}
				if a.More = len(a.Left) == dsmpacket.MaxLeft; a.More {
					break
				}
				a.Left = append(a.Left, l)
			}
			if former.Op != 0 && v.Receive(0, &former) {
				t.Error("an answer counts twice")
			}
			if v.Over() || !v.Receive(0, &a) {
				t.Error("it is over before both copies have told everything, or an answer is not taken")
			}
			former = dsmpacket.LedgerAnswer{}
			if copied == 1 {
				former = a
			}
		}
	}
	if left := v.Left(); !v.Over() || len(left) != 2*dsmpacket.MaxLeft+5 || left[3].Index != 3 || left[4].Index != 4 {
		t.Errorf("over: %t, %d regions are left", v.Over(), len(left))
	}
}

// TestVerdict: a commit is over when every copy of the newest epoch has obeyed, is sent again
// until then, and fails when a copy refuses it.
func TestVerdict(t *testing.T) {
	id := [16]byte{1}
	answer := func(epoch uint32, copied, members uint8, status fault.Code) *dsmpacket.LedgerAnswer {
		return &dsmpacket.LedgerAnswer{
			Op: dsmpacket.LedgerCommit, Ledger: id, Run: 3, Incarnation: 4, Status: status,
			Mirror: dsmpacket.Mirror{Epoch: epoch, Copy: copied, Members: members},
		}
	}
	for name, c := range map[string]struct {
		answers []*dsmpacket.LedgerAnswer
		over    bool
		code    fault.Code
	}{
		"one of two":           {[]*dsmpacket.LedgerAnswer{answer(1, 0, 2, fault.OK)}, false, fault.OK},
		"the same twice":       {[]*dsmpacket.LedgerAnswer{answer(1, 0, 2, fault.OK), answer(1, 0, 2, fault.OK)}, false, fault.OK},
		"both":                 {[]*dsmpacket.LedgerAnswer{answer(1, 0, 2, fault.OK), answer(1, 1, 2, fault.OK)}, true, fault.OK},
		"of two epochs":        {[]*dsmpacket.LedgerAnswer{answer(1, 0, 2, fault.OK), answer(2, 1, 2, fault.OK)}, false, fault.OK},
		"the one that is left": {[]*dsmpacket.LedgerAnswer{answer(1, 0, 2, fault.OK), answer(2, 0, 1, fault.OK)}, true, fault.OK},
		"an older epoch":       {[]*dsmpacket.LedgerAnswer{answer(2, 0, 2, fault.OK), answer(1, 1, 2, fault.OK)}, false, fault.OK},
		"fenced":               {[]*dsmpacket.LedgerAnswer{answer(1, 0, 2, fault.Stale)}, true, fault.Stale},
		"no room just now":     {[]*dsmpacket.LedgerAnswer{answer(1, 0, 2, fault.Overloaded)}, false, fault.OK},
	} {
		v := NewVerdict(0, dsmpacket.LedgerRequest{Op: dsmpacket.LedgerCommit, Ledger: id, Run: 3, Incarnation: 4})
		if q, ok := v.Send(); !ok || q.Op != dsmpacket.LedgerCommit || q.Run != 3 || q.Incarnation != 4 {
			t.Errorf("%s: sends %+v, %t", name, q, ok)
		}
		for _, a := range c.answers {
			if !v.Receive(time.Millisecond, a) {
				t.Errorf("%s: an answer is not taken", name)
			}
		}
		v.Send()
		if v.Over() != c.over || fault.CodeOf(v.Err()) != c.code {
			t.Errorf("%s: over %t, %v; want %t, %v", name, v.Over(), v.Err(), c.over, c.code)
		}
		v.Tick(time.Second)
		if _, again := v.Send(); again == c.over {
			t.Errorf("%s: sent again: %t", name, again)
		}
	}
	v := NewVerdict(0, dsmpacket.LedgerRequest{Op: dsmpacket.LedgerRollback, Ledger: id, Run: 3, Incarnation: 4})
	if v.Receive(0, answer(1, 0, 1, fault.OK)) {
		t.Error("the answer to a commit counts for a rollback")
	}
	v = NewVerdict(0, dsmpacket.LedgerRequest{Op: dsmpacket.LedgerCommit, Ledger: id, Run: 3, Incarnation: 4, Main: 1, Checkpoint: 6})
	a := answer(1, 0, 1, fault.OK)
	a.Main, a.Checkpoint = 1, 5
	if v.Receive(0, a) || v.Over() {
		t.Error("the answer to the commit of a checkpoint counts for the next one")
	}
}

// TestLedger_Reads: what former runs have left is read in order over a network that loses, doubles and reorders, from two copies. A
// request asks for a group of chunks, and no more chunks are under way than both copies may answer with.
func TestLedger_Reads(t *testing.T) {
	const first, end = 5, 305
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		loss := []float64{0, 0.02, 0.3}[seed%3]
		l := newTestLedger()
		for copied := range uint8(2) {
			a := opened(7, copied, 2, end, fault.OK)
			a.Chunk.Number = first
			l.Receive(0, a)
		}
		l.Read(0)
		now, next, asked, packets := time.Duration(0), uint64(first), 0, 0
		var net []delivery
		for last := false; !last; {
			for _, q := range l.Send() {
				if q.Op != dsmpacket.LedgerRead || q.Run != 3 || q.Birth != 7 {
					continue
				}
				packets++
				for i := range uint64(q.More) + 1 {
					asked++
					for copied := range uint8(2) {
						a := &dsmpacket.LedgerAnswer{
							Op: q.Op, Ledger: ledgerName, Incarnation: 3, Birth: 7, Next: end, Mirror: dsmpacket.Mirror{Epoch: 1, Copy: copied, Members: 2},
							Chunk: dsmpacket.Chunk{Number: q.Chunk.Number + i, Data: []byte{byte(q.Chunk.Number + i)}},
						}
						if rng.Float64() >= loss {
							net = append(net, delivery{now + time.Duration(100+rng.IntN(1+int(1000*loss)))*time.Microsecond, func() { l.Receive(now, a) }})
						}
					}
				}
			}
			at, k := l.Wake(), -1
			for i, d := range net {
				if d.at < at {
					at, k = d.at, i
				}
			}
			if at == Never && !l.Readable() || packets > 10_000 {
				t.Fatalf("seed %d: chunk %d has not come after %d requests", seed, next, packets)
			}
			switch {
			case at == Never:
			case k < 0:
				now = max(now, at)
				l.Tick(now)
			default:
				now = max(now, at)
				do := net[k].do
				net = slices.Delete(net, k, k+1)
				do()
			}
			var chunks []dsmpacket.Chunk
			if rng.IntN(3) == 0 { // the reader of the records is not always there
				chunks, last, _ = l.Take(now)
			}
			for _, c := range chunks {
				if c.Number != next || c.Data[0] != byte(next) {
					t.Fatalf("seed %d: chunk %d is taken, not %d", seed, c.Number, next)
				}
				next++
			}
		}
		if next != end {
			t.Errorf("seed %d: the last chunk is %d", seed, next-1)
		}
		if loss == 0 && (asked != end-first || packets > (end-first)/(1+dsmpacket.MaxMore)+2) {
			t.Errorf("seed %d: %d chunks are asked for by %d requests", seed, asked, packets)
		}
	}
}
