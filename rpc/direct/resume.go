package direct

import "github.com/bifrost-rack/bifrost/rpc/record"

// Resumption is what the next incarnation of a node has to do, by what its ledger adds up
// to.
type Resumption struct {
	// Rerun are executions that have begun and are not done, Forward those about which the
	// Gatekeeper decides, and GiveUp those that have begun too often.
	Rerun, Forward, GiveUp []*record.Execution
	// Over are records of executions that owe nothing, though the ledger does not say so.
	Over []record.Record
}

// Resume decides what the next incarnation of a node has to do. What it owes is noted.
func (t *Table) Resume() (r Resumption) {
	for _, e := range t.state.Executions() {
		t.owe(e)
		begun := e.Done == nil && e.Begun != nil && e.Begun.Lane != 0 && !e.Handed
		switch {
		case begun && e.Begun.Attempt+1 >= Attempts:
			r.GiveUp = append(r.GiveUp, e)
		case begun:
			r.Rerun = append(r.Rerun, e)
		case t.paid(e):
			r.Over = append(r.Over, &record.Over{Execution: e.ID})
		case e.Handed && !e.Forgotten:
			r.Forward = append(r.Forward, e)
		}
	}
	return r
}
