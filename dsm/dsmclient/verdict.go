package dsmclient

import (
	"context"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// verdict is a word to a machine about a run of an execution that is not obeyed yet.
type verdict struct {
	machine uint8
	prefix  uint8
	core    *transport.Verdict // guarded by link.mu, as is what follows
	done    chan struct{}      // has room for one token
	told    bool
}

// Commit has a memory machine make final what a run of an execution has done there (With). The run
// is this node's, whatever Node says. Commit returns when every copy has, or
// with the context's error; Stale says that the node is fenced, or that a later run has changed
// something.
func (c *Client) Commit(ctx context.Context, machine uint8, run control.Run) error {
	_, err := c.link.tellVerdict(ctx, dsmpacket.LedgerCommit, machine, run)
	return err
}

// Left is a region that a run of an execution has allocated which was taken back: for the same allocation, the next run gets it again
// (Decider.Former). What the run that is committed has not asked for again goes with the commit.
type Left struct {
	// Branch and Index say which allocation.
	Branch uint64
	Index  uint32
	Base   Pointer
}

// Rollback is Commit, but has what the run, or one of an earlier incarnation, has done taken back. It returns what is left of that.
func (c *Client) Rollback(ctx context.Context, machine uint8, run control.Run) (all []Left, err error) {
	left, err := c.link.tellVerdict(ctx, dsmpacket.LedgerRollback, machine, run)
	for _, l := range left {
		at := dsmpacket.Make(c.link.rack().DSMPrefix, machine, l.ID)
		all = append(all, Left{Branch: l.Branch, Index: l.Index, Base: at})
	}
	return all, err
}

func (l *link) tellVerdict(ctx context.Context, op dsmpacket.LedgerOp, machine uint8, run control.Run) ([]dsmpacket.Left, error) {
	what := op.String() + " an execution"
	l.mu.Lock()
	if l.ended != fault.OK {
		l.mu.Unlock()
		return nil, fault.New(l.ended, what, "the client is closed")
	}
	v := &verdict{machine: machine, prefix: l.rack().DSMPrefix, done: make(chan struct{}, 1)}
	v.core = transport.NewVerdict(l.now(), dsmpacket.LedgerRequest{
		Op: op, Ledger: run.Execution, Run: run.Incarnation, Main: run.Main, Checkpoint: run.Checkpoint, Incarnation: l.incarnation,
	})
	l.verdicts = append(l.verdicts, v)
	l.flush()
	over := l.await(ctx, v.done, nil)
	l.mu.Lock()
	l.verdicts = slices.DeleteFunc(l.verdicts, func(o *verdict) bool { return o == v })
	left, err := v.core.Left(), v.core.Err()
	ended := l.ended
	l.mu.Unlock()
	l.standIn()
	switch {
	case over && v.core.Over():
		return left, err
	case ended != fault.OK:
		return nil, fault.New(ended, what, "the client is closed")
	}
	return nil, fault.FromContext(what, ctx.Err())
}

// receiveVerdict takes an answer to a commit or rollback. The caller holds l.mu.
func (l *link) receiveVerdict(from dsmpacket.Pointer, a *dsmpacket.LedgerAnswer) {
	for _, v := range l.verdicts {
		if from.Machine() == v.machine && from.InPrefix(v.prefix) {
			v.core.Receive(l.now(), a)
		}
	}
}

// tellVerdicts wakes those whose word is obeyed, or all when the link has ended, and reports
// whether there are any. The caller holds l.mu.
func (l *link) tellVerdicts() (told bool) {
	for _, v := range l.verdicts {
		if !v.told && (v.core.Over() || l.ended != fault.OK) {
			v.told, told = true, true
			v.done <- struct{}{}
		}
	}
	return told
}

// sendVerdicts adds what is to be sent. The caller holds l.mu.
func (l *link) sendVerdicts(out *outbox) {
	for _, v := range l.verdicts {
		if q, ok := v.core.Send(); ok && l.ended == fault.OK {
			out.addLedger(netip.AddrPortFrom(dsmpacket.LedgerAddress(v.prefix, v.machine, q.Op).Addr(), rackaddr.PortDSM), &q)
		}
	}
}
