package crash

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/rpc"
)

// Calls of fate-share and tainted are taken back with those who have made them. The oracle asks of each such call
// whether the run that counts, which is the last one, is one that its caller's last run has asked for.

// stint is one run of an execution's script, in nanoseconds of the run of the program.
type stint struct {
	// from is when it has begun, gone when its program has ended, and to when the script has come to its end. One that has
	// not is never.
	from, gone, to int64
}

// stints notes that an attempt begins, whose context ends with its program. The function that it returns notes what the attempt
// has come to.
func (l *ledger) stints(ctx context.Context, by attempt) (over func(error)) {
	if by.fenced {
		return func(error) {}
	}
	s := &stint{from: l.now(), gone: never, to: never}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran[by.execution] = append(l.ran[by.execution], s)
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		s.gone = l.now()
	})
	return func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if stop() && err == nil {
			s.to = l.now()
		}
	}
}

// sharer is a call whose execution is taken back when its caller's fails. With up, its caller's is taken back when its own fails.
type sharer struct {
	op, caller int // executions: operations, or −1 and less
	up         bool
}

// sharers are the calls of a program that share fates, if calls have that policy unless they say another one. A call of a plain client, or of
// a handler of policy none, shares nothing: there is no execution at its other end that could be run again. Left out are calls that
// may be given up, for which nobody waits any more, and those that lend memory, which are made again when they have been answered.
func (p *Program) sharers(of rpc.Policy) (all []sharer) {
	var walk func(s *Script, caller int, durable, taint bool)
	walk = func(s *Script, caller int, durable, taint bool) {
		for i := range s.Ops {
			op := &s.Ops[i]
			if !op.executes() {
				for j := range op.Body {
					walk(&op.Body[j], caller, durable, taint)
				}
				continue
			}
			policy := op.Policy
			if policy == rpc.PolicyNone {
				policy = of
			}
			up := policy.SharesFates()
			if durable && op.Kind == Call && (up || taint) && len(op.Lend) == 0 {
				all = append(all, sharer{op.N, caller, up})
			}
			walk(&op.Body[0], op.N, op.Kind != Try, op.Kind != Post && op.Kind != Try && (taint || policy == rpc.PolicyTainted))
		}
	}
	for i, c := range p.Clients {
		walk(&p.Clients[i].Script, -1-i, c.Main, false)
	}
	return all
}

// soonHeard is after how long, at most, a call has reached its callee on the good network while memory and the Gatekeeper are there.
const soonHeard = int64(20 * time.Millisecond)

// judgeFates asks whether all were taken back that share the fate of one that has failed. A callee learns of its caller's failure
// when the caller's next run calls it. So the oracle asks only when that call cannot take long: programs were killed, and nothing else
// has happened.
func (r *Run) judgeFates() {
	kills := !slices.ContainsFunc(r.opt.Crashes, func(c Crash) bool { return c.How != Kill || kindOf(c.Victim) != "program" })
	if !kills || len(r.opt.When) > 0 || r.opt.Network != "good" || r.opt.Setting.ByHand {
		return
	}
	l := r.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range r.p.sharers(r.opt.Policy) {
		if l.inTry[s.op] {
			continue
		}
		if wrong := s.wrong(l.ran[s.caller], l.ran[s.op], l.issues[s.op]); wrong != "" {
			l.wrong = append(l.wrong, fmt.Sprintf("call %d shares its caller's fate: %s", s.op, wrong))
		}
	}
}

// wrong says what is wrong with the runs of a call and of its caller, "" if nothing. The caller has made the call at these instants.
func (s *sharer) wrong(caller, callee []*stint, issued []int64) string {
	if len(callee) == 0 {
		return ""
	}
	last := callee[len(callee)-1]
	for k := 1; k < len(caller); k++ {
		was, is := caller[k-1], caller[k]
		again := slices.IndexFunc(issued, func(t int64) bool { return t >= is.from })
		if again >= 0 && last.from < was.gone && was.gone <= is.from && last.to != never && last.to > issued[again]+soonHeard {
			return fmt.Sprintf("its run from %s to %s counts, though its caller failed at %s and made it again at %s", at(last.from), at(last.to), at(was.gone), at(issued[again]))
		}
	}
	if n := len(callee); s.up && n > 1 && len(issued) > 0 && issued[len(issued)-1]+soonHeard < callee[n-2].from {
		return fmt.Sprintf("it failed, and was run again at %s, but its caller has made it at %s last", at(last.from), at(issued[len(issued)-1]))
	}
	return ""
}

// at is an instant of the run, for people.
func at(t int64) time.Duration { return time.Duration(t) }
