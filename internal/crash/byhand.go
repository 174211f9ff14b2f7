package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// In some racks (Setting.ByHand) the services with state and the durable mains belong to no deployment. Somebody starts
// their programs by hand, each on a blade of its own, and starts them again there whenever they have ended. In the end
// the programs leave, and an operator has the Gatekeeper forget the nodes that wait for them.

// startAgain is how long it takes until a program is started again, and mostAgain how long if it ends again and again.
const (
	startAgain = 20 * time.Millisecond
	mostAgain  = 5 * time.Second
)

// hands are those who start programs by hand.
type hands struct {
	wg   sync.WaitGroup
	once sync.Once
	rest chan struct{} // closed when nothing is to be started any more
}

// byHand reports whether a service's program is started by hand. The first service is deployed.
func (r *Run) byHand(service int) bool {
	return r.opt.Setting.ByHand && r.p.Services[service].Stateful && service > 0
}

// keep has somebody start a program on a blade whenever it does not run, until it is over.
func (r *Run) keep(blade, name string, over <-chan struct{}, f simrack.Program) {
	r.hands.wg.Go(func() {
		for pause := startAgain; ; {
			from := time.Now()
			if p, err := r.rack.Run(blade, name, f); err == nil {
				r.crash.started()
				select {
				case <-p.Done():
				case <-r.hands.rest:
					p.Terminate()
					<-p.Done()
				}
			}
			if pause = min(2*pause, mostAgain); time.Since(from) > mostAgain {
				pause = startAgain
			}
			for again := false; !again; {
				select {
				case <-r.hands.rest:
					return
				case <-time.After(pause):
				}
				var gone bool
				if again, gone = r.needed(name, over); gone {
					return
				}
			}
		}
	})
}

// needed reports whether a program is to be started again, or its node has gone and it is over. A program may have come to its
// end, and its node may have failed before the Gatekeeper heard that: then it has to end once more.
func (r *Run) needed(name string, over <-chan struct{}) (again, gone bool) {
	select {
	case <-over:
	default:
		return true, false
	}
	gk := r.rack.Gatekeeper()
	if gk == nil {
		return false, false
	}
	o, err := gk.Overview(context.Background())
	if err != nil {
		return false, false
	}
	i := slices.IndexFunc(o.Nodes, func(n gatekeeper.NodeState) bool { return n.Name == name })
	if i < 0 || r.ledgerLost(name) {
		return false, len(o.Recoveries) == 0
	}
	return !o.Nodes[i].Awaited.IsZero(), false
}

// keepServices starts the services that are started by hand.
func (r *Run) keepServices() {
	for i := range r.p.Services {
		if r.byHand(i) {
			r.keep(fmt.Sprint("s", i+1), ServiceName(i), nil, func(ctx context.Context, j join.Joiner, s control.Start) error { return r.serve(ctx, i, j, s) })
		}
	}
}

// keepMains starts the durable mains if they are started by hand.
func (r *Run) keepMains() {
	for i, c := range r.p.Clients {
		if blades := r.serving(); c.Main && r.opt.Setting.ByHand {
			r.keep(blades[i%len(blades)], r.p.clientName(i), r.over[i], func(ctx context.Context, j join.Joiner, s control.Start) error { return r.durable(ctx, i, j, s) })
		}
	}
}

// forgetTwin has somebody forget the node of a main's second run, if that has begun the main: else it would wait for its
// program, and nobody else could run the main.
func (r *Run) forgetTwin(twin daemon.Process, node string) {
	for <-twin.Done(); ; {
		select {
		case <-r.hands.rest:
			return
		case <-time.After(startAgain):
		}
		gk := r.rack.Gatekeeper()
		if gk == nil {
			continue
		}
		o, err := gk.Overview(context.Background())
		if err != nil {
			continue
		}
		there := slices.ContainsFunc(o.Nodes, func(n gatekeeper.NodeState) bool { return n.Name == node })
		if !there && len(o.Recoveries) == 0 {
			return
		}
		_ = forgetNamed(gk, o.Nodes, node) // it is tried again
	}
}

// forgetLost has somebody forget the node of a main that was started by hand, if its ledger is lost: the main never goes on, and
// nobody else may run it.
func (r *Run) forgetLost(name string) error {
	if !r.opt.Setting.ByHand || !r.wasAway() {
		return nil
	}
	gk := r.rack.Gatekeeper()
	o, err := gk.Overview(context.Background())
	if err != nil {
		return err
	}
	return forgetNamed(gk, o.Nodes, name)
}

// forgetNamed has the Gatekeeper forget the node of a name, if it waits for its program.
func forgetNamed(gk *gatekeeper.Gatekeeper, nodes []gatekeeper.NodeState, name string) error {
	for _, n := range nodes {
		if n.Name == name && !n.Awaited.IsZero() {
			return gk.ForgetNode(context.Background(), n.Address)
		}
	}
	return nil
}

// started counts the programs that were started by hand.
func (c *crasher) started() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.did["programs started by hand"]++
}

// endHands ends what was started by hand.
func (r *Run) endHands() {
	r.hands.once.Do(func() { close(r.hands.rest) })
	r.hands.wg.Wait()
}

// forgetAwaited has the Gatekeeper forget the nodes that wait for their programs.
func (r *Run) forgetAwaited(ctx context.Context, s *gatekeeper.Snapshot) error {
	for _, n := range s.Nodes {
		if n.Awaited.IsZero() {
			continue
		}
		if err := r.rack.Gatekeeper().ForgetNode(ctx, n.Address); err != nil && rpc.CodeOf(err) != rpc.NotFound {
			return errors.Join(fmt.Errorf("forgetting node %s", n.Address), err)
		}
	}
	return nil
}
