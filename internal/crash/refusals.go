package crash

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Some calls may fail, though nothing is lost and nobody gives them up (operation Risk).
//
//   - Services with state that wait for each other are told so: one of the calls in their circle fails as deadlock, and has done
//     nothing. No other call does.
//   - The deployment of a service is taken back (Undeploy). A call that had begun, and does not come to its end, fails as unavailable:
//     what it did to memory is taken back, its one-ways are not sent, and each call that it has made is done as a whole or not at all. A
//     call that had not begun fails as unavailable, says so, and has done nothing.

// failure is how a call has failed that may fail.
type failure struct {
	code  rpc.Code
	never bool // it says that it has never begun
}

// refused notes that a call has failed. However often its caller runs, it must fail so.
func (l *ledger) refused(op int, code rpc.Code, never bool) {
	l.observe(op, Outcome{Refused: true, Noise: uint64(code)})
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, again := l.refusals[op]; again && was.never != never {
		l.wrong = append(l.wrong, fmt.Sprintf("operation %d has failed, and when it was repeated it has begun: %t, and %t", op, !was.never, !never))
	}
	l.refusals[op] = failure{code, never}
}

// withoutTheRefused takes from what is expected what calls were to do that have failed, and may. It asks whether there can be
// circles that these are part of.
func (r *Run) withoutTheRefused(e *Expectation) {
	r.ledger.mu.Lock()
	refusals := maps.Clone(r.ledger.refusals)
	r.ledger.mu.Unlock()
	waits := r.p.waits()
	for i := range r.p.Clients {
		r.p.Clients[i].Script.each(-1, func(caller int, call *Op) {
			is, refused := refusals[call.N]
			switch {
			case !refused:
			case is.never:
				e.without(call)
			default:
				r.withoutSome(e, call)
			}
			if is.code == rpc.Deadlock && !waits[[2]int{call.Service, caller}] {
				r.ledger.complain("operation %d was told that %s and %s wait for each other", call.N, ServiceName(caller), ServiceName(call.Service))
			}
		})
	}
}

// without takes from what is expected a call that has not run.
func (e *Expectation) without(call *Op) {
	call.Body[0].each(call.Service, func(service int, op *Op) {
		if service >= 0 {
			delete(e.Adds[service], op.N)
		}
		delete(e.Effects, op.N)
	})
}

// withoutSome takes from what is expected what a call has not done that had begun: its one-ways, and perhaps the calls that it was to make.
func (r *Run) withoutSome(e *Expectation, call *Op) {
	for i := range call.Body[0].Ops {
		op := &call.Body[0].Ops[i]
		switch {
		case op.Kind == Effect:
			e.Effects[op.N] = 0
		case op.Kind == Post:
			e.without(op)
		case op.executes():
			r.judgeWhole(op, func(in *Op) { e.loose[in.N] = 1 })
			op.Body[0].each(op.Service, func(_ int, in *Op) {
				if in.Kind == Effect {
					e.Effects[in.N] = 0
				}
			})
		}
	}
}

// takenBack reports whether the deployment of a service is taken back in this run, while the others stay.
func (r *Run) takenBack(service int) bool {
	return slices.ContainsFunc(r.opt.Crashes, func(c Crash) bool { return c.How == Undeploy && c.Victim == ServiceName(service) })
}

// appOf is the deployment of a service that is taken back.
func appOf(program string) string { return appName + "-" + program }

// deployApart deploys the services whose deployments are to be taken back.
func (r *Run) deployApart(ctx context.Context) error {
	for i := range r.p.Services {
		if !r.takenBack(i) {
			continue
		}
		spec := resources.Spec{Name: appOf(ServiceName(i)), Programs: []resources.Program{r.programOf(i, "")}}
		if err := r.rack.Gatekeeper().Deploy(ctx, spec); err != nil {
			return err
		}
	}
	return nil
}

// undeployApart takes those deployments back that have not been taken back.
func (r *Run) undeployApart(ctx context.Context) error {
	for i := range r.p.Services {
		if !r.takenBack(i) {
			continue
		}
		if err := r.rack.Gatekeeper().Undeploy(ctx, appOf(ServiceName(i))); err != nil && rpc.CodeOf(err) != rpc.NotFound {
			return err
		}
	}
	return nil
}

// deadlocks is how many calls have failed as deadlocks.
func (r *Run) deadlocks() (n int) {
	for i := range r.p.Clients {
		r.p.Clients[i].Script.each(-1, func(_ int, op *Op) { n += btoi(r.ledger.refusals[op.N].code == rpc.Deadlock) })
	}
	return n
}

// waits tells of which two services with state the first may wait for the second, if only for one that waits for others.
func (p *Program) waits() map[[2]int]bool {
	all := map[[2]int]bool{}
	for i := range p.Clients {
		p.Clients[i].Script.each(-1, func(caller int, op *Op) {
			if caller >= 0 && op.executes() && op.Kind != Post && p.Services[caller].Stateful && p.Services[op.Service].Stateful {
				all[[2]int{caller, op.Service}] = true
			}
		})
	}
	for by := range p.Services {
		for from := range p.Services {
			for to := range p.Services {
				if all[[2]int{from, by}] && all[[2]int{by, to}] {
					all[[2]int{from, to}] = true
				}
			}
		}
	}
	return all
}
