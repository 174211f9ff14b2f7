package rpc

import "testing"

// TestUnlockedLedger: who goes on with the ledger after having given its mutex back learns of that at once.
func TestUnlockedLedger(t *testing.T) {
	b := new(ledger).lock()
	b.unlock()
	defer func() {
		if recover() == nil {
			t.Error("the ledger was used without its mutex")
		}
	}()
	_ = b.last
}
