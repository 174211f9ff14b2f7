package crash

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
)

// What the oracle asks changes when something is lost that Bifröst does not promise to
// keep: the regions of a memory blade that has no mirror, or what a log without sync had
// not written when the power failed. While a memory blade is away, its regions are
// unavailable, which fails the executions that need them as a loss does; but when it is
// back, everything is there again.

// everything is what is lost when the log has lost records.
const everything = "log"

// awayAfter is for how long a memory blade must be away, at least, for the rack to say that
// its regions are unavailable: that takes three heartbeats.
const awayAfter = 1900 * time.Millisecond

// awayMemory notes that a memory blade goes away for a time.
func (r *Run) awayMemory(blade string, back time.Duration, loses bool) {
	if r.opt.Setting.Disks && !r.p.usesMemory() && r.opt.Setting.Calls == 0 { // a chorus uses memory
		return // calls wait, and nothing is lost
	}
	if r.opt.Setting.Pairs {
		heard, counts := r.hitPair(blade, loses)
		if heard {
			return // the other copy goes on
		}
		loses = loses && !counts // the other one has everything, when it is heard again
	}
	r.mu.Lock()
	r.away = r.away || loses || back >= awayAfter || len(r.opt.Crashes) > 1
	r.mu.Unlock()
	if loses { // if only what it would have said of a region that it has freed
		r.lose(blade)
	}
}

func (r *Run) lose(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost[what] = true
	if what == everything {
		select {
		case <-r.void:
		default:
			close(r.void)
		}
	}
}

// hasLost reports whether something is lost, wasAway whether memory was away, at least.
func (r *Run) hasLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.lost) > 0
}

func (r *Run) wasAway() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.away || len(r.lost) > 0
}

// forLoss reports whether an absence or a loss explains an error. Who needs a region that is
// lost is told that it is unavailable, while its blade is away and when that has started anew. A re-run
// whose journal is lost may fail as nondeterminism (ledger.failed). With a node's ledger the regions of its executions
// go; one that is run again may find one of them in an answer that its callee has on record.
func (r *Run) forLoss(err error) bool {
	select {
	case <-r.void:
		return true
	default:
	}
	switch rpc.CodeOf(err) {
	case rpc.Unavailable, rpc.NoSpace: // no space: all memory blades are away
		return r.wasAway()
	case rpc.Nondeterminism:
		return r.ledger.explained()
	case rpc.PermissionDenied:
		return strings.Contains(err.Error(), "it lies in no region") && r.someLedgerLost()
	}
	return false
}

// someLedgerLost reports whether the ledger of any program's node is lost.
func (r *Run) someLedgerLost() bool {
	r.mu.Lock()
	programs := slices.Collect(maps.Keys(r.ledgers))
	r.mu.Unlock()
	return slices.ContainsFunc(programs, r.ledgerLost)
}

// noteLedger notes which machine has the ledger of a program's node.
func (r *Run) noteLedger(program string, self join.Identity) {
	if self.Ledger == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ledgers[program] == nil {
		r.ledgers[program] = map[uint8]bool{}
	}
	r.ledgers[program][self.Ledger.Machine] = true
}

// noteMachines notes which blades have which machine.
func (r *Run) noteMachines(ctx context.Context) error {
	s, err := r.rack.Gatekeeper().Snapshot(ctx)
	for _, b := range s.Blades {
		r.machines[b.Name] = b.Machine
	}
	return err
}

// ledgerLost reports whether all copies are lost of a machine that has had the ledger of a program's node.
func (r *Run) ledgerLost(program string) bool {
	if r.opt.Setting.Disks {
		return false // they are on disk
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for blade := range r.lost {
		if machine, memory := r.machines[blade]; memory && r.ledgers[program][machine] {
			return true
		}
	}
	return false
}

// stateLost reports whether an error says that a service has lost its state for good: that was
// in the ledger of its program's node, and the ledger is lost.
func (r *Run) stateLost(program string, err error) bool {
	return r.ledgerLost(program) && rpc.CodeOf(err) == rpc.Unavailable
}

// mainLost reports whether an error says that a durable main cannot go on: its checkpoints were in a
// ledger, and that is lost.
func (r *Run) mainLost(name string, err error) bool {
	return r.stateLost(name, err) && strings.Contains(err.Error(), "the ledger is lost that had its checkpoints")
}

// withoutTheLost is what must be when memory was away or is lost: an execution that needed it has
// failed where it did, and all that it was to do after that has not been done. What a call
// that has not failed was to do is done.
func (r *Run) withoutTheLost(e *Expectation) {
	if !r.wasAway() {
		return
	}
	for service, n := range e.Bumps {
		e.Bumps[service] = 0
		e.unsure[service] += n
	}
	for op := range e.Effects {
		e.Effects[op] = 0
	}
	for i := range r.p.Clients {
		r.loosen(e, &r.p.Clients[i].Script, false)
	}
}

// loosen does that for a script: done says that it has come to its end.
func (r *Run) loosen(e *Expectation, s *Script, done bool) {
	for i := range s.Ops {
		op := &s.Ops[i]
		if op.Kind == Add && !done {
			e.loose[op.N] = 1
		}
		for j := range op.Body {
			switch op.Kind {
			case Call:
				r.loosen(e, &op.Body[j], done || r.ledger.seen(op.N))
			case Hurry:
				_, answered := r.ledger.trials()[op.N]
				r.loosen(e, &op.Body[j], answered)
			case Post:
				r.loosen(e, &op.Body[j], false)
			default:
				r.loosen(e, &op.Body[j], done)
			}
		}
	}
}

// withTheForgotten is what may be when an execution has begun anew since its node's ledger was lost: if it was done, what
// it had called was forgotten, and has run once more.
func (r *Run) withTheForgotten(e *Expectation) {
	anew, most := r.ledger.anews()
	if len(anew) == 0 {
		return
	}
	for i := range r.p.Clients {
		r.p.Clients[i].Script.each(-1, func(service int, op *Op) {
			switch {
			case !anew[op.N]:
			case op.Kind == Add:
				e.loose[op.N] = max(e.loose[op.N], most)
			case op.Kind == Bump && service >= 0:
				e.unsure[service] += uint64(most) //nolint:gosec // not negative
			}
		})
	}
}
