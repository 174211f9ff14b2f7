package transport

import (
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

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
